"""`index`: bring an index up to date with a folder. Killed anywhere, the next run goes on where it stopped.

The store is the only truth: what it has acknowledged is done. A run compares the folder with what the store
remembers of each row, embeds what is new or changed, and writes the table and the manifest at the end.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.searching.filters import Filters
from lookalike.searching.folder_watcher import FolderWatcher
from lookalike.searching.folder_watcher import watch as follow
from lookalike.searching.index_folder import TABLE, remove_generations
from lookalike.searching.locate import index_for, index_path, is_index
from lookalike.searching.score_calibration import fit
from lookalike.searching.table import with_unseen, without
from lookalike.searching.updating import Indexed, Update
from lookalike.searching.writer import open_writer

if TYPE_CHECKING:
    from lookalike.models import Embedder
    from lookalike.store import Store

__all__ = ["Indexed", "index"]


def index(
    *,
    folder: str | os.PathLike[str],
    model: str | os.PathLike[str] | Embedder | None = None,
    index: str | os.PathLike[str] | None = None,
    store: str | None = None,
    layout: str = "auto",
    split: str | None = None,
    calibrate: bool = True,
    device: str = "auto",
    watch: bool = False,
    remove: Filters = None,
    dry_run: bool = False,
    progress: bool = True,
) -> Indexed:
    """Make an index of a folder of images (or a table), or bring it up to date.

    `model` is a run, a model folder or a name; without it an existing index keeps its model, and a new one takes
    EfficientNet-Lite0. `index` is a name or a folder; without it, the one that was made of the folder before, or a new
    one. `store` is `qdrant` (default), `exact`, or the address of a server (`milvus://host:19530`). Nothing is written
    into the image folder. `watch` follows the folder until Ctrl-C. `remove` takes the images that meet a filter
    (`path=sea/*`) out of the index, and keeps them out.
    """
    source = Path(folder).expanduser()
    if not source.exists():
        raise LookalikeError(f"There is no folder `{folder}`.")
    source = source.resolve()
    place = _place(source, index)
    if remove:
        from lookalike.searching.removal import remove as take_out

        return Indexed(place.name, place, deleted=take_out(index=place, filters=remove, dry_run=dry_run))

    def once() -> Indexed:
        return update_index(
            source,
            place,
            model=model,
            store=store,
            explicit=index is not None,
            layout=layout,
            split=split,
            calibrate=calibrate,
            device=device,
            dry_run=dry_run,
            progress=progress,
        )

    if not watch or dry_run:
        return once()
    watched = FolderWatcher(source, layout, split)
    watched.begin_update()  # before the first run, which may take hours: what arrives meanwhile is seen after it
    done = once()
    follow(once, watched)
    return done


def update_index(
    source: Path,
    place: Path,
    *,
    model: str | os.PathLike[str] | Embedder | None = None,
    store: str | None = None,
    explicit: bool = False,
    layout: str = "auto",
    split: str | None = None,
    calibrate: bool = True,
    device: str = "auto",
    dry_run: bool = False,
    progress: bool = True,
    live: bool = True,
    opened: Store | None = None,
) -> Indexed:
    """What `index` does, with the folder and the place known.

    `live` lets the generation answer when it is complete. `opened` is the store of a service in this process, which
    is written through where it cannot be opened twice.
    """
    from lookalike.data import read_table

    start = time.monotonic()
    table = read_table(source, layout=layout, split=split, progress=progress)
    if not len(table):
        raise LookalikeError(f"`{source}` holds no images.")
    how: dict[str, Any] = {"explicit": explicit, "device": device, "dry_run": dry_run}
    how["opened"] = opened
    with hold(place / ".lock", f"The index `{place.name}`"):
        kept = is_index(place)  # what failed before an image was stored, or only looked, leaves no folder behind
        try:
            with open_writer(place, source, model, store, **how) as writer:
                try:
                    table = with_unseen(table, writer.folder / TABLE)
                    table = without(table, writer.manifest.without)
                    if not len(table):
                        raise LookalikeError(
                            f"All images that `{source}` still holds were removed from the index "
                            f"`{place.name}`: `lookalike purge {place.name}` removes the index itself."
                        )
                    update = Update(writer, table, progress=progress)
                    if dry_run:
                        return update.plan()
                    writer.manifest.layout, writer.manifest.split = layout, split
                    writer.generation.root = None if table.root is None else str(table.root)
                    writer.remember(model)
                    done = update.run()
                    if calibrate:
                        scores = fit(writer.folder, writer.store, progress=progress)
                        done.calibrated, done.note = scores.calibration is not None, scores.why or scores.note
                    writer.finish(live=live)
                finally:
                    there, kept = kept, True  # what a server that went away has of it is not known, and stays
                    kept = there or writer.store.count() > 0
        finally:
            if not kept:
                remove_generations(place)
                shutil.rmtree(place, ignore_errors=True)
    done.seconds = time.monotonic() - start
    return done


def _place(source: Path, index: str | os.PathLike[str] | None) -> Path:
    """Where the index is, or will be."""
    if index is None:
        place = index_for(source)
    else:
        place = index_path(index)
    if place.exists() and not place.is_dir():
        raise LookalikeError(f"`{place}` is a file; an index is a folder.")
    if place.is_dir() and not is_index(place) and {p.name for p in place.iterdir()} - {".lock", "generations"}:
        raise LookalikeError(f"`{place}` is not an index and not empty: choose another --index.")
    if source.is_dir() and place.resolve().is_relative_to(source):
        raise LookalikeError(f"`{place}` lies inside the image folder, where nothing is written: choose another.")
    folders.refuse_network_drive(place, "an index")
    return place
