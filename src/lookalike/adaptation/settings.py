"""Settings of an adaptation. Those of the paper's runs and of baselines are recipes (`configs/adapt`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from lookalike.core.settings import Settings, merge
from lookalike.training import recipe

METHODS = ("t3ar", "adacontrast", "shot", "tent", "mcc", "on_target", "finetune", "bn", "source")


class Bank(Settings):
    size: int = Field(default=16384, ge=1)
    """Entries of the memory bank, of the target and of the pool together."""
    view: Literal["weak", "strong"] = "weak"
    """Which view's features of target images are kept (the paper's text says weak, its figure strong)."""
    label: Literal["aggregated", "enqueued"] = "aggregated"
    """The class by which entries are left out: of the image's entries now, or as it was when enqueued."""
    mean_of: Literal["logits", "probabilities"] = "logits"
    """What is averaged over the entries of one image."""


class Labels(Settings):
    refine: Literal["knn", "comatch", "self", "none"] = "knn"
    """How pseudo-labels are made of neighbors."""
    k: int = Field(default=10, ge=1)
    """Neighbors that vote."""
    dedupe: bool = True
    """Every image votes once, however many entries it has."""
    self_vote: bool = False
    """An image's own entries may vote."""


class Contrast(Settings):
    tau: float = Field(default=0.07, gt=0)
    """Temperature."""
    pool_set: Literal["own", "all", "others", "positive", "none"] = "own"
    """Which pool images are negatives: those retrieved for the image, all, all others; or positives; or none."""
    pool_current: bool = True
    """Retrieved images count in the very step they are loaded in."""
    exclusion: Literal["none", "pseudo", "score", "rank"] = "pseudo"
    """Retrieved images that are left out: those the model takes for the same class, the most alike, or the first."""
    exclusion_score: float = 0.9
    """With `exclusion: score`, from this likeness on."""
    exclusion_rank: int = 1
    """With `exclusion: rank`, so many."""
    exclude_class: bool = True
    """Target entries of the same class are no negatives."""
    positive_key: Literal["weak", "strong"] = "weak"
    """The positive is the weak view, or a second strong one."""


class Weights(Settings):
    labels: float = 1.0
    """Weight of the pseudo-labels' (or labels') cross entropy."""
    contrast: float = 1.0
    """Weight of the contrastive term. With labels it is 0.1 where neither this nor a configuration is given."""
    diversity: float = 1.0
    """Weight of the diversity term; without labels only."""


class AdaptSettings(Settings):
    """All settings of `lookalike adapt`."""

    method: Literal["t3ar", "adacontrast", "shot", "tent", "mcc", "on_target", "finetune", "bn", "source"] = "t3ar"
    """What adapts; all but t3ar are baselines under the same loop."""
    neighbors: int = Field(default=2, ge=0)
    """Pool images retrieved for each target image."""
    retrieval: Literal["nearest", "random"] = "nearest"
    """The nearest, or as many drawn at random for each image."""
    near_copy: float = 0.98
    """Pool images at least this like a target image count as copies of it and are not used for it."""
    layer: str = "auto"
    """Layers below this stage are computed once and stay; `pixels` trains all of it, `auto` half of the stages."""
    batch: int = Field(default=64, ge=1)
    """Target images in a step."""
    epochs: int = Field(default=15, ge=1)
    """Passes over the target."""
    steps: int | None = Field(default=None, ge=1)
    """Steps in all, where passes should not count."""
    rate: float = Field(default=1e-3, ge=0)
    """Learning rate of the backbone. T3AR without labels has 3e-5 where neither this nor a configuration is given."""
    head_factor: float = 10.0
    """Head and classifier learn so many times faster."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with Nesterov's momentum, or Adam as TENT's."""
    momentum: float = 0.9
    """Of SGD; the first moment of Adam."""
    weight_decay: float = 1e-4
    warmup: float = 0.0
    """Epochs of linear warm-up."""
    first_rate: float = Field(default=0.0, ge=0)
    """Where the warm-up begins."""
    last_rate: float = Field(default=0.0, ge=0)
    """Where the cosine ends."""
    decay: Literal["cosine", "inverse", "steps", "none"] = "cosine"
    """The rate's way down: by a cosine, (1 + 10t)^-0.75 as SHOT's, (1 + steps/1000)^-0.75 as MCC's, or not at all."""
    smoothing: float = Field(default=0.0, ge=0, lt=1)
    """With `finetune`, the share of each label that is spread over all classes."""
    late_labels: bool = False
    """With `shot`, pseudo-labels count only once they were found a second time, as its authors do on VisDA-C."""
    mixup: float = Field(default=0.0, ge=0)
    """With `finetune`, images are mixed in pairs, by shares of Beta(mixup, mixup); 0 for none."""
    batch_norm: Literal["keep", "frozen", "target-train", "shared-stats"] = "keep"
    """Statistics: those the model came with; the target's, taken once; of each batch; the same for the pool too."""
    views: int = Field(default=4, ge=1)
    """Cached strong views of every image; half as many weak ones."""
    cls_view: Literal["strong", "weak"] = "strong"
    """The view that learns the pseudo-labels, or with `finetune` the labels."""
    div_scope: Literal["batch", "ema", "off"] = "batch"
    """Over what the diversity term takes its mean prediction."""
    reforward: bool = False
    """Features for the bank are computed again after the step."""
    stream: bool = False
    """Images come once, in the order of their names, as they would from a camera."""
    key_momentum: float = Field(default=0.999, ge=0, le=1)
    """With `adacontrast`, what its second network keeps of itself in a step; short runs need less."""
    compat: bool = False
    """AdaContrast with what its code does by mistake, for comparison."""
    student: str = "resnet18"
    """The untrained network that `on_target` teaches."""
    rounds: int = Field(default=2, ge=1)
    """Students in a row, with `on_target`."""
    confusion_temperature: float = 2.5
    """MCC's temperature."""
    held_out: float = Field(default=0.3, gt=0, lt=1)
    """The share of the target kept aside to judge by."""
    exact_search: int = Field(default=500_000, ge=0)
    """Pools up to this many images are searched exactly, larger ones by cells at a recall of 0.97."""
    processes: int = Field(default=1, ge=1)
    """How many processes adapt together."""
    save_every: int = Field(default=100, ge=1)
    """Steps from one checkpoint to the next; `adapt --resume` goes on from the last."""
    bank: Bank = Bank()
    labels: Labels = Labels()
    contrast: Contrast = Contrast()
    weights: Weights = Weights()


def resolve(config: str | None, *layers: Mapping[str, Any]) -> AdaptSettings:
    """The settings: the defaults, a recipe over them (a name, or a YAML file), and what the user says on top.

    A baseline without a recipe has its authors' own constants, not T3AR's.
    """
    if config is None:
        method = merge({}, *layers).get("method")
        config = method if method in recipe.names("adapt") else None
    base = recipe.load(config, "adapt") if config else {}
    return AdaptSettings.parse(merge(base, *layers), "settings of adapt")
