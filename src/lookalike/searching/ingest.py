"""One indexing run: compare the folder with the index, read new images ahead of the model, embed and store them."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import require_space, write_text
from lookalike.core.progress import Progress, plural, speed
from lookalike.core.storage import is_url, location
from lookalike.searching.index_folder import TABLE, UNREADABLE
from lookalike.searching.payload import PROTOTYPE, column_names, to_payload
from lookalike.searching.tags import Tags
from lookalike.store import row_bytes

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.data.image_reader import DecodedImage, Preprocess
    from lookalike.searching.writer import Writer

BATCH = 256  # images acknowledged at a time: a kill costs two batches at most
FIRST_BATCH = 32  # the first batches are smaller, because the model waits for them
LARGE_FILE = 100_000  # bytes; threads that decode smaller images mostly wait for each other
ROWS_AT_ONCE = 10_000


@dataclass
class IndexResult:
    """The result of an indexing run.

    Args:
        name: Name of the index.
        path: Folder of the index.
        model: The model that made the vectors.
        images: Number of images in the index.
        new: Images that were added.
        changed: Images that were embedded again because their file changed.
        moved: Images whose file was renamed; their vectors were kept.
        relabeled: Images whose label or another column changed.
        deleted: Images that were removed because their file is gone.
        unchanged: Images that needed no work.
        unreadable: Paths that could not be read, with the reasons.
        unreadable_file: File that lists them all.
        seconds: Time of the run.
        build_seconds: Part of it for building the store's graph.
        images_per_second: Embedding throughput.
        calibrated: Whether scores were calibrated to probabilities.
        note: Why there are no probabilities, or a caveat about them.
        generation: Number of the generation.
        planned: Whether this is what a run would do (`dry_run`).

    Example:
        >>> result = la.index(folder="photos")  # doctest: +SKIP
        >>> result.new, result.unchanged  # doctest: +SKIP
        (24, 0)
    """

    name: str
    path: Path
    model: str = ""
    images: int = 0
    new: int = 0
    changed: int = 0
    moved: int = 0
    relabeled: int = 0
    deleted: int = 0
    unchanged: int = 0
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    unreadable_file: Path | None = None
    seconds: float = 0.0
    build_seconds: float = 0.0
    images_per_second: float = 0.0
    calibrated: bool = False
    note: str = ""
    generation: int = 1
    planned: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        unreadable = [{"path": path, "reason": reason} for path, reason in self.unreadable]
        return self.__dict__ | {"unreadable": unreadable}

    @property
    def counts(self) -> str:
        """The counts that are not zero, such as ``"3 new, 1 moved"``."""
        names = ("new", "changed", "moved", "relabeled", "deleted", "unchanged", "unreadable")
        counts = [len(self.unreadable) if name == "unreadable" else getattr(self, name) for name in names]
        return ", ".join(f"{count:,} {name}" for count, name in zip(counts, names, strict=True) if count) or "none"

    def __str__(self) -> str:
        if self.planned:
            return f"Images     {self.counts}\nNothing was indexed; leave out --dry-run to do it."
        rate = f", {speed(self.images_per_second)}" if self.images_per_second else ""
        lines = [
            f"Images     {self.counts} ({self.seconds:.0f} s{rate})",
            f"Index      {self.name}: {plural(self.images, 'image')}, model {self.model}",
        ]
        lines += [f"Unreadable {path}: {reason}" for path, reason in self.unreadable[:3]]
        if len(self.unreadable) > 3:
            lines.append(f"           and {len(self.unreadable) - 3:,} more: {self.unreadable_file}")
        if not self.calibrated:
            lines.append(f"Scores     similarities without probabilities: {self.note or 'not requested'}")
        elif self.note:
            lines.append(f"Scores     {self.note}")
        return "\n".join([*lines, f"Search     lookalike search IMAGE --index {self.name}"])


class StoredRow(NamedTuple):
    """Facts of a stored row that tell whether its file has changed."""

    size: int | None
    mtime_ns: int | None
    hash: str
    row: str
    content: str
    exif: bool = False

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> StoredRow:
        """Read the facts from a payload."""
        hash_, row, content = (payload.get(name, "") for name in ("_hash", "_row", "content_id"))
        return cls(payload.get("_size"), payload.get("_mtime_ns"), hash_, row, content, exif=bool(payload.get("_exif")))


@dataclass
class Changes:
    """Changes of a folder since it was indexed.

    Args:
        same: Number of unchanged rows.
        fresh: Row numbers that are not in the index.
        touched: Row numbers whose size or modification time differ; the hash will tell whether the image does.
        relabeled: Row numbers of unchanged files with another label or column.
        gone: Ids in the index that the folder no longer has.
    """

    same: int = 0
    fresh: list[int] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)
    relabeled: list[int] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


def find_changes(
    rows: Iterable[tuple[str, Mapping[str, Any]]], stored: Mapping[str, StoredRow], *, exif: bool = False
) -> Changes:
    """Compare the rows of a table with an index; no image is opened."""
    changes, seen = Changes(), set()
    for number, (name, payload) in enumerate(rows):
        seen.add(name)
        old, new = stored.get(name), StoredRow.from_payload(payload)
        if old is None:
            changes.fresh.append(number)
        elif (
            None in (new.size, new.mtime_ns)
            or (old.size, old.mtime_ns) != (new.size, new.mtime_ns)
            or (exif and not old.exif)  # it is read again, but not embedded
        ):
            changes.touched.append(number)
        elif old.row != new.row or old.exif != exif:
            changes.relabeled.append(number)
        else:
            changes.same += 1
    changes.gone = [name for name in stored if name not in seen]
    return changes


@dataclass
class Batch:
    """A batch of rows: decoded images and the reasons of failures, by row number."""

    rows: Sequence[int]
    images: dict[int, DecodedImage] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def read_table_batches(
    table: Table, rows: Sequence[int], min_side: float, preprocess: Preprocess | None = None, *, exif: bool = False
) -> Iterator[Batch]:
    """Read rows in batches, in order, one batch ahead of the consumer."""
    from lookalike.data.image_reader import REMOTE_READERS, ReadFailure, decode_row, read_batches

    def parts() -> Iterator[Sequence[int]]:
        start, size = 0, min(FIRST_BATCH, BATCH)
        while start < len(rows):
            yield rows[start : start + size]
            start, size = start + size, min(2 * size, BATCH)

    def load(row: int) -> DecodedImage:
        return decode_row(table, row, min_side, preprocess, exif=exif)

    large = table.has("size") and float(np.nanmean(table.column("size"))) > LARGE_FILE
    workers = REMOTE_READERS if is_url(table.root) else None if large else 1
    for part, results in read_batches(load, parts(), workers=workers, prefetch=2):
        batch = Batch(part)
        for row, result in zip(part, results, strict=True):
            if isinstance(result, ReadFailure):
                batch.failed[row] = result.reason
            else:
                batch.images[row] = result
        yield batch


class Parts:
    """Vectors and image facts from the parts that ``embed`` wrote, in place of the images.

    Args:
        dest: Folder or URL of the parts.
        device: Device to load their model on.

    Raises:
        LookalikeError: They are not finished.
    """

    def __init__(self, dest: Path, device: str = "auto") -> None:
        from lookalike.data.table import Table
        from lookalike.models import vector_shards

        self.dest, self.shards = dest, vector_shards
        self.manifest = vector_shards.read_manifest(dest)
        plan = vector_shards.read_plan(dest)
        if plan is None:
            raise LookalikeError(f"`{dest}` has no plan: run `lookalike embed` again.")
        job = plan.job
        self.model = vector_shards.load_model(str(dest), job.settings["fingerprint"], device)
        self.table = Table(job.name, None if job.root is None else location(job.root), plan.table())
        parts = np.repeat(np.array(plan.parts, object), job.block)[: len(plan)]
        self.names = dict(zip(self.table.column("row_id"), parts, strict=True))

    def batches(self, rows: Mapping[str, int]) -> Iterator[tuple[Batch, np.ndarray]]:
        """Yield what the parts hold of some rows (number by id), with their vectors; a part at a time."""
        from lookalike.data.image_reader import DecodedImage

        for part in dict.fromkeys(self.names[name] for name in rows):
            packed, about = self.shards.read_part(self.dest, part)
            chosen = [i for i, name in enumerate(packed["id"].to_pylist()) if name in rows]
            taken = packed.take(np.array(chosen, np.int64))
            numbers = [rows[name] for name in taken["id"].to_pylist()]
            facts = zip(*(taken[name].to_pylist() for name in self.shards.FACTS), strict=True)
            batch = Batch(numbers, {row: DecodedImage(*fact) for row, fact in zip(numbers, facts, strict=True)})
            batch.failed = {rows[one["id"]]: one["reason"] for one in about["unreadable"] if one["id"] in rows}
            batch.rows = [*numbers, *batch.failed]
            vectors = taken["vector"].combine_chunks().flatten().to_numpy().reshape(len(numbers), self.model.dim)
            yield batch, vectors


class IndexUpdate:
    """Update one generation of an index to a table.

    Args:
        writer: The generation, open for writing.
        table: The images it shall hold.
        progress: Whether to show progress bars.
        parts: Vectors that were computed before.
    """

    def __init__(self, writer: Writer, table: Table, *, progress: bool, parts: Parts | None = None) -> None:
        self.writer, self.table, self.progress, self.exif = writer, table, progress, writer.manifest.exif
        self.parts = parts
        self.ids: list[str] = table.column("row_id").tolist()
        self.stored: dict[str, StoredRow] = writer.stored_rows()
        self.changes: Changes = find_changes(self._rows(), self.stored, exif=writer.manifest.exif)
        self.result = IndexResult(writer.manifest.name, writer.path, writer.generation.model.short)
        self.result.generation = writer.generation.number
        self.result.unchanged, self.result.deleted = self.changes.same, len(self.changes.gone)
        self.has_prototypes = False

    def _rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Id and payload of every row, a slice at a time, to bound the memory."""
        for batch in self.table.arrow.to_batches(max_chunksize=ROWS_AT_ONCE):
            yield from ((row["row_id"], to_payload(row)) for row in batch.to_pylist())

    def _payload(self, row: int) -> dict[str, Any]:
        return to_payload(self.table.row(row))

    def plan(self) -> IndexResult:
        """Return what `run` would do; nothing is changed."""
        new, changed, relabeled = map(len, (self.changes.fresh, self.changes.touched, self.changes.relabeled))
        return replace(self.result, new=new, changed=changed, relabeled=relabeled, images=len(self.table), planned=True)

    def run(self) -> IndexResult:
        """Update the store and the table; the caller finishes the generation."""
        from lookalike.data import exif

        writer, result = self.writer, self.result
        count = len(self.changes.fresh) + len(self.changes.touched)
        size = row_bytes(writer.generation.store, writer.generation.dim)
        require_space(writer.path, count * size, f"Indexing {count:,} more images")
        writer.begin(len(self.table))
        self._relabel()
        start = time.monotonic()
        try:
            contents = self._embed()
        except KeyboardInterrupt as error:
            done = f"Stopped. Indexed so far: {plural(writer.store.count(), 'image')}"
            raise type(error)(f"{done}; run the same command to continue.") from None
        if result.new + result.changed:
            result.images_per_second = (result.new + result.changed) / max(time.monotonic() - start, 1e-9)
        writer.store.delete(self.changes.gone)
        result.images = writer.store.count()
        if not result.images:
            path, reason = result.unreadable[0]
            raise LookalikeError(f"None of the {len(self.table):,} images could be read; `{path}`: {reason}.")
        self._list_unreadable()
        self._indexed_table(contents).save(writer.folder / TABLE)
        columns = {key for name, key in column_names(tuple(self.table.names)).items() if self.table.has(name)}
        if self.has_prototypes or PROTOTYPE in writer.generation.columns:
            columns.add(PROTOTYPE)
        columns |= {name for name in exif.COLUMNS if self.exif and writer.store.facets(name, limit=1)}
        writer.generation.columns = sorted(columns)
        start = time.monotonic()
        with Progress("Building the graph", shown=self.progress):
            writer.generation.graph = writer.store.build()
        result.build_seconds = time.monotonic() - start
        return result

    def _indexed_table(self, contents: Mapping[str, str]) -> Table:
        """The rows that are in the store, with their content ids."""
        ids = self.table.column("row_id")
        stored = np.array([name in contents for name in ids], dtype=bool)
        table = self.table if stored.all() else self.table.take(stored)
        return table.with_column("content_id", [contents[name] for name in ids[stored]])

    def _relabel(self) -> None:
        """Store new labels and columns of unchanged images; their vectors stay."""
        rows = self.changes.relabeled
        for start in range(0, len(rows), 1000):
            part = rows[start : start + 1000]
            old = self.writer.store.get([self.ids[row] for row in part], vectors=True)
            self.writer.copy_rows([(self.ids[i], self._payload(i), r) for i, r in zip(part, old, strict=True) if r])
        self.result.relabeled = len(rows)

    def _embed(self) -> dict[str, str]:
        """Read and embed new and touched images; returns the content id of every row that is in the store now."""
        contents = {name: row.content for name, row in self.stored.items()}
        orphans = {(self.stored[name].hash, self.stored[name].content): name for name in self.changes.gone}
        rows = sorted([*self.changes.fresh, *self.changes.touched])
        # Images that may only have moved or been touched are compared by hash before they are embedded.
        direct = self.changes.fresh and not orphans and not self.changes.touched
        preprocess = self.writer.generation.preprocess
        side = preprocess["size"] / preprocess["crop"]

        def store(batch: Batch, features: np.ndarray | None) -> None:
            failed = self._store(batch, orphans, features)
            contents.update({self.ids[row]: image.content for row, image in batch.images.items()})
            for row in failed:
                contents.pop(self.ids[row], None)
            bar.advance(len(batch.rows))

        batches: Iterable[tuple[Batch, np.ndarray | None]] = (
            self.parts.batches({self.ids[row]: row for row in rows})
            if self.parts is not None
            else self._embedded_batches(rows, side)
            if direct
            else ((batch, None) for batch in read_table_batches(self.table, rows, side, exif=self.exif))
        )
        with Progress("Embedding", len(rows), shown=self.progress) as bar, ThreadPoolExecutor(1) as behind:
            last: Future[None] | None = None
            for batch, features in batches:
                if last is not None:
                    last.result()
                last = behind.submit(store, batch, features)
            if last is not None:
                last.result()
        return contents

    def _embedded_batches(self, rows: list[int], side: float) -> Iterator[tuple[Batch, np.ndarray]]:
        """Batches with the model's features, as one stream: the model waits for no batch to be read or stored."""
        read: deque[Batch] = deque()

        def crops() -> Iterator[np.ndarray]:
            for batch in read_table_batches(self.table, rows, side, self.writer.embedder.crop, exif=self.exif):
                read.append(batch)
                yield from (image.pixels for image in batch.images.values() if image.pixels is not None)

        done: list[np.ndarray] = []
        layer = {"layer": "pooled"} if self._assigns_prototypes else {}
        for part in self.writer.embedder.encode_crops(crops(), len(rows), **layer):
            done.extend(np.array(part))  # a copy: a runtime may reuse its output buffer
            while read and len(done) >= len(read[0].images):
                batch = read.popleft()
                count = len(batch.images)
                yield batch, np.array(done[:count], np.float32)
                del done[:count]
        yield from ((batch, np.empty(0, np.float32)) for batch in read)  # batches without a readable image

    def _store(
        self, batch: Batch, orphans: dict[tuple[str, str], str], features: np.ndarray | None = None
    ) -> dict[int, str]:
        """Store a batch; returns the rows that could not be read, with the reasons.

        A row whose file is unchanged keeps its vector, and one whose file was renamed takes that of the old row
        (`orphans`). `features` are those of the model, if it has seen the batch already.
        """
        store, result, ids = self.writer.store, self.result, self.ids
        payloads = {  # a column of the table has precedence over that of EXIF
            row: {**(image.photo or {}), **self._payload(row), **image.payload()} for row, image in batch.images.items()
        }
        copied_from: dict[int, str] = {}
        renamed: dict[str, str] = {}
        for row, image in batch.images.items():
            old = self.stored.get(ids[row])
            if old is not None and old.hash == image.hash:
                copied_from[row] = ids[row]
                result.unchanged += 1
            elif old is None and (image.hash, image.content) in orphans:
                copied_from[row] = renamed[ids[row]] = orphans.pop((image.hash, image.content))
                result.moved += 1
                result.deleted -= 1
        with contextlib.closing(Tags(self.writer.path)) as tags:
            tags.rename((old, new) for new, old in renamed.items())
        records = store.get(list(copied_from.values()), vectors=True)
        self.writer.copy_rows([(ids[i], payloads[i], r) for i, r in zip(copied_from, records, strict=True) if r])

        failed = dict(batch.failed)
        rows = [row for row in batch.images if row not in copied_from]
        if features is not None and copied_from:
            features = features[[row not in copied_from for row in batch.images]]
        if rows:
            if features is None:
                model = self.writer.embedder
                encode: Any = model.features if self._assigns_prototypes else model.encode
                features, failures = encode(self.table.take(rows), on_error="skip")
                failed |= {rows[failure.index]: failure.reason for failure in failures}
                rows = [row for row in rows if row not in failed]
            vectors, prototypes = self._vectors(features)
            for row, prototype in zip(rows, prototypes, strict=False):
                payloads[row].setdefault(PROTOTYPE, prototype)  # a column of that name in the table has precedence
            store.upsert([ids[row] for row in rows], vectors, [payloads[row] for row in rows])
            result.changed += sum(ids[row] in self.stored for row in rows)
            result.new += sum(ids[row] not in self.stored for row in rows)
        paths = self.table.arrow["path"]
        result.unreadable += [(paths[row].as_py(), reason) for row, reason in failed.items()]
        store.delete([ids[row] for row in failed if ids[row] in self.stored])
        return failed

    @cached_property
    def _assigns_prototypes(self) -> bool:
        """Whether the model assigns prototypes, from the features before its head."""
        return self.parts is None and getattr(self.writer.embedder, "prototypes", None) is not None

    def _vectors(self, features: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Vectors, and prototypes if the model has any, from the model's features."""
        if not self._assigns_prototypes:
            return features, []
        from lookalike.models.prototypes import embed_and_assign

        self.has_prototypes = True
        vectors, assigned = embed_and_assign(self.writer.embedder, features)
        return vectors, [str(number) for number in assigned.prototype]

    def _list_unreadable(self) -> None:
        path, files = self.writer.path / UNREADABLE, sorted(self.result.unreadable)
        path.unlink(missing_ok=True)
        if files:
            write_text(path, "".join(f"{name}\t{reason}\n" for name, reason in files), private=True)
            self.result.unreadable_file = path
