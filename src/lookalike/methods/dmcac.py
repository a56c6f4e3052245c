"""DMCAC: train the embedding against the database it will search.

Some training images are the database, the others are queries in several views: the views' retrievals should agree, and
attention to the retrieved images should predict the query's class. The terms are in :mod:`lookalike.losses.dmcac`, the
report in `dmcac_report.py`. See docs/design/dmcac.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lookalike.core import distributed, seeds
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.core.settings import Settings
from lookalike.data.augmentation import CenterView
from lookalike.data.table import Table
from lookalike.losses import dmcac as losses
from lookalike.memory.queue import WatchedRows
from lookalike.memory.retriever import RecallCheckedRetriever, Retriever, make_retriever
from lookalike.methods.base import Batch, Context, Method, ReportContext
from lookalike.methods.collapse import mean_cosine
from lookalike.methods.dmcac_report import MAX_CLASSES, MAX_QUERIES, ClassMaps, class_maps, find_row, report_sections

COLLAPSED = 0.98  # mean cosine of the first views of a batch
MAX_NAMED = 5  # classes listed in a message


class WeightSettings(Settings):
    """Weights of the three terms (eq. 20)."""

    divergence: NonNegativeFloat = 1.0
    """Weight β_frob of the divergence between the views' retrievals."""
    classes: NonNegativeFloat = 1.0
    """Weight β_ce of the classification of each view."""
    attention: NonNegativeFloat = 1.0
    """Weight β_cac of the classification by cross-attention."""


class RefreshSettings(Settings):
    """When the database is embedded again."""

    every: PositiveInt = 50
    """Steps or epochs between two refreshes; the paper has 15 epochs."""
    unit: Literal["steps", "epochs", "never"] = "steps"
    """Unit of `every`; `never`: the database stays as embedded by the starting model."""


class DMCACSettings(Settings):
    """Settings of DMCAC."""

    views: PositiveInt = 6
    """Views of each query, A; the first is not augmented."""
    k: PositiveInt = 12
    """Database images that each view retrieves; the terms are over the union of a query's views."""
    temperature: PositiveFloat = 0.1
    """Temperature τ of the divergence. At the paper's 1 its gradient is a thousandth of the others', without effect."""
    weights: WeightSettings = Field(default_factory=WeightSettings)
    """Weights of the three terms."""
    full: Literal["no", "constants", "gradient"] = "no"
    """Use the whole database instead of the retrieved images: as constants, or embedded at every step with gradient."""
    retriever: Literal["exact", "faiss", "hnsw", "store"] = "exact"
    """Retriever: exact by blocks, faiss (exact), faiss with a graph, or the `store` that serves searches."""
    store: str = "local"
    """Store used by the retriever `store`."""
    database_fraction: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Fraction of each class's training images that is the database."""
    split_seed: int = 0
    """Seed of the split into queries and database, independent of the training seed."""
    split_column: str | None = None
    """Column of the table with `query` or `database` for every training image, instead of a random split."""
    allow_unanswered: bool = False
    """Allow query classes without an image in the database."""
    refresh: RefreshSettings = Field(default_factory=RefreshSettings)
    """When the database is embedded again."""
    distance: Literal["js", "cosine"] = "js"
    """How views are compared: by their retrievals, or directly by 1 − cosine."""
    head_scale: PositiveFloat = 1.0
    """Factor of the unit embeddings at the input of classifier and attention; the paper has 1. Their learning rate is
    `optimizer.loss_lr`."""
    first_view: Literal["crop", "center"] = "crop"
    """First view in end-to-end training: a random crop without augmentation, or the center crop. Cached views are all
    drawn from one pool."""
    map_steps: list[PositiveInt] = [5, 100]  # noqa: RUF012 (pydantic copies it)
    """Steps at which attention by class is recorded for the report."""
    shown_queries: list[str] = []  # noqa: RUF012
    """Training images whose retrievals the report shows (the end of the path suffices); empty: a few at random."""

    def make_views(self, default: Any) -> list[Any]:
        """Return the first view without augmentation and the others as `default`."""
        first = CenterView(default.pre) if self.first_view == "center" else replace(default, rand_augment="")
        return [first, *[default] * (self.views - 1)]

    def split(self, table: Any, labels: np.ndarray, *, verbose: bool = False) -> DatabaseSplit:
        """Split the training images into queries and database."""
        options: dict[str, Any] = {"column": self.split_column, "allow_unanswered": self.allow_unanswered}
        options |= {"fraction": self.database_fraction, "seed": self.split_seed, "verbose": verbose}
        return split_database(labels, table, **options)


class DMCAC(Method):
    """Divergence minimization and cross-attention classification; for classes with many images.

    References:
        Trivedy and Latecki, "Image Retrieval with Self-Supervised Divergence Minimization and Cross-Attention
        Classification", IJCAI 2024.

    Example:
        >>> la.train(data="photos", method="dmcac", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "dmcac"
    Settings = DMCACSettings
    distinct_views = has_report = True
    default_overrides: ClassVar = {
        "sampler": {"kind": "shuffle", "batch_size": 64},
        "optimizer": {"lr": 3e-5, "loss_lr": 3e-3},
        "views": {"num_cached": 8, "rand_augment": "rand-tv9"},
        "log": {"drift_every_n_steps": 20},
    }
    settings: DMCACSettings

    def __init__(self, settings: DMCACSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.split = settings.split(context.table, context.labels.cpu().numpy())
        size = len(self.split.database)
        self.k = min(settings.k, size)
        if self.k < settings.k and settings.full == "no":
            warn(f"The database has {size:,} images: each view retrieves all of them, not {settings.k}.")
        generator = seeds.torch_rng(context.seed, "heads")
        self.heads = losses.AttentionHeads(context.classes, context.dim, generator, settings.head_scale)
        self.database = nn.Buffer(torch.from_numpy(self.split.database))
        self.vectors = nn.Buffer(torch.zeros(size, context.dim))
        self.refreshed_at = nn.Buffer(torch.full((2,), -1))  # step and epoch of the last refresh
        shape = len(settings.map_steps), len(ClassMaps._fields), min(context.classes, MAX_CLASSES), context.classes
        self.maps = nn.Buffer(torch.full(shape, torch.nan))
        self.refresh_cosine = nn.Buffer(torch.tensor(torch.nan))  # of vectors before and after the last refresh
        self._retriever: Retriever | None = None
        self._retriever_kind: str = settings.retriever
        self._differentiable_vectors: Tensor | None = None
        self._warned = False

    @classmethod
    def sampled_rows(cls, settings: Any, table: Any, labels: np.ndarray) -> np.ndarray:
        split = settings.split(table, labels, verbose=True)
        for name in settings.shown_queries:
            if find_row(table, name) not in split.queries:
                raise LookalikeError(
                    f"`method.shown_queries` names `{name}`, which is in the database; only queries can be shown."
                )
        return split.queries

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        return int(own["views"])

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        if not torch.equal(state_dict["database"].to(self.database), self.database):
            raise LookalikeError("The checkpoint was made with another database than the present settings define.")
        self.close()
        return super().load_state_dict(state_dict, *args, **options)

    # ---- views and embeddings---------------------------------------------------------------------

    def views(self, default: Any) -> Sequence[Any]:
        return self.settings.make_views(default)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        """Embed all views in one pass: (n, A, F)."""
        shape = len(batch), len(batch.views)
        all_views = replace(batch, views=(torch.stack(batch.views, 1).flatten(0, 1),))
        return {"z": self.context.forward(all_views).view(*shape, -1)}

    def joint_loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        z = embeddings["z"]
        return self.loss({**embeddings, "z": self.context.model.apply_norm(z.flatten(0, 1)).view_as(z)}, batch)

    # ---- the database ----------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Whether the database must be embedded again."""
        chosen, (step, epoch) = self.settings.refresh, self.refreshed_at.tolist()
        since = self.context.step - step if chosen.unit == "steps" else self.context.epoch - epoch
        return chosen.unit != "never" and since >= chosen.every

    def _refresh(self) -> None:
        exists = int(self.refreshed_at[0]) >= 0
        if exists and not self.is_due() and self.settings.full != "gradient":
            return
        vectors = self.context.encode(self.split.database)
        if exists:
            self.refresh_cosine.copy_((vectors * self.vectors).sum(1).mean())
        self.vectors.copy_(vectors)
        self.refreshed_at.copy_(torch.tensor([self.context.step, self.context.epoch]))
        self.close()

    def close(self) -> None:
        """Close the retriever; it is created again when it is needed."""
        if self._retriever is not None:
            self._retriever.close()
        if isinstance(self._retriever, RecallCheckedRetriever) and self._retriever.exact:
            self._retriever_kind = "exact"  # an index with too low a recall is not built again
        self._retriever = None

    def current_database(self) -> losses.Database:
        """Return the database as it was last embedded."""
        return losses.Database(self.vectors, self.context.labels[self.database])

    def retrieve(self, z: Tensor) -> losses.RetrievalUnion:
        """Return the union over the views (B, A, F) of each query; the work is divided among the processes."""
        if self._retriever is None:
            self._retriever = make_retriever(self._retriever_kind, self.vectors, store=self.settings.store)
        queries = z.detach().flatten(0, 1)
        neighbors = self._retriever.nearest(queries[distributed.rank_slice(len(queries))], self.k)
        return losses.retrieval_union(distributed.all_gather(neighbors).view(*z.shape[:2], self.k))

    # ---- the loss --------------------------------------------------------------------------------

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        weights, z = self.settings.weights, embeddings["z"]
        self._check_collapse(z.detach()[:, 0])
        logits = self.heads.classify(self._log_gradient_norm("classes", z))
        total = self._weighted_mean("classes", weights.classes, losses.classification_loss(logits, batch.labels))
        if not weights.divergence and not weights.attention:
            return total
        views, by_cosine = self._log_gradient_norm("divergence", z), self.settings.distance == "cosine"
        if by_cosine and not weights.attention:
            return total + self._weighted_mean("divergence", weights.divergence, losses.cosine_disagreement(views))
        self._refresh()
        terms = self._terms(views, self._log_gradient_norm("attention", z), batch.labels)
        divergence = losses.cosine_disagreement(views) if by_cosine else terms.divergence
        total = total + self._weighted_mean("divergence", weights.divergence, divergence)
        total = total + self._weighted_mean("attention", weights.attention, terms.attention)
        self.context.log("attention/own", terms.own_attention.mean())
        self.context.log("database/age", self.context.step - int(self.refreshed_at[0]))
        if bool(torch.isfinite(self.refresh_cosine)):
            self.context.log("database/cosine", self.refresh_cosine)
        return total

    def _weighted_mean(self, name: str, weight: float, values: Tensor) -> Tensor:
        self.context.log(f"term/{name}", values.mean())
        return weight * values.mean()

    def _terms(self, z: Tensor, head_input: Tensor, labels: Tensor) -> losses.DMCACTerms:
        database, temperature = self.current_database(), self.settings.temperature
        if self.settings.full != "no":
            if self.settings.full == "gradient":
                self._differentiable_vectors = self.vectors.detach().clone().requires_grad_()
                database = database._replace(vectors=self._differentiable_vectors)
            same = database.labels[None] == labels[:, None]
            self._log_retrieval(same, same.new_full((len(labels),), len(same[0]), dtype=torch.int64))
            return losses.full_terms(z, head_input, labels, database, self.heads, temperature)
        union = self.retrieve(z)
        self._log_retrieval((database.labels[union.members] == labels[:, None]) & union.mask, union.sizes)
        return losses.union_terms(z, head_input, labels, database, union, self.heads, temperature)

    def after_backward(self) -> None:
        """With `full: gradient`, add the gradient of the database, whose images are embedded again in blocks."""
        if self._differentiable_vectors is not None and self._differentiable_vectors.grad is not None:
            self.context.encode_backward(self.split.database, self._differentiable_vectors.grad)
        self._differentiable_vectors = None

    # ---- logs and report-------------------------------------------------------------------------

    def _log_gradient_norm(self, name: str, z: Tensor) -> Tensor:
        """Return the same embeddings; the norm of their gradient tangential to the sphere is logged."""
        if not z.requires_grad:
            return z
        values, output = z.detach(), z.view_as(z)

        def log_norm(gradient: Tensor) -> None:
            tangential = gradient - (gradient * values).sum(-1, keepdim=True) * values
            self.context.log(f"gradient/{name}", torch.linalg.vector_norm(tangential))

        output.register_hook(log_norm)
        return output

    def _log_retrieval(self, same: Tensor, sizes: Tensor) -> None:
        own = same.sum(1)
        readings = {"mean": sizes.float().mean(), "min": sizes.min(), "max": sizes.max()}
        readings |= {"own": (own / sizes).mean(), "missing": (own == 0).float().mean()}
        for name, value in readings.items():
            self.context.log(f"union/{name}", value)

    def _check_collapse(self, rows: Tensor) -> None:
        if len(rows) < 2:
            return
        cosine = mean_cosine(rows)
        self.context.log("cosine", cosine)
        if cosine > COLLAPSED and not self._warned:
            self._warned = True
            warn(
                f"The embeddings are collapsing to one point (mean cosine {cosine:.3f} at step {self.context.step}): "
                "raise `method.weights.classes`, or lower `method.weights.divergence`."
            )

    def after_step(self) -> None:
        steps = self.settings.map_steps
        if self.context.step in steps and int(self.refreshed_at[0]) >= 0:
            self.maps[steps.index(self.context.step)] = self.class_maps()

    @torch.no_grad()
    def class_maps(self) -> Tensor:
        """Return all class maps as they are now, with queries at their center crop."""
        shape, labels = (self.maps.shape[-2], self.maps.shape[-1]), self.context.labels
        ids = torch.from_numpy(self.split.queries).to(labels.device)
        ids = ids[labels[ids] < shape[0]]
        if not len(ids):
            return torch.full_like(self.maps[0], torch.nan)
        ids = ids[:: -(-len(ids) // MAX_QUERIES)]
        k = None if self.settings.full != "no" else self.k
        z = self.context.encode(ids.cpu().numpy())
        return torch.stack(class_maps(z, labels[ids], self.current_database(), self.heads, k, shape))

    def memory_rows(self, count: int) -> WatchedRows | None:
        if int(self.refreshed_at[0]) < 0:
            return None
        count = min(count, len(self.vectors))
        sample = torch.arange(count, device=self.vectors.device) * len(self.vectors) // count
        vectors = self.vectors[sample].clone()
        return WatchedRows(self.database[sample], vectors, vectors)

    @classmethod
    def report_sections(cls, context: ReportContext) -> dict[str, Any]:
        return report_sections(context)


class DatabaseSplit(NamedTuple):
    """Rows of the training table, ascending; rows without a label are in neither."""

    queries: np.ndarray
    database: np.ndarray


def split_database(
    labels: np.ndarray,
    table: Table | None = None,
    *,
    fraction: float,
    seed: int,
    column: str | None = None,
    allow_unanswered: bool = False,
    verbose: bool = True,
) -> DatabaseSplit:
    """Split training images into queries and database, by class or by a column of the table.

    Of n ≥ 2 images of a class (−1: none), fraction·n (rounded, at least one, at most n − 1) are in the database; a
    single image is in the database only. `verbose` warns about classes that are not in both parts.

    Example:
        >>> split_database(np.array([0, 0, 1, 1]), fraction=0.5, seed=0).database.shape
        (2,)
    """
    labels = np.asarray(labels)
    known = labels >= 0
    in_database = _random_split(labels, fraction, seed) if column is None else _column_split(table, column)
    split = DatabaseSplit(np.flatnonzero(known & ~in_database), np.flatnonzero(known & in_database))
    if column is None and not len(split.queries):
        raise LookalikeError(
            "No class has two or more images: training with a database needs classes with a query and a database image."
        )
    for rows, side in zip(split, ("query", "database"), strict=True):
        if not len(rows):
            raise LookalikeError(f"The column `{column}` has no `{side}`.")
    single = np.setdiff1d(labels[split.database], labels[split.queries])
    if column is None and len(single) and verbose:
        what = "1 class has" if len(single) == 1 else f"{len(single):,} classes have"
        warn(f"{what} a single image, which is in the database only: {_class_names(single, labels, table)}.")
    unanswered = np.setdiff1d(labels[split.queries], labels[split.database])
    if len(unanswered) and not allow_unanswered:
        raise LookalikeError(
            f"{len(unanswered):,} of {len(np.unique(labels[split.queries])):,} query classes have no image in the "
            f"database: {_class_names(unanswered, labels, table)}. Add some, or set `method.allow_unanswered`."
        )
    if len(unanswered) and verbose:
        count = np.isin(labels[split.queries], unanswered).sum()
        warn(
            f"{count / len(split.queries):.1%} of the queries have no image of their class in the database; "
            "attention cannot find it."
        )
    return split


def _random_split(labels: np.ndarray, fraction: float, seed: int) -> np.ndarray:
    """Whether a row is in the database: the first images of each class in a random order."""
    keys = seeds.numpy_rng(seed, "database").random(len(labels))
    order = np.lexsort((keys, labels))
    _, starts, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    target = np.clip(np.floor(fraction * counts + 0.5), 1, np.maximum(counts - 1, 1))
    out = np.zeros(len(labels), bool)
    out[order] = np.arange(len(labels)) - starts[place] < target[place]
    return out


def _column_split(table: Table | None, column: str) -> np.ndarray:
    if table is None or not table.has(column):
        raise LookalikeError(f"The table has no column `{column}` that separates queries and database.")
    values = table.column(column)
    wrong = sorted({str(v) for v in values} - {"query", "database"})
    if wrong:
        raise LookalikeError(f"The column `{column}` contains `{wrong[0]}`; every value must be `query` or `database`.")
    return np.asarray(values == "database")


def _class_names(codes: np.ndarray, labels: np.ndarray, table: Table | None) -> str:
    rows = [int(np.flatnonzero(labels == code)[0]) for code in codes[:MAX_NAMED]]
    names = [f"`{table.column('label')[row]}`" if table is not None else f"class {labels[row]}" for row in rows]
    return ", ".join(names) + (", …" if len(codes) > MAX_NAMED else "")
