from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lookalike.core import progress
from lookalike.core.errors import LookalikeError


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    yield
    progress.set_level(1)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))  # pytest puts its own stderr back
    monkeypatch.setenv("TERM", "xterm")
    return stream


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_bar_on_a_terminal_that_is_gone_at_the_end(terminal: Terminal, clock: list[float]) -> None:
    with progress.Progress("Embedding", 200) as bar:
        bar.advance(50)
        assert "Embedding ━━━━━━────" in terminal.getvalue()
        assert "50/200" in terminal.getvalue() and "left" not in terminal.getvalue()
        clock[0] += 5
        bar.advance(50)
        assert "100/200  10/s  0:10 left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_the_estimate_leaves_out_the_warm_up_and_what_was_done_before(clock: list[float]) -> None:
    bar = progress.Progress("Training", 400)
    bar.done = 300  # resumed
    clock[0] += 40  # the first step compiles, loads, fills caches
    bar.advance()
    assert bar.text() == "Training 301/400"
    for _ in range(9):
        clock[0] += 0.5
        bar.advance()
    assert bar.text() == "Training 310/400  2.0/s  0:45 left"
    for _ in range(30):  # another program has the machine
        clock[0] += 20
        bar.advance()
    assert bar.text() == "Training 340/400  20 s each  20:00 left"


def test_plain_signs_where_the_terminal_is_not_utf8(terminal: Terminal) -> None:
    terminal.encoding = "ascii"  # type: ignore[misc]
    bar = progress.Progress("Embedding", 4)
    bar.advance(2)
    assert "############------------" in bar.text()
    bar.text().encode("ascii")


def test_silence_for_a_short_stage_when_not_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track(range(5), "Counting")) == list(range(5))
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "")


def test_dumb_terminals_get_no_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    list(progress.track(range(5), "Counting"))
    assert terminal.getvalue() == ""


LONG_JOB = """
import time
from lookalike.core.progress import Progress, track
list(track(range(5), "Short"))
with Progress("Waiting"):
    time.sleep(0.5)
with Progress("Embedding", 4) as bar:
    for _ in range(4):
        time.sleep(0.4)
        bar.advance(note="loss 0.5")
"""


@pytest.mark.parametrize("seconds", ["0.2", "0"])
def test_off_a_terminal_a_long_stage_gives_lines_at_its_start_in_between_and_at_its_end(seconds: str) -> None:
    environment = {**os.environ, "LOOKALIKE_PROGRESS_SECONDS": seconds}
    done = subprocess.run([sys.executable, "-c", LONG_JOB], env=environment, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    if seconds == "0":
        assert lines == []
        return
    assert lines[0] == "Waiting" and lines.index("Embedding 0/4") > 0, "also where nothing advances"
    assert not any(line.startswith("Short") for line in lines)
    assert re.fullmatch(r"Embedding 4/4  \d\.\d/s  took 0:01", lines[-1])
    between = [line for line in lines if re.fullmatch(r"Embedding [1-3]/4(  \d\.\d/s  0:0\d left)?  loss 0\.5", line)]
    assert 4 <= len(between) <= 8 and any("left" in line for line in between)


def test_a_wrong_interval_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_PROGRESS_SECONDS", "often")
    with pytest.raises(LookalikeError, match="LOOKALIKE_PROGRESS_SECONDS is `often`"):
        progress.Progress("Embedding")


def test_levels_of_saying(capsys: pytest.CaptureFixture[str]) -> None:
    for level in (0, 1, 2):
        progress.set_level(level)
        progress.say(f"said {level}")
        progress.say(f"detail {level}", verbose=True)
        progress.warn(f"careful {level}")
    err = capsys.readouterr().err.splitlines()
    assert err == ["said 1", "Warning: careful 1", "said 2", "detail 2", "Warning: careful 2"]


def test_numbers_agree_with_their_nouns() -> None:
    assert [progress.plural(n, "image") for n in (0, 1, 1200)] == ["0 images", "1 image", "1,200 images"]
    assert progress.plural(2, "copy", "copies") == "2 copies"


def test_unknown_totals_and_long_waits() -> None:
    bar = progress.Progress("Scanning")
    bar.advance(12_345)
    assert bar.text() == "Scanning 12,345"
    assert progress._span(3725) == "1:02:05"
    assert progress._span(65) == "1:05"


def test_file_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x1b]0;title\x07\x1b[2J\u202egpj.exe\x9b\x7f\r.jpg"
    progress.say(f"`{name}` is no image.")
    progress.warn(name)
    written = capsys.readouterr().err
    assert not set(written) & set("\x1b\x07\x9b\x7f\r\u202e")
    assert "a\\u001b]0;title\\u0007" in written and "\\u202egpj.exe" in written
    assert progress.for_terminal("two\nlines\tand é") == "two\nlines\tand é"
