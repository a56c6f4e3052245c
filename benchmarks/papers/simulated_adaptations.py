"""Simulated adaptations on cached features, helpful and harmful: a model of one domain, adapted to another."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.papers import t3ar_measure
from benchmarks.papers.t3ar_protocols import SMALL
from lookalike.adaptation import gate, gate_retrieval, target_classes
from lookalike.adaptation.adapter import Adapter, predict
from lookalike.adaptation.gate_retrieval import Seen
from lookalike.adaptation.network import TEMPERATURE, Network, mixed_parts, recalibrated
from lookalike.adaptation.pool import read_pool
from lookalike.adaptation.pool_search import nearest, no_retrievals
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.view_provider import CachedViews, make_views, pool_activations
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.core.settings import merge
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder

# As the claims have it, but for the layer: more runs are needed. False negatives are left out, as `adapt` does.
LAYER = "stage5"
SCALE: dict[str, Any] = merge(
    SMALL, {"source": {"layer": LAYER}, "adapt": {"layer": LAYER, "contrast": {"exclusion": "pseudo"}}}
)


@dataclass(frozen=True)
class Features:
    """What the layer holds of a domain under views, and its labels."""

    ids: list[str]
    weak: np.ndarray
    strong: np.ndarray
    center: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Features:
        ids = [self.ids[i] for i in rows]
        return Features(ids, self.weak[:, rows], self.strong[:, rows], self.center[rows], self.labels[rows])

    def supply(self, pool: np.ndarray | None = None, seed: int = 0) -> CachedViews:
        return CachedViews(self.ids, self.weak, self.strong, self.center, pool, seed=seed)


@dataclass(frozen=True)
class PoolFeatures:
    """What the layer holds of the pool."""

    ids: list[str]
    center: np.ndarray


@cache
def backbone() -> Embedder:
    return Embedder.from_pretrained(SCALE["model"], size=SCALE["size"], device=CPU)


@cache
def domain_features(data: str, domain: str) -> Features:
    """Features of a domain of PACS, made once."""
    table = t3ar_measure.domain(Path(data) / "pacs", "pacs", domain)
    found: Any = make_views(backbone(), SCALE["adapt"]["layer"], table, None, views=SCALE["adapt"]["num_views"])
    return Features(found.ids, found._weak, found._strong, found._center, table.labels()[0])


@cache
def pool_features(data: str) -> PoolFeatures:
    pool = read_pool([Path(data) / "pool"])
    whole = pool.table(np.arange(len(pool)))
    return PoolFeatures(pool.ids, pool_activations(backbone(), SCALE["adapt"]["layer"], whole))


def source_model(data: str, domain: str, seed: int) -> Embedder:
    """A classifier of a domain, made once."""
    return t3ar_measure.source_model(t3ar_measure.domain(Path(data) / "pacs", "pacs", domain), seed, SCALE)


def settings_of(recipe: str, seed: int = 0) -> AdaptSettings:
    """What a recipe is run with. Harm comes in grades, by the seed: from ruin to what is hard to see."""
    over = dict(RECIPES[recipe])
    if recipe in GRADED:
        over["lr"] *= GRADES[seed % len(GRADES)]
    return t3ar_measure.settings_for(SCALE, over)


def adapted(
    base: Embedder, target: Features, pool: PoolFeatures, recipe: str, seed: int, settings: AdaptSettings
) -> tuple[dict[str, np.ndarray], str | None]:
    """Adapt by a recipe; what the models make of held-out images (arrays by name), and the stream's alarm."""
    rows, rest = split_rows(len(target.ids), seed)
    aside, learn = target.take(rows), target.take(rest)
    start = Network(base, settings.layer)
    anchor = start
    if settings.method == "bn":
        anchor = Network(recalibrated(base, batches(learn), settings.layer), settings.layer)
    made, alarm = candidate(anchor, learn, pool, recipe, seed, settings)
    vectors, before = predict(start, aside.center)
    found = {
        "labels": aside.labels,
        "near": top_k(vectors, vectors, 5, exclude=np.arange(len(vectors)))[1],
        "before": before,
        "anchor": predict(anchor, aside.center)[1],
        "candidate": predict(made, aside.center)[1],
    }
    if recipe in CHANGES:
        found["candidate"] = CHANGES[recipe](found["candidate"], seed)
    return found, alarm


def split_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows kept apart to judge by, and the rest."""
    order = numpy_rng(seed, "held out").permutation(count)
    cut = round(0.3 * count)
    return np.sort(order[:cut]), np.sort(order[cut:])


def signals(found: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The gain on held-out images by their labels, and the gate's signals without them."""
    models = [found[name] for name in ("before", "anchor", "candidate")]
    right = [float((p.argmax(1) == found["labels"]).mean()) for p in models]
    gain = {"gain": right[2] - right[0], "before": right[0], "anchor": right[1], "after": right[2]}
    return {**gain, **gate.measure(models[0], models[1], models[2], found["near"])}


def batches(domain: Features) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(domain.center[part], np.float32)) for part in mixed_parts(domain.ids)]


def _pair(p: np.ndarray, seed: int) -> tuple[int, int]:
    """Two classes that follow each other by how much they are predicted; which two, the seed says."""
    first = seed % (p.shape[1] - 1)
    a, b = np.argsort(-p.sum(0), kind="stable")[first : first + 2]
    return int(a), int(b)


def _swapped(p: np.ndarray, seed: int) -> np.ndarray:
    """Two classes exchanged."""
    a, b = _pair(p, seed)
    out = p.copy()
    out[:, [a, b]] = p[:, [b, a]]
    return out


def _merged(p: np.ndarray, seed: int) -> np.ndarray:
    """A class given to another."""
    a, b = _pair(p, seed)
    out = p.copy()
    out[:, a] += out[:, b]
    out[:, b] = 0.0
    return out


CHANGES = {"swapped": _swapped, "merged": _merged}
_CONTRAST_ALONE: dict[str, Any] = {"lr": 3e-3, "weights": {"labels": 0.0}}
# What each recipe changes in the settings; those of HARM in benchmarks/speed/gate.py are made to do harm.
RECIPES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("bn", "tent", "shot", "t3ar", "adacontrast")},
    "rate x 30": {"method": "shot", "lr": 3e-2},
    "entropy alone": {"method": "tent", "lr": 1e-2, "steps": 240},
    "sorted batches": {"contrast": {"pool_set": "none"}, "batch_size": 8, "stream": True, "steps": None, "lr": 3e-3},
    "shuffled labels": {"method": "finetune", "lr": 1e-3},
    "pool of noise": {"contrast": {"pool_set": "all", "exclusion": "none"}, **_CONTRAST_ALONE},
    "pool is the target": {
        "contrast": {"pool_set": "all", "exclusion": "none", "exclude_class": False},
        **_CONTRAST_ALONE,
    },
    "swapped": {"method": "shot"},  # a good adaptation but for two classes
    "merged": {"method": "shot"},
}
GRADED = ("entropy alone", "sorted batches", "pool of noise", "pool is the target")
GRADES = (1.0, 0.3, 0.1, 0.03)


def candidate(
    anchor: Network,
    learn: Features,
    pool: PoolFeatures,
    recipe: str,
    seed: int,
    settings: AdaptSettings,
    *,
    moving: bool = False,
) -> tuple[Network, str | None]:
    """The adapted network, and what a stream alarm would say; `moving`: its prototypes are those of clusters."""
    if settings.method == "bn":
        return anchor, None
    if settings.stream:  # one class at a time in truth; what the anchor makes of them is for the alarm to see
        learn = learn.take(np.argsort(learn.labels, kind="stable"))
    rng = numpy_rng(seed, recipe)
    rows, seen = predict(anchor, learn.center)
    found, outside, labels = no_retrievals(len(learn.ids), 0), pool.center[:0], None
    ids = [f"outside-{i}" for i in range(len(learn.ids))]
    if recipe == "t3ar":
        found = nearest(rows, predict(anchor, pool.center)[0], learn.ids, pool.ids, settings.num_neighbors)
        outside, ids = pool.center[found.used], [pool.ids[i] for i in found.used]
    elif recipe == "pool of noise":
        mean, spread = learn.center.mean(0, np.float32), learn.center.std(0, np.float32)
        outside = (mean + spread * rng.standard_normal(learn.center.shape)).astype(np.float32)
    elif recipe == "pool is the target":
        outside = learn.center
    elif recipe == "shuffled labels":
        labels = seen.argmax(1)
        some = rng.random(len(labels)) < (0.7, 0.5, 0.35, 0.2)[seed % len(GRADES)]
        labels[some] = rng.permutation(labels[some])
    made_up = len(outside) and recipe != "t3ar"
    own = None if anchor.prototypes is None else anchor.prototypes.clone()
    network = Network(copy.deepcopy(anchor.model), settings.layer, prototypes=own)
    adapter = Adapter(
        network,
        learn.supply(outside if len(outside) else None, seed),
        learn.ids,
        settings,
        labels=labels,
        lists=rng.integers(0, len(outside), (len(learn.ids), 2)) if made_up else found.among_used(),
        scores=None if made_up else found.scores,
        pool_ids=ids[: len(outside)],
        recluster=moving,
        seed=seed,
    )
    predicted = seen.argmax(1)
    alarm = gate.stream_alarm([predicted[batch] for batch in adapter.batches(0)], seed=seed)
    adapter.run()
    return network, alarm


# ---- models without a classifier: what counts is retrieval among the target's images --------------------------------

Naming = Literal["gallery", "clusters"]
CLUSTERS = 8  # as many as `adapt` finds in the domains of PACS


def naming(seed: int) -> Naming:
    """Where the classes come from: labeled images of the source, or clusters of the target, in turns."""
    return "gallery" if seed % 2 else "clusters"


class EmbedderStart:
    """A model before it is adapted, and what is the same for every recipe."""

    def __init__(self, base: Embedder, gallery: Features, target: Features, seed: int) -> None:
        model = copy.deepcopy(base)
        model.classifier = None
        self.network = Network(model, LAYER)
        self.target, self.seed = target, seed
        self.held, rest = split_rows(len(target.ids), seed)
        self.aside, self.learn = target.take(self.held), target.take(rest)
        self.every = predict(self.network, target.center)[0]
        # Images and their classes, of which prototypes are the means.
        self.images, self.codes = gallery.center, gallery.labels
        if naming(seed) == "clusters":
            rows = target_classes.normalize(self.every[rest])
            found = target_classes.find_clusters(rows, CLUSTERS, seed=seed)
            if found.centers is None:
                raise LookalikeError(f"There is nothing to judge by: {found.why}.")
            self.images, self.codes = self.learn.center, (rows @ found.centers.T).argmax(1)
        self.arrays, self.scores = self.seen(self.network, self.every)

    def prototypes(self, network: Network) -> np.ndarray:
        """As this network sees them, unless it has its own."""
        if network.prototypes is not None:
            return np.asarray(network.prototypes.numpy())
        return target_classes.prototypes(predict(network, self.images)[0], self.codes, int(self.codes.max()) + 1)

    def seen(self, network: Network, every: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """What a network makes of held-out images, and how well it finds all of the target's (`every`)."""
        arrays = {"rows": every[self.held], "prototypes": self.prototypes(network)}
        arrays["again"] = predict(network, self.aside.strong[0])[0]
        scores = retrieval_metrics(every, self.target.labels).mean()
        return arrays, {"recall": scores["recall@1"], "map": scores["map@r"]}


def adapted_embedder(
    start: EmbedderStart, pool: PoolFeatures, recipe: str, settings: AdaptSettings
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Adapt by a recipe. What the models make of held-out images, and how well they find all of the target's."""
    anchor = start.network
    if settings.method == "bn":
        anchor = Network(recalibrated(anchor.model, batches(start.learn), settings.layer), settings.layer)
    begun = Network(anchor.model, settings.layer, prototypes=torch.from_numpy(start.prototypes(anchor)))
    moving = naming(start.seed) == "clusters"
    made, alarm = candidate(begun, start.learn, pool, recipe, start.seed, settings, moving=moving)
    arrays, scores = start.seen(made, predict(made, start.target.center)[0])
    found = {"labels": start.aside.labels}  # and all that another rule may want to see
    found |= {f"before {name}": rows for name, rows in start.arrays.items()}
    found |= {f"after {name}": rows for name, rows in arrays.items()}
    return found, {"alarm": alarm, "naming": naming(start.seed), "before": start.scores, "after": scores}


def embedder_signals(found: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The gate's signals, from what was kept of a run."""
    before, after = (
        Seen(_whole(found[f"{name} rows"]), _whole(found[f"{name} again"])) for name in ("before", "after")
    )
    logits = before.rows @ _whole(found["before prototypes"]).T / TEMPERATURE
    probabilities: np.ndarray = torch.from_numpy(logits).double().softmax(1).numpy()
    return gate_retrieval.measure(before, after, probabilities)


def _whole(rows: np.ndarray) -> np.ndarray:
    """Kept in half precision."""
    return rows.astype(np.float32)
