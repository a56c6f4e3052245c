"""Which folder an index is, in whatever way a user names it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from lookalike.core import folders
from lookalike.core.errors import LookalikeError, nearest
from lookalike.core.files import hash_bytes
from lookalike.core.run import Run
from lookalike.searching import manifest as manifests


def default_path(source: Path) -> Path:
    """Where the index of a folder goes when nobody says: its name, and a mark for equal names elsewhere."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in source.name).strip(".-") or "images"
    return folders.indexes() / f"{safe[:40]}-{hash_bytes(str(source))[:6]}"


def index_for(source: Path) -> Path:
    """Where the index of a folder is, or will be: the default place, unless only others were made of it."""
    default = default_path(source)
    return default if is_index(default) else next(indexes_of(source), default)


def indexes_of(source: Path) -> Iterator[Path]:
    """The user's indexes of a folder, the last updated first."""
    for path in indexes():
        try:
            found = manifests.read(path).source
        except LookalikeError:  # damaged, or a newer version's: told when it is asked for, not when another is
            continue
        if Path(found) == source:
            yield path


def is_name(where: str | os.PathLike[str]) -> bool:
    """Whether a user gave a name (`holiday`) and not a place (`./holiday`)."""
    text = os.fspath(where)
    return Path(text).name == text and text != ".."


def index_path(index: str | os.PathLike[str]) -> Path:
    """The folder of an index, there or not, by its name or its place."""
    place = Path(index).expanduser()
    return folders.indexes() / place if is_name(index) and not is_index(place.absolute()) else place.absolute()


def path_key(path: Path) -> str:
    """A short name for what is kept of an index elsewhere, however its folder was spelled."""
    return hash_bytes(str(path.resolve()))[:12]


def is_index(path: Path) -> bool:
    return (path / manifests.NAME).is_file()


def indexes() -> list[Path]:
    """All indexes under the user's folder, the last updated first."""
    found = [path for path in folders.indexes().iterdir() if is_index(path)]
    return sorted(found, key=lambda path: (path / manifests.NAME).stat().st_mtime, reverse=True)


def find_index(where: str | os.PathLike[str] | None) -> Path:
    """The folder of an index that a user named in one of several ways."""
    if where is None:
        found = indexes()
        if not found:
            raise LookalikeError("There is no index yet: `lookalike index FOLDER` makes one.")
        return found[0]
    path = Path(where).expanduser().absolute()
    for candidate in (path, folders.indexes() / where if is_name(where) else path):
        if is_index(candidate):
            return candidate
    if Run.is_run(path):
        for candidate in (path / "index", path.with_name(f"{path.name}-index")):
            if is_index(candidate):
                return candidate
        raise LookalikeError(f"The run `{where}` has no index: `lookalike index FOLDER --model {where}` makes one.")
    for candidate in indexes_of(path.resolve()):
        return candidate
    if path.exists():
        raise LookalikeError(f"`{where}` is not an index and none was made of it: run `lookalike index {where}` first.")
    hint = nearest(str(where), [p.name for p in indexes()]) or ": `lookalike index FOLDER` makes one."
    raise LookalikeError(f"There is no index `{where}`{hint}")
