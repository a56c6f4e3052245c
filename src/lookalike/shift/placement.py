"""The command ``shift place``: place new, unlabeled images on a model's own curve."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lookalike.core import folders, progress
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import FORMAT_VERSIONS, hash_bytes, read_json
from lookalike.core.run import Run
from lookalike.core.seeds import derive, numpy_rng
from lookalike.data import audit, read_table
from lookalike.data.augmentation import CenterView
from lookalike.data.decoding import decode, prepare
from lookalike.data.styles import Steps, StyleView
from lookalike.data.table import Table
from lookalike.models import Embedder, features_for
from lookalike.models.model_folder import find
from lookalike.models.pooling import unit
from lookalike.shift.graded_folders import (
    MIN_TO_PLACE,
    HeldOutModel,
    LabeledFeatures,
    SplitPoint,
    class_halves,
    far_limit,
    grade_folders,
)
from lookalike.shift.make_splits import split_features
from lookalike.shift.recall_estimate import GradedFolder
from lookalike.shift.shared_features import HeadAndNorm, SharedFeatures, build_setup, copy_head
from lookalike.shift.shift_curve import CURVE, Placement, ShiftCurve
from lookalike.shift.trials import divide, fit, quiet, recall_at_1
from lookalike.training.selection import embed_features
from lookalike.training.settings import TrainSettings, resolve

Halves = Sequence[tuple[np.ndarray, np.ndarray]]
STYLED_IMAGES = 800  # held-out images rendered in other styles; each style costs a pass over them
STYLES: tuple[Steps, ...] = (
    *((step,) for step in (("gray", 3), ("blur", 2), ("blur", 3), ("noise", 2), ("noise", 3), ("jpeg", 3))),
    *((step,) for step in (("color", 2), ("poster", 2), ("poster", 3), ("sketch", 2), ("sketch", 3))),
    *((step,) for step in (("negative", 3), ("edges", 1), ("edges", 3), ("pixel", 2), ("dark", 3), ("pale", 3))),
    (("relief", 3),),
    (("poster", 3), ("color", 3)),
    (("sketch", 2), ("blur", 1)),
    (("gray", 3), ("noise", 3)),
    (("sketch", 3), ("negative", 3)),
    (("blur", 2), ("pale", 2)),
    (("poster", 2), ("gray", 3)),
)
SPLITS = 5
RECIPE_CLASSES = 16  # below that a split's test side has no halves to learn from


def place(
    *,
    model: str | Path,
    folder: str | Path | Table,
    data: str | Path | Table | None = None,
    layout: str = "auto",
    level: float = 0.9,
    curve: str | Path | None = None,
    fresh: bool = False,
    seed: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
) -> Placement:
    """Estimate recall@1 on new images without labels.

    The folder is placed on the model's own curve of recall over distance from training. The curve is learned once, from
    images the model was not trained on (those of the run, or ``data``), and stored beside the model; it is learned
    again when ``data`` or ``seed`` differ from those it was learned with. The estimate is about finding images of the
    same class within the folder.

    Args:
        model: A run or a model folder.
        folder: New images, without labels.
        data: Labeled images to learn the curve from, of classes the model has not seen or with a split.
        layout: Layout of the labeled images; detected by default.
        level: Coverage of the interval.
        curve: Folder of the curve; beside the model by default.
        fresh: Learn the curve again.
        seed: Seed the curve is learned with; 0 at first.
        device: Device to compute on.
        out: Run folder to write the report's sections to.

    Returns:
        The placement: position, expected recall@1 with its interval, and a message.

    Raises:
        LookalikeError: If the level is out of range, or there is nothing to learn the curve from.

    Example:
        >>> placement = la.shift.place(model="runs/birds", folder="new-photos")  # doctest: +SKIP
        >>> print(placement.message)  # doctest: +SKIP
        As far from training as split 2 of 5; expect recall@1 0.71, between 0.60 and 0.81.
    """
    if not 0.5 <= level < 1:
        raise LookalikeError(f"The level of an interval is {level:g}; it must be at least 0.5 and below 1.")
    embedder = Embedder.from_pretrained(model, device=device)
    path = Path(curve) if curve is not None else curve_folder(model, embedder)
    if data is None and layout != "auto":
        progress.warn("`layout` describes the labeled images; without `data` it has no effect.")
    labeled = read_table(data, layout=layout, progress=True) if isinstance(data, (str, Path)) else data
    known = None if fresh else _stored_curve(path, embedder, labeled, seed)
    if known is None:
        known = learn(model, embedder, labeled, seed=seed or 0)
        known.save(path)
    table = folder if isinstance(folder, Table) else read_table(folder, progress=True)
    found = audit(table, near=False, progress=True)
    first = np.sort(np.unique(found.table.column("content_id").astype(str), return_index=True)[1])
    if len(first) < len(found.table):
        progress.say(f"{len(found.table) - len(first)} duplicate images are left out.")
    if len(first) < 2:
        raise LookalikeError(
            f"`{table.name}` has {len(first)} different images, but placing needs at least {MIN_TO_PLACE}."
        )
    images = found.table.take(first)
    features = unit_rows(features_for(embedder, images, views=[CenterView(embedder.preprocess)], progress=True)[0])
    placement = known.place(encoder(copy_head(embedder))(features), features, level=level)
    if out is not None:
        from lookalike.shift.shift_report import placement_sections

        run = Run.create("place", {"model": str(model), "folder": table.name, "level": level}, path=out)
        for name, section in placement_sections(placement, known).items():
            run.write_section(name, section)
        run.write_result(finished=True, **placement.to_json())
    return placement


def curve_folder(model: str | Path, embedder: Embedder) -> Path:
    """Folder of a model's curve: beside the model folder, or in the user's folder for a model without one."""
    found = find(model)
    if found is None:
        return folders.home() / "curves" / embedder.fingerprint()
    return found.with_name(f"{found.name}.curve")


def _stored_curve(path: Path, embedder: Embedder, data: Table | None, seed: int | None) -> ShiftCurve | None:
    """The stored curve, if it belongs to this model, is current, and was learned from the given data and seed."""
    if not (path / CURVE).is_file():
        return None
    if read_json(path / CURVE, "model's curve").get("format") in range(FORMAT_VERSIONS["curve"]):
        progress.warn(f"The curve `{path}` was learned by an older version; it will be learned again.")
        return None
    known = ShiftCurve.load(path)
    why = ""
    if known.model != embedder.fingerprint():
        why = "belongs to another model"
    elif data is not None and "data" not in known.about:
        why = "does not say which images it was learned from"
    elif data is not None and known.about["data"] != _identity(data):
        why = "was learned from other images or labels"
    elif seed is not None and known.about.get("seed") != seed:
        why = f"was learned with seed {known.about.get('seed')}"
    if why:
        progress.warn(f"The curve `{path}` {why}; it will be learned again.")
    return None if why else known


def _identity(table: Table) -> str:
    """Hash of labeled images: content, classes and split."""
    codes, names = table.labels()
    split = table.column("split") if table.has("split") else ()
    return hash_bytes(table.fingerprint(), codes.tobytes(), json.dumps([names, [str(side) for side in split]]))


def encoder(top: HeadAndNorm) -> Any:
    """A function from unit features to unit embeddings."""
    return lambda rows: embed_features(top[0], rows, top[1])


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows of unit length."""
    out: np.ndarray = unit(torch.from_numpy(np.array(features, np.float32))).numpy()
    return out


# ---- learning ------------------------------------------------------------------------------------


def learn(model: str | Path, embedder: Embedder, data: Table | None, *, seed: int = 0) -> ShiftCurve:
    """Learn a model's curve from labeled images.

    Args:
        model: The run or model folder.
        embedder: The loaded model.
        data: Labeled images; those of the run by default.
        seed: Seed of all draws.

    Returns:
        The curve.
    """
    torch.set_num_threads(threads())
    given, settings = _labeled(model, data)
    table = given if data is None else audit(given, near=False, progress=True).table  # a run's was looked at before
    labels, names = table.labels()
    train, held = _sides(table, labels)
    progress.say(
        f"Learning the model's curve, once, from {min(STYLED_IMAGES, len(held)):,} held-out images of `{table.name}` "
        f"in {len(STYLES)} other styles; this takes some minutes."
    )
    center = [CenterView(embedder.preprocess)]
    features = unit_rows(features_for(embedder, table, views=center, progress=True)[0])
    some = np.sort(numpy_rng(seed, "other looks").permutation(held)[:STYLED_IMAGES])
    images = LabeledFeatures(features, labels, _styled_features(embedder, table.take(some)), some)
    halves = class_halves(labels, held, seed)
    fixed = HeldOutModel(encoder(copy_head(embedder)), train, held)
    graded, reference, class_centers = grade_folders(images, fixed, halves, seed=seed, name="fixed")
    splits: list[SplitPoint] = []
    if settings is not None and len(names) >= RECIPE_CLASSES:
        more, splits = recipe_curve(images, table, embedder, settings, halves, seed=seed)
        graded += more
    about = {
        "images": len(table),
        "trained_on": len(train),
        "held_out": len(held),
        "classes": len(names),
        "folders": len(graded),
        "styles": list(images.styles),
        "method": None if settings is None else settings.method.name,
        "data": _identity(given),
        "seed": seed,
    }
    far = far_limit(images, held, reference)
    progress.say(f"Learning from {len(graded):,} folders of known classes")
    return ShiftCurve.fit(
        embedder.fingerprint(),
        graded,
        splits=splits,
        reference=reference,
        class_centers=class_centers,
        far=far,
        about=about,
    )


def _labeled(model: str | Path, data: Table | None) -> tuple[Table, TrainSettings | None]:
    """The labeled images, and the settings where the model comes from a run."""
    run = next((Run(p) for p in (Path(model), folders.runs() / Path(model), Path(model).parent) if Run.is_run(p)), None)
    settings = resolve(run.config) if run is not None and "method" in run.config else None
    if data is not None:
        return data, settings
    if run is None or not (run.path / "table.parquet").exists():
        raise LookalikeError(
            f"`{model}` is not a run whose images are known, so its curve cannot be learned. Give labeled images with "
            "--data, of classes the model was not trained on or with a split."
        )
    return Table.load(run.path / "table.parquet"), settings


def _sides(table: Table, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(training rows, held-out rows) of the labeled images; without a split, all of them for both."""
    known = labels >= 0
    if table.has("split") and {"train"} < set(table.column("split")) - {None}:
        split = table.column("split")
        return np.flatnonzero(known & (split == "train")), np.flatnonzero(known & np.isin(split, ("val", "test")))
    progress.say("The table has no split, so no image is assumed to be trained on.")
    rows = np.flatnonzero(known)
    return rows, rows


def _styled_features(embedder: Embedder, table: Table) -> dict[str, np.ndarray]:
    """Unit features of images in other styles; each image is decoded once."""
    pre = embedder.preprocess

    def crop(row: int) -> np.ndarray:
        return prepare(decode(table.open_bytes(row), box=table.box(row), min_side=pre.size), pre)

    with ThreadPoolExecutor(threads()) as pool:
        crops = list(pool.map(crop, range(len(table))))
    out = {}
    with progress.Progress("Other styles", len(STYLES) * len(crops)) as bar:
        for number, steps in enumerate(STYLES):
            view = StyleView(pre, steps, cropped=True)
            found = embedder.features(crops, view=view, seed=derive(0, "view", number, 0))
            out[" and ".join(f"{style} {strength}" for style, strength in steps)] = unit_rows(found)
            bar.advance(len(crops))
    return out


def recipe_curve(
    images: LabeledFeatures, table: Table, embedder: Embedder, settings: TrainSettings, halves: Halves, *, seed: int = 0
) -> tuple[list[GradedFolder], list[SplitPoint]]:
    """Retrain the recipe on splits of growing difficulty and grade folders of each test side.

    Only the head is retrained, on the model's own features.

    Args:
        images: Labeled features.
        table: The images.
        embedder: The model.
        settings: Training settings of the run.
        halves: Pairs of class subsets.
        seed: Seed of the draws.

    Returns:
        The graded folders, and the curve over the splits.
    """
    reference_model = {"name": embedder.name, "weights": embedder.fingerprint("pooled")}
    found = split_features(table, images.features, reference_model, count=SPLITS, draws=1)
    plain = LabeledFeatures(images.features, images.labels)
    graded: list[GradedFolder] = []
    splits: list[SplitPoint] = []
    for split in found.splits:
        rows = found.rows(table, split)
        encode = retrained(images, table, embedder, settings, rows["train"])
        model = HeldOutModel(encode, rows["train"], rows["test"])
        more, reference, _ = grade_folders(plain, model, halves, plain=2, seed=seed, name=f"split {split.id}")
        graded += more
        value = recall_at_1(encode(images.features[rows["test"]]), images.labels[rows["test"]])
        some = numpy_rng(seed, "split", split.id).permutation(rows["test"])[:2000]
        splits.append(SplitPoint(split.id, split.fid, value, reference, reference.project(images.features[some])))
    return graded, splits


def retrained(
    images: LabeledFeatures, table: Table, embedder: Embedder, settings: TrainSettings, train: np.ndarray
) -> Any:
    """The encoder that the recipe gives when trained on these rows only, with a new head.

    Args:
        images: Labeled features.
        table: The images.
        embedder: The model.
        settings: Training settings of the run.
        train: Row numbers to train on; some of their classes choose the step.

    Returns:
        A function from unit features to unit embeddings.
    """
    over = {
        "views": {"mode": "cached", "layer": "pooled", "num_cached": 0},
        "log": {"every_n_steps": 1000, "tensorboard": False},
    }
    chosen = resolve(settings.model_dump(mode="json"), over, {"data": {"validation_fraction": 0.25}, "processes": 1})
    own = embedder.head, embedder.norm
    embedder.head, embedder.norm = nn.Identity(), nn.Identity()
    labels, names = table.labels()
    try:
        found = SharedFeatures(table, labels, names, embedder, images.features, None)
        division = divide(found, chosen, [names[code] for code in np.unique(labels[train])], [])
        with quiet(), tempfile.TemporaryDirectory(prefix="lookalike-place-") as folder:
            run = Run.create("place", {}, path=Path(folder) / "run")
            fit(build_setup(found, chosen, division, run), run)
        return encoder(copy_head(embedder))
    finally:
        embedder.head, embedder.norm = own
