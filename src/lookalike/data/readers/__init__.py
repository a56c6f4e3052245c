"""`read_table`: read a folder, a table file, a list, tar shards or a known data set as a `Table`.

To add a data set layout, write a function with the decorator `@layout` in one of the modules here (see
`base.py`); a new module is added to `_MODULES` below.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from pathlib import Path
from typing import Any, cast

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import plural, warn
from lookalike.core.storage import RemotePath, Tree, is_url, location
from lookalike.data.readers import domains, hub, image_classification, products, table_files
from lookalike.data.readers.base import LAYOUTS, SPLITS, Columns, exists, files_of_shards, locate, unique_rows
from lookalike.data.readers.columns import ColumnMap, hint, parse_layout, require, with_columns
from lookalike.data.readers.image_folder import read_folder
from lookalike.data.readers.objects import read_object
from lookalike.data.readers.webdataset import read_shards
from lookalike.data.scan import kind_of, readable_name
from lookalike.data.table import Table, as_array, is_saved_table

__all__ = ["SOURCES", "layouts", "read_table"]
MAX_SHARDS = 100_000
# Importing a module registers its layouts; a new one is added here.
_MODULES = (image_classification, domains, products)

_GENERAL = {
    "folder": "any folder; subfolders are labels",
    "domains": "<domain>/<class>/ folders",
    "table": "CSV, TSV, JSON lines or Parquet, with paths or images",
    "list": "`path label` lines",
    "webdataset": "tar shards",
}
SOURCES = {
    "folder": ("a folder", "one subfolder a class; `train`, `val`, `test` at the top become the split"),
    "imagefolder": ("a folder with `metadata.csv` or `.jsonl`", "at the top or in each split, as `imagefolder` has it"),
    "csv": (
        "CSV, TSV, JSON lines",
        "columns `path`, `label`, `split`, `is_query`, `is_gallery`, `domain`, boxes, facets",
    ),
    "parquet": ("Parquet with images", "as `datasets` writes it, one file or a folder; read by offset in the file"),
    "parquet-compressed": ("compressed Parquet", "read by row group"),
    "parquet-bytes": ("Parquet with plain bytes", "the column of bytes, by its name or `--image-column`"),
    "webdataset": ("WebDataset", "tar shards, read in place: one, a folder, a list, or a pattern: `t-{00..99}.tar`"),
    "hub": ("a data set of the Hugging Face Hub", "`OWNER/NAME`, `hf://datasets/OWNER/NAME@REVISION/FOLDER`"),
    "datasets": ("`datasets.Dataset`", "Python; read from the files that back it, or from memory"),
    "datasets-dict": ("`datasets.DatasetDict`", "Python; its splits become the split"),
    "frame-pandas": ("a pandas frame", "Python; paths, bytes, structs of both, PIL images or arrays"),
    "frame-polars": ("a Polars frame", "Python; and whatever else exports Arrow, as DuckDB's relations"),
    "list": ("a list of paths", "Python; with `labels=`, or of (path, label); also of bytes, PIL images or arrays"),
    "torch": ("a torch `Dataset`", "Python; of (image, label), the last resort: read once for its labels"),
}
"""Kinds of data by name: what it is, and how it is read; for the documents and the common test suite."""
_FILES = {  # endings of files that are read without a layout
    "table": (".csv", ".tsv", ".jsonl", ".parquet", ".pq"),
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
    source: Any,
    *,
    layout: str = "auto",
    split: str | None = None,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    labels: Any = None,
    name: str | None = None,
    follow_links: bool = True,
    progress: bool = False,
) -> Table:
    """Read images and what is known about them as a `Table`.

    Args:
        source: A folder, a CSV or Parquet table (with paths or images), a `path label` list, tar shards (also by a
            pattern as `train-{000..009}.tar`), a known data set, the id of a data set on the Hugging Face Hub, a
            `datasets.Dataset` or `DatasetDict`, a frame of pandas or Polars, a list of paths or of (path, label), a
            torch `Dataset` of (image, label), or a table.
        layout: How the data set is laid out; see `layouts()`. `auto` recognizes it by its files.
        split: Read one split only; `all` for every row.
        image_column: Column with the images, as paths or as bytes; recognized by its name and type by default.
        label_column: Column with the labels; `label` by default.
        split_column: Column with the split; `split` by default. `fold:train=0,1,test=2` also says which values of the
            column stand for which split.
        labels: Label of every image, for a list of paths.
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
        >>> la.read_table(["photos/class-00/0.jpg", "photos/class-01/1.jpg"], labels=["a", "b"]).labels()[1]
        ['a', 'b']
    """
    layout, columns = parse_layout(with_columns(layout, image_column, label_column, split_column))
    if isinstance(source, Table):
        return _only(_mapped(source, columns), split, source.name)
    titles = {_letters(text): n for n, known in LAYOUTS.items() for text in (n, *re.split("[()]", known.title))}
    layout = choose(titles.get(_letters(layout), layout), layouts(), "a layout")
    files = _listed_files(source)
    if not files and not isinstance(source, (str, os.PathLike)):
        root, fields, notes, content = read_object(source, columns, labels, progress=progress)
        where = name or type(source).__name__
        notes = {"layout": "object", **notes}
        table = unique_rows(Table.from_columns(fields, name=where, root=root, notes=notes, content=content))
        return _only(table, split, where, say=True)
    if labels is not None:
        raise LookalikeError("`labels` go with a list of paths; a folder or table has its own.")
    path, shown, known_name = find_source(files[0] if files else source, progress=progress)
    if path.is_file() and not files and is_saved_table(path):
        table = Table.load(path)
        if table.root is not None and not table.root.is_dir():
            raise LookalikeError(f"The images of `{shown}` were under `{table.root}`, which no longer exists.")
        table = _mapped(table, columns)
    else:
        if path.is_dir():
            root, fields, notes = _read_folder(path, layout, shown, columns, follow_links, progress)
        elif path.is_file() and not files:
            root, fields, notes = _read_one_file(path, layout, shown, columns, progress)
        else:
            root, fields, notes = _read_files(files or expand(path), shown, columns, progress)
        if "size" not in fields:
            root, fields, more_notes = locate(root, fields, shown)
            notes |= more_notes
        notes = {"source": shown, **notes}
        name = readable_name(name or known_name or _name(path))
        table = unique_rows(Table.from_columns(fields, name=name, root=root.absolute(), notes=notes))
        if notes["layout"] == "webdataset":  # the columns of tables were mapped when they were read
            table = _mapped(table, columns)
    return _only(table, split, shown, say=True)


def _letters(text: str) -> str:
    return re.sub(r"\W|_", "", text).lower()


def find_source(source: str | os.PathLike[str], *, progress: bool = False) -> tuple[Path, str, str]:
    """Return the path of a source that is named, how to show it, and the name of the data set if the path has none.

    A data set of the Hub is downloaded (once) if there is no such path here.
    """
    if is_url(source):
        return _find_url(str(source))
    shown, path = readable_name(str(source)), Path(source).expanduser()
    if isinstance(source, str) and not path.exists() and hub.names_hub(source):
        folder, name = hub.download(source, progress=progress)
        artifacts.hold(folder)
        return folder, shown, name
    if not path.exists() and (files := expand(path)):
        return path, shown, files[0].parent.name
    if not path.exists():
        raise LookalikeError(f"`{shown}` does not exist: give a folder of images or a table.")
    if not path.is_file() and not path.is_dir():
        raise LookalikeError(f"`{shown}` is a pipe, socket or device: give a folder of images or a table.")
    artifacts.hold(path)  # an index may have been made of a data set of the Hub
    return path, shown, ""


def _find_url(url: str) -> tuple[Path, str, str]:
    """The same for a folder, file or pattern in a bucket, with the list of files that answers for all below it."""
    head, separator, _ = url.partition(next((sign for sign in url if sign in "*?[{"), "\0"))
    whole = location(head if not separator else head.rpartition("/")[0]).listed()  # type: ignore[attr-defined]
    if separator or not whole.tree:
        folder = whole if separator else location(url).parent.listed()  # type: ignore[attr-defined]
        path = folder / (url[len(str(folder)) + 1 :] if separator else location(url).name)
        if not path.is_file() and not (separator and expand(path)):
            raise LookalikeError(f"`{url}` does not exist: give a folder of images or a table.")
        return path, url, folder.name if separator else ""
    return whole, url, ""


def expand(pattern: Path) -> list[Path]:
    """Return the files that a pattern stands for: `*`, `?`, `[…]`, `{a,b}` and `{000..009}`."""
    texts = [str(pattern)]
    while braces := re.search(r"\{([^{}]*)\}", texts[0]):
        parts = braces[1].split(",")
        if span := re.fullmatch(r"(\d+)\.\.(\d+)", braces[1]):
            first, last = sorted((int(span[1]), int(span[2])))
            parts = [f"{n:0{len(span[1])}d}" for n in range(first, min(last, first + MAX_SHARDS) + 1)]
        if len(texts) * len(parts) > MAX_SHARDS:
            raise LookalikeError(f"`{pattern}` stands for more than {MAX_SHARDS:,} files.")
        texts = [text.replace(braces[0], part, 1) for text in texts for part in parts]
    if texts == [str(pattern)] and not glob.has_magic(texts[0]):
        return []
    tree = (pattern.tree or Tree()) if isinstance(pattern, RemotePath) else None

    def matching(text: str) -> list[str]:
        if not glob.has_magic(text):
            return [text]
        return sorted(glob.glob(text) if tree is None else fnmatch.filter(tree, text))  # noqa: PTH207

    names = list(dict.fromkeys(name for text in texts for name in matching(text)))
    missing = [name for name in names if (not Path(name).is_file() if tree is None else name not in tree)]
    if missing and (tree is not None or len(missing) < len(names)):
        files = plural(len(missing), "file that does", "files that do")
        raise LookalikeError(f"`{pattern}` names {files} not exist (first: `{missing[0]}`).")
    return [] if missing else [Path(name) if tree is None else cast(Path, RemotePath(name, tree)) for name in names]


def _listed_files(source: Any) -> list[Path]:
    """The tar or Parquet files of a list that holds nothing else."""
    ends, rows = (*_FILES["webdataset"], ".parquet", ".pq"), source if isinstance(source, (list, tuple)) else ()
    listed = all(isinstance(one, (str, os.PathLike)) and str(one).lower().endswith(ends) for one in rows)
    return [location(one).expanduser() for one in rows] if listed else []


def _mapped(table: Table, columns: ColumnMap) -> Table:
    """A table with other columns as its labels and split."""
    if columns.label is not None:
        table = table.with_column("label", table.arrow[require(columns.label, table.names, table.name)])
    if columns.split is not None:
        values = as_array("split", table.arrow[require(columns.split, table.names, table.name)]).to_pylist()
        table = table.with_column("split", list(map(columns.split_name, values)))
    if columns.image is not None:
        raise LookalikeError(f"`{table.name}` is a table already: its images cannot be taken from another column.")
    return table


def _read_folder(
    path: Path, layout: str, shown: str, columns: ColumnMap, follow_links: bool, progress: bool
) -> tuple[Path, Columns, dict[str, Any]]:
    if layout in LAYOUTS:
        if (base := LAYOUTS[layout].base(path)) is None:
            missing = next(mark for mark in LAYOUTS[layout].marks[0] if not exists(path, mark))
            raise LookalikeError(
                f"`{shown}` is not laid out as {LAYOUTS[layout].title}: there is no `{missing}` in it."
            )
        return base, LAYOUTS[layout].columns(base), {"layout": layout}
    if layout == "auto":
        for known in LAYOUTS.values():
            if base := known.base(path):
                return base, known.columns(base), {"layout": known.name}
    if layout in ("auto", "table"):
        for name in (*table_files.IN_FOLDER, f"{path.resolve().name}.csv"):
            if (path / name).is_file() and table_files.has_paths(path / name):
                return table_files.read_file(path / name, columns)
        if files := table_files.parquet_files(path):
            return table_files.read_parquet_files(files, path, columns, progress=progress)
        if parts := table_files.split_metadata(path):
            return path, table_files.read_split_metadata(path, parts, columns), {"layout": "table"}
    if layout in ("table", "list"):
        raise LookalikeError(f"`{shown}` is a folder, and no {layout} lies in it: name the file itself.")
    if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
        raise LookalikeError(
            f"`{shown}` was written by `save_to_disk` of `datasets`: pass `datasets.load_from_disk(…)` in Python, or "
            "write it with `to_parquet`."
        )
    if layout == "webdataset" or (layout == "auto" and files_of_shards(path, ".tar")):
        return read_shards(path, progress=progress)
    if columns:
        raise LookalikeError(f"`{shown}` is a folder of images, which has no columns to map.")
    fields, notes = read_folder(path, shown, domains=layout == "domains", follow_links=follow_links, progress=progress)
    return path, fields, {"layout": "folder" if layout == "auto" else layout, **notes}


def _read_one_file(
    path: Path, layout: str, shown: str, columns: ColumnMap, progress: bool
) -> tuple[Path, Columns, dict[str, Any]]:
    if layout == "auto":
        layout = _layout_of(path)
    if not layout and kind_of(path.name) == "image":
        raise LookalikeError(f"`{shown}` is a single image; give the folder it lies in, or a table.")
    if not layout:
        raise LookalikeError(f"`{shown}` is not a table: give a folder, a CSV or Parquet table, a list or tar shards.")
    if layout == "table":
        return table_files.read_file(path, columns)
    if layout == "webdataset":
        return read_shards(path, progress=progress)
    if columns:
        raise LookalikeError(f"`{shown}` is no table: it has no columns to map.")
    if layout == "list":
        return path.parent, table_files.read_list(path), {"layout": "list"}
    raise LookalikeError(f"`{shown}` is a file; the layout {layout} needs the data set's folder.")


def _read_files(
    files: list[Path], shown: str, columns: ColumnMap, progress: bool
) -> tuple[Path, Columns, dict[str, Any]]:
    """Tar or Parquet files, below the folder that they have in common."""
    if is_url(files[0]):
        common = os.path.commonpath([str(file.parent).partition("://")[2] for file in files])
        root = location(f"{str(files[0]).partition('://')[0]}://{common}")
    else:
        files = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100 -- links keep their names
        root = Path(os.path.commonpath([file.parent for file in files]))
    kinds = {_layout_of(file) for file in files}
    if kinds == {"webdataset"}:
        return read_shards(root, files, progress=progress)
    if kinds == {"table"} and {file.suffix.lower() for file in files} <= {".parquet", ".pq"}:
        return table_files.read_parquet_files(files, root, columns, progress=progress)
    raise LookalikeError(f"The files of `{shown}` are not all tar shards, or all Parquet tables.")


def _layout_of(file: Path) -> str:
    return next((name for name, ends in _FILES.items() if file.name.lower().endswith(ends)), "")


def _name(path: Path) -> str:
    """Return the data set's name: its folder, or the table's own name unless that is generic (`table.csv`)."""
    path = path if is_url(path) else Path(os.path.abspath(path))  # noqa: PTH100 -- a link keeps its own name
    if path.is_dir():
        return path.name or "root"
    stem = path.name.partition(".")[0]
    general = {Path(name).stem for name in table_files.IN_FOLDER}
    return (path.parent.name or stem) if stem in general else stem


def _only(table: Table, split: str | None, shown: str, *, say: bool = False) -> Table:
    """The rows of a split, after the warnings of the reader if it has just read them."""
    for message in table.notes.get("warnings", []) if say else ():
        warn(message)
    if split is None or split == "all":
        return table
    if not table.has("split"):
        raise LookalikeError(f"`{shown}` has no splits, so there is no `{split}` in it.{hint(table, 'split')}")
    there = table.labels("split")[1]
    split = split if split in there else SPLITS.get(split.lower(), split)  # tables call theirs `validation` too
    return table.where("split", choose(split, there, f"a split of `{shown}`"))


def __dir__() -> list[str]:
    return __all__
