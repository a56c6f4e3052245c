"""An adaptation made ready: held-out images, statistics, retrieval, classes, and the loop.

Made of files and settings alone, and the same every time: by every process, and when a run is resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lookalike.adaptation import clusters, supply
from lookalike.adaptation.adapter import Adapter
from lookalike.adaptation.classes import Classes, codes_of, find_classes, with_classifier
from lookalike.adaptation.nearest import Retrieved
from lookalike.adaptation.network import PIXELS, Network, mixed_parts, pick_layer, recalibrated
from lookalike.adaptation.pool import Pool
from lookalike.adaptation.request import Asked
from lookalike.adaptation.retrieving import retrieve
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.models import Embedder


@dataclass(frozen=True)
class Setup:
    """Everything that is there before the first step."""

    learn: Table
    aside: Table
    """Kept apart to judge by."""
    anchor: Embedder
    """The base; with the target's batch-norm statistics where the candidate has them."""
    expert: Embedder
    found: Retrieved
    """`index` points into the pool."""
    classes: Classes
    network: Network
    adapter: Adapter | None
    """None where nothing learns, or in another way."""

    @property
    def ids(self) -> list[str]:
        return [str(id_) for id_ in self.learn.column("content_id")]

    @property
    def lists(self) -> np.ndarray:
        """Who is retrieved for whom, as places among the used pool images."""
        return self.found.among_used()


def set_up(base: Embedder, target: Table, pool: Pool, asked: Asked, *, progress: bool = False) -> Setup:
    chosen, seed = asked.settings, asked.seed
    held = held_out(target, chosen.held_out_fraction, seed)
    learn, aside = target.take(~held), target.take(held)
    if len(learn) < 2 or len(aside) < 1:
        raise LookalikeError(
            f"`{target.name}` holds {len(target)} different images: too few to adapt to and to judge by."
        )
    ids = [str(id_) for id_ in learn.column("content_id")]
    own = chosen.method == "source" or (chosen.batch_norm == "keep" and chosen.method != "bn")
    # Statistics of each batch are those of the layers that learn; else the target's are taken throughout.
    above = PIXELS if chosen.method == "bn" or chosen.batch_norm == "frozen" else pick_layer(base, chosen.layer)
    anchor = base if own else recalibrated(base, squares(base, learn, mixed_parts(ids)), above=above)
    start = copy.deepcopy(anchor if chosen.batch_norm == "frozen" else base)
    expert = base if asked.retriever is None else Embedder.from_pretrained(asked.retriever, device=CPU)
    found = retrieve(expert, ids, learn, pool, chosen, seed=seed, progress=progress)
    classes = find_classes(start, learn, asked)
    labels = None
    if asked.labeled:
        start = with_classifier(start, classes)
        labels = codes_of(learn, classes.names)
    begun = classes.prototypes if start.classifier is None else None
    layer = pick_layer(start, chosen.layer)
    network = Network(start, layer, prototypes=None if begun is None else torch.from_numpy(begun.copy()))
    adapter = None
    if chosen.method not in ("bn", "source", "on_target"):
        images = pool.table(found.used) if len(found.used) else None
        views = supply.make(start, layer, learn, images, views=chosen.num_views, seed=seed, progress=progress)
        rows = clusters.unit(start.encode(learn, runtime="torch")) if not network.classes else None
        adapter = Adapter(
            network,
            views,
            ids,
            chosen,
            labels=labels,
            lists=found.among_used(),
            scores=found.scores,
            pool_ids=[pool.ids[i] for i in found.used],
            friends=None if rows is None else clusters.reciprocal(rows),
            source=_source(asked, start, layer, classes),
            recluster=classes.moving,
            seed=seed,
        )
    return Setup(learn, aside, anchor, expert, found, classes, network, adapter)


def held_out(target: Table, share: float, seed: int) -> np.ndarray:
    """Which images are kept aside, decided for each by its own id."""
    ids = target.column("content_id")
    return np.array([derive(seed, "held out", id_) / 2**63 < share for id_ in ids], bool)


def squares(model: Embedder, table: Table, parts: Sequence[np.ndarray]) -> Iterator[torch.Tensor]:
    """Pixels of a table, part by part, as the finished model would see them."""
    for part in parts:
        rows = table.take(part)
        yield torch.from_numpy(np.stack([model.square(rows.open_bytes(i)) for i in range(len(rows))]))


def _source(asked: Asked, model: Embedder, layer: str, classes: Classes) -> Any:
    if asked.source is None:
        return None
    table = audit(read_table(asked.source), near=False).table
    return supply.make(model, layer, table, None, views=1, seed=asked.seed), codes_of(table, classes.names)
