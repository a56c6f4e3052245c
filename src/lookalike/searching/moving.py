"""Moving files away, with a journal, and back. Nothing is ever deleted or written over.

A journal `moved.jsonl` lies beside the moved files and says where each came from. A line is on disk before its file
moves, so that after a kill the journal knows of everything that may have moved.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, hash_bytes, hash_file, read_json, write_json
from lookalike.core.locks import hold
from lookalike.core.progress import Progress

JOURNAL = "moved.jsonl"


@dataclass(frozen=True)
class Wanted:
    """A file to move: its path below the root as found on disk, and what it must still be."""

    path: str
    size: int
    mtime: float


@dataclass
class Batch:
    """Files moved together."""

    id: str
    when: str
    root: str
    folder: str
    files: int = 0
    bytes: int = 0
    state: str = "moved"
    left: list[dict[str, str]] = field(default_factory=list)  # what stayed where it was, and why

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def default_target(root: Path) -> Path:
    """Beside the picture folder, never in it: what is moved must not be found again."""
    return root.parent / "_lookalike_moved" / root.name / time.strftime("%Y-%m-%d")


def cannot_move(root: Path, target: Path | None = None) -> str:
    """Why nothing can be moved, or nothing."""
    place = (target or default_target(root)).absolute()
    while not place.exists():
        place = place.parent
    if not os.access(root, os.W_OK):
        return "This folder cannot be written to: duplicates are listed, moving is off."
    if not os.access(place, os.W_OK):
        return f"`{place}` cannot be written to: duplicates are listed, moving is off."
    return ""


def move(root: Path, wanted: Sequence[Wanted], target: Path | None = None, *, progress: bool = False) -> Batch:
    """Move files below `root` to `target`, under the same relative paths; what changed meanwhile stays."""
    root = root.resolve()
    target = (target or default_target(root)).expanduser().absolute()
    if target.resolve().is_relative_to(root):
        raise LookalikeError(f"`{target}` lies inside the picture folder: choose a folder outside it.")
    batch = Batch(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}", _now(), str(root), str(target))
    with _history(root), disk_errors(target), Progress("Moving", len(wanted), shown=progress) as bar:
        target.mkdir(parents=True, exist_ok=True)
        for one in wanted:
            try:
                source = _inside(root, one.path)
                stat = source.stat()
                if stat.st_size != one.size or abs(stat.st_mtime - one.mtime) > 1e-3:
                    raise LookalikeError("it was changed since it was looked at")
                goal = _free(target / one.path)
                line = {"batch": batch.id, "path": one.path, "to": goal.relative_to(target).as_posix()}
                _append(target / JOURNAL, line | {"root": str(root), "bytes": one.size, "when": _now()})
                move_file(source, goal)
                batch.files, batch.bytes = batch.files + 1, batch.bytes + one.size
            except (LookalikeError, OSError) as error:
                batch.left.append({"path": one.path, "why": getattr(error, "strerror", None) or str(error)})
            bar.advance()
        if batch.files:
            _remember(root, batch)
    return batch


def back(root: Path, name: str | None = None, *, progress: bool = False) -> Batch:
    """Move a batch back to where it came from; the newest that is not back if no name is given."""
    root = root.resolve()
    known = [batch for batch in history(root) if batch.state != "back"]
    batch = next((b for b in known if name in (None, b.id)), None)
    if batch is None:
        raise LookalikeError(
            "Nothing is moved away from this folder." if name is None else f"There is no batch `{name}` to move back."
        )
    target, left, moved = Path(batch.folder), [], 0
    lines = [line for line in _lines(target) if line["batch"] == batch.id]
    with _history(root), disk_errors(root), Progress("Moving back", len(lines), shown=progress) as bar:
        for line in lines:
            here, there = target / line["to"], root / line["path"]
            try:
                if here.exists():
                    if there.exists():
                        raise LookalikeError("another file has its place now")
                    there.parent.mkdir(parents=True, exist_ok=True)
                    move_file(here, there)
                    moved += 1
            except (LookalikeError, OSError) as error:
                left.append({"path": line["path"], "why": getattr(error, "strerror", None) or str(error)})
            bar.advance()
    found = next(b for b in history(root) if b.id == batch.id)
    found.files, found.left = moved, left
    return found


def history(root: Path) -> list[Batch]:
    """Batches that were moved away from a folder, newest first; their state as the disk shows it."""
    path = _registry(root)
    rows = read_json(path, "history")["batches"] if path.exists() else []
    found = [Batch(**row) for row in reversed(rows)]
    for batch in found:
        lines = [line for line in _lines(Path(batch.folder)) if line["batch"] == batch.id]
        away = sum((Path(batch.folder) / line["to"]).exists() for line in lines)
        batch.state = "back" if not away else "moved" if away >= batch.files else "partly"
    return found


def move_file(source: Path, goal: Path) -> None:
    """Move one file and never write over another."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, goal, follow_symlinks=False)  # unlike a rename it fails where something lies already
    except OSError as error:
        if error.errno == errno.EEXIST:
            raise
        _copy(source, goal)
    source.unlink()


def _copy(source: Path, goal: Path) -> None:
    """To another disk, or where there are no links: whole and compared before the old one goes."""
    with goal.open("xb") as new, source.open("rb") as old:
        try:
            shutil.copyfileobj(old, new, 1 << 20)
            new.flush()
            os.fsync(new.fileno())
        except BaseException:
            goal.unlink()
            raise
    shutil.copystat(source, goal)
    if hash_file(goal) != hash_file(source):
        goal.unlink()
        raise LookalikeError("its copy differs")


def _inside(root: Path, path: str) -> Path:
    """An ordinary file below the root; links are not followed, so that what is moved is what was meant."""
    found = root / path
    if not found.parent.resolve().is_relative_to(root) or found.is_symlink() or not found.is_file():
        raise LookalikeError("it is not an ordinary file of this folder")
    return found


def _free(goal: Path) -> Path:
    number = 2
    free = goal
    while free.exists() or free.is_symlink():
        free = goal.with_name(f"{goal.stem} ({number}){goal.suffix}")
        number += 1
    return free


def _lines(target: Path) -> list[dict[str, Any]]:
    path = target / JOURNAL
    lines = []
    for text in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue  # torn by a kill; its file had not moved yet
    return lines


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _registry(root: Path) -> Path:
    return folders.private_folder(folders.home() / "moves") / f"{hash_bytes(str(root.resolve()))[:16]}.json"


def _history(root: Path) -> Any:
    return hold(_registry(root).with_suffix(".lock"), f"Moving in `{root}`")


def _remember(root: Path, batch: Batch) -> None:
    path = _registry(root)
    rows = read_json(path, "history")["batches"] if path.exists() else []
    write_json(path, {"format": 1, "batches": [*rows, batch.to_json()]}, private=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
