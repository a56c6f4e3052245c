"""Hostile uploads: a 4xx with a sentence or an answer, in bounded time and memory, and the next request works."""

from __future__ import annotations

import contextlib
import io
import resource
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.data import UnreadableImage
from lookalike.service import decode_child, uploads
from tests import helpers
from tests.data.scenes import endless_jpeg
from tests.service.conftest import error_message
from tests.service.test_middleware import encoded, png, send

API = "/api/v1"


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_with(*extra: bytes, side: int = 64) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress((b"\0" + b"\x40\x80\xc0" * side) * side))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + body + chunk(b"IEND", b"")


def jpeg_with(segment: bytes, marker: int = 0xE1) -> bytes:
    data = encoded()
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(segment) + 2) + segment + data[2:]


def exif(entries: list[tuple[int, int, int, int]], after: int = 0) -> bytes:
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + rows + struct.pack("<I", after)


def bomb(kind: bytes, before: bytes) -> bytes:
    return chunk(kind, before + zlib.compress(bytes(60_000_000), 9))


def tiff(entries: list[tuple[int, int, int, int]]) -> bytes:
    rows = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + rows + bytes(4)


def frames(count: int) -> bytes:
    out = io.BytesIO()
    images = [Image.new("RGB", (64, 48), (n % 255, 0, 0)) for n in range(count)]
    images[0].save(out, "GIF", save_all=True, append_images=images[1:])
    return out.getvalue()


def gray_png(side: int) -> bytes:
    """Large, and next to nothing when packed."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0))
    packer = zlib.compressobj(9)
    rows = b"".join(packer.compress(bytes(side + 1)) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


ORIENTATION = 0x0112
HOSTILE = {
    "EXIF that leads to itself": (jpeg_with(exif([(ORIENTATION, 3, 1, 6)], after=8)), 200),
    "EXIF of four thousand million values": (jpeg_with(exif([(ORIENTATION, 3, 0xFFFFFFFF, 0)])), 200),
    "EXIF with offsets beyond the end": (jpeg_with(exif([(0x8769, 4, 1, 0xFFFFFFF0), (0x8825, 4, 1, 8)])), 200),
    "EXIF of five thousand entries": (jpeg_with(exif([(n, 2, 60_000, 8) for n in range(5_000)])), 200),
    "EXIF cut short": (jpeg_with(exif([(ORIENTATION, 3, 1, 6)])[:9]), 200),
    "a profile that is none": (jpeg_with(b"ICC_PROFILE\0\x01\x01" + b"x" * 500, 0xE2), 200),
    "a text that unpacks to 60 MB": (png_with(bomb(b"zTXt", b"k\0\0")), None),
    "a profile that unpacks to 60 MB": (png_with(bomb(b"iCCP", b"k\0\0")), None),
    "a TIFF of absurd counts": (tiff([(256, 4, 1, 60_000), (257, 4, 1, 60_000), (273, 4, 0xFFFFFFFF, 8)]), 4),
    "a TIFF that leads to itself": (tiff([(256, 4, 1, 64), (257, 4, 1, 64), (330, 4, 1, 8)])[:-4] + b"\x08\0\0\0", 4),
    "two thousand frames": (frames(2_000), 200),
    "a bomb of 95 million pixels": (gray_png(9_700), 200),
    "a bomb of 2,500 million pixels": (png(50_000, 50_000), 413),
    "an SVG with an entity bomb": (b'<?xml version="1.0"?><!DOCTYPE s [<!ENTITY a "aaaaaaaaaa">]><svg>&a;</svg>', 415),
    "an SVG that fetches": (b'<svg xmlns="http://www.w3.org/2000/svg"><image href="http://127.0.0.1/x"/></svg>', 415),
    "a script behind a GIF's head": (b"GIF89a/*" + b"\0" * 20 + b"*/=1;alert(1)//", 415),
    "a ZIP with an image before it": (encoded() + b"PK\x03\x04" + b"\0" * 100, 200),
    "HTML named as an image": (b"<html><script>alert(1)</script></html>", 415),
    "a JPEG of endless scans": (endless_jpeg("RGB"), 415),
    "the same in four inks": (endless_jpeg("CMYK"), 415),
    "one byte": (b"\xff", 415),
    "an image of one pixel": (b"", 200),
    "a strip 1 pixel high": (b"", 200),
}  # fmt: skip


def _small(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(out, "PNG")
    return out.getvalue()


HOSTILE["an image of one pixel"] = (_small(1, 1), 200)
HOSTILE["a strip 1 pixel high"] = (_small(30_000, 1), 200)


@contextlib.contextmanager
def memory() -> Iterator[Callable[[], float]]:
    """MB that the process held at most inside, beyond what it held before."""
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def level(name: str) -> float:
        if not status.exists():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
        return next(int(line.split()[1]) / 1000 for line in status.read_text().splitlines() if line.startswith(name))

    if reset.exists():
        reset.write_text("5")  # the highest level is counted from here on
    before = level("VmRSS")
    yield lambda: level("VmHWM") - before


@pytest.fixture
def child_peaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[float]]:
    """MB that each child process held at most."""
    peaks, run = tmp_path / "peaks.txt", subprocess.run
    code = (
        "import atexit, sys; from pathlib import Path; from lookalike.service import decode_child\n"
        "def store():\n"
        "    line = next(s for s in Path('/proc/self/status').read_text().splitlines() if s.startswith('VmHWM'))\n"
        "    Path(sys.argv[1]).open('a').write(line + chr(10))\n"
        "atexit.register(store); decode_child.main()"
    )

    def measured(command: list[str], **options: Any) -> Any:
        return run([*command[: command.index("-m")], "-c", code, str(peaks)], **options)

    monkeypatch.setattr(decode_child.subprocess, "run", measured)
    return lambda: [int(line.split()[1]) / 1000 for line in peaks.read_text().splitlines()] if peaks.exists() else []


def flat(form: str, width: int, height: int) -> bytes:
    """A large image in a file of next to no bytes."""
    out = io.BytesIO()
    fast: dict[str, dict[str, Any]] = {"AVIF": {"speed": 10}, "WEBP": {"method": 0}}
    Image.new("RGB", (width, height), (10, 200, 30)).save(out, form, **fast.get(form, {}))
    return out.getvalue()


def color_png(side: int) -> bytes:
    """Large in three colors, which take four times the room of gray."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    packer = zlib.compressobj(1)
    row = b"\0" + b"\x40\x80\xc0" * side
    rows = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_a_large_image_in_color_and_a_part_of_it(client: Any) -> None:
    data = color_png(7_500)
    with memory() as grown:
        assert send(client, data).status_code == 200
        assert client.post(f"{API}/search?box=0,0,0.5,0.5&keep=false", files={"image": data}).status_code == 200
    assert grown() < 500, f"{grown():.0f} MB"


def test_a_part_of_a_large_image_with_transparency(client: Any) -> None:
    out = io.BytesIO()
    Image.new("LA", (5_400, 5_400)).save(out, "PNG", compress_level=1)
    with memory() as grown:
        answer = client.post(f"{API}/search?box=0,0,0.05,0.05&keep=false", files={"image": out.getvalue()})
    assert answer.status_code == 200 and grown() < 450, f"{grown():.0f} MB"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("form", "side"), [("WEBP", 4_600), ("AVIF", 5_700), ("JPEG2000", 4_000)])
def test_formats_that_take_much_memory_are_decoded_in_little(
    client: Any, child_peaks: Callable[[], list[float]], form: str, side: int
) -> None:
    data = flat(form, side, side)
    with memory() as grown:
        answer = send(client, data)
    assert answer.status_code == 200 and answer.json()["hits"] and grown() < 100, f"{grown():.0f} MB"
    (peak,) = child_peaks()
    assert 100 < peak < 500, f"{peak:.0f} MB in the child"


@pytest.mark.parametrize(("form", "side", "code"), [("WEBP", 5_200, 413), ("JPEG2000", 5_200, 413)])
def test_formats_whose_decoders_take_more_memory_have_a_lower_limit(
    client: Any, form: str, side: int, code: int
) -> None:
    out = io.BytesIO()
    Image.new("RGB", (side, side), (10, 200, 30)).save(out, form)
    with memory() as grown:
        answer = send(client, out.getvalue())
    assert answer.status_code == code and grown() < 500, f"{grown():.0f} MB"
    if code == 413:
        assert "the limit is 25,000,000 pixels" in error_message(answer)


@pytest.mark.parametrize(
    ("form", "mode", "side", "options"),
    [
        ("JPEG", "RGB", 9_900, {"progressive": True, "subsampling": 0}),
        ("JPEG2000", "RGBA", 4_900, {}),
        pytest.param("TIFF", "RGBA", 9_900, {"compression": "tiff_adobe_deflate"}, marks=pytest.mark.slow),
    ],
)
def test_whatever_a_decoder_takes_the_server_does_not(
    client: Any, form: str, mode: str, side: int, options: dict[str, Any]
) -> None:
    out = io.BytesIO()
    Image.new(mode, (side, side)).save(out, form, **options)
    with memory() as grown:
        answer = client.post(f"{API}/search?box=0,0,0.05,0.05&keep=false", files={"image": out.getvalue()})
    assert grown() < 100, f"{grown():.0f} MB"
    assert answer.status_code in (200, 413)
    if answer.status_code == 413:
        assert "it takes too much memory to decode" in error_message(answer)


def test_a_jpeg_whose_coefficients_are_all_held_is_known_by_its_header() -> None:
    plain, progressive = io.BytesIO(), io.BytesIO()
    image = Image.new("RGB", (64, 64))
    image.save(plain, "JPEG", comment=b"\xff\xc2" * 50)
    image.save(progressive, "JPEG", progressive=True)
    data = plain.getvalue()
    assert not decode_child.is_buffered(data) and decode_child.is_buffered(progressive.getvalue())
    scan = data.index(b"\xff\xda")
    one_by_one = data[:scan] + b"\xff\xda\0\x08\1\1\0\0\x3f\0"  # colors one by one, each in a scan of its own
    arithmetic = data.replace(b"\xff\xc0", b"\xff\xca")
    for odd in (one_by_one, arithmetic, data[:2] + b"\0" + data[2:], data[:30], b"\xff\xd8"):
        assert decode_child.is_buffered(odd)


def test_a_child_decodes_as_the_server_does() -> None:
    out = io.BytesIO()
    Image.fromarray(helpers.make_image(3, width=640, height=480)).save(out, "TIFF")
    region = (0.25, 0.0, 1.0, 0.5)
    whole, part = decode_child.decode_in_child(out.getvalue(), region, 60, 512)
    assert whole.shape == (384, 512, 3) and part.shape == (120, 240, 3)
    expected = uploads.decode_part(out.getvalue(), region, 60)[1].reshape(120, 2, 240, 2, 3).mean((1, 3))
    assert np.abs(part - expected).mean() < 2
    with pytest.raises(UnreadableImage, match="cut short"):
        decode_child.decode_in_child(out.getvalue()[:5000], None, 60, 512)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is that of Linux")
def test_a_child_has_so_much_memory() -> None:
    code = "from lookalike.service import decode_child as c; c.limit_memory(60_000_000); bytearray({})"
    for count, good in ((30_000_000, True), (90_000_000, False)):
        child = subprocess.run([sys.executable, "-c", code.format(count)], capture_output=True, check=False)
        assert (child.returncode == 0) is good and (good or b"MemoryError" in child.stderr)
    assert decode_child.MEMORY <= 400_000_000


def test_a_decoder_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_child, "SECONDS", 0.01)
    with pytest.raises(UnreadableImage, match="too long"):
        decode_child.decode_in_child(encoded("TIFF"), None, 60, 512)


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_uploads(client: Any, what: str) -> None:
    data, expected = HOSTILE[what]
    start = time.monotonic()
    with memory() as grown:
        answer = send(client, data, "upload.jpg")
    assert time.monotonic() - start < 30
    assert grown() < 500, f"{grown():.0f} MB"
    if answer.status_code != 200:
        assert 400 <= answer.status_code < 500 and error_message(answer)
    if expected is not None:
        assert answer.status_code == expected or (expected == 4 and 400 <= answer.status_code < 500)
    assert send(client, encoded()).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "multipart/form-data"},
        {"content-type": "multipart/form-data; boundary="},
        {"content-type": "multipart/form-data; boundary=" + "x" * 5000},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "image/jpeg"},
        {"content-type": "text/html; charset=utf-7"},
        {},
    ],
)
def test_bodies_that_are_no_form(client: Any, headers: dict[str, str]) -> None:
    answer = client.post(f"{API}/search", content=encoded(), headers=headers)
    assert 400 <= answer.status_code < 500 and error_message(answer)
    assert send(client, encoded()).status_code == 200


def test_several_files_or_a_text_instead_of_one(client: Any) -> None:
    many = client.post(f"{API}/search", files=[("image", ("a.jpg", encoded(), "image/jpeg"))] * 3)
    assert many.status_code in (200, 422)
    text = client.post(f"{API}/search", data={"image": "not a file"})
    assert text.status_code == 422 and error_message(text)
    fields = client.post(f"{API}/search", data={f"f{n}": "x" for n in range(3000)})
    assert 400 <= fields.status_code < 500


def test_names_of_uploads_are_not_trusted(client: Any) -> None:
    for name in ("../../etc/passwd", "<script>alert(1)</script>.jpg", "a" * 5000, "x\u202egpj.exe", "nul\x00.jpg"):
        answer = client.post(f"{API}/search", files={"image": (name, b"no image", "image/jpeg")})
        assert answer.status_code in (400, 415) and len(error_message(answer)) < 300
        assert answer.headers["content-type"] == "application/json"


def test_large_images_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from lookalike.service import limits
    from lookalike.service.http_errors import Problem

    budget = limits.PixelBudget(100)
    most, now, guard = 0, 0, threading.Lock()

    def decode(pixels: int) -> None:
        nonlocal most, now
        with budget.take(pixels):
            with guard:
                now += pixels
                most = max(most, now)
            time.sleep(0.02)
            with guard:
                now -= pixels

    threads = [threading.Thread(target=decode, args=(40,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 80 and budget.available == 100
    with budget.take(1_000):
        assert budget.available == 0, "one that is larger than all takes all"
    monkeypatch.setattr(limits, "BUDGET_WAIT_SECONDS", 0.01)
    with budget.take(100), pytest.raises(Problem, match="Busy"), budget.take(1):
        pass


def test_no_vector_that_is_not_finite_reaches_the_store(
    client: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = service.encoder.model()
    monkeypatch.setattr(model, "encode", lambda crops: np.full((len(crops), service.index.generation.dim), np.nan))
    answer = send(client, encoded())
    assert answer.status_code == 400 and "not finite" in error_message(answer)
