"""A real Milvus server for tests: `python tests/milvus_server.py FOLDER PROCESS` until that process has ended.

It also ends when there is a file `FOLDER/ended`.

The server listens on all interfaces. Where the machine allows it, it runs in a network namespace of its own, and
only a port of 127.0.0.1 leads into it: a socket made before the namespace stays outside, so one process has both ends.
`FOLDER/address` holds that port once the server answers; the folder is deleted in the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNET, PR_SET_PDEATHSIG = 0x10000000, 0x40000000, 1
SIOCSIFFLAGS, IFF_UP = 0x8914, 1
PASSWORD = "Milvus"  # of `root`, as every server is delivered
SECONDS = 180.0
# Its rounds, in milliseconds: as delivered, a collection takes two seconds to load and a strong read 200 ms.
ROUNDS = {
    "PROXY_TIMETICKINTERVAL": 20,
    "QUERYCOORD_CHECKINTERVAL": 50,
    "QUERYCOORD_CHECKSEGMENTINTERVAL": 50,
    "QUERYCOORD_CHECKCHANNELINTERVAL": 50,
    "QUERYCOORD_CHECKINDEXINTERVAL": 200,
    "QUERYCOORD_DISTPULLINTERVAL": 50,
}


def alone() -> bool:
    """Move this process into a network namespace with nothing but a loopback; False where that is not allowed."""
    libc, before = ctypes.CDLL(None), os.open("/proc/self/ns/net", os.O_RDONLY)
    for kind in (CLONE_NEWNET, CLONE_NEWUSER | CLONE_NEWNET):
        if libc.unshare(kind):
            continue
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as some:
                fcntl.ioctl(some, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
            return True
        except PermissionError:  # its own, but not its to set up: back to the machine's
            if libc.setns(before, CLONE_NEWNET):
                raise
    return False


@contextlib.contextmanager
def running(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The server's process and its port, once it is well. It dies with us, however we end."""
    from milvus import MilvusServer, _initialize_data_files

    server = MilvusServer()
    server.set_base_dir(str(folder))
    server.config.set("authorization_enabled", True)
    server.config.resolve()
    _initialize_data_files(str(folder))
    health, taken = server.config.resolve_port(9091)
    taken.close()
    around = {"DEPLOY_MODE": "STANDALONE", "METRICS_PORT": str(health), "MILVUS_RUN_DIR": str(folder / "run")}
    around["LD_LIBRARY_PATH"] = f"{folder / 'bin'}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    around |= {name: str(value) for name, value in ROUNDS.items()}
    libc = ctypes.CDLL(None)
    with (folder / "logs" / "all.log").open("wb") as log:
        process = subprocess.Popen(
            [folder / "bin" / "milvus", "run", "standalone"],
            cwd=folder,
            env=os.environ | around,
            stdout=log,
            stderr=log,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    try:
        end = time.monotonic() + SECONDS
        while not _well(health):
            if process.poll() is not None or time.monotonic() > end:
                tail = (folder / "logs" / "all.log").read_text(errors="replace")[-3000:]
                raise SystemExit(f"Milvus did not start ({process.poll()}): {tail}")
            time.sleep(0.1)
        yield process, server.listen_port
    finally:
        process.kill()
        process.wait()


def _well(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return b"OK" in answer.read()
    except OSError:
        return False


async def lead(listener: socket.socket, port: int) -> tuple[asyncio.Server, set[asyncio.StreamWriter]]:
    """Everything that comes to `listener` goes to `port` of this process's 127.0.0.1, and back.

    Returns what listens, and the ends that are open.
    """
    ends: set[asyncio.StreamWriter] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 20):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # either end may go at any time
        finally:
            writer.close()

    async def both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        ends.update((writer, inner_writer))
        await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))
        ends.difference_update((writer, inner_writer))

    return await asyncio.start_server(both, sock=listener), ends


async def until_gone(process: int, ended: Path, listener: socket.socket, port: int) -> None:
    await lead(listener, port)
    while Path(f"/proc/{process}").exists() and not ended.exists():
        await asyncio.sleep(0.5)


def main(folder: Path, process: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    namespace = alone()
    try:
        with running(folder) as (_, port):
            outside = listener.getsockname()[1] if namespace else port
            (folder / "address.part").write_text(f"milvus://127.0.0.1:{outside}")
            (folder / "address.part").rename(folder / "address")
            asyncio.run(until_gone(process, folder / "ended", listener, port))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Gate:
    """A door before a server that can be shut: to clients, the server is then away."""

    def __init__(self, address: str) -> None:
        self._goal, self._port = int(address.rpartition(":")[2]), 0
        self.open()

    @property
    def address(self) -> str:
        return f"milvus://127.0.0.1:{self._port}"

    def open(self) -> None:
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._loop, opened = asyncio.new_event_loop(), threading.Event()

        async def run() -> None:
            self._shut = asyncio.Event()
            server, ends = await lead(listener, self._goal)
            opened.set()
            await self._shut.wait()
            server.close()
            for end in list(ends):
                end.transport.abort()
            await asyncio.sleep(0.1)

        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(run()), daemon=True)
        self._thread.start()
        opened.wait(10)

    def shut(self) -> None:
        self._loop.call_soon_threadsafe(self._shut.set)
        self._thread.join(10)
        self._loop.close()


def shared(base: Path, session: int) -> str:
    """The address of the server that all test processes of a session use, started by the first; it ends with them."""
    with (base / "milvus.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not (place := lock.read()):
            place = tempfile.mkdtemp(prefix="lookalike-milvus-")
            with (base / "milvus.log").open("wb") as log:
                command = [sys.executable, __file__, place, str(session)]
                helper = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            while not (Path(place) / "address").exists():
                if helper.poll() is not None:
                    raise RuntimeError((base / "milvus.log").read_text())
                time.sleep(0.1)
            lock.write(place)
    return (Path(place) / "address").read_text()


def count_down(base: Path, tests: int) -> None:
    """One of so many tests that use the server has ended; with the last one, it does too."""
    with (base / "milvus.count").open("ab") as counted:
        counted.write(b".")
    started = base / "milvus.lock"
    if (base / "milvus.count").stat().st_size >= tests and started.exists():
        (Path(started.read_text()) / "ended").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
