"""`duplicates`: files that are there more than once. Nothing is deleted; what is picked is moved, and can come back."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import hash_bytes, human_bytes, printable, read_json, write_json
from lookalike.core.locks import Locked
from lookalike.core.progress import warn
from lookalike.searching import moving
from lookalike.searching.grouping import KINDS, Group, group
from lookalike.searching.image_facts import Look, look_at
from lookalike.searching.index_folder import Index
from lookalike.searching.locate import find as find_index
from lookalike.searching.locate import is_index
from lookalike.searching.moving import Batch, Wanted

if TYPE_CHECKING:
    from lookalike.data import Table

WORDS = {"identical": "Identical files", "same": "Same image", "near": "Near duplicates"}


@dataclass
class Duplicates:
    """What was found among the images of a folder."""

    root: Path
    groups: list[Group]
    images: int
    unreadable: int = 0
    moved: Batch | None = None
    embedded: bool = False  # embeddings helped to find near ones
    dismissed: int = 0
    source: str = ""
    _places: dict[str, str] = field(default_factory=dict, repr=False)

    def of(self, kind: str) -> list[Group]:
        return [found for found in self.groups if found.kind == kind]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {
            kind: {
                "groups": len(self.of(kind)),
                "files": sum(len(found.files) for found in self.of(kind)),
                "bytes": sum(found.bytes for found in self.of(kind)),
            }
            for kind in KINDS
        }

    def wanted(self, looks: Sequence[Look]) -> list[Wanted]:
        """Files as `moving` knows them."""
        return [Wanted(self._places.get(look.id, look.path), look.bytes, look.mtime) for look in looks]

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.root),
            "images": self.images,
            "unreadable": self.unreadable,
            "embedded": self.embedded,
            "dismissed": self.dismissed,
            "counts": self.counts,
            "groups": [group_json(found) for found in self.groups],
            "moved": None if self.moved is None else self.moved.to_json(),
        }

    def __str__(self) -> str:
        if not self.groups and self.moved is None:
            return f"No duplicates among {self.images:,} images."
        lines = []
        for kind, found in self.counts.items():
            size = human_bytes(found["bytes"])
            lines.append(f"{WORDS[kind]:<16} {found['groups']:,} groups, {found['files']:,} files, {size} to spare")
        for found_group in self.groups[:SHOWN]:
            lines.append(f"{found_group.kind}:")
            for place, look in enumerate(found_group.files):
                word = "keep" if place == found_group.keep else "    "
                size = f"{look.width} × {look.height}"
                lines.append(f"  {word}  {look.path}  {size}  {human_bytes(look.bytes)}")
            lines.append(f"        kept: {found_group.reason}")
        if len(self.groups) > SHOWN:
            lines.append(f"and {len(self.groups) - SHOWN:,} more groups: --json lists them all")
        return printable("\n".join([*lines, self._last()]))

    def _last(self) -> str:
        if self.moved is None:
            return f"Nothing was moved. Go through them: lookalike serve {self.source}"
        left = f"; {len(self.moved.left):,} stayed" if self.moved.left else ""
        word = "Moved back" if self.moved.state == "back" else "Moved"
        where = "" if self.moved.state == "back" else f" to {self.moved.folder}"
        size = human_bytes(self.moved.bytes)
        hint = "" if self.moved.state == "back" else f". Back again: lookalike duplicates {self.source} --back last"
        return f"{word} {self.moved.files:,} files ({size}){where}{left}{hint}"


SHOWN = 10


def duplicates(
    *,
    source: str | os.PathLike[str],
    kinds: Collection[str] | None = None,
    prefer: str = "",
    move: bool = False,
    move_to: str | os.PathLike[str] | None = None,
    back: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Duplicates:
    """Files of a folder, or of an index, that are there more than once, with a suggestion which to keep.

    `kinds` are some of identical, same and near (default: all are listed, and of them `move` moves the identical).
    `prefer` is a folder whose files are kept. `move` moves what is suggested, to `move_to` or beside the folder;
    `back` moves a batch back ("last" for the newest). With an index, its embeddings find crops and bursts too.
    """
    chosen = [choose(kind, KINDS, "a kind of duplicates") for kind in kinds or KINDS]
    table, vectors = _images(source)
    if back is not None:
        return _back(Path(table.root or "."), None if back == "last" else back, str(source), progress=progress)
    found = find(table, vectors, prefer=prefer, progress=progress)
    found.source = str(source)
    found.groups = [one for one in found.groups if one.kind in chosen]
    if (move or move_to is not None) and not dry_run:
        moved = [one for one in found.groups if one.kind in (kinds or ("identical",))]
        files = found.wanted([look for one in moved for look in one.moves])
        found.moved = moving.move(found.root, files, Path(move_to) if move_to else None, progress=progress)
        found.groups = [one for one in found.groups if one not in moved]
    return found


def find(
    table: Table, vectors: dict[str, np.ndarray] | None = None, *, prefer: str = "", progress: bool = True
) -> Duplicates:
    """Look at every image of a table and group what belongs together; groups that were dismissed stay away."""
    if table.root is None:
        raise LookalikeError("These images have no folder of their own, so none of them can be moved.")
    looks, unreadable = look_at(table, progress=progress)
    # What lies in a shard cannot be moved by itself; what was found under another spelling is moved by that.
    files = {look.id: file for look in looks if (file := table.file(look.row)) is not None}
    looks = [look for look in looks if look.id in files]
    gone = dismissed(table.root)
    groups = group(looks, vectors, prefer=prefer)
    kept = [one for one in groups if one.id not in gone]
    found = Duplicates(table.root, kept, len(looks), unreadable, embedded=bool(vectors))
    found.dismissed = len(groups) - len(kept)
    found._places = {name: os.path.relpath(file, table.root) for name, file in files.items()}
    return found


def vectors_of(index: Index) -> dict[str, np.ndarray]:
    return {r.id: r.vector for part in index.store.scan(vectors=True) for r in part if r.vector is not None}


def _images(source: str | os.PathLike[str]) -> tuple[Table, dict[str, np.ndarray] | None]:
    """The images of a folder or an index, and their vectors where an index has them."""
    from lookalike.data import read_table

    path = Path(source).expanduser()
    try:
        place = find_index(source)
    except LookalikeError:
        if not path.exists() or is_index(path):
            raise
        return read_table(path.resolve()), None
    with Index.open(place) as index:
        table = read_table(index.source, layout=index.manifest.layout, split=index.manifest.split)
        try:
            return table, vectors_of(index)
        except Locked:
            warn("the index is in use (`lookalike serve`?), so near duplicates are told by small images alone.")
            return table, None


def _back(root: Path, name: str | None, source: str, *, progress: bool) -> Duplicates:
    batch = moving.back(root, name, progress=progress)
    return Duplicates(root, [], 0, moved=batch, source=source)


def group_json(found: Group) -> dict[str, Any]:
    return {
        "id": found.id,
        "kind": found.kind,
        "keep": found.files[found.keep].path,
        "reason": found.reason,
        "bytes": found.bytes,
        "files": [file_json(look) | {"keep": place == found.keep} for place, look in enumerate(found.files)],
    }


def file_json(look: Look) -> dict[str, Any]:
    names = ("id", "path", "bytes", "width", "height", "date", "place")
    return {name: getattr(look, name) for name in names}


# -- groups that a user called no duplicates ---------------------------------------------------------------------


def _verdicts(root: Path) -> Path:
    return folders.private_folder(folders.home() / "duplicates") / f"{hash_bytes(str(root.resolve()))[:16]}.json"


def dismissed(root: Path) -> set[str]:
    path = _verdicts(root)
    return set(read_json(path, "list of dismissed groups")["dismissed"]) if path.exists() else set()


def dismiss(root: Path, name: str, *, undo: bool = False) -> None:
    """Remember that a group holds no duplicates, or forget it again."""
    names = dismissed(root) - {name} if undo else dismissed(root) | {name}
    write_json(_verdicts(root), {"format": 1, "dismissed": sorted(names)}, private=True)
