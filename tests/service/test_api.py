"""The API: questions and answers, images, reports, and what it tells about itself."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lookalike.core.database import user_rows
from tests import helpers
from tests.service.conftest import error_message

API = "/api/v1"


def upload(client: Any, data: bytes, name: str = "query.jpg", **options: Any) -> Any:
    return client.post(f"{API}/search", files={"image": (name, data, "image/jpeg")}, **options)


def first_id(client: Any) -> str:
    return str(client.get(f"{API}/items?sample=1").json()["items"][0]["id"])


def test_info_tells_what_is_served(client: Any) -> None:
    info = client.get(f"{API}/info").json()
    assert info["index"]["images"] == 61 and info["index"]["columns"] == ["label", "path"]
    assert info["model"]["name"] == "first" and info["scores"]["calibrated"] in (True, False)
    assert info["limits"]["upload"] == 20_000_000
    assert client.get("/health").json() == {"status": "ok", "images": 61}


def test_an_upload_finds_its_kind_and_can_be_queried_again(client: Any, made: Any) -> None:
    data = (made[0] / "class-01" / "0.jpg").read_bytes()
    answer = upload(client, data, params={"k": 5}).json()
    assert len(answer["hits"]) == 5 and answer["hits"][0]["identical"]
    assert answer["hits"][0]["columns"]["path"] == "class-01/0.jpg"
    assert answer["images"] == 61 and answer["verdict"]["message"]
    assert "index" not in answer, "no path of this machine leaves it"
    again = client.get(f"{API}/search", params={"q": answer["query"]["id"], "k": 5}).json()
    assert [h["id"] for h in again["hits"]] == [h["id"] for h in answer["hits"]]
    image = client.get(f"/query/{answer['query']['id']}.jpg")
    assert image.headers["content-type"] == "image/jpeg" and Image.open(io.BytesIO(image.content)).size == (64, 48)


def test_a_stored_query_can_be_deleted(client: Any, made: Any, home: Path) -> None:
    name = upload(client, (made[0] / "class-01" / "0.jpg").read_bytes()).json()["query"]["id"]
    assert user_rows("SELECT id FROM upload", ()) == [(name,)]
    assert client.delete(f"{API}/queries/{name}").status_code == 403
    assert client.delete(f"{API}/queries/{name}", headers={"X-Lookalike": "1"}).status_code == 200
    assert user_rows("SELECT id FROM upload", ()) == []
    gone = client.get(f"{API}/search", params={"q": name})
    assert gone.status_code == 410 and "and has been deleted. Upload it again" in error_message(gone)
    assert client.get(f"/query/{name}.jpg").status_code == 404


def test_queries_are_not_stored_when_disabled(made: Any, runs: Path, home: Path) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from tests.service.conftest import build

    service = build(made[1], runs, keep_days=0)
    client = TestClient(create_app(service))
    assert upload(client, (made[0] / "class-01" / "0.jpg").read_bytes()).json()["query"]["id"] is None
    assert user_rows("SELECT id FROM upload", ()) == []
    service.close()


def test_old_queries_go(client: Any, service: Any, made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = upload(client, (made[0] / "class-01" / "0.jpg").read_bytes()).json()["query"]["id"]
    service.live.queries.days = 1e-9
    assert client.get(f"{API}/search", params={"q": name}).status_code == 410
    service.live.queries.days = 7
    monkeypatch.setattr("lookalike.service.uploads.MAX_SAVED", 3)
    for number in range(5):
        upload(client, (made[0] / "class-02" / f"{number}.jpg").read_bytes())
    assert len(user_rows("SELECT id FROM upload", ())) == 3


def test_more_like_an_image_of_the_index(client: Any) -> None:
    name = first_id(client)
    answer = client.get(f"{API}/search", params={"like": name, "k": 61}).json()
    assert answer["query"]["id"] == name and name not in [hit["id"] for hit in answer["hits"]]
    label = answer["query"]["columns"]["label"]
    assert sum(hit["columns"]["label"] == label for hit in answer["hits"][:6]) >= 4
    other = answer["hits"][-1]["id"]
    both = client.get(f"{API}/search", params={"like": name, "more": [other], "k": 20}).json()
    assert other not in [hit["id"] for hit in both["hits"]] and both["more"][0]["id"] == other
    without = client.get(f"{API}/search", params={"like": name, "less": [answer["hits"][0]["id"]], "k": 20}).json()
    assert without["less"][0]["id"] == answer["hits"][0]["id"] not in [hit["id"] for hit in without["hits"]]
    only = client.get(f"{API}/search", params={"less": [name]})
    assert only.status_code == 400 and error_message(only) == "Add an image to search for first."


def test_filters_and_facets(client: Any) -> None:
    name = first_id(client)
    request = {"like": name, "f": ["label:class-02", "label:class-03"], "k": 61}
    answer = client.get(f"{API}/search", params=request).json()
    assert {hit["columns"]["label"] for hit in answer["hits"]} <= {"class-02", "class-03"}
    assert answer["filters"] == "label: class-02 or class-03"
    values = client.get(f"{API}/facets/label", params={"f": ["label:class-02", "path:class-01/*"]}).json()["values"]
    expected = [{"value": "class-01", "count": 13}, {"value": "class-02", "count": 0}]
    assert values == expected, "a column's own filter does not hide its other values, and can be taken back"
    wrong = client.get(f"{API}/search", params={"like": name, "f": "lable=x"})
    assert wrong.status_code == 400 and "did you mean `label`" in error_message(wrong)
    assert client.get(f"{API}/facets/nothing").status_code == 400


def test_items_and_thumbnails(client: Any, home: Path) -> None:
    items = client.get(f"{API}/items?sample=24").json()["items"]
    assert len(items) == 24 == len({item["thumb"] for item in items})
    item = client.get(f"{API}/items/{items[0]['id']}").json()
    assert item == items[0] and item["ratio"] == pytest.approx(64 / 48, abs=0.01) and item["color"].startswith("#")
    first = client.get(f"/thumb/{item['thumb']}/256.jpg")
    assert first.headers["content-type"] == "image/jpeg" and "immutable" in first.headers["cache-control"]
    assert client.get(f"/thumb/{item['thumb']}/256.jpg").content == first.content
    cached = client.get(f"/thumb/{item['thumb']}/256.jpg", headers={"If-None-Match": first.headers["etag"]})
    assert cached.status_code == 304
    assert len(list((home / "cache" / "thumbs").iterdir())) == 1
    for address in (f"/thumb/{item['thumb']}/257.jpg", f"/thumb/{'0' * 32}/256.jpg", "/thumb/..%2f..%2fetc/256.jpg"):
        assert client.get(address).status_code == 404
    missing = client.get(f"{API}/items/nobody.jpg")
    assert missing.status_code == 404 and "no image `nobody.jpg`" in error_message(missing)


def test_the_thumbnail_cache_is_bounded(client: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.core import artifacts

    monkeypatch.setitem(artifacts.KIND_LIMITS, "thumbs", 6_000)
    for item in client.get(f"{API}/items?sample=40").json()["items"]:
        assert client.get(f"/thumb/{item['thumb']}/96.jpg").status_code == 200
    assert 0 < sum(p.stat().st_size for p in (home / "cache" / "thumbs").iterdir()) <= 6_000


def test_thumbnails_carry_no_metadata(tmp_path: Path, model: Path, home: Path) -> None:
    from lookalike.searching import Index, index
    from lookalike.service.image_files import Thumbnails

    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(3):
        image = Image.fromarray(helpers.make_image(number))
        exif = image.getexif()
        exif[0x010F], exif[0x9286] = "SecretCamera", "at home"
        exif.get_ifd(0x8825)[1] = "N"
        image.save(folder / f"{number}.jpg", exif=exif, comment=b"SecretComment")
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    with Index.open(tmp_path / "index") as opened:
        for part in opened.store.scan():
            for record in part:
                jpeg = Thumbnails(opened).get(record.payload["content_id"], 256)
                assert b"Secret" not in jpeg and b"Exif" not in jpeg and b"http" not in jpeg


def test_reports(client: Any) -> None:
    rows = client.get(f"{API}/reports").json()["reports"]
    assert [row["name"] for row in rows] == ["second", "first"]
    assert rows[0]["verdict"] == "Training raised recall@1." and rows[0]["method"] == "supcon"
    page = client.get("/reports/second")
    assert "Training raised" in page.text
    policy = page.headers["content-security-policy"]
    assert policy.startswith("sandbox allow-scripts;") and "default-src 'none'" in policy
    for name in ("secret", "unfinished", "..", "..%2f..%2fetc%2fpasswd", "nothing"):
        assert client.get(f"/reports/{name}").status_code in (404, 200 if name == ".." else 404)


def test_a_report_is_a_file_of_its_run(client: Any, runs: Path, tmp_path: Path) -> None:
    """Neither what a link leads to nor what a pipe may say some day."""
    (tmp_path / "secret").write_text("secret")
    path, before = runs / "first" / "report.html", (runs / "first" / "report.html").read_bytes()
    result = runs / "first" / "result.json"
    try:
        path.unlink()
        path.symlink_to(tmp_path / "secret")
        assert client.get("/reports/first").status_code == 404
        path.unlink()
        os.mkfifo(path)
        os.mkfifo(result)
        assert client.get("/reports/first").status_code == 404
        assert {r["name"]: r["state"] for r in client.get(f"{API}/runs").json()["runs"]}["first"] == "damaged"
    finally:
        path.unlink()
        path.write_bytes(before)
        result.unlink(missing_ok=True)


def test_metrics_count_by_route(client: Any) -> None:
    client.get(f"{API}/info")
    client.get(f"{API}/items/{first_id(client)}")
    text = client.get("/metrics").text
    assert 'lookalike_requests_total{method="GET",route="/api/v1/info",status="200"} 1.0' in text
    assert re.search(r'lookalike_images\{index=".*"\} 61\.0', text) and "class-" not in text


def test_openapi_is_there_and_the_foreign_docs_pages_are_not(client: Any) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {f"{API}/search", f"{API}/info", f"{API}/items/{{name}}", f"{API}/facets/{{column}}"} <= set(paths)
    for address in ("/docs", "/redoc", "/nothing"):
        answer = client.get(address)
        assert answer.status_code == 404 and error_message(answer) == "There is nothing at this address."
    assert client.put(f"{API}/info", headers={"X-Lookalike": "1"}).status_code == 405
    assert "`k`" in error_message(client.get(f"{API}/search", params={"like": "x", "k": 0}))


def test_the_page_and_all_its_files_are_served(client: Any) -> None:
    from lookalike.service.app import STATIC

    before, after = (STATIC / "index.html").read_text().split("<!-- first view -->")
    early = {}
    for place in ("/", "/reports", "/map"):
        text = client.get(place).text
        assert text.startswith(before) and text.endswith(after)
        early[place] = re.findall(r'<link rel="modulepreload" href="/static/([^"]+)">', text)
        assert early[place] and all((STATIC / name).is_file() for name in early[place])
    assert early["/"] == early["/reports"] != early["/map"]
    for file in (f for f in STATIC.rglob("*") if f.is_file()):
        answer = client.get(f"/static/{file.relative_to(STATIC).as_posix()}")
        assert answer.status_code == 200 and answer.content == file.read_bytes()
        if file.suffix == ".js":
            assert "javascript" in answer.headers["content-type"]


def test_an_image_that_left_the_disk(client: Any, made: Any, service: Any, tmp_path: Path) -> None:
    service.index.root = tmp_path / "gone"
    item = client.get(f"{API}/items?sample=1").json()["items"][0]
    answer = client.get(f"/thumb/{item['thumb']}/256.jpg")
    assert answer.status_code == 404 and "cannot be opened" in error_message(answer)
    assert client.get(f"{API}/search", params={"like": item["id"]}).status_code == 200
