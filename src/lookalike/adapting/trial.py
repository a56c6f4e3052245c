"""One adaptation from the base model to a decision: retrieval, classes, the loop, and the evidence."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from lookalike.adapting import clusters, gate, supply
from lookalike.adapting.adapter import Adapter
from lookalike.adapting.classes import Classes, codes_of, find_classes, with_classifier
from lookalike.adapting.evidence import decide
from lookalike.adapting.gate import Decision
from lookalike.adapting.network import Network, pick_layer, recalibrated
from lookalike.adapting.ontarget import on_target
from lookalike.adapting.receipts import Receipts, written
from lookalike.adapting.retrieving import Pool, Retrieved, at_random, embedded, nearest
from lookalike.adapting.settings import AdaptSettings
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.progress import Progress
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.models import Embedder
from lookalike.models.snapshot import raw_bytes


@dataclass(frozen=True)
class Asked:
    """What an adaptation was asked for, so that it can be done again."""

    settings: AdaptSettings
    labelled: bool = False
    gallery: str | None = None
    clusters: int | None = None
    judge: str | None = None
    source: str | None = None
    retriever: str | None = None
    pool: list[str] = field(default_factory=list)
    allow: list[str] = field(default_factory=list)
    deny: list[str] = field(default_factory=list)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "settings": self.settings.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Asked:
        return cls(**{**document, "settings": AdaptSettings.parse(document["settings"])})


@dataclass(frozen=True)
class Trial:
    """A candidate and what is known of it."""

    candidate: Embedder
    decision: Decision
    receipts: list[dict[str, Any]]
    classes: str
    """Where its classes come from."""
    counts: dict[str, int]
    log: list[dict[str, float]]
    scores: np.ndarray
    """Scores of the retrieved pictures."""

    @property
    def weights(self) -> str:
        """A name for every bit of the candidate."""
        return hash_bytes(*(raw_bytes(value) for value in self.candidate.state_dict().values()))


def run_trial(base: Embedder, now: Embedder, target: Table, pool: Pool, asked: Asked) -> Trial:
    """Adapt a copy of `base` to `target`; `now` is the model in use, which it must be better than."""
    chosen, seed = asked.settings, asked.seed
    held = held_out(target, chosen.held_out, seed)
    learn, aside = target.take(~held), target.take(held)
    if len(learn) < 2 or len(aside) < 1:
        raise LookalikeError(
            f"`{target.name}` holds {len(target)} different pictures: too few to adapt to and to judge by."
        )
    ids = [str(id_) for id_ in learn.column("content_id")]
    anchor = recalibrated(base, _squares(base, learn, chosen.batch))
    start = copy.deepcopy(anchor if chosen.batch_norm == "frozen" else base)
    expert = base if asked.retriever is None else Embedder.from_pretrained(asked.retriever, device=CPU)
    wanted = chosen.neighbours if chosen.method == "t3ar" and chosen.contrast.pool_set != "none" else 0
    found = _retrieve(expert, learn, ids, pool, wanted, chosen, seed)
    used = found.used
    lists = np.searchsorted(used, found.index) if len(used) else found.index
    lists = np.where(found.index >= 0, lists, -1)
    classes = find_classes(start, learn, asked)
    labels = None
    if asked.labelled:
        start = with_classifier(start, classes)
        base, now, anchor = (with_classifier(m, classes) for m in (base, now, anchor))
        labels = codes_of(learn, classes.names)
    begun = classes.prototypes if start.classifier is None else None
    layer = pick_layer(start, chosen.layer)
    network = Network(start, layer, prototypes=None if begun is None else torch.from_numpy(begun.copy()))
    log: list[dict[str, float]] = []
    receipts, alarm, never = Receipts(len(used)), None, 0
    if chosen.method == "on_target":
        network = Network(on_target(network, learn, chosen, seed=seed), layer)
    elif chosen.method not in ("bn", "source"):
        pictures = pool.table(used) if len(used) else None
        views = supply.make(start, layer, learn, pictures, views=chosen.views, seed=seed, progress=True)
        rows = clusters.unit(start.encode(learn, runtime="torch")) if not network.classes else None
        adapter = Adapter(
            network,
            views,
            ids,
            chosen,
            labels=labels,
            lists=lists if wanted else None,
            scores=found.scores if wanted else None,
            pool_ids=[pool.ids[i] for i in used],
            friends=None if rows is None else clusters.reciprocal(rows),
            source=_source(asked, start, layer, classes),
            recluster=classes.moving,
            seed=seed,
        )
        if network.classes:
            first = adapter.objective.all_centres()[1].argmax(1).numpy()
            alarm = gate.stream_alarm([first[batch] for batch in adapter.batches(0)], seed=seed)
        with Progress("Adapting", adapter.total) as bar:
            adapter.run(watch=lambda _: bar.advance(1))
        log, receipts, never = adapter.log, adapter.receipts, adapter.never_labelled
    candidate = anchor if chosen.method == "bn" else network.model
    for value in candidate.parameters():
        value.requires_grad_(True)
    candidate.name, candidate.parent = f"{base.name}-adapted", base.fingerprint()
    moved = None if network.prototypes is None or chosen.method == "bn" else network.prototypes.numpy()
    models = (now, anchor, candidate)
    decision = decide(models, aside, asked, classes, moved=moved, expert=expert, alarm=alarm)
    counts = {
        "target": len(target),
        "learnt_from": len(learn),
        "held_out": len(aside),
        "pool": len(pool),
        "used": len(used),
        "copies_of_target": found.copies,
        "steps": len(log),
        "classes_never_labelled": never,
    }
    paths = [pool.names[i] for i in used]
    mine = Retrieved(lists, found.scores)
    slips = written(receipts, mine, [pool.ids[i] for i in used], paths, ids)
    return Trial(candidate, decision, slips, classes.how, counts, log, found.scores[found.index >= 0])


def held_out(target: Table, share: float, seed: int) -> np.ndarray:
    """Which pictures are kept aside, decided for each by its own id."""
    ids = target.column("content_id")
    return np.array([derive(seed, "held out", id_) / 2**63 < share for id_ in ids], bool)


def _squares(model: Embedder, table: Table, batch: int) -> Any:
    """Pixels of a table in batches, as the finished model would see them."""
    for start in range(0, len(table), batch):
        rows = table.take(np.arange(start, min(start + batch, len(table))))
        squares = [model.square(rows.open_bytes(i)) for i in range(len(rows))]
        yield torch.from_numpy(np.stack(squares))


def _retrieve(
    expert: Embedder, learn: Table, ids: list[str], pool: Pool, k: int, chosen: AdaptSettings, seed: int
) -> Retrieved:
    if not k or not len(pool):
        return Retrieved(np.full((len(ids), max(k, 1)), -1), np.full((len(ids), max(k, 1)), -np.inf, np.float32))
    mine = embedded(expert, ids, learn, progress=True)
    theirs = embedded(expert, pool.ids, pool.table(np.arange(len(pool))), progress=True)
    if chosen.retrieval == "random":
        return at_random(mine, theirs, ids, pool.ids, k, seed=seed)
    return nearest(mine, theirs, ids, pool.ids, k, near_copy=chosen.near_copy)


def _source(asked: Asked, model: Embedder, layer: str, classes: Classes) -> Any:
    if asked.source is None:
        return None
    table = audit(read_table(asked.source), near=False).table
    return supply.make(model, layer, table, None, views=1, seed=asked.seed), codes_of(table, classes.names)
