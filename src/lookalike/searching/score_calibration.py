"""What scores mean in an index, checked on its own labeled images and kept beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import read_json, write_json
from lookalike.core.progress import Progress, say
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation import training_overlap
from lookalike.store import Store

if TYPE_CHECKING:
    from lookalike.evaluation.calibration import Calibration, RandomPairScores

FILE = "calibration.json"
# Enough for narrow intervals; a larger index is checked on a sample, which makes neighborhoods a little sparser.
QUERIES, GALLERY = 2_000, 20_000


@dataclass(frozen=True)
class Scores:
    """How an index reads its scores: as probabilities where labels allowed it, else against random pairs."""

    calibration: Calibration | None
    background: RandomPairScores | None
    why: str = ""  # why there are no probabilities
    note: str = ""  # what must be said beside them


def fit(folder: Path, store: Store, *, progress: bool = True) -> Scores:
    """Fit and store `calibration.json`, on images that the model was not trained on where there are enough."""
    from lookalike.evaluation.calibration import calibrate, random_pair_scores

    with Progress("Checking scores", shown=progress):
        seen = training_overlap.training_images(folder / "model")
        vectors, labels, contents, held = _sample(store, seen)
        doubt = training_overlap.UNKNOWN if seen is None else ""
        found, why, note = None, "no image has a label", ""
        # Where too few were held out: better checked on images of the training, and said so, than not at all.
        for chosen, said in ((held, doubt), (np.ones_like(held), doubt or training_overlap.SEEN)):
            queries, note = _queries(labels, chosen), said
            if len(queries):
                found, why = calibrate(vectors, labels, query=queries, ids=contents)
            if found is not None or chosen.all():
                break
        random = random_pair_scores(vectors)
    scores = Scores(found, random, why, note if found is not None else "")
    document = {
        "calibration": None if found is None else found.to_json(),
        "background": None if random is None else random.to_json(),
        "why": why,
        "note": scores.note,
        "queries": len(queries),
        "gallery": len(vectors),
    }
    write_json(folder / FILE, document, private=True)
    if why:
        say(f"No percentages: {why}.", verbose=True)
    return scores


def read(folder: Path) -> Scores:
    from lookalike.evaluation.calibration import Calibration, RandomPairScores

    path = folder / FILE
    if not path.exists():
        return Scores(None, None, "this index has not been calibrated")
    document: dict[str, Any] = read_json(path, "calibration", mend="`lookalike index` makes it again.")
    found, random = document.get("calibration"), document.get("background")
    return Scores(
        Calibration.from_json(found) if found else None,
        RandomPairScores.from_json(random) if random else None,
        document.get("why", ""),
        document.get("note", ""),
    )


def _queries(labels: np.ndarray, held: np.ndarray) -> np.ndarray:
    queries = np.flatnonzero(held & (labels >= 0))
    if len(queries) > QUERIES:
        queries = np.sort(numpy_rng(0, "calibration queries").choice(queries, QUERIES, replace=False))
    return queries


def _sample(store: Store, seen: frozenset[str] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Vectors, label codes (−1: none), content codes, and which rows the model was not trained on.

    Where it is not known what it was trained on (`seen` is None), the table's own split is taken at its word.
    """
    total = store.count()
    share = numpy_rng(0, "calibration gallery").random(total) < GALLERY / max(total, 1)
    rows: list[np.ndarray] = []
    labels: list[str | None] = []
    contents: list[str] = []
    held: list[bool] = []
    place = 0
    for part in store.scan(vectors=True):
        for record in part:
            place += 1
            if record.vector is not None and place <= total and share[place - 1]:
                label = record.payload.get("label")
                rows.append(record.vector)
                labels.append(label if isinstance(label, str) else None)
                contents.append(str(record.payload.get("content_id", record.id)))
                if seen is None:
                    held.append(record.payload.get("split") != "train")
                else:
                    held.append(training_overlap.image_key(record.id, record.payload.get("_size")) not in seen)
    fresh, codes = np.array(held, dtype=bool), _codes(contents)
    return np.stack(rows), _codes(labels), codes, fresh & ~np.isin(codes, codes[~fresh])  # a copy is known, too


def _codes(names: list[Any]) -> np.ndarray:
    numbers: dict[Any, int] = {None: -1}
    return np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], dtype=np.int64)
