"""The command ``embed``: images to a file of vectors, or to parts that several machines share."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from lookalike.core.device import CPU, resolve
from lookalike.core.engine import Engine, LocalEngine, open_engine
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import atomic_file, format_bytes, require_space, write_json
from lookalike.core.progress import Progress, plural, say
from lookalike.core.storage import is_url, location
from lookalike.data import Table
from lookalike.data.scan import is_ignored
from lookalike.models import vector_shards
from lookalike.models.backbones import DEFAULT_MODEL
from lookalike.models.embedder import Embedder
from lookalike.models.inference.inputs import Failure, is_table
from lookalike.models.inference.pipeline import CropEncoder
from lookalike.models.inference.torch_runtime import MIN_IMAGES
from lookalike.models.vector_shards import SHARD_ROWS

BLOCK = 4096  # rows in memory at a time
SAMPLE = 64  # images on which a lower precision is compared with f32, and the time is estimated


@dataclass(frozen=True)
class EmbedResult:
    """What ``embed`` wrote: the file, its vectors, and the images left out."""

    out: Path
    count: int
    dim: int
    bytes: int
    model: str
    fingerprint: str
    seconds: float
    failures: list[Failure] = field(default_factory=list)
    parts: int = 0
    """Files that a folder or bucket gets; 0 for one file."""
    embedded: int = 0
    """Parts of them that this run embedded."""
    dry_run: bool = False
    precision_loss: dict[str, Any] | None = None
    """Below f32: the cosine similarity with f32 vectors, measured on some of the images."""

    def to_json(self) -> dict[str, Any]:
        failures = [failure.to_json() for failure in self.failures]
        return {**vars(self), "out": self.out.as_posix(), "seconds": round(self.seconds, 3), "failures": failures}


def embed(
    *,
    source: str | Path | Table,
    out: str | Path,
    model: str | Path | Embedder = DEFAULT_MODEL,
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    split: str | None = None,
    size: int | None = None,
    pooling: str | None = None,
    weights: str | Path | None = None,
    batch_size: int = 32,
    runtime: str = "auto",
    precision: str = "f32",
    device: str = "auto",
    on_error: str = "skip",
    engine: str = "local",
    shards: str | None = None,
    block: int = SHARD_ROWS,
    verify: bool = False,
    dry_run: bool = False,
    progress: bool = True,
) -> EmbedResult:
    """Embed every image of a folder or table into a file, or into parts that several machines share.

    A ``.parquet`` file holds path, id, label, split (if there is one) and vector, a list of fixed size; its metadata
    name the model and its fingerprint. Beside a ``.npy`` file lies a ``.json`` file with id and path of every row.

    A folder or URL gets a plan, a Parquet file per shard of the images, and at the end a manifest with checksums and
    the images that cannot be read. A shard that is there is done: run the same command again after any failure, on
    one machine or many at a time.

    Args:
        source: Folder, table or archive of images, here or in a bucket (s3://, gs://).
        out: File to write (.npy or .parquet), or a folder or URL for parts.
        model: Model folder, run, timm or open_clip name.
        layout: Data set layout. Detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        split: Only the images of this split.
        size: Input size in pixels. The model's own by default.
        pooling: Pooling. The model's own by default.
        weights: Local weight file, or "random".
        batch_size: Images decoded and run together.
        runtime: What runs the model: auto, torch, openvino or onnx.
        precision: Precision: f32, or bf16, which is faster and less exact.
        device: Device: auto, cpu, cuda, mps or xpu.
        on_error: Unreadable images: skip them, or raise at the first (of one file).
        engine: What runs the shards of parts: local, ray, or ray://HOST:PORT for a cluster's head.
        shards: Embed share K of N alone, as 3/64, where N processes (of a Slurm array) share the parts.
        block: Images of a shard.
        verify: Compare the parts with their manifest instead, and embed nothing.
        dry_run: Only report what would be written.
        progress: Show a progress bar.

    Returns:
        The number of vectors, their dimension, and the images left out.

    Raises:
        LookalikeError: If there are no readable images, not enough disk space, or shards failed (exit code 4).

    Example:
        >>> model = la.Embedder.from_pretrained("resnet10_small", weights="random")
        >>> result = la.embed(source="photos", out="vectors.npy", model=model, progress=False)
        >>> result.count, np.load("vectors.npy").shape
        (24, (24, 256))
    """
    from lookalike.data import with_columns

    layout = with_columns(layout, image_column, label_column, split_column)
    choose(precision, ("f32", "bf16"), "a precision")
    out = location(out)
    parts = _takes_parts(out)
    if not parts and (engine != "local" or shards or verify):
        raise LookalikeError(f"`{out}` is one file: engines, shards and checks are for a folder or URL of parts.")
    if parts and on_error != "skip":
        raise LookalikeError("Parts list the images that cannot be read in their manifest: leave `on_error` out.")
    if parts:
        out = out.expanduser().absolute()  # workers have folders of their own
        request: dict[str, Any] = {"source": str(source), "model": str(model), "layout": layout, "split": split}
        request |= {"size": size, "pooling": pooling, "weights": weights and str(weights), "precision": precision}
        request |= {"block": block, "runtime": runtime, "batch_size": batch_size}
        if verify:
            start = time.monotonic()
            return _parts_result(out, vector_shards.verify(out), time.monotonic() - start)
        if block < 1 or batch_size < 1:
            raise LookalikeError("A shard and a batch hold at least one image.")
        share = vector_shards.parse_share(shards)
        opened = None if dry_run else open_engine(engine)
        planned = vector_shards.read_plan(out) if shards and not dry_run and isinstance(source, (str, Path)) else None
        if planned is not None and planned.job.request == request:
            model = _open(model, device, pooling, size, weights)
            if planned.is_current(model):
                plan = replace(planned, job=replace(planned.job, device=device))
                return _run_parts(plan, opened, share, progress)
    if is_table(source):
        table: Any = source
    else:
        from lookalike.data import read_table

        table = read_table(source, layout=layout, split=split, progress=progress)
    if not len(table):
        raise LookalikeError(f"There are no images in `{source}`.")
    model = _open(model, device, pooling, size, weights)
    estimated = len(table) * (model.dim * 4 + 200)
    if not is_url(out):
        require_space(out, estimated, f"Embedding {len(table):,} images")
    say(f"{len(table):,} images to vectors of {model.dim} dimensions: about {format_bytes(estimated)}.")
    start = time.monotonic()
    failures: list[Failure] = []
    options = {"batch_size": batch_size, "runtime": runtime, "precision": precision}
    if dry_run:
        seconds = _estimate_seconds(model, table, options)
        facts: Any = (len(table), model.dim, estimated, model.name, model.fingerprint(), seconds)
        return replace(EmbedResult(out, *facts), dry_run=True)
    if parts:
        if table.content is not None:
            raise LookalikeError("Images in memory cannot be sent to workers: save them, or name a file of vectors.")
        job, names = vector_shards.make_plan(table, model, out, options | {"device": device}, block, request)
        plan = vector_shards.write_plan(job, names, table, vector_shards.source_times(source, table), model)
        return _run_parts(plan, opened, share, progress)
    blocks = _blocks(model, table, failures, on_error, options, progress)
    about: dict[str, Any] = {"model": model.name, "fingerprint": model.fingerprint(), "precision": precision}
    with atomic_file(out) as part:
        try:
            if out.suffix == ".npy":
                count = _write_npy(part, blocks, len(table), model.dim)
            else:
                about |= {"preprocess": model.preprocess.to_json()}
                count = _write_parquet(part, blocks, table, model.dim, about)
        except KeyboardInterrupt as error:
            raise type(error)(f"Stopped. `{out}` was not written; --out FOLDER keeps finished parts.") from None
        if not count:
            raise LookalikeError(f"None of the {len(table):,} images in `{source}` could be read.")
        if out.suffix == ".npy":
            _write_names(out.with_suffix(".json"), table, failures, about)
    if failures:
        say(f"{len(failures):,} of {len(table):,} images could not be read and were left out.")
    sample = table.take(np.arange(min(SAMPLE, len(table))))
    facts = (count, model.dim, out.stat().st_size, model.name, model.fingerprint(), time.monotonic() - start, failures)
    done = EmbedResult(out, *facts)
    return done if precision == "f32" else replace(done, precision_loss=_precision_loss(model, sample, options))


def _open(model: str | Path | Embedder, device: str, pooling: str | None, size: int | None, weights: Any) -> Embedder:
    if isinstance(model, Embedder):
        return model
    return Embedder.from_pretrained(model, device=device, pooling=pooling, size=size, weights=weights)


def _takes_parts(out: Path) -> bool:
    """Whether a destination is a folder or URL for parts; raise if it is neither that nor a file of vectors."""
    remote = is_url(out)
    if out.suffix in (".npy", ".parquet") and (remote or not out.is_dir()):
        return False
    if remote or out.is_dir() or not out.suffix:
        if not remote and out.is_file():
            raise LookalikeError(f"`{out}` is a file: name a folder for parts, or a .npy or .parquet file.")
        names = vector_shards.list_names(out)
        if names and not names.keys() & {vector_shards.PLAN, ".lock"} and not all(map(is_ignored, names)):
            raise LookalikeError(f"`{out}` holds other files: choose an empty folder for the parts.")
        return True
    raise LookalikeError(f"`{out}` ends neither in .npy nor in .parquet, and is no folder.")


def _run_parts(plan: vector_shards.Plan, engine: Engine | None, share: tuple[int, int], progress: bool) -> EmbedResult:
    start = time.monotonic()
    assert engine is not None
    if engine.name == "local" and resolve(plan.job.device).type != CPU:
        engine = LocalEngine(1)  # several processes would take turns on an accelerator
    document, embedded = vector_shards.run_job(plan, engine, share=share, progress=progress)
    if document["unreadable"]:
        say(f"{plural(len(document['unreadable']), 'image')} could not be read; `{vector_shards.MANIFEST}` lists them.")
    return _parts_result(location(plan.job.dest), document, time.monotonic() - start, embedded)


def _parts_result(out: Path, document: dict[str, Any], seconds: float, embedded: int = 0) -> EmbedResult:
    size = sum(part["bytes"] for part in document["parts"])
    about = (document["dim"], size, document["model"], document["fingerprint"], seconds)
    failures = [Failure(i, one["path"], one["reason"]) for i, one in enumerate(document["unreadable"])]
    return EmbedResult(out, document["images"], *about, failures, len(document["parts"]), embedded)


def _estimate_seconds(model: Embedder, table: Any, options: dict[str, Any]) -> float:
    """How long embedding a table would take, from a few batches of it, by the runtime that would be used."""
    if options["runtime"] == "auto" and len(table) >= MIN_IMAGES:
        CropEncoder(model, fast=True)
    sample = table.take(np.linspace(0, len(table) - 1, min(len(table), SAMPLE)).astype(int))
    for part in (sample.take(np.arange(min(len(sample), 8))), sample):  # the first ones warm up
        start = time.monotonic()
        model.encode(part, on_error="skip", **options)
    return (time.monotonic() - start) * len(table) / len(sample)


def _precision_loss(model: Embedder, table: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Measure, and report, how far a lower precision moves the vectors of some images."""
    low, exact = (model.encode(table, on_error="skip", **options | over)[0] for over in ({}, {"precision": "f32"}))
    cosine = (low.astype(np.float64) * exact).sum(axis=1)
    if not len(cosine):
        return {"images": 0}
    loss = {"images": len(cosine), "mean_cosine": float(cosine.mean()), "min_cosine": float(cosine.min())}
    say(
        f"{options['precision']} is less exact than f32: the cosine similarity of both over {len(cosine):,} images "
        f"is {loss['mean_cosine']:.5f} on average, {loss['min_cosine']:.5f} at least. Do not mix vectors of both."
    )
    return loss


def _blocks(
    model: Embedder, table: Any, failures: list[Failure], on_error: str, options: dict[str, Any], progress: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield indices into the table and their vectors, a few thousand at a time."""
    with Progress("Embedding", len(table), shown=progress) as bar:
        for start in range(0, len(table), BLOCK):
            indices = np.arange(start, min(start + BLOCK, len(table)))
            output = model.encode(table.take(indices), on_error=on_error, progress=bar, **options)
            rows, skipped = output if on_error == "skip" else (output, [])
            failures += [Failure(start + failure.index, failure.name, failure.reason) for failure in skipped]
            bar.advance(len(skipped))
            if not np.isfinite(rows).all():
                raise LookalikeError(f"The model {model.name} computes vectors with NaN or infinity: it is damaged.")
            yield np.delete(indices, [failure.index for failure in skipped]), rows


def _write_npy(part: Path, blocks: Iterator[tuple[np.ndarray, np.ndarray]], expected: int, dim: int) -> int:
    count = 0
    with part.open("wb") as file:
        begin = _npy_header(file, expected, dim)
        for _, rows in blocks:
            file.write(np.ascontiguousarray(rows, np.float32).data)
            count += len(rows)
        file.seek(0)  # images may have been left out: write the true number of rows
        if _npy_header(file, count, dim) != begin:
            raise AssertionError("the header of a .npy file has the same size for any number of rows")
    return count


def _npy_header(file: IO[bytes], count: int, dim: int) -> int:
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (count, dim)})
    return file.tell()


def _write_names(path: Path, table: Any, failures: list[Failure], about: dict[str, Any]) -> None:
    readable = np.delete(np.arange(len(table)), [failure.index for failure in failures])
    ids, paths = ([str(value) for value in table.column(name)[readable]] for name in ("row_id", "path"))
    write_json(path, {**about, "id": ids, "path": paths})


def _write_parquet(
    part: Path, blocks: Iterator[tuple[np.ndarray, np.ndarray]], table: Any, dim: int, about: dict[str, Any]
) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    if "label" not in table.names:
        table = table.with_column("label", pa.nulls(len(table), pa.string()))
    names = [name for name in ("path", "row_id", "label", "split") if name in table.names]
    fields = [table.arrow.schema.field(name).with_name("id" if name == "row_id" else name) for name in names]
    schema = pa.schema([*fields, pa.field("vector", pa.list_(pa.float32(), dim))])
    known = {b"lookalike": json.dumps(about).encode(), b"model_fingerprint": about["fingerprint"].encode()}
    schema = schema.with_metadata(known)
    count = 0
    with part.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for indices, rows in blocks:
            arrow = table.arrow.select(names).take(pa.array(indices))
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), dim)
            columns = [*(arrow[name].combine_chunks() for name in names), vectors]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(rows)
    return count
