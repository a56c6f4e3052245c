"""The typed client, against a server on a port."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.client import Client, RequestRefused
from lookalike.core.errors import LookalikeError
from lookalike.searching import Index, index
from lookalike.service.auth import KeyStore
from lookalike.service.state import Service
from tests import helpers
from tests.searching import fake
from tests.service.conftest import RunningServer


@pytest.fixture
def server(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningServer]:
    fake.install(monkeypatch)
    places = []
    for number, name in enumerate(("birds", "shells")):
        images = helpers.make_images(tmp_path / name, classes=2, images=4, seed=number)
        (images / "class-00" / "0.jpg").rename(images / "class-00" / "ä %20 #?.jpg")
        made: Any = fake.FakeEmbedder(number)
        places.append(index(folder=images, model=made, index=tmp_path / f"{name}-index", progress=False).path)
    first, second = map(Index.open, places)
    keys = KeyStore(required=True)
    running = RunningServer(lambda: Service(first, [], keys=keys, further=[second]))
    yield running
    running.stop()


def test_what_a_program_does(server: RunningServer, tmp_path: Path) -> None:
    client = Client(server.url, key=KeyStore().create("robot", "write")[1])
    assert client.info().index.images == 8 and client.info().rights == "write"
    assert [one.name for one in client.indexes().indexes] == ["birds-index", "shells-index"]
    query = tmp_path / "birds" / "class-01" / "0.jpg"
    result = client.search(query, k=3, keep=True)
    assert result.hits[0].identical and result.hits[0].columns["path"] == "class-01/0.jpg" and len(result.hits) == 3
    again = client.search(upload=result.query.id, k=3, filters=["label!=class-00"])
    assert {hit.columns["label"] for hit in again.hits} == {"class-01"} and again.filters
    client.forget(str(result.query.id))
    with pytest.raises(RequestRefused, match="Upload it again") as gone:
        client.search(upload=result.query.id)
    assert gone.value.status == 410
    part = client.search(query.read_bytes(), box=(0, 0, 32, 48), k=1)
    assert part.hits and not part.hits[0].identical and part.query.id is None
    odd = next(card for card in client.items(8) if "#" in card.id)
    assert client.item(odd.id) == odd and client.original(odd)[:2] == client.thumbnail(odd, 96)[:2] == b"\xff\xd8"
    assert odd.id not in {hit.id for hit in client.search(like=odd.id, less=[result.hits[0].id]).hits}
    assert client.facet("label").values[0].count == 4 and client.facets().folders[0].folder == "class-00/"
    assert client.folders(filters=["label=class-01"]).total == 1
    (tmp_path / "birds" / "class-01" / "1.jpg").unlink()
    done = client.wait(client.update(), every=0.05)
    assert done.state == "finished" and done.result and done.result["deleted"] == 1
    assert client.state().index.images == 7


def test_another_index_and_fewer_rights(server: RunningServer) -> None:
    admin = Client(server.url, key=KeyStore().create("admin", "write")[1])
    key = admin.new_key("shop")
    client = Client(server.url, key=key.key, index="shells-index")
    assert client.info().index.name == "shells-index" and client.info().rights == "read"
    card = client.items(1)[0]
    assert client.thumbnail(card)
    with pytest.raises(RequestRefused, match="can only read"):
        client.update()
    admin.revoke_key("shop")
    with pytest.raises(RequestRefused, match="requires a key") as refused:
        client.info()
    assert refused.value.status == 401
    with pytest.raises(LookalikeError, match="does not answer"):
        Client("http://127.0.0.1:9", timeout=1).info()


def test_a_program_needs_neither_torch_nor_a_web_server() -> None:
    code = "import sys, lookalike.client; assert not {'torch', 'fastapi', 'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_job_that_the_server_does_not_know_any_more(server: RunningServer) -> None:
    client = Client(server.url, key=KeyStore().create("robot", "write")[1])
    job = client.wait(client.update(), every=0.05)
    server.stop()
    server.start()
    with pytest.raises(LookalikeError, match="does not know the job `j1` any more"):
        client.wait(job)
