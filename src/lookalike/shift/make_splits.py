"""`shift splits`: from labeled images to train/test splits of growing difficulty."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError, choose
from lookalike.data.table import Table
from lookalike.shift.class_swaps import Side, choice, sequence
from lookalike.shift.fid import ClassFID, Measure
from lookalike.shift.split_set import Split, SplitSet, data_facts

if TYPE_CHECKING:
    from lookalike.models import Embedder

EYE = "efficientnet_lite0"
LEAST = 3  # classes a side: below that there is nothing to swap
RULES = ("pure", "authors")
_UNEVEN = 0.05  # official halves may differ by this share of their classes; others are halved anew


def splits(
    *,
    data: str | Path | Table,
    model: str | Path | Embedder = EYE,
    layout: str = "auto",
    measure: Measure = "samples",
    count: int = 9,
    removal: str = "pure",
    draws: int = 5,
    size: int | None = None,
    pooling: str | None = None,
    device: str = "auto",
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = False,
) -> SplitSet:
    """Train/test splits of growing difficulty: classes are swapped, then removed, so that the sides drift apart.

    `model` is the eye that FID is measured with, on its pooled features; `measure` says whether FID is that of the
    images (`samples`) or of the classes' means (`means`). `removal` is `pure` or the `authors`' conditional rule;
    beside each removal stand `draws` random ones of the same size. `out` is the file to write.
    """
    from lookalike.data import audit, read_table
    from lookalike.models import Embedder

    table = data if isinstance(data, Table) else read_table(data, layout=layout, progress=progress)
    readable = audit(table, near=False, progress=progress).table
    if isinstance(model, (str, Path)):
        model = Embedder.from_pretrained(model, device=device, size=size, pooling=pooling)
    found = make_splits(
        readable, model, measure=measure, count=count, removal=removal, draws=draws, seed=seed, progress=progress
    )
    if out is not None:
        found.save(out)
    return found


def make_splits(
    table: Table,
    model: Embedder,
    *,
    measure: Measure = "samples",
    count: int = 9,
    removal: str = "pure",
    draws: int = 5,
    seed: int = 0,
    progress: bool = False,
) -> SplitSet:
    """The same from a table of readable images and a model."""
    from lookalike.data.views import CenterView
    from lookalike.models import features_for

    table = table.take(pc.sort_indices(table.arrow["row_id"]).to_numpy())  # any order gives the same file
    check(measure, count, removal, draws)
    start(table)  # says what is missing before the features are computed
    features = features_for(model, table, views=[CenterView(model.preprocess)], progress=progress)[0]
    eye = {
        "name": model.name,
        "weights": model.fingerprint("pooled"),
        "pooling": model.pooling.name,
        "preprocess": model.preprocess.to_json(),
    }
    return split_features(table, features, eye, measure=measure, count=count, removal=removal, draws=draws, seed=seed)


def check(measure: str, count: int, removal: str, draws: int) -> None:
    """Refuse options that make no splits, before anything is computed."""
    choose(measure, ("samples", "means"), "what FID can be measured on")
    choose(removal, RULES, "a rule of removal")
    if count < 2:
        raise LookalikeError(f"`count` is {count}; a curve needs at least 2 splits.")
    if draws < 1:
        raise LookalikeError(f"`draws` is {draws}; a removal needs at least 1 random one beside it.")


def start(table: Table) -> tuple[Side, Side]:
    """The class codes of the default split: the convention of the data set, or halves in the order of names.

    Both sides have equally many; what is too much on one goes to neither.
    """
    from lookalike.data import retrieval_split

    codes, names = table.labels()
    present = [int(code) for code in np.unique(codes[codes >= 0])]
    if len(present) < 2 * LEAST:
        raise LookalikeError(
            f"`{table.name}` has {len(present)} classes; splits of growing difficulty need at least {2 * LEAST}: "
            "give a folder with one subfolder a class."
        )
    side = retrieval_split(table).column("split")
    train, test = (sorted({int(c) for c in codes[(side == name) & (codes >= 0)]}) for name in ("train", "test"))
    if abs(len(train) - len(test)) > max(1, _UNEVEN * len(names)) or set(train) & set(test):
        half = (len(present) + 1) // 2
        train, test = present[:half], present[half:]
    equal = min(len(train), len(test))
    return tuple(train[:equal]), tuple(test[:equal])


def split_features(
    table: Table,
    features: np.ndarray,
    eye: dict[str, Any],
    *,
    measure: Measure = "samples",
    count: int = 9,
    removal: str = "pure",
    draws: int = 5,
    seed: int = 0,
) -> SplitSet:
    """The same from features that are there, a row an image."""
    check(measure, count, removal, draws)
    codes, names = table.labels()
    known = codes >= 0
    if not np.isfinite(features[known]).all():
        raise LookalikeError(f"The features of `{table.name}` hold values that are not finite.")
    distances = ClassFID(features[known], codes[known], measure)
    whole = sequence(distances, names, start(table), removal=removal, draws=draws, seed=seed)
    facts = data_facts(table)
    sizes = np.array(list(facts["classes"].values()))

    def split(number: int, place: int) -> Split:
        step, state = whole.steps[place], whole.states[place]
        train, test = sorted(state.train), sorted(state.test)
        neither = sorted(set(range(len(names))) - set(train) - set(test))
        sides = [tuple(names[code] for code in side) for side in (train, test, neither)]
        images = int(sizes[train].sum()), int(sizes[test].sum())
        rest = len(table) - sum(images)
        return Split(number, step.name, step.fid, sides[0], sides[1], sides[2], (*images, rest))

    chosen = choice(whole, count)
    return SplitSet(
        data=facts,
        eye=eye,
        measure=measure,
        splits=tuple(split(number, place) for number, place in enumerate(chosen, 1)),
        default=chosen.index(whole.start) + 1,
        sequence=tuple(whole.steps),
        random=tuple((tuple(names[c] for c in a), tuple(names[c] for c in b)) for a, b in whole.random),
        settings={**whole.settings, "removal": removal, "seed": seed},
    )
