"""Embedding over nodes and buckets: two pinned nodes against one, Ray against plain processes, S3 against files.

The nodes are two raylets pinned to a core each, in a network namespace of their own; the bucket is a real S3 server
on loopback, on a core of its own. Speeds count from the moment every worker has done its first shards, so that the
model is loaded; the time until then stands beside them. A job of 1,000 shards that is finished is run again, as a call
and as a command.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext

MODEL, SIZE, BLOCK, IMAGES, REMOTE = "efficientnet_lite0", 112, 100, 10_000, 2_000
NODES, OVERHEAD, RERUN, BUCKET = 1.6, 1.10, 2.0, 0.85
SHARDS = 1_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    found = context.folder("tinyimagenet100").rglob("*")
    files = sorted(file for file in found if file.suffix.lower() in (".jpg", ".jpeg"))
    files = [files[i] for i in np.linspace(0, len(files) - 1, IMAGES).astype(int)]
    figures: dict[str, Any] = {"model": MODEL, "size": SIZE, "images": IMAGES, "images of a shard": BLOCK}
    with tempfile.TemporaryDirectory(prefix="lookalike-scale-") as name:
        folder = Path(name)
        table = folder / "images.csv"
        table.write_text("\n".join(["path", *map(str, files)]))
        for case in ("local", "one node", "two nodes"):
            context.say(case)
            figures[case] = _child("cluster", case, folder, table)
        figures |= _child("bucket", "", folder, table)
        figures["finished job"] = _child("again", "", folder, table)
    speed = {case: figures[case]["images per second"] for case in ("local", "one node", "two nodes")}
    again = figures["finished job"]["seconds of the call"]
    bars = [
        Bar("two nodes / one node", speed["two nodes"] / speed["one node"], NODES),
        Bar("seconds on one Ray node / local", speed["local"] / speed["one node"], OVERHEAD, "lower"),
        Bar(f"seconds to run a finished job of {SHARDS:,} shards again", again, RERUN, "lower"),
        Bar("S3 on loopback / files", figures["S3"] / figures["files"], BUCKET),
    ]
    return figures, bars


def _child(*words: object) -> Any:
    """A case in a process of its own: pinned, in a namespace, and with nothing loaded before."""
    around = {**os.environ, "LOOKALIKE_THREADS": "1", "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, "-m", "benchmarks.speed.scale", *map(str, words)]
    done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def plan(source: object, dest: Path, count: int | None = None) -> Any:
    from lookalike.data import read_table
    from lookalike.models import Embedder, vector_shards

    table, model = read_table(source), Embedder.from_pretrained(MODEL, size=SIZE, device="cpu")
    table = table if count is None else table.take(np.arange(count))
    options = {"precision": "f32", "runtime": "openvino", "batch_size": 32, "device": "cpu"}
    job, parts = vector_shards.make_plan(table, model, dest, options, BLOCK, {})
    return vector_shards.write_plan(job, parts, table, {}, model)


def timed(plan: Any, engine: Any, workers: int) -> dict[str, float]:
    """Images per second after the first two shards of every worker, and the seconds until then."""
    from lookalike.models.vector_shards import _Shards, embed_shard

    numbers = {part: number for number, part in enumerate(plan.parts)}
    warm = dict(itertools.islice(numbers.items(), 2 * workers))
    rest = {part: number for part, number in numbers.items() if part not in warm}
    seconds = []
    for shards in (warm, rest):
        start = time.monotonic()
        for outcome in engine.run(embed_shard, _Shards(plan, shards)):
            if outcome.error is not None:
                raise outcome.error
        seconds.append(time.monotonic() - start)
    images = sum(map(plan.count, rest.values()))
    return {"images per second": round(images / seconds[1], 1), "seconds until ready": round(seconds[0], 1)}


def cluster(case: str, folder: Path, table: Path) -> dict[str, float]:
    from tests.cluster import PORT, alone, raylets

    from lookalike.core.engine import LocalEngine, open_engine

    nodes = {"local": 0, "one node": 1, "two nodes": 2}[case]
    job = plan(table, folder / case)
    cores = sorted(os.sched_getaffinity(0))
    if not nodes:
        os.sched_setaffinity(0, {cores[0]})
    elif not alone():
        raise RuntimeError("no network namespace, without which Ray would listen on all interfaces")
    with raylets(*[{}] * nodes, cores=cores) if nodes else nullcontext():
        engine = open_engine(f"ray://127.0.0.1:{PORT}") if nodes else LocalEngine(1)
        return timed(job, engine, max(nodes, 1))


def bucket(folder: Path, table: Path) -> dict[str, float]:
    """Images per second from files to files and from S3 to S3, in turns and on one core; the server has another one."""
    from tests.bucket_server import Server

    from lookalike.core.engine import LocalEngine
    from lookalike.core.storage import location
    from lookalike.data import read_table

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})  # of the server, which elsewhere is another machine
    server = Server()
    os.sched_setaffinity(0, {cores[0]})
    os.environ.update(server.environment)
    try:
        images = read_table(table).take(np.arange(REMOTE))
        files = folder / "files"
        files.mkdir()
        for row in range(len(images)):
            (files / f"{row:05d}.jpg").write_bytes(images.open_bytes(row))
            location(f"s3://data/files/{row:05d}.jpg").write_bytes(images.open_bytes(row))
        speeds: dict[str, list[float]] = {"files": [], "S3": []}
        for turn in range(3):
            for name, source, dest in (
                ("files", files, folder / f"parts-{turn}"),
                ("S3", "s3://data/files", location(f"s3://data/parts-{turn}")),
            ):
                done = timed(plan(source, dest), LocalEngine(1), 1)
                speeds[name].append(done["images per second"])
        return {name: float(np.median(values)) for name, values in speeds.items()}
    finally:
        server.close()


def again(folder: Path) -> dict[str, float]:
    """Seconds to run a finished job again, whose images are small."""
    import lookalike as la

    images, out, rng = folder / "small", folder / "thousand", np.random.default_rng(0)
    images.mkdir()
    from PIL import Image

    for number in range(2 * SHARDS):
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), np.uint8)).save(images / f"{number:04d}.png")
    model = folder / "model"
    la.Embedder.from_pretrained("resnet10_small", weights="random").save_pretrained(model)
    options: dict[str, Any] = {"source": images, "out": out, "model": model, "block": 2, "progress": False}
    if la.embed(**options).embedded != SHARDS:
        raise RuntimeError("the job has another number of shards")
    start = time.monotonic()
    done = la.embed(**options)
    seconds = time.monotonic() - start
    if done.embedded:
        raise RuntimeError("a finished job was embedded again")
    command = [sys.executable, "-m", "lookalike", "embed", images, "--out", out, "--model", model, "--block", "2"]
    start = time.monotonic()
    subprocess.run(list(map(str, command)), capture_output=True, check=True)
    return {"seconds of the call": round(seconds, 2), "seconds of the command": round(time.monotonic() - start, 2)}


if __name__ == "__main__":
    place = Path(sys.argv[3])
    cases = {
        "cluster": lambda: cluster(sys.argv[2], place, Path(sys.argv[4])),
        "bucket": lambda: bucket(place, Path(sys.argv[4])),
        "again": lambda: again(place),
    }
    print(json.dumps(cases[sys.argv[1]]()))
