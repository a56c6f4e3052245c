"""Decode images in a child process with little memory: some decoders need a hundred times what a header says."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.data import decoding
from lookalike.data.decoding import Box, Side, UnreadableImage, decode, format_of, image_size, shrink

MEMORY = 400_000_000  # bytes that a child may allocate
ORIGINAL_MEMORY = 1_200_000_000  # for an image of the index that is encoded again at its full size
SECONDS = 30.0
BUDGET_PIXELS = 50_000_000  # that a child counts for: two decode at the same time, and leave room for small images
# Pixels from which an image of a format is decoded in a child; of formats that are not named, every image is.
LARGEST = {"PNG": 30_000_000, "HEIF": 16_000_000, "WEBP": 8_000_000, "AVIF": 8_000_000, "GIF": 8_000_000}
LARGEST |= {"BMP": 8_000_000, "PPM": 8_000_000, "JPEG": 40_000_000}
BUFFERED = 12_000_000  # of a JPEG whose coefficients are all held
FORMAT_COST = {"WEBP": 4, "JPEG2000": 4, "AVIF": 3, "HEIF": 3}  # memory per pixel, relative to other formats
SMALL_COST = 8_000_000  # an image of the index, which is no stranger's, is worth a child from this cost on
_two_at_a_time = threading.BoundedSemaphore(2)  # of the threads of a job
TOO_MUCH = "it takes too much memory to decode"
Region = tuple[float, float, float, float]


def needs_child(data: bytes, pixels: int) -> bool:
    """Whether an upload is decoded in a child process."""
    if data[:2] == b"\xff\xd8":
        return pixels > BUFFERED and (pixels > LARGEST["JPEG"] or is_buffered(data))
    return pixels > LARGEST.get(format_of(data), 0)


def is_isolated(data: bytes, pixels: int) -> bool:
    """Whether an image of the index is decoded in a child process."""
    return pixels > SMALL_COST // max(FORMAT_COST.values()) and (
        decoding_cost(data, pixels) > SMALL_COST and needs_child(data, pixels)
    )


def decoding_cost(data: bytes, pixels: int) -> int:
    """Pixels to charge for an image: decoders of some formats take several times the memory of others."""
    simple = data[:2] == b"\xff\xd8" or data[:4] == b"\x89PNG"
    return pixels * (1 if simple else FORMAT_COST.get(format_of(data), 1))


def is_buffered(data: bytes) -> bool:
    """Whether all coefficients of a JPEG are held: it is progressive, its colors come one by one, or it is odd."""
    at, colors = 2, 0
    while data[at : at + 1] == b"\xff" and at + 10 <= len(data):
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if marker == 0xDA:
            return data[at + 4] < colors
        if marker in (0xC0, 0xC1, 0xC9):
            colors = data[at + 9]
        elif not (marker in (0xC4, 0xCC, 0xDB, 0xDD) or 0xE0 <= marker <= 0xFE) or length < 2:
            return True
        at += 2 + length
    return True


def decode_in_child(data: bytes, region: Region | None, side: float, stored: int) -> tuple[np.ndarray, np.ndarray]:
    """Decode a whole image, to a longer side of `stored`, and a part with at least the short side `side`.

    Both are reduced to about what is needed; `region` is the part in fractions, None the whole image.
    """
    answer = np.load(io.BytesIO(_run_child("parts", data, region, side, stored)), allow_pickle=False)
    return answer["whole"], answer["part"]


def original_in_child(data: bytes) -> tuple[bytes, str]:
    """An image without its metadata, and its media type, made in a child process."""
    media, _, body = _run_child("original", data).partition(b"\n")
    return body, media.decode()


def isolate(data: bytes, box: Box | None, least: float | None, of: Side) -> decoding.Loaded | None:
    """Decode an image for `lookalike.data` in a child process if it may need much memory; else None.

    Set as `lookalike.data.decoding.isolate`, it bounds the memory of jobs that read whole folders.
    """
    if not is_isolated(data, math.prod(image_size(data))):
        return None
    with _two_at_a_time:
        answer = _run_child("load", data, box and list(box), least, of is max)
    start = answer.index(b"\n") + 1
    shape, *size_and_scale = json.loads(answer[:start])
    return np.frombuffer(answer, np.uint8, offset=start).reshape(shape).copy(), *size_and_scale


def _run_child(task: str, data: bytes, *arguments: Any) -> bytes:
    """What one of `TASKS` gives in a child process; `UnreadableImage` if it fails."""
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__],  # no module of the current folder is imported
            input=json.dumps([task, *arguments]).encode() + b"\n" + data,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, **single, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreadableImage("it takes too long to decode") from None
    if child.returncode:  # also when a decoder aborts instead of reporting that there is no memory
        reason = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise UnreadableImage(reason.removeprefix("refused: ") if reason.startswith("refused: ") else TOO_MUCH)
    return child.stdout


def cut(pixels: np.ndarray, region: Region | Sequence[float] | None) -> np.ndarray:
    """The part of an image."""
    if region is None:
        return pixels
    height, width = pixels.shape[:2]
    x1, y1, x2, y2 = region
    return pixels[round(y1 * height) : round(y2 * height), round(x1 * width) : round(x2 * width)]


def limit_memory(count: int) -> None:
    """Let this process allocate so many bytes more than it has; where the system can limit that."""
    if sys.platform != "linux":
        return
    import resource

    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + count, data + count))


def _parts(data: bytes, region: Region | None, side: float, stored: int) -> bytes:
    fraction = 1.0 if region is None else min(region[2] - region[0], region[3] - region[1])
    pixels = decode(data, min_side=side / fraction)
    part, whole = shrink(cut(pixels, region), max(1, round(2 * side))), shrink(pixels, stored, of=max)
    out = io.BytesIO()
    np.savez(out, whole=whole, part=part)
    return out.getvalue()


def _original(data: bytes) -> bytes:
    from lookalike.data.strip_metadata import without_metadata

    body, media = without_metadata(data)
    return media.encode() + b"\n" + body


def _load(data: bytes, box: Box | None, least: float | None, longer: bool) -> bytes:
    pixels, *size_and_scale = decoding.load(data, box, least, max if longer else min)
    return json.dumps([pixels.shape, *size_and_scale]).encode() + b"\n" + pixels.tobytes()


TASKS: dict[str, tuple[Callable[..., bytes], int]] = {
    "parts": (_parts, MEMORY),
    "load": (_load, MEMORY),
    "original": (_original, ORIGINAL_MEMORY),
}


def main() -> None:
    """Read a request and an image from standard input, and write the answer to standard output."""
    name, *arguments = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    task, memory = TASKS[name]
    limit_memory(memory)
    try:
        sys.stdout.buffer.write(task(data, *arguments))
    except UnreadableImage as error:
        # Most decoders say the same of too little memory as of damage.
        large = error.reason == "the file is damaged" and math.prod(image_size(data)) > BUFFERED
        sys.exit(f"refused: {TOO_MUCH if large else error.reason}")
    except MemoryError:
        sys.exit(f"refused: {TOO_MUCH}")


if __name__ == "__main__":
    main()
