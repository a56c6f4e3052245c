"""Generations of an index: which one answers, how two of them agree, and letting an old one go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng
from lookalike.searching import calibrating
from lookalike.searching import manifest as manifests
from lookalike.searching.folder import Index, find, generation_folder, store_place
from lookalike.searching.manifest import Generation, Manifest
from lookalike.store import store_class

QUERIES = 100
NEAR = 10


def switch(*, index: str | os.PathLike[str] | None = None, to: str | int | None = None) -> Manifest:
    """Let another generation of an index answer, at once: by its number, or by its model's name or fingerprint.

    Without `to`, the one that answered before: the newest complete one that does not answer now.
    """
    path = find(index)
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        manifest.live = _chosen(manifest, to).number
        manifest.write(path)
    return manifest


def make_live(path: Path, number: int) -> None:
    switch(index=path, to=number)


def _chosen(manifest: Manifest, to: str | int | None) -> Generation:
    complete = [g for g in manifest.generations if g.complete]
    if to is None:
        found = [g for g in complete if g.number != manifest.live][-1:]
    else:
        word = str(to)
        found = [g for g in complete if word == str(g.number)] or [
            g for g in complete if g.model.name == word or (len(word) >= 4 and g.model.fingerprint.startswith(word))
        ][-1:]
    if not found:
        have = ", ".join(f"{g.number} ({g.model.name}{'' if g.complete else ', not complete'})" for g in _all(manifest))
        what = f"no complete generation `{to}`" if to is not None else "no other complete generation"
        raise LookalikeError(f"The index `{manifest.name}` has {what}; there are: {have}.")
    return found[0]


def _all(manifest: Manifest) -> list[Generation]:
    return manifest.generations


def drop(path: Path, number: int) -> None:
    """Delete a generation that does not answer."""
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        generation = manifest.generation(number)
        if number == manifest.live:
            raise LookalikeError(f"Generation {number} answers now: switch to another one before you delete it.")
        manifest.generations.remove(generation)
        manifest.write(path)
        remove_store(path, generation)


def remove_store(path: Path, generation: Generation) -> None:
    """Everything a generation has, on a server too."""
    place = store_place(path, generation)
    if "://" in generation.store:
        kind: Any = store_class(generation.store)
        kind.drop(place)
    shutil.rmtree(generation_folder(path, generation.number), ignore_errors=True)


def agreement(old: Index, new: Index) -> dict[str, Any]:
    """Before a switch: how the new generation's graph does against exact search, and how far both models agree.

    Pictures that both hold ask both; `agreement` is the mean share of common pictures among their ten nearest.
    """
    names = np.asarray(new.table.column("row_id"), dtype=object)
    rng = numpy_rng(0, "agreement")
    chosen = [str(name) for name in rng.choice(names, min(QUERIES, len(names)), replace=False)]
    before = {record.id: record.vector for record in old.store.get(chosen, vectors=True) if record is not None}
    after = {record.id: record.vector for record in new.store.get(chosen, vectors=True) if record is not None}
    common = [name for name in chosen if name in before and name in after]
    shares, recalls = [], []
    with Progress("Comparing", len(common), shown=False) as bar:
        for name in common:
            exact = _near(new, after[name], name, exact=True)
            recalls.append(_share(exact, _near(new, after[name], name)))
            shares.append(_share(exact, _near(old, before[name], name)))
            bar.advance()
    return {
        "queries": len(common),
        "agreement": float(np.mean(shares)) if shares else None,
        "recall": float(np.mean(recalls)) if recalls else None,
    }


def _near(index: Index, vector: Any, name: str, *, exact: bool = False) -> set[str]:
    hits = index.store.query(vector, NEAR + 1, exact=exact)
    return set([hit.id for hit in hits if hit.id != name][:NEAR])


def _share(wanted: set[str], found: set[str]) -> float:
    return len(wanted & found) / len(wanted) if wanted else 1.0


def calibration_error(path: Path, number: int) -> float | None:
    """The calibration error of a generation, where it has percentages."""
    calibration = calibrating.read(generation_folder(path, number)).calibration
    return None if calibration is None else calibration.checked.get("ece")
