"""`read_table`: read a folder, a table file, a list, tar shards or a known data set as a `Table`.

To add a data set layout, write a function with the decorator `@layout` in one of the modules here (see
`base.py`); a new module is added to `_MODULES` below.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import warn
from lookalike.data.readers import domains, fine_grained, image_classification, products
from lookalike.data.readers.base import LAYOUTS, SPLITS, Columns, locate, unique_rows
from lookalike.data.readers.image_folder import read_folder
from lookalike.data.readers.table_files import IN_FOLDER, has_paths, read_file, read_list
from lookalike.data.readers.webdataset import looks_like_shards, read_shards
from lookalike.data.scan import kind_of, readable_name
from lookalike.data.table import Table, is_saved_table

# Importing a module registers its layouts; a new one is added here.
_MODULES = (image_classification, domains, fine_grained, products)

_GENERAL = {
    "folder": "any folder; subfolders are labels",
    "domains": "<domain>/<class>/ folders",
    "table": "CSV, TSV or Parquet with a column `path`",
    "list": "`path label` lines",
    "webdataset": "tar shards",
}
_ALIASES = {
    **dict.fromkeys(("cub2002011", "cub200"), "cub"),
    **dict.fromkeys(("cars196", "stanfordcars"), "cars"),
    **dict.fromkeys(("inshop", "deepfashion"), "in-shop"),
    **dict.fromkeys(("visdac", "visda2017"), "visda"),
    **dict.fromkeys(("tinyimagenet", "tinyimagenet200"), "tiny-imagenet"),
    **dict.fromkeys(("voc2007", "voc"), "voc07"),
    **dict.fromkeys(("mit67", "mitindoor67"), "mit-67"),
    **{"stanfordonlineproducts": "sop", "domainnet126": "domainnet", "ilsvrc": "imagenet", "fgvcaircraft": "aircraft"},
    **{"stanforddogs": "dogs", "grocerystore": "grocery"},
}
_FILES = {  # endings of files that are read without a layout
    "table": (".csv", ".tsv", ".parquet", ".pq"),
    "list": (".txt", ".lst", ".list"),
    "webdataset": (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst"),
}


def layouts() -> dict[str, str]:
    """Return every value of `layout=` with its description.

    Example:
        >>> la.data.layouts()["cub"]
        'CUB-200-2011'
    """
    return {"auto": "recognized by its files", **_GENERAL, **{n: x.title for n, x in LAYOUTS.items()}}


def read_table(
    source: str | Path | Table,
    *,
    layout: str = "auto",
    split: str | None = None,
    name: str | None = None,
    follow_links: bool = True,
    progress: bool = False,
) -> Table:
    """Read images and what is known about them as a `Table`.

    Args:
        source: A folder, a CSV or Parquet table, a `path label` list, tar shards, a known data set, or a table.
        layout: How the data set is laid out; see `layouts()`. `auto` recognizes it by its files.
        split: Read one split only.
        name: Name of the data set; by default that of its folder.
        follow_links: Whether to follow links that stay inside the folder.
        progress: Whether to show a progress bar.

    Returns:
        The table; `notes` says which layout it has and what was skipped.

    Raises:
        LookalikeError: The source is missing, empty, or not laid out as `layout`.

    Example:
        >>> la.read_table("photos").labels()[1]
        ['class-00', 'class-01', 'class-02', 'class-03']
    """
    if isinstance(source, Table):
        return _only(source, split, source.name)
    plain = "".join(c for c in layout.lower() if c.isalnum())
    layout = choose(_ALIASES.get(plain, layout), layouts(), "a layout")
    shown, path = readable_name(str(source)), Path(source).expanduser()
    if not path.exists():
        raise LookalikeError(f"`{shown}` does not exist: give a folder of images or a table.")
    if not path.is_file() and not path.is_dir():
        raise LookalikeError(f"`{shown}` is a pipe, socket or device: give a folder of images or a table.")
    if path.is_file() and is_saved_table(path):
        table = Table.load(path)
        if table.root is not None and not table.root.is_dir():
            raise LookalikeError(f"The images of `{shown}` were under `{table.root}`, which is not there any more.")
    else:
        read = _read_folder if path.is_dir() else _read_one_file
        root, columns, notes = read(path, layout, shown, follow_links, progress)
        if "size" not in columns:
            root, columns, more_notes = locate(root, columns, shown)
            notes |= more_notes
        notes = {"source": shown, **notes}
        name = readable_name(name or _name(path))
        table = unique_rows(Table.from_columns(columns, name=name, root=root.absolute(), notes=notes))
    for message in table.notes.get("warnings", []):
        warn(message)
    return _only(table, split, shown)


def _read_folder(
    path: Path, layout: str, shown: str, follow_links: bool, progress: bool
) -> tuple[Path, Columns, dict[str, Any]]:
    if layout in LAYOUTS:
        base = LAYOUTS[layout].base(path)
        if base is None:
            missing = LAYOUTS[layout].missing(path)
            raise LookalikeError(
                f"`{shown}` is not laid out as {LAYOUTS[layout].title}: there is no `{missing}` in it."
            )
        return base, LAYOUTS[layout].columns(base), {"layout": layout}
    if layout == "auto":
        for known in LAYOUTS.values():
            if base := known.base(path):
                return base, known.columns(base), {"layout": known.name}
    if layout in ("auto", "table"):
        for name in (*IN_FOLDER, f"{path.resolve().name}.csv"):
            if (path / name).is_file() and has_paths(path / name):
                return path, read_file(path / name), {"layout": "table"}
    if layout in ("table", "list"):
        raise LookalikeError(f"`{shown}` is a folder, and no {layout} lies in it: name the file itself.")
    if layout == "webdataset" or (layout == "auto" and looks_like_shards(path)):
        return *read_shards(path, progress=progress), {"layout": "webdataset"}
    columns, notes = read_folder(path, shown, domains=layout == "domains", follow_links=follow_links, progress=progress)
    return path, columns, {"layout": "folder" if layout == "auto" else layout, **notes}


def _read_one_file(
    path: Path, layout: str, shown: str, follow_links: bool, progress: bool
) -> tuple[Path, Columns, dict[str, Any]]:
    if layout == "auto":
        layout = next((name for name, ends in _FILES.items() if path.name.lower().endswith(ends)), "")
    if not layout and kind_of(path.name) == "image":
        raise LookalikeError(f"`{shown}` is a single image; give the folder it lies in, or a table.")
    if not layout:
        raise LookalikeError(f"`{shown}` is not a table: give a folder, a CSV or Parquet table, a list or tar shards.")
    if layout == "table":
        return path.parent, read_file(path), {"layout": "table"}
    if layout == "list":
        return path.parent, read_list(path), {"layout": "list"}
    if layout == "webdataset":
        return *read_shards(path, progress=progress), {"layout": "webdataset"}
    raise LookalikeError(f"`{shown}` is a file; the layout {layout} needs the data set's folder.")


def _name(path: Path) -> str:
    """Return the data set's name: its folder, or the table's own name unless that is generic (`table.csv`)."""
    path = Path(os.path.abspath(path))  # noqa: PTH100 -- a link keeps its own name
    if path.is_dir():
        return path.name or "root"
    stem = path.name.partition(".")[0]
    general = {Path(name).stem for name in IN_FOLDER}
    return (path.parent.name or stem) if stem in general else stem


def _only(table: Table, split: str | None, shown: str) -> Table:
    if split is None:
        return table
    if not table.has("split"):
        raise LookalikeError(f"`{shown}` has no splits, so there is no `{split}` in it.")
    there = table.labels("split")[1]
    split = split if split in there else SPLITS.get(split.lower(), split)  # tables call theirs `validation` too
    return table.where("split", choose(split, there, f"a split of `{shown}`"))
