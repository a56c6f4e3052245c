"""A home that is full or read-only while it is served: searches go on, and nobody is told where it lies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lookalike.searching import Index, index
from lookalike.service import create_app
from lookalike.service.auth import KeyStore
from lookalike.service.state import Service
from tests import helpers
from tests.searching import fake

API = "/api/v1"
pytestmark = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs a disk, made by root")


@pytest.fixture
def small_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / "home"
    home.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", home], check=False).returncode:
        pytest.skip("no file system can be mounted here")
    monkeypatch.setenv("LOOKALIKE_HOME", str(home))
    yield home
    subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.parametrize("state", ["full", "read-only"])
def test_searches_go_on(small_home: Path, tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.install(monkeypatch)
    images = helpers.make_images(tmp_path / "images", classes=3, images=4)
    place = index(folder=images, model=fake.FakeEmbedder(0), progress=False).path  # type: ignore[arg-type]
    keys = KeyStore(required=True)
    secret = keys.create("shop", "write")[1]
    if state == "full":
        with contextlib.suppress(OSError), (small_home / "rest").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
    else:
        subprocess.run(["mount", "-o", "remount,ro", small_home], check=True)
    service = Service(Index.open(place), [tmp_path / "runs"], keys=keys)
    client = TestClient(create_app(service), raise_server_exceptions=False)
    answers: list[Any] = []

    def send(method: str, address: str, **options: Any) -> Any:
        headers = {"X-Lookalike": "1", "Authorization": f"Bearer {secret}"}
        answers.append(client.request(method, address, headers=headers, **options))
        return answers[-1]

    upload = {"image": (images / "class-00" / "0.jpg").read_bytes()}
    name = send("POST", f"{API}/search?k=2", files=upload).json()["query"]["id"]
    assert send("GET", f"{API}/search?q={name}&k=2").status_code == 200
    assert send("GET", f"/query/{name}.jpg").content[:2] == b"\xff\xd8"
    assert send("POST", f"{API}/search?k=2", files=upload).json()["query"]["id"] is None
    card = send("GET", f"{API}/items?sample=1").json()["items"][0]
    for address in (
        f"{API}/search?like={card['id']}&k=2", f"/thumb/{card['thumb']}/96.jpg", f"/original/{card['id']}", "/health",
        *(f"{API}/{name}" for name in ("info", "state", "facets", "map", "duplicates", "keys", "generations", "runs")),
    ):  # fmt: skip
        assert send("GET", address).status_code == 200, address
    assert send("POST", f"{API}/keys", json={"name": "new"}).status_code == 507
    assert send("DELETE", f"{API}/keys/shop").status_code == 507
    assert send("POST", f"{API}/index/update").status_code == 202
    assert send("POST", f"{API}/duplicates/find").status_code == 202
    helpers.until(lambda: not service.jobs.running())
    jobs = send("GET", f"{API}/state").json()["jobs"]
    assert {job["state"] for job in jobs} == {"failed"} and len(jobs) == 3
    assert not [answer.text for answer in answers if str(tmp_path) in answer.text]
    service.close()
