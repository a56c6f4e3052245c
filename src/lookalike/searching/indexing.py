"""The ``index`` command: make an index of a folder, or update it. After a kill, the next run continues.

The store is the only truth: what it has acknowledged is done. A run compares the folder with the rows of the store,
embeds new and changed images, and writes the table and the manifest at the end.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.database import refuse_network_drive
from lookalike.core.errors import LookalikeError
from lookalike.core.files import clean_folder
from lookalike.core.locks import hold, in_use
from lookalike.core.progress import plural, warn
from lookalike.core.storage import location
from lookalike.searching import manifest as manifests
from lookalike.searching.filters import meets, parse
from lookalike.searching.folder_watcher import FolderWatcher
from lookalike.searching.folder_watcher import watch as watch_folder
from lookalike.searching.index_folder import TABLE, Index, generation_folder, remove_generations
from lookalike.searching.ingest import IndexResult, IndexUpdate, Parts
from lookalike.searching.locate import index_for, index_path, is_index, is_leftover
from lookalike.searching.payload import column_names, to_payload
from lookalike.searching.score_calibration import fit
from lookalike.searching.writer import open_writer

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models import Embedder

__all__ = ["IndexResult", "index"]


def index(
    *,
    folder: str | Path | None = None,
    model: str | Path | None = None,
    index: str | Path | None = None,
    store: str | None = None,
    vectors: str | Path | None = None,
    engine: str | None = None,
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    split: str | None = None,
    root: str | Path | None = None,
    calibrate: bool = True,
    labels: bool = False,
    exif: bool | None = None,
    device: str = "auto",
    watch: bool = False,
    remove: Sequence[str] | None = None,
    dry_run: bool = False,
    progress: bool = True,
) -> IndexResult:
    """Make a folder of images searchable, or update its index.

    Only new and changed images are embedded; renamed files keep their vectors. Nothing is written into the image
    folder. An interrupted run continues where it stopped.

    Args:
        folder: A folder of images, or a table of them; not needed with vectors.
        model: A run, a model folder or a model name. Without it an index keeps its model, and a new one takes
            EfficientNet-Lite0. In Python also an Embedder.
        index: Name or folder of the index (default: the one made of the folder before, or a new one).
        store: Vector store: local, milvus://HOST:19530 or postgresql://HOST/DATABASE.
        vectors: Folder or URL with the parts that `lookalike embed` wrote: the index is built from them, and no image
            is read. With an engine, where its parts go.
        engine: Embed the images first, as parts, by an engine: local, ray or ray://HOST:PORT.
        layout: Layout of the folder; auto detects it.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        split: Only index this split.
        root: Folder of the images that a table lists (default: that of the table); files outside it are refused.
        calibrate: Calibrate scores to probabilities on labeled images.
        labels: Take subfolders as classes even if their images hardly look alike.
        exif: Read when, where and with which camera photos were taken, as columns to filter by: taken, camera, place,
            latitude, longitude; --no-exif deletes them (default: as before, at first no).
        device: Device to run the model on: auto, cpu, cuda or mps.
        watch: Keep updating the index when the folder changes, until Ctrl-C.
        remove: Remove images by a condition such as path=sea/* and keep them out (repeatable).
        dry_run: Only count what would be done.
        progress: Show progress bars.

    Returns:
        Counts of new, changed, moved, deleted and unreadable images.

    Example:
        >>> done = la.index(folder="photos", model="efficientnet_lite0", progress=False)  # doctest: +SKIP
        >>> done.counts  # doctest: +SKIP
        '24 new'
    """
    from lookalike.data import with_columns
    from lookalike.data.readers import find_source

    settings: dict[str, Any] = {
        "layout": layout, "split": split, "device": device, "progress": progress, "dry_run": dry_run, "store": store,
        "root": root, "calibrate": calibrate, "labels": labels,
    }  # fmt: skip
    if vectors is not None or engine is not None:
        if watch or remove or exif:
            raise LookalikeError("An index built from vectors reads no images: leave --watch, --remove and --exif out.")
        columns = {"image_column": image_column, "label_column": label_column, "split_column": split_column}
        return _convert_model(_index_vectors(folder, vectors, engine, model, index, columns, settings), device)
    if folder is None:
        raise LookalikeError("Name the folder of images to index, or --vectors.")
    layout = with_columns(layout, image_column, label_column, split_column)
    if not isinstance(folder, (str, os.PathLike)):
        raise LookalikeError(
            f"A {type(folder).__name__} is in memory, where the index could not show its images later: save it to a "
            "file (`to_parquet`) and index that."
        )
    source = find_source(folder, progress=progress)[0].resolve()
    path = _index_path(source, index)
    if remove:
        from lookalike.searching.removal import remove as remove_images

        removed = remove_images(index=path, filters=remove, dry_run=dry_run)
        return IndexResult(path.name, path, deleted=removed)

    settings["layout"] = layout
    update = partial(update_index, source, path, explicit=index is not None, model=model, exif=exif, **settings)
    if not watch or dry_run:
        return _convert_model(update(), device)
    watcher = FolderWatcher(source, layout, split)
    watcher.begin_update()  # before the first run, which may take hours: images that arrive meanwhile are seen after it
    result = _convert_model(update(), device)
    with in_use(path, f"The index `{path.name}` is being deleted."):  # else the next change would make it again
        watch_folder(update, watcher)
    return result


def update_index(
    source: Path,
    path: Path,
    *,
    model: str | os.PathLike[str] | Embedder | None = None,
    store: str | None = None,
    explicit: bool = False,
    layout: str = "auto",
    split: str | None = None,
    root: str | Path | None = None,
    calibrate: bool = True,
    labels: bool = False,
    exif: bool | None = None,
    device: str = "auto",
    dry_run: bool = False,
    progress: bool = True,
    live: bool = True,
    parts: Parts | None = None,
) -> IndexResult:
    """Make or update the index of a folder at a path; ``explicit``: the user named it, so only its own model fits."""
    from lookalike.data import read_table

    start = time.monotonic()
    table = parts.table if parts else read_table(source, layout=layout, split=split, progress=progress)
    if not len(table):
        raise LookalikeError(f"`{source}` contains no images.")
    with hold(path / ".lock", f"The index `{path.name}`"):
        clean_folder(path)
        if not is_index(path) and manifests.is_prerelease(path) and not dry_run:
            for entry in [entry for entry in path.iterdir() if entry.name != ".lock"]:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        keep = existed = is_index(path)  # a run that fails before an image is stored leaves no folder behind
        try:
            with open_writer(path, source, model, store, explicit=explicit, device=device, dry_run=dry_run) as writer:
                try:
                    if root is not None:
                        writer.manifest.root = str(Path(root).expanduser().resolve())
                    named = writer.manifest.root or (source if source.is_dir() else source.parent)
                    _check_root(table, location(named), source)
                    table = _with_unreadable_folders(table, writer.folder / TABLE)
                    table = _without_removed(table, writer.manifest.without)
                    if not len(table):
                        raise LookalikeError(
                            f"All images of `{source}` were removed from the index `{path.name}`: "
                            f"`lookalike purge {path.name}` deletes the index itself."
                        )
                    writer.manifest.exif = writer.manifest.exif if exif is None else exif
                    update = IndexUpdate(writer, replace(table, confined=True), progress=progress, parts=parts)
                    if dry_run:
                        return update.plan()
                    writer.manifest.layout, writer.manifest.split = layout, split
                    writer.manifest.labels = writer.manifest.labels or labels
                    writer.generation.root = None if table.root is None else str(table.root)
                    writer.record_training_images(model)
                    result = update.run()
                    if calibrate:
                        albums = table.notes.get("layout") == "folder" and not writer.manifest.labels
                        scores = fit(writer.folder, writer.store, folder_labels=albums, progress=progress)
                        result.calibrated, result.note = scores.calibration is not None, scores.why or scores.note
                    writer.finish(live=live)
                finally:
                    keep = True  # if the count fails: it is not known what an unreachable server has of it
                    keep = existed or writer.store.count() > 0
        finally:
            if not keep:
                remove_generations(path)
                shutil.rmtree(path, ignore_errors=True)
    result.seconds = time.monotonic() - start
    return result


def _index_vectors(
    folder: str | Path | None,
    vectors: str | Path | None,
    engine: str | None,
    model: str | Path | None,
    index: str | Path | None,
    columns: dict[str, Any],
    settings: dict[str, Any],
) -> IndexResult:
    """Build an index from parts, which an engine makes first if there is one."""
    from lookalike.data.readers import find_source
    from lookalike.models.backbones import DEFAULT_MODEL
    from lookalike.models.embedding import embed

    source = None if folder is None else find_source(folder)[0].resolve()
    if engine is not None:
        if source is None:
            raise LookalikeError("Name the folder of images to embed.")
        path = _index_path(source, index)
        own = manifests.read(path).generation().number if is_index(path) else None
        chosen = model or (DEFAULT_MODEL if own is None else generation_folder(path, own) / "model")
        vectors = vectors or folders.home() / "vectors" / path.name
        options = {name: settings[name] for name in ("layout", "split", "device", "progress", "dry_run")}
        embed(source=str(source), out=vectors, model=chosen, engine=engine, **options, **columns)
        if settings["dry_run"]:
            return IndexResult(path.name, path, planned=True)
    elif model is not None:
        raise LookalikeError("The vectors have a model of their own: leave --model out.")
    assert vectors is not None
    parts = Parts(location(vectors).expanduser().absolute(), device=settings["device"])
    source = source or parts.table.root
    if source is None:
        raise LookalikeError(f"`{vectors}` does not say where its images lie: name their folder.")
    path = _index_path(source, index)
    return update_index(source, path, explicit=index is not None, model=parts.model, parts=parts, **settings)


def _convert_model(result: IndexResult, device: str) -> IndexResult:
    """Prepare the index for a search that starts without torch."""
    if not result.planned:
        Index(result.path, result.generation, device=device).convert_model()
    return result


def _index_path(source: Path, index: str | os.PathLike[str] | None) -> Path:
    """The folder of the index, there or not."""
    path = index_for(source) if index is None else index_path(index)
    if path.exists() and not path.is_dir():
        raise LookalikeError(f"`{path}` is a file; an index is a folder.")
    if path.is_dir() and not is_index(path) and not is_leftover(path):
        raise LookalikeError(f"`{path}` is neither an index nor empty: choose another --index.")
    if source.is_dir() and path.resolve().is_relative_to(source):
        raise LookalikeError(f"`{path}` is inside the image folder: choose another --index.")
    refuse_network_drive(path)
    return path


def _check_root(table: Table, named: Path, source: Path) -> None:
    """Raise if a table lists files outside the folder that the user named: they would be served too."""
    if table.root is None or table.root.resolve().is_relative_to(named.resolve()):
        return
    paths = (os.path.normpath(table.root / path) for path in table.column("path"))
    first = next((path for path in paths if not Path(path).is_relative_to(named)), table.root)
    raise LookalikeError(
        f"`{source}` lists files outside `{named}`, such as `{first}`: if they are to be indexed and served, name the "
        "folder of all images with `--root`."
    )


def _without_removed(table: Table, rules: Sequence[Sequence[str]]) -> Table:
    """The rows that no rule removed."""
    columns = column_names(tuple(table.names)).values()
    parsed = [parse(rule, columns) for rule in rules]
    if not parsed:
        return table
    payloads = (to_payload(row) for part in table.arrow.to_batches(max_chunksize=10_000) for row in part.to_pylist())
    return table.take(np.array([not any(meets(row, rule) for rule in parsed) for row in payloads], dtype=bool))


def _with_unreadable_folders(table: Table, indexed: Path) -> Table:
    """Add indexed images of folders that cannot be read now: they are not deleted."""
    unreadable = set(table.notes.get("unreadable", ()))
    if not unreadable or not indexed.exists():
        return table
    import pyarrow as pa

    old = type(table).load(indexed).without("content_id")
    ids, prefixes = set(table.column("row_id")), tuple(f"{name}/" if name else "" for name in unreadable)
    rows = zip(old.column("row_id"), old.column("path"), strict=True)
    missing = [i not in ids and (path in unreadable or path.startswith(prefixes)) for i, path in rows]
    mask = np.array(missing, dtype=bool)
    if mask.any():
        warn(f"{plural(int(mask.sum()), 'image')} of folders that cannot be read now kept in the index.")
    both = [table.arrow, old.take(mask).arrow]
    return replace(table, arrow=pa.concat_tables(both, promote_options="permissive").combine_chunks())
