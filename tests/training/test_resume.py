"""Killed anywhere and resumed, a run ends with the bits of one that was never broken; Ctrl-C loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests import helpers
from tests.training.conftest import SMALL
from tests.training.methods import Remembering
from tests.training.test_job import same

from lookalike import methods
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.training import checkpoint, train
from lookalike.training.loop import Loop

MODES = {
    "cached": {"views": {"count": 2}},
    "end to end": {"views": {"mode": "end_to_end"}, "model": {"batch_norm": "train"}, "accumulate": 2},
}

# A process of its own, so that the kill is a real one: no `finally`, no `atexit`, no flush.
SCRIPT = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from lookalike import methods
from lookalike.training import checkpoint, train
from tests.training.methods import Remembering
from tests.training.test_resume import settings_of
where, mode, folder, model, out = sys.argv[1:]
methods.register("remembering", Remembering)
if where.startswith("step"):
    Remembering.strike = (int(where[4:]), signal.SIGKILL, 1)
else:
    write, calls = checkpoint.write, []
    def struck(path, document):  # in between the best checkpoint and the last one, or before a rename
        calls.append(path.name)
        if len(calls) == int(where[5:]):
            os.kill(os.getpid(), signal.SIGKILL)
        write(path, document)
    checkpoint.write = struck
train(data=folder, model=model, out=out, method="remembering", settings=settings_of(mode), report=False)
"""


def settings_of(mode: str) -> dict:
    return merge(SMALL, MODES[mode], {"keep": "trained"})


@pytest.fixture(autouse=True)
def _register():
    methods.register("remembering", Remembering)
    yield
    methods._REGISTERED.pop("remembering")
    Remembering.strike = None


@pytest.fixture(scope="module")
def whole(folder, tiny, tmp_path_factory):
    """Unbroken runs by mode, made once."""
    methods.register("remembering", Remembering)
    made: dict[str, Run] = {}

    def get(mode: str) -> Run:
        if mode not in made:
            out = tmp_path_factory.mktemp("whole") / "run"
            options = {"settings": settings_of(mode), "report": False}
            made[mode] = train(data=folder, model=tiny, out=out, method="remembering", **options)
        return made[mode]

    return get


def assert_same(broken: Run, unbroken: Run) -> None:
    for name in ("last.pt", "best.pt"):
        assert same(checkpoint.read(broken.checkpoints / name), checkpoint.read(unbroken.checkpoints / name)), name
    weights = [(run.model / "model.safetensors").read_bytes() for run in (broken, unbroken)]
    assert weights[0] == weights[1]
    assert broken.read_log() == unbroken.read_log()
    skipped = ("seconds",)
    assert {k: v for k, v in broken.result.items() if k not in skipped} == {
        k: v for k, v in unbroken.result.items() if k not in skipped
    }


@pytest.mark.parametrize(
    ("mode", "where"),
    [
        ("cached", "step7"),
        ("cached", "write5"),
        ("end to end", "step5"),
        pytest.param("cached", "step1", marks=pytest.mark.slow),
        pytest.param("cached", "step12", marks=pytest.mark.slow),
        pytest.param("cached", "write1", marks=pytest.mark.slow),
        pytest.param("cached", "write2", marks=pytest.mark.slow),
        pytest.param("cached", "write4", marks=pytest.mark.slow),
        pytest.param("end to end", "step11", marks=pytest.mark.slow),
        pytest.param("end to end", "write4", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(mode, where, whole, folder, tiny, tmp_path):
    expected = whole(mode)
    out = tmp_path / "run"
    words = [sys.executable, "-c", SCRIPT, where, mode, str(folder), str(tiny), str(out)]
    ended = subprocess.run(words, cwd=helpers.ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not (out / "result.json").exists()
    broken = train(resume=out, report=False)
    assert_same(broken, expected)


class Killed(BaseException):
    """Nothing catches it and nothing is saved: what a kill leaves behind is there, without starting a process."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["supcon", "proxy_anchor", "ms", "contrastive", "triplet", "norm_softmax"])
def test_every_method_goes_on_with_the_same_bits(name, mode, folder, tiny, tmp_path, monkeypatch):
    """Those of the shift curve and the memory have tests of their own (test_shift_methods, test_remembering)."""
    options = {"data": folder, "model": tiny, "method": name, "settings": settings_of(mode), "report": False}
    whole = train(**options, out=tmp_path / "whole")
    own = Loop._step

    def strike(self, step):
        if step == 7:
            raise Killed
        return own(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", strike)
        with pytest.raises(Killed):
            train(**options, out=tmp_path / "run")
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 4
    assert_same(train(resume=tmp_path / "run", report=False), whole)
    state = checkpoint.read(whole.checkpoints / "last.pt")
    assert state["model"] and state["optimiser"]["state"], "there is something to compare"
    assert bool(state["method"]) == (name in ("proxy_anchor", "norm_softmax")), "the proxies too"


def test_ctrl_c_saves_says_so_and_loses_nothing(whole, folder, tiny, tmp_path):
    Remembering.strike = (6, signal.SIGINT, 1)
    with pytest.raises(LookalikeError, match=r"Stopped at step 6 of 12; nothing is lost") as caught:
        train(data=folder, model=tiny, out=tmp_path / "run", method="remembering", settings=settings_of("cached"))
    assert caught.value.exit_code == Exit.STOPPED
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 6
    Remembering.strike = None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same(train(resume=tmp_path / "run", report=False), whole("cached"))


def test_ctrl_c_twice_always_ends(folder, tiny, tmp_path):
    Remembering.strike = (6, signal.SIGINT, 2)
    with pytest.raises(KeyboardInterrupt):
        train(data=folder, model=tiny, out=tmp_path / "run", method="remembering", settings=settings_of("cached"))
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 4


def test_two_processes_train_what_one_does(folder, tiny, tmp_path):
    settings = merge(SMALL, {"keep": "trained", "views": {"mode": "end_to_end"}, "model": {"freeze": "stage0"}})
    runs = [
        train(data=folder, model=tiny, out=tmp_path / f"run{n}", settings=settings, processes=n, report=False, steps=6)
        for n in (1, 2)
    ]
    one, two = (checkpoint.read(run.checkpoints / "last.pt") for run in runs)
    start = checkpoint.read(runs[0].checkpoints / "start.pt")["head"]["weight"]
    moved = (one["model"]["head.weight"] - start).abs().max()
    for name, value in one["model"].items():
        # AdamW's first steps are signs of gradients: where one is nearly 0 the order of a sum decides.
        assert (value - two["model"][name]).abs().mean() < 0.02 * moved, name
    losses = [[row["loss"] for row in run.read_log() if "loss" in row] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert len(list(Path(runs[1].path).glob("tensorboard/*"))) <= 1
    assert [row["step"] for row in runs[1].read_log() if "loss" in row] == [2, 4, 6]


TOGETHER = """
import sys
from lookalike.core.errors import LookalikeError
from lookalike.training import train
from tests.training.test_resume import together
try:
    train(data=sys.argv[1], model=sys.argv[2], out=sys.argv[3], **together())
except LookalikeError as error:
    print(error)
    sys.exit(int(error.exit_code))
"""


def together() -> dict:
    settings = merge(SMALL, {"keep": "trained", "evaluate_every": 10, "optimiser": {"rate": 1e-5}})
    return {"processes": 2, "report": False, "steps": 400, "method": "proxy_anchor", "settings": settings}


@pytest.mark.parametrize("blow", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)], ids=str)
def test_processes_are_stopped_and_go_on_with_the_same_bits(blow, folder, tiny, tmp_path):
    """Ctrl-C on the parent reaches every process, which agree on the step to stop at; a kill takes them along."""
    out = tmp_path / "run"
    words = [sys.executable, "-c", TOGETHER, str(folder), str(tiny), str(out)]
    started = subprocess.Popen(words, cwd=helpers.ROOT, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (out / "log.jsonl").exists() or len((out / "log.jsonl").read_text().splitlines()) < 8:
        assert started.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    started.send_signal(blow)
    told, _ = started.communicate(timeout=60)
    if blow == signal.SIGINT:
        assert started.returncode == Exit.STOPPED, told
        assert "Continue with: lookalike train --resume" in told
    assert not (out / "result.json").exists()
    assert 0 < checkpoint.read(out / "checkpoints" / "last.pt")["step"] < 400
    whole = train(data=folder, model=tiny, out=tmp_path / "whole", **together())
    assert_same(train(resume=out, report=False), whole)
