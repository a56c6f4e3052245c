"""Settings of an adaptation. Those of the paper's runs and of baselines are recipes (`configs/adapt`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pydantic import Field

from lookalike.core.settings import Settings, merge
from lookalike.training import recipe
from lookalike.training.which_method import measured_choice

Method = Literal["t3ar", "adacontrast", "shot", "tent", "mcc", "finetune", "bn", "source"]
METHODS: tuple[str, ...] = get_args(Method)
_UNMEASURED = {
    "prototypes": ("shot", "not measured with a gallery; it is the choice for classifiers, as which prototypes serve"),
    "labels": ("t3ar", "not measured with labels; its contrastive term is added to their cross entropy"),
}


def default_method(kind: str) -> tuple[str, str]:
    """What `adapt` runs without --method, and why.

    Args:
        kind: Where the classes come from: `classifier`, `clusters`, `prototypes` or `labels`.
    """
    return _UNMEASURED.get(kind) or measured_choice("adapt", kind)


class BankSettings(Settings):
    """The memory bank of T3AR."""

    size: int | None = Field(default=None, ge=1)
    """Entries of the memory bank, target and pool images together; null: as many as a quarter of the run enqueues, but
    at least 5 and at most 21 steps of it (the paper's banks turn over in 5 to 21 steps)."""
    view: Literal["weak", "strong"] = "weak"
    """The view whose features are stored for target images (the paper's text says weak, its figure strong)."""
    label: Literal["aggregated", "enqueued"] = "aggregated"
    """The class by which entries are excluded: that of all entries of the image now, or as it was when enqueued."""
    mean_of: Literal["logits", "probabilities"] = "logits"
    """What is averaged over the entries of one image."""


class LabelSettings(Settings):
    """Pseudo-labels."""

    refine: Literal["knn", "comatch", "self", "none"] = "knn"
    """How pseudo-labels are refined by neighbors."""
    k: int = Field(default=10, ge=1)
    """Number of neighbors that vote."""
    dedupe: bool = True
    """Each image votes once, however many entries it has."""
    self_vote: bool = False
    """The image's own entries vote as well."""


class ContrastSettings(Settings):
    """The contrastive term."""

    temperature: float = Field(default=0.07, gt=0)
    """Temperature of the softmax."""
    keys: Literal["batch", "bank", "momentum", "xbn"] = "momentum"
    """What the batch is contrasted with beside retrieved images: its own keys (`batch`); the bank as it was before the
    batch (`bank`); its own keys and a bank of keys of a momentum encoder (`momentum`, see `key_momentum`), or a bank
    whose entries are matched to the moments of the batch (`xbn`)."""
    pool_set: Literal["own", "all", "others", "positive", "none"] = "own"
    """Pool images used as negatives: those retrieved for the image, all, all others; or as positives; or none."""
    pool_current: bool = True
    """Use retrieved images in the step they are loaded in."""
    exclusion: Literal["none", "pseudo", "score", "rank"] = "pseudo"
    """Retrieved images that are excluded: those predicted as the same class, the most similar, or the first."""
    exclusion_score: float = 0.9
    """`exclusion: score`: similarity from which images are excluded."""
    exclusion_rank: int = 1
    """`exclusion: rank`: number of excluded images."""
    exclude_class: bool = True
    """Target entries of the same class are not negatives."""
    positive_key: Literal["weak", "strong"] = "weak"
    """The positive: the weak view, or a second strong one."""


class WeightSettings(Settings):
    """Weights of the loss terms."""

    labels: float = 1.0
    """Weight of the cross entropy of (pseudo-)labels."""
    contrast: float = 1.0
    """Weight of the contrastive term; 0.1 with labels, unless this or a recipe is given."""
    diversity: float = 1.0
    """Weight of the diversity term; without labels only."""


class AdaptSettings(Settings):
    """All settings of `lookalike adapt`.

    Example:
        >>> from lookalike.adaptation import AdaptSettings
        >>> settings = AdaptSettings(method="shot", lr=1e-3, bank={"size": 512})
        >>> settings.bank.size, settings.num_neighbors
        (512, 2)
    """

    method: Method = "t3ar"
    """The adaptation method, each with its authors' constants."""
    num_neighbors: int = Field(default=2, ge=0)
    """Pool images retrieved for each target image."""
    retrieval: Literal["nearest", "random"] = "nearest"
    """Retrieve the nearest pool images, or as many random ones for each image."""
    copy_threshold: float = 0.98
    """Pool images at least this similar to a target image count as copies of it and are not used for it."""
    layer: str = "auto"
    """Layers below this stage are frozen and computed once; `pixels` trains all layers, `auto` half of the stages."""
    batch_size: int = Field(default=32, ge=2)
    """Target images in a step."""
    accumulation_steps: int = Field(default=1, ge=1)
    """Parts in which the images of a step are embedded, to save memory; the loss is that of the whole batch."""
    steps: int = Field(default=60, ge=1)
    """Total number of steps."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the target images, in place of `steps`."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of the backbone."""
    head_lr_factor: float = 10.0
    """Factor of the learning rate of head and classifier."""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD with momentum, or Adam as in TENT."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov momentum, as the authors of SHOT, MCC and AdaContrast use."""
    weight_decay: float = 1e-4
    """Weight decay."""
    warmup_epochs: float = 0.0
    """Epochs of linear warm-up."""
    warmup_start_lr: float | None = Field(default=None, ge=0)
    """Learning rate of the first step of the warm-up; null: one step above 0."""
    min_lr: float = Field(default=0.0, ge=0)
    """Learning rate at the end of the cosine schedule."""
    lr_schedule: Literal["cosine", "inverse", "inverse_steps", "constant"] = "cosine"
    """Learning-rate decay: cosine, (1 + 10t)^-0.75 as in SHOT, (1 + steps/1000)^-0.75 as in MCC, or none of them."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    """`finetune`: label smoothing."""
    late_labels: bool = False
    """`shot`: pseudo-labels are used only once they were computed a second time, as its authors do on VisDA-C."""
    mixup: float = Field(default=0.0, ge=0)
    """`finetune`: mixup with weights from Beta(mixup, mixup); 0: none."""
    batch_norm: Literal["keep", "frozen", "target-train"] = "keep"
    """Batch-norm statistics: the model's own (`keep`), the target's, computed once (`frozen`), or those of each batch
    (`target-train`; pool images and weak views are normalized by the running ones)."""
    num_views: int = Field(default=4, ge=1)
    """Cached strong views of every image; half as many weak ones."""
    cls_view: Literal["strong", "weak"] = "strong"
    """The view that is classified: against pseudo-labels, or with `finetune` against the labels."""
    diversity_scope: Literal["batch", "ema", "off"] = "batch"
    """Scope of the mean prediction in the diversity term."""
    stream: bool = False
    """Process the images once, in the order of their names, as they would arrive from a camera."""
    key_momentum: float = Field(default=0.95, ge=0, le=1)
    """Momentum of the key network (adacontrast, and t3ar with contrast.keys=momentum); long runs need more."""
    confusion_temperature: float = 2.5
    """`mcc`: temperature."""
    held_out_fraction: float = Field(default=0.3, gt=0, lt=1)
    """Fraction of the target images that is held out for the gate."""
    processes: int = Field(default=1, ge=1)
    """Number of processes that adapt together."""
    bank: BankSettings = BankSettings()
    labels: LabelSettings = LabelSettings()
    contrast: ContrastSettings = ContrastSettings()
    weights: WeightSettings = WeightSettings()

    @property
    def retrieves(self) -> bool:
        """Whether pool images are used."""
        return self.method == "t3ar" and self.contrast.pool_set != "none" and self.num_neighbors > 0


def resolve(config: str | None, *layers: Mapping[str, Any]) -> AdaptSettings:
    """Merge the defaults, a recipe and further settings, and validate them.

    A baseline without a recipe gets its authors' constants, not T3AR's. A layer that sets `steps` overrides `epochs`.

    Args:
        config: Name of a recipe for `adapt`, or a YAML file; None: that of the method, if there is one.
        layers: Nested settings; later ones override earlier ones.

    Returns:
        The complete settings.
    """
    if config is None:
        method = merge({}, *layers).get("method")
        config = method if method in recipe.names("adapt") else None
    merged = recipe.load(config, "adapt") if config else {}
    for layer in layers:
        if layer.get("steps") is not None and "epochs" not in layer:
            merged = {**merged, "epochs": None}
        merged = merge(merged, layer)
    return AdaptSettings.parse(merged, "settings of adapt")


@dataclass(frozen=True)
class AdaptRequest:
    """What an adaptation was requested with, so that it can be repeated."""

    settings: AdaptSettings
    labeled: bool = False
    gallery: str | None = None
    clusters: int | None = None
    judge: str | None = None
    source: str | None = None
    retriever: str | None = None
    expert: str | None = None
    pool: list[str] = field(default_factory=list)
    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    why: str = ""
    """Why this method."""
    seed: int = 0
    device: str = "auto"
    engine: str = "local"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> AdaptRequest:
        return cls(**{**document, "settings": AdaptSettings.parse(document["settings"])})
