"""Images over HTTP to hits, and images into an index, beside `encode` on the same images.

The service and its clients are processes of their own. The clients share the processor with it: their processor time
is measured by themselves and taken off the time that passed, spread over the threads.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from lookalike.core import seeds
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError

DATA, SIZE = "cub", 224
IMAGES, ROUNDS = 1_536, 3
CLIENTS, REQUESTS = 32, 640
BARS = {"over HTTP / encode": 0.8, "indexing / encode": 0.9}


def measure(context: BenchContext, home: Path) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.models import Embedder

    files = chosen(context.folder(DATA) / "images", home / "images")
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU, size=SIZE)
    context.say(f"{len(files):,} images at {SIZE} px: embedding, indexing, and {CLIENTS} clients")

    def encode(part: list[Path]) -> float:
        start = time.perf_counter()
        model.encode(part, batch_size=32, runtime="openvino")
        return len(part) / (time.perf_counter() - start)

    encode(files[:64])
    rounds: list[dict[str, Any]] = [
        {"encode": encode(files), **indexing(model, home / "images", home / f"index-{number}")}
        for number in range(ROUNDS)
    ]
    with server(home / "index-0") as port:
        asked(port, 2 * CLIENTS, files)  # warm
        for found in rounds:
            found["encode_beside_http"] = encode(files[:REQUESTS])
            found["http"] = asked(port, REQUESTS, files)
    for found in rounds:
        found["indexing / encode"] = found["indexing"] / found["encode"]
        found["over HTTP / encode"] = speed(found["http"], context.threads) / found["encode_beside_http"]
    values = {name: statistics.median(found[name] for found in rounds) for name in BARS}
    failed = sum(found["http"]["requests"] - found["http"]["good"] for found in rounds)
    figures = {"images": len(files), "clients": CLIENTS, "rounds": rounds, **values, "failed": failed}
    return figures, bars(values, failed)


def bars(values: Mapping[str, float] = {}, failed: float = math.nan) -> list[Bar]:
    found = [Bar(f"{SIZE} px: {name}", values.get(name, math.nan), bound) for name, bound in BARS.items()]
    return [*found, Bar(f"{SIZE} px: requests over HTTP that failed", failed, 0, "lower")]


def chosen(source: Path, folder: Path) -> list[Path]:
    """A sample of the images, in a folder of its own."""
    files = sorted(source.rglob("*.jpg"))
    order = seeds.numpy_rng(0, "bench", "requests").permutation(len(files))[:IMAGES]
    for number in order:
        place = folder / files[number].relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(files[number], place)
    return sorted(folder.rglob("*.jpg"))


def indexing(model: Any, folder: Path, place: Path) -> dict[str, float]:
    """Images a second of a whole indexing run, without the building of its graph."""
    from lookalike.searching import index

    done = index(folder=folder, model=model, index=place, calibrate=False, progress=False)
    return {"indexing": done.new / (done.seconds - done.build_seconds), "build_seconds": done.build_seconds}


def speed(found: dict[str, Any], threads: int) -> float:
    """Answers a second, the clients' own processor time left out."""
    seconds: float = found["seconds"] - found["clients_cpu_seconds"] / threads
    return float(found["good"]) / seconds


def asked(port: int, count: int, files: list[Path]) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.speed.http_clients", str(port), str(CLIENTS), str(count)]
    done = subprocess.run(words, input="\n".join(map(str, files)), capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextlib.contextmanager
def server(index: Path) -> Iterator[int]:
    """`lookalike serve` in a process of its own; its port."""
    words = [sys.executable, "-m", "lookalike", "serve", str(index), "--port", "0"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    try:
        port = None
        for line in process.stderr:
            lines.append(line)
            if "http://127.0.0.1:" in line:
                port = int(line.split("http://127.0.0.1:")[1].split()[0])
                break
        if port is None:
            raise LookalikeError(f"The service did not start: {' '.join(lines)[-300:].strip()}")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield port
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
