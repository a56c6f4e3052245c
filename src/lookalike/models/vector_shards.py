"""Vectors in parts: a plan of shards, each embedded whole and once, by whatever engine, into a folder or bucket.

A shard is named by a hash of its rows, their content (size and time of change), the model and what else decides the
bits of a vector, and its file `part-HASH.parquet` appears whole or not at all. So a part that is there is done, a retry
writes the same bytes, and nobody needs a lock: the result is exactly-once under Ray, under a Slurm array and under
plain processes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lookalike.core.device import CPU
from lookalike.core.engine import Engine, check_versions
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.files import (
    atomic_file,
    check_format,
    clean_folder,
    hash_bytes,
    read_json,
    stamp,
    to_json,
    write_bytes,
    write_json,
)
from lookalike.core.imports import package_versions
from lookalike.core.locks import wait_for_lock
from lookalike.core.progress import Progress, plural, say, warn
from lookalike.core.storage import Mirror, RemotePath, is_url, list_names, location
from lookalike.data import Table
from lookalike.data.decoding import DECODER
from lookalike.data.image_reader import REMOTE_READERS, DecodedImage, ReadFailure, decode_row, read_batches
from lookalike.models.embedder import Embedder
from lookalike.models.inference import openvino_runtime, runtimes
from lookalike.models.inference.inputs import ImageStream
from lookalike.models.inference.runtime_base import RuntimeUnavailable

PLAN, MANIFEST, MODEL = "plan.parquet", "manifest.json", "model"
SHARD_ROWS = 1024
"""Images of a shard: seconds of work, a few megabytes."""
ATTEMPTS = 3  # of a shard, where storage does not answer or the like
GROUP_ROWS = 65_536  # of the plan's row groups: as much of it is in memory at a time
PART = "_part"  # the plan's column with the name of a row's file
FACTS = ("hash", "content_id", "ratio", "color")
"""Columns of a part beside those of its table: what indexing needs of an image, so that it reads none."""


class ShardsFailed(LookalikeError):
    """Shards that could not be embedded; all others are done."""

    exit_code = Exit.FAILED


@dataclass(frozen=True)
class Job:
    """What the shards of a job have in common; stored in the plan.

    Args:
        dest: Where the parts go.
        name: Name of the table.
        root: Folder or URL of the images.
        settings: What decides the vectors' bits: fingerprint, precision, runtime, block size, decoder and so on.
        versions: Versions of the packages that compute them.
        request: What the user asked for: of processes that share a job, only the first one scans the images.
        batch_size: Images run together.
        device: Device to run on.
    """

    dest: str
    name: str
    root: str | None
    settings: dict[str, Any]
    versions: dict[str, str]
    request: dict[str, Any]
    batch_size: int = 32
    device: str = "auto"

    def part_name(self, rows: pa.Table) -> str:
        """Return the file of a shard: a hash of what it is made from."""
        text = json.dumps([self.settings, self.name, rows.column_names], sort_keys=True, default=to_json)
        return f"part-{hash_bytes(text, *itertools.chain(*map(_column_bytes, rows.columns)))}.parquet"


def _column_bytes(column: pa.ChunkedArray) -> Iterator[bytes]:
    """The values of a column as bytes, however Arrow holds them."""
    kind = column.type
    yield column.is_null().to_numpy().tobytes()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = column.fill_null("" if pa.types.is_string(kind) else b"")
        yield pc.binary_length(values).to_numpy().tobytes()
        joined = [chunk.cast(pa.binary()) for chunk in values.chunks]
        yield b"".join(value for chunk in joined for value in chunk.to_pylist())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        yield column.fill_null(0).to_numpy().tobytes()
    else:
        yield json.dumps(column.to_pylist(), default=str).encode()


# --- the plan ---


def resolve_runtime(model: Embedder, runtime: str) -> str:
    """Return the runtime that `auto` stands for: the same for every shard, however many images it has."""
    if runtime != "auto":
        return runtime
    if model.device.type == CPU and openvino_runtime.installed():
        try:
            openvino_runtime.convert(model, "embedding")
            return "openvino"
        except RuntimeUnavailable as error:
            warn(f"{error} Continuing with torch.")
    return "torch"


def make_plan(
    table: Table, model: Embedder, dest: Path, options: Mapping[str, Any], block: int, request: dict[str, Any]
) -> tuple[Job, Table]:
    """Cut a table into shards.

    Args:
        table: The images.
        model: The model.
        dest: Where the parts go.
        options: `batch_size`, `runtime`, `precision` and `device`.
        block: Images of a shard.
        request: The arguments of the command.

    Returns:
        The job, and the table with the name of every row's part.
    """
    settings = {
        "model": model.name,
        "fingerprint": model.fingerprint(),
        "dim": model.dim,
        "precision": options["precision"],
        "runtime": resolve_runtime(model, options["runtime"]),
        "block": block,
        "decoder": DECODER,
        "preprocess": model.preprocess.to_json(),
    }
    root = None if table.root is None else str(table.root)
    job = Job(
        str(dest), table.name, root, settings, package_versions(), request, options["batch_size"], options["device"]
    )
    names: list[str] = []
    for start in range(0, len(table), block):
        rows = table.arrow.slice(start, block)
        names += [job.part_name(rows)] * len(rows)
    return job, table.with_column(PART, pa.array(names, pa.string()))


def write_plan(job: Job, table: Table, model: Embedder) -> None:
    """Write the plan and the model that every worker computes with, unless they are there already."""
    dest = location(job.dest)
    with contextlib.nullcontext() if isinstance(dest, RemotePath) else wait_for_lock(dest / ".lock"):
        _write_plan(job, table, model, dest)


def _write_plan(job: Job, table: Table, model: Embedder, dest: Path) -> None:
    old = read_plan(dest)
    folder = dest / MODEL
    if old is None or old[0].settings["fingerprint"] != job.settings["fingerprint"] or not folder.is_dir():
        if isinstance(folder, RemotePath):
            with tempfile.TemporaryDirectory(prefix="lookalike-") as place:
                model.save_pretrained(Path(place, MODEL))
                Mirror(folder, Path(place, MODEL)).send()
        else:
            model.save_pretrained(folder)
    about = stamp("vectors", {key: value for key, value in vars(job).items() if key not in ("dest", "device")})
    metadata = {b"lookalike": json.dumps(about, default=to_json).encode()}
    if old is not None and old[0].settings == job.settings and old[1].equals(table.arrow):
        return
    (dest / MANIFEST).unlink(missing_ok=True)  # of another plan
    with atomic_file(dest / PLAN) as part, part.open("wb") as file:
        pq.write_table(table.arrow.replace_schema_metadata(metadata), file, row_group_size=GROUP_ROWS)


def read_plan(dest: Path) -> tuple[Job, pa.Table] | None:
    """Return the job and the rows of a plan; None where there is none."""
    try:
        with (dest / PLAN).open("rb") as file:
            rows = pq.read_table(file)
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError) as error:
        raise LookalikeError(f"`{dest / PLAN}` is damaged: delete it, and embed again.") from error
    about = check_format("vectors", json.loads((rows.schema.metadata or {}).get(b"lookalike", b"0")), dest / PLAN)
    values = {name: about[name] for name in ("name", "root", "settings", "versions", "request", "batch_size")}
    return Job(str(dest), **values), rows.replace_schema_metadata(None)


# --- a shard ---


@functools.lru_cache(maxsize=1)
def load_model(dest: str, fingerprint: str, device: str) -> Embedder:
    """Load the model of a job, once a process; that of a bucket is fetched once a machine."""
    folder = location(dest) / MODEL
    model = Embedder.from_pretrained(folder, device=device)
    if model.fingerprint() != fingerprint:
        raise LookalikeError(f"The model in `{folder}` is not the one of the plan: delete the folder, and embed again.")
    return model


def embed_shard(job: Job, part: str, rows: bytes) -> dict[str, Any]:
    """Embed one shard and write its part; runs on any node.

    Args:
        job: What all shards have in common.
        part: Name of the file.
        rows: The shard's rows of the table, as an Arrow stream.

    Returns:
        File, number of vectors, checksum, and the unreadable images.
    """
    check_versions(job.versions)
    arrow = pa.ipc.open_stream(rows).read_all()
    table = Table(job.name, None if job.root is None else location(job.root), arrow)
    model = load_model(job.dest, job.settings["fingerprint"], job.device)
    images, vectors, failures = _compute(job, model, table)
    content = _part_bytes(job, table, images, vectors, failures)
    write_bytes(location(job.dest) / part, content)
    return describe_part(part, content, len(vectors), failures)


def _compute(
    job: Job, model: Embedder, table: Table
) -> tuple[dict[int, DecodedImage], np.ndarray, list[dict[str, Any]]]:
    """The readable images of a shard by row, their vectors, and the images that cannot be read."""
    side = job.settings["preprocess"]["size"] / job.settings["preprocess"]["crop"]
    images: dict[int, DecodedImage] = {}
    failures: list[dict[str, Any]] = []
    groups = (range(i, min(i + job.batch_size, len(table))) for i in range(0, len(table), job.batch_size))

    def batches() -> Iterator[np.ndarray]:
        load = functools.partial(_load, table, side, model)
        pixels: list[np.ndarray] = []
        workers = REMOTE_READERS if table.root is not None and is_url(table.root) else None
        for group, results in read_batches(load, groups, workers=workers, adaptive=workers is None):
            for row, result in zip(group, results, strict=True):
                if isinstance(result, ReadFailure):
                    names = {"id": table.row(row)["row_id"], "path": table.row(row)["path"]}
                    failures.append({**names, "reason": result.reason})
                else:
                    images[row] = result
                    assert result.pixels is not None
                    pixels.append(result.pixels)
            # Always full batches: an unreadable image must not change with whom the others are computed.
            while len(pixels) >= job.batch_size:
                yield np.stack(pixels[: job.batch_size])
                del pixels[: job.batch_size]
        if pixels:
            yield np.stack(pixels)

    source, options = ImageStream(iter(()), len(table)), job.settings
    runtime = runtimes.select_runtime(
        model, "embedding", options["runtime"], options["precision"], source, job.batch_size
    )
    done = [np.array(rows, np.float32) for rows in runtime.run(batches())]
    vectors = np.concatenate(done) if done else np.empty((0, model.dim), np.float32)
    if not np.isfinite(vectors).all():
        raise LookalikeError(f"The model {model.name} computes vectors with NaN or infinity: it is damaged.")
    return images, vectors, failures


def _load(table: Table, side: float, model: Embedder, row: int) -> DecodedImage:
    return decode_row(table, row, side, model.crop)


def _part_bytes(
    job: Job, table: Table, images: Mapping[int, DecodedImage], vectors: np.ndarray, failures: list[dict[str, Any]]
) -> bytes:
    """A part as a Parquet file in memory: built whole, because a stream that fails would publish what it has."""
    rows = table.take(np.array(sorted(images), np.int64)).arrow
    names = [name for name in ("path", "row_id", "label", "split") if name in rows.column_names]
    columns = {"id" if name == "row_id" else name: rows[name].combine_chunks() for name in names}
    facts = [images[row] for row in sorted(images)]
    columns |= {name: pa.array([_fact(image, name) for image in facts]) for name in FACTS}
    dim = job.settings["dim"]
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), dim)
    about = {key: job.settings[key] for key in ("model", "fingerprint", "precision", "preprocess")}
    about["unreadable"] = failures
    metadata = {b"lookalike": json.dumps(about, default=to_json).encode()}
    metadata[b"model_fingerprint"] = job.settings["fingerprint"].encode()
    file = io.BytesIO()
    pq.write_table(pa.table(columns, metadata=metadata), file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def _fact(image: DecodedImage, name: str) -> Any:
    return image.content if name == "content_id" else getattr(image, name)


def describe_part(part: str, content: bytes, count: int, failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest says about a part."""
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return {"file": part, "rows": count, "bytes": len(content), "checksum": digest, "unreadable": failures}


def read_part(dest: Path, part: str) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of a part, and what the manifest says about it.

    Args:
        dest: Folder of the parts.
        part: Name of the file.

    Raises:
        LookalikeError: It is missing or damaged.
    """
    try:
        content = (dest / part).read_bytes()
        rows = pq.read_table(io.BytesIO(content), page_checksum_verification=True)
        about = json.loads(rows.schema.metadata[b"lookalike"])
    except FileNotFoundError:
        raise LookalikeError(f"`{dest / part}` is missing: run `lookalike embed` again.") from None
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError):
        raise LookalikeError(f"`{dest / part}` is damaged: delete it, and run `lookalike embed` again.") from None
    return rows, describe_part(part, content, len(rows), about["unreadable"])


# --- the job ---


class _Shards(Mapping[str, dict[str, Any]]):
    """Arguments of shards by part, made when an engine asks for them."""

    def __init__(self, job: Job, rows: pa.Table, starts: Mapping[str, tuple[int, int]]) -> None:
        self.job, self.rows, self.starts = job, rows, starts

    def __getitem__(self, part: str) -> dict[str, Any]:
        sink = pa.BufferOutputStream()
        rows = self.rows.slice(*self.starts[part]).drop_columns([PART])
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return {"job": self.job, "part": part, "rows": sink.getvalue().to_pybytes()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.starts)

    def __len__(self) -> int:
        return len(self.starts)


def parse_share(shards: str | None) -> tuple[int, int]:
    """Return number and count of `K/N`, 1-based; `1/1` for None.

    Args:
        shards: The text.

    Example:
        >>> parse_share("3/64")
        (3, 64)
    """
    match = re.fullmatch(r"(\d+)/(\d+)", shards or "1/1")
    number, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= number <= count:
        raise LookalikeError(f"--shards is `{shards}`; it must be K/N with K from 1 to N, such as 3/64.")
    return number, count


def run_job(
    job: Job, rows: pa.Table, engine: Engine, *, share: tuple[int, int] = (1, 1), progress: bool = True
) -> tuple[dict[str, Any], int]:
    """Embed the shards of a plan that are not there yet, and write the manifest when all are.

    Args:
        job: The job.
        rows: The rows of the plan.
        engine: What runs the shards.
        share: Number and count of the processes that share the plan, each with an engine of its own.
        progress: Whether to show progress.

    Returns:
        The manifest, or what it would say of this share as long as others are not done, and the number of parts
        that were embedded now.

    Raises:
        ShardsFailed: Some could not be embedded.
    """
    dest = location(job.dest)
    places, there = _places(rows), list_names(dest)
    if share == (1, 1) and MANIFEST in there:
        document = read_manifest(dest)
        sizes = {one["file"]: one["bytes"] for one in document["parts"]}
        if list(sizes) == list(places) and all(there.get(part) == size for part, size in sizes.items()):
            return document, 0
    mine = dict(itertools.islice(places.items(), share[0] - 1, None, share[1]))
    waiting = {part: place for part, place in mine.items() if part not in there}
    known: dict[str, dict[str, Any]] = {}
    failed: dict[str, BaseException] = {}
    if len(mine) > len(waiting):
        say(f"{len(mine) - len(waiting):,} of {plural(len(mine), 'shard')} are done already.")
    try:
        with Progress("Embedding", sum(count for _, count in mine.values()), shown=progress) as bar:
            bar.done = (bar.total or 0) - sum(count for _, count in waiting.values())
            for outcome in engine.run(embed_shard, _Shards(job, rows, waiting), attempts=ATTEMPTS):
                if outcome.error is None:
                    known[outcome.key] = outcome.result
                else:
                    failed[outcome.key] = outcome.error
                    warn(f"Shard {outcome.key} failed on {outcome.node or 'every worker'}: {outcome.error}")
                bar.advance(waiting[outcome.key][1], note=f"{len(failed)} shards failed" if failed else "")
    except KeyboardInterrupt as error:
        done = len(mine) - len(waiting) + len(known)
        raise type(error)(
            f"Stopped. {done:,} of {plural(len(mine), 'shard')} are in `{dest}`; run the same command to continue."
        ) from None
    if failed:
        raise _failure(failed, places, len(mine), dest)
    there = list_names(dest)
    missing = sum(part not in there for part in places)
    if missing:
        say(f"This share is done; {missing:,} of {plural(len(places), 'shard')} are left to others.")
    with ThreadPoolExecutor(8) as pool:  # parts of earlier runs are read
        wanted = mine if missing else places
        documents = list(pool.map(lambda part: known.get(part) or read_part(dest, part)[1], wanted))
    document = _document(job, documents)
    if not missing:
        _close(dest, document, len(rows))
    return document, len(known)


def _places(rows: pa.Table) -> dict[str, tuple[int, int]]:
    """First row and number of rows of every part, in order."""
    if not len(rows):
        return {}
    runs = pc.run_end_encode(rows[PART].combine_chunks())
    ends = runs.run_ends.to_numpy()
    starts = np.concatenate([[0], ends[:-1]])
    return {part: (int(a), int(b - a)) for part, a, b in zip(runs.values.to_pylist(), starts, ends, strict=True)}


def _failure(
    failed: Mapping[str, BaseException], places: Mapping[str, tuple[int, int]], count: int, dest: Path
) -> LookalikeError:
    lines = []
    for part, error in itertools.islice(failed.items(), 5):
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        lines.append(f"{part} (images {places[part][0]:,} to {sum(places[part]) - 1:,}): {reason}")
    return ShardsFailed(
        f"{len(failed):,} of {plural(count, 'shard')} failed; the others are in `{dest}`: {'; '.join(lines)}. "
        "Run the same command to try them again."
    )


def _document(job: Job, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of some parts."""
    parts = [{key: value for key, value in one.items() if key != "unreadable"} for one in documents]
    unreadable = [{**image, "file": one["file"]} for one in documents for image in one["unreadable"]]
    images = sum(one["rows"] for one in documents)
    facts = {"versions": job.versions, "images": images, "parts": parts, "unreadable": unreadable}
    return stamp("vectors", {**job.settings, **facts})


def _close(dest: Path, document: dict[str, Any], planned: int) -> None:
    """Write the manifest, and remove parts of an earlier plan and temporary files of killed writers."""
    if not document["images"]:
        raise LookalikeError(f"None of the {planned:,} images could be read.")
    current = {one["file"] for one in document["parts"]}
    for name in list_names(dest):
        if re.fullmatch(r"part-[0-9a-f]{32}\.parquet", name) and name not in current:
            (dest / name).unlink(missing_ok=True)
    if not isinstance(dest, RemotePath):
        clean_folder(dest)
    write_json(dest / MANIFEST, document)


def read_manifest(dest: Path) -> dict[str, Any]:
    """Return the manifest of a finished job.

    Args:
        dest: Folder of the parts.

    Raises:
        LookalikeError: The job is not finished, or the manifest is damaged.
    """
    mend = "Run `lookalike embed` again."
    return check_format("vectors", read_json(dest / MANIFEST, "manifest of vectors", mend=mend), dest / MANIFEST)


def verify(dest: Path) -> dict[str, Any]:
    """Compare every part with the manifest, and return the manifest.

    Args:
        dest: Folder of the parts.

    Raises:
        ShardsFailed: Parts are missing or damaged, or ids occur twice.
    """
    document = read_manifest(dest)
    ids: set[str] = set()

    def check(one: dict[str, Any]) -> tuple[list[str], str]:
        try:
            rows, now = read_part(dest, one["file"])
        except LookalikeError as error:
            return [], str(error)
        if now["checksum"] == one["checksum"]:
            return rows["id"].to_pylist(), ""
        return [], f"`{dest / one['file']}` is not the file of the manifest: delete it, and embed again."

    count, wrong = 0, []
    with ThreadPoolExecutor(8) as pool:
        for names, problem in pool.map(check, document["parts"]):
            count += len(names)
            ids.update(names)
            wrong += [problem] if problem else []
    if len(ids) < count:
        wrong.append(f"{plural(count - len(ids), 'id')} occur in several parts.")
    if wrong:
        raise ShardsFailed(f"{plural(len(wrong), 'problem')} of `{dest}`: {' '.join(wrong[:5])}")
    return document


__all__ = ["Job", "embed_shard", "make_plan", "read_manifest", "read_part", "run_job", "verify"]
