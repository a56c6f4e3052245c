"""Killed anywhere and resumed, a run ends with the bits of one that was never broken; Ctrl-C loses nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
from tests import helpers
from tests.training.conftest import SMALL
from tests.training.methods import Remembering
from tests.training.test_train_command import same

from lookalike import methods
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.progress import progress_listener
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.training import checkpoint, loop, train
from lookalike.training.loop import Loop

MODES = {
    "cached": {"views": {"num_cached": 2}},
    "end to end": {"views": {"mode": "end_to_end"}, "model": {"batch_norm": "train"}, "accumulation_steps": 2},
}


def settings_of(mode: str) -> dict:
    return merge(SMALL, MODES[mode], {"keep": "trained"})


def struck(where: str, mode: str, folder: Path, model: Path, out: Path) -> None:
    """A run that is killed, in a process of its own: no `finally`, no `atexit`, no flush."""
    methods.register("remembering", Remembering)
    if where.startswith("step"):
        Remembering.strike = (int(where[4:]), signal.SIGKILL, 1)
    else:
        write, calls = checkpoint.write, []

        def strike(path, document):  # in between the best checkpoint and the last one, or before a rename
            calls.append(path.name)
            if len(calls) == int(where[5:]):
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, document)

        checkpoint.write = strike
    train(data=folder, model=model, out=out, method="remembering", settings=settings_of(mode), report=False)


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
    ended = helpers.apart(struck, where, mode, folder, tiny, out)
    assert ended.code == -signal.SIGKILL, ended.err
    assert not (out / "result.json").exists()
    broken = train(resume=out, report=False)
    assert_same(broken, expected)


def struck_early(number: int, folder: Path, model: Path, out: Path) -> None:
    """A run that is killed when it is about to make a file's contents durable."""
    own, calls = os.fsync, []

    def strike(handle):
        calls.append(handle)
        if len(calls) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        own(handle)

    os.fsync = strike
    train(data=folder, model=model, out=out, settings=settings_of("cached"), report=False)


@pytest.mark.parametrize("number", [1, 3, 5, 7])
def test_an_early_kill_leaves_a_folder_that_resumes_or_starts_again_and_no_part(number, folder, tiny, tmp_path):
    out = tmp_path / "runs" / "run"
    ended = helpers.apart(struck_early, number, folder, tiny, out)
    assert ended.code == -signal.SIGKILL, ended.err
    for path in tmp_path.rglob("*.part"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    options = {"settings": settings_of("cached"), "report": False}
    done = train(resume=out, **options) if Run.is_run(out) else train(data=folder, model=tiny, out=out, **options)
    assert done.result["finished"]
    assert not list(tmp_path.rglob("*.part"))


class Killed(BaseException):
    """Nothing catches it and nothing is saved: what a kill leaves behind is there, without starting a process."""


METHODS = ("supcon", "proxy_anchor", "ms", "contrastive", "triplet", "norm_softmax")
LONG_FORM = METHODS[2:]  # end to end: with and without proxies they take the same way as the first two


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=[pytest.mark.slow] if mode == "end to end" and name in LONG_FORM else [])
        for name in METHODS
        for mode in MODES
    ],
)
def test_every_method_goes_on_with_the_same_bits(name, mode, folder, tiny, tmp_path, monkeypatch):
    """Those of the shift curve and the memory have tests of their own (test_shift_methods, test_remembering)."""
    settings = merge(settings_of(mode), {"steps": 8})
    options = {"data": folder, "model": tiny, "method": name, "settings": settings, "report": False}
    whole = train(**options, out=tmp_path / "whole")
    own = Loop.take_step

    def strike(self, step):
        if step == 7:
            raise Killed
        return own(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "take_step", strike)
        with pytest.raises(Killed):
            train(**options, out=tmp_path / "run")
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 4
    assert_same(train(resume=tmp_path / "run", report=False), whole)
    state = checkpoint.read(whole.checkpoints / "last.pt")
    assert state["model"] and state["optimizer"]["state"], "there is something to compare"
    assert bool(state["method"]) == (name in ("proxy_anchor", "norm_softmax")), "the proxies too"


def kill_at(patch, number):
    own = Loop.take_step

    def strike(self, step):
        if step == number:
            raise Killed
        return own(self, step)

    patch.setattr(Loop, "take_step", strike)


def test_checkpoints_are_written_by_time_and_resume_says_where_it_goes_on(folder, tiny, tmp_path, monkeypatch, capsys):
    settings = merge(settings_of("cached"), {"evaluate_every": 12})
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    options = {"data": folder, "model": tiny, "method": "supcon", "settings": settings, "report": False}
    whole = train(**options, out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        kill_at(patch, 7)
        with pytest.raises(Killed):
            train(**options, out=tmp_path / "run")
    capsys.readouterr()
    assert_same(train(resume=tmp_path / "run", report=False), whole)
    assert capsys.readouterr().err.splitlines()[0] == "Resuming at step 6 of 12."


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.STOPPED), (signal.SIGTERM, Exit.TERMINATED)])
def test_a_signal_saves_says_so_and_loses_nothing(number, code, whole, folder, tiny, tmp_path):
    Remembering.strike = (6, number, 1)
    with pytest.raises(LookalikeError, match=r"Stopped at step 6 of 12; nothing is lost") as caught:
        train(data=folder, model=tiny, out=tmp_path / "run", method="remembering", settings=settings_of("cached"))
    assert caught.value.exit_code == code
    assert str(caught.value).endswith(f"lookalike train --resume {tmp_path / 'run'}")
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 6
    Remembering.strike = None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert_same(train(resume=tmp_path / "run", report=False), whole("cached"))


def test_ctrl_c_twice_always_ends(folder, tiny, tmp_path):
    Remembering.strike = (6, signal.SIGINT, 2)
    with pytest.raises(KeyboardInterrupt):
        train(data=folder, model=tiny, out=tmp_path / "run", method="remembering", settings=settings_of("cached"))
    assert checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")["step"] == 4


def strike_at(patch, where: str, number: int) -> None:
    """Ctrl-C in the loss of a step, or when its evaluation begins to embed images."""
    owner, name = (Remembering, "loss") if where == "step" else (Loop, "embed")
    own = getattr(owner, name)

    def strike(self, *arguments):
        in_it = self.context.step == number and (where == "step" or self.done.evaluation_due)
        if in_it and torch.is_grad_enabled():
            os.kill(os.getpid(), signal.SIGINT)
        return own(self, *arguments)

    patch.setattr(owner, name, strike)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("where", "number", "done"), [("step", 1, 0), ("step", 6, 5), ("evaluation", 8, 8)])
def test_ctrl_c_within_a_step_or_an_evaluation_drops_it_and_loses_nothing(
    where, number, done, mode, whole, folder, tiny, tmp_path, monkeypatch
):
    expected = whole(mode)
    monkeypatch.setattr(loop, "SLOW_SECONDS", 0)
    with monkeypatch.context() as patch:
        strike_at(patch, where, number)
        with pytest.raises(LookalikeError, match=f"Stopped at step {done} of 12; nothing is lost"):
            train(data=folder, model=tiny, out=tmp_path / "run", method="remembering", settings=settings_of(mode))
    state = checkpoint.read(tmp_path / "run" / "checkpoints" / "last.pt")
    assert state["step"] == done and state["progress"]["evaluation_due"] == (where == "evaluation")
    assert [step for step, *_ in state["progress"]["scores"]] == list(range(0, number, 4))
    assert_same(train(resume=tmp_path / "run", report=False), expected)


def command_line(words: list[str], stage: str, reached: Path) -> None:
    """`lookalike` with these words, whose arrival at a stage can be seen."""
    from lookalike.cli.app import run

    with progress_listener(lambda bar: reached.touch() if bar.what == stage else None):
        sys.exit(int(run(words)))


@pytest.mark.parametrize("stage", ["Features", "Training"])
def test_ctrl_c_ends_a_run_within_seconds_and_says_so_in_one_line(stage, tmp_path):
    """A step of the default model takes longer: 128 images of 224 pixels, some of them more than once."""
    data = helpers.make_images(
        tmp_path / "images", classes=36 if stage == "Features" else 8, images=16 if stage == "Features" else 4
    )
    settings = ["views.mode=end_to_end", "model.weights=random", "data.near_duplicates=false"]
    settings.append("sampler.replacement=true")
    words = ["train", str(data), "--out", str(tmp_path / "run")]
    words += [word for setting in settings for word in ("--set", setting)]
    struck_at = []

    def strike(process: BaseProcess) -> None:
        while not (tmp_path / "reached").exists():
            assert process.is_alive()
            time.sleep(0.05)
        time.sleep(0.5)
        os.kill(process.pid, signal.SIGINT)
        struck_at.append(time.monotonic())

    ended = helpers.apart(command_line, words, stage, tmp_path / "reached", meanwhile=strike)
    assert ended.code == Exit.STOPPED, ended.err
    assert time.monotonic() - struck_at[0] < 5
    lines = ended.err.splitlines()
    assert [line[:7] for line in lines if "Stopped" in line or "Traceback" in line] == ["Stopped"]
