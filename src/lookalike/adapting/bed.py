"""A bed of adaptations on cached features: a model of one domain, adapted to another, helpfully or to its harm."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from lookalike.adapting import gate, measuring
from lookalike.adapting.adapter import Adapter, predict
from lookalike.adapting.clusters import unit
from lookalike.adapting.network import Network, mixed_parts, recalibrated
from lookalike.adapting.settings import AdaptSettings, resolve
from lookalike.adapting.supply import Arrays, make
from lookalike.core.device import CPU
from lookalike.core.seeds import numpy_rng, torch_rng
from lookalike.evaluation.neighbours import top_k
from lookalike.models import Embedder
from lookalike.models.norms import make_norm

DIM, STEPS, RATE = 64, 120, 1e-3
BASE = {"layer": "pooled", "batch": 64, "steps": STEPS, "rate": RATE, "batch_norm": "frozen", "bank": {"size": 4096}}


@dataclass(frozen=True)
class Features:
    """Pooled features of a domain under views, its labels, and the eyes of the retriever."""

    ids: list[str]
    weak: np.ndarray
    strong: np.ndarray
    centre: np.ndarray
    labels: np.ndarray

    def take(self, rows: np.ndarray) -> Features:
        ids = [self.ids[i] for i in rows]
        return Features(ids, self.weak[:, rows], self.strong[:, rows], self.centre[rows], self.labels[rows])

    def supply(self, pool: np.ndarray | None = None, seed: int = 0) -> Arrays:
        return Arrays(self.ids, self.weak, self.strong, self.centre, pool, seed=seed)


@cache
def backbone(size: int) -> Embedder:
    return Embedder.from_pretrained("efficientnet_lite0", size=size, device=CPU)


@cache
def domain_features(data: str, domain: str, size: int) -> Features:
    """Features of a domain of PACS, made once."""
    table = measuring.domain(data, "pacs", domain)
    found: Any = make(backbone(size), "pooled", table, None, views=4)
    weak, strong, centre = (np.asarray(values, np.float32) for values in (found._weak, found._strong, found._centre))
    return Features(found.ids, weak, strong, centre, table.labels()[0])


def source_model(backbone: Embedder, source: Features, seed: int, *, steps: int = 300) -> Network:
    """Head, norm layer and classifier trained on the labels of a domain; the backbone's features are given."""
    model = copy.deepcopy(backbone)
    model.set_random_head(DIM, seed)
    model.norm = make_norm("bn", DIM)
    model.classifier = nn.Linear(DIM, int(source.labels.max()) + 1)
    with torch.no_grad():
        model.classifier.weight.copy_(
            torch.randn(model.classifier.weight.shape, generator=torch_rng(seed, "classifier"))
        )
        model.classifier.bias.zero_()
    over = {
        **BASE,
        "method": "finetune",
        "steps": steps,
        "rate": 0.02,
        "head_factor": 1.0,
        "batch_norm": "target-train",
    }
    network = Network(model.eval(), "pooled")
    Adapter(network, source.supply(seed=seed), source.ids, resolve(None, over), labels=source.labels, seed=seed).run()
    return network


def settings_of(recipe: str, seed: int = 0, **over: Any) -> dict[str, Any]:
    """What a recipe is run with. Harm comes in grades, by the seed: from ruin to what is hard to see."""
    found: dict[str, Any] = {**BASE, **RECIPES.get(recipe, {}), **over}
    if recipe in GRADED:
        found["rate"] *= GRADES[seed % len(GRADES)]
    return found


def adapted(start: Network, target: Features, recipe: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Adapt by a recipe; the gain on held-out pictures by their labels, and the gate's signals without them."""
    order = numpy_rng(seed, "held out").permutation(len(target.ids))
    cut = round(0.3 * len(order))
    aside, learn = target.take(np.sort(order[:cut])), target.take(np.sort(order[cut:]))
    base = start.model
    own = settings["batch_norm"] == "keep"
    anchor = start if own else Network(recalibrated(base, _batches(learn), "pooled"), "pooled")
    made, alarm = candidate(base, anchor, learn, recipe, seed, resolve(None, settings))
    _, before = predict(start, aside.centre)
    _, middle = predict(anchor, aside.centre)
    _, after = predict(made, aside.centre)
    if recipe in CHANGES:
        after = CHANGES[recipe](after, seed)
    eyes = unit(aside.centre)
    near = top_k(eyes, eyes, 5, exclude=np.arange(len(eyes)))[1]
    right = [float((p.argmax(1) == aside.labels).mean()) for p in (before, middle, after)]
    found = gate.measure(before, middle, after, near)
    return {
        "gain": right[2] - right[0],
        "before": right[0],
        "anchor": right[1],
        "after": right[2],
        "alarm": alarm,
        **found,
    }


def _batches(domain: Features) -> list[torch.Tensor]:
    return [torch.from_numpy(np.asarray(domain.centre[part], np.float32)) for part in mixed_parts(domain.ids)]


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
# What each recipe changes in the settings; those of HARM in benches/gate.py are made to do harm.
RECIPES: dict[str, dict[str, Any]] = {
    "tent": {"method": "tent"},
    "shot": {"method": "shot"},
    "t3ar": {"contrast": {"pool_set": "none"}, "rate": 1e-5},
    "adacontrast": {"method": "adacontrast"},
    "rate x 30": {"method": "shot", "rate": 30 * RATE},
    "entropy alone": {"method": "tent", "rate": 0.1, "steps": 4 * STEPS},
    "sorted batches": {"contrast": {"pool_set": "none"}, "batch": 8, "stream": True, "steps": None, "rate": 0.02},
    "shuffled labels": {"method": "finetune"},
    "pool of noise": {"contrast": {"pool_set": "all", "exclusion": "none"}, "rate": 0.03, "weights": {"labels": 0.0}},
    "pool is the target": {
        "contrast": {"pool_set": "all", "exclusion": "none", "exclude_class": False},
        "rate": 0.03,
        "weights": {"labels": 0.0},
    },
    "swapped": {"method": "shot"},  # a good adaptation but for two classes
    "merged": {"method": "shot"},
}
GRADED = ("entropy alone", "sorted batches", "pool of noise", "pool is the target")
GRADES = (1.0, 0.3, 0.1, 0.03)


def candidate(
    base: Embedder, anchor: Network, learn: Features, recipe: str, seed: int, settings: AdaptSettings
) -> tuple[Network, str | None]:
    """The adapted network, and what a stream alarm would say."""
    if recipe == "bn":
        return anchor, None
    if settings.stream:  # one class at a time in truth; what the anchor makes of them is for the alarm to see
        learn = learn.take(np.argsort(learn.labels, kind="stable"))
    network = Network(copy.deepcopy(anchor.model), "pooled")
    rng = numpy_rng(seed, recipe)
    pool, lists, labels = None, None, None
    if recipe == "pool of noise":
        pool = rng.normal(size=(len(learn.ids), learn.centre.shape[1])).astype(np.float32)
    elif recipe == "pool is the target":
        pool = learn.centre
    elif recipe == "shuffled labels":
        labels = predict(anchor, learn.centre)[1].argmax(1)
        some = rng.random(len(labels)) < (0.7, 0.5, 0.35, 0.2)[seed % len(GRADES)]
        labels[some] = rng.permutation(labels[some])
    if pool is not None:
        lists = rng.integers(0, len(pool), (len(learn.ids), 2))
    adapter = Adapter(
        network,
        learn.supply(pool, seed),
        learn.ids,
        settings,
        labels=labels,
        lists=lists,
        pool_ids=[f"outside-{i}" for i in range(0 if pool is None else len(pool))],
        seed=seed,
    )
    seen = predict(anchor, learn.centre)[1].argmax(1)
    alarm = gate.stream_alarm([seen[batch] for batch in adapter.batches(0)], seed=seed)
    adapter.run()
    return network, alarm
