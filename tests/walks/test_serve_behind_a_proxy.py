"""Serve an index to the clients of a reverse proxy, which need a key."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lookalike.client import Client, RequestRefused
from tests.helpers import Answer, begin, make_images, until
from tests.walks.terminal import Terminal, check

NAME = "photos.example"


@contextmanager
def reverse_proxy(port: int, name: str = NAME) -> Iterator[int]:
    """Forward requests as nginx does, with the name and the address the client used; gives the proxy's port."""

    class Forward(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.forward(None)

        def do_POST(self) -> None:
            self.forward(self.rfile.read(int(self.headers["Content-Length"])))

        def forward(self, body: bytes | None) -> None:
            headers = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "connection")}
            headers |= {"Host": name, "X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
            upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for key in ("Content-Type", "Retry-After"):
                if answer.headers[key]:
                    self.send_header(key, answer.headers[key])
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Forward)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


def test_serve_behind_a_proxy(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    folder = make_images(tmp_path / "photos", classes=4, images=4)
    terminal(
        "lookalike index photos",
        """
        Images     16 new ({} s, {}/s)
        Index      photos-…: 16 images, model … (efficientnet_lite0)
        Scores     similarities without probabilities: only {} pairs of the same thing are known; 200 are needed …
        Search     lookalike search IMAGE --index photos-…
        """,
    )
    key = terminal("lookalike keys new shop", "lk_…\nCopy it now; it is not shown again. It may read.").out.split()[0]
    terminal(
        "lookalike keys new shop",
        "! There is already a key of this name: choose another, or revoke that one.",
        code=2,
    )
    command = ["serve", "photos", "--port", "0", "--keys", "--host-names", NAME, "--proxy", "127.0.0.1"]
    process, printed = begin(*command, into=tmp_path / "server"), tmp_path / "server" / "err"
    try:
        until(lambda: printed.exists() and "needs one" in printed.read_text(encoding="utf-8"))
        lines = printed.read_text(encoding="utf-8")
        check(
            "lookalike serve photos …",
            """
            ! Serving   http://127.0.0.1:{}  (stop with Ctrl-C)
            ! Index     photos-…: 16 images, model … (efficientnet_lite0)
            ! Keys      1; every client needs one
            """,
            Answer(0, "", lines),
        )
        port = int(lines.splitlines()[0].split("  (")[0].rsplit(":", 1)[1])
        with reverse_proxy(port) as proxy:
            image = folder / "class-02" / "1.jpg"
            with pytest.raises(RequestRefused, match="requires a key") as refused:
                Client(f"http://127.0.0.1:{proxy}").search(image, k=3)
            assert refused.value.status == 401
            shop = Client(f"http://127.0.0.1:{proxy}", key=key)
            assert shop.info().rights == "read" and shop.info().index.images == 16
            result = shop.search(image, k=3)
            assert len(result.hits) == 3
            assert result.hits[0].identical and result.hits[0].columns["path"] == "class-02/1.jpg"
            assert shop.thumbnail(result.hits[1], 96).startswith(b"\xff\xd8")
        with reverse_proxy(port, "elsewhere.example") as proxy:
            with pytest.raises(RequestRefused, match="only to its own name") as refused:
                Client(f"http://127.0.0.1:{proxy}", key=key).info()
            assert refused.value.status == 421
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        process.join(30)
        assert process.exitcode == 130
        rest = printed.read_text(encoding="utf-8").removeprefix(lines).splitlines()
        assert len(rest) == 1 and rest[0].startswith("Stopped.")
    finally:
        process.kill()
        process.join()
