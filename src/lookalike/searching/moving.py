"""Moving files away, with a journal, and back. Nothing is ever deleted or written over.

A journal `moved.jsonl` lies beside the moved files and says where each came from. A line is on disk before its file
moves, and the batch is known before its first line, so that after a kill everything that may have moved can come back.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import disk_errors, hash_bytes, hash_file, read_json, sync_folder, write_json
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
    """Beside the image folder, never in it: what is moved must not be found again."""
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
        raise LookalikeError(f"`{target}` lies inside the image folder: choose a folder outside it.")
    batch = Batch(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}", _now(), str(root), str(target))
    with _history(root), disk_errors(target), Progress("Moving", len(wanted), shown=progress) as bar:
        target.mkdir(parents=True, exist_ok=True)
        _remember(root, batch)
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
        _remember(root, batch)
    return batch


def back(root: Path, name: str | None = None, *, progress: bool = False) -> Batch:
    """Move a batch back to where it came from; the newest that is not back if no name is given."""
    root = root.resolve()
    with _history(root), disk_errors(root):
        known = [batch for batch in history(root) if batch.state != "back"]
        batch = next((b for b in known if name in (None, b.id)), None)
        if batch is None:
            unknown = f"There is no batch `{name}` to move back."
            raise LookalikeError("Nothing is moved away from this folder." if name is None else unknown)
        _remember(root, batch)  # one that was cut off is counted while its files are still away
        target, left, moved = Path(batch.folder), [], 0
        lines = _lines(batch)
        with Progress("Moving back", len(lines), shown=progress) as bar:
            for line in lines:
                try:
                    moved += _return(root, target / line["to"], line["path"])
                except (LookalikeError, OSError) as error:
                    left.append({"path": line["path"], "why": getattr(error, "strerror", None) or str(error)})
                bar.advance()
        found = next(b for b in history(root) if b.id == batch.id)
    found.files, found.left = moved, left
    return found


def _return(root: Path, here: Path, path: str) -> bool:
    """Move one file back, and clear up what a kill left of it; whether there was one to move."""
    there = root / path
    for place in (here, there):
        _part(place).unlink(missing_ok=True)
    if not os.path.lexists(here):
        return False
    if not os.path.lexists(there):
        move_file(here, there)
    elif _ordinary(root, there) and _twins(here, there):
        here.unlink()  # cut off between its arrival and its departure, on the way here or back
    else:
        raise LookalikeError("another file has its place now")
    return True


def history(root: Path) -> list[Batch]:
    """Batches that were moved away from a folder, newest first; their state as the disk shows it."""
    found = [Batch(**row) for row in reversed(_rows(_registry(root)))]
    for batch in found:
        away = [line for line in _lines(batch) if (Path(batch.folder) / line["to"]).exists()]
        if not batch.files:  # it was cut off before it could be counted
            batch.files, batch.bytes = len(away), sum(line["bytes"] for line in away)
        batch.state = "back" if not away else "moved" if len(away) >= batch.files else "partly"
    return [batch for batch in found if batch.files]


def move_file(source: Path, goal: Path) -> None:
    """Move one file and never write over another: after a kill it is here, there or at both places, always whole."""
    goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rename(source, goal)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = _part(goal)
        try:
            _copy(source, part)
            _rename(part, goal)
        finally:
            part.unlink(missing_ok=True)
        with _or_not_at_all(goal):
            sync_folder(goal.parent)
            source.unlink(missing_ok=True)


def _rename(source: Path, goal: Path) -> None:
    """On one disk. A link fails where something lies already, a rename would write over it."""
    try:
        os.link(source, goal, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, or another disk
        if os.path.lexists(goal):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(goal)) from None
        source.rename(goal)
    else:
        with _or_not_at_all(goal):
            source.unlink(missing_ok=True)


@contextlib.contextmanager
def _or_not_at_all(goal: Path) -> Iterator[None]:
    """Where the old name cannot be taken away, the new one goes again: the file stays as it was."""
    try:
        yield
    except OSError:
        goal.unlink()
        raise


def _copy(source: Path, part: Path) -> None:
    """To another disk, whole and compared."""
    with part.open("wb") as new, source.open("rb") as old:
        shutil.copyfileobj(old, new, 1 << 20)
        new.flush()
        os.fsync(new.fileno())
    shutil.copystat(source, part)
    if hash_file(part) != hash_file(source):
        raise LookalikeError("its copy differs")


def _part(goal: Path) -> Path:
    """Where a copy grows: hidden, so that no scan takes it for an image, and found again by the next attempt."""
    return goal.with_name(f".lookalike-{hash_bytes(goal.name)[:16]}.part")


def _twins(one: Path, other: Path) -> bool:
    """Two names of one file, or two files with the same bytes."""
    mine, theirs = one.lstat(), other.lstat()
    return os.path.samestat(mine, theirs) or (mine.st_size == theirs.st_size and hash_file(one) == hash_file(other))


def _inside(root: Path, path: str) -> Path:
    found = root / path
    if not _ordinary(root, found):
        raise LookalikeError("it is not an ordinary file of this folder")
    return found


def _ordinary(root: Path, found: Path) -> bool:
    """A file below the root; links are not followed, so that what is moved is what was meant."""
    return found.parent.resolve().is_relative_to(root) and not found.is_symlink() and found.is_file()


def _free(goal: Path) -> Path:
    number = 2
    free = goal
    while free.exists() or free.is_symlink():
        free = goal.with_name(f"{goal.stem} ({number}){goal.suffix}")
        number += 1
    return free


def _lines(batch: Batch) -> list[dict[str, Any]]:
    """What the journal says of a batch; a place that was taken again later had become free before."""
    path = Path(batch.folder) / JOURNAL
    places: dict[str, dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines() if path.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            continue  # torn by a kill; its file had not moved yet
        places[line["to"]] = line
    return [line for line in places.values() if line["batch"] == batch.id]


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # torn by a kill
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _registry(root: Path) -> Path:
    return folders.private_folder(folders.home() / "moves") / f"{hash_bytes(str(root.resolve()))[:16]}.json"


def _history(root: Path) -> Any:
    return hold(_registry(root).with_suffix(".lock"), f"Moving in `{root}`")


def _rows(path: Path) -> list[dict[str, Any]]:
    return list(read_json(path, "history")["batches"]) if path.exists() else []


def _remember(root: Path, batch: Batch) -> None:
    path = _registry(root)
    rows = {row["id"]: row for row in _rows(path)} | {batch.id: batch.to_json()}
    write_json(path, {"format": 1, "batches": list(rows.values())}, private=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
