"""The ``verify`` command: check every file of an index."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.database import FILE, Database
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng
from lookalike.searching.index_folder import generation_folder, load_model, open_store
from lookalike.searching.locate import find_index
from lookalike.searching.manifest import Generation, read
from lookalike.store import Store
from lookalike.store.local import LocalStore

SAMPLE, K, MIN_RECALL = 100, 10, 0.97


@dataclass
class Verification:
    """The result of checking an index.

    Args:
        name: Name of the index.
        problems: What is damaged, one sentence each; empty if nothing is.
        images: Number of images in the live generation.
        recall: Recall@10 of the live generation's search against exact search, on a sample of its own rows.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    images: int = 0
    recall: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        return dict(self.__dict__)

    def __str__(self) -> str:
        recall = "" if self.recall is None else f", recall@{K} {self.recall:.3f}"
        return "\n".join(self.problems) or f"The index {self.name} is whole: {self.images:,} images{recall}."


def verify(*, index: str | Path | None = None, progress: bool = True) -> Verification:
    """Check all files of an index: database, vectors, models and graph.

    Args:
        index: An index (default: the one updated last).
        progress: Show a progress bar.

    Returns:
        What was found.

    Raises:
        LookalikeError: If anything is damaged; the message lists it.

    Example:
        >>> print(la.verify(index="photos", progress=False))  # doctest: +SKIP
        The index photos is whole: 24 images, recall@10 1.000.
    """
    path = find_index(index)
    with contextlib.closing(Database(path / FILE)) as database, database.errors():
        lines = [line for (line,) in database.connection.execute("PRAGMA integrity_check(10)")]
    result = Verification(path.name, [] if lines == ["ok"] else [f"The database is damaged: {'; '.join(lines)}."])
    manifest = read(path)
    with Progress("Checking", len(manifest.generations), shown=progress) as bar:
        for generation in manifest.generations:
            try:
                _check_generation(path, generation, result, live=generation.number == manifest.live)
            except LookalikeError as error:
                result.problems.append(str(error))
            bar.advance()
    if result.problems:
        raise LookalikeError(f"The index `{path.name}` is damaged. {' '.join(result.problems)}")
    return result


def _check_generation(path: Path, generation: Generation, result: Verification, *, live: bool) -> None:
    fingerprint = load_model(generation_folder(path, generation.number) / "model").fingerprint()
    if fingerprint != generation.model.fingerprint:
        result.problems.append(f"The model of generation {generation.number} is not the one that made its vectors.")
    with contextlib.closing(open_store(path, generation)) as store:
        if isinstance(store, LocalStore):
            result.problems += store.verify()
        if generation.complete and store.count() != generation.images:
            result.problems.append(
                f"Generation {generation.number} holds {store.count():,} of {generation.images:,} images."
            )
        recall = sample_recall(store)
        if live:
            result.images, result.recall = store.count(), recall
        if recall is not None and recall < MIN_RECALL:
            result.problems.append(f"The graph of generation {generation.number} has a recall of only {recall:.3f}.")


def sample_recall(store: Store) -> float | None:
    """Return the recall@10 of a store's search against exact search, on some of its own rows."""
    first = next(iter(store.scan(batch=10 * SAMPLE)), [])
    rng = numpy_rng(0, "verify")
    ids = [first[i].id for i in rng.choice(len(first), min(SAMPLE, len(first)), replace=False)]
    vectors = [record.vector for record in store.get(ids, vectors=True) if record is not None]
    if not vectors:
        return None
    queries = np.stack([vector for vector in vectors if vector is not None])
    truth, near = (store.search(queries, K, exact=exact).scores for exact in (True, False))
    # By scores: of equal copies either may be found.
    worst = np.where(np.isfinite(truth), truth, np.inf).min(axis=1)
    return float(np.mean((near >= worst[:, None] - 1e-5).sum(axis=1) / np.maximum(np.isfinite(truth).sum(axis=1), 1)))
