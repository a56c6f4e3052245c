"""Long commands off a terminal: plain lines of progress, one line when they are stopped, and a way to go on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests import helpers
from tests.helpers import ROOT, make_images

from lookalike.training.loop import Loop

MODEL = str(ROOT / "tests" / "compat" / "model-1")  # tiny, with random weights
SMALL = "--steps 4 --no-report"
ADAPT = f"adapt {MODEL} --target new --pool birds --set batch_size=8 --set epochs=2 --set num_views=1"
# Command, its stages with their numbers of steps, and how to go on after SIGTERM in step 2 where it has steps.
COMMANDS = {
    "index": (f"index birds --model {MODEL} --index ix", {"Embedding": 36}, None),
    "duplicates": ("duplicates birds", {"Reading": 36, "Comparing": None}, None),
    "embed": (f"embed birds --out v.npy --model {MODEL}", {"Embedding": 36}, None),
    "embed parts": (f"embed birds --out parts --model {MODEL} --block 12", {"Embedding": 36}, None),
    "compare": (f"compare birds --a {MODEL} --b other", {"Embedding": 36}, None),
    "search": ("search birds --index ix", {"Searching": 36}, None),
    "train": (f"train birds --model {MODEL} --out run {SMALL}", {"Training": 4}, "train --resume run"),
    "pretrain": (
        f"pretrain birds --model {MODEL} --out run {SMALL} --set sampler.batch_size=8",
        {"Pretraining": 4},
        "pretrain --resume run",
    ),
    "adapt": (f"{ADAPT} --set bank.size=64 --out run", {"Adapting": 4, "Judging": None}, "adapt --resume run"),
}
RATE = r"(\d+(,\d{3})*(\.\d)?/s|\d+ s each)"


@pytest.fixture
def folders(tmp_path: Path, home: Path) -> None:
    make_images(tmp_path / "birds", classes=6, images=6)
    make_images(tmp_path / "new", classes=4, images=8, seed=3, width=40, height=32)


@pytest.mark.parametrize("name", COMMANDS)
def test_long_stages_print_lines_and_sigterm_prints_one(
    name: str, cli: Callable[..., helpers.Answer], folders: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, stages, resume = COMMANDS[name]
    if name == "search":
        assert cli(*COMMANDS["index"][0].split()).code == 0
    if name == "compare":
        from lookalike.models import Embedder

        other = Embedder.from_pretrained(MODEL)
        other.set_random_head(8)
        other.save_pretrained(Path("other"))
    if resume:
        with monkeypatch.context() as patch:
            own, calls = Loop.take_step, []

            def strike(self: Loop, step: int) -> float:
                calls.append(step)
                if step == 2:
                    os.kill(os.getpid(), signal.SIGTERM)
                return own(self, step)

            patch.setattr(Loop, "take_step", strike)
            stopped = cli(*command.split())
        last = stopped.err.splitlines()[-1]
        assert stopped.code == 143 and calls == [1, 2]
        # A slow step is dropped, others end first.
        assert re.match(r"Stopped at step [12] of 4; nothing is lost. Continue with: lookalike ", last), stopped.err
        assert last.endswith(f"{resume.removesuffix('run')}{Path('run').resolve()}")
        assert stopped.err.count("Stopped") == 1
        command = resume
    monkeypatch.setenv("LOOKALIKE_PROGRESS_SECONDS", "0.002")
    answer = cli(*command.split())
    assert answer.code == 0, answer.err
    lines = answer.err.splitlines()
    assert not resume or lines[0].startswith("Resuming "), lines[0]
    for stage, total in stages.items():
        own_lines = [line for line in lines if re.match(rf"{stage}(  | \d|$)", line)]
        count = rf" \d+/{total}" if total else ""
        assert all(re.match(rf"{stage}{count}(  |$)", line) for line in own_lines), own_lines
        assert len(own_lines) >= 2, f"{stage} has no line at its start"
        end = rf"{stage} {total}/{total}  {RATE}  took 0:\d\d" if total else rf"{stage}  took 0:\d\d"
        assert re.fullmatch(end, own_lines[-1]), own_lines[-1]


INTERRUPTED = [
    (f"index photos --model {MODEL} --index OUT", "Embedding"),
    ("duplicates photos", "Reading"),
    (f"embed photos --out OUT.npy --model {MODEL}", "Embedding"),
    (f"embed photos --out OUT --model {MODEL} --block 20", "Embedding"),
    (f"compare photos --a {MODEL} --b {MODEL}", "Embedding"),
    (f"train photos --model {MODEL} --out OUT", "Features"),
    (f"train photos --model {MODEL} --out OUT --set views.mode=end_to_end --steps 9999", "Training"),
    (f"pretrain photos --model {MODEL} --out OUT --steps 9999", "Pretraining"),
    (f"adapt {MODEL} --target photos --out OUT", "Features"),
    (f"shift splits photos --model {MODEL} --out OUT", "Features"),
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("photos") / "photos", classes=8, images=50, width=500, height=375)


def interrupted(command: str, stage: str, into: Path) -> float:
    """Seconds that a command takes to end after a Ctrl-C in a stage."""
    process, err = helpers.begin(*command.split(), into=into), into / "err"
    begun = re.compile(rf"^{stage} [1-9]", re.M)
    helpers.until(lambda: (err.exists() and begun.search(err.read_text())) or not process.is_alive())
    assert process.is_alive() and process.pid is not None, err.read_text()
    start = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    took = time.monotonic() - start
    lines = err.read_text().splitlines()
    assert process.exitcode == 130 and not (into / "out").read_text() and "Traceback" not in err.read_text(), lines
    assert [line for line in lines if "topped" in line] == lines[-1:] and lines[-1].startswith("Stopped"), lines
    return took


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
@pytest.mark.parametrize(("command", "stage"), INTERRUPTED)
def test_ctrl_c_ends_a_long_command_within_a_second_and_with_one_line(
    command: str, stage: str, photos: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 0.1 s; the best of three, since other tests run beside this one."""
    monkeypatch.setenv("LOOKALIKE_PROGRESS_SECONDS", "0.05")
    monkeypatch.chdir(photos.parent)
    took: list[float] = []
    while not took or (min(took) >= 1 and len(took) < 3):
        out = tmp_path / f"out-{len(took)}"
        took.append(interrupted(command.replace("OUT", str(out)), stage, tmp_path / f"lines-{len(took)}"))
    assert min(took) < 1, took
