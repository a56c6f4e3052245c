"""Originals over HTTP: by row id, from the indexed folder only, and silent about where they were taken."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from lookalike.core.files import hash_bytes
from lookalike.data import decode
from lookalike.searching import Index, index
from lookalike.service import create_app, image_files, tasks
from lookalike.service.middleware import LOOPBACK
from lookalike.service.state import Service
from tests import helpers
from tests.data.kinds import MAKERS, make_photos, rows_of
from tests.data.scenes import heic
from tests.data.test_strip_metadata import silent
from tests.data.test_thumbnails import talkative
from tests.searching.fake import FakeEmbedder, install
from tests.service.conftest import error_message
from tests.service.test_uploads import child_peaks, flat, memory  # noqa: F401 (a fixture)

FILES = {
    "a b/upright #1?.jpg": ("JPEG", 1),
    "turned.jpg": ("JPEG", 6),
    "drawn.png": ("PNG", 1),
    "scan.tif": ("TIFF", 3),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    for name, (kind, turn) in FILES.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(talkative(kind, turn))
    (tmp_path / "secret.jpg").write_bytes(talkative("JPEG"))
    return place


def serving(folder: Path, **options: Any) -> Service:
    place = folder.parent / "index"
    index(folder=folder, model=FakeEmbedder(), index=place, progress=False)  # type: ignore[arg-type]
    return Service(Index.open(place), [], **options)


@pytest.fixture
def service(folder: Path, home: Path) -> Iterator[Service]:
    opened = serving(folder)
    yield opened
    opened.close()


def quoted(name: str) -> str:
    return f"/original/{quote(f'images/{name}')}"


@pytest.mark.parametrize("name", FILES)
def test_an_original_comes_without_metadata(name: str, service: Service, folder: Path) -> None:
    client = TestClient(create_app(service))
    before = (folder / name).read_bytes()
    answer = client.get(quoted(name))
    assert answer.status_code == 200 and b"SECRET" in before
    image = silent(answer.content)
    assert answer.headers["content-type"] == Image.MIME[image.format]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert np.abs(np.asarray(image.convert("RGB")).astype(int) - decode(before)).mean() < 3
    ending = ".png" if name in ("drawn.png", "scan.tif") else ".jpg"
    assert answer.headers["content-disposition"].startswith("inline;") and answer.headers[
        "content-disposition"
    ].endswith(ending)
    again = client.get(quoted(name), headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304 and again.content == b""
    assert (folder / name).read_bytes() == before


def test_keep_metadata_gives_the_file_as_it_is(folder: Path, home: Path) -> None:
    opened = serving(folder, keep_metadata=True)
    client = TestClient(create_app(opened))
    for name, (kind, _) in FILES.items():
        answer = client.get(quoted(name))
        assert answer.content == (folder / name).read_bytes() and answer.headers["content-type"] == Image.MIME[kind]
    assert client.get("/api/v1/info").json()["metadata"] is True
    opened.close()


def test_only_rows_of_the_index_and_only_inside_its_folder(service: Service, folder: Path) -> None:
    client = TestClient(create_app(service))
    for name in (
        "secret.jpg",
        "images/secret.jpg",
        "images/../secret.jpg",
        str(folder.parent / "secret.jpg"),
        "..%2fsecret.jpg",
    ):
        answer = client.get(f"/original/{name}")
        assert answer.status_code == 404 and error_message(answer)
    (folder / "drawn.png").unlink()
    (folder / "drawn.png").symlink_to(folder.parent / "secret.jpg")  # swapped after it was indexed
    answer = client.get(quoted("drawn.png"))
    assert answer.status_code == 404 and "is outside" in error_message(answer)
    (folder / "scan.tif").unlink()
    assert "cannot be opened" in error_message(client.get(quoted("scan.tif")))
    (folder / "turned.jpg").write_bytes(b"<script>alert(1)</script>")
    answer = client.get(quoted("turned.jpg"))
    assert answer.status_code == 415 and answer.headers["content-type"] == "application/json"


@pytest.mark.needs("pillow_heif")
def test_a_phones_image_can_be_indexed_seen_and_searched_by(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    folder = helpers.make_images(tmp_path / "images", classes=1, images=3)
    (folder / "IMG_1.HEIC").write_bytes(heic(turn=6))
    opened = serving(folder)
    client = TestClient(create_app(opened))
    files = {"image": ("IMG_1.HEIC", heic(turn=6), "application/octet-stream")}
    answer = client.post("/api/v1/search", files=files).json()
    first, query = answer["hits"][0], answer["query"]
    assert first["identical"] and first["columns"]["path"] == "IMG_1.HEIC"
    assert query["ratio"] == pytest.approx(80 / 120, 0.01), "as it is seen"
    for address in (f"/query/{query['id']}.jpg", f"/thumb/{first['thumb']}/96.jpg", quoted("IMG_1.HEIC")):
        seen = client.get(address)
        assert seen.headers["content-type"] == "image/jpeg" and silent(seen.content).height > 60
    part = client.post("/api/v1/search?box=0,0,0.5,0.5&keep=false", files=files)
    assert part.status_code == 200
    cut = client.post("/api/v1/search", files={"image": ("half.heic", heic()[:200], "image/heic")})
    assert cut.status_code == 415 and error_message(cut).startswith("half.heic cannot be read: ")
    opened.close()


def test_without_the_extra_a_phones_image_gets_what_it_needs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    data = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 40
    answer = TestClient(create_app(service)).post("/api/v1/search", files={"image": ("a.heic", data, "image/heic")})
    assert answer.status_code == 415
    assert error_message(answer) == "a.heic cannot be read: it is HEIC, which needs `pip install 'lookalike[heif]'`."


@pytest.mark.parametrize("keep_metadata", [False, True])
def test_a_file_that_became_huge_or_a_pipe_is_not_read(folder: Path, home: Path, keep_metadata: bool) -> None:
    service = serving(folder, keep_metadata=keep_metadata)
    client = TestClient(create_app(service), raise_server_exceptions=False)
    record = next(r for part in service.index.store.scan() for r in part)
    path = folder / record.payload["path"]
    with path.open("r+b") as file:
        file.truncate(6_000_000_000)
    thumb = f"/thumb/{record.payload['content_id']}/96.jpg"
    addresses = (quoted(record.payload["path"]), thumb, f"/api/v1/search?like={quote(record.id)}&box=0,0,0.9,0.9")
    with memory() as grown:
        answers = [client.get(address) for address in addresses]
    assert [answer.status_code // 100 for answer in answers] == [4, 4, 4] and grown() < 100
    assert "larger than 200 MB" in answers[0].text and str(folder) not in answers[0].text
    path.unlink()
    os.mkfifo(path)
    assert [client.get(address).status_code // 100 for address in addresses] == [4, 4, 4]
    service.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("form", "width", "height", "refused"),
    [
        ("WEBP", 4_000, 5_000, False),
        ("AVIF", 4_000, 8_000, False),
        ("JPEG2000", 3_000, 5_000, False),
        ("WEBP", 6_000, 9_000, True),
        pytest.param("AVIF", 9_000, 9_000, True, marks=pytest.mark.slow),
        pytest.param("JPEG2000", 6_000, 6_000, True, marks=pytest.mark.slow),
    ],
)
def test_large_images_of_the_index_are_decoded_in_little_memory(
    folder: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    child_peaks: Any,  # noqa: F811
    form: str,
    width: int,
    height: int,
    refused: bool,
) -> None:
    """Thumbnails, of a part of an image too, originals, and the update that a page starts."""
    install(monkeypatch)
    service = serving(folder)
    client = TestClient(create_app(service), raise_server_exceptions=False)
    record = next(r for part in service.index.store.scan() for r in part)
    path = folder / record.payload["path"]
    path.write_bytes(flat(form, width, height))
    codes = []
    with memory() as grown:
        codes.append(client.get(f"/thumb/{record.payload['content_id']}/96.jpg").status_code)
        with monkeypatch.context() as patch:
            patch.setattr(image_files, "payload_box", lambda _: [0, 0, width, height // 2])
            codes.append(client.get(f"/thumb/{record.payload['content_id']}/256.jpg").status_code)
        small = child_peaks()
        codes.append(client.get(quoted(record.payload["path"])).status_code)
        original = child_peaks()[len(small) :]
        job = service.jobs.start("index", "Updating", tasks.update, service)
        helpers.until(lambda: job.state != "running")
    assert grown() < 250, f"{grown():.0f} MB"
    assert job.state == "finished", job.message
    assert job.result and job.result["unreadable"] == refused
    assert codes[:2] == ([404, 404] if refused else [200, 200]) and codes[2] in (200, 415), codes
    small += child_peaks()[len(small) + len(original) :]
    assert len(small) >= 3 and max(small) < 500, small
    assert len(original) == 1 and original[0] < 1_300, original
    service.close()


@pytest.mark.parametrize("kind", ["parquet", "parquet-compressed", "webdataset"])
def test_thumbnails_and_originals_from_inside_tables_and_shards(kind: str, tmp_path: Path, home: Path) -> None:
    photos = make_photos(tmp_path / "photos")
    (tmp_path / "data").mkdir()
    source, _ = MAKERS[kind](photos, tmp_path / "data")
    index(folder=source, model=FakeEmbedder(), index=tmp_path / "index", progress=False)  # type: ignore[arg-type]
    service = Service(Index.open(tmp_path / "index"), [])
    app = create_app(service, hosts=LOOPBACK)
    client = TestClient(app, base_url="http://127.0.0.1:8080")
    files = {hash_bytes(file.read_bytes()): file for file, _ in rows_of(photos)}
    records = [record for part in service.index.store.scan() for record in part]
    assert len(records) == 24
    for record in records[::7]:
        file = files[record.payload["_hash"]]
        original = client.get(f"/original/{quote(record.id)}")
        assert original.status_code == 200, original.text
        assert np.array_equal(decode(original.content), decode(file.read_bytes()))
        assert client.get(f"/thumb/{record.payload['content_id']}/96.jpg").content.startswith(b"\xff\xd8")
    service.close()
