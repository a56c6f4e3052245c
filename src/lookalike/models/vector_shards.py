"""Vectors in parts: a plan of shards, each embedded whole and once, by whatever engine, into a folder or bucket.

A shard is named by a hash of its rows, their content (size and time of change), the model and what else decides the
bits of a vector, and its file `part-HASH.parquet` appears whole or not at all. So a part that is there is done, a retry
writes the same bytes, and nobody needs a lock: the result is exactly-once under Ray, under a Slurm array and under
plain processes. Images that are no longer those of the plan are refused.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lookalike.core import files
from lookalike.core.device import CPU
from lookalike.core.engine import Engine, check_versions
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.imports import package_versions
from lookalike.core.locks import wait_for_lock
from lookalike.core.progress import Progress, plural, say, warn
from lookalike.core.storage import Mirror, RemotePath, is_url, list_names, location
from lookalike.data import Table
from lookalike.data.decoding import DECODER
from lookalike.data.image_reader import REMOTE_READERS, DecodedImage, ReadFailure, decode_row, read_batches
from lookalike.data.scan import changed_ns, kind_of
from lookalike.models.embedder import Embedder
from lookalike.models.inference import openvino_runtime, runtimes
from lookalike.models.inference.inputs import ImageStream
from lookalike.models.inference.runtime_base import RuntimeUnavailable

PLAN, MANIFEST, MODEL = "plan.parquet", "manifest.json", "model"
SHARD_ROWS = 1024
"""Images of a shard: seconds of work, a few megabytes."""
LIBRARIES = {"transformers": "transformers", "open_clip": "open-clip-torch"}  # by the prefix of the architecture
ATTEMPTS = 3  # of a shard, where storage does not answer or the like
GROUP_ROWS = 65_536  # about what a row group of the plan holds, in whole shards: as much of it is in memory at a time
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
        request: The arguments of the command: of processes that share a job, only the first one scans the images.
        device: Device to run on.
    """

    dest: str
    name: str
    root: str | None
    settings: dict[str, Any]
    versions: dict[str, str]
    request: dict[str, Any]
    device: str = "auto"

    @property
    def block(self) -> int:
        """Images of a shard; the last one may have fewer."""
        return int(self.settings["block"])

    def part_name(self, rows: pa.Table) -> str:
        """Return the file of a shard: a hash of what it is made from."""
        text = json.dumps([self.settings, self.name, rows.column_names], sort_keys=True, default=files.to_json)
        return f"part-{files.hash_bytes(text, *itertools.chain(*map(_column_bytes, rows.columns)))}.parquet"


def _column_bytes(column: pa.ChunkedArray) -> Iterator[bytes]:
    """The values of a column as bytes, however Arrow holds them."""
    kind = column.type
    yield column.is_null().to_numpy().tobytes()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        values = column.fill_null("" if pa.types.is_string(kind) else b"")
        yield pc.binary_length(values).to_numpy().tobytes()
        yield b"".join(values.cast(pa.binary()).to_pylist())
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


def source_times(source: Any, table: Table) -> dict[str, int]:
    """When a source here changed last: its file, or its folders (of images and around them) and files of metadata.

    A folder changes with every image that comes or goes, so that those who share a plan need not scan for them.
    """
    if not isinstance(source, (str, Path)) or is_url(source) or is_url(table.root):
        return {}
    top = Path(source).expanduser().absolute()
    places = {top}
    if top.is_dir() and table.root is not None:
        folders = {""}
        for folder in pc.unique(pc.replace_substring_regex(table.arrow["path"], r"/?[^/]*$", "")).to_pylist():
            while folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        places |= {table.root / folder for folder in folders}
        places |= {path for path in top.iterdir() if kind_of(path.name) != "image" and path.is_file()}
    return read_times(map(str, places))


def read_times(places: Iterable[str]) -> dict[str, int]:
    """When files and folders changed last; 0 for those that are gone."""
    times = {}
    for place in sorted(places):
        try:
            times[place] = changed_ns(Path(place).stat())
        except OSError:
            times[place] = 0
    return times


@dataclass
class Plan:
    """A job, and its images cut into shards, of which only some rows are in memory at a time.

    Args:
        job: The job.
        parts: File of every shard, in order.
        times: `source_times` of the images.
        file: The open file of the rows.
    """

    job: Job
    parts: list[str]
    times: dict[str, int]
    file: pq.ParquetFile
    _group: tuple[int, pa.Table] | None = None

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def count(self, number: int) -> int:
        """Images of a shard."""
        return min(self.job.block, len(self) - number * self.job.block)

    def rows(self, number: int) -> pa.Table:
        """The rows of a shard, as they were when the plan was made."""
        group, place = divmod(number, _shards_of_group(self.job.block))
        changed = LookalikeError(
            f"`{location(self.job.dest) / PLAN}` was replaced or is damaged: run the same command again, and delete "
            "the file first if that does not help."
        )
        if self._group is None or self._group[0] != group:
            try:
                self._group = (group, self.file.read_row_group(group).replace_schema_metadata(None))
            except (pa.ArrowException, OSError) as error:
                raise changed from error
        rows = self._group[1].slice(place * self.job.block, self.job.block).combine_chunks()
        if self.job.part_name(rows) != self.parts[number]:
            raise changed
        return rows

    def table(self) -> pa.Table:
        """All rows."""
        return self.file.read().replace_schema_metadata(None)

    def is_current(self, model: Embedder) -> bool:
        """Whether model and images are still those of the plan, as far as it can be seen without a scan."""
        return self.job.settings["fingerprint"] == model.fingerprint() and read_times(self.times) == self.times


def _shards_of_group(block: int) -> int:
    return max(1, GROUP_ROWS // block)


def make_plan(
    table: Table, model: Embedder, dest: Path, options: Mapping[str, Any], block: int, request: dict[str, Any]
) -> tuple[Job, list[str]]:
    """Cut a table into shards.

    Args:
        table: The images.
        model: The model.
        dest: Where the parts go.
        options: `batch_size`, `runtime`, `precision` and `device`.
        block: Images of a shard.
        request: The arguments of the command.

    Returns:
        The job, and the file of every shard.
    """
    settings = {"model": model.name, "fingerprint": model.fingerprint(), "dim": model.dim}
    settings |= {"precision": options["precision"], "runtime": resolve_runtime(model, options["runtime"])}
    settings |= {"block": block, "batch_size": options["batch_size"], "decoder": DECODER}
    settings |= {"preprocess": model.preprocess.to_json()}
    unused = set(LIBRARIES.values()) - {LIBRARIES.get(model.architecture.partition(":")[0])}
    versions = {name: value for name, value in package_versions().items() if name not in unused}
    root = None if table.root is None else str(table.root)
    job = Job(str(dest), table.name, root, settings, versions, request, options["device"])
    return job, [job.part_name(table.arrow.slice(start, block)) for start in range(0, len(table), block)]


def write_plan(job: Job, parts: list[str], table: Table, times: dict[str, int], model: Embedder) -> Plan:
    """Write the plan and the model that every worker computes with, unless they are there already."""
    dest = location(job.dest)
    with contextlib.nullcontext() if isinstance(dest, RemotePath) else wait_for_lock(dest / ".lock"):
        old, folder = read_plan(dest), dest / MODEL
        if old is None or old.job.settings["fingerprint"] != job.settings["fingerprint"] or not folder.is_dir():
            if isinstance(folder, RemotePath):
                with tempfile.TemporaryDirectory(prefix="lookalike-") as place:
                    model.save_pretrained(Path(place, MODEL))
                    Mirror(folder, Path(place, MODEL)).send()
            else:
                model.save_pretrained(folder)
        same = old is not None and old.parts == parts
        if old is None or not same or (old.job.request, old.times) != (job.request, times):
            if not same:
                (dest / MANIFEST).unlink(missing_ok=True)  # of another plan
            about = {key: value for key, value in vars(job).items() if key not in ("dest", "device")}
            text = json.dumps(files.stamp("vectors", about | {"parts": parts, "times": times}), default=files.to_json)
            rows = table.arrow.replace_schema_metadata({b"lookalike": text.encode()})
            with files.atomic_file(dest / PLAN) as part, part.open("wb") as file:
                pq.write_table(rows, file, row_group_size=_shards_of_group(job.block) * job.block)
        plan = read_plan(dest)
    assert plan is not None
    return replace(plan, job=job)


def read_plan(dest: Path) -> Plan | None:
    """Open a plan; None where there is none."""
    try:
        file = pq.ParquetFile((dest / PLAN).open("rb"))
        document = json.loads((file.schema_arrow.metadata or {}).get(b"lookalike", b"0"))
    except FileNotFoundError:
        return None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise LookalikeError(f"`{dest / PLAN}` is damaged: delete it, and embed again.") from error
    about = files.check_format("vectors", document, dest / PLAN)
    values = {name: about[name] for name in ("name", "root", "settings", "versions", "request")}
    return Plan(Job(str(dest), **values), about["parts"], about["times"], file)


# --- a shard ---


@functools.lru_cache(maxsize=1)
def load_model(dest: str, fingerprint: str, device: str) -> Embedder:
    """Load the model of a job, once a process; that of a bucket is fetched once a machine."""
    folder = location(dest) / MODEL
    model = Embedder.from_pretrained(folder, device=device)
    if model.fingerprint() != fingerprint:
        raise LookalikeError(f"The model in `{folder}` is not the one of the plan: delete the folder, and embed again.")
    return model


class PlannedTable(Table):
    """The rows of a shard, whose files must be as they were when the plan was made."""

    def _open(self, i: int) -> BinaryIO:
        file, planned = super()._open(i), [self._value(name, i) for name in ("size", "mtime_ns")]
        if is_url(self.root):  # storage tells the size with the object, the time only by another request
            now = [file.seek(0, io.SEEK_END), planned[1]]
            file.seek(0)
        else:
            now = [(status := os.fstat(file.fileno())).st_size, changed_ns(status)]
        if any(a is not None and a != b for a, b in zip(planned, now, strict=True)):
            file.close()
            path = (self.root or Path()) / self._relative(i)
            raise LookalikeError(
                f"`{path}` changed after the plan was made: delete `{PLAN}` among the parts, and run the same command "
                "again."
            )
        return file


def embed_shard(job: Job, part: str, rows: bytes) -> dict[str, Any]:
    """Embed one shard, whose rows are an Arrow stream, and write its part; runs on any node.

    Returns:
        File, number of vectors, checksum, and the unreadable images.
    """
    check_versions(job.versions)
    arrow = pa.ipc.open_stream(rows).read_all()
    table = PlannedTable(job.name, None if job.root is None else location(job.root), arrow)
    model = load_model(job.dest, job.settings["fingerprint"], job.device)
    images, vectors, failures = _compute(job, model, table)
    content = _part_bytes(job, table, images, vectors, failures)
    files.write_bytes(location(job.dest) / part, content)
    return describe_part(part, content, len(vectors), failures)


def _compute(
    job: Job, model: Embedder, table: Table
) -> tuple[dict[int, DecodedImage], np.ndarray, list[dict[str, Any]]]:
    """The readable images of a shard by row, their vectors, and the images that cannot be read."""
    side = job.settings["preprocess"]["size"] / job.settings["preprocess"]["crop"]
    images: dict[int, DecodedImage] = {}
    failures: list[dict[str, Any]] = []
    batch_size = job.settings["batch_size"]
    groups = (range(i, min(i + batch_size, len(table))) for i in range(0, len(table), batch_size))

    def batches() -> Iterator[np.ndarray]:
        load = functools.partial(decode_row, table, min_side=side, preprocess=model.crop)
        pixels: list[np.ndarray] = []
        workers = REMOTE_READERS if is_url(table.root) else None
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
            while len(pixels) >= batch_size:
                yield np.stack(pixels[:batch_size])
                del pixels[:batch_size]
        if pixels:
            yield np.stack(pixels)

    source, options = ImageStream(iter(()), len(table)), job.settings
    runtime = runtimes.select_runtime(model, "embedding", options["runtime"], options["precision"], source, batch_size)
    done = [np.array(rows, np.float32) for rows in runtime.run(batches())]
    vectors = np.concatenate(done) if done else np.empty((0, model.dim), np.float32)
    if not np.isfinite(vectors).all():
        raise LookalikeError(f"The model {model.name} computes vectors with NaN or infinity: it is damaged.")
    return images, vectors, failures


def _part_bytes(
    job: Job, table: Table, images: Mapping[int, DecodedImage], vectors: np.ndarray, failures: list[dict[str, Any]]
) -> bytes:
    """A part as a Parquet file in memory: built whole, because a stream that fails would publish what it has."""
    rows = table.take(np.array(sorted(images), np.int64)).arrow
    names = [name for name in ("path", "row_id", "label", "split") if name in rows.column_names]
    columns = {"id" if name == "row_id" else name: rows[name].combine_chunks() for name in names}
    facts = [images[row] for row in sorted(images)]
    content = {"content_id": "content"}
    columns |= {name: pa.array([getattr(image, content.get(name, name)) for image in facts]) for name in FACTS}
    dim = job.settings["dim"]
    columns["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1), pa.float32()), dim)
    about = {key: job.settings[key] for key in ("model", "fingerprint", "precision", "preprocess")}
    about["unreadable"] = failures
    metadata = {b"lookalike": json.dumps(about, default=files.to_json).encode()}
    metadata[b"model_fingerprint"] = job.settings["fingerprint"].encode()
    file = io.BytesIO()
    pq.write_table(pa.table(columns, metadata=metadata), file, compression="zstd", write_page_checksum=True)
    return file.getvalue()


def describe_part(part: str, content: bytes, count: int, failures: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the manifest says about a part."""
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    return {"file": part, "rows": count, "bytes": len(content), "checksum": digest, "unreadable": failures}


def read_part(dest: Path, part: str) -> tuple[pa.Table, dict[str, Any]]:
    """Return the rows of a part of a folder, and what the manifest says about it.

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

    def __init__(self, plan: Plan, numbers: Mapping[str, int]) -> None:
        self.plan, self.numbers = plan, numbers

    def __getitem__(self, part: str) -> dict[str, Any]:
        sink, rows = pa.BufferOutputStream(), self.plan.rows(self.numbers[part])
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        return {"job": self.plan.job, "part": part, "rows": sink.getvalue().to_pybytes()}

    def __iter__(self) -> Iterator[str]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def parse_share(shards: str | None) -> tuple[int, int]:
    """Return number and count of `K/N`, 1-based; `1/1` for None.

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
    plan: Plan, engine: Engine, *, share: tuple[int, int] = (1, 1), progress: bool = True
) -> tuple[dict[str, Any], int]:
    """Embed the shards of a plan that are not there yet, and write the manifest when all are.

    Args:
        plan: The plan.
        engine: What runs the shards.
        share: Number and count of the processes that share the plan, each with an engine of its own.
        progress: Whether to show progress.

    Returns:
        The manifest, or what it would say of this share as long as others are not done, and the number of parts
        that were embedded now.

    Raises:
        ShardsFailed: Some could not be embedded.
    """
    dest, parts = location(plan.job.dest), plan.parts
    there = list_names(dest)
    if share == (1, 1) and MANIFEST in there:
        document = read_manifest(dest)
        sizes = {one["file"]: one["bytes"] for one in document["parts"]}
        if list(sizes) == parts and all(there.get(part) == size for part, size in sizes.items()):
            return document, 0
    first, end = ((share[0] - 1) * len(parts) // share[1], share[0] * len(parts) // share[1])
    mine = {parts[number]: number for number in range(first, end)}
    waiting = {part: number for part, number in mine.items() if part not in there}
    known: dict[str, dict[str, Any]] = {}
    failed: dict[str, BaseException] = {}
    if len(mine) > len(waiting):
        say(f"{len(mine) - len(waiting):,} of {plural(len(mine), 'shard')} are done already.")
    try:
        with Progress("Embedding", sum(map(plan.count, mine.values())), shown=progress) as bar:
            bar.done = (bar.total or 0) - sum(map(plan.count, waiting.values()))
            for outcome in engine.run(embed_shard, _Shards(plan, waiting), attempts=ATTEMPTS):
                if outcome.error is None:
                    known[outcome.key] = outcome.result
                else:
                    failed[outcome.key] = outcome.error
                    warn(f"Shard {outcome.key} failed on {outcome.node or 'every worker'}: {outcome.error}")
                note = f"{len(failed)} shards failed" if failed else ""
                bar.advance(plan.count(waiting[outcome.key]), note=note)
    except KeyboardInterrupt as error:
        done = len(mine) - len(waiting) + len(known)
        raise type(error)(
            f"Stopped. {done:,} of {plural(len(mine), 'shard')} are in `{dest}`; run the same command to continue."
        ) from None
    if failed:
        raise _failure(plan, failed, mine, dest)
    there = list_names(dest)
    missing = sum(part not in there for part in parts)
    if missing:
        say(f"This share is done; {missing:,} of {plural(len(parts), 'shard')} are left to others.")
    with ThreadPoolExecutor(8) as pool:  # parts of earlier runs are read
        documents = list(pool.map(lambda part: known.get(part) or read_part(dest, part)[1], mine if missing else parts))
    document = _document(plan.job, documents)
    if not missing:
        _close(dest, document, len(plan))
    return document, len(known)


def _failure(plan: Plan, failed: Mapping[str, BaseException], mine: Mapping[str, int], dest: Path) -> LookalikeError:
    lines = []
    for part, error in itertools.islice(failed.items(), 5):
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        start = mine[part] * plan.job.block
        lines.append(f"{part} (images {start:,} to {start + plan.count(mine[part]) - 1:,}): {reason}")
    return ShardsFailed(
        f"{len(failed):,} of {plural(len(mine), 'shard')} failed; the others are in `{dest}`: {'; '.join(lines)}. "
        "Run the same command to try them again."
    )


def _document(job: Job, documents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The manifest of some parts."""
    parts = [{key: value for key, value in one.items() if key != "unreadable"} for one in documents]
    unreadable = [{**image, "file": one["file"]} for one in documents for image in one["unreadable"]]
    images = sum(one["rows"] for one in documents)
    facts = {"versions": job.versions, "images": images, "parts": parts, "unreadable": unreadable}
    return files.stamp("vectors", {**job.settings, **facts})


def _close(dest: Path, document: dict[str, Any], planned: int) -> None:
    """Write the manifest, and remove parts of an earlier plan and temporary files of killed writers."""
    if not document["images"]:
        raise LookalikeError(f"None of the {planned:,} images could be read.")
    current = {one["file"] for one in document["parts"]}
    for name in list_names(dest):
        if re.fullmatch(r"part-[0-9a-f]{32}\.parquet", name) and name not in current:
            (dest / name).unlink(missing_ok=True)
    if not isinstance(dest, RemotePath):
        files.clean_folder(dest)
    files.write_json(dest / MANIFEST, document)


def read_manifest(dest: Path) -> dict[str, Any]:
    """Return the manifest of a finished job.

    Raises:
        LookalikeError: The job is not finished, or the manifest is damaged.
    """
    mend = "Run `lookalike embed` again."
    return files.check_format(
        "vectors", files.read_json(dest / MANIFEST, "manifest of vectors", mend=mend), dest / MANIFEST
    )


def verify(dest: Path) -> dict[str, Any]:
    """Compare every part of a folder with the manifest, and return the manifest.

    Raises:
        ShardsFailed: Parts are missing or damaged, or ids occur twice.
    """
    document = read_manifest(dest)

    def check(one: dict[str, Any]) -> tuple[np.ndarray, str]:
        none = np.empty(0, np.int64)
        try:
            rows, now = read_part(dest, one["file"])
        except LookalikeError as error:
            return none, str(error)
        if now["checksum"] == one["checksum"]:
            return _hashes(rows), ""
        return none, f"`{dest / one['file']}` is not the file of the manifest: delete it, and embed again."

    with ThreadPoolExecutor(8) as pool:
        checked = list(pool.map(check, document["parts"]))
    wrong = [problem for _, problem in checked if problem]
    every = np.sort(np.concatenate([hashes for hashes, _ in checked]))
    if len(suspects := np.unique(every[1:][every[1:] == every[:-1]])):  # of ids that are equal, or only their hashes
        ids: Counter[str] = Counter()
        for one, (hashes, _) in zip(document["parts"], checked, strict=True):
            if len(places := np.flatnonzero(np.isin(hashes, suspects))):
                ids.update(read_part(dest, one["file"])[0]["id"].take(places).to_pylist())
        if repeated := sum(ids.values()) - len(ids):
            wrong.append(f"{plural(repeated, 'id')} occur in several parts.")
    if wrong:
        raise ShardsFailed(f"{plural(len(wrong), 'problem')} of `{dest}`: {' '.join(wrong[:5])}")
    return document


def _hashes(rows: pa.Table) -> np.ndarray:
    """Hashes of ids, of which 10⁸ fit into memory; they hold within this process."""
    return np.fromiter(map(hash, rows["id"].to_pylist()), np.int64, len(rows))


__all__ = ["Job", "Plan", "embed_shard", "make_plan", "read_manifest", "read_part", "run_job", "verify"]
