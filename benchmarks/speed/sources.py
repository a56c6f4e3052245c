"""Images from inside tables and shards against the same images from files: encode at 224 px.

The same images of CUB as files, as a Parquet file with images in structs of bytes and path (without compression, and
with Snappy), as a `datasets.Dataset` of that file, shuffled, and as a tar shard. Those in a bucket, as files and as
Parquet, are compared with the same local ones on one core, because the S3 server, which elsewhere is another machine,
needs the other one. Everything is measured in turns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved_rates, ratio, rounded
from lookalike.core import seeds
from lookalike.core.device import CPU

SIZE, IMAGES, ROUNDS, LEAST = 224, 384, 5, 0.85


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    from lookalike.models import Embedder

    torch.set_num_threads(context.threads)
    files = sorted((context.folder("cub") / "images").rglob("*.jpg"))
    files = [files[i] for i in seeds.numpy_rng(0, "bench", "sources").permutation(len(files))[:IMAGES]]
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU, size=SIZE)
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder:
        sources = make_sources(files, Path(folder))
        speeds = _speeds(model, sources)
        Path(folder, "files.json").write_text(json.dumps([str(file) for file in files]))
        command = [sys.executable, "-m", "benchmarks.speed.sources", folder]
        around = {**os.environ, "LOOKALIKE_THREADS": "1", "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        remote = json.loads(done.stdout.splitlines()[-1])
    ratios = {name: ratio(values, speeds["files"]) for name, values in speeds.items() if name != "files"}
    ratios |= {f"{name} in S3": ratio(remote[f"{name} in S3"], remote[name]) for name in ("files", "parquet")}
    figures = {
        "images": IMAGES,
        "size": SIZE,
        "images per second": {name: rounded(values) for name, values in speeds.items()},
        "images per second on one core": {name: rounded(values) for name, values in remote.items()},
        "of the speed from files": {name: round(value, 3) for name, value in ratios.items()},
    }
    barred = [name for name in ratios if name != "parquet, snappy"]
    return figures, [Bar(f"{SIZE} px: {name} / files", ratios[name], LEAST) for name in barred]


def _speeds(model: Any, sources: dict[str, Any]) -> dict[str, list[float]]:
    from lookalike.data import read_table

    tables = {name: read_table(source) for name, source in sources.items()}
    turns = {name: lambda table=table: len(model.encode(table, runtime="openvino")) for name, table in tables.items()}
    return interleaved_rates(turns, ROUNDS)


def in_bucket(folder: Path) -> dict[str, list[float]]:
    """Images per second of this process on one core, from here and from a bucket of an S3 server on another core."""
    from tests.bucket_server import Server

    from lookalike.core.storage import location
    from lookalike.models import Embedder

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    server = Server()
    os.sched_setaffinity(0, {cores[0]})
    os.environ.update(server.environment)
    try:
        files, parquet = list(map(Path, json.loads((folder / "files.json").read_text()))), folder / "none.parquet"
        for number, file in enumerate(files):
            location(f"s3://data/files/{number:04d}.jpg").write_bytes(file.read_bytes())
        location("s3://data/birds.parquet").write_bytes(parquet.read_bytes())
        sources: dict[str, Any] = {"files": files, "files in S3": "s3://data/files"}
        sources |= {"parquet": parquet, "parquet in S3": "s3://data/birds.parquet"}
        return _speeds(Embedder.from_pretrained("efficientnet_lite0", device=CPU, size=SIZE), sources)
    finally:
        server.close()


def make_sources(files: list[Path], folder: Path) -> dict[str, Any]:
    """The same images as every source that is compared."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": file.read_bytes(), "path": file.name} for file in files], kind)
    table = pa.table({"image": images, "label": [file.parent.name for file in files]})
    sources: dict[str, Any] = {"files": files}
    for name, compression in (("parquet", "none"), ("parquet, snappy", "snappy")):
        sources[name] = folder / f"{compression}.parquet"
        pq.write_table(table, sources[name], compression=compression, use_dictionary=False, row_group_size=100)
    with tarfile.open(folder / "birds.tar", "w") as tar:
        for file in files:
            tar.add(file, file.name)
    sources["tar shard"] = folder / "birds.tar"
    import datasets

    loaded = datasets.load_dataset("parquet", data_files=str(sources["parquet"]), cache_dir=str(folder / "cache"))
    sources["datasets.Dataset"] = loaded["train"].shuffle(seed=0)
    return sources


if __name__ == "__main__":
    print(json.dumps(in_bucket(Path(sys.argv[1]))))
