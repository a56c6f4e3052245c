"""Images from inside tables and shards against the same images from files: encode at 224 px.

The same images of CUB as files, as a Parquet file with images in structs of bytes and path (without compression, and
with Snappy), as a `datasets.Dataset` of that file, shuffled, as a tar shard, and as files and Parquet in a bucket of an
S3 server on this machine. Everything is measured in turns.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved_rates, ratio, rounded
from lookalike.core import seeds
from lookalike.core.device import CPU

SIZE, IMAGES, ROUNDS, LEAST = 224, 384, 5, 0.85


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    from lookalike.data import read_table
    from lookalike.models import Embedder

    torch.set_num_threads(context.threads)
    files = sorted((context.folder("cub") / "images").rglob("*.jpg"))
    files = [files[i] for i in seeds.numpy_rng(0, "bench", "sources").permutation(len(files))[:IMAGES]]
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU, size=SIZE)
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder, bucket() as server:
        sources = make_sources(files, Path(folder))
        sources |= fill_bucket(server, files, sources["parquet"])
        tables = {name: read_table(source) for name, source in sources.items()}
        turns = {
            name: lambda table=table: len(model.encode(table, runtime="openvino")) for name, table in tables.items()
        }
        speeds = interleaved_rates(turns, ROUNDS)
    ratios = {name: ratio(values, speeds["files"]) for name, values in speeds.items() if name != "files"}
    figures = {
        "images": IMAGES,
        "size": SIZE,
        "images per second": {name: rounded(values) for name, values in speeds.items()},
        "of the speed from files": {name: round(value, 3) for name, value in ratios.items()},
    }
    barred = [name for name in ratios if name != "parquet, snappy"]
    return figures, [Bar(f"{SIZE} px: {name} / files", ratios[name], LEAST) for name in barred]


@contextmanager
def bucket() -> Iterator[str]:
    """A bucket of an S3 server on loopback (SeaweedFS), by its URL."""
    from tests.bucket_server import Server

    server, before = Server(), dict(os.environ)
    os.environ.update(server.environment)
    try:
        yield "s3://data"
    finally:
        server.close()
        os.environ.clear()
        os.environ.update(before)


def fill_bucket(bucket: str, files: list[Path], parquet: Path) -> dict[str, Any]:
    """The same images in a bucket: as files, and inside Parquet."""
    from lookalike.core.storage import location

    for number, file in enumerate(files):
        location(f"{bucket}/files/{number:04d}.jpg").write_bytes(file.read_bytes())
    location(f"{bucket}/birds.parquet").write_bytes(parquet.read_bytes())
    return {"files in S3": f"{bucket}/files", "parquet in S3": f"{bucket}/birds.parquet"}


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
