"""The request of an adaptation, and the record of one under way, so that it can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lookalike.adaptation.settings import AdaptSettings
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.data.scan import changed_ns
from lookalike.training import checkpoint


@dataclass(frozen=True)
class AdaptRequest:
    """What an adaptation was requested with, so that it can be repeated."""

    settings: AdaptSettings
    labeled: bool = False
    gallery: str | None = None
    clusters: int | None = None
    judge: str | None = None
    source: str | None = None
    retriever: str | None = None
    pool: list[str] = field(default_factory=list)
    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> AdaptRequest:
        return cls(**{**document, "settings": AdaptSettings.parse(document["settings"])})


class Pending:
    """An adaptation under way in a run folder: `pending.json`, `pending.parquet` and the last checkpoint."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.file, self.table = run.path / "pending.json", run.path / "pending.parquet"
        self.checkpoint = run.checkpoints / checkpoint.LAST

    def begin(self, request: AdaptRequest, target: Table, pool_ids: list[str] | None = None) -> None:
        """Record what is needed to repeat the adaptation and drop an earlier checkpoint; None: pool not known yet."""
        self.end()
        target.save(self.table)
        write_json(self.file, {"request": request.to_json(), "pool": pool_ids})

    def read(self) -> tuple[AdaptRequest, Table, set[str] | None]:
        """The request, the target and the ids of the pool.

        Raises:
            LookalikeError: If nothing is pending, or target images have changed.
        """
        if not self.file.is_file():
            raise LookalikeError(f"Nothing was left unfinished in `{self.run.path}`; there is nothing to resume.")
        found = read_json(self.file, "unfinished adaptation")
        table = Table.load(self.table)
        for row in range(len(table)):
            file = table.file(row)
            if file is not None and not _unchanged(table, row, file):
                raise LookalikeError(
                    f"`{file}` has changed since the adaptation in `{self.run.path}` began; it cannot be resumed."
                )
        return AdaptRequest.from_json(found["request"]), table, None if found["pool"] is None else set(found["pool"])

    def owes(self, ids: set[str]) -> bool:
        """Whether an adaptation is pending that may have used these pool images."""
        if not self.file.is_file():
            return False
        pool = read_json(self.file, "unfinished adaptation")["pool"]
        return pool is None or bool(ids & set(pool))

    def save(self, state: dict[str, Any]) -> None:
        self.run.checkpoints.mkdir(exist_ok=True)
        checkpoint.write(self.checkpoint, state)

    def state(self) -> dict[str, Any] | None:
        return checkpoint.read(self.checkpoint) if self.checkpoint.is_file() else None

    def end(self) -> None:
        for path in (self.file, self.table, self.checkpoint):
            path.unlink(missing_ok=True)


def _unchanged(table: Table, row: int, file: Path) -> bool:
    known = table.row(row)
    try:
        now = file.stat()
    except OSError:
        return False
    return known.get("size") in (None, now.st_size) and known.get("mtime_ns") in (None, changed_ns(now))
