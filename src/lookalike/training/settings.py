"""All settings of a training run: Python arguments, YAML recipes, `--set a.b=c` and the tables in the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings, dotted_names, merge


class DataSettings(Settings):
    """Which images a run reads and how they are split."""

    source: str = ""
    """The images: a folder, a table (CSV, Parquet), a list file or tar shards."""
    layout: str = "auto"
    """Layout of the source; `auto` detects it."""
    split: Literal["auto", "table", "classes", "halves", "images"] = "auto"
    """How the test set is split off. `table`: the table's own split column. `classes`: some classes, drawn at random.
    `halves`: the first half of the classes trains, the second is the test set. `images`: some images of every class.
    `auto`: the table's split if it has one, else `classes`, else, with too few classes, `images`."""
    test_fraction: float = Field(default=0.3, ge=0.0, lt=1.0)
    """Fraction of the classes (or images) in the test set, where it is drawn at random."""
    validation_fraction: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Fraction of the training classes held out to select the best step; with 0 the last step is used."""
    split_seed: int = 0
    """Seed of both splits, independent of the seed of the training."""
    max_unreadable: float = Field(default=0.05, ge=0.0, le=1.0)
    """The run fails if more than this fraction of the images, and more than one, cannot be read."""
    near_duplicates: bool = True
    """Search for near duplicates before training."""


class ModelSettings(Settings):
    """The starting model and what of its backbone is trained."""

    name: str = "efficientnet_lite0"
    """The starting model: a model or run folder, a default name, or any timm name."""
    weights: str | None = None
    """A local weight file for a timm name, or `random` for an untrained network; null: the model's own."""
    pooling: str | None = None
    """avg, max, avgmax, gem, cls; null: the model's own."""
    size: PositiveInt | None = None
    """Input size in pixels; null: the model's own."""
    crop: float | None = Field(default=None, gt=0.0, le=1.0)
    """Side of the center crop as a fraction of the short side; null: the model's own."""
    freeze: str | None = None
    """Freeze the backbone up to this stage (`stage2`); null: all of it is trained. Cached features imply it."""
    batch_norm: Literal["frozen", "train", "gathered", "split"] = "frozen"
    """Statistics of batch-norm layers: the running ones (`frozen`), those of the batch (`train`), those of the joint
    batch over all processes (`gathered`), or those of each of `batch_norm_splits` parts of the batch (`split`). Scale
    and shift are trained in any case."""
    batch_norm_splits: PositiveInt = 8
    """Number of parts of a batch that `split` batch-norm normalizes separately."""


class HeadSettings(Settings):
    """The embedding head on top of the backbone."""

    kind: Literal["pca", "random", "none"] = "pca"
    """Initialization of the head: the principal components of the training features, or random weights; `none`: no
    head, the features themselves are the embedding."""
    embedding_dim: PositiveInt = 512
    """Embedding dimension."""
    norm: Literal["none", "bn", "mbn", "ln"] = "none"
    """Layer after the head: batch-norm, momentum batch-norm or layer-norm of the embedding."""
    norm_batch_size: PositiveInt | None = None
    """`mbn`: the ideal batch size m₀ whose noise level is matched; null: twice the joint batch."""
    prewarm_epochs: NonNegativeInt = 0
    """Epochs that train a new head alone before step 1: SupCon on the batch, plain SGD, backbone frozen."""
    prewarm_lr: PositiveFloat = 1e-3
    """Learning rate of the pre-warm-up."""


class MethodSettings(pydantic.BaseModel):
    """`name` and the method's own settings next to it; validated by the method."""

    model_config = pydantic.ConfigDict(extra="allow", use_attribute_docstrings=True)

    name: str = "ms"
    """The training method: one of docs/methods.md."""

    def own(self) -> dict[str, Any]:
        """The method's own settings, without `name`."""
        return dict(self.model_extra or {})


class ViewSettings(Settings):
    """What a step sees of an image: cached features or augmented pixels."""

    mode: Literal["cached", "end_to_end"] = "cached"
    """`cached`: the backbone up to `layer` is frozen and its outputs are computed once; `end_to_end`: pixels."""
    layer: str = "pooled"
    """The cached layer: `pooled` trains the head alone, `stage3` everything above stage 3."""
    num_cached: NonNegativeInt = 0
    """Random views of an image that are cached in addition to the center crop; each draw picks one of them all."""
    crop: Literal["resized", "plain"] = "resized"
    """`resized`: a random crop of random size and aspect ratio; `plain`: a random crop as large as the center crop."""
    scale: tuple[PositiveFloat, PositiveFloat] = (0.3, 1.0)
    """`resized`: smallest and largest fraction of the image's area that a crop covers."""
    flip: bool = True
    """Flip horizontally with probability 0.5."""
    color_jitter: NonNegativeFloat = 0.0
    """Strength of the random change of brightness, contrast and color."""
    grayscale: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability of a grayscale view."""
    blur: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability of a blurred view."""
    rand_augment: str = ""
    """RandAugment in timm's notation (`rand-m9-mstd0.5`) or torchvision's (`rand-tv9`); empty: none."""
    random_erasing: float = Field(default=0.0, ge=0.0, le=1.0)
    """Probability that a random box of the view is erased."""


class SamplerSettings(Settings):
    """How the images of a batch are drawn."""

    kind: Literal["pk", "shuffle"] = "pk"
    """`pk`: some classes with some images each; `shuffle`: all images in random order."""
    classes_per_batch: PositiveInt = 32
    """`pk`: classes in a joint batch."""
    images_per_class: PositiveInt = 4
    """`pk`: images of each class."""
    replacement: bool = False
    """Draw classes and images with replacement, as the authors of the shift curve do: a pair may be one image."""
    batch_size: PositiveInt = 128
    """`shuffle`: images in a joint batch."""

    @property
    def size(self) -> int:
        """Images in a joint batch."""
        return self.classes_per_batch * self.images_per_class if self.kind == "pk" else self.batch_size


class OptimizerSettings(Settings):
    """Optimizer and learning rates."""

    kind: Literal["adamw", "adam", "sgd", "lars"] = "adamw"
    """`adam` adds the weight decay to the gradient; `lars` scales the update of every weight matrix to its norm, and
    updates biases and norm layers as `sgd` does, without weight decay."""
    lr: PositiveFloat = 3e-4
    """Learning rate of the backbone, and of everything else unless set."""
    head_lr: PositiveFloat | None = None
    """Learning rate of the head; null: `lr`."""
    loss_lr: PositiveFloat | None = None
    """Learning rate of the method's own parameters (proxies); null: ten times `lr`."""
    weight_decay: NonNegativeFloat = 1e-4
    """Weight decay."""
    momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Momentum of `sgd` and `lars`."""
    nesterov: bool = False
    """Nesterov momentum of `sgd`."""


class ScheduleSettings(Settings):
    """Learning-rate schedule."""

    kind: Literal["cosine", "constant", "step", "inverse", "inverse_steps"] = "cosine"
    """Decay of the learning rates after the warm-up; `inverse`: (1 + 10t)^-0.75 with t from 0 to 1, as in SHOT;
    `inverse_steps`: (1 + steps/1000)^-0.75, as in MCC."""
    warmup_steps: NonNegativeInt = 0
    """Steps of linear warm-up from 0."""
    warmup_start_ratio: float | None = Field(default=None, ge=0.0, le=1.0)
    """Fraction of the learning rate that the warm-up starts from; null: one step above 0."""
    freeze_backbone_steps: NonNegativeInt = 0
    """Steps at the start in which the backbone is frozen while the rest is trained."""
    min_lr_ratio: float = Field(default=0.0, ge=0.0, le=1.0)
    """`cosine` ends at this fraction of the learning rate."""
    step_size: PositiveInt = 1000
    """`step`: steps between two decays."""
    gamma: float = Field(default=0.33, gt=0.0, le=1.0)
    """`step`: factor of each decay."""


class LogSettings(Settings):
    """What is logged, how often, and where to."""

    every_n_steps: PositiveInt = 10
    """Steps between two rows of the log."""
    tensorboard: bool = True
    """Write TensorBoard event files into the run folder."""
    knn_images: PositiveInt | None = 10_000
    """Training images that vote in the k-NN accuracy of pretraining, a random sample; null: all."""
    test_classes: NonNegativeInt = 0
    """Also measure recall@1 on the first so many test classes at every evaluation, as a learning curve by which nothing
    is chosen."""
    drift_every_n_steps: NonNegativeInt = 0
    """Steps between two measurements of feature drift and of the staleness of a memory; 0: none."""
    wandb: str | None = None
    """Weights & Biases project to report to; null: nothing leaves the machine."""
    mlflow: str | None = None
    """MLflow tracking address to report to; null: nothing leaves the machine."""


class TrainSettings(Settings):
    """All settings of a training run.

    The fields are the settings of recipes, of `--set NAME=VALUE`, and of `settings=` of :func:`lookalike.train`.

    Example:
        >>> from lookalike.training import TrainSettings
        >>> settings = TrainSettings(steps=20, optimizer={"lr": 1e-4})
        >>> settings.optimizer.lr, settings.head.embedding_dim
        (0.0001, 512)
    """

    data: DataSettings = Field(default_factory=DataSettings)
    model: ModelSettings = Field(default_factory=ModelSettings)
    head: HeadSettings = Field(default_factory=HeadSettings)
    method: MethodSettings = Field(default_factory=MethodSettings)
    views: ViewSettings = Field(default_factory=ViewSettings)
    sampler: SamplerSettings = Field(default_factory=SamplerSettings)
    optimizer: OptimizerSettings = Field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = Field(default_factory=ScheduleSettings)
    steps: NonNegativeInt = 400
    """Optimizer steps."""
    accumulation_steps: PositiveInt = 1
    """Micro-batches that each process splits its part of the joint batch into, to save memory; the gradient is still
    that of the joint loss, at the cost of embedding every image twice."""
    precision: Literal["f32", "bf16", "f16"] = "f32"
    """Precision of the network's forward pass; losses are always computed in f32."""
    max_grad_norm: PositiveFloat | None = None
    """Clip the gradient to this norm; null: no clipping."""
    evaluate_every: PositiveInt = 50
    """Steps between two evaluations on the validation classes; a checkpoint is written at each."""
    metric: Literal["recall@1", "map@r", "r_precision"] = "recall@1"
    """Metric that selects the best step; ties are broken by MAP@R."""
    early_stopping: PositiveInt | None = None
    """Stop after this many evaluations without improvement; null: never."""
    keep: Literal["better", "trained"] = "better"
    """The model the run ends with: the trained one only if it is better than the starting model and than step 0, or
    the trained one in any case."""
    seed: int = 0
    """Seed of everything random but the split."""
    device: str = "auto"
    """Device to train on; `auto` selects the best one."""
    processes: PositiveInt = 1
    """Number of processes that train together."""
    log: LogSettings = Field(default_factory=LogSettings)
    objects: dict[str, str] = Field(default_factory=dict)
    """Classes of the objects that `train` was given in Python, by argument; a resume needs the same objects."""


def resolve(*layers: Mapping[str, Any], where: str = "training settings") -> TrainSettings:
    """Merge layers of settings and validate them, including the method's own.

    A layer that names another method than the layer below it drops that method's own settings and brings in the
    defaults of the new method.

    Args:
        layers: Nested settings; later ones override earlier ones.
        where: What the settings are called in error messages.

    Returns:
        The complete settings.

    Raises:
        LookalikeError: If a name is unknown or a value is invalid.

    Example:
        >>> from lookalike.training import resolve
        >>> settings = resolve({"method": "supcon", "steps": 5}, {"optimizer": {"lr": 0.01}})
        >>> settings.method.name, settings.steps, settings.optimizer.lr
        ('supcon', 5, 0.01)
    """
    from lookalike import methods

    merged: dict[str, Any] = {}
    for layer in layers:
        name = method_name(layer)
        if name is not None and name != method_name(merged):
            merged = {**merged, "method": {}}
            merged = merge(merged, methods.find(name).default_overrides)
        merged = merge(merged, expand_shorthand(layer))
    settings = TrainSettings.parse(merged, where)
    method = methods.find(settings.method.name)
    for name in settings.method.own():
        if name not in method.Settings.model_fields:
            _check_owner(name, settings.method.name)
    own = method.Settings.parse(settings.method.own(), f"settings of the method {settings.method.name}")
    settings.method = MethodSettings(name=settings.method.name, **own.model_dump(mode="json"))
    return settings


def _check_owner(setting: str, method: str) -> None:
    """Raise if a setting is one of other methods only, and name them."""
    from lookalike import methods

    owners: dict[str, str] = {}
    for name in (method, *methods.BUILT_IN):
        places = [place for place in dotted_names(methods.find(name).Settings) if place.split(".")[-1] == setting]
        owners |= {name: places[0]} if places else {}
    if owners and method not in owners:
        place, named = next(iter(owners.values())), ", ".join(owners)
        raise LookalikeError(
            f"`{setting}` is not one of the settings of the method {method}; `{place}` is one of {named}."
        )


def expand_shorthand(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Expand `method: supcon` to `method: {name: supcon}`, and `memory: …` to `method: {memory: …}`."""
    out = {k: {"name": v} if k == "method" and isinstance(v, str) else v for k, v in layer.items() if k != "memory"}
    return merge(out, {"method": {"memory": layer["memory"]}}) if "memory" in layer else out


def method_name(layer: Mapping[str, Any]) -> str | None:
    """The method that a layer of settings names, as `method: NAME` or `method: {name: NAME}`; None if it names none."""
    method = layer.get("method")
    return method if isinstance(method, str) else method.get("name") if isinstance(method, Mapping) else None
