"""Bring files that an older version wrote to today's formats."""

from __future__ import annotations

import json
import os
import pickle
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.formats import CURRENT, DERIVED, upgrade

# Every document starts with its stamp: enough is read to see it, however long the file is.
_STAMP = re.compile(rb'\A\s*\{\s*"format":\s*(\d+),\s*"kind":\s*"(\w+)"')


@dataclass(frozen=True)
class Change:
    path: Path
    kind: str
    before: int
    after: int


@dataclass(frozen=True)
class Migration:
    changes: list[Change]
    current: int
    """How many files were in today's format already."""

    def to_json(self) -> dict[str, Any]:
        return {"changes": [asdict(change) for change in self.changes], "current": self.current}


def migrate(*, folder: str | Path, dry_run: bool = False) -> Migration:
    """Rewrite every model, run, index, checkpoint or table under `folder` that has an older format.

    One that cannot be read stops it before anything is changed. Caches and curves are made anew when they are needed.
    """
    folder = Path(folder)
    if not folder.exists():
        raise LookalikeError(f"There is no folder `{folder}`.")
    found = [(path, *stamp) for path in _files(folder) if (stamp := stamp_of(path))]
    if not found:
        raise LookalikeError(f"`{folder}` holds no model, run, index or table of lookalike.")
    found = [(path, kind, number) for path, kind, number in found if kind not in DERIVED or number >= CURRENT[kind]]
    old = [Change(path, kind, number, CURRENT[kind]) for path, kind, number in found if number != CURRENT[kind]]
    documents = [(change.path, _upgraded(change)) for change in old]
    if not dry_run:
        for path, document in documents:
            _write(path, document)
    return Migration(old, len(found) - len(old))


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    return sorted(
        Path(place, name)
        for place, _, names in os.walk(folder)
        for name in names
        if name.endswith((".json", ".parquet", ".pt")) and not name.startswith(".")
    )


def stamp_of(path: Path) -> tuple[str, int] | None:
    """Kind and format of a file of ours; None for anything else."""
    for head in _heads(path):
        match = _STAMP.match(head)
        if match and match[2].decode() in CURRENT:
            return match[2].decode(), int(match[1])
    return None


def _heads(path: Path) -> list[bytes]:
    """Where a stamp may stand: the start of a document, a checkpoint's first fields, a Parquet file's own notes."""
    if path.suffix == ".json":
        with path.open("rb") as file:
            return [file.read(256)]
    if path.suffix == ".pt":
        import torch

        try:
            document = torch.load(path, map_location=CPU, weights_only=True, mmap=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError):
            return []  # somebody else's
        stamp = {name: document.get(name) for name in ("format", "kind")} if isinstance(document, dict) else {}
        return [json.dumps(stamp).encode()]
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with path.open("rb") as file:
            return list((parquet.read_schema(file).metadata or {}).values())
    except pa.ArrowInvalid:
        return []  # not Parquet, whatever its name says


def _upgraded(change: Change) -> Any:
    if change.path.suffix == ".parquet":
        from lookalike.data import Table

        return Table.load(change.path)
    if change.path.suffix == ".pt":
        from lookalike.training import checkpoint

        return checkpoint.read(change.path)
    return upgrade(change.kind, read_json(change.path, change.kind), change.path)


def _write(path: Path, document: Any) -> None:
    if path.suffix == ".parquet":
        document.save(path)
    elif path.suffix == ".pt":
        from lookalike.training import checkpoint

        checkpoint.write(path, document)
    else:
        write_json(path, document)
