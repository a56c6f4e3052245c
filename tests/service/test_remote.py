"""An index that a service has to itself is searched through that service."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.searching import Hits, index, search
from lookalike.searching.remote import NAME, announce
from tests import helpers

MODEL = helpers.ROOT / "tests" / "compat" / "model-1"  # tiny, with random weights


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("served")
    images = helpers.make_images(base / "images", classes=5, images=12)
    index(folder=images, model=MODEL, index=base / "index", store="qdrant", progress=False)
    return base / "index"


@pytest.fixture
def served(place: Path) -> Iterator[subprocess.Popen[str]]:
    """`lookalike serve`, ready; it is ended as Ctrl-C ends it."""
    with serving(place) as process:
        yield process


@contextlib.contextmanager
def serving(place: Path, host: str = "127.0.0.1") -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "lookalike", "serve", str(place), "--host", host, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert re.search(rf"http://{host}:\d+", process.stderr.readline())
    deadline = time.monotonic() + 60
    while not (place / NAME).exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    yield process
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


def told(hits: Any) -> Any:
    assert isinstance(hits, Hits)
    document = hits.to_json()
    del document["milliseconds"]
    return document


def test_search_beside_serve_answers_as_without_it(place: Path, served: subprocess.Popen[str]) -> None:
    images = place.parent / "images"
    query = images / "class-01" / "0.jpg"
    questions: list[dict[str, Any]] = [
        {"query": query, "k": 7},
        {"query": query, "filters": ["label!=class-01", "path=class-0*"], "all": True},
        {"query": query, "more": [images / "class-02" / "1.jpg"], "less": [images / "class-03" / "1.jpg"]},
        {"query": query, "box": (0, 0, 32, 32), "exact": True},
    ]
    through = [told(search(index=place, **question)) for question in questions]
    many = search(query=images / "class-04", index=place, k=2)
    assert isinstance(many, list) and len(many) == 12
    with pytest.raises(LookalikeError, match="did you mean `label`"):
        search(query=query, index=place, filters="lable=x")
    with pytest.raises(Locked, match="lookalike serve"):
        index(folder=images, index=place, progress=False)
    served.send_signal(signal.SIGINT)
    served.wait(timeout=30)
    assert not (place / NAME).exists()
    for question, answer in zip(questions, through, strict=True):
        alone = told(search(index=place, **question))
        # The service may have made the model's fast form meanwhile, which counts in another order.
        for name in ("score", "probability", "low", "high", "closer_than"):
            through_it, by_itself = ([hit.pop(name) for hit in found["hits"]] for found in (answer, alone))
            assert through_it == pytest.approx(by_itself, abs=1e-5), name
        assert json.dumps(answer) == json.dumps(alone)


def test_only_this_machine_is_listened_to_unless_told_otherwise(place: Path, served: subprocess.Popen[str]) -> None:
    port = json.loads((place / NAME).read_text())["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        pass
    # An address of this machine that a server on all interfaces would answer at.
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", port), timeout=10)


def test_any_address_of_this_machine_can_be_served_at(place: Path) -> None:
    with serving(place, "127.0.0.2"):
        word = json.loads((place / NAME).read_text())
        assert word["host"] == "127.0.0.2"
        for name, status in ((f"127.0.0.2:{word['port']}", 200), ("evil.example", 421)):
            asked = urllib.request.Request(f"http://127.0.0.2:{word['port']}/api/v1/info", headers={"Host": name})
            try:
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    assert answer.status == status
            except urllib.error.HTTPError as refused:
                assert refused.code == status
        assert len(search(query=place.parent / "images" / "class-01" / "0.jpg", index=place)) == 10, "through it"


def test_a_silent_client_does_not_keep_the_server_from_ending(place: Path, served: subprocess.Popen[str]) -> None:
    port = json.loads((place / NAME).read_text())["port"]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(
            b"POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Lookalike: 1\r\nContent-Length: 10\r\n\r\n"
        )
        time.sleep(0.3)
        served.send_signal(signal.SIGTERM)
        served.wait(timeout=30)
    assert not (place / NAME).exists(), "it was tidied up"


def test_a_service_that_was_killed_leaves_no_trap(place: Path, served: subprocess.Popen[str]) -> None:
    served.kill()
    served.wait()
    assert (place / NAME).exists()
    assert len(search(query=place.parent / "images" / "class-01" / "0.jpg", index=place)) == 10


def test_another_holder_is_told_in_one_sentence(place: Path, tmp_path: Path) -> None:
    from lookalike.searching import Index

    query = place.parent / "images" / "class-01" / "0.jpg"
    with Index.open(place) as holder:
        assert holder.store.count() == 60
        with pytest.raises(Locked, match=r"Another process has the index .* open"):
            search(query=query, index=place)
        with announce(place, "0.0.0.0", 1, "lk_x"), pytest.raises(Locked):  # nobody answers there
            word = json.loads((place / NAME).read_text())
            assert word == {"host": "127.0.0.1", "port": 1, "key": "lk_x", "process": os.getpid()}
            search(query=query, index=place)
    assert not (place / NAME).exists()


def test_an_index_that_cannot_be_written_to_is_served_all_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise LookalikeError("read-only")

    monkeypatch.setattr("lookalike.searching.remote.write_json", refuse)
    with announce(place, "127.0.0.1", 1, "lk_x"):
        assert not (place / NAME).exists()


def test_vectors_are_checked(client: Any) -> None:
    ours = {"headers": {"X-Lookalike": "1"}}
    wrong = client.post("/api/v1/nearest", json={"positive": [[1.0, 2.0]]}, **ours)
    assert wrong.status_code == 400 and "have dimension 1280" in wrong.json()["error"]["message"]
    assert client.post("/api/v1/nearest", json={"positive": []}, **ours).status_code == 422
    assert client.post("/api/v1/nearest", content=b'{"positive": [[NaN]]}', **ours).status_code == 422


def test_where_keys_are_needed_the_owner_searches_with_the_services_own(service: Any) -> None:
    from lookalike.service.auth import authenticate

    service.keys.required = True
    bearer = f"Bearer {service.keys.local_key}".encode()
    assert authenticate(service.keys, {b"authorization": bearer}) == ("read", "local")
    assert authenticate(service.keys, {b"authorization": b"Bearer lk_other"}) == ("none", "")
    assert authenticate(service.keys, {})[0] == "none"


def test_the_runs_beside_a_served_run_are_shown(tmp_path: Path) -> None:
    from types import SimpleNamespace

    from lookalike.core.run import Run
    from lookalike.service.server import _report_folders

    run = Run.create("supcon", {}, path=tmp_path / "elsewhere" / "one")
    inside: Any = SimpleNamespace(path=run.path / "index")
    for given in (None, run.path):
        assert _report_folders(inside, given, None)[0] == tmp_path / "elsewhere"
    plain: Any = SimpleNamespace(path=tmp_path / "indexes" / "birds")
    assert _report_folders(plain, None, None)[0] == tmp_path / "indexes"
