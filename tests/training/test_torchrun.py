"""Training that torchrun starts on two nodes: two homes on this machine, in a network with nothing but a loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import helpers, milvus_server
from tests.training.test_pretrain import FEW
from tests.training.test_resume import PAIR

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_file
from lookalike.core.run import Run, started_by_torchrun
from lookalike.core.settings import flatten, merge
from lookalike.training import checkpoint, pretrain, train
from lookalike.training.loop import _fabric

WEIGHTS = "model/model.safetensors"


def main(place: Path, *words: str) -> int:
    """Start both torchruns; return the exit code of the first.

    Once the file `strike` is there and a checkpoint too, the second node is killed, or with the file `restart` its
    process alone, which torchrun then starts again on both nodes.
    """
    milvus_server.alone()  # torchrun's store listens on all interfaces
    restart = (place / "restart").exists()
    code = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    code += [f"--max-restarts={int(restart)}"]
    nodes = [
        subprocess.Popen(
            [sys.executable, *code, "--master-port=29611", f"--node-rank={rank}", "-m", "lookalike", *words],
            env=os.environ | {"LOOKALIKE_HOME": str(place / f"home{rank}")},
            start_new_session=True,
        )
        for rank in range(2)
    ]
    while any(node.poll() is None for node in nodes):
        time.sleep(0.05)
        if (place / "strike").exists() and nodes[1].poll() is None and any(place.glob("run/checkpoints/last.pt")):
            worker = Path(f"/proc/{nodes[1].pid}/task/{nodes[1].pid}/children").read_text().split()
            for process in [*([] if restart else [nodes[1].pid]), *map(int, worker)]:
                os.kill(process, signal.SIGKILL)
            if restart and worker:
                (place / "strike").unlink()
    return nodes[0].wait()


def run_on_two_nodes(place: Path, *words: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tests.training.test_torchrun import *; sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(place), *map(str, words)]
    return subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, timeout=240)


def train_words(folder: Path, tiny: Path, out: Path) -> list[object]:
    settings = [word for key, value in flatten(PAIR).items() for word in ("--set", f"{key}={value}")]
    return ["train", folder, "--model", tiny, "--method", "proxy_anchor", "--out", out, "--no-report", *settings]


def test_two_nodes_train_the_bits_of_two_processes(folder, tiny, tmp_path):
    done = run_on_two_nodes(tmp_path, *train_words(folder, tiny, tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    pair = train(
        data=folder, model=tiny, out=tmp_path / "pair", method="proxy_anchor", settings=PAIR, processes=2, report=False
    )
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
def test_fabric_run_trains_the_bits_of_two_processes(folder, tiny, tmp_path):
    words = train_words(folder, tiny, tmp_path / "run")
    code = "import sys; from tests.training.test_torchrun import *; sys.exit(fabric(*sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], cwd=helpers.ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    pair = train(
        data=folder, model=tiny, out=tmp_path / "pair", method="proxy_anchor", settings=PAIR, processes=2, report=False
    )
    assert hash_file(tmp_path / "run" / WEIGHTS) == hash_file(pair.path / WEIGHTS)


def fabric(*words: str) -> int:
    """`fabric run` with two processes on this machine."""
    milvus_server.alone()
    code = "import sys; from lookalike.core.imports import prepare_torchvision; prepare_torchvision(); "
    code += "from lightning_fabric.cli import _main; sys.exit(_main())"  # it imports torchvision
    command = [sys.executable, "-c", code, "run", "--accelerator=cpu", "--devices=2"]
    return subprocess.run([*command, Path(sys.executable).parent / "lookalike", *words]).returncode


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
