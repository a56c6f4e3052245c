"""The ``duplicates`` command: find duplicate images of a folder or an index, move them away and back."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.database import user_database, user_rows
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import format_bytes, printable
from lookalike.core.progress import Progress, plural, say
from lookalike.searching import file_moves
from lookalike.searching.duplicate_groups import KINDS, Group, group_duplicates
from lookalike.searching.file_moves import Batch, FileToMove, root_key
from lookalike.searching.image_facts import ImageFacts, read_image_facts
from lookalike.searching.index_folder import Index
from lookalike.searching.locate import find_index, is_index

if TYPE_CHECKING:
    from lookalike.data import Table

TITLES = {"identical": "Identical files", "same": "Same image", "near": "Near duplicates"}
SHOWN = 10  # groups that are printed with all their files
# Of the detail of the next octave: 0.38 at most in copies scaled up by 1.25 to 3, 0.42 at least in originals.
ENLARGED = 0.4


@dataclass
class Duplicates:
    """Duplicate images of a folder.

    Args:
        root: The image folder.
        groups: Groups of duplicates, by kind and by the bytes they waste.
        images: Number of images that were compared.
        unreadable: Number of files that could not be read.
        moved: The batch of files that was moved away or back, if any.
        embedded: Whether embeddings were used to find near duplicates.
        dismissed: Number of groups that a user has dismissed; they are not listed.
        source: The folder or index as named by the user.
        kinds: The kinds that were asked for.
        planned: Files that would be moved, with their size, and the folder that they would be moved to.

    Example:
        >>> result = la.duplicates(source="photos", progress=False)
        >>> result.counts["identical"]
        {'groups': 0, 'files': 0, 'bytes': 0}
    """

    root: Path
    groups: list[Group]
    images: int
    unreadable: int = 0
    moved: Batch | None = None
    embedded: bool = False
    dismissed: int = 0
    source: str = ""
    kinds: Sequence[str] = KINDS
    planned: tuple[list[FileToMove], Path] | None = None
    _disk_paths: dict[str, str] = field(default_factory=dict, repr=False)

    def of(self, kind: str) -> list[Group]:
        """Return the groups of one kind."""
        return [group for group in self.groups if group.kind == kind]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """Groups, files, and bytes to free, by kind."""
        groups = {kind: [group for group in self.groups if group.kind == kind] for kind in KINDS}
        files = {kind: sum(len(group.files) for group in own) for kind, own in groups.items()}
        sizes = {kind: sum(group.bytes for group in own) for kind, own in groups.items()}
        return {kind: {"groups": len(groups[kind]), "files": files[kind], "bytes": sizes[kind]} for kind in KINDS}

    def files_to_move(self, images: Sequence[ImageFacts]) -> list[FileToMove]:
        """Return images as :func:`lookalike.searching.file_moves.move` takes them; those inside shards stay."""
        movable = [image for image in images if image.id in self._disk_paths]
        if len(movable) < len(images):
            say(f"{len(images) - len(movable):,} images lie inside of tables or shards and are not moved.")
        return [FileToMove(self._disk_paths[image.id], image.bytes, image.mtime) for image in movable]

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        groups = [
            {"id": group.id, "kind": group.kind, "keep": group.files[group.keep].path, "reason": group.reason}
            | {
                "bytes": group.bytes,
                "files": [file_json(f) | {"keep": i == group.keep} for i, f in enumerate(group.files)],
            }
            for group in self.groups
        ]
        names = ("images", "unreadable", "embedded", "dismissed", "counts")
        facts = {"folder": str(self.root)} | {name: getattr(self, name) for name in names}
        return facts | {"groups": groups, "moved": None if self.moved is None else self.moved.to_json()}

    def __str__(self) -> str:
        lines = [f"{plural(self.unreadable, 'file')} could not be read."] * bool(self.unreadable)
        if not self.groups and self.moved is None:
            return "\n".join([*lines, f"No duplicates among {plural(self.images, 'image')}."])
        for kind in self.kinds:
            counts, size = self.counts[kind], format_bytes(self.counts[kind]["bytes"])
            if not counts["groups"]:
                continue
            groups, files = plural(counts["groups"], "group"), plural(counts["files"], "file")
            lines.append(f"{TITLES[kind]:<16} {groups}, {files}, {size} to free")
        if self.planned is not None:
            moved, folder = self.planned
            size = format_bytes(sum(file.size for file in moved))
            lines += [f"Would move {plural(len(moved), 'file')} ({size}) to {folder}:"]
            lines += [f"  {file.path} → {folder / file.path}" for file in moved]
            return printable("\n".join([*lines, "No files were moved."]))
        for group in self.groups[:SHOWN]:
            lines.append(f"{group.kind}:")
            for position, image in enumerate(group.files):
                word = "keep" if position == group.keep else "    "
                size = f"{image.width} × {image.height}"
                lines.append(f"  {word}  {image.path}  {size}  {format_bytes(image.bytes)}")
            lines.append(f"        kept: {group.reason}")
        for group in self.groups[SHOWN:]:
            moves = ", ".join(image.path for image in group.moves)
            lines.append(f"{group.kind}: keep {group.files[group.keep].path}; also {moves}")
        return printable("\n".join([*lines, self._last_line()]))

    def _last_line(self) -> str:
        if self.moved is None:
            return f"No files were moved. To review them: lookalike serve {shlex.quote(self.source)}"
        skipped = f"; {len(self.moved.left):,} skipped" if self.moved.left else ""
        files = f"{plural(self.moved.files, 'file')} ({format_bytes(self.moved.bytes)})"
        if self.moved.state == "back":
            return f"Moved back {files}{skipped}"
        whole = Path(self.source).expanduser().resolve() == self.root.resolve()
        batch = "last" if whole else self.moved.id  # a table whose files are away cannot be read any more
        undo = f"To undo: lookalike duplicates {shlex.quote(self.source)} --back {batch}"
        return f"Moved {files} to {self.moved.folder}{skipped}. {undo}"


def duplicates(
    *,
    source: str | Path,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    kinds: Sequence[str] | None = None,
    prefer: str = "",
    move: bool = False,
    move_to: str | Path | None = None,
    back: str | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Duplicates:
    """Find duplicate images and suggest which to keep; nothing is deleted.

    Three kinds are told apart: identical files, the same image saved again (another size, format or compression), and
    near duplicates (bursts, crops, edits). With an index, its embeddings help to find near duplicates. Files are only
    moved on request, and can be moved back.

    Args:
        source: A folder of images, or an index.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        kinds: Kinds to list: identical, same, near (repeatable; default: all).
        prefer: A folder whose files are kept.
        move: Move the suggested files away. Only identical files, unless ``kinds`` is given.
        move_to: Where to move them (default: a folder beside the images).
        back: Move a batch back: its id, or "last".
        dry_run: Only say what would be moved where.
        progress: Show progress bars.

    Returns:
        The groups of duplicates.

    Example:
        >>> print(la.duplicates(source="photos", kinds=["identical"], progress=False))
        No duplicates among 24 images.
    """
    from lookalike.data import with_columns

    layout = with_columns("auto", image_column, label_column, split_column)
    listed = [choose(kind, KINDS, "a kind of duplicates") for kind in kinds or KINDS]
    if back is not None:  # a table whose files are away cannot be read; its batch knows where they were
        root = file_moves.root_of(back) or _open_source(source, layout)[0].root or Path()
        batch = file_moves.back(root, None if back == "last" else back, progress=progress)
        return Duplicates(root, [], 0, moved=batch, source=str(source))
    table, vectors = _open_source(source, layout)
    result = duplicates_in_table(table, vectors, prefer=prefer, progress=progress)
    result.source = str(source)
    result.kinds = [kind for kind in KINDS if kind in listed]
    result.groups = [group for group in result.groups if group.kind in listed]
    if move or move_to is not None:
        chosen = [group for group in result.groups if group.kind in (kinds or ("identical",))]
        files = result.files_to_move([image for group in chosen for image in group.moves])
        target = Path(move_to).expanduser().absolute() if move_to else file_moves.default_target(result.root)
        if dry_run:
            result.planned = files, target
        else:
            result.moved = file_moves.move(result.root, files, target, progress=progress)
            result.groups = [group for group in result.groups if group not in chosen]
    return result


def duplicates_in_table(
    table: Table, vectors: dict[str, np.ndarray] | None = None, *, prefer: str = "", progress: bool = True
) -> Duplicates:
    """Find the duplicates among the images of a table, except dismissed groups."""
    if table.root is None:
        raise LookalikeError("These images have no common folder, so none of them can be moved.")
    root, table = table.root, replace(table, confined=True)
    images, unreadable = read_image_facts(table, progress=progress)
    # An image inside a shard cannot be moved by itself; others are moved by their spelling on disk.
    files = {image.id: file for image in images if (file := table.file(image.row)) is not None}
    inside = [image for image in images if image.id not in files]
    images = _one_per_file([image for image in images if image.id in files], files) + inside
    hidden = dismissed(root)
    with Progress("Comparing", shown=progress):
        groups = group_duplicates(images, vectors, prefer=prefer, enlarged=partial(is_enlarged, table))
    listed = [group for group in groups if group.id not in hidden]
    result = Duplicates(root, listed, len(images), unreadable, embedded=bool(vectors))
    result.dismissed = len(groups) - len(listed)
    result._disk_paths = {name: os.path.relpath(file, root) for name, file in files.items()}
    return result


def _one_per_file(images: list[ImageFacts], files: dict[str, Path]) -> list[ImageFacts]:
    """The images without further rows of the same file: it may be listed twice, in parts, or behind a link."""
    distinct: dict[tuple[int, int], ImageFacts] = {}
    for image in sorted(images, key=lambda image: files[image.id].is_symlink()):
        with contextlib.suppress(FileNotFoundError):
            status = files[image.id].stat()
            distinct.setdefault((status.st_dev, status.st_ino), image)
    return list(distinct.values())


def is_enlarged(table: Table, image: ImageFacts, other: ImageFacts) -> bool:
    """Return whether an image shows no more detail than a smaller copy: it was scaled up from something like it.

    What it loses when it is scaled to that size and back is compared with what the next octave loses.
    """
    from PIL import Image

    from lookalike.data import decode

    def back(by: float) -> np.ndarray:
        size = max(1, round(gray.width / by)), max(1, round(gray.height / by))
        small = gray.resize(size, Image.Resampling.LANCZOS)
        return np.asarray(small.resize(gray.size, Image.Resampling.BICUBIC), np.float32)

    with contextlib.suppress(LookalikeError, OSError):
        gray = Image.fromarray(decode(table.open_bytes(image.row))).convert("L")
        factor = (image.width * image.height / (other.width * other.height)) ** 0.5
        first, second = back(factor), back(2 * factor)
        lost = np.abs(np.asarray(gray, np.float32) - first).mean()
        return bool(lost < ENLARGED * np.abs(first - second).mean())
    return False


def all_vectors(index: Index) -> dict[str, np.ndarray]:
    """Return all vectors of an index by row id."""
    return {r.id: r.vector for part in index.store.scan(vectors=True) for r in part if r.vector is not None}


def _open_source(source: Any, layout: str) -> tuple[Table, dict[str, np.ndarray] | None]:
    """The images of a folder or an index, and their vectors where an index has them."""
    from lookalike.data.readers import find_source, read_table

    if not isinstance(source, (str, Path)):
        return read_table(source, layout=layout), None
    path = Path(source).expanduser()
    try:
        folder = find_index(source)
    except LookalikeError:
        if is_index(path) or not (path.exists() or set(str(source)) & set("/*?{")):
            raise
        return read_table(find_source(source)[0].resolve(), layout=layout), None
    with Index.open(folder) as index:
        table = read_table(index.source, layout=index.manifest.layout, split=index.manifest.split)
        return table, all_vectors(index)


def file_json(image: ImageFacts) -> dict[str, Any]:
    """Return what is shown of a file as a JSON document."""
    names = ("id", "path", "bytes", "width", "height", "date", "has_location")
    return {name: getattr(image, name) for name in names}


_DISMISSED = "CREATE TABLE IF NOT EXISTS dismissed(root TEXT, id TEXT, PRIMARY KEY (root, id)) WITHOUT ROWID"


def dismissed(root: Path) -> set[str]:
    """Return the ids of groups that a user has marked as no duplicates."""
    rows = user_rows("SELECT id FROM dismissed WHERE root = ?", (root_key(root),))
    return {name for (name,) in rows}


def dismiss(root: Path, name: str, *, undo: bool = False) -> None:
    """Mark a group as no duplicates, so that it is not listed again."""
    insert, delete = "INSERT OR IGNORE INTO dismissed VALUES (?, ?)", "DELETE FROM dismissed WHERE (root, id) = (?, ?)"
    with contextlib.closing(user_database(_DISMISSED)) as database, database.transaction() as connection:
        connection.execute(delete if undo else insert, (root_key(root), name))
