"""The map over HTTP."""

from __future__ import annotations

import io
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lookalike.searching import Index, image_map
from lookalike.service import create_app
from lookalike.service.http_errors import Problem
from lookalike.service.map_data import points_inside
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service
from tests.service.conftest import error_message

API = "/api/v1"


@pytest.fixture
def ready(client: Any) -> Any:
    """The facts of a drawn map."""
    for _ in range(600):
        facts = client.get(f"{API}/map").json()
        if facts["state"] == "ready":
            return facts
        time.sleep(0.05)
    raise AssertionError(facts)


def columns(body: bytes) -> np.ndarray:
    kind = [("x", "<u2"), ("y", "<u2"), ("color", "u1"), ("flags", "u1"), ("label", "<u2")]
    return np.frombuffer(body, np.dtype(kind), offset=64)


def test_the_map_is_drawn_when_first_requested(client: Any, ready: Any) -> None:
    assert ready["n"] == 61 and len(ready["labels"]) == 5 and ready["method"] == "t-SNE"
    answer = client.get(f"{API}/map/{ready['gen']}.bin")
    magic, version, head, n, gen = struct.unpack_from("<4sHHII", answer.content)
    assert (magic, version, head, n, gen) == (b"LKMP", 1, 64, 61, ready["gen"])
    assert "immutable" in answer.headers["cache-control"]
    rows = columns(answer.content)
    assert len(rows) == 61 and (np.bincount(rows["label"]) == [13, 12, 12, 12, 12]).all()
    assert (rows["color"] == rows["label"]).all()
    assert rows["x"].max() > 40_000 and rows["x"].min() < 25_000, "the map is filled"


def test_the_map_that_is_shown_now(client: Any, ready: Any, made: Any, tmp_path: Path, home: Path) -> None:
    now = client.get(f"{API}/map/now.bin")
    assert now.content == client.get(f"{API}/map/{ready['gen']}.bin").content
    assert now.headers["cache-control"] == "no-cache"
    again = client.get(f"{API}/map/now.bin", headers={"If-None-Match": now.headers["etag"]})
    assert again.status_code == 304 and not again.content
    shutil.copytree(made[1], tmp_path / "index", ignore=shutil.ignore_patterns(image_map.FILE))
    service = Service(Index.open(tmp_path / "index"), [])
    none = TestClient(create_app(service)).get(f"{API}/map/now.bin")
    assert none.status_code == 204 and none.headers["cache-control"] == "no-store"
    service.close()


def test_the_first_answer_finds_the_map_read(
    made: Any, tmp_path: Path, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made[1], tmp_path / "index")
    with Index.open(tmp_path / "index") as index:
        image_map.draw_map(index, progress=False)
        warmed: list[str] = []
        for damaged in (False, True):
            if damaged:
                (index.folder / image_map.FILE).write_bytes(b"no map")
            live = OpenIndex(index, 0)
            monkeypatch.setattr(live.encoder, "warm", lambda: warmed.append("model"))
            live.warm()
            assert (live._map is not None and "records" in vars(live._map)) != damaged
            live.encoder.close()
    assert warmed == ["model", "model"], "a damaged map keeps nothing else from answering"
    assert not caplog.records, "it is drawn again"


def test_points_masks_and_places_agree(client: Any, ready: Any) -> None:
    base = f"{API}/map/{ready['gen']}"
    rows = columns(client.get(f"{base}.bin").content)
    expected = ready["labels"][2]
    bits = client.get(f"{base}/mask", params={"f": f"label:{expected}"}).content
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:61].astype(bool)
    assert (mask == (rows["label"] == 2)).all() and mask.sum() == 12
    i = int(np.flatnonzero(mask)[0])
    card = client.get(f"{base}/point/{i}").json()
    assert card["columns"]["label"] == expected
    assert client.get(f"{base}/points", params={"i": [i, 0]}).json()["points"][0]["id"] == card["id"]
    where = client.get(f"{base}/locate", params={"id": card["id"]}).json()["points"][0]
    assert where["i"] == i and where["x"] == pytest.approx(rows["x"][i] / 65535, abs=1e-6)
    codes = np.frombuffer(client.get(f"{base}/codes/label.bin").content, "<u2")
    assert (codes == rows["label"]).all() and client.get(f"{base}/codes/label").json()["names"] == ready["labels"]


def test_tiles_show_images(client: Any, ready: Any) -> None:
    from PIL import Image

    tile = client.get(f"{API}/map/{ready['gen']}/tile/0/0/0.jpg")
    with Image.open(io.BytesIO(tile.content)) as image:
        assert image.size == (512, 512)
        cells = np.asarray(image).reshape(8, 64, 8, 64, 3)[:, 4:-4, :, 4:-4]  # JPEG smears the edges
        pixels = cells.std(axis=(1, 3)).max(axis=-1)
    rows = columns(client.get(f"{API}/map/{ready['gen']}.bin").content)
    taken = {(int(x) * 8 // 65536, int(y) * 8 // 65536) for x, y in zip(rows["x"], rows["y"], strict=True)}
    assert (pixels > 3).sum() == len(taken)
    assert client.get(f"{API}/map/{ready['gen']}/tile/1/2/0.jpg").status_code == 404


def test_a_tile_with_a_hole_is_not_stored(
    client: Any, ready: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{API}/map/{ready['gen']}/tile/0/0/0.jpg"
    whole = client.get(address)
    assert "immutable" in whole.headers["cache-control"]
    get, calls = service.live.thumbnails.get, []

    def busy(content: str, side: int) -> bytes:
        calls.append(content)
        if len(calls) == 1:
            raise Problem(503, "Busy with large images.", retry_after=2)
        return bytes(get(content, side))

    monkeypatch.setattr(service.live.thumbnails, "get", busy)
    holed = client.get(address)
    assert holed.status_code == 200 and holed.headers["cache-control"] == "no-store"
    again = client.get(address)
    assert "immutable" in again.headers["cache-control"] and again.content == whole.content != holed.content


def test_a_part_of_the_map_is_a_filter(client: Any, ready: Any) -> None:
    rows = columns(client.get(f"{API}/map/{ready['gen']}.bin").content)
    x, y = rows["x"] / 65535 * 4096, rows["y"] / 65535 * 4096
    area = "".join(f"{v:03x}" for v in (0, 0, 2048, 0, 2048, 4095, 0, 4095))
    answer = client.get(f"{API}/items", params={"f": f"area:{ready['gen']}.{area}", "sample": 100}).json()
    inside = (x < 2048) & (y < 4095)
    assert 0 < len(answer["items"]) <= inside.sum() < 61
    like = answer["items"][0]["id"]
    hits = client.get(f"{API}/search", params={"like": like, "f": f"area:{ready['gen']}.{area}"}).json()
    assert hits["images"] == inside.sum() and hits["filters"] == "chosen on the map"
    for bad, status in ((f"{ready['gen']}.zzz", 422), (f"{ready['gen']}.000", 422), ("77.000000fff000fffff", 410)):
        answer = client.get(f"{API}/items", params={"f": f"area:{bad}"})
        assert answer.status_code == status and error_message(answer)


def test_a_part_has_few_corners(client: Any, ready: Any) -> None:
    def ask(*corners: int) -> Any:
        areas = [f"area:{ready['gen']}." + "000000fff000" * (count // 2) for count in corners]
        return client.get(f"{API}/items", params={"f": areas})

    assert ask(256).status_code == ask(128, 128).status_code == 200
    for many in ((260,), (200, 200)):
        assert ask(*many).status_code == 422 and "256 corners" in error_message(ask(*many))


def test_the_number_is_of_one_index_and_one_state_of_it(made: Any, tmp_path: Path, home: Path) -> None:
    """Browsers keep what they got under it for a year, also from another index on the same port."""
    numbers = []
    for place in ("a", "b"):
        shutil.copytree(made[1], tmp_path / place, ignore=shutil.ignore_patterns(image_map.FILE))
        for writes in (0, 1):
            with Index.open(tmp_path / place) as index:
                index.generation.writes += writes
                image_map.draw_map(index, progress=False)
                live = OpenIndex(index, 0)
                numbers.append(live.map_data.number)
                with Index.open(tmp_path / place) as again:
                    again.generation.writes += writes
                    assert OpenIndex(again, 0).map_data.number == numbers[-1], "the same after a restart"
                live.encoder.close()
    assert len(set(numbers)) == 4 and all(0 < number < 2**31 for number in numbers)


def test_what_is_not_there(client: Any, ready: Any) -> None:
    gen = ready["gen"]
    assert client.get(f"{API}/map/{gen + 5}.bin").status_code == 410
    assert client.get(f"{API}/map/{gen}/point/61").status_code == 404
    assert client.get(f"{API}/map/{gen}/codes/nothing").status_code == 400


def test_drawing_again_keeps_the_shape(client: Any, ready: Any) -> None:
    before = columns(client.get(f"{API}/map/{ready['gen']}.bin").content)
    assert client.post(f"{API}/map/draw", headers={"X-Lookalike": "1"}).status_code == 202
    for _ in range(600):
        facts = client.get(f"{API}/map").json()
        if facts["gen"] != ready["gen"]:
            break
        time.sleep(0.05)
    assert facts["gen"] != ready["gen"] and facts["previous"] == ready["gen"] and facts["n"] == 61
    after = columns(client.get(f"{API}/map/{facts['gen']}.bin").content)
    assert sorted(before["label"]) == sorted(after["label"])


def test_inside_a_polygon() -> None:
    points = np.random.default_rng(0).random((500, 2)) * 10
    corners = np.array([[2, 2], [8, 2], [8, 8], [5, 4], [2, 8]], float)
    edge = [8 - (x - 2) * 4 / 3 if x < 5 else 4 + (x - 5) * 4 / 3 for x, _ in points]
    expected = [2 < x < 8 and 2 < y < limit for (x, y), limit in zip(points, edge, strict=True)]
    np.testing.assert_array_equal(points_inside(points, corners), expected)
