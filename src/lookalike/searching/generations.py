"""Generations of an index: which one answers, how two of them agree, and letting an old one go."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.core.seeds import numpy_rng
from lookalike.searching import manifest as manifests
from lookalike.searching import score_calibration
from lookalike.searching.index_folder import Index, generation_folder, remove_generation
from lookalike.searching.locate import find_index
from lookalike.searching.manifest import Generation, Manifest

QUERIES = 100
NEAR = 10


def switch(*, index: str | os.PathLike[str] | None = None, to: str | int | None = None) -> Manifest:
    """Let another generation of an index answer, at once: by its number, or by its model's name or fingerprint.

    Without `to`, the one that answered before: the newest complete one that does not answer now.
    """
    path = find_index(index)
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        manifest.live = _chosen(manifest, to).number
        manifest.write(path)
    return manifest


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


def drop_generation(path: Path, number: int) -> None:
    """Delete a generation that does not answer."""
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        generation = manifest.generation(number)
        if number == manifest.live:
            raise LookalikeError(f"Generation {number} answers now: switch to another one before you delete it.")
        generation.complete = False  # nobody can switch to what a kill, or a server that is away, leaves half deleted
        manifest.write(path)
        remove_generation(path, number)
        manifest.generations.remove(generation)
        manifest.write(path)


def compare_generations(old: Index, new: Index) -> dict[str, Any]:
    """Before a switch: how the new generation's graph does against exact search, and how far both models agree.

    Images that both hold ask both; `agreement` is the mean share of common images among their ten nearest.
    """
    names = np.asarray(new.table.column("row_id"), dtype=object)
    rng = numpy_rng(0, "agreement")
    chosen = [str(name) for name in rng.choice(names, min(QUERIES, len(names)), replace=False)]
    before = {record.id: record.vector for record in old.store.get(chosen, vectors=True) if record is not None}
    after = {record.id: record.vector for record in new.store.get(chosen, vectors=True) if record is not None}
    common = [name for name in chosen if name in before and name in after]
    shares: list[float] = []
    recalls: list[float] = []
    if common:
        truth = _near(new, common, after, exact=True)
        recalls = [_share(*pair) for pair in zip(truth, _near(new, common, after), strict=True)]
        shares = [_share(*pair) for pair in zip(truth, _near(old, common, before), strict=True)]
    return {
        "queries": len(common),
        "agreement": float(np.mean(shares)) if shares else None,
        "recall": float(np.mean(recalls)) if recalls else None,
    }


def _near(index: Index, names: list[str], vectors: dict[str, Any], *, exact: bool = False) -> list[set[str]]:
    """The nearest of some rows, without themselves."""
    found = index.store.query_many(np.stack([vectors[name] for name in names]), NEAR + 1, exact=exact)
    return [set([h.id for h in hits if h.id != name][:NEAR]) for name, hits in zip(names, found, strict=True)]


def _share(wanted: set[str], found: set[str]) -> float:
    return len(wanted & found) / len(wanted) if wanted else 1.0


def calibration_error(path: Path, number: int) -> float | None:
    """The calibration error of a generation, where it has percentages."""
    calibration = score_calibration.read(generation_folder(path, number)).calibration
    return None if calibration is None else calibration.checked.get("ece")
