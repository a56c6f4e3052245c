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
WRITING = "p99 beside a writing index / p99"
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
        request_speed(port, 2 * CLIENTS, files)  # warm
        for result in rounds:
            result["encode_beside_http"] = encode(files[:REQUESTS])
            result["http"] = request_speed(port, REQUESTS, files)
        writing = [beside_writing(home, number, port, files) for number in range(ROUNDS)]
    for result in rounds:
        result["indexing / encode"] = result["indexing"] / result["encode"]
        result["over HTTP / encode"] = speed(result["http"], context.threads) / result["encode_beside_http"]
    alone = statistics.median(result["http"]["p99_ms"] for result in rounds)
    values = {name: statistics.median(result[name] for result in rounds) for name in BARS}
    values[WRITING] = statistics.median(result["p99_ms"] for result in writing) / alone
    answers = [*(result["http"] for result in rounds), *writing]
    failed = sum(result["requests"] - result["good"] for result in answers)
    about = {"images": len(files), "clients": CLIENTS, "rounds": rounds, "beside a writing index": writing}
    figures = {**about, **values, "failed": failed}
    return figures, bars(values, failed)


def bars(values: Mapping[str, float] = {}, failed: float = math.nan) -> list[Bar]:
    result = [Bar(f"{SIZE} px: {name}", values.get(name, math.nan), bound) for name, bound in BARS.items()]
    result.append(Bar(f"{SIZE} px: {WRITING}", values.get(WRITING, math.nan), 2.0, "lower"))
    return [*result, Bar(f"{SIZE} px: requests over HTTP that failed", failed, 0, "lower")]


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


def beside_writing(home: Path, number: int, port: int, files: list[Path]) -> dict[str, Any]:
    """The clients' figures while `lookalike index` adds a copy of the images to the index that is served."""
    for file in files:
        copy = home / "images" / f"copy-{number}" / file.relative_to(home / "images")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes() + bytes(1 + number))  # the same image in another file is embedded again
    words = [sys.executable, "-m", "lookalike", "index", str(home / "images"), "--index", str(home / "index-0"), "-q"]
    writer = subprocess.Popen([*words, "--no-calibrate"])
    try:
        while writer.poll() is None and not _has_rows(home / "index-0", len(files) * (number + 1)):
            time.sleep(0.1)
        result = request_speed(port, REQUESTS // 2, files)
        result["writing to the end"] = writer.poll() is None
    finally:
        code = writer.wait(timeout=1_200)
    if code:
        raise LookalikeError(f"Indexing beside the service ended with {code}.")
    return result


def _has_rows(place: Path, count: int) -> bool:
    from lookalike.searching import Index

    with Index(place) as index:
        return index.generation.writes > 0 and index.store.count() > count


def speed(result: dict[str, Any], threads: int) -> float:
    """Answers a second, the clients' own processor time left out."""
    seconds: float = result["seconds"] - result["clients_cpu_seconds"] / threads
    return float(result["good"]) / seconds


def request_speed(port: int, count: int, files: list[Path]) -> dict[str, Any]:
    words = [sys.executable, "-m", "benchmarks.speed.http_clients", str(port), str(CLIENTS), str(count)]
    done = subprocess.run(words, input="\n".join(map(str, files)), capture_output=True, text=True, check=False)
    if done.returncode:
        raise LookalikeError(f"The clients failed: {done.stderr.strip()[-300:]}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


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
