"""A stand-in of the Hub on loopback: model files, uploads, a gated and a missing repository."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """The repositories by name, each a mapping of paths to contents; `requests` lists what was asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.uploads: dict[str, bytes] = {}
        self.gated: set[str] = set()
        self.requests: list[str] = []
        self.url = ""


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

        def answer(self, document: Any = b"", status: int = 200, **headers: str) -> None:
            content = document if isinstance(document, bytes) else json.dumps(document).encode()
            self.send_response(status)
            for name, value in {"X-Repo-Commit": COMMIT, "Content-Length": str(len(content)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def refuse(self, status: int, code: str) -> None:
            self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

        def do_GET(self) -> None:
            path = unquote(urlparse(self.path).path)
            hub.requests.append(f"{self.command} {path}")
            parts = path.strip("/").removeprefix("api/models/").split("/")
            name, rest = "/".join(parts[:2]), parts[2:]
            if name in hub.gated and "resolve" in rest:
                self.refuse(403, "GatedRepo")
            elif name not in hub.repositories:
                self.refuse(404, "RepoNotFound")
            elif "resolve" in rest:
                content = hub.repositories[name].get("/".join(rest[2:]))
                if content is None:
                    self.refuse(404, "EntryNotFound")
                else:
                    self.answer(content, ETag=f'"{hashlib.sha256(content).hexdigest()}"')
            else:
                files = [
                    {"type": "file", "path": file, "rfilename": file, "size": len(content), "oid": "0" * 40}
                    for file, content in hub.repositories[name].items()
                ]
                listing = "tree" in rest
                self.answer(files if listing else {"id": name, "sha": COMMIT, "siblings": files, "tags": []})

        do_HEAD = do_GET

        def do_PUT(self) -> None:
            hub.uploads[self.path.rsplit("/", 1)[-1]] = self.rfile.read(int(self.headers["Content-Length"]))
            self.answer(ETag='"x"')

        def do_POST(self) -> None:
            path, body = urlparse(self.path).path, self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append(f"POST {path}")
            name = "/".join(path.strip("/").removeprefix("api/models/").split("/")[:2]).removesuffix(".git")
            if path == "/api/repos/create":
                document = json.loads(body)
                name = f"{document.get('organization') or 'me'}/{document['name']}"
                hub.repositories.setdefault(name, {})
                self.answer({"url": f"{hub.url}/{name}", "name": name})
            elif path == "/api/validate-yaml":
                self.answer({"errors": [], "warnings": []})
            elif "/preupload/" in path:
                files = json.loads(body)["files"]
                modes = [{"path": f["path"], "uploadMode": _mode(f["path"]), "shouldIgnore": False} for f in files]
                self.answer({"files": modes})
            elif path.endswith("/objects/batch"):
                objects = [
                    {**one, "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]
                self.answer({"transfer": "basic", "objects": objects}, Content_Type="application/vnd.git-lfs+json")
            else:  # commit
                for line in body.splitlines():
                    entry = json.loads(line)
                    value = entry["value"]
                    if entry["key"] == "file":
                        hub.repositories[name][value["path"]] = base64.b64decode(value["content"])
                    elif entry["key"] == "lfsFile":
                        hub.repositories[name][value["path"]] = hub.uploads[value["oid"]]
                self.answer({"commitUrl": f"{hub.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})

    return Handler


def _mode(path: str) -> str:
    return "lfs" if path.endswith((".safetensors", ".bin")) else "regular"


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve on loopback for the duration of the block."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
