"""What every command shares: help, versions, errors in one sentence, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import lookalike

from lookalike._version import __version__
from lookalike.cli import app
from lookalike.cli import main as cli_main
from lookalike.cli.commands import PANELS
from lookalike.cli.generate import STOPPED
from lookalike.core.errors import Exit

COMMANDS = [name for names in PANELS.values() for name in names]


def test_help_takes_less_than_a_third_of_a_second() -> None:
    """Processor time, best of five: other tests run beside this one, and it is the imports that count."""
    took = []
    for _ in range(5):
        before = os.times()
        answer = lookalike("--help")
        after = os.times()
        took.append(sum(after[2:4]) - sum(before[2:4]))
        assert answer.code == 0
    assert all(command in answer.out for command in COMMANDS)
    assert 0 < min(took) < 0.3


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from lookalike.cli.app import run; run(['--help']); run(['train', '--help']);"
        "print([m for m in ('numpy', 'torch', 'pyarrow', 'yaml', 'PIL', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, cli) -> None:
    answer = cli(command, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"Usage: lookalike {command}")
    assert answer.err == ""


def test_version_and_no_words(cli) -> None:
    assert cli("--version").out == f"lookalike {__version__}\n"
    assert cli().out == cli("--help").out
    assert cli().code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["doctr"], "`doctr` is not a command of lookalike; did you mean `doctor`?"),
        (["index", "f", "--wacht"], "`--wacht` is not an option of index; did you mean `--watch`?"),
        (["index", "f", "--zzz"], "`--zzz` is not an option of index; see `lookalike index --help`."),
        (["index", "--model"], "`--model` needs a value; see `lookalike"),
        (["report"], "`lookalike report` needs RUN; see `lookalike report --help`."),
        (["report", "a", "b"], "`lookalike report` has no place for `b`; see `lookalike report --help`."),
        (["demo", "--seed", "x"], "`--seed` of demo is wrong: "),
        (["cache"], "`lookalike cache` needs one of ls, clear; see `lookalike cache --help`."),
        (["cache", "lss"], "`lss` is not a command of lookalike cache; did you mean `ls`?"),
        (["report", "nowhere"], "`nowhere` is not a run: there is no `run.json` in it."),
        (["--nonsense"], "`--nonsense` is not an option of lookalike; see `lookalike --help`."),
    ],
)
def test_a_users_error_gives_a_one_line_error_and_exit_code_2(words: list[str], message: str, cli) -> None:
    answer = cli(*words)
    assert answer.code == Exit.USER == 2
    assert answer.out == ""
    assert answer.err.startswith(message)
    assert answer.err.count("\n") == 1
    assert answer.err.rstrip()[-1] in ".?"


def test_a_bug_keeps_its_traceback(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookalike.core.artifacts.entries", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cli("cache", "ls")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m lookalike --help | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "0\n"


SLOW = """
import sys, time
from lookalike.cli import app
from lookalike.core import artifacts
def wait():
    print("ready", flush=True)
    {body}
artifacts.entries = wait
sys.exit(app.run(["cache", "ls"]))
"""


def interrupted(body: str, strikes: int, number: signal.Signals = signal.SIGINT) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)  # it is on its way from the print to the work
    for _ in range(strikes):
        process.send_signal(number)
        time.sleep(0.3)
    _, err = process.communicate(timeout=20)
    return process.returncode, err


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_ctrl_c_and_sigterm_stop_with_a_single_line() -> None:
    start_time = time.monotonic()
    assert interrupted("time.sleep(60)", 1) == (130, STOPPED + "\n")
    assert interrupted("time.sleep(60)", 1, signal.SIGTERM) == (143, STOPPED + "\n")
    assert interrupted("try: time.sleep(60)\n    except KeyboardInterrupt as e: raise type(e)('Stopped at 3.')", 1) == (
        130,
        "Stopped at 3.\n",
    )
    assert time.monotonic() - start_time < 10


def test_ctrl_c_while_the_commands_are_loaded_is_a_single_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(words: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("lookalike.cli.app.run", interrupt)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as ended:
        cli_main()
    assert ended.value.code == 130 and capsys.readouterr().err == "Stopped.\n"


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
@pytest.mark.parametrize(
    "body",
    [
        "exec('while True:\\n  try: time.sleep(60)\\n  except KeyboardInterrupt: pass')",  # code that will not stop
        "import hashlib; hashlib.pbkdf2_hmac('sha256', b'x', b'y', 80_000_000)",  # deep in a library
        "import signal; from lookalike.core import interrupts; interrupts._GRACE_SECONDS = 1\n"
        "    signal.signal(signal.SIGINT, lambda *_: None); time.sleep(60)",  # a server of its own mind
    ],
    ids=["stubborn", "in C", "another handler"],
)
def test_ctrl_c_twice_always_ends(body: str) -> None:
    start_time = time.monotonic()
    code, err = interrupted(body, 2)
    assert code == 130
    assert "Ended at once." in err
    assert time.monotonic() - start_time < 12


def test_completion_is_offered() -> None:
    answer = lookalike(env={"_LOOKALIKE_COMPLETE": "source_bash"})
    assert answer.code == 0
    assert "_LOOKALIKE_COMPLETE=complete_bash" in answer.out
    words = {"_LOOKALIKE_COMPLETE": "complete_bash", "COMP_WORDS": "lookalike do", "COMP_CWORD": "1"}
    assert "doctor" in lookalike(env=words).out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train --method pro", ["proxy_anchor"]),
        ("train birds --device c", ["cpu", "cuda"]),
        ("recipes show def", ["default"]),
        ("adapt --config paper_te", ["paper_test", "paper_test_few"]),
        ("adapt --method te", ["tent"]),
        ("shift ", ["splits", "run", "fewshot", "place"]),
        ("cache clear --k", ["--kind"]),
        ("embed birds --precision ", ["f32", "bf16"]),
    ],
)
def test_words_are_completed(line: str, expected: list[str], monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("_LOOKALIKE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"lookalike {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(f"lookalike {line}".split(" ")) - 1))
    with pytest.raises(SystemExit) as ended:
        app.run([])
    assert ended.value.code == 0
    assert capfd.readouterr().out.split() == expected


def test_words_that_are_offered_are_the_right_ones() -> None:
    from lookalike.cli.generate import WORDS, words
    from lookalike.evaluation.evaluate_models import MODES
    from lookalike.models.inference.runtimes import NAMES as RUNTIMES
    from lookalike.models.pooling import NAMES as POOLINGS

    assert all(words(source) for source in WORDS.values())
    assert words(WORDS["mode"]) == list(MODES) and words(WORDS["runtime"]) == list(RUNTIMES)
    assert set(words(WORDS["pooling"])) <= set(POOLINGS)


def test_python_m_and_the_script_are_the_same() -> None:
    script = Path(sys.executable).with_name("lookalike")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == lookalike("--version").out


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
@pytest.mark.parametrize("around", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_no_color_on_a_terminal_that_requested_none(around: dict[str, str], tmp_path: Path) -> None:
    """Help, an answer with a link in it, an error and a progress line, each on a real terminal."""
    import pty

    code = (
        "from lookalike.cli import app, output; app.run(['--help']); app.run(['cache', 'lss']);"
        "print(output.link('report.html')); from lookalike.core.progress import say, warn; say('a'); warn('b')"
    )
    ours, theirs = pty.openpty()
    env = {**{k: v for k, v in os.environ.items() if k != "NO_COLOR"}, **around}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=theirs, stderr=theirs, env=env, cwd=tmp_path, check=False
    )
    os.close(theirs)
    text = os.read(ours, 100_000)
    os.close(ours)
    assert done.returncode == 0 and b"report.html" in text and b"Warning: b" in text
    assert b"\x1b" not in text
