"""What is decoded at once is bounded by how much it is, whoever asks for it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lookalike.service import limits, uploads
from lookalike.service.decode_child import BUDGET_PIXELS
from tests import helpers
from tests.service.conftest import error_message
from tests.service.test_middleware import encoded, send

API = "/api/v1"
AREA = 64 * 48  # pixels of every indexed image


class RecordingBudget(limits.PixelBudget):
    """Remembers what was taken, and how much of it at once."""

    def __init__(self, pixels: int) -> None:
        super().__init__(pixels)
        self.taken: list[int] = []

    def take(self, pixels: int) -> Any:
        self.taken.append(pixels)
        return super().take(pixels)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> RecordingBudget:
    watched = RecordingBudget(AREA + AREA // 2)
    monkeypatch.setattr(limits, "PIXEL_BUDGET", watched)
    return watched


def addresses(client: Any, count: int) -> dict[str, list[str]]:
    cards = client.get(f"{API}/items?sample={count}").json()["items"]
    return {
        "thumbnails": [f"/thumb/{card['thumb']}/256.jpg" for card in cards],
        "crops": [f"{API}/search?like={card['id']}&box=0,0,0.9,0.9&k=3" for card in cards],
        "originals": [f"/original/{card['id']}" for card in cards],
    }


@pytest.mark.parametrize("kind", ["thumbnails", "crops", "originals"])
def test_images_of_the_index_take_what_they_have(
    client: Any, home: Path, budget: RecordingBudget, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look at a folder of scans: as many at once as there is room for, the rest one after the other."""
    import lookalike.data
    from lookalike.data import strip_metadata

    now, most, guard = 0, 0, threading.Lock()

    def counted(real: Any) -> Any:
        def work(*args: Any, **options: Any) -> Any:
            nonlocal now, most
            with guard:
                now += 1
                most = max(most, now)
            time.sleep(0.02)
            with guard:
                now -= 1
            return real(*args, **options)

        return work

    monkeypatch.setattr(lookalike.data, "thumbnail", counted(lookalike.data.thumbnail))
    monkeypatch.setattr(uploads, "decode_part", counted(uploads.decode_part))
    monkeypatch.setattr(strip_metadata, "without_metadata", counted(strip_metadata.without_metadata))
    queries = addresses(client, 6)[kind]
    codes: list[int] = []
    threads = [threading.Thread(target=lambda a=a: codes.append(client.get(a).status_code)) for a in queries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 6 and most == 1
    assert [pixels for pixels in budget.taken if pixels] == [AREA] * 6 and budget.available == budget.total


def test_a_part_of_an_indexed_image_is_decoded_where_uploads_are(
    client: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[Any] = []
    monkeypatch.setattr(uploads, "needs_child", lambda data, pixels: True)
    monkeypatch.setattr(
        uploads, "decode_in_child", lambda *args: (children.append(args), uploads.decode_part(*args[:3]))[1]
    )
    assert client.get(addresses(client, 1)["crops"][0]).status_code == 200 and len(children) == 1


def test_a_long_file_is_not_read_beside_others(
    client: Any, service: Any, home: Path, budget: RecordingBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LARGE_FILE_BYTES", 100)
    monkeypatch.setattr(limits, "MAX_PIXELS_PER_IMAGE", AREA)
    monkeypatch.setattr(limits, "BUDGET_WAIT_SECONDS", 0.05)
    read: list[str] = []
    real = service.index.open_bytes
    monkeypatch.setattr(
        service.index,
        "open_bytes",
        lambda record, limit: (real(record, limit=limit), read.append(record.id))[0],
    )
    every = [part[0] for part in addresses(client, 1).values()]
    with budget.take(AREA):
        for address in every:
            answer = client.get(address)
            assert answer.status_code == 503 and "large images" in error_message(answer)
    assert read == []
    assert [client.get(address).status_code for address in every] == [200] * 3 and len(read) == 3


def test_slow_decoders_leave_room_for_others(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sends one image after the other that takes half a minute keeps nobody else from searching."""
    monkeypatch.setattr(limits, "BUDGET_WAIT_SECONDS", 0.1)
    with limits.PIXEL_BUDGET.take(BUDGET_PIXELS), limits.PIXEL_BUDGET.take(BUDGET_PIXELS):
        assert send(client, encoded()).status_code == 200
        assert all(client.get(address).status_code == 200 for address in addresses(client, 3)["originals"])
        assert send(client, encoded("TIFF")).status_code == 503, "a third child"


MEMORY = """
import io, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from PIL import Image
from lookalike.service import limits, uploads

def decode(_):
    with uploads.decode_upload(out.getvalue(), 2400, 2400, (0, 0, 0.9, 0.9), 2400):
        time.sleep(0.05)

def level():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))

out = io.BytesIO()
Image.new("RGBA", (2400, 2400), (10, 20, 30, 200)).save(out, "PNG")
decode(0)
limits.PIXEL_BUDGET.trim()
before = level()
with ThreadPoolExecutor(16) as pool:
    list(pool.map(decode, range(16)))
    held = level()
    limits.PIXEL_BUDGET.trim(if_idle=True)
    print(held - before, level() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measured by what Linux says")
def test_an_idle_server_gives_memory_back(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what many threads took for images of which none is large."""
    trims: list[dict[str, Any]] = []
    monkeypatch.setattr(limits.PIXEL_BUDGET, "trim", lambda **options: trims.append(options))
    service.follower.start()
    child = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True)
    held, left = map(float, child.stdout.split())
    assert held > 200, "nothing was held, so nothing is shown"
    assert left < 100
    helpers.until(lambda: trims)
    assert trims[0] == {"if_idle": True}


def test_a_large_image_leaves_space_for_small_ones() -> None:
    budget = limits.PixelBudget()
    with budget.take(10 * limits.MAX_PIXELS), budget.take(limits.MAX_PIXELS - limits.MAX_PIXELS_PER_IMAGE):
        assert budget.available == 0
