"""One indexing run: compare, take over what only moved, embed the rest, and note what could not be read."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import need_space, write_text
from lookalike.core.progress import Progress, say
from lookalike.searching.changes import Changes, Known, compare
from lookalike.searching.index_folder import TABLE, UNREADABLE
from lookalike.searching.ingest import Batch, batches
from lookalike.searching.payload import PROTOTYPE, column_names, to_payload
from lookalike.searching.table import finished
from lookalike.store import row_bytes

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.searching.writer import Writer

SLICE = 10_000


@dataclass
class Indexed:
    """What an indexing run did."""

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
    build_seconds: float = 0.0  # of these, for the store's graph
    rate: float = 0.0  # images embedded a second
    calibrated: bool = False
    note: str = ""  # why there are no percentages, or what must be said of them
    generation: int = 1

    def to_json(self) -> dict[str, Any]:
        values = dict(self.__dict__)
        values["unreadable"] = [{"path": path, "reason": reason} for path, reason in self.unreadable]
        return values

    @property
    def counts(self) -> str:
        """`3 new, 1 moved`."""
        words = ("new", "changed", "moved", "relabeled", "deleted", "unchanged", "unreadable")
        counts = [len(self.unreadable) if word == "unreadable" else getattr(self, word) for word in words]
        return ", ".join(f"{count:,} {word}" for count, word in zip(counts, words, strict=True) if count) or "none"

    def __str__(self) -> str:
        rate = f", {self.rate:,.0f} a second" if self.rate else ""
        lines = [
            f"Images   {self.counts} ({self.seconds:.0f} s{rate})",
            f"Index      {self.name}: {self.images:,} images, model {self.model}",
        ]
        lines += [f"Unreadable {path}: {reason}" for path, reason in self.unreadable[:3]]
        if len(self.unreadable) > 3:
            lines.append(f"           and {len(self.unreadable) - 3:,} more: {self.unreadable_file}")
        if not self.calibrated:
            lines.append(f"Scores     similarities, no percentages: {self.note or 'they were not asked for'}")
        elif self.note:
            lines.append(f"Scores     {self.note}")
        return "\n".join([*lines, f"Search     lookalike search IMAGE --index {self.name}"])


class Update:
    """Brings one generation up to date with a table."""

    def __init__(self, writer: Writer, table: Table, *, progress: bool) -> None:
        self.writer, self.table, self.progress = writer, table, progress
        self.names: list[str] = table.column("row_id").tolist()
        self.known: dict[str, Known] = writer.known()
        self.changes: Changes = compare(self._rows(), self.known)
        self.done = Indexed(writer.manifest.name, writer.path, writer.generation.model.short)
        self.done.generation = writer.generation.number
        self.tagged = False
        self.done.unchanged, self.done.deleted = self.changes.same, len(self.changes.gone)

    def _rows(self) -> Any:
        """(id, payload) of every row; a slice at a time, so that a million rows need not be in memory at once."""
        for start in range(0, len(self.table), SLICE):
            for row in self.table.arrow.slice(start, SLICE).to_pylist():
                yield row["row_id"], to_payload(row)

    def payload(self, row: int) -> dict[str, Any]:
        return to_payload(self.table.row(row))

    def plan(self) -> Indexed:
        """What `run` would do; nothing is touched."""
        self.done.new, self.done.changed = len(self.changes.fresh), len(self.changes.touched)
        self.done.relabeled, self.done.images = len(self.changes.relabeled), len(self.table)
        return self.done

    def run(self) -> Indexed:
        writer, done = self.writer, self.done
        count = len(self.changes.fresh) + len(self.changes.touched)
        size = row_bytes(writer.generation.store, writer.generation.dim)
        need_space(writer.path, count * size, f"Indexing {count:,} more images")
        writer.begin()
        self._relabel()
        start = time.monotonic()
        try:
            contents = self._embed()
        except KeyboardInterrupt:
            say(f"Stopped. {writer.store.count():,} images are indexed and kept; run the same command to go on.")
            raise
        if done.new + done.changed:
            done.rate = (done.new + done.changed) / max(time.monotonic() - start, 1e-9)
        writer.store.delete(self.changes.gone)
        done.images = writer.store.count()
        if not done.images:
            path, reason = done.unreadable[0]
            raise LookalikeError(f"None of the {len(self.table):,} images could be read; `{path}`: {reason}.")
        self._note_unreadable()
        finished(self.table, contents).save(writer.folder / TABLE)
        columns = {key for name, key in column_names(tuple(self.table.names)).items() if self.table.has(name)}
        if self.tagged or PROTOTYPE in writer.generation.columns:
            columns.add(PROTOTYPE)
        writer.generation.columns = sorted(columns)
        start = time.monotonic()
        with Progress("Building the graph", shown=self.progress):
            writer.generation.built = writer.store.build()
        done.build_seconds = time.monotonic() - start
        return done

    def _relabel(self) -> None:
        """The same images under new labels: their vectors stay."""
        rows = self.changes.relabeled
        for start in range(0, len(rows), 1000):
            part = rows[start : start + 1000]
            old = self.writer.store.get([self.names[row] for row in part], vectors=True)
            self.writer.put([(self.names[i], self.payload(i), r) for i, r in zip(part, old, strict=True) if r])
        self.done.relabeled = len(rows)

    def _embed(self) -> dict[str, str]:
        """Read everything that must be read: new images, and those whose size or time differ.

        Returns the content of every row that is in the store now.
        """
        contents = {name: row.content for name, row in self.known.items()}
        homeless = {(self.known[name].hash, self.known[name].content): name for name in self.changes.gone}
        rows = sorted([*self.changes.fresh, *self.changes.touched])
        # What may only have moved or been touched is embedded after a second look, if it must be.
        direct = self.changes.fresh and not homeless and not self.changes.touched
        pre = self.writer.generation.preprocess
        side = pre["size"] / pre["crop"]

        def store(batch: Batch, found: np.ndarray | None) -> None:
            failed = self._store(batch, homeless, found)
            contents.update({self.names[row]: facts.content for row, facts in batch.facts.items()})
            for row in failed:
                contents.pop(self.names[row], None)
            bar.advance(len(batch.rows))

        with Progress("Embedding", len(rows), shown=self.progress) as bar, ThreadPoolExecutor(1) as behind:
            last: Future[None] | None = None
            for work in self._embedded(rows, side) if direct else ((b, None) for b in batches(self.table, rows, side)):
                if last is not None:
                    last.result()
                last = behind.submit(store, *work)
            if last is not None:
                last.result()
        return contents

    def _embedded(self, rows: list[int], side: float) -> Iterator[tuple[Batch, np.ndarray]]:
        """Batches with what the model makes of them, in one stream: it waits for no batch to be read or stored."""
        read: deque[Batch] = deque()

        def squares() -> Iterator[np.ndarray]:
            for batch in batches(self.table, rows, side, self.writer.embedder.crop):
                read.append(batch)
                yield from (facts.square for facts in batch.facts.values() if facts.square is not None)

        done: list[np.ndarray] = []
        for part in self._encode(squares(), len(rows)):
            done.extend(np.array(part))  # a copy: a runtime may use the same place again
            while read and len(done) >= len(read[0].facts):
                batch = read.popleft()
                count = len(batch.facts)
                yield batch, np.array(done[:count], np.float32)
                del done[:count]
        yield from ((batch, np.empty(0, np.float32)) for batch in read)  # nothing in them could be read

    def _store(
        self, batch: Batch, homeless: dict[tuple[str, str], str], found: np.ndarray | None = None
    ) -> dict[int, str]:
        """Store a batch and return the rows that could not be read, with the reason; `found` by the model before."""
        store, done, names = self.writer.store, self.done, self.names
        payloads = {row: {**self.payload(row), **facts.payload()} for row, facts in batch.facts.items()}
        kept: dict[int, str] = {}  # row -> the id whose vector it takes over
        for row, facts in batch.facts.items():
            old = self.known.get(names[row])
            if old is not None and old.hash == facts.hash:
                kept[row] = names[row]
                done.unchanged += 1
            elif old is None and (facts.hash, facts.content) in homeless:
                kept[row] = homeless.pop((facts.hash, facts.content))
                done.moved += 1
                done.deleted -= 1
        records = store.get(list(kept.values()), vectors=True)
        self.writer.put([(names[row], payloads[row], r) for row, r in zip(kept, records, strict=True) if r])

        failed = dict(batch.failed)
        rows = [row for row in batch.facts if row not in kept]
        if rows:
            if found is None:
                found, failures = self._features(self.table.take(rows))
                failed |= {rows[failure.index]: failure.reason for failure in failures}
                rows = [row for row in rows if row not in failed]
            vectors, tags = self._vectors(found)
            for row, tag in zip(rows, tags, strict=False):
                payloads[row].setdefault(PROTOTYPE, tag)  # a column of that name in the table stays
            store.upsert([names[row] for row in rows], vectors, [payloads[row] for row in rows])
            done.changed += sum(names[row] in self.known for row in rows)
            done.new += sum(names[row] not in self.known for row in rows)
        paths = self.table.arrow["path"]
        done.unreadable += [(paths[row].as_py(), reason) for row, reason in failed.items()]
        store.delete([names[row] for row in failed if names[row] in self.known])
        return failed

    @cached_property
    def _tags(self) -> bool:
        """Whether the model tags images with a prototype, from the features before its head."""
        return getattr(self.writer.embedder, "prototypes", None) is not None

    def _encode(self, squares: Iterator[np.ndarray], count: int) -> Iterator[np.ndarray]:
        layer = {"layer": "pooled"} if self._tags else {}
        return self.writer.embedder.encode_crops(squares, count, **layer)

    def _features(self, table: Table) -> Any:
        embedder = self.writer.embedder
        return (embedder.features if self._tags else embedder.encode)(table, on_error="skip")

    def _vectors(self, found: np.ndarray) -> tuple[np.ndarray, list[str]]:
        """Vectors, and prototypes where the model has any, of what the model made of images."""
        if not self._tags:
            return found, []
        from lookalike.models.prototypes import embed_and_assign

        self.tagged = True
        vectors, assigned = embed_and_assign(self.writer.embedder, found)
        return vectors, [str(number) for number in assigned.prototype]

    def _note_unreadable(self) -> None:
        path, done = self.writer.path / UNREADABLE, self.done
        if done.unreadable:
            write_text(path, "".join(f"{name}\t{reason}\n" for name, reason in sorted(done.unreadable)), private=True)
            done.unreadable_file = path
        else:
            path.unlink(missing_ok=True)
