"""Training that torchrun starts on two nodes: two homes on this machine, in a network with nothing but a loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import helpers
from tests.training.conftest import PAIR
from tests.training.test_pretrain import FEW

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_file
from lookalike.core.run import Run, started_by_torchrun
from lookalike.core.settings import flatten, merge
from lookalike.training import checkpoint, pretrain
from lookalike.training.loop import _fabric

WEIGHTS = "model/model.safetensors"


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
    settings = merge(FEW, {"steps": 3})
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
