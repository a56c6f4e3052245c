"""Training by several processes: of this machine, stopped and resumed, and by torchrun on two nodes.

The nodes are two homes on this machine, in a network with nothing but a loopback.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import helpers
from tests.training import test_dmcac, test_pretrain, test_pretrain_carp, test_remembering
from tests.training.conftest import PAIR
from tests.training.test_dmcac import loop_of
from tests.training.test_pretrain import flat  # noqa: F401
from tests.training.test_resume import assert_same

from lookalike.core import distributed
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.files import hash_bytes, hash_file
from lookalike.core.run import Run, started_by_torchrun
from lookalike.core.settings import flatten, merge
from lookalike.training import checkpoint, pretrain, train, train_command
from lookalike.training.loop import Loop, _fabric

WEIGHTS = "model/model.safetensors"

# ---- what one process does, by method ------------------------------------------------------------

# One step of plain descent: a gradient counted twice would move twice as far.
DESCENT = {"kind": "sgd", "lr": 0.5, "loss_lr": 0.5, "momentum": 0.0, "weight_decay": 0.0}
DMCAC_STEP = {"steps": 1, "accumulation_steps": 1, "log": {"every_n_steps": 1}, "optimizer": DESCENT}
DMCAC = merge(test_dmcac.BASE, test_dmcac.CASES["end to end"], DMCAC_STEP)
MEMORY = merge(test_remembering.settings_of("end to end"), {"steps": 6, "accumulation_steps": 1})
JOINT = {"model": {"batch_norm": "gathered"}, "optimizer": {"kind": "sgd", "lr": 0.01}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "xbm": ("xbm", merge(MEMORY, {"evaluate_every": 4})),
    "dmcac": ("dmcac", merge(DMCAC, {"method": {"full": "no", "head_scale": 4.0}})),
    "dmcac, whole database": ("dmcac", merge(DMCAC, {"method": {"full": "gradient", "weights": {"classes": 0.0}}})),
    "moco": ("moco", merge(test_pretrain.FEW, {"steps": 3})),
    "carp": ("carp", merge(test_pretrain_carp.FEW, JOINT, {"steps": 3, "schedule": {"freeze_backbone_steps": 0}})),
}


def bits_of(folders: list[str]) -> list[list[str]]:
    """What each process has after the runs' steps: a name for the bits of every tensor of the method and the model."""
    out = []
    for folder in folders:
        loop = loop_of(Run(folder))
        loop.go()
        tensors = [*loop.method.state_dict().values(), *checkpoint.trainable_state(loop.model).values()]
        tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
        out.append([hash_bytes(str(t.dtype), t.detach().numpy().tobytes()) for t in tensors])
    return out


@pytest.fixture(scope="module")
def both(folder, flat, tiny, tmp_path_factory):  # noqa: F811
    """Every case by one process, and by two: those are one pair for all cases, since processes start slowly."""
    place = tmp_path_factory.mktemp("both")
    for case, (method, settings) in CASES.items():
        command, data = (pretrain, flat) if method in ("moco", "carp") else (train, folder)
        one = command(data=data, model=tiny, method=method, settings=settings, report=False, out=place / "one" / case)
        shutil.copytree(one.path, place / "two" / case)
        for name in ("checkpoints/last.pt", "checkpoints/best.pt", "log.jsonl"):
            (place / "two" / case / name).unlink()
    first, second = distributed.launch(bits_of, 2, folders=[str(place / "two" / case) for case in CASES])
    return place, dict(zip(CASES, zip(first, second, strict=True), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_what_one_does(case, both):
    place, bits = both
    assert bits[case][0] == bits[case][1] and len(bits[case][0]) > 5
    one, two = (Run(place / name / case) for name in ("one", "two"))
    ours, theirs = (checkpoint.read(run.checkpoints / "last.pt") for run in (one, two))
    losses = [[row["loss"] for row in run.read_log() if "loss" in row] for run in (one, two)]
    assert losses[0] and losses[0] == pytest.approx(losses[1], rel=5e-3)
    if case == "xbm":
        rows = [state["method"]["memory.queue.base"] for state in (ours, theirs)]
        assert torch.equal(*(state["method"]["memory.queue.ids"] for state in (ours, theirs)))
        # Sums over two processes are taken in another order; AdamW's first steps are signs of gradients.
        assert (rows[0] - rows[1]).abs().mean() < 0.02 * rows[0].abs().mean()
    elif case == "moco":
        for name, value in ours["model"].items():
            assert torch.allclose(value, theirs["model"][name], atol=1e-4), name
        assert torch.equal(*(state["method"]["memory.queue.labels"] for state in (ours, theirs)))
    elif case == "carp":  # one partition and one p̄ for both
        for part in ("model", "method"):
            for name, value in ours[part].items():
                assert torch.allclose(value.float(), theirs[part][name].float(), atol=2e-4), name
    else:
        assert torch.equal(ours["method"]["database"], theirs["method"]["database"])
        start = checkpoint.trainable_state(loop_of(one).model)
        moved = {name: (ours["model"][name] - value).abs().max().item() for name, value in start.items()}
        assert max(moved.values()) > 1e-3
        for name, value in ours["model"].items():
            assert torch.allclose(value, theirs["model"][name], atol=1e-5, rtol=1e-5), name
        for name in ("heads.classifier", "heads.query", "heads.attention_classifier", "vectors"):
            assert torch.allclose(ours["method"][name], theirs["method"][name], atol=1e-5), name
        logs = [[row for row in run.read_log() if "loss" in row] for run in (one, two)]
        assert len(logs[0]) == len(logs[1]) == 1
        for name in ("loss", "gradient/divergence", "gradient/attention", "union/mean"):
            assert logs[0][0][name] == pytest.approx(logs[1][0][name], rel=1e-3), name


# ---- one run by several processes ----------------------------------------------------------------


def test_a_run_of_two_processes_is_that_of_one(pair, folder, tiny, tmp_path):
    alone = train(data=folder, model=tiny, out=tmp_path / "run", method="proxy_anchor", settings=PAIR, report=False)
    one, two = (checkpoint.read(run.checkpoints / "last.pt") for run in (alone, pair))
    start = checkpoint.read(alone.checkpoints / "start.pt")["head"]["weight"]
    moved = (one["model"]["head.weight"] - start).abs().max()
    for name, value in one["model"].items():
        # AdamW's first steps are signs of gradients: where one is nearly 0 the order of a sum decides.
        assert (value - two["model"][name]).abs().mean() < 0.02 * moved, name
    losses = [[row["loss"] for row in run.read_log() if "loss" in row] for run in (alone, pair)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert len(list(Path(pair.path).glob("tensorboard/*"))) <= 1
    assert [row["step"] for row in pair.read_log() if "loss" in row] == [2, 4, 6, 8]


def waiting(folder: str) -> dict:
    """What each of the processes does, but in step 6 it waits until Ctrl-C has reached it."""
    own = Loop.take_step

    def step_of(self, step):
        if step == 6:
            (Path(folder) / f"waits-{distributed.rank()}").touch()
            listening = signal.getsignal(signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is listening:
                time.sleep(0.01)
        return own(self, step)

    Loop.take_step = step_of
    return train_command.fit_in_process(folder)


def together(folder: Path, model: Path, out: Path) -> None:
    usual = distributed.launch
    distributed.launch = lambda _, *arguments, **options: usual(waiting, *arguments, **options)
    try:
        train(data=folder, model=model, out=out, method="proxy_anchor", settings=PAIR, processes=2, report=False)
    except LookalikeError as error:
        print(error)
        sys.exit(int(error.exit_code))


@pytest.mark.parametrize("blow", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)], ids=str)
def test_processes_are_stopped_and_go_on_with_the_same_bits(blow, pair, folder, tiny, tmp_path):
    """Ctrl-C on the parent reaches every process, which agree on the step to stop at; a kill takes them along."""
    out = tmp_path / "run"

    def strike(parent: BaseProcess) -> None:
        while not all((out / f"waits-{rank}").exists() for rank in (0, 1)):
            assert parent.is_alive()
            time.sleep(0.05)
        os.kill(parent.pid, blow)

    ended = helpers.apart(together, folder, tiny, out, meanwhile=strike)
    if blow == signal.SIGINT:
        assert ended.code == Exit.STOPPED, ended.err
        assert "Continue with: lookalike train --resume" in ended.out
    assert not (out / "result.json").exists()
    assert checkpoint.read(out / "checkpoints" / "last.pt")["step"] == (6 if blow == signal.SIGINT else 4)
    assert_same(train(resume=out, report=False), pair)


# ---- torchrun -------------------------------------------------------------------------------------


def run_on_two_nodes(place: Path, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.torchrun", "two-nodes", str(place), *map(str, words)]
    return subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=240)


def train_words(folder: Path, tiny: Path, out: Path) -> list[object]:
    settings = [word for key, value in flatten(PAIR).items() for word in ("--set", f"{key}={value}")]
    return ["train", folder, "--model", tiny, "--method", "proxy_anchor", "--out", out, "--no-report", *settings]


def test_two_nodes_train_the_bits_of_two_processes(pair, folder, tiny, tmp_path):
    done = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert hash_file(tmp_path / "run" / WEIGHTS) == hash_file(pair.path / WEIGHTS)
    assert done.stdout.count("48 train") == 1, "the first process alone answers"
    assert Run(tmp_path / "run").config["processes"] == 2


@pytest.mark.slow
def test_two_nodes_pretrain_the_bits_of_two_processes(folder, tiny, tmp_path):
    settings = merge(test_pretrain.FEW, {"steps": 3})
    words = [word for key, value in flatten(settings).items() for word in ("--set", f"{key}={value}")]
    common = ["pretrain", folder, "--model", tiny, "--method", "moco", "--no-report", *words]
    done = run_on_two_nodes(tmp_path, *common, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    options = {"data": folder, "method": "moco", "model": tiny, "settings": settings, "report": False}
    pair = pretrain(**options, processes=2, out=tmp_path / "pair")
    last = [checkpoint.read(place / "checkpoints" / "last.pt")["model"] for place in (tmp_path / "run", pair.path)]
    assert all(torch.equal(value, last[1][name]) for name, value in last[0].items())


@pytest.mark.slow
def test_a_dead_node_ends_both_and_the_run_goes_on_to_the_same_bits(folder, tiny, tmp_path):
    whole = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "strike").touch()
    start = time.monotonic()
    broken = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "run"))
    assert broken.returncode != 0 and time.monotonic() - start < 120
    assert not Run(tmp_path / "run").result.get("finished")
    (tmp_path / "strike").unlink()
    resumed = run_on_two_nodes(tmp_path, "train", "--resume", tmp_path / "run", "--no-report")
    assert resumed.returncode == 0, resumed.stderr
    assert hash_file(tmp_path / "run" / WEIGHTS) == hash_file(tmp_path / "whole" / WEIGHTS)


@pytest.mark.slow
def test_torchrun_restarts_a_killed_process_and_the_run_ends_with_the_same_bits(folder, tiny, tmp_path):
    whole = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "strike").touch()
    (tmp_path / "restart").touch()
    done = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert "Resuming at step" in done.stderr + done.stdout and not (tmp_path / "strike").exists()
    assert hash_file(tmp_path / "run" / WEIGHTS) == hash_file(tmp_path / "whole" / WEIGHTS)


@pytest.mark.slow
def test_a_mistake_ends_every_process_with_one_message(tmp_path):
    done = run_on_two_nodes(tmp_path, "train", tmp_path / "nothing", "--out", tmp_path / "run")
    assert done.returncode != 0
    assert done.stderr.count("does not exist") == 1


def test_fabric_run_does_not_take_over_the_processes(monkeypatch):
    """`fabric run` calls torchrun; its own variables would make each process set up all devices once more."""
    for name, value in {"CLI_USED": "1", "DEVICES": "2", "NUM_NODES": "2", "STRATEGY": "ddp"}.items():
        monkeypatch.setenv(f"LT_{name}", value)
    fabric = _fabric(torch.device("cpu"), "f32")
    assert fabric.world_size == 1 and fabric.device == torch.device("cpu")


@pytest.mark.slow
def test_fabric_run_trains_the_bits_of_two_processes(pair, folder, tiny, tmp_path):
    words = train_words(folder, tiny, tmp_path / "run")
    command = [sys.executable, "-m", "tests.torchrun", "fabric", *map(str, words)]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert hash_file(tmp_path / "run" / WEIGHTS) == hash_file(pair.path / WEIGHTS)


def test_what_torchrun_says_of_a_job(monkeypatch, tmp_path):
    assert distributed.started_size() == 1 and not distributed.follows()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **address}.items():
        monkeypatch.setenv(name, value)
    assert distributed.started_size() == 4 and distributed.follows() and distributed.local_rank() == 1
    assert started_by_torchrun(None, None, None) == (4, None)
    with pytest.raises(LookalikeError, match="torchrun started 4 processes; leave out --processes 2"):
        started_by_torchrun(2, None, None)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "3")
    with pytest.raises(LookalikeError, match="name its run by --out"):
        started_by_torchrun(None, None, None)
    run = Run.create("ms", {}, path=tmp_path / "run")
    assert started_by_torchrun(None, run.path, None) == (4, None)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert started_by_torchrun(None, run.path, None) == (4, run.path)
