"""Processes that work together, started for real on gloo."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests import helpers

from lookalike.core import distributed
from lookalike.core.errors import Exit, LookalikeError


@pytest.fixture
def as_users_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started as new Python processes, not as copies of one that has imported torch."""
    monkeypatch.setattr(distributed, "_run_workers", helpers.run_workers)


def job_gather(rows: list[int]) -> dict:
    me = distributed.rank()
    mine = torch.arange(rows[me] * 2, dtype=torch.float32).reshape(-1, 2) + 100 * me
    joined = distributed.all_gather(mine)
    value = torch.tensor([float(me + 1)], requires_grad=True)
    total = distributed.all_reduce(value, gradient=True)
    (total * (me + 1)).backward()
    distributed.barrier()
    return {
        "joined": joined.tolist(),
        "total": total.item(),
        "total_gradient": value.grad.item(),
        "from_first": distributed.broadcast(torch.tensor([me + 7])).item(),
        "any": distributed.any_rank(me == 1),
        "none": distributed.any_rank(False),
        "where": [distributed.rank(), distributed.world_size(), distributed.is_main()],
        "listening": job_ports(),
    }


def job_user_error() -> None:
    if distributed.rank() == 1:
        raise LookalikeError("There is no image.")
    distributed.barrier()


def job_bug() -> None:
    if distributed.rank() == 0:
        raise ZeroDivisionError("a bug")
    distributed.barrier()


def job_killed() -> None:
    if distributed.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()


def job_sleep(file: str) -> None:
    with open(f"{file}{distributed.rank()}", "w") as out:  # noqa: PTH123
        out.write(str(os.getpid()))
    time.sleep(60)


def test_two_processes_gather_rows_of_different_counts_and_meet_without_a_port(as_users_do, capfd):
    """torchrun's store would listen on all interfaces; ours are on one machine and meet over files."""
    first, second = distributed.launch(job_gather, 2, rows=[3, 2])
    assert "Fatal" not in capfd.readouterr().err  # they end as quietly as they began
    assert first["joined"] == second["joined"] == [[0, 1], [2, 3], [4, 5], [100, 101], [102, 103]]
    assert first["total"] == second["total"] == 3
    assert first["total_gradient"] == second["total_gradient"] == 3
    assert first["from_first"] == second["from_first"] == 7
    assert first["any"] is second["any"] is True
    assert first["none"] is second["none"] is False
    assert first["where"] == [0, 2, True]
    assert second["where"] == [1, 2, False]
    addresses = [*first["listening"], *second["listening"]]
    assert all(address.startswith("127.0.0.1:") for address in addresses), addresses


def test_one_process_gives_back_the_very_tensor():
    rows = torch.ones(3, 2, requires_grad=True)
    assert distributed.all_gather(rows) is rows
    assert distributed.all_reduce(rows) is rows
    assert distributed.broadcast(rows) is rows
    assert (distributed.rank(), distributed.world_size(), distributed.is_main()) == (0, 1, True)


@pytest.mark.parametrize(("count", "of"), [(10, 1), (10, 3), (2, 4), (0, 2), (128, 2)])
def test_shares_cover_everything_once_in_order(count, of):
    rows = list(range(count))
    parts = [rows[distributed.rank_slice(count, part, of)] for part in range(of)]
    assert [row for part in parts for row in part] == rows
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_users_error_in_one_process_is_reported_as_such_and_ends_all():
    start = time.monotonic()
    with pytest.raises(LookalikeError, match="There is no image") as caught:
        distributed.launch(job_user_error, 2)
    assert caught.value.exit_code == Exit.USER
    assert time.monotonic() - start < 40


def test_a_bug_keeps_its_traceback():
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        distributed.launch(job_bug, 2)


def test_a_killed_process_ends_the_others(as_users_do):
    with pytest.raises(RuntimeError, match="process"):
        distributed.launch(job_killed, 2)


@pytest.mark.slow
def test_children_die_with_their_parent(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(helpers.ROOT)!r})\n"
        "from lookalike.core import distributed\nfrom tests.core import test_distributed\n"
        f"distributed.launch(test_distributed.job_sleep, 2, file={str(tmp_path / 'pid')!r})"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    files = [tmp_path / "pid0", tmp_path / "pid1"]
    while not all(f.exists() and f.read_text() for f in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    pids = [int(f.read_text()) for f in files]
    while any(_alive(p) for p in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_node_whose_first_node_has_ended_does_not_wait_for_it(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    around = {"RANK": 1, "WORLD_SIZE": 2, "TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in around.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(distributed, "MEETING", 0.5)
    start = time.monotonic()
    with pytest.raises(LookalikeError, match=f"No process answers at 127.0.0.1:{port}: the first node has ended"):
        distributed._join()
    assert time.monotonic() - start < 20


def job_ports() -> list[str]:
    """Addresses on which this process and the one that started it listen."""
    distributed.barrier()
    found = []
    for pid in (os.getpid(), os.getppid()):
        links = {str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
                    host, port = fields[1].split(":")
                    loopback = {"0100007F": "127.0.0.1", "00000000000000000000000001000000": "127.0.0.1"}
                    found.append(f"{loopback.get(host, host)}:{int(port, 16)}")
    distributed.barrier()
    return found
