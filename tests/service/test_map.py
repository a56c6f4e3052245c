"""The map over HTTP."""

from __future__ import annotations

import io
import struct
import time
from typing import Any

import numpy as np
import pytest

from lookalike.service.plane import within
from tests.service.conftest import sentence

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
    kind = [("x", "<u2"), ("y", "<u2"), ("colour", "u1"), ("flags", "u1"), ("label", "<u2")]
    return np.frombuffer(body, np.dtype(kind), offset=64)


def test_the_map_is_drawn_when_first_asked_for(client: Any, ready: Any) -> None:
    assert ready["n"] == 61 and len(ready["labels"]) == 5 and ready["method"] == "t-SNE"
    answer = client.get(f"{API}/map/{ready['gen']}.bin")
    magic, version, head, n, gen = struct.unpack_from("<4sHHII", answer.content)
    assert (magic, version, head, n, gen) == (b"LKMP", 1, 64, 61, ready["gen"])
    assert "immutable" in answer.headers["cache-control"]
    rows = columns(answer.content)
    assert len(rows) == 61 and (np.bincount(rows["label"]) == [13, 12, 12, 12, 12]).all()
    assert (rows["colour"] == rows["label"]).all()
    assert rows["x"].max() > 40_000 and rows["x"].min() < 25_000, "the map is filled"


def test_points_masks_and_places_agree(client: Any, ready: Any) -> None:
    base = f"{API}/map/{ready['gen']}"
    rows = columns(client.get(f"{base}.bin").content)
    wanted = ready["labels"][2]
    bits = client.get(f"{base}/mask", params={"f": f"label:{wanted}"}).content
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:61].astype(bool)
    assert (mask == (rows["label"] == 2)).all() and mask.sum() == 12
    i = int(np.flatnonzero(mask)[0])
    card = client.get(f"{base}/point/{i}").json()
    assert card["columns"]["label"] == wanted
    assert client.get(f"{base}/points", params={"i": [i, 0]}).json()["points"][0]["id"] == card["id"]
    where = client.get(f"{base}/where", params={"id": card["id"]}).json()["points"][0]
    assert where["i"] == i and where["x"] == pytest.approx(rows["x"][i] / 65535, abs=1e-6)
    codes = np.frombuffer(client.get(f"{base}/codes/label.bin").content, "<u2")
    assert (codes == rows["label"]).all() and client.get(f"{base}/codes/label").json()["names"] == ready["labels"]


def test_tiles_show_pictures(client: Any, ready: Any) -> None:
    from PIL import Image

    tile = client.get(f"{API}/map/{ready['gen']}/tile/0/0/0.jpg")
    with Image.open(io.BytesIO(tile.content)) as picture:
        assert picture.size == (512, 512)
        cells = np.asarray(picture).reshape(8, 64, 8, 64, 3)[:, 4:-4, :, 4:-4]  # JPEG smears the edges
        pixels = cells.std(axis=(1, 3)).max(axis=-1)
    rows = columns(client.get(f"{API}/map/{ready['gen']}.bin").content)
    taken = {(int(x) * 8 // 65536, int(y) * 8 // 65536) for x, y in zip(rows["x"], rows["y"], strict=True)}
    assert (pixels > 3).sum() == len(taken)
    assert client.get(f"{API}/map/{ready['gen']}/tile/1/2/0.jpg").status_code == 404


def test_a_part_of_the_map_is_a_filter(client: Any, ready: Any) -> None:
    rows = columns(client.get(f"{API}/map/{ready['gen']}.bin").content)
    x, y = rows["x"] / 65535 * 4096, rows["y"] / 65535 * 4096
    area = "".join(f"{v:03x}" for v in (0, 0, 2048, 0, 2048, 4095, 0, 4095))
    answer = client.get(f"{API}/items", params={"f": f"area:{ready['gen']}.{area}", "sample": 100}).json()
    inside = (x < 2048) & (y < 4095)
    assert 0 < len(answer["items"]) <= inside.sum() < 61
    like = answer["items"][0]["id"]
    hits = client.get(f"{API}/search", params={"like": like, "f": f"area:{ready['gen']}.{area}"}).json()
    assert hits["pictures"] == inside.sum() and hits["filters"] == "chosen on the map"
    for bad, status in ((f"{ready['gen']}.zzz", 422), (f"{ready['gen']}.000", 422), ("77.000000fff000fffff", 410)):
        answer = client.get(f"{API}/items", params={"f": f"area:{bad}"})
        assert answer.status_code == status and sentence(answer)


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
    assert facts["gen"] > ready["gen"] and facts["n"] == 61
    after = columns(client.get(f"{API}/map/{facts['gen']}.bin").content)
    assert sorted(before["label"]) == sorted(after["label"])


def test_inside_a_polygon() -> None:
    points = np.random.default_rng(0).random((500, 2)) * 10
    corners = np.array([[2, 2], [8, 2], [8, 8], [5, 4], [2, 8]], float)
    edge = [8 - (x - 2) * 4 / 3 if x < 5 else 4 + (x - 5) * 4 / 3 for x, _ in points]
    expected = [2 < x < 8 and 2 < y < limit for (x, y), limit in zip(points, edge, strict=True)]
    np.testing.assert_array_equal(within(points, corners), expected)
