"""The whole collection over the API: duplicates to go through, runs with their curves, facets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lookalike.searching import Index, index
from tests.searching import fake
from tests.searching.test_find_duplicates import scene
from tests.service.conftest import error_message
from tests.service.test_open_index import wait

API = "/api/v1"
OURS = {"X-Lookalike": "1"}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """60 images of 5 classes, one there three times, one once more with other compression."""
    folder = tmp_path / "photos"
    for label in range(5):
        (folder / f"class-{label:02d}").mkdir(parents=True)
        for number in range(12):
            scene(100 * label + number, 160, 120).save(folder / f"class-{label:02d}" / f"{number}.jpg", quality=90)
    shutil.copy(folder / "class-01" / "3.jpg", folder / "class-01" / "copy.jpg")
    shutil.copy(folder / "class-01" / "3.jpg", folder / "class-02" / "copy.jpg")
    Image.open(folder / "class-03" / "5.jpg").save(folder / "class-03" / "again.png")
    return folder


@pytest.fixture
def service(images: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from lookalike.service.state import Service

    fake.install(monkeypatch)
    fake.FakeEmbedder().save_pretrained(tmp_path / "model")
    index(folder=images, model=tmp_path / "model", index=tmp_path / "index", progress=False)
    opened = Service(Index.open(tmp_path / "index"), [tmp_path / "runs"])
    yield opened
    opened.close()


@pytest.fixture
def client(service: Any) -> Any:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app

    return TestClient(create_app(service), base_url="http://127.0.0.1", raise_server_exceptions=False)


def post(client: Any, address: str, **body: Any) -> Any:
    return client.post(f"{API}{address}", json=body, headers=OURS)


def test_of_overlapping_groups_at_least_one_image_stays(client: Any, service: Any, images: Path) -> None:
    """The last copy of a group may be in a second one: it is not moved as a copy of something else."""
    wait(client, post(client, "/duplicates/find").json())
    review = service.duplicates
    (identical,) = [group for group in review.duplicates.groups if group.kind == "identical"]
    (same,) = [group for group in review.duplicates.groups if group.kind == "same"]
    kept = identical.files[identical.keep]
    same.files.append(kept)
    away = [{"id": identical.id, "move": [image.id for image in identical.moves]}, {"id": same.id, "move": [kept.id]}]
    answer = post(client, "/duplicates/move", groups=away)
    assert answer.status_code == 422 and "must stay" in error_message(answer)
    assert len(list(images.rglob("*.jpg"))) == 62


def test_going_through_duplicates(client: Any, service: Any, images: Path) -> None:
    before = client.get(f"{API}/duplicates").json()
    assert before["state"] == "none" and before["can_move"] and before["folder"].startswith("_lookalike_moved/photos/")
    assert client.get(f"{API}/duplicates/groups").status_code == 409
    done = wait(client, post(client, "/duplicates/find").json())
    assert done["state"] == "finished", done["message"]
    document = client.get(f"{API}/duplicates").json()
    assert document["state"] == "ready" and document["counts"]["identical"] == {
        "groups": 1, "files": 3, "bytes": 2 * (images / "class-01" / "3.jpg").stat().st_size,
    }  # fmt: skip
    page = client.get(f"{API}/duplicates/groups", params={"kind": "identical"}).json()
    group = page["groups"][0]
    assert page["total"] == 1 and len(group["files"]) == 3 and sum(file["keep"] for file in group["files"]) == 1
    assert {"thumb", "ratio", "width", "height", "bytes", "path", "date", "has_location"} <= set(group["files"][0])
    prefer = client.get(f"{API}/duplicates/groups", params={"kind": "identical", "prefer": "class-02"}).json()
    assert prefer["groups"][0]["keep"].endswith("class-02/copy.jpg") and "class-02" in prefer["groups"][0]["reason"]
    same = client.get(f"{API}/duplicates/groups", params={"kind": "same"}).json()["groups"]
    assert {file["path"] for file in same[0]["files"]} == {"class-03/5.jpg", "class-03/again.png"}

    rows = [file["id"] for file in group["files"]]
    everything = post(client, "/duplicates/move", groups=[{"id": group["id"], "move": rows}])
    assert everything.status_code == 422 and "At least one" in error_message(everything)
    twice = post(client, "/duplicates/move", groups=[{"id": group["id"], "move": [row]} for row in rows])
    assert twice.status_code == 422 and "must stay" in error_message(twice), "a group that is named twice"
    strange = post(client, "/duplicates/move", groups=[{"id": group["id"], "move": ["photos/class-00/0.jpg"]}])
    assert strange.status_code == 422
    assert post(client, "/duplicates/move", groups=[{"id": "nothing", "move": ["x"]}]).status_code == 404
    assert post(client, "/duplicates/move").status_code == 422 and len(list(images.rglob("*.jpg"))) == 62

    many = post(client, "/duplicates/move", kind="identical", exclude=["x" * 101])
    assert many.status_code == 422 and "exclude" in error_message(many)
    moved = post(client, "/duplicates/move", kind="identical").json()
    assert moved["files"] == 2 and moved["state"] == "moved" and str(images.parent) not in json.dumps(moved)
    assert len(list(images.rglob("*.jpg"))) == 60
    assert client.get(f"{API}/info").json()["index"]["images"] == 61, "the index forgets them at once"
    assert client.get(f"{API}/duplicates").json()["counts"]["identical"]["groups"] == 0
    history = client.get(f"{API}/duplicates/history").json()["batches"]
    assert [batch["id"] for batch in history] == [moved["id"]]
    back = post(client, f"/duplicates/history/{moved['id']}/undo").json()
    assert back == {"moved": 2, "left": []} and len(list(images.rglob("*.jpg"))) == 62
    wait(client, service.jobs.list()[0].to_json())
    assert client.get(f"{API}/info").json()["index"]["images"] == 63
    assert post(client, "/duplicates/history/none/undo").status_code == 404

    name = same[0]["id"]
    assert post(client, "/duplicates/dismiss", group=name).json() == {"group": name, "dismissed": True}
    assert client.get(f"{API}/duplicates/groups", params={"kind": "same"}).json()["total"] == 0
    assert post(client, "/duplicates/dismiss", group=name, undo=True).status_code == 200
    assert client.get(f"{API}/duplicates/groups", params={"kind": "same"}).json()["total"] == 1


def test_a_thousand_groups_with_long_names_are_moved_at_once(client: Any, images: Path) -> None:
    """Such a request has more bytes than other documents may have; one that is far too large is refused."""
    wait(client, post(client, "/duplicates/find").json())
    (group,) = client.get(f"{API}/duplicates/groups", params={"kind": "identical"}).json()["groups"]
    body = json.dumps({"groups": [{"id": group["id"], "move": [file["id"] for file in group["files"][1:]]}]})
    headers = OURS | {"Content-Type": "application/json"}

    def request(size: int) -> Any:
        return client.post(f"{API}/duplicates/move", content=body.ljust(size), headers=headers)

    refused = request(21_000_000)
    assert refused.status_code == 413 and "the limit is" in error_message(refused)
    assert len(list(images.rglob("*.jpg"))) == 62
    assert request(4_000_000).json()["files"] == 2 and len(list(images.rglob("*.jpg"))) == 60


def test_a_folder_that_cannot_be_written_to(client: Any, service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    wait(client, post(client, "/duplicates/find").json())
    monkeypatch.setattr(os, "access", lambda *_: False)
    document = client.get(f"{API}/duplicates").json()
    assert not document["can_move"] and document["reason"].endswith("duplicates are listed, moving is off.")
    refused = post(client, "/duplicates/move", kind="identical")
    assert refused.status_code == 409 and "moving is off" in error_message(refused)


def test_runs_and_their_curves(client: Any, tmp_path: Path) -> None:
    from lookalike.core.run import Run

    assert client.get(f"{API}/runs").json() == {"runs": []}
    run = Run.create("supcon", {"steps": 200, "metric": "recall@1"}, path=tmp_path / "runs" / "one")
    for step in range(0, 101, 10):
        run.log(step=step, loss=1 / (1 + step))
        run.log(step=step, **{"validation/recall@1": step / 200})
    row = client.get(f"{API}/runs").json()["runs"][0]
    assert row["state"] == "stopped" and row["step"] == 100 and row["steps"] == 200 and "--resume one" in row["resume"]
    assert row["best"] == 0.5 and row["best_step"] == 100 and len(row["curve"]) == 11
    with run.locked():
        answer = client.get(f"{API}/runs/one")
    assert answer.json()["state"] == "running"
    series = {line["name"]: line for line in answer.json()["series"]}
    assert series["loss"]["x"] == list(range(0, 101, 10)) and series["validation/recall@1"]["y"][-1] == 0.5
    measured = {"starting model": {"recall@1": {"value": 0.4}}}
    run.write_result(finished=True, verdict="Training helped.", best_step=90, measured=measured)
    done = client.get(f"{API}/runs")
    assert done.json()["runs"][0]["state"] == "finished" and done.json()["runs"][0]["frozen"] == {"value": 0.4}
    assert done.json()["runs"][0]["best_step"] == 90 and done.json()["runs"][0]["best"] == 0.45
    assert done.json()["runs"][0]["measured"] == [{"name": "starting model", "value": 0.4}]
    assert client.get(f"{API}/runs", headers={"If-None-Match": done.headers["etag"]}).status_code == 304
    assert client.get(f"{API}/runs/none").status_code == 404
    (tmp_path / "runs" / "one" / "config.yaml").write_text("a: [")
    assert client.get(f"{API}/runs").json()["runs"][0]["state"] == "damaged"


def test_facets_follow_the_other_filters(client: Any) -> None:
    document = client.get(f"{API}/facets", params={"f": ["label:class-01"]}).json()["facets"]
    assert [facet["column"] for facet in document] == ["label"]
    counts = {value["value"]: value["count"] for value in document[0]["values"]}
    assert counts["class-01"] == 13 and counts["class-03"] == 13, "a column's own filter does not hide its values"


def test_facets_follow_the_question(client: Any) -> None:
    request = {"like": "photos/class-01/0.jpg", "limit": 1000}
    plain = client.get(f"{API}/facets").json()
    assert plain["nearest"] is None and "near" not in plain["facets"][0]["values"][0]
    document = client.get(f"{API}/facets", params=request).json()
    values = document["facets"][0]["values"]
    assert document["nearest"] == sum(value["near"] for value in values) <= document["images"]
    assert [v["near"] for v in values] == sorted((v["near"] for v in values), reverse=True)
    hits = client.get(f"{API}/search", params={"like": request["like"], "k": 600}).json()["hits"]
    labels = [hit["columns"]["label"] for hit in hits]
    assert {v["value"]: v["near"] for v in values} == {v["value"]: labels.count(v["value"]) for v in values}
    held = client.get(f"{API}/facets", params=request | {"f": "label:class-04"}).json()
    assert {v["value"]: v["near"] for v in held["facets"][0]["values"]} == {v["value"]: v["near"] for v in values}
    assert held["nearest"] == labels.count("class-04"), "its own filter counts for all but the column itself"
    assert client.get(f"{API}/facets", params={"like": "photos/none.jpg"}).status_code == 404


def test_values_beyond_the_first_can_be_searched(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`class-04` is the least frequent with 12 images, the last by name."""

    def label(address: str, **params: Any) -> tuple[int, list[str]]:
        document = client.get(f"{API}/{address}", params=params).json()
        facet = document["facets"][0] if "facets" in document else document
        return facet["total"], [value["value"] for value in facet["values"]]

    assert label("facets", limit=2) == (5, ["class-01", "class-02"])
    assert label("facets", limit=2, f="label:class-04") == (5, ["class-01", "class-02", "class-04"])
    like = "photos/class-04/0.jpg"
    near = label("facets", limit=5, like=like)[1][0]
    assert label("facets", limit=1, like=like) == (5, [near]), "those of the nearest come first, however rare"
    assert label("facets/label", limit=2, find="CLASS_04".replace("_", "-")) == (1, ["class-04"])
    assert label("facets/label", limit=2, find="class") == (5, ["class-01", "class-02"])
    assert label("facets/label", find="nobody", f="label:class-04") == (0, [])

    def folders(**params: Any) -> tuple[int, list[str]]:
        document = client.get(f"{API}/folders", params=params).json()
        return document["total"], [row["folder"] for row in document["folders"]]

    assert folders(limit=2) == (5, ["class-00/", "class-01/"]) and folders(find="-04") == (1, ["class-04/"])
    assert folders(limit=5, f="label:class-04") == (1, ["class-04/"])
    monkeypatch.setattr("lookalike.service.api.facets.MAX_FOLDERS", 3)
    assert folders()[0] == 5 and len(folders()[1]) == 3
    assert client.get(f"{API}/facets", params={"limit": 9}).json()["folders_total"] == 5


def test_folders_and_what_is_in_the_middle_of_a_value(client: Any) -> None:
    def folders(**params: Any) -> dict[str, int]:
        rows = client.get(f"{API}/facets", params=params).json()["folders"]
        return {row["folder"]: row["count"] for row in rows}

    all_ = folders()
    assert set(all_) == {f"class-0{n}/" for n in range(len(all_))} and all_["class-01/"] == 13
    assert folders(f="label:class-01") == {"class-01/": 13} and folders(under="class-01/") == {}
    middle = client.get(f"{API}/facets/label/typical", params={"value": "class-01"}).json()["items"]
    assert len(middle) == 4 and {item["columns"]["label"] for item in middle} == {"class-01"}
    assert client.get(f"{API}/facets/label/typical", params={"value": "none"}).status_code == 404


def test_a_part_of_an_image_is_a_query(client: Any, images: Path) -> None:
    def ask(**params: Any) -> Any:
        return client.get(f"{API}/search", params={"like": "photos/class-00/0.jpg", "k": 3, **params})

    assert ask(box="0,0,1,1").status_code == 200
    small = ask(box="0,0,0.1,0.1")
    assert (
        small.status_code == 422
        and error_message(small) == "This part is too small to search by; it needs at least 32 pixels."
    )
    for wrong in ("1,2", "a,b,c,d", "0.5,0,0.2,1", "0,0,2,1", "nan,0,1,1"):
        assert ask(box=wrong).status_code == 422
    data = (images / "class-00" / "0.jpg").read_bytes()
    files = {"image": ("x.jpg", data, "image/jpeg")}
    whole = client.post(f"{API}/search", files=files, params={"k": 3}).json()
    part = client.post(f"{API}/search", files=files, params={"k": 3, "box": "0,0,0.6,0.8"}).json()
    assert whole["hits"][0]["identical"] and not part["hits"][0]["identical"]
    again = client.get(f"{API}/search", params={"q": whole["query"]["id"], "box": "0,0,0.6,0.8", "k": 3}).json()
    assert [h["id"] for h in again["hits"]] == [h["id"] for h in part["hits"]]
    unstored = client.post(f"{API}/search", files=files, params={"keep": False}).json()
    assert unstored["query"]["id"] is None


def test_words_need_a_model_that_reads(client: Any) -> None:
    answer = client.get(f"{API}/search", params={"text": "a gull"})
    assert answer.status_code == 400 and "does not support text" in error_message(answer)
    assert client.get(f"{API}/info").json()["text"] is False


def test_columns_with_a_colon_or_called_area_can_be_filtered_by() -> None:
    from functools import partial
    from types import SimpleNamespace

    from lookalike.searching.filters import parse
    from lookalike.service.open_index import OpenIndex
    from lookalike.store import Condition

    live = OpenIndex.__new__(OpenIndex)
    columns = ["a", "a:b", "area"]
    where = partial(parse, columns=columns)
    live.index = SimpleNamespace(columns=columns, where=where)  # type: ignore[assignment]
    expected_conditions = [Condition("area", ("12.5",)), Condition("a:b", ("5*",)), Condition("a", ("x",), negate=True)]
    assert live.where(["area:12.5", r"a:b:5\*", "a!:x"]) == expected_conditions
    drawn = "area:3.000000fff000ffffff"
    assert live._is_area(drawn) and not live._is_area("area:12.5")
    live.index.columns = ["a"]
    assert live._is_area(drawn) and live._is_area("area:12.5"), "which is no part of the map, and told so"
