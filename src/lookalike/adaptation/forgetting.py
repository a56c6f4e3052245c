"""The verb `forget`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lookalike.adaptation.job import new_version
from lookalike.adaptation.pool import Listed
from lookalike.adaptation.request import Asked, Pending
from lookalike.adaptation.retrieving import purge
from lookalike.adaptation.versions import Versions
from lookalike.core import progress as say
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.interrupts import Stopped
from lookalike.data import Table, content_id


def forget(*, model: str | Path, images: Sequence[str | Path]) -> dict[str, Any]:
    """Take pool images out for good: out of the pool, its vectors and caches, and every version that used them.

    Images are files, content ids, or patterns of `folder/path` as receipts have them. If the model in use was made
    with any of them, it is made again from the base model, to the bit as if they had never been there. What stays is
    their content ids, so that they are never used again. Base model and retriever are not covered.
    """
    versions = Versions.need(model)
    torch.set_num_threads(threads())
    with versions.locked():
        gone = _meant(versions, images)
        affected = [row["number"] for row in versions.rows if _touched(versions, row["number"], gone)]
        again = versions.row(versions.current) if versions.current in affected else None
        kept = None
        if again is not None:
            folder = versions.folder(versions.current)
            kept = Table.load(folder / "target.parquet"), set(_pool(folder)["ids"]) - gone
        # Versions and their lists go last: they are what a repeated command is understood by after a kill.
        vectors = purge(sorted(gone))
        if affected:  # a report may name them
            for name in ("sections/adapt-receipts.json", "report.html"):
                (versions.run.path / name).unlink(missing_ok=True)
            shutil.rmtree(versions.run.path / "sections" / "images", ignore_errors=True)
        number, pending = None, Pending(versions.run)
        if pending.owes(gone) or (again is not None and pending.file.is_file()):
            pending.end()
            say.say("The adaptation that was left unfinished is given up: it began before this.")
        if again is not None and kept is not None:
            asked = Asked.from_json(again["asked"])
            pending.begin(asked, kept[0], sorted(kept[1]))
        versions.denied = sorted({*versions.denied, *gone})
        versions.drop(affected)
        for row in versions.rows:
            _strike(versions.folder(row["number"]), gone)
        if again is not None and kept is not None:
            number = _made_again(versions, kept[0], asked, kept[1])
        else:
            say.say("The model in use never saw them, as its receipts show; it stays as it is.")
    return {
        "model": versions.run.path,
        "forgotten": sorted(gone),
        "versions_gone": affected,
        "vectors_gone": vectors,
        "made_again": number,
        "in_use": versions.current,
    }


def _made_again(versions: Versions, target: Table, asked: Asked, only: set[str]) -> int:
    try:
        return new_version(versions, target, asked, only)
    except Stopped:
        raise
    except LookalikeError as error:
        used = f"version {versions.current}" if versions.current else "the base model"
        raise LookalikeError(
            f"The images are forgotten and {used} is in use, but it could not be adapted again: {error} "
            f"When that is mended: lookalike adapt --resume {versions.run.path}"
        ) from error


def _touched(versions: Versions, number: int, gone: set[str]) -> bool:
    """Whether a version owes anything to these images: it used them, or cells of its pool were fitted on them."""
    if versions.used(number) & gone:
        return True
    folder = versions.folder(number)
    found = _pool(folder) if (folder / "pool.json").is_file() else {}
    return bool(found.get("by_cells")) and bool(gone & set(found["ids"]))


def _pool(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / "pool.json", "pool"))


def _strike(folder: Path, gone: set[str]) -> None:
    """Take images out of a version's list of the pool."""
    if (folder / "pool.json").is_file():
        found = _pool(folder)
        kept = [(id_, name) for id_, name in zip(found["ids"], found["names"], strict=True) if id_ not in gone]
        lists = {"ids": [id_ for id_, _ in kept], "names": [name for _, name in kept]}
        write_json(folder / "pool.json", {**found, **lists})


def _meant(versions: Versions, images: Sequence[str | Path]) -> set[str]:
    """Content ids of what a user names."""
    gone: set[str] = set()
    known: dict[str, str] = {}
    for row in versions.rows:
        folder = versions.folder(row["number"])
        if (folder / "pool.json").is_file():
            found = _pool(folder)
            known |= dict(zip(found["ids"], found["names"], strict=True))
    for image in images:
        named = Listed([str(image)])
        if matched := {id_ for id_, path in known.items() if named.holds(id_, path)}:
            gone |= matched
        elif Path(image).is_file():
            gone.add(content_id(Path(image)))
        else:
            raise LookalikeError(
                f"`{image}` names no image of the pool: give a file, a content id of the receipts, or a pattern "
                "of folder/path as they have it."
            )
    return gone
