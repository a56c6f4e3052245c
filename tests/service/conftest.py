"""A service over a small index: in the process for the API, on a port for the browser."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.core import folders
from tests.searching.conftest import _made, made, model, models  # noqa: F401 (fixtures)

_LOADED: dict[str, Any] = {}  # by fingerprint
_HOMES: list[Path] = []  # the session's first, where models were converted


@pytest.fixture(scope="session", autouse=True)
def _first_home(_shared_home: None) -> None:
    _HOMES.append(folders.home())


def build(place: Path, runs: Path, **options: Any) -> Any:
    """A service over an index; its model is loaded and converted once for all tests, whatever their home."""
    from lookalike.models.inference.pipeline import CropEncoder
    from lookalike.searching import Index
    from lookalike.service.state import Service

    index = Index.open(place)
    name = index.generation.model.fingerprint
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", str(_HOMES[0]))
        if name not in _LOADED:
            _LOADED[name] = index.embedder
            CropEncoder(index.embedder, fast=True)
        converted = folders.cache("runtimes")
    own = folders.cache("runtimes")
    for entry in converted.iterdir():  # never over one that is there: a server may have mapped its files
        if entry.is_dir() and not (own / entry.name).exists():
            shutil.copytree(entry, own / entry.name)
    index._embedder = _LOADED[name]
    return Service(index, [runs], **options)


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with reports, one without, and a folder that is none."""
    from lookalike.core.run import Run

    folder = tmp_path_factory.mktemp("service") / "runs"
    for name, verdict in (("first", "Training did not help."), ("second", "Training raised recall@1.")):
        run = Run.create("supcon", {}, path=folder / name)
        (run.path / "report.html").write_text(f"<!doctype html><title>{name}</title><p>{verdict}</p>")
        run.write_section(
            "verdict", {"title": "Verdict", "order": 10, "blocks": [{"kind": "verdict", "message": verdict}]}
        )
    Run.create("supcon", {}, path=folder / "unfinished")
    (folder / "secret").mkdir()
    (folder / "secret" / "report.html").write_text("not a run")
    return folder


@pytest.fixture
def service(made: Any, runs: Path, home: Path) -> Iterator[Any]:  # noqa: F811
    opened = build(made[1], runs)
    yield opened
    opened.close()


@pytest.fixture
def client(service: Any) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.middleware import LOOPBACK

    app = create_app(service, hosts=LOOPBACK)
    yield TestClient(app, base_url="http://127.0.0.1:8080", raise_server_exceptions=False)


class RunningServer:
    """The service on a port of its own, that can be stopped and started again."""

    def __init__(self, make: Any, *, names: Iterable[str] = (), proxy: str | None = None) -> None:
        self.make, self.names, self.proxy, self.port = make, frozenset(names), proxy, 0
        self.start()

    def start(self) -> None:
        from lookalike.service import create_app
        from lookalike.service.app import Server
        from lookalike.service.middleware import LOOPBACK
        from lookalike.service.server import _listen

        listener = _listen("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        app = create_app(self.make(), hosts=LOOPBACK | self.names)
        self.server = Server(app, shutdown_seconds=1, proxy=self.proxy)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=20)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture(scope="module")
def live(_made: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:  # noqa: F811
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", str(tmp_path_factory.mktemp("home")))
        opened = RunningServer(lambda: build(_made[1], runs))
        yield opened
        opened.stop()


def error_message(response: Any) -> str:
    """The message of a refused request; every refusal has one."""
    document = json.loads(response.content)
    assert set(document) == {"error"} and document["error"]["status"] == response.status_code
    text = document["error"]["message"]
    assert text.endswith((".", "?")) and "\n" not in text
    return str(text)
