"""Generations of an index: switch between them, compare two, delete one."""

from __future__ import annotations

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
from lookalike.searching.manifest import Manifest

QUERIES = 100
NEIGHBORS = 10


def switch(*, index: str | Path | None = None, to: str | int | None = None) -> Manifest:
    """Make another generation of an index the live one.

    Searches, and running services, use it at once. Each model that an index was made with has a generation.

    Args:
        index: An index (default: the one updated last).
        to: Number of the generation, or name or fingerprint of its model (default: the newest other complete one).

    Returns:
        The manifest of the index.

    Raises:
        LookalikeError: If there is no such complete generation.

    Example:
        >>> la.switch(index="photos", to="my-run").live  # doctest: +SKIP
        2
    """
    path, text = find_index(index), str(to)
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        complete = [g for g in manifest.generations if g.complete]
        if to is None:
            matches = [g for g in complete if g.number != manifest.live]
        else:
            matches = [g for g in complete if text == str(g.number)] or [
                g for g in complete if g.model.name == text or (len(text) >= 4 and g.model.fingerprint.startswith(text))
            ]
        if not matches:
            every = (f"{g.number} ({g.model.name}{'' if g.complete else ', incomplete'})" for g in manifest.generations)
            what = f"no complete generation `{to}`" if to is not None else "no other complete generation"
            raise LookalikeError(f"The index `{manifest.name}` has {what}; it has: {', '.join(every)}.")
        manifest.live = matches[-1].number
        manifest.write(path)
    return manifest


def drop_generation(path: Path, number: int) -> None:
    """Delete a generation that is not live."""
    with hold(path / ".lock", f"The index `{path.name}`"):
        manifest = manifests.read(path)
        generation = manifest.generation(number)
        if number == manifest.live:
            raise LookalikeError(f"Generation {number} is live: switch to another one before you delete it.")
        generation.complete = False  # what a kill leaves half deleted cannot be switched to
        manifest.write(path)
        remove_generation(path, number)
        manifest.generations.remove(generation)
        manifest.write(path)


def compare_generations(old: Index, new: Index) -> dict[str, Any]:
    """Compare two generations by the neighbors of up to 100 images that both have.

    Args:
        old: The index with the old generation.
        new: The index with the new generation.

    Returns:
        ``queries``; ``agreement``, the mean fraction of common images among the ten nearest of both models; and
        ``recall`` of the new generation's graph against exact search.
    """
    names = np.asarray(new.table.column("row_id"), dtype=object)
    rng = numpy_rng(0, "agreement")
    chosen = [str(name) for name in rng.choice(names, min(QUERIES, len(names)), replace=False)]
    before = {record.id: record.vector for record in old.store.get(chosen, vectors=True) if record is not None}
    after = {record.id: record.vector for record in new.store.get(chosen, vectors=True) if record is not None}
    common = [name for name in chosen if name in before and name in after]
    agreement = recall = None
    if common:
        truth = _neighbors(new, common, after, exact=True)
        recall = _overlap(truth, _neighbors(new, common, after))
        agreement = _overlap(truth, _neighbors(old, common, before))
    return {"queries": len(common), "agreement": agreement, "recall": recall}


def _neighbors(index: Index, names: list[str], vectors: dict[str, Any], *, exact: bool = False) -> list[set[str]]:
    """The nearest neighbors of some rows, without themselves."""
    hits_of = index.store.query_many(np.stack([vectors[name] for name in names]), NEIGHBORS + 1, exact=exact)
    return [set([h.id for h in hits if h.id != name][:NEIGHBORS]) for name, hits in zip(names, hits_of, strict=True)]


def _overlap(expected: list[set[str]], neighbors: list[set[str]]) -> float:
    return float(np.mean([len(a & b) / len(a) if a else 1.0 for a, b in zip(expected, neighbors, strict=True)]))


def calibration_error(path: Path, number: int) -> float | None:
    """Return the expected calibration error of a generation, or ``None`` if it is not calibrated."""
    calibration = score_calibration.read(generation_folder(path, number)).calibration
    return None if calibration is None else calibration.checked.get("ece")
