"""A real S3 server for tests (SeaweedFS) on ports of 127.0.0.1, and a proxy before it that fails when it is told to."""

from __future__ import annotations

import ctypes
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

PR_SET_PDEATHSIG = 1
KEY, SECRET = "tester", "tester-secret"


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


class Server:
    """A server in a folder of its own, with the bucket `data`."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lookalike-s3-"))
        roles = ("master", "volume", "filer", "s3")
        ports = dict(
            zip([f"{role}.port{kind}" for role in roles for kind in ("", ".grpc")], free_ports(8), strict=True)
        )
        identity = {"name": KEY, "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin"]}
        config = self.folder / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        weed = Path(sys.executable).with_name("weed")
        command = [
            str(weed),
            "-logtostderr",
            "server",
            "-master.telemetry=false",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
        ]
        command += [f"-dir={self.folder}", "-filer", "-s3", f"-s3.config={config}", "-master.volumeSizeLimitMB=64"]
        command += [
            "-volume.max=40",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]
        self.port = ports["s3.port"]
        log = (self.folder / "log").open("wb")
        libc = ctypes.CDLL(None)
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, cwd=self.folder,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )  # fmt: skip
        end = time.monotonic() + 60
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError((self.folder / "log").read_text()[-3000:])
            time.sleep(0.1)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which clients find it."""
        return environment(self.port)

    def _ready(self) -> bool:
        from pyarrow import fs

        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=2).close()
            client = fs.S3FileSystem(
                access_key=KEY, secret_key=SECRET, region="us-east-1", scheme="http",
                endpoint_override=f"127.0.0.1:{self.port}", allow_bucket_creation=True,
            )  # fmt: skip
            client.create_dir("data")
            with client.open_output_stream("data/ready") as file:
                file.write(b"ready")
            return True
        except OSError:
            return False

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def environment(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


def _body(source: IO[bytes], fields: dict[bytes, bytes]) -> bytes:
    if fields.get(b"transfer-encoding") != b"chunked":
        return source.read(int(fields.get(b"content-length", b"0")))
    parts = []
    while True:
        parts.append(source.readline())
        if not (size := int(parts[-1].split(b";")[0], 16)):
            break
        parts.append(source.read(size + 2))
    while parts[-1] != b"\r\n":
        parts.append(source.readline())
    return b"".join(parts)


@contextmanager
def failing(port: int, fails: Callable[[str, int], str | None]) -> Iterator[int]:
    """A proxy before the server, by its port.

    `fails(first line of a request, its number)` says what happens to it: None (passed on), `"503"` (an answer), or
    `"cut"` (half of it is passed on, then both connections close).
    """
    listener = socket.create_server(("127.0.0.1", 0))
    count = 0

    def serve(client: socket.socket) -> None:
        nonlocal count
        with client, client.makefile("rb") as source:
            while head := source.readline():
                lines = [head]
                while (line := source.readline()) not in (b"\r\n", b""):
                    lines.append(line)
                fields = {
                    name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:])
                }
                count += 1
                how = fails(head.decode(), count)
                if b"100-continue" in fields.get(b"expect", b"") and how != "503":
                    client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                lines = [line for line in lines if not line.lower().startswith((b"expect:", b"connection:"))]
                if how == "503":
                    client.sendall(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                    return
                body = _body(source, fields)
                with socket.create_connection(("127.0.0.1", port)) as server:
                    server.sendall(b"".join(lines) + b"Connection: close\r\n\r\n")
                    if how == "cut":
                        server.sendall(body[: len(body) // 2])
                        return
                    server.sendall(body)
                    while data := server.recv(1 << 16):
                        client.sendall(data)
                return

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.close()
