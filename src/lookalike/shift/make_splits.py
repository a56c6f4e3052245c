"""The command ``shift splits``: train/test splits of growing difficulty from labeled images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from lookalike.core.errors import LookalikeError, choose
from lookalike.data.table import Table
from lookalike.shift.class_swaps import DRAWS, choose_steps, swap_sequence
from lookalike.shift.fid import ClassFID, Measure, Side
from lookalike.shift.split_set import Split, SplitSet, data_facts

if TYPE_CHECKING:
    from lookalike.models import Embedder

REFERENCE_MODEL = "efficientnet_lite0"
MIN_CLASSES = 3  # per side: with fewer there is nothing to swap
REMOVAL_RULES = ("pure", "authors")
_UNEVEN = 0.05  # official halves may differ by this fraction of their classes; others are halved anew


def splits(
    *,
    data: str | Path | Table,
    model: str | Path | Embedder = REFERENCE_MODEL,
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
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
    """Make train/test splits of growing difficulty.

    Classes are swapped between the sides, then removed, so that train and test drift apart. The distance between the
    sides is the FID of the pooled features of a reference model.

    Args:
        data: Labeled images: a folder with one subfolder per class, or a table.
        model: Reference model whose features FID is measured on.
        layout: Layout of the data set; detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        measure: FID of the images (samples) or of the class means (means).
        count: Number of splits to choose from the whole sequence.
        removal: Rule of removal: pure, or authors for the paper's rule, which may swap instead.
        draws: Number of random removals beside every removal.
        size: Image size of the reference model in pixels.
        pooling: Pooling of the reference model.
        device: Device to compute on.
        seed: Seed of the random removals.
        out: File to write the splits to.
        progress: Show progress.

    Returns:
        The splits, easiest first.

    Raises:
        LookalikeError: If there are fewer than 6 classes, or an option is invalid.

    References:
        Milbich et al., "Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning",
        section 3.

    Example:
        >>> splits = la.shift.splits(data="birds", count=5)  # doctest: +SKIP
        >>> [round(split.fid, 1) for split in splits.splits]  # doctest: +SKIP
        [52.1, 61.0, 70.8, 80.2, 90.3]
    """
    from lookalike.data import audit, read_table, with_columns
    from lookalike.models import Embedder

    layout = with_columns(layout, image_column, label_column, split_column)
    table = data if isinstance(data, Table) else read_table(data, layout=layout, progress=progress)
    readable = audit(table, near=False, progress=progress).table
    if isinstance(model, (str, Path)):
        model = Embedder.from_pretrained(model, device=device, size=size, pooling=pooling)
    options: dict[str, Any] = {"measure": measure, "count": count, "removal": removal, "draws": draws, "seed": seed}
    made = make_splits(readable, model, progress=progress, **options)
    if out is not None:
        made.save(out)
    return made


def make_splits(table: Table, model: Embedder, *, progress: bool = False, **options: Any) -> SplitSet:
    """Like :func:`splits`, from readable images and a loaded model; ``options`` are those of `split_features`."""
    from lookalike.data.augmentation import CenterView
    from lookalike.models import features_for

    table = table.take(pc.sort_indices(table.arrow["row_id"]).to_numpy())  # any order gives the same file
    check_options(**options)
    default_sides(table)  # raises before the features are computed
    features = features_for(model, table, views=[CenterView(model.preprocess)], progress=progress)[0]
    about: dict[str, Any] = {"name": model.name, "weights": model.fingerprint("pooled")}
    about |= {"pooling": model.pooling.name, "preprocess": model.preprocess.to_json()}
    return split_features(table, features, about, progress=progress, **options)


def check_options(
    measure: str = "samples", count: int = 9, removal: str = "pure", draws: int = DRAWS, **others: Any
) -> None:
    """Raise if an option is invalid, before anything is computed."""
    choose(measure, ("samples", "means"), "what FID can be measured on")
    choose(removal, REMOVAL_RULES, "a rule of removal")
    if count < 2:
        raise LookalikeError(f"`count` is {count}, but a curve needs at least 2 splits.")
    if draws < 1:
        raise LookalikeError(f"`draws` is {draws}, but a removal needs at least 1 random one beside it.")


def default_sides(table: Table) -> tuple[Side, Side]:
    """Class codes of the default split: the data set's own, or halves in the order of names.

    Both sides have the same number of classes; surplus classes go to neither.
    """
    from lookalike.data import retrieval_split

    codes, names = table.labels()
    present = [int(code) for code in np.unique(codes[codes >= 0])]
    if len(present) < 2 * MIN_CLASSES:
        raise LookalikeError(
            f"`{table.name}` has {len(present)} classes, but splits of growing difficulty need at least "
            f"{2 * MIN_CLASSES}. Give a folder with one subfolder per class."
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
    reference_model: dict[str, Any],
    *,
    measure: Measure = "samples",
    count: int = 9,
    removal: str = "pure",
    draws: int = DRAWS,
    seed: int = 0,
    easier: bool = True,
    progress: bool = False,
) -> SplitSet:
    """Like :func:`splits`, from features that are already computed; without ``easier``, none below the start."""
    check_options(measure, count, removal, draws)
    codes, names = table.labels()
    labeled = codes >= 0
    if not np.isfinite(features[labeled]).all():
        raise LookalikeError(f"The features of `{table.name}` contain values that are not finite.")
    class_fid = ClassFID(features[labeled], codes[labeled], measure)
    options: dict[str, Any] = {"removal": removal, "draws": draws, "seed": seed, "easier": easier}
    sequence = swap_sequence(class_fid, names, default_sides(table), progress=progress, **options)
    facts = data_facts(table)
    sizes = np.array(list(facts["classes"].values()))

    def split(number: int, index: int) -> Split:
        step, sides = sequence.steps[index], sequence.sides[index]
        train, test = sorted(sides.train), sorted(sides.test)
        neither = sorted(set(range(len(names))) - set(train) - set(test))
        by_name = [tuple(names[code] for code in side) for side in (train, test, neither)]
        images = int(sizes[train].sum()), int(sizes[test].sum())
        rest = len(table) - sum(images)
        return Split(number, step.name, step.fid, by_name[0], by_name[1], by_name[2], (*images, rest))

    chosen = choose_steps(sequence, count)
    return SplitSet(
        data=facts,
        reference_model=reference_model,
        measure=measure,
        splits=tuple(split(number, index) for number, index in enumerate(chosen, 1)),
        default=chosen.index(sequence.start) + 1,
        sequence=tuple(sequence.steps),
        random=tuple((tuple(names[c] for c in a), tuple(names[c] for c in b)) for a, b in sequence.random),
        settings={**sequence.settings, "removal": removal, "seed": seed},
    )
