"""Images and features that all runs along a curve share.

Each process loads them once, memory-mapped; a run then only selects rows.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.core.device import resolve, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.data.augmentation import CenterView, RandomView
from lookalike.data.table import Table
from lookalike.methods.base import Method
from lookalike.models import Embedder, features_for
from lookalike.training.selection import embed_features
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import (
    VIEW_SEED,
    CachedSource,
    Rows,
    Source,
    TrainingSetup,
    freeze,
    start_head,
    starting_model,
    training_images_of,
)
from lookalike.training.split import Division

HeadAndNorm = tuple[Any, Any]  # the head, and the norm layer behind it


@dataclass
class SharedFeatures:
    """Images and the features of one starting model; row numbers refer to the table.

    Args:
        table: The images.
        labels: Class code of each row; −1 without a label.
        names: Class names by code.
        model: The starting model; each run replaces its head.
        features: Pooled features of the center crop, shape ``(rows, d)``.
        views: Pooled features of some random views, shape ``(views, rows, d)``; None: only the center crop.
    """

    table: Table
    labels: np.ndarray
    names: list[str]
    model: Embedder
    features: np.ndarray
    views: np.ndarray | None

    def __post_init__(self) -> None:
        self.top = copy_head(self.model)
        """The starting model's own; the model's is replaced by every run."""

    def rows_of(self, classes: Sequence[str]) -> np.ndarray:
        """Row numbers of these classes, in the table's order."""
        places = {name: code for code, name in enumerate(self.names)}
        missing = [name for name in classes if name not in places]
        if missing:
            raise LookalikeError(
                f"The splits name the class `{missing[0]}`, which `{self.table.name}` does not have: "
                "make the splits from these images."
            )
        return np.flatnonzero(np.isin(self.labels, [places[name] for name in classes]))

    def vectors(self, rows: np.ndarray, top: HeadAndNorm | None = None) -> np.ndarray:
        """Unit embeddings of some rows by a head, by default that of the starting model."""
        head, norm = self.top if top is None else top
        return embed_features(head, self.features[rows], norm)


def copy_head(model: Embedder) -> HeadAndNorm:
    """A copy of what follows the features: the head, and the norm layer behind it."""
    return copy.deepcopy(model.head), copy.deepcopy(model.norm)


def load(table: str | Path, settings: TrainSettings, *, progress: bool = False) -> SharedFeatures:
    """Load the shared features of a stored table; kept for the next call of the same process."""
    # Steps, rates and seeds do not change the features, and must not load them again.
    of_features = settings.model_dump(mode="json", include={"model", "views", "device"})
    return _load(str(table), TrainSettings(**of_features).model_dump_json(), progress)


@functools.lru_cache(maxsize=4)
def _load(table: str, settings: str, progress: bool) -> SharedFeatures:
    return prepare(Table.load(Path(table)), TrainSettings.model_validate_json(settings), progress=progress)


def prepare(table: Table, settings: TrainSettings, *, progress: bool = False) -> SharedFeatures:
    """Compute (or read from the cache) the features that runs on these images need."""
    torch.set_num_threads(threads())
    model = starting_model(settings, resolve(settings.device))
    pre, chosen = model.preprocess, settings.views
    labels, names = table.labels()

    def cached(views: list[Any]) -> np.ndarray:
        return features_for(model, table, layer="pooled", views=views, seed=VIEW_SEED, progress=progress)

    random = RandomView(pre, scale=chosen.scale, flip=chosen.flip, color_jitter=chosen.color_jitter)
    views = cached([random] * chosen.num_cached) if chosen.num_cached and chosen.mode == "cached" else None
    return SharedFeatures(table, labels, names, model, cached([CenterView(pre)])[0], views)


class _SharedSetup(TrainingSetup):
    """Training setup over shared features: nothing is computed again for a split."""

    views: np.ndarray | None = None

    def make_source(self, method: Method) -> Source:
        count = len(method.views(None))
        random = None if self.views is None else Rows(self.views)
        distinct, seed = method.distinct_views, self.settings.seed
        return CachedSource("pooled", Rows(self.features), random, views=count, distinct=distinct, seed=seed)


def build_setup(
    shared: SharedFeatures, settings: TrainSettings, division: Division, run: Run, top: HeadAndNorm | None = None
) -> TrainingSetup:
    """Everything the training loop needs for one run on cached features.

    The model is the shared one with this run's head in it, so only one run at a time may use it.
    """
    model = shared.model
    model.head, model.norm = copy.deepcopy(shared.top if top is None else top)
    if top is None:
        start_head(model, settings, shared.features, shared.labels, division.train, run)
    model.head.requires_grad_(True)
    frozen = freeze(model, settings)
    known: dict[str, Any] = {"table": shared.table, "labels": shared.labels, "features": shared.features}
    known |= {"first_head": shared.top[0], "first_norm": shared.top[1], "start_norm": copy.deepcopy(model.norm)}
    images = training_images_of(settings, shared.table, shared.labels, division)
    known |= {"model": model, "device": model.device, "parent": "", "training_images": images}
    setup = _SharedSetup(settings=settings, division=division, frozen=frozen, **known)
    setup.views = shared.views
    return setup
