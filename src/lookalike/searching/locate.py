"""Find the folder of an index by its name, its path, its image folder or a run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from lookalike.core import folders
from lookalike.core.database import FILE, read_document
from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.files import hash_bytes
from lookalike.core.run import Run
from lookalike.core.storage import location
from lookalike.searching import manifest as manifests


def default_path(source: Path) -> Path:
    """Return the default path of a folder's index: its name, and a hash to tell folders of equal names apart."""
    safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in source.name).strip(".-") or "images"
    return folders.indexes() / f"{safe[:40]}-{hash_bytes(str(source))[:6]}"


def index_for(source: Path) -> Path:
    """Return the path of a folder's index, existing or not: the default one unless only others exist."""
    default = default_path(source)
    return default if is_index(default) else next(indexes_of(source), default)


def indexes_of(source: Path) -> Iterator[Path]:
    """Yield the user's indexes of a folder, the one updated last first."""
    for path in indexes():
        try:
            indexed = manifests.read(path).source
        except LookalikeError:  # damaged or of a newer format: reported when it is opened
            continue
        if location(indexed) == source:
            yield path


def is_name(where: str | os.PathLike[str]) -> bool:
    """Return whether a text is a name (``holiday``) and not a path (``./holiday``)."""
    text = os.fspath(where)
    return Path(text).name == text and text != ".."


def index_path(index: str | os.PathLike[str]) -> Path:
    """Return the folder of an index, existing or not, by its name or path."""
    path = Path(index).expanduser()
    return folders.indexes() / path if is_name(index) and not is_index(path.absolute()) else path.absolute()


def path_key(path: Path) -> str:
    """Return a short key for what is stored about an index elsewhere, however its path was spelled."""
    return hash_bytes(str(path.resolve()))[:12]


def is_index(path: Path) -> bool:
    """Return whether a folder is an index."""
    try:
        return (path / FILE).is_file() and read_document(path, manifests.NAME) is not None
    except LookalikeError:  # damaged: reported when it is opened
        return True


def is_leftover(path: Path) -> bool:
    """Return whether a folder holds only what an interrupted first run or a pre-release left: it may be overwritten."""
    known = {".lock", "generations", FILE, f"{FILE}-wal", f"{FILE}-shm"}
    return path.is_dir() and (manifests.is_prerelease(path) or not {p.name for p in path.iterdir()} - known)


def indexes() -> list[Path]:
    """List all indexes in the user's folder, the one updated last first.

    Returns:
        Their paths.

    Example:
        >>> la.searching.indexes()  # doctest: +SKIP
        [PosixPath('/home/ada/.local/share/lookalike/indexes/photos-1f0c2a')]
    """
    paths = [path for path in folders.indexes().iterdir() if path.name[0] != "." and is_index(path)]
    return sorted(paths, key=_updated, reverse=True)


def _updated(path: Path) -> float:
    """When an index was last written to; its log holds what was not yet copied to the database."""
    files = [path / FILE, *(log for log in path.glob(f"{FILE}-wal") if log.stat().st_size)]
    return max(file.stat().st_mtime for file in files)


def find_index(where: str | os.PathLike[str] | None) -> Path:
    """Find an index.

    Args:
        where: Name or path of an index, an image folder, or a run (default: the index updated last).

    Returns:
        The folder of the index.

    Raises:
        LookalikeError: If there is none.
    """
    if where is None:
        paths = indexes()
        if not paths:
            raise LookalikeError("There is no index yet: `lookalike index FOLDER` makes one.")
        return paths[0]
    path = Path(where).expanduser().absolute()
    if is_index(path):  # without the user's folder, which may be read-only
        return path
    named = folders.indexes() / where if is_name(where) else path
    if is_index(named):
        return named
    for candidate in (path, named):
        if manifests.is_prerelease(candidate):
            manifests.read(candidate)
    if Run.is_run(path):
        for candidate in (path / "index", path.with_name(f"{path.name}-index")):
            if is_index(candidate):
                return candidate
        raise LookalikeError(f"The run `{where}` has no index: `lookalike index FOLDER --model {where}` makes one.")
    for candidate in indexes_of(path.resolve()):
        return candidate
    if path.exists():
        raise LookalikeError(
            f"`{where}` is not an index and has none: run `lookalike index {shlex.quote(str(where))}` first."
        )
    hint = suggest(str(where), [p.name for p in indexes()]) or ": `lookalike index FOLDER` makes one."
    raise LookalikeError(f"There is no index `{where}`{hint}")
