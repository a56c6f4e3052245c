"""All settings of a training run: Python arguments, YAML recipes, `--set a.b=c` and the tables in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lookalike.core.settings import Settings, merge


class DataSettings(Settings):
    source: str = ""
    """The images: a folder, a table (CSV, Parquet), a list file or tar shards."""
    layout: str = "auto"
    """How the source is laid out; `auto` looks."""
    split: Literal["auto", "table", "classes", "halves", "images"] = "auto"
    """Who is tested on what. `table`: the table's own split column. `classes`: some classes, drawn at random, are
    kept for the test. `halves`: the first half of the classes trains, the second tests. `images`: some images
    of every class. `auto`: the table's split if it has one, else `classes`, else, with too few classes, `images`."""
    test: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Share of the classes (or images) kept for the test, where it is drawn at random."""
    validation: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Share of the training classes held out to choose the best step; 0: the last step is taken."""
    split_seed: int = 0
    """The draw of both; apart from the seed of the training."""
    max_bad: float = Field(default=0.05, ge=0.0, le=1.0)
    """The run fails when more than this share of the images cannot be read."""
    near: bool = True
    """Look for near duplicates before training."""


class ModelSettings(Settings):
    name: str = "efficientnet_lite0"
    """The starting model: a model or run folder, a default name, or any timm name."""
    weights: str | None = None
    """A local weight file for a timm name, or `random` for an untrained network; null: the model's own."""
    pooling: str | None = None
    """avg, max, avgmax, gem, cls; null: as the model comes."""
    size: PositiveInt | None = None
    """Pixels fed to the network; null: as the model comes."""
    crop: float | None = Field(default=None, gt=0.0, le=1.0)
    """Side of the center crop as a share of the short side; null: as the model comes."""
    freeze: str | None = None
    """The backbone up to this stage stays as it is (`stage2`); null: all of it is trained. Cached features imply it."""
    batch_norm: Literal["frozen", "train", "gathered", "split"] = "frozen"
    """Statistics of batch-norm layers: kept as they are, those of the batch, those of the joint batch over all
    processes, or those of each of `splits` parts of the batch. Scale and shift are trained in any case."""
    splits: PositiveInt = 8
    """Parts of a batch that `split` batch-norm looks at one by one."""


class HeadSettings(Settings):
    kind: Literal["pca", "random", "none"] = "pca"
    """How the head starts: the top directions of the training features, or at random; `none`: there is no head, the
    features themselves are the embedding."""
    dim: PositiveInt = 512
    """Numbers in an embedding."""
    norm: Literal["none", "bn", "mbn", "ln"] = "none"
    """A layer behind the head: batch-norm, momentum batch-norm or layer-norm of the embedding."""
    norm_reference: PositiveInt | None = None
    """`mbn`: the batch size m₀ whose noise is aimed at; null: twice the joint batch."""
    prewarm: NonNegativeInt = 0
    """Epochs in which a new head alone is trained before step 1: SupCon on the batch, plain SGD, backbone frozen."""
    prewarm_rate: PositiveFloat = 1e-3
    """Learning rate of that."""


class MethodSettings(pydantic.BaseModel):
    """`name` and the method's own settings beside it; checked by the method."""

    model_config = pydantic.ConfigDict(extra="allow", use_attribute_docstrings=True)

    name: str = "ms"
    """Which method trains: one of docs/methods.md."""

    def own(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class ViewSettings(Settings):
    mode: Literal["cached", "end_to_end"] = "cached"
    """`cached`: the backbone up to `layer` is frozen and its outputs are computed once; `end_to_end`: pixels."""
    layer: str = "pooled"
    """What is cached: `pooled` trains the head alone, `stage3` everything above stage 3."""
    count: NonNegativeInt = 0
    """Random views an image that are cached beside the center crop; each draw takes one of them all."""
    crop: Literal["resized", "plain"] = "resized"
    """`resized`: a random part of a random size and shape; `plain`: a square as large as the center crop, anywhere."""
    scale: tuple[PositiveFloat, PositiveFloat] = (0.3, 1.0)
    """`resized`: share of an image that a random crop covers, least and most."""
    flip: bool = True
    """Mirror at random."""
    jitter: NonNegativeFloat = 0.0
    """Change brightness, contrast and color at random by up to this share."""
    gray: float = Field(default=0.0, ge=0.0, le=1.0)
    """Chance of a view without colors."""
    blur: float = Field(default=0.0, ge=0.0, le=1.0)
    """Chance of a blurred view."""
    augment: str = ""
    """RandAugment: as timm has it (`rand-m9-mstd0.5`) or torchvision (`rand-tv9`); empty: none."""
    erase: float = Field(default=0.0, ge=0.0, le=1.0)
    """Chance that a random box of the view is painted over."""


class SamplerSettings(Settings):
    kind: Literal["pk", "shuffle"] = "pk"
    """`pk`: some classes with some images each; `shuffle`: all images in random order."""
    classes: PositiveInt = 32
    """Classes in a joint batch."""
    images: PositiveInt = 4
    """Images of each."""
    replacement: bool = False
    """Draw classes and images with replacement, as the authors of the shift curve do: a pair may be one image."""
    batch: PositiveInt = 128
    """Images in a joint batch of `shuffle`."""


class OptimiserSettings(Settings):
    kind: Literal["adamw", "sgd", "lars"] = "adamw"
    """`lars`: every matrix moves by the same share of its length; biases and norm layers as under `sgd`, undecayed."""
    rate: PositiveFloat = 3e-4
    """Learning rate of the backbone, and of the rest unless given."""
    head_rate: PositiveFloat | None = None
    """Learning rate of the head; null: `rate`."""
    loss_rate: PositiveFloat | None = None
    """Learning rate of what the method itself trains (proxies); null: ten times `rate`."""
    weight_decay: NonNegativeFloat = 1e-4
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Of `sgd` and `lars`."""


class ScheduleSettings(Settings):
    kind: Literal["cosine", "constant", "step"] = "cosine"
    """How the rates fall after the warm-up."""
    warmup: NonNegativeInt = 0
    """Steps over which the rates rise from 0."""
    still: NonNegativeInt = 0
    """Steps at the start in which the backbone stays as it is while the rest learns."""
    floor: float = Field(default=0.0, ge=0.0, le=1.0)
    """`cosine` ends at this share of the rate."""
    every: PositiveInt = 1000
    """`step`: steps between two falls."""
    factor: float = Field(default=0.33, gt=0.0, le=1.0)
    """`step`: what each fall multiplies the rates by."""


class LogSettings(Settings):
    every: PositiveInt = 10
    """Steps between two lines of the log."""
    tensorboard: bool = True
    drift_every: NonNegativeInt = 0
    """Steps between two readings of the drift meter (drift of the features, age of a memory's rows); 0: none."""
    wandb: str | None = None
    """Project to report to; null: nothing leaves the machine."""
    mlflow: str | None = None
    """Tracking address to report to; null: nothing leaves the machine."""


class TrainSettings(Settings):
    """Everything a run needs to be repeated."""

    data: DataSettings = Field(default_factory=DataSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    head: HeadSettings = Field(default_factory=HeadSettings)
    method: MethodSettings = Field(default_factory=MethodSettings)
    views: ViewSettings = Field(default_factory=ViewSettings)
    sampler: SamplerSettings = Field(default_factory=SamplerSettings)
    optimizer: OptimiserSettings = Field(default_factory=OptimiserSettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    steps: NonNegativeInt = 400
    """Steps of the optimizer."""
    accumulate: PositiveInt = 1
    """Micro-batches each process cuts its part of the joint batch into, to save memory; the gradient stays that of
    the joint loss, at the cost of embedding every image twice."""
    precision: Literal["f32", "bf16", "f16"] = "f32"
    """Of the network's forward pass; losses are always computed in f32."""
    clip: PositiveFloat | None = None
    """Largest norm of the gradient."""
    evaluate_every: PositiveInt = 50
    """Steps between two evaluations on the validation classes; a checkpoint is written at each."""
    metric: Literal["recall@1", "map@r", "r_precision"] = "recall@1"
    """What chooses the best step; of equal ones the better MAP@R."""
    early_stopping: PositiveInt | None = None
    """Stop after so many evaluations without a better one; null: never."""
    keep: Literal["better", "trained"] = "better"
    """Which model the run ends with: the trained one only if it is better than the starting model and than step 0, or
    the trained one in any case."""
    seed: int = 0
    device: str = "auto"
    processes: PositiveInt = 1
    logs: LogSettings = Field(default_factory=LogSettings)


def resolve(*layers: Mapping[str, Any], where: str = "training settings") -> TrainSettings:
    """Settings laid over each other, the last on top, checked down to the method's own.

    A layer that names another method than the one below drops that one's own settings and brings in
    what suits the new one.
    """
    from lookalike import methods

    joined: dict[str, Any] = {}
    for layer in layers:
        chosen = _method_name(layer)
        if chosen is not None and chosen != _method_name(joined):
            joined = {**joined, "method": {}}
            joined = merge(joined, methods.find(chosen).default_overrides)
        joined = merge(joined, spelled_out(layer))
    settings = TrainSettings.parse(joined, where)
    method = methods.find(settings.method.name)
    own = method.Settings.parse(settings.method.own(), f"settings of the method {settings.method.name}")
    settings.method = MethodSettings(name=settings.method.name, **own.model_dump(mode="json"))
    return settings


def spelled_out(layer: Mapping[str, Any]) -> dict[str, Any]:
    """`method: supcon` is short for `method: {name: supcon}`, and `memory: …` for `method: {memory: …}`."""
    out = {k: {"name": v} if k == "method" and isinstance(v, str) else v for k, v in layer.items() if k != "memory"}
    return merge(out, {"method": {"memory": layer["memory"]}}) if "memory" in layer else out


def _method_name(layer: Mapping[str, Any]) -> str | None:
    method = layer.get("method")
    return method if isinstance(method, str) else method.get("name") if isinstance(method, Mapping) else None
