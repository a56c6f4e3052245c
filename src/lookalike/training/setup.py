"""Build everything the training loop needs from settings and a table: model with head, sources, sampler, method.

Built the same way in every process of a run and in every resumed one; costly parts come from caches. Random
choices of a source of images depend on the seed, the step and the position in the joint batch, so every process can
load its own part, and a resumed run sees what an uninterrupted one would have seen.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lookalike import methods
from lookalike.core import distributed
from lookalike.core.device import CPU, resolve, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress, say
from lookalike.core.run import Run
from lookalike.core.seeds import derive, numpy_rng, sample_rows, seed_everything
from lookalike.data import PixelCache
from lookalike.data.augmentation import CenterView, CropView, RandomView
from lookalike.data.samplers import PKSampler, Sampler, ShuffleSampler, SubsetSampler
from lookalike.data.table import Table
from lookalike.losses.pml import SupConLoss
from lookalike.methods.base import PIXELS, Context, Method
from lookalike.methods.own_loss import OwnLoss, attach_miner
from lookalike.models import Embedder, features_for, heads, pooling
from lookalike.training import checkpoint
from lookalike.training.own_parts import OwnParts, OwnView, make_own_sampler
from lookalike.training.settings import SamplerSettings, TrainSettings
from lookalike.training.split import Division

VIEW_SEED = 0  # of the cached views: runs with different seeds share them
PCA_ROWS = 50_000  # more do not move the directions, and need memory


class TrainingImages(NamedTuple):
    """The training images of a run: class numbers without gaps (−1: none), and the rows that batches are drawn from."""

    table: Table
    labels: np.ndarray
    drawn: np.ndarray | None


@dataclass
class TrainingSetup:
    """Everything the loop needs: images, labels, model, cached features and sampler.

    Row numbers are those of `table`, of every readable image; a label is −1 where there is none. `parent` is the
    fingerprint of the starting model, `features` its pooled features; `first_head` and `first_norm` are its own head
    and the norm layer behind it, `start_norm` is the norm layer at step 0.
    """

    settings: TrainSettings
    table: Table
    division: Division
    labels: np.ndarray
    training_images: TrainingImages
    model: Embedder
    device: torch.device
    parent: str
    features: np.ndarray
    first_head: nn.Module
    first_norm: nn.Module
    start_norm: nn.Module
    frozen: list[nn.Module]
    own: OwnParts = field(default_factory=OwnParts)

    def __post_init__(self) -> None:
        self.train, self.validation, self.test = self.division.train, self.division.validation, self.division.test
        self.train_table, self.train_labels, drawn = self.training_images
        self.classes = int(self.train_labels.max(initial=-1)) + 1
        labels, chosen = self.train_labels if drawn is None else self.train_labels[drawn], self.settings
        self.sampler = make_sampler(chosen, labels, self.own.sampler)
        if drawn is not None:
            self.sampler = SubsetSampler(drawn, self.sampler)
        known = self.train[self.labels[self.train] >= 0]
        self.known = sample_rows(known, chosen.log.knn_images or len(known), chosen.data.split_seed, "known")
        """Labeled training rows that held-out images are compared with; a sample if there are very many."""

    def make_method(self, context: Context) -> Method:
        kind = methods.find(self.settings.method.name)
        settings = kind.Settings.parse(self.settings.method.own())
        if kind is OwnLoss:
            return OwnLoss(settings, context, self.own.loss, self.own.miner)
        method = kind(settings, context)
        return method if self.own.miner is None else attach_miner(method, self.own.miner)

    def make_source(self, method: Method) -> Source:
        """The source of views that the settings ask for: cached outputs of a frozen layer, or pixels."""
        chosen, pre, seed = self.settings.views, self.model.preprocess, self.settings.seed
        random, count = self.random_view(), len(self.table)
        views = method.views(random)
        if chosen.mode == "end_to_end":
            pixels = PixelCache(self.table, round(pre.size / pre.crop), progress=True)
            return PixelSource(pixels, views, CenterView(pre), seed=seed)

        def cached(table: Table, views: list[Any]) -> np.ndarray:
            return features_for(self.model, table, layer=chosen.layer, views=views, seed=VIEW_SEED, progress=True)

        center, drawn = Rows(self.features), None
        if chosen.layer != "pooled":
            needed = np.sort(np.concatenate([self.train, self.validation]))
            center = Rows(cached(self.table.take(needed), [CenterView(pre)])[0], needed, count)
        if chosen.num_cached:
            drawn = Rows(cached(self.train_table, [random] * chosen.num_cached), self.train, count)
        return CachedSource(chosen.layer, center, drawn, views=len(views), distinct=method.distinct_views, seed=seed)

    def random_view(self) -> Any:
        """The augmentation that the settings ask for, or the user's own."""
        if self.own.transform is not None:
            return OwnView(self.own.transform, self.model.preprocess)
        options = self.settings.views.model_dump(exclude={"mode", "layer", "num_cached", "crop"})
        return (CropView if self.settings.views.crop == "plain" else RandomView)(self.model.preprocess, **options)


def make_sampler(settings: TrainSettings, labels: np.ndarray, own: Any = None) -> Sampler:
    """The sampler that the settings ask for, or the user's own, over images with these classes."""
    s = settings.sampler
    if own is not None:
        return make_own_sampler(own, labels, size=s.size, seed=settings.seed)
    if s.kind == "shuffle":
        return ShuffleSampler(len(labels), size=s.batch_size, seed=settings.seed)
    shape = {"classes": s.classes_per_batch, "images": s.images_per_class}
    warn = s.classes_per_batch != SamplerSettings().classes_per_batch  # not about a default
    return PKSampler(labels, **shape, seed=settings.seed, replacement=s.replacement, warn_if_fewer=warn)


def starting_model(settings: TrainSettings, device: torch.device) -> Embedder:
    """Load the model a run starts from; seeded, so that an untrained one is the same each time."""
    seed_everything(settings.seed)
    chosen = settings.model
    options: Any = {"pooling": chosen.pooling, "size": chosen.size, "weights": chosen.weights}
    model = Embedder.from_pretrained(chosen.name, device=device, **options)
    if chosen.crop is not None:
        model.preprocess = replace(model.preprocess, crop=chosen.crop)
    return model


def build_setup(
    settings: TrainSettings, table: Table, division: Division, run: Run, own: OwnParts | None = None
) -> TrainingSetup:
    """Load the model, add its head, freeze what is not trained; the same in every process and every resumed run.

    The initial head is stored in the run. Raises `LookalikeError` if the settings do not fit the model or the images.
    """
    torch.set_num_threads(threads())
    device = resolve(settings.device)
    if device.type != CPU and distributed.world_size() > 1:
        device = torch.device(device.type, distributed.local_rank())
    labels = table.labels()[0]
    training_images = training_images_of(settings, table, labels, division)  # reports mistakes before the costly part
    model = starting_model(settings, device)
    parent = model.fingerprint()
    features = np.empty((0, model.feature_dim), np.float32)
    if settings.head.kind != "none" or settings.views.mode == "cached" or (labels >= 0).any():
        center = [CenterView(model.preprocess)]
        features = features_for(model, table, layer="pooled", views=center, seed=VIEW_SEED, progress=True)[0]
    first_head, first_norm = copy.deepcopy(model.head), copy.deepcopy(model.norm)
    start_head(model, settings, features, labels, division.train, run)
    start_norm = copy.deepcopy(model.norm)
    frozen = freeze(model, settings)
    if any(p.requires_grad for p in model.backbone.parameters()):
        model.prototypes = None  # they belong to the backbone as it was
    if settings.views.mode == "end_to_end" or settings.views.layer != "pooled":  # convolutions are trained: faster so
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    starting = (model, device, parent, features, first_head, first_norm, start_norm, frozen, own or OwnParts())
    return TrainingSetup(settings, table, division, labels, training_images, *starting)


def training_images_of(settings: TrainSettings, table: Table, labels: np.ndarray, division: Division) -> TrainingImages:
    """The training images with class numbers without gaps, and the rows that batches are drawn from."""
    names, codes = np.unique(labels[division.train], return_inverse=True)
    codes = codes.astype(np.int64) - int((names < 0).any())
    some, kind = table.take(division.train), methods.find(settings.method.name)
    return TrainingImages(some, codes, kind.sampled_rows(kind.Settings.parse(settings.method.own()), some, codes))


def start_head(
    model: Embedder, settings: TrainSettings, features: np.ndarray, labels: np.ndarray, rows: np.ndarray, run: Run
) -> None:
    """Initialize the head by PCA or at random, or load it from the run; an existing head is kept."""
    if settings.head.kind == "none":
        if isinstance(model.head, nn.Linear):
            say("The starting model's head is left off: its features are what is trained.", verbose=True)
        model.head, model.norm = nn.Identity(), nn.Identity()
        return
    norm = settings.head.norm
    if isinstance(model.head, nn.Linear):
        if norm != "none":
            raise LookalikeError(f"`head.norm` is {norm}, but the starting model has a head already; leave it out.")
        say(f"The starting model has a head of {model.dim} numbers; training goes on from it.", verbose=True)
        return
    dim = min(settings.head.embedding_dim, model.feature_dim)
    model.norm = heads.make_norm(norm, dim, reference_batch=settings.head.norm_batch_size).to(model.device)
    path = run.checkpoints / checkpoint.START
    if path.exists():
        model.set_random_head(dim)
        checkpoint.load_trainable_state(model.head, checkpoint.read(path)["head"])
        return
    if settings.head.kind == "pca":
        model.set_pca_head(features[sample_rows(rows, PCA_ROWS, settings.data.split_seed, "pca")], dim)
    else:
        model.set_random_head(dim, settings.seed)
    if settings.head.prewarm_epochs:
        prewarm(model.head, features[rows], labels[rows], settings)
    if distributed.is_main():
        checkpoint.write(path, {"head": {k: v.detach().clone() for k, v in model.head.state_dict().items()}})


def freeze(model: Embedder, settings: TrainSettings) -> list[nn.Module]:
    """Freeze the part of the model that is not trained; returns its modules."""
    layer = settings.views.layer if settings.views.mode == "cached" else settings.model.freeze
    if layer == "embedding":
        raise LookalikeError("`views.layer` is the embedding itself: nothing above it can be trained; take `pooled`.")
    if layer is None:
        return []
    if layer == "pooled" and settings.head.kind == "none":
        raise LookalikeError(
            "The backbone is frozen and there is no head: nothing would be trained; set `views.mode` to end_to_end."
        )
    if layer not in model.layers:
        raise LookalikeError(f"`{layer}` is not a layer of {model.name}: there are {', '.join(model.layers[:-1])}.")
    lower = nn.ModuleList([model.backbone, model.pooling]) if layer == "pooled" else model.lower(layer)
    lower.requires_grad_(False)
    return list(lower.children())


def prewarm(head: nn.Module, features: np.ndarray, labels: np.ndarray, settings: TrainSettings) -> None:
    """Train a new head alone on cached features (n, feature_dim): SupCon, plain SGD, backbone frozen.

    References:
        Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning", pre-warm-up.
    """
    shape: Any = {"classes": settings.sampler.classes_per_batch, "images": settings.sampler.images_per_class}
    sampler = PKSampler(labels, **shape, seed=derive(settings.seed, "prewarm"), warn_if_fewer=False)
    steps = settings.head.prewarm_epochs * sampler.steps_per_epoch
    device, criterion = next(head.parameters()).device, SupConLoss()
    optimizer = torch.optim.SGD(head.parameters(), lr=settings.head.prewarm_lr)
    with Progress("Warming the head", steps) as bar:
        for step in range(1, steps + 1):
            rows = sampler.batch(step)
            x = pooling.unit(torch.from_numpy(np.array(features[rows], np.float32)).to(device))
            loss = criterion(pooling.unit(head(x)), torch.from_numpy(labels[rows]).to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bar.advance()
    optimizer.zero_grad()


class Source(Protocol):
    """Provides the views of a step and the center crops of an evaluation."""

    layer: str

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        """The views of this process's part (`mine`) of the joint batch `rows`."""
        ...

    def center(self, rows: np.ndarray) -> Tensor:
        """Center crops of any rows, for evaluation."""
        ...


class Rows:
    """An array over some rows of a table of `count` rows (None: over all), addressed by the table's row numbers."""

    def __init__(self, values: np.ndarray, rows: np.ndarray | None = None, count: int = 0) -> None:
        self.values, self.place = values, None
        if rows is not None:
            self.place = np.full(count, -1, np.int64)
            self.place[rows] = np.arange(len(rows))

    def at(self, rows: np.ndarray) -> np.ndarray:
        """Positions of table rows in `values`."""
        return rows if self.place is None else self.place[rows]


class CachedSource:
    """Outputs of a frozen layer, of the center crop and of some random views.

    A draw takes any view of an image, the center crop included; with `distinct` the views of one image in one step
    differ, as long as there are enough.

    Shape:
        - center: ``(rows, ...)``; random: ``(views, rows, ...)``, or None for the center crop only.
    """

    def __init__(
        self, layer: str, center: Rows, random: Rows | None, *, views: int = 1, distinct: bool = False, seed: int = 0
    ) -> None:
        if distinct and random is None and views > 1:
            raise LookalikeError(
                "The method compares views of an image, but with `views.num_cached` 0 they are all the same; "
                "set it to 1 or more."
            )
        self.layer, self.count, self.distinct, self.seed = layer, views, distinct, seed
        self._center, self._random = center, random

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        if self._random is None:
            return (self.center(rows[mine]),) * self.count
        rng = numpy_rng(self.seed, "views", step)
        pool = 1 + len(self._random.values)
        if self.distinct:
            order = np.tile(np.arange(pool), (len(rows), 1))
            rounds = [rng.permuted(order, axis=1) for _ in range(-(-self.count // pool))]
            picks = np.concatenate(rounds, axis=1).T[: self.count, mine]
        else:
            picks = rng.integers(0, pool, size=(self.count, len(rows)))[:, mine]
        return tuple(self._picked(self._random, rows[mine], pick) for pick in picks)

    def _picked(self, random: Rows, rows: np.ndarray, pick: np.ndarray) -> Tensor:
        values, middle = self._center.values, pick == 0
        out = np.empty((len(rows), *values.shape[1:]), values.dtype)
        out[middle] = values[self._center.at(rows[middle])]
        out[~middle] = random.values[pick[~middle] - 1, random.at(rows[~middle])]
        return torch.from_numpy(out)

    def center(self, rows: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self._center.values[self._center.at(rows)]))


class PixelSource:
    """Decoded images, augmented anew at every draw by a thread pool, one step ahead."""

    layer = PIXELS

    def __init__(self, pixels: Any, views: Sequence[Any], center: Any, *, seed: int = 0) -> None:
        self._pixels, self._views, self._center, self.seed = pixels, views, center, seed
        self._pool = ThreadPoolExecutor(threads(), thread_name_prefix="views")
        self._ahead: dict[int, list[Future[list[np.ndarray]]]] = {}
        self._serial = any(getattr(view, "serial", False) for view in views)  # drawn on the thread that trains

    def views(self, rows: np.ndarray, mine: slice, step: int) -> tuple[Tensor, ...]:
        if self._serial:
            images = [self._draw(int(rows[p]), step, p) for p in range(*mine.indices(len(rows)))]
        else:
            self.prepare(rows, mine, step)
            images = [future.result() for future in self._ahead.pop(step)]
        return tuple(torch.from_numpy(np.stack([p[v] for p in images])) for v in range(len(self._views)))

    def prepare(self, rows: np.ndarray, mine: slice, step: int) -> None:
        """Start to draw the views of a later step."""
        if step not in self._ahead and not self._serial:
            places = range(*mine.indices(len(rows)))
            self._ahead[step] = [self._pool.submit(self._draw, int(rows[p]), step, p) for p in places]

    def _draw(self, row: int, step: int, place: int) -> list[np.ndarray]:
        rng = numpy_rng(self.seed, "views", step, place)
        pixels = self._pixels.get(row)
        return [view(pixels, rng) for view in self._views]

    def center(self, rows: np.ndarray) -> Tensor:
        crops = self._pool.map(lambda row: self._center(self._pixels.get(int(row)), None), rows)
        return torch.from_numpy(np.stack(list(crops)))

    def close(self) -> None:
        """Give up the views of later steps."""
        self._pool.shutdown(wait=False, cancel_futures=True)
