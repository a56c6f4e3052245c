"""Settings of DMCAC."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from lookalike.core.settings import Settings


class WeightSettings(Settings):
    divergence: NonNegativeFloat = 1.0
    """Of how much the views' retrievals disagree (β_frob)."""
    classes: NonNegativeFloat = 1.0
    """Of classifying each view by itself (β_ce)."""
    attention: NonNegativeFloat = 1.0
    """Of classifying each view by what it attends to (β_cac)."""


class RefreshSettings(Settings):
    every: PositiveInt = 50
    """The database is embedded anew after so many steps or epochs; the paper has 15 epochs."""
    unit: Literal["steps", "epochs", "never"] = "steps"
    """What `every` counts; `never`: the database stays as the starting model has it."""


class DMCACSettings(Settings):
    views: PositiveInt = 6
    """Views of each query (A); the first is not augmented."""
    k: PositiveInt = 12
    """Database rows that each view retrieves; the union over a query's views is what is compared."""
    temperature: PositiveFloat = 0.1
    """τ of the divergence. At the paper's 1 its gradient is a thousandth of the others' and the term does nothing."""
    weights: WeightSettings = Field(default_factory=WeightSettings)
    """Of the three terms."""
    full: Literal["no", "constants", "gradient"] = "no"
    """Instead of what was retrieved take the whole database: as constants, or embedded anew at every step and learning
    too."""
    retriever: Literal["exact", "faiss", "hnsw", "store"] = "exact"
    """What retrieves: every row by blocks, faiss (exact), faiss with a graph, or the `store` that serves searches."""
    store: str = "qdrant"
    """Which store that is."""
    share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Share of each class's training images that is the database."""
    split_seed: int = 0
    """The draw of the database; apart from the seed of the training."""
    column: str | None = None
    """A column of the table that says `query` or `database` for every training image, instead of that draw."""
    unanswered: bool = False
    """Allow query classes without an image in the database of your own."""
    refresh: RefreshSettings = Field(default_factory=RefreshSettings)
    """When the database is embedded anew."""
    distance: Literal["js", "cosine"] = "js"
    """How views are compared: by what they retrieve, or just by 1 − cosine."""
    head_input: Literal["unit", "raw"] = "unit"
    """What classifiers and attention are given: embeddings of length one, as the paper has it, or as long as the
    network makes them (not with `full: gradient`). Their learning rate is `optimizer.loss_lr`."""
    start: Literal["linear", "identity"] = "linear"
    """How the attention's matrices start."""
    first_view: Literal["crop", "center"] = "crop"
    """The first view end to end: a random crop without augmentation, or the center crop. Cached views are all drawn
    from one pool."""
    maps: list[PositiveInt] = [5, 100]  # noqa: RUF012 (pydantic copies it)
    """Steps at which attention by class is kept for the report."""
    show: list[str] = []  # noqa: RUF012
    """Training images whose retrievals the report shows (the end of their path is enough); none: a few at random."""

    @field_validator("head_input")
    @classmethod
    def _exact(cls, value: str, info: ValidationInfo) -> str:
        if value == "raw" and info.data.get("full") == "gradient":
            raise ValueError(
                "a database's lengths are constants, so `full: gradient` would not be exact; leave it at unit"
            )
        return value
