from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from lookalike.core.locks import Locked, hold

HOLD = """
import sys, time
from lookalike.core.locks import hold
with hold(sys.argv[1], "It"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_at_once_and_in_one_line(tmp_path: Path) -> None:
    def again() -> AbstractContextManager[None]:
        return hold(tmp_path / "x" / ".lock", "The run `x`")

    with again(), pytest.raises(Locked, match=r"^The run `x` is in use by another process"), again():
        pass
    with again():
        pass


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    with pytest.raises(Locked), hold(path, "It"):
        pass
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with hold(path, "It"):
        pass


def test_a_disk_without_room_for_the_holders_name_is_no_reason_to_fail(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_FSIZE, before)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
        with hold(tmp_path / ".lock", "It"), pytest.raises(Locked, match="It is in use by another process;"):
            stack.enter_context(hold(tmp_path / ".lock", "It"))
