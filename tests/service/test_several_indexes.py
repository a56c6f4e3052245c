"""Several indexes behind one address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from lookalike.searching import Index, index
from lookalike.service import create_app
from lookalike.service.auth import KeyStore
from lookalike.service.middleware import LOOPBACK
from lookalike.service.state import Service
from tests import helpers
from tests.searching import fake
from tests.service.test_middleware import encoded, send

API = "/api/v1"
OURS = {"X-Lookalike": "1"}


@pytest.fixture
def service(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    fake.install(monkeypatch)
    places = []
    for number, name in enumerate(("birds", "shells", "birds2")):
        images = helpers.make_images(tmp_path / name, classes=2, images=3 + number, seed=number)
        place = tmp_path / "indexes" / str(number) / name.removesuffix("2")
        places.append(index(folder=images, model=fake.FakeEmbedder(number), index=place, progress=False).path)  # type: ignore[arg-type]
    first, *further = map(Index.open, places)
    service = Service(first, [], further=further)
    yield service
    service.close()


@pytest.fixture
def client(service: Service) -> TestClient:
    return TestClient(create_app(service, hosts=LOOPBACK), base_url="http://127.0.0.1", raise_server_exceptions=False)


def test_each_index_answers_at_its_name_and_the_first_without(client: TestClient, service: Service) -> None:
    rows = client.get(f"{API}/indexes").json()["indexes"]
    assert [(row["name"], row["images"], row["here"]) for row in rows] == [
        ("birds", 6, True), ("shells", 8, False), ("birds-2", 10, False),
    ]  # fmt: skip
    assert client.get(f"{API}/info").json()["index"]["images"] == 6
    for row in rows:
        base = f"{API}/indexes/{row['name']}"
        assert client.get(f"{base}/info").json()["index"]["images"] == row["images"]
        answer = client.post(f"{base}/search?k=3", files={"image": encoded()}).json()
        assert answer["images"] == row["images"]
        again = client.get(f"{base}/search?q={answer['query']['id']}&k=3").json()
        assert [hit["id"] for hit in again["hits"]] == [hit["id"] for hit in answer["hits"]]
        hit = answer["hits"][0]
        assert client.get(f"/indexes/{row['name']}/thumb/{hit['thumb']}/96.jpg").status_code == 200
        assert client.get(f"/indexes/{row['name']}/original/{hit['id']}").status_code == 200
        assert client.get(f"/indexes/{row['name']}/").headers["content-type"].startswith("text/html")
        assert client.get(f"{base}/indexes").json()["indexes"][rows.index(row)]["here"]
    shells = client.get(f"{API}/indexes/shells/items?sample=1").json()["items"][0]
    assert client.get(f"/thumb/{shells['thumb']}/96.jpg").status_code == 404, "of another index"
    for address in ("/indexes/none/info", "/indexes/shells", "/indexes//info", "/indexes/shells/indexes/birds/no"):
        assert client.get(f"{API}{address}").status_code == 404
    assert 'lookalike_images{index="birds-2"} 10.0' in client.get("/metrics").text


def test_jobs_belong_to_their_index(client: TestClient, service: Service) -> None:
    job = client.post(f"{API}/indexes/shells/duplicates/find", headers=OURS)
    assert job.status_code == 202
    helpers.until(lambda: not service.services["shells"].jobs.running())
    assert client.get(f"{API}/indexes/shells/duplicates").json()["images"] == 8
    assert client.get(f"{API}/duplicates").json()["state"] == "none"
    assert client.get(f"{API}/state").json()["jobs"] == []


def test_a_name_changes_no_right(service: Service) -> None:
    service.keys = KeyStore(required=True)
    read = service.keys.create("shop")[1]
    client = TestClient(create_app(service), raise_server_exceptions=False)
    held = {"Authorization": f"Bearer {read}"} | OURS
    for address in ("/indexes/shells/info", "/indexes/none/info", "/indexes/shells/keys"):
        assert client.get(f"{API}{address}").status_code == 401
    assert client.get(f"{API}/indexes/shells/info", headers=held).status_code == 200
    assert send(client, encoded(), headers=held).status_code == 200
    assert client.post(f"{API}/indexes/shells/search", files={"image": encoded()}, headers=held).status_code == 200
    assert client.get(f"{API}/indexes/shells/keys", headers=held).status_code == 403
    assert client.post(f"{API}/indexes/shells/index/update", headers=held).status_code == 403
