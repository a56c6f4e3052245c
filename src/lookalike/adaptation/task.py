"""The task of an adaptation, as the training loop takes it: views of the target, pool images, classes and settings.

Views of the target are drawn by the training loop's rules. Pool images are seen at the center crop only, so that
nothing of them depends on seed, step or position. Batch-norm statistics of the target come from target images alone.
"""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.adaptation.pool import Receipts
from lookalike.adaptation.settings import AdaptSettings
from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.seeds import derive, numpy_rng
from lookalike.data import PixelCache, Table
from lookalike.data.augmentation import CenterView, RandomView
from lookalike.data.decoding import Preprocess
from lookalike.data.samplers import Sampler, ShuffleSampler
from lookalike.methods.base import PIXELS, Context, Method
from lookalike.models import Embedder, features_for
from lookalike.models.inference.inputs import image_stream
from lookalike.models.inference.pipeline import ImageLoader
from lookalike.training.batchnorm import layers
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import PixelSource, Source

if TYPE_CHECKING:
    from lookalike.adaptation.methods import AdaptMethod


# ---- views -----------------------------------------------------------------------------------------


def weak_view(preprocess: Preprocess) -> RandomView:
    """A crop of 224 out of 256, perhaps mirrored."""
    fraction = (224 / 256) ** 2
    return RandomView(preprocess, scale=(fraction, fraction), ratio=(1, 1))


def strong_view(preprocess: Preprocess) -> RandomView:
    """The augmentation of MoCo v2."""
    return RandomView(
        preprocess, scale=(0.2, 1.0), color_jitter=0.5, color_jitter_probability=0.8, grayscale=0.2, blur=0.5
    )


AUGMENTATIONS: dict[str, Callable[[Preprocess], Any]] = {
    "weak": weak_view,
    "strong": strong_view,
    "second": strong_view,
    "center": CenterView,
}


class CachedViews:
    """Cached activations of target images, a random one of each kind of view in a step.

    Args:
        layer: The cached layer.
        arrays: Activations by kind: `weak` and `strong` ``(views, images, …)``, `center` ``(1, images, …)``.
        kinds: The views of a step, in order; `second` is another strong view.
        seed: Seed of the draws.
    """

    def __init__(self, layer: str, arrays: Mapping[str, np.ndarray], kinds: Sequence[str], *, seed: int = 0) -> None:
        self.layer, self.arrays, self.kinds, self.seed = layer, arrays, kinds, seed

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        rng, out, strong = numpy_rng(self.seed, "views", step), [], np.zeros(len(rows), np.int64)
        for kind in self.kinds:
            array = self.arrays["strong" if kind == "second" else kind]
            pick = rng.integers(0, len(array), len(rows))
            if kind == "second" and len(array) > 1:
                pick = (strong + 1 + pick % (len(array) - 1)) % len(array)
            strong = pick if kind == "strong" else strong
            out.append(to_tensor(array[pick[mine], rows[mine]]))
        return tuple(out)

    def center(self, rows: np.ndarray) -> Tensor:
        return to_tensor(self.arrays["center"][0, rows])


def to_tensor(values: np.ndarray) -> Tensor:
    """A copy as float32; pixels stay as they are."""
    return torch.from_numpy(np.array(values, np.uint8 if values.dtype == np.uint8 else np.float32))


def target_views(
    model: Embedder,
    layer: str,
    table: Table,
    kinds: Sequence[str],
    *,
    views: int = 4,
    seed: int = 0,
    show: bool = False,
) -> Source:
    """Views of a table for a model cut at `layer`: activations computed once and cached, or pixels drawn anew."""
    if layer == PIXELS:
        drawn = [AUGMENTATIONS[kind](model.preprocess) for kind in kinds]
        return PixelSource(pixel_cache(model, table, show=show), drawn, CenterView(model.preprocess), seed=seed)
    counts, arrays = {"center": 1, "weak": max(1, views // 2), "strong": views}, {}
    needed = {"center", *("strong" if kind == "second" else kind for kind in kinds)}
    for kind in (kind for kind in counts if kind in needed):
        drawn = [AUGMENTATIONS[kind](model.preprocess)] * counts[kind]
        arrays[kind] = features_for(model, table, layer=layer, views=drawn, progress=show)
    return CachedViews(layer, arrays, kinds, seed=seed)


def pixel_cache(model: Embedder, table: Table, *, show: bool = False) -> PixelCache:
    """Decoded images, as large as a model's center crop needs them."""
    return PixelCache(table, round(model.preprocess.size / model.preprocess.crop), progress=show)


def pool_views(model: Embedder, layer: str, table: Table, *, show: bool = False) -> Callable[[np.ndarray], Tensor]:
    """Center crops of pool images by their rows, as the layer (or pixels) holds them."""
    if layer == PIXELS:
        view, pixels = CenterView(model.preprocess), pixel_cache(model, table)
        return lambda rows: torch.from_numpy(np.stack([view(pixels.get(int(row))) for row in rows]))
    values = features_for(model, table, layer=layer, views=[CenterView(model.preprocess)], progress=show)[0]
    return lambda rows: to_tensor(values[rows])


# ---- what learns -----------------------------------------------------------------------------------


def pick_layer(model: Embedder, layer: str) -> str:
    """`auto`: half of the stages learn; a backbone that cannot be cut keeps all and lets its head learn."""
    if layer != "auto":
        return layer
    stages = [name for name in model.layers if name.startswith("stage")]
    return stages[(len(stages) - 1) // 2] if stages else "pooled"


def upper_part(model: Embedder, layer: str) -> nn.Module:
    """What is above the cached layer and below the head."""
    if layer == PIXELS:
        return model.backbone
    return nn.Identity() if layer == "pooled" else model.upper(layer)


def norm_layers(model: Embedder, layer: str) -> list[Any]:
    """Batch-norm layers above the cached layer."""
    return [*layers(upper_part(model, layer)), *layers(model.norm)]


def mixed_parts(ids: Sequence[str], size: int = 64) -> list[np.ndarray]:
    """Places of images in parts of nearly one size, for statistics that are means over batches.

    Folders are sorted by class, and a batch of one class has too little variance; a short last batch would count as
    much as a whole one. So images are shuffled, by their ids, and the parts are even.
    """
    order = np.argsort(np.array([derive(0, "statistics", id_) for id_ in ids]), kind="stable")
    return np.array_split(order, max(1, math.ceil(len(order) / size)))


def crops(model: Embedder, table: Table, parts: Iterable[np.ndarray]) -> Iterator[Tensor]:
    """Pixels of a table, part by part, as the finished model sees them."""
    for part in parts:
        stream = image_stream(table.take(part))
        batches = ImageLoader(model.preprocess).batches(stream.items, len(part), remote=stream.remote)
        yield from map(torch.from_numpy, batches)


def recalibrated(
    model: Embedder, batches: Iterable[Tensor], layer: str = PIXELS, *, above: str | None = None
) -> Embedder:
    """A copy whose batch-norm statistics are those of these images: one pass, cumulative means, nothing else.

    Args:
        model: The model.
        batches: Pixels, or what `layer` gives; one batch at a time is held.
        layer: The layer of the batches.
        above: Only statistics above this layer are replaced; all above `layer` by default.
    """
    out = copy.deepcopy(model).eval()
    norms = norm_layers(out, layer if above is None else above)
    usable = (batch for batch in batches if len(batch) > 1)  # one image has no variance
    first = next(usable, None) if norms else None
    if first is None:
        return out
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in itertools.chain([first], usable):
            batch = batch.to(out.device)
            out.from_features(out.pooled(batch) if layer == PIXELS else out.pooled_from(layer, batch))
    for norm, momentum in zip(norms, before, strict=True):
        norm.momentum = momentum
        norm.eval()
    return out


# ---- the task --------------------------------------------------------------------------------------


class StreamSampler:
    """The images once, in order; a single image left over at the end is skipped.

    Args:
        count: Number of images.
        size: Images in a batch.
    """

    def __init__(self, count: int, *, size: int) -> None:
        self.count, self.size = count, min(size, count)
        self.steps_per_epoch = max(1, math.ceil((count - 1) / self.size))

    def batch(self, step: int) -> np.ndarray:
        return np.arange((step - 1) * self.size, min(step * self.size, self.count))


@dataclass
class AdaptTask:
    """What an adaptation learns from; methods read it, and the training loop takes it as its setup.

    Args:
        settings: Settings of the adaptation.
        model: The model, trained in place.
        layer: Layers below are frozen; the views hold its output, or `pixels`.
        ids: Content ids of the target images to learn from.
        make_views: Returns the source of views for some kinds of them.
        true_labels: Class of each target image, if they are learned from.
        prototypes: One unit vector a class, for a model without a classifier.
        recluster: The prototypes are clusters, computed again after every epoch.
        neighbors: Retrieved pool images of each target image, places in `pool_ids`; −1 for none.
        scores: Similarities of the retrieved images.
        pool_ids: Content ids of the used pool images.
        pool: Returns views of used pool images by their places.
        friends: Target images that are not negatives of each other, for a model without classes.
        labeled_source: Views and classes of the source images, for `mcc`.
        table: The target images to learn from.
        seed: Random seed.
    """

    settings: AdaptSettings
    model: Embedder
    layer: str
    ids: Sequence[str]
    make_views: Callable[[Sequence[str]], Source]
    true_labels: np.ndarray | None = None
    prototypes: np.ndarray | None = None
    recluster: bool = False
    neighbors: np.ndarray | None = None
    scores: np.ndarray | None = None
    pool_ids: Sequence[str] = ()
    pool: Callable[[np.ndarray], Tensor] | None = None
    friends: np.ndarray | None = None
    labeled_source: tuple[Callable[[np.ndarray, int], Tensor], np.ndarray] | None = None
    table: Table | None = None
    seed: int = 0
    receipts: Receipts = field(init=False)
    feature_seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.ids = list(self.ids)
        if self.neighbors is None:
            self.neighbors = np.full((len(self.ids), 1), -1)
        if self.scores is None:
            self.scores = np.full(self.neighbors.shape, -np.inf)
        # One id space: a pool copy of a target image is that image.
        place = {id_: i for i, id_ in enumerate(self.ids)}
        self.pool_numbers = np.array(
            [place.get(id_, len(self.ids) + i) for i, id_ in enumerate(self.pool_ids)], np.int64
        )
        self.receipts = Receipts(len(self.pool_ids))
        self.parent, self.train = self.model.fingerprint(), np.arange(len(self.ids))
        self.validation = self.test = self.known = np.empty(0, np.int64)
        # All is in evaluation mode but the batch-norm layers that shall learn the statistics of each batch.
        norms = set(layers(self.model))
        moving = set(norm_layers(self.model, self.layer)) if self.settings.batch_norm == "target-train" else set()
        self.frozen: list[nn.Module] = [
            module
            for module in self.model.modules()
            if module not in moving and (module in norms or not any(True for _ in module.children()))
        ]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def classes(self) -> int:
        """Number of classes; 0 for contrast alone."""
        if self.prototypes is not None:
            return len(self.prototypes)
        return 0 if self.model.classifier is None else self.model.classifier.out_features

    @property
    def labels(self) -> np.ndarray:
        """Class of each target image, −1 where it is not known."""
        return np.full(len(self.ids), -1) if self.true_labels is None else np.asarray(self.true_labels, np.int64)

    @property
    def train_labels(self) -> np.ndarray:
        return self.labels

    @property
    def train_table(self) -> Table:
        return Table.from_columns({"path": list(self.ids)}, name="target") if self.table is None else self.table

    @cached_property
    def sampler(self) -> Sampler:
        count, size = len(self.ids), self.settings.batch_size
        if self.settings.stream:
            return StreamSampler(count, size=size)
        return ShuffleSampler(count, size=size, seed=self.seed)

    @property
    def steps(self) -> int:
        """Number of steps of the run."""
        if self.settings.stream:
            return self.sampler.steps_per_epoch
        epochs = self.settings.epochs
        return self.settings.steps if epochs is None else epochs * self.sampler.steps_per_epoch

    def train_settings(self) -> TrainSettings:
        """The settings of the training loop that these settings mean."""
        chosen, each = self.settings, self.sampler.steps_per_epoch
        start = chosen.warmup_start_lr
        gathered = "gathered" if chosen.processes > 1 else "train"
        return TrainSettings.parse(
            {
                "seed": self.seed,
                "steps": self.steps,
                "evaluate_every": max(1, self.steps),
                "accumulation_steps": chosen.accumulation_steps,
                "processes": chosen.processes,
                "model": {"batch_norm": gathered if chosen.batch_norm == "target-train" else "frozen"},
                "optimizer": {
                    **chosen.model_dump(include={"lr", "momentum", "nesterov", "weight_decay"}),
                    "kind": chosen.optimizer,
                    "head_lr": chosen.lr * chosen.head_lr_factor,
                },
                "schedule": {
                    "kind": chosen.lr_schedule,
                    "warmup_steps": round(chosen.warmup_epochs * each),
                    "warmup_start_ratio": None if start is None else start / chosen.lr,
                    "min_lr_ratio": chosen.min_lr / chosen.lr,
                },
                "log": {"every_n_steps": 1, "tensorboard": False},
            }
        )

    def make_method(self, context: Context) -> Method:
        from lookalike.adaptation.methods import find

        return find(self.settings.method)(self.settings, context, self)

    def make_source(self, method: Method) -> Source:
        start = time.monotonic()
        source = self.make_views(cast("AdaptMethod", method).kinds)
        self.feature_seconds += time.monotonic() - start
        return source


def fit(task: AdaptTask, run: Run) -> AdaptMethod:
    """Take the steps of a task in the training loop, from the last checkpoint of the run on.

    Args:
        task: The task; its model is trained in place.
        run: The run folder, for checkpoints and the log.

    Returns:
        The method with its state.

    Raises:
        LookalikeError: If the method lacks what it needs, or the loss is not finite.
    """
    from lookalike.training.loop import Loop

    if len(task.ids) < 2:
        raise LookalikeError(f"{len(task.ids)} images are too few to adapt to.")
    loop = Loop(task.train_settings(), task, run)
    run.checkpoints.mkdir(exist_ok=True)
    loop.go(resume=True)
    task.model.eval()
    distributed.barrier()
    return cast("AdaptMethod", loop.method)
