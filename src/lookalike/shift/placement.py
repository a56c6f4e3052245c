"""The command ``shift place``: place new, unlabeled images on a model's own curve."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core import folders, progress
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import FORMAT_VERSIONS, hash_bytes, read_json
from lookalike.core.run import Run
from lookalike.core.seeds import derive, numpy_rng
from lookalike.data import audit, read_table, with_columns
from lookalike.data.augmentation import CenterView
from lookalike.data.decoding import decode, prepare
from lookalike.data.styles import Steps, StyleView
from lookalike.data.table import Table
from lookalike.models import Embedder, features_for
from lookalike.models.model_folder import find
from lookalike.models.pooling import unit
from lookalike.shift.graded_folders import MIN_IMAGES, LabeledFeatures
from lookalike.shift.shared_features import HeadAndNorm, copy_head
from lookalike.shift.shift_curve import CURVE, Placement, ShiftCurve
from lookalike.training.selection import embed_features
from lookalike.training.settings import TrainSettings, resolve

STYLED_IMAGES = 400  # held-out images rendered in other styles; each style costs a pass over them
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


def place(
    *,
    model: str | Path,
    folder: str | Path | Table,
    data: str | Path | Table | None = None,
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    level: float = 0.9,
    curve: str | Path | None = None,
    fresh: bool = False,
    seed: int | None = None,
    classes: int | None = None,
    device: str = "auto",
    out: str | Path | None = None,
) -> Placement:
    """Estimate recall@1 on new images without labels.

    Recall@1 is the fraction of the folder's images whose nearest neighbor in the folder shows the same class. The
    estimate is calibrated once, on images the model was not trained on (those of the run, or ``data``), and stored
    beside the model; again when ``data`` or ``seed`` differ. A folder unlike everything it was calibrated on gets no
    estimate but the reason.

    Args:
        model: A run or a model folder.
        folder: New images, without labels.
        data: Labeled images to calibrate on, of classes the model has not seen or with a split.
        layout: Layout of the labeled images; detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        level: Coverage of the interval.
        curve: Folder of the calibration; beside the model by default.
        fresh: Calibrate again.
        seed: Seed of the calibration; 0 at first.
        classes: Number of different things in the folder, if you know it; it narrows the interval.
        device: Device to compute on.
        out: Run folder to write the report's sections to.

    Returns:
        The placement: expected recall@1 with its interval, or why nothing can be said, and a message.

    Raises:
        LookalikeError: If the level is out of range, or there is nothing to calibrate on.

    Example:
        >>> placement = la.shift.place(model="runs/birds", folder="new-photos")  # doctest: +SKIP
        >>> print(placement.message)  # doctest: +SKIP
        Expect recall@1 0.71, between 0.60 and 0.81.
    """
    layout = with_columns(layout, image_column, label_column, split_column)
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
    audited = audit(table, near=False, progress=True).table
    images = audited.take(np.sort(np.unique(audited.column("content_id").astype(str), return_index=True)[1]))
    if len(images) < len(audited):
        progress.say(f"{len(audited) - len(images)} duplicate images are left out.")
    if len(images) < 2:
        raise LookalikeError(
            f"`{table.name}` has {len(images)} different images, but placing needs at least {MIN_IMAGES}."
        )
    features = unit_rows(features_for(embedder, images, views=[CenterView(embedder.preprocess)], progress=True)[0])
    placement = known.place(encoder(copy_head(embedder))(features), features, level=level, classes=classes)
    if out is not None:
        from lookalike.shift.shift_report import placement_sections

        run = Run.create("place", {"model": str(model), "folder": table.name, "level": level}, path=out)
        for name, section in placement_sections(placement, known).items():
            run.write_section(name, section)
        run.write_result(finished=True, **placement.to_json())
    return placement


def curve_folder(model: str | Path, embedder: Embedder) -> Path:
    """Folder of a model's curve: beside the model folder, or in the user's folder for a model without one."""
    folder = find(model)
    if folder is None:
        return folders.home() / "curves" / embedder.fingerprint()
    return folder.with_name(f"{folder.name}.curve")


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
    """Calibrate a model on labeled images, by default those of its run."""
    torch.set_num_threads(threads())
    source, settings = _labeled(model, data)
    table = source if data is None else audit(source, near=False, progress=True).table  # a run's was audited before
    labels, names = table.labels()
    train, held = _sides(table, labels)
    progress.say(
        f"Calibrating, once, on {len(held):,} held-out images of `{table.name}`, {min(STYLED_IMAGES, len(held)):,} of "
        f"them in {len(STYLES)} other styles; this takes some minutes."
    )
    features = unit_rows(features_for(embedder, table, views=[CenterView(embedder.preprocess)], progress=True)[0])
    styled = np.sort(numpy_rng(seed, "styled images").permutation(held)[:STYLED_IMAGES])
    images = LabeledFeatures(features, labels, train, held, _styled_features(embedder, table.take(styled)), styled)
    about: dict[str, Any] = {"images": len(table), "trained_on": len(train), "held_out": len(held)}
    about |= {"classes": len(names), "method": None if settings is None else settings.method.name}
    about["data"] = _identity(source)
    return ShiftCurve.fit(embedder.fingerprint(), images, encoder(copy_head(embedder)), about, seed=seed)


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
            rows = embedder.features(crops, view=view, seed=derive(0, "view", number, 0))
            out[" and ".join(f"{style} {strength}" for style, strength in steps)] = unit_rows(rows)
            bar.advance(len(crops))
    return out
