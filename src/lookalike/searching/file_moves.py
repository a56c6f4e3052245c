"""Move files to another folder and back, with a journal; nothing is ever deleted or overwritten.

The journal ``moved.jsonl`` beside the moved files records where each came from. Its line is on disk before the file
moves, and the batch is registered before its first line, so that everything can be moved back even after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
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
from lookalike.core.database import user_database, user_rows
from lookalike.core.errors import LookalikeError
from lookalike.core.files import MAX_JSON, disk_errors, hash_bytes, hash_file, read_bytes, sync_folder
from lookalike.core.locks import hold
from lookalike.core.progress import Progress, warn

JOURNAL = "moved.jsonl"


@dataclass(frozen=True)
class FileToMove:
    """A file to move; it is skipped if its size or modification time has changed.

    Args:
        path: Path relative to the root, as spelled on disk.
        size: Size in bytes.
        mtime: Modification time in seconds.
    """

    path: str
    size: int
    mtime: float


@dataclass
class Batch:
    """Files that were moved together.

    Args:
        id: Name of the batch.
        when: Time of the move, as ISO 8601.
        root: The folder they were moved out of.
        folder: The folder they were moved to.
        files: Number of files.
        bytes: Their size.
        state: ``"moved"``, ``"partly"`` (some are back) or ``"back"``.
        left: Files that were not moved: ``path`` and ``why``.
    """

    id: str
    when: str
    root: str
    folder: str
    files: int = 0
    bytes: int = 0
    state: str = "moved"
    left: list[dict[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def default_target(root: Path) -> Path:
    """Return the default folder for moved files: beside the image folder, so that it is not scanned with it."""
    return root.parent / "_lookalike_moved" / root.name / time.strftime("%Y-%m-%d")


def cannot_move(root: Path, target: Path | None = None) -> str:
    """Return why files cannot be moved out of a folder, or an empty string if they can."""
    parent = (target or default_target(root)).absolute()
    while not parent.exists():
        parent = parent.parent
    if not os.access(root, os.W_OK):
        return "This folder is read-only: duplicates are listed, moving is off."
    if not os.access(parent, os.W_OK):
        return f"`{parent}` is read-only: duplicates are listed, moving is off."
    return ""


def move(
    root: Path, files: Sequence[FileToMove], target: Path | None = None, *, within: bool = False, progress: bool = False
) -> Batch:
    """Move files to a folder outside the root under the same relative paths; files that have changed are skipped.

    With ``within`` they are moved to a folder inside the root under their names alone.
    """
    root = root.resolve()
    target = (target or default_target(root)).expanduser().absolute()
    if not within and target.resolve().is_relative_to(root):
        raise LookalikeError(f"`{target}` lies inside the image folder: choose a folder outside it.")
    batch = Batch(f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}", _now(), str(root), str(target))
    with _history(root), disk_errors(target), Progress("Moving", len(files), shown=progress) as bar:
        target.mkdir(parents=True, exist_ok=True)
        _register(root, batch)
        for one in files:
            try:
                source = root / one.path
                if not _is_plain_file(root, source):
                    raise LookalikeError("it is not a regular file of this folder")
                stat = source.stat()
                if stat.st_size != one.size or abs(stat.st_mtime - one.mtime) > 1e-3:
                    raise LookalikeError("it has changed since it was scanned")
                goal = target / (source.name if within else one.path)
                if goal == source:
                    raise LookalikeError("it is in this folder already")
                goal = _free(goal)
                line = {"batch": batch.id, "path": one.path, "to": goal.relative_to(target).as_posix()}
                _append(_journal(batch), line | {"root": str(root), "bytes": one.size, "when": _now()})
                move_file(source, goal)
                batch.files, batch.bytes = batch.files + 1, batch.bytes + one.size
            except (LookalikeError, OSError) as error:
                batch.left.append({"path": one.path, "why": getattr(error, "strerror", None) or str(error)})
            bar.advance()
        _register(root, batch)
    return batch


def back(root: Path, name: str | None = None, *, progress: bool = False) -> Batch:
    """Move a batch (default: the newest that is not back) back to where it came from, and count its files."""
    root = root.resolve()
    with _history(root), disk_errors(root):
        known = [batch for batch in history(root) if batch.state != "back"]
        batch = next((b for b in known if name in (None, b.id)), None)
        if batch is None:
            unknown = f"There is no batch `{name}` to move back."
            raise LookalikeError("No files are moved away from this folder." if name is None else unknown)
        _register(root, batch)  # an interrupted one is counted while its files are still away
        target, left, moved = Path(batch.folder), [], 0
        lines = _lines(batch)
        with Progress("Moving back", len(lines), shown=progress) as bar:
            for line in lines:
                try:
                    for folder, path in ((target, line["to"]), (root, line["path"])):  # anybody may have edited them
                        inside = not Path(path).is_absolute() and ".." not in Path(path).parts
                        if not inside or not (folder / path).parent.resolve().is_relative_to(folder.resolve()):
                            raise LookalikeError("its line in the journal points outside the folder")
                    moved += _return(root, target / line["to"], line["path"])
                except (LookalikeError, OSError, ValueError) as error:
                    left.append({"path": line["path"], "why": getattr(error, "strerror", None) or str(error)})
                bar.advance()
        batch = next(b for b in history(root) if b.id == batch.id)
    batch.files, batch.left = moved, left
    return batch


def _return(root: Path, here: Path, path: str) -> bool:
    """Move one file back and clean up after an interrupted move; returns whether there was a file to move."""
    there = root / path
    for path_ in (here, there):
        _part(path_).unlink(missing_ok=True)
    if not os.path.lexists(here):
        return False
    if not os.path.lexists(there):
        move_file(here, there)
    elif _is_plain_file(root, there) and _same_file(here, there):
        here.unlink()  # a move was interrupted after the new name was made and before the old one was removed
    else:
        raise LookalikeError("another file has its name now")
    return True


def history(root: Path) -> list[Batch]:
    """Return the batches that were moved out of a folder, newest first, with their state as found on disk."""
    rows = user_rows("SELECT batch FROM move WHERE root = ? ORDER BY rowid DESC", (root_key(root),))
    batches = [Batch(**json.loads(text)) for (text,) in rows]
    for batch in batches:
        try:
            lines = _lines(batch)
        except LookalikeError as error:  # what it says of other batches stands
            warn(str(error))
            continue
        away = [line for line in lines if os.path.lexists(Path(batch.folder) / line["to"])]
        if not batch.files:  # it was interrupted before it could be counted
            batch.files, batch.bytes = len(away), sum(line["bytes"] for line in away)
        batch.state = "back" if not away else "moved" if len(away) >= batch.files else "partly"
    return [batch for batch in batches if batch.files]


def root_of(name: str) -> Path | None:
    """Return the folder that a batch was moved out of, or ``None`` if there is no such batch."""
    rows = user_rows("SELECT batch FROM move WHERE id = ?", (name,))
    return Path(json.loads(rows[0][0])["root"]) if rows else None


def move_file(source: Path, goal: Path) -> None:
    """Move one file without overwriting another; after a kill it exists under one or both names, always whole.

    Raises:
        FileExistsError: If there is a file at ``goal``.
    """
    goal.parent.mkdir(parents=True, exist_ok=True)
    try:
        _rename(source, goal)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = _part(goal)
        try:  # to another disk: synced and compared
            with part.open("wb") as new, source.open("rb") as old:
                shutil.copyfileobj(old, new, 1 << 20)
                new.flush()
                os.fsync(new.fileno())
            shutil.copystat(source, part)
            if hash_file(part) != hash_file(source):
                raise LookalikeError("its copy differs")
            _rename(part, goal)
        finally:
            part.unlink(missing_ok=True)
        with _undo_on_error(goal):
            sync_folder(goal.parent)
            source.unlink(missing_ok=True)


def _rename(source: Path, goal: Path) -> None:
    """Rename on one disk, by linking first: a link fails where a file exists, a rename would overwrite it."""
    try:
        os.link(source, goal, follow_symlinks=False)
    except OSError:  # a file system without links, or another disk
        if os.path.lexists(goal):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(goal)) from None
        source.rename(goal)
    else:
        with _undo_on_error(goal):
            source.unlink(missing_ok=True)


@contextlib.contextmanager
def _undo_on_error(goal: Path) -> Iterator[None]:
    """Remove the new name again if the old one cannot be removed: the file stays as it was."""
    try:
        yield
    except OSError:
        goal.unlink()
        raise


def _part(goal: Path) -> Path:
    """The hidden file a copy is written to: no scan takes it for an image, and the next attempt finds it again."""
    return goal.with_name(f".lookalike-{hash_bytes(goal.name)[:16]}.part")


def _same_file(one: Path, other: Path) -> bool:
    """Two names of one file, or two files with equal bytes."""
    mine, theirs = one.lstat(), other.lstat()
    return os.path.samestat(mine, theirs) or (mine.st_size == theirs.st_size and hash_file(one) == hash_file(other))


def _is_plain_file(root: Path, file: Path) -> bool:
    """A regular file below the root; links are not followed."""
    return file.parent.resolve().is_relative_to(root) and not file.is_symlink() and file.is_file()


def _free(goal: Path) -> Path:
    numbered = (goal.with_name(f"{goal.stem} ({number}){goal.suffix}") for number in itertools.count(2))
    return next(free for free in itertools.chain([goal], numbered) if not os.path.lexists(free))


def _lines(batch: Batch) -> list[dict[str, Any]]:
    """The journal's lines of a batch; of several lines about one target the last counts."""
    path = _journal(batch)
    by_target: dict[str, dict[str, Any]] = {}
    try:
        texts = read_bytes(path, limit=MAX_JSON).splitlines() if path.exists() else []
    except OSError as error:  # anybody may have put something else in its place
        raise LookalikeError(f"The journal `{path}` cannot be read ({error.strerror or error}).") from error
    for text in texts:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            continue  # torn by a kill; its file had not moved yet
        known = line if isinstance(line, dict) else {}
        if all(isinstance(known.get(name), str) for name in ("batch", "path", "to")):
            by_target[known["to"]] = {**known, "bytes": known["bytes"] if type(known.get("bytes")) is int else 0}
    return [line for line in by_target.values() if line["batch"] == batch.id]


def _journal(batch: Batch) -> Path:
    """The journal: beside the moved files, but never inside the image folder, where nothing of ours belongs."""
    if Path(batch.folder).is_relative_to(batch.root):
        return folders.home() / "moves" / f"{batch.id}.jsonl"
    return Path(batch.folder) / JOURNAL


def _append(path: Path, line: dict[str, Any]) -> None:
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # torn by a kill
                file.write(b"\n")
        file.write(json.dumps(line).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


_MOVES = "CREATE TABLE IF NOT EXISTS move(id TEXT PRIMARY KEY, root TEXT NOT NULL, batch TEXT NOT NULL)"


def root_key(root: Path) -> str:
    """Return the key of what is stored about an image folder."""
    return hash_bytes(str(root.resolve()))[:16]


def _history(root: Path) -> Any:
    locks = folders.private_folder(folders.home() / "moves")
    return hold(locks / f"{root_key(root)}.lock", f"Moving in `{root}`")


def _register(root: Path, batch: Batch) -> None:
    text = "INSERT INTO move VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET batch = excluded.batch"
    with contextlib.closing(user_database(_MOVES)) as database, database.transaction() as connection:
        connection.execute(text, (batch.id, root_key(root), json.dumps(batch.to_json())))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
