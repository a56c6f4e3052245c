"""Browse through the API: orders, pages, selections, tags, export, and moves within the collection."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.service import schemas
from tests import helpers
from tests.service.conftest import build, error_message

API = "/api/v1"


@pytest.fixture
def own(tmp_path: Path, model: Path, home: Path) -> Iterator[tuple[Path, Any]]:
    """A client of an index of our own, with images of two months in two folders."""
    from fastapi.testclient import TestClient

    from lookalike.searching import index
    from lookalike.service import create_app

    folder = helpers.make_images(tmp_path / "images", classes=2, images=12)
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        day = time.mktime((2024, 3 if number % 2 else 4, 1 + number // 2, 12, 0, 0, 0, 0, -1))
        os.utime(path, (day, day))
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    service = build(tmp_path / "index", tmp_path)
    yield folder, TestClient(create_app(service), raise_server_exceptions=False)
    service.close()


def post(client: Any, path: str, **body: Any) -> Any:
    return client.post(f"{API}{path}", json=body, headers={"X-Lookalike": "1"})


def selected(client: Any, *ranges: list[int], order: str = "folder", f: tuple[str, ...] = ()) -> dict[str, Any]:
    view = client.get(f"{API}/browse", params={"order": order, "f": f}).json()
    return {"order": order, "f": list(f), "version": view["version"], "ranges": list(ranges)}


def test_orders_sections_and_pages(own: Any) -> None:
    _, client = own
    view = client.get(f"{API}/browse", params={"order": "folder"}).json()
    assert view["sections"] == [{"name": "class-00", "count": 12}, {"name": "class-01", "count": 12}]
    assert view["ratios"] == [133] * 24 and view["taken"] is False
    page = {"order": "folder", "version": view["version"], "offset": 9, "limit": 4}
    items = client.get(f"{API}/browse/items", params=page).json()["items"]
    names = [item["columns"]["path"] for item in items]
    assert names == ["class-00/9.jpg", "class-00/10.jpg", "class-00/11.jpg", "class-01/0.jpg"]
    dates = client.get(f"{API}/browse").json()
    assert sum(section["count"] for section in dates["sections"]) == 24
    old = client.get(f"{API}/browse/items", params=page | {"version": "0"})
    assert old.status_code == 409 and "changed" in error_message(old)


def test_tags_are_added_filtered_by_and_removed(own: Any) -> None:
    _, client = own
    selection = selected(client, [0, 3], [20, 99])
    assert post(client, "/browse/tags", **selection, add=["beach"]).json() == {"images": 7, "tags": ["beach"]}
    assert "tags" in client.get(f"{API}/info").json()["index"]["columns"]
    facets = {facet["column"]: facet["values"] for facet in client.get(f"{API}/facets").json()["facets"]}
    assert facets["tags"] == [{"value": "beach", "count": 7}]
    beach = selected(client, [0, 99], f=("tags:beach",))
    items = {"f": "tags:beach", "order": "folder", "version": beach["version"]}
    cards = client.get(f"{API}/browse/items", params=items).json()["items"]
    assert len(cards) == 7 and all(card["columns"]["tags"] == ["beach"] for card in cards)
    hits = client.get(f"{API}/search", params={"like": cards[0]["id"], "f": "tags:beach"}).json()["hits"]
    assert len(hits) == 6 and hits[0]["columns"]["tags"] == ["beach"]
    other = client.get(f"{API}/facets", params={"f": "label:class-00"}).json()["facets"]
    assert [facet["values"] for facet in other if facet["column"] == "tags"] == [[{"value": "beach", "count": 3}]]
    post(client, "/browse/tags", **beach, remove=["beach"])
    assert client.get(f"{API}/tags").json() == {"column": "tags", "tags": []}
    for wrong in ("", " ", "x*", "a\nb\0"):
        assert post(client, "/browse/tags", **selection, add=[wrong]).status_code == 400


def test_a_selection_is_exported(own: Any) -> None:
    _, client = own
    selection = selected(client, [11, 13])
    post(client, "/browse/tags", **selection, add=["a", "b"])
    rows = list(csv.DictReader(io.StringIO(post(client, "/browse/export", **selection).text)))
    assert [row["path"] for row in rows] == ["class-00/11.jpg", "class-01/0.jpg"] and rows[0]["tags"] == "a|b"
    paths = post(client, "/browse/export", **selection, format="list")
    assert paths.text == "class-00/11.jpg\nclass-01/0.jpg\n"
    assert post(client, "/browse/export", **selection | {"ranges": [[90, 99]]}).status_code == 422


def test_files_move_within_the_collection_and_back(own: Any) -> None:
    folder, client = own
    post(client, "/browse/tags", **selected(client, [0, 2]), add=["beach"])
    before = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
    for wrong in ("", "..", "../out", "a/../../b", "/", ".hidden"):
        answer = post(client, "/browse/move", **selected(client, [0, 1]), folder=wrong)
        assert answer.status_code == 422, wrong
    (folder / "link").symlink_to(folder.parent)
    assert post(client, "/browse/move", **selected(client, [0, 1]), folder="link/out").status_code == 422
    (folder / "link").unlink()
    moved = post(client, "/browse/move", **selected(client, [0, 1], [12, 13]), folder="2024/best of").json()
    assert moved["files"] == 2 and moved["left"] == [] and schemas.Batch.model_validate(moved)
    assert {path.name for path in (folder / "2024" / "best of").iterdir()} == {"0.jpg", "0 (2).jpg"}, "and no journal"
    wait_for_update(client)
    view = client.get(f"{API}/browse", params={"order": "folder"}).json()
    assert view["sections"][0] == {"name": "2024/best of", "count": 2}
    assert post(client, "/browse/export", **selected(client, [0, 9], f=("tags:beach",)), format="list").text == (
        "2024/best of/0.jpg\nclass-00/1.jpg\n"
    )
    schemas.ANSWERS["GET /duplicates/history"].model_validate(client.get(f"{API}/duplicates/history").json())
    undone = post(client, f"/duplicates/history/{moved['id']}/undo").json()
    assert schemas.ANSWERS["POST /duplicates/history/{name}/undo"].model_validate(undone).moved == 2
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == before
    wait_for_update(client)


def wait_for_update(client: Any) -> None:
    deadline = time.monotonic() + 60
    while client.get(f"{API}/state").json()["job"] and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_key_that_can_only_read_exports_and_no_more(made: Any, runs: Path, home: Path) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.auth import KeyStore

    keys = KeyStore(required=True)
    service = build(made[1], runs, keys=keys)
    headers = {"Authorization": f"Bearer {keys.create('reader', 'read')[1]}"}
    client = TestClient(create_app(service), headers=headers, raise_server_exceptions=False)
    selection = selected(client, [0, 1])
    assert post(client, "/browse/export", **selection).status_code == 200
    for path, body in (("/browse/tags", {"add": ["x"]}), ("/browse/move", {"folder": "x"})):
        assert post(client, path, **selection, **body).status_code == 403
    service.close()
