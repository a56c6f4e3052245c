"""The verb `embed`: a folder or table of images to a file of vectors."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, human_bytes, need_space, write_json
from lookalike.core.progress import Progress, say
from lookalike.models.backbones import DEFAULT
from lookalike.models.embedder import Embedder
from lookalike.models.inference.inputs import Failure, is_table

if TYPE_CHECKING:
    from lookalike.data import Table

BLOCK = 4096  # rows in memory at a time
SAMPLE = 64  # images by which a coarser precision is judged


@dataclass(frozen=True)
class Embedded:
    """What `embed` did."""

    out: Path
    count: int
    dim: int
    bytes: int
    model: str
    fingerprint: str
    seconds: float
    failures: list[Failure] = field(default_factory=list)
    dry_run: bool = False
    cost: dict[str, Any] | None = None
    """What a precision below f32 did to the vectors: their cosine with those of f32, over some of the images."""

    def to_json(self) -> dict[str, Any]:
        return {
            "out": self.out.as_posix(),
            "count": self.count,
            "dim": self.dim,
            "bytes": self.bytes,
            "model": self.model,
            "fingerprint": self.fingerprint,
            "seconds": round(self.seconds, 3),
            "failures": [failure.to_json() for failure in self.failures],
            "dry_run": self.dry_run,
            "cost": self.cost,
        }


def embed(
    *,
    source: str | Path | Table,
    out: str | Path,
    model: str | Path | Embedder = DEFAULT,
    layout: str = "auto",
    split: str | None = None,
    size: int | None = None,
    pooling: str | None = None,
    weights: str | Path | None = None,
    batch_size: int = 32,
    runtime: str = "auto",
    precision: str = "f32",
    device: str = "auto",
    on_error: str = "skip",
    dry_run: bool = False,
    progress: bool = True,
) -> Embedded:
    """Embed every image of a folder or table into `out`: `.npy`, or `.parquet` with row_id, path and vector.

    Beside a `.npy` lies a `.json` of the same name that says which row is which image. Unreadable
    images are left out and listed; `on_error="raise"` stops at the first. `precision="bf16"` is faster and less
    exact: what it costs is measured on some of the images, and said.
    """
    out = Path(out)
    if out.suffix not in (".npy", ".parquet"):
        raise LookalikeError(f"`{out}` ends neither in .npy nor in .parquet: that says which kind of file to write.")
    if is_table(source):
        table: Any = source
    else:
        from lookalike.data import read_table

        table = read_table(source, layout=layout, split=split, progress=progress)
    if not len(table):
        raise LookalikeError(f"There are no images in `{source}`.")
    if not isinstance(model, Embedder):
        model = Embedder.from_pretrained(model, device=device, pooling=pooling, size=size, weights=weights)
    wanted = len(table) * (model.dim * 4 + 200)
    need_space(out, wanted, f"Embedding {len(table):,} images")
    say(f"{len(table):,} images to vectors of {model.dim} numbers: about {human_bytes(wanted)}.")
    start = time.monotonic()
    if dry_run:
        return Embedded(out, len(table), model.dim, wanted, model.name, model.fingerprint(), 0.0, dry_run=True)
    failures: list[Failure] = []
    options = {"batch_size": batch_size, "runtime": runtime, "precision": precision}
    blocks = _blocks(model, table, failures, on_error, options, progress)
    about = {"model": model.name, "fingerprint": model.fingerprint(), "precision": precision}
    with atomic_file(out) as part:
        if out.suffix == ".npy":
            count = _write_npy(part, blocks, len(table), model.dim)
        else:
            count = _write_parquet(part, blocks, table, model.dim, {**about, "preprocess": model.preprocess.to_json()})
        if not count:
            raise LookalikeError(f"None of the {len(table):,} images in `{source}` could be read.")
        if out.suffix == ".npy":
            _write_names(out.with_suffix(".json"), table, failures, about)
    if failures:
        say(f"{len(failures):,} of {len(table):,} images could not be read and were left out.")
    seconds = time.monotonic() - start
    cost = None if precision == "f32" else _cost(model, table.take(np.arange(min(SAMPLE, len(table)))), options)
    size, name = out.stat().st_size, model.fingerprint()
    return Embedded(out, count, model.dim, size, model.name, name, seconds, failures, cost=cost)


def _cost(model: Embedder, table: Any, options: dict[str, Any]) -> dict[str, Any]:
    """How far a coarser precision moves the vectors of some images, in words too."""
    coarse, exact = (model.encode(table, on_error="skip", **options | over)[0] for over in ({}, {"precision": "f32"}))
    cosine = (coarse.astype(np.float64) * exact).sum(axis=1)
    if not len(cosine):
        return {"images": 0}
    found = {"images": len(cosine), "mean_cosine": float(cosine.mean()), "least_cosine": float(cosine.min())}
    say(
        f"{options['precision']} is less exact than f32: over {len(cosine):,} of the images the cosine of the two is "
        f"{found['mean_cosine']:.5f} on average and {found['least_cosine']:.5f} at least; do not mix such vectors."
    )
    return found


def _blocks(
    model: Embedder, table: Any, failures: list[Failure], on_error: str, options: dict[str, Any], progress: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(indices into the table, their vectors), a few thousand at a time."""
    with Progress("Embedding", len(table), shown=progress) as bar:
        for start in range(0, len(table), BLOCK):
            indices = np.arange(start, min(start + BLOCK, len(table)))
            answer = model.encode(table.take(indices), on_error=on_error, **options)
            rows, bad = answer if on_error == "skip" else (answer, [])
            failures += [Failure(start + f.index, f.name, f.reason) for f in bad]
            bar.advance(len(indices))
            yield np.delete(indices, [failure.index for failure in bad]), rows


def _write_npy(part: Path, blocks: Iterator[tuple[np.ndarray, np.ndarray]], expected: int, dim: int) -> int:
    count = 0
    with part.open("wb") as file:
        begin = _npy_header(file, expected, dim)
        for _, rows in blocks:
            file.write(np.ascontiguousarray(rows, np.float32).data)
            count += len(rows)
        if count != expected:  # images were left out: say how many rows there really are
            file.seek(0)
            if _npy_header(file, count, dim) != begin:
                raise AssertionError("the header of a .npy file has room for any number of rows")
    return count


def _npy_header(file: IO[bytes], count: int, dim: int) -> int:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, dim)})
    return file.tell()


def _write_names(path: Path, table: Any, failures: list[Failure], about: dict[str, Any]) -> None:
    kept = np.delete(np.arange(len(table)), [failure.index for failure in failures])
    names = {name: [str(value) for value in table.column(name)[kept]] for name in ("row_id", "path")}
    write_json(path, {**about, **names})


def _write_parquet(
    part: Path, blocks: Iterator[tuple[np.ndarray, np.ndarray]], table: Any, dim: int, about: dict[str, Any]
) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kept = [name for name in ("row_id", "path", "label", "split") if name in table.names]
    fields = [table.arrow.schema.field(name) for name in kept]
    schema = pa.schema([*fields, pa.field("vector", pa.list_(pa.float32(), dim))])
    schema = schema.with_metadata({b"lookalike": json.dumps(about).encode()})
    count = 0
    with part.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for indices, rows in blocks:
            arrow = table.arrow.select(kept).take(pa.array(indices))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), dim)
            columns = [*(arrow[name].combine_chunks() for name in kept), vectors]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(rows)
    return count
