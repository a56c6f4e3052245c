"""A stand-in of the Hugging Face Hub on loopback: the endpoints that reading a repository asks for.

A repository is a folder `datasets/OWNER/NAME` or `models/OWNER/NAME` below the root of the server. A file `.gated`
in it makes it gated.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


class HubServer(ThreadingHTTPServer):
    """The server; `requests` lists the paths it was asked for."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def files(self, folder: Path) -> list[Path]:
        return sorted(file for file in folder.rglob("*") if file.is_file() and file.name != ".gated")

    def commit(self, folder: Path) -> str:
        parts = [f"{file.relative_to(folder)}:{file.stat().st_mtime_ns}" for file in self.files(folder)]
        return hashlib.sha1("\n".join(parts).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        api = parts[0] == "api"
        parts = parts[1:] if api else parts
        kind = parts.pop(0) if parts[0] in ("datasets", "models") else "models"
        folder = self.server.root / kind / "/".join(parts[:2])
        if not folder.is_dir():
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
        if (folder / ".gated").exists():
            return self._send(403, b"{}", {"X-Error-Code": "GatedRepo"}, body)
        sha, rest = self.server.commit(folder), parts[2:]
        if api and rest[:1] == ["tree"]:
            return self._json([self._entry(folder, file) for file in self.server.files(folder)], body)
        if api:
            names = [{"rfilename": file.relative_to(folder).as_posix()} for file in self.server.files(folder)]
            return self._json({"id": "/".join(parts[:2]), "sha": sha, "siblings": names, "private": False}, body)
        file = folder / "/".join(rest[2:])
        if rest[:1] != ["resolve"] or not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
        data = file.read_bytes()
        return self._send(200, data, {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": sha}, body)

    def _entry(self, folder: Path, file: Path) -> dict[str, Any]:
        data = file.read_bytes()
        name, oid = file.relative_to(folder).as_posix(), hashlib.sha1(data).hexdigest()
        return {"type": "file", "path": name, "size": len(data), "oid": oid}

    def _json(self, document: Any, body: bool) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body)

    def _send(self, code: int, data: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)


@contextlib.contextmanager
def serve_hub(root: Path) -> Iterator[HubServer]:
    """Serve the repositories below a folder, and point huggingface_hub at them."""
    import huggingface_hub.constants as constants

    server = HubServer(root)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(constants, "ENDPOINT", server.url)
            patch.setattr(
                constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
            )
            patch.setattr(constants, "HF_HUB_OFFLINE", False)
            patch.setenv("HF_HUB_DISABLE_XET", "1")
            patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
            yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
