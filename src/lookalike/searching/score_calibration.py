"""Calibrate the scores of an index to probabilities on its own labeled images."""

from __future__ import annotations

import itertools
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.database import read_document, write_document
from lookalike.core.progress import Progress, say
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation import training_overlap
from lookalike.store import Store

if TYPE_CHECKING:
    from lookalike.evaluation.calibration import Calibration, RandomPairScores

# Enough for narrow intervals; of a larger index a sample is used, which makes neighborhoods a little sparser.
QUERIES, GALLERY = 2_000, 20_000
ALBUMS = (
    "{count:,} subfolders were taken as classes, but their images hardly look alike: percentages are off; "
    "`lookalike index FOLDER --labels` turns them on."
)


@dataclass(frozen=True)
class Scores:
    """How scores are interpreted: as probabilities where there are labels, else relative to random pairs.

    Args:
        calibration: Maps scores to probabilities.
        background: Scores of random pairs.
        why: Why there is no calibration.
        note: A caveat about the probabilities.
    """

    calibration: Calibration | None
    background: RandomPairScores | None
    why: str = ""
    note: str = ""


def fit(folder: Path, store: Store, *, folder_labels: bool = False, progress: bool = True) -> Scores:
    """Fit and store a calibration, on images that the model was not trained on where there are enough.

    Labels that are names of subfolders (``folder_labels``) may be albums: they count only if their images look alike.
    """
    from lookalike.evaluation.calibration import calibrate, labels_are_albums, random_pair_scores

    with Progress("Calibrating scores", shown=progress):
        seen = training_overlap.training_images(folder / "model")
        vectors, labels, contents, held_out = _sample(store, seen)
        caveat = training_overlap.UNKNOWN if seen is None else ""
        calibration, why, note, queries = None, "no image has a label", "", labels[:0]
        albums = folder_labels and labels_are_albums(vectors, labels, ids=contents)
        # If too few images were held out, calibrate on training images, and say so.
        for mask, note_ in ((held_out, caveat), (np.ones_like(held_out), caveat or training_overlap.SEEN)) * (
            not albums
        ):
            queries, note = _queries(labels, mask), note_
            if len(queries):
                calibration, why = calibrate(vectors, labels, query=queries, ids=contents)
            if calibration is not None or mask.all():
                break
        random_pairs = random_pair_scores(vectors)
    if albums:
        count = len(np.unique(labels[labels >= 0]))
        why, note = "", ALBUMS.format(count=count)
    scores = Scores(calibration, random_pairs, why, note if calibration is not None or albums else "")
    document = {"why": why, "note": scores.note, "queries": len(queries), "gallery": len(vectors)}
    document["calibration"] = None if calibration is None else calibration.to_json()
    document["background"] = None if random_pairs is None else asdict(random_pairs)
    write_document(folder.parents[1], document_name(int(folder.name)), document)
    if why:
        say(f"No probabilities: {why}.", verbose=True)
    return scores


def read(folder: Path) -> Scores:
    """Read the calibration of a generation."""
    from lookalike.evaluation.calibration import Calibration, RandomPairScores

    document: dict[str, Any] | None = read_document(folder.parents[1], document_name(int(folder.name)))
    if document is None:
        return Scores(None, None, "this index has not been calibrated")
    calibration = Calibration.from_json(document["calibration"]) if document.get("calibration") else None
    background = RandomPairScores(**document["background"]) if document.get("background") else None
    return Scores(calibration, background, document.get("why", ""), document.get("note", ""))


def document_name(number: int) -> str:
    """Return the name of a generation's calibration in the database of the index."""
    return f"calibration/{number}"


def _queries(labels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    queries = np.flatnonzero(mask & (labels >= 0))
    if len(queries) > QUERIES:
        queries = np.sort(numpy_rng(0, "calibration queries").choice(queries, QUERIES, replace=False))
    return queries


def _sample(store: Store, seen: frozenset[str] | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Vectors, label codes (−1: none), content codes, and a mask of rows that the model was not trained on.

    If it is not known what it was trained on (`seen` is None), the table's own split is used.
    """
    total = store.count()
    sampled = numpy_rng(0, "calibration gallery").random(total) < GALLERY / max(total, 1)
    rows: list[np.ndarray] = []
    labels: list[str | None] = []
    contents: list[str] = []
    unseen: list[bool] = []
    for record in itertools.compress((record for part in store.scan(vectors=True) for record in part), sampled):
        label = record.payload.get("label")
        rows.append(record.vector)  # type: ignore[arg-type]
        labels.append(label if isinstance(label, str) else None)
        contents.append(str(record.payload.get("content_id", record.id)))
        if seen is None:
            unseen.append(record.payload.get("split") != "train")
        else:
            unseen.append(training_overlap.image_key(record.id, record.payload.get("_size")) not in seen)
    held_out, codes = np.array(unseen, dtype=bool), _codes(contents)
    held_out &= ~np.isin(codes, codes[~held_out])  # copies of training images were seen too
    return np.stack(rows), _codes(labels), codes, held_out


def _codes(names: list[Any]) -> np.ndarray:
    numbers: dict[Any, int] = {None: -1}
    return np.array([numbers.setdefault(name, len(numbers) - 1) for name in names], dtype=np.int64)
