"""DMCAC: train the embedding against the database it will search.

Trivedy and Latecki, "Image Retrieval with Self-Supervised Divergence Minimization and Cross-Attention
Classification", IJCAI 2024. Some training images are the database, the others ask in several views: the views'
retrievals should agree, and attention to what was retrieved should tell the query's class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.core.seeds import torch_rng
from lookalike.losses import dmcac as losses
from lookalike.memory.retriever import RecallCheckedRetriever, Retriever, make_retriever
from lookalike.methods.base import Batch, Context, MemoryRows, Method, ReportContext
from lookalike.methods.collapse import mean_cosine
from lookalike.methods.dmcac_maps import CLASSES, Maps, find_row, maps_of, sections, views_of
from lookalike.methods.dmcac_settings import DMCACSettings
from lookalike.methods.dmcac_split import Parted, part
from lookalike.methods.taps import last_layer, tapped

COLLAPSED = 0.98  # mean cosine of a batch's first views


class DMCAC(Method):
    """Many images of each class, and a search that should not depend on how the query was cropped."""

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
    database: Tensor
    rows: Tensor
    lengths: Tensor
    made: Tensor
    maps: Tensor
    staleness: Tensor

    def __init__(self, settings: DMCACSettings, context: Context) -> None:
        super().__init__(settings, context)
        self.parted = _parted(settings, context.table, context.labels.cpu().numpy())
        size = len(self.parted.database)
        self.k = min(settings.k, size)
        if self.k < settings.k and settings.full == "no" and distributed.is_main():
            warn(f"The database has {size:,} images: each view retrieves all of them, not {settings.k}.")
        self.heads = losses.AttentionHeads(
            context.classes, context.dim, torch_rng(context.seed, "heads"), settings.start
        )
        self.register_buffer("database", torch.from_numpy(self.parted.database))
        self.register_buffer("rows", torch.zeros(size, context.dim))
        self.register_buffer("lengths", torch.ones(size))
        self.register_buffer("made", torch.full((2,), -1))  # step and epoch of the rows
        shape = len(settings.maps), len(Maps._fields), min(context.classes, CLASSES), context.classes
        self.register_buffer("maps", torch.full(shape, torch.nan))
        self.register_buffer("staleness", torch.tensor(torch.nan))  # mean cosine of the rows before these to them
        self._retriever: Retriever | None = None
        self._kind: str = settings.retriever
        self._moving: Tensor | None = None
        self._warned = False

    @classmethod
    def sampled_rows(cls, settings: Any, table: Any, labels: np.ndarray) -> np.ndarray:
        found = _parted(settings, table, labels, tell=True)
        for name in settings.show:
            if find_row(table, name) not in found.queries:
                raise LookalikeError(f"`method.show` names `{name}`, which is in the database: only queries are shown.")
        return found.queries

    @classmethod
    def views_per_image(cls, own: Mapping[str, Any]) -> int:
        return int(own["views"])

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        if not torch.equal(state_dict["database"].to(self.database), self.database):
            raise LookalikeError("The checkpoint was made with another database than the settings draw now.")
        self.close()
        return super().load_state_dict(state_dict, *args, **options)

    # ---- what a step sees ------------------------------------------------------------------------

    def views(self, default: Any) -> Sequence[Any]:
        return views_of(self.settings, default)

    def embed(self, batch: Batch) -> dict[str, Tensor]:
        """All views in one pass: (n, A, F)."""
        shape = len(batch), len(batch.views)
        together = replace(batch, views=(torch.stack(batch.views, 1).flatten(0, 1),))
        with tapped(last_layer(self.context.model)) as seen:
            z = self.context.forward(together)
        out = {"z": z.view(*shape, -1)}
        if self.settings.head_input == "raw":
            out["length"] = torch.linalg.vector_norm(seen[-1].output.float(), dim=1).view(shape)
        return out

    def joint_loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        z = embeddings["z"]
        return self.loss({**embeddings, "z": self.context.model.apply_norm(z.flatten(0, 1)).view_as(z)}, batch)

    # ---- the database ----------------------------------------------------------------------------

    @property
    def age(self) -> int:
        return self.context.step - int(self.made[0])

    def due(self) -> bool:
        """Whether the database is old enough to be embedded anew."""
        chosen, (step, epoch) = self.settings.refresh, self.made.tolist()
        since = self.context.step - step if chosen.unit == "steps" else self.context.epoch - epoch
        return chosen.unit != "never" and since >= chosen.every

    def _renew(self) -> None:
        made = int(self.made[0]) >= 0
        if made and not self.due() and self.settings.full != "gradient":
            return
        rows, lengths = self.encode(self.parted.database)
        if made:
            self.staleness.copy_((rows * self.rows).sum(1).mean())
        self.rows.copy_(rows)
        self.lengths.copy_(lengths)
        self.made.copy_(torch.tensor([self.context.step, self.context.epoch]))
        self.close()

    def encode(self, ids: np.ndarray) -> tuple[Tensor, Tensor]:
        """Unit rows of training images, and what the heads are to multiply them by."""
        if self.settings.head_input == "unit":
            rows = self.context.encode(ids)
            return rows, torch.ones(len(rows), device=rows.device)
        with tapped(last_layer(self.context.model)) as seen:
            rows = self.context.encode(ids)
        lengths = [torch.linalg.vector_norm(found.output.float(), dim=1) for found in seen]
        return rows, distributed.all_gather(torch.cat([torch.empty(0, device=rows.device), *lengths]))

    def close(self) -> None:
        """The index goes; it is made again of the rows when it is asked."""
        if self._retriever is not None:
            self._retriever.close()
        if isinstance(self._retriever, RecallCheckedRetriever) and self._retriever.exact:
            self._kind = "exact"  # an index that does not find enough is not built again
        self._retriever = None

    def searched(self) -> losses.Database:
        lengths = self.lengths if self.settings.head_input == "raw" else None
        return losses.Database(self.rows, self.context.labels[self.database], lengths)

    def retrieve(self, z: Tensor) -> losses.RetrievalUnion:
        """The union over the views of each query, (B, A, F); every process asks for its share."""
        if self._retriever is None:
            self._retriever = make_retriever(self._kind, self.rows, store=self.settings.store)
        asked = z.detach().flatten(0, 1)
        found = self._retriever.nearest(asked[distributed.rank_slice(len(asked))], self.k)
        return losses.retrieval_union(distributed.all_gather(found).view(*z.shape[:2], self.k))

    # ---- the loss --------------------------------------------------------------------------------

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        weights, z = self.settings.weights, embeddings["z"]
        lengths = embeddings.get("length")

        def given(seen: Tensor) -> Tensor:
            """What the heads see of it."""
            return seen if lengths is None else seen * lengths[:, :, None]

        self._watch_collapse(z.detach()[:, 0])
        value = losses.classification_loss(given(self._watched("classes", z)) @ self.heads.classifier.t(), batch.labels)
        total = self._told("classes", weights.classes, value)
        if not weights.divergence and not weights.attention:
            return total
        seen, by_points = self._watched("divergence", z), self.settings.distance == "cosine"
        if by_points and not weights.attention:
            return total + self._told("divergence", weights.divergence, losses.cosine_disagreement(seen))
        self._renew()
        terms = self._terms(seen, given(self._watched("attention", z)), batch.labels)
        apart = losses.cosine_disagreement(seen) if by_points else terms.divergence
        total = total + self._told("divergence", weights.divergence, apart)
        total = total + self._told("attention", weights.attention, terms.attention)
        self.context.log("attention/own", terms.own_attention.mean())
        self.context.log("database/age", self.age)
        if bool(torch.isfinite(self.staleness)):
            self.context.log("database/cosine", self.staleness)
        return total

    def _told(self, name: str, weight: float, values: Tensor) -> Tensor:
        self.context.log(f"term/{name}", values.mean())
        return weight * values.mean()

    def _terms(self, z: Tensor, asking: Tensor, labels: Tensor) -> losses.DMCACTerms:
        database, temperature = self.searched(), self.settings.temperature
        if self.settings.full != "no":
            if self.settings.full == "gradient":
                self._moving = self.rows.detach().clone().requires_grad_()
                database = database._replace(vectors=self._moving)
            same = database.labels[None] == labels[:, None]
            self._log_found(same, same.new_full((len(labels),), len(same[0]), dtype=torch.int64))
            return losses.full_terms(z, asking, labels, database, self.heads, temperature)
        found = self.retrieve(z)
        self._log_found((database.labels[found.members] == labels[:, None]) & found.mask, found.sizes)
        return losses.union_terms(z, asking, labels, database, found, self.heads, temperature)

    def after_backward(self) -> None:
        """`full: gradient`: the database's own part of the gradient, its images embedded once more in blocks."""
        if self._moving is not None and self._moving.grad is not None:
            self.context.encode_backward(self.parted.database, self._moving.grad)
        self._moving = None

    # ---- what is told ----------------------------------------------------------------------------

    def _watched(self, name: str, z: Tensor) -> Tensor:
        """The same rows; the norm of the gradient that comes back to them, along the sphere, is logged."""
        if not z.requires_grad:
            return z
        rows, watched = z.detach(), z.view_as(z)

        def note(gradient: Tensor) -> None:
            along = gradient - (gradient * rows).sum(-1, keepdim=True) * rows
            self.context.log(f"gradient/{name}", torch.linalg.vector_norm(along))

        watched.register_hook(note)
        return watched

    def _log_found(self, same: Tensor, sizes: Tensor) -> None:
        log: Callable[[str, Any], None] = self.context.log
        own = same.sum(1)
        for name, value in (("mean", sizes.float().mean()), ("min", sizes.min()), ("max", sizes.max())):
            log(f"union/{name}", value)
        log("union/own", (own / sizes).mean())
        log("union/missing", (own == 0).float().mean())

    def _watch_collapse(self, rows: Tensor) -> None:
        if len(rows) < 2:
            return
        cosine = mean_cosine(rows)
        self.context.log("cosine", cosine)
        if cosine > COLLAPSED and not self._warned and distributed.is_main():
            self._warned = True
            warn(
                f"The embeddings are falling onto one point (mean cosine {cosine:.3f} at step {self.context.step}): "
                "raise `method.weights.classes`, or lower `method.weights.divergence`."
            )

    def after_step(self) -> None:
        steps = self.settings.maps
        if self.context.step in steps and int(self.made[0]) >= 0:
            self.maps[steps.index(self.context.step)] = maps_of(self)

    def memory_rows(self, count: int) -> MemoryRows | None:
        if int(self.made[0]) < 0:
            return None
        count = min(count, len(self.rows))
        some = torch.arange(count, device=self.rows.device) * len(self.rows) // count
        rows = self.rows[some].clone()
        return MemoryRows(self.database[some], rows, rows)

    @classmethod
    def report_sections(cls, told: ReportContext) -> dict[str, Any]:
        return sections(told)


def _parted(settings: DMCACSettings, table: Any, labels: np.ndarray, *, tell: bool = False) -> Parted:
    return part(
        labels,
        share=settings.share,
        seed=settings.split_seed,
        table=table,
        column=settings.column,
        unanswered=settings.unanswered,
        tell=tell,
    )
