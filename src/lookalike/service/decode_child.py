"""Decode an upload in a child process with little memory: some decoders need a hundred times what a header says."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lookalike.data.decoding import UnreadableImage, decode, format_of, image_size, shrink

MEMORY = 400_000_000  # bytes that a child may allocate
SECONDS = 30.0
BUDGET_PIXELS = 50_000_000  # that a child counts for: two decode at the same time, and leave room for small images
# Pixels from which an image of a format is decoded in a child; of formats that are not named, every image is.
LARGEST = {"PNG": 30_000_000, "HEIF": 16_000_000, "WEBP": 8_000_000, "AVIF": 8_000_000, "GIF": 8_000_000}
LARGEST |= {"BMP": 8_000_000, "PPM": 8_000_000, "JPEG": 40_000_000}
BUFFERED = 12_000_000  # of a JPEG whose coefficients are all held
Region = tuple[float, float, float, float]


def needs_child(data: bytes, pixels: int) -> bool:
    """Whether an image is decoded in a child process."""
    if data[:2] == b"\xff\xd8":
        return pixels > BUFFERED and (pixels > LARGEST["JPEG"] or is_buffered(data))
    return pixels > LARGEST.get(format_of(data), 0)


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
    """Decode an image in a child process.

    Args:
        data: Content of the image file.
        region: Left, top, right and bottom of the part as fractions; None is the whole image.
        side: Short side that the part needs.
        stored: Longer side of the whole image.

    Returns:
        Pixels of the whole image and of the part, reduced to about what is needed.

    Raises:
        UnreadableImage: If it is damaged, or takes too much memory or time.
    """
    request = json.dumps({"region": region, "side": side, "stored": stored}).encode()
    single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        child = subprocess.run(
            [sys.executable, "-P", "-m", __name__],  # no module of the current folder is imported
            input=request + b"\n" + data,
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
    answer = np.load(io.BytesIO(child.stdout), allow_pickle=False)
    return answer["whole"], answer["part"]


TOO_MUCH = "it takes too much memory to decode; send a smaller one, or a JPEG"


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


def main() -> None:
    """Read a request and an image from standard input, and write the pixels to standard output."""
    request = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    limit_memory(MEMORY)
    region, side, stored = request["region"], request["side"], request["stored"]
    fraction = 1.0 if region is None else min(region[2] - region[0], region[3] - region[1])
    try:
        pixels = decode(data, min_side=side / fraction)
        part = shrink(cut(pixels, region), max(1, round(2 * side)))
        whole = shrink(pixels, stored, of=max)
    except UnreadableImage as error:
        # Most decoders say the same of too little memory as of damage.
        large = error.reason == "the file is damaged" and math.prod(image_size(data)) > BUFFERED
        sys.exit(f"refused: {TOO_MUCH if large else error.reason}")
    except MemoryError:
        sys.exit(f"refused: {TOO_MUCH}")
    out = io.BytesIO()
    np.savez(out, whole=whole, part=part)
    sys.stdout.buffer.write(out.getvalue())


if __name__ == "__main__":
    main()
