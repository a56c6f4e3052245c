"""The bed of adaptations for models without a classifier: what counts is what they find among the target's images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.papers import simulated_adaptations
from benchmarks.papers.simulated_adaptations import Features, Outside
from lookalike.adaptation import gate_retrieval, target_classes
from lookalike.adaptation.adapter import predict
from lookalike.adaptation.gate_retrieval import Seen
from lookalike.adaptation.network import TEMPERATURE, Network, recalibrated
from lookalike.adaptation.settings import AdaptSettings
from lookalike.core.errors import LookalikeError
from lookalike.evaluation.retrieval import retrieval_metrics
from lookalike.models import Embedder

Naming = Literal["gallery", "clusters"]
CLUSTERS = 8  # as many as `adapt` finds in the domains of PACS


def naming(seed: int) -> Naming:
    """Where the classes come from: labeled images of the source, or clusters of the target, in turns."""
    return "gallery" if seed % 2 else "clusters"


class Start:
    """A model before it is adapted, and what is the same for every recipe."""

    def __init__(self, base: Embedder, gallery: Features, target: Features, seed: int) -> None:
        model = copy.deepcopy(base)
        model.classifier = None
        self.network = Network(model, simulated_adaptations.LAYER)
        self.target, self.seed = target, seed
        self.held, rest = simulated_adaptations.apart(len(target.ids), seed)
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
        self.arrays, self.told = self.seen(self.network, self.every)

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


def adapted(
    start: Start, pool: Outside, recipe: str, settings: AdaptSettings
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Adapt by a recipe. What the models make of held-out images, and how well they find all of the target's."""
    anchor = start.network
    if settings.method == "bn":
        anchor = Network(
            recalibrated(anchor.model, simulated_adaptations.batches(start.learn), settings.layer), settings.layer
        )
    begun = Network(anchor.model, settings.layer, prototypes=torch.from_numpy(start.prototypes(anchor)))
    moving = naming(start.seed) == "clusters"
    made, alarm = simulated_adaptations.candidate(begun, start.learn, pool, recipe, start.seed, settings, moving=moving)
    arrays, told = start.seen(made, predict(made, start.target.center)[0])
    found = {"labels": start.aside.labels}  # and all that another rule may want to see
    found |= {f"before {name}": rows for name, rows in start.arrays.items()}
    found |= {f"after {name}": rows for name, rows in arrays.items()}
    return found, {"alarm": alarm, "naming": naming(start.seed), "before": start.told, "after": told}


def measured(found: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The gate's signals, from what was kept of a run."""
    before, after = (
        Seen(_whole(found[f"{name} rows"]), _whole(found[f"{name} again"])) for name in ("before", "after")
    )
    logits = before.rows @ _whole(found["before prototypes"]).T / TEMPERATURE
    told: np.ndarray = torch.from_numpy(logits).double().softmax(1).numpy()
    return gate_retrieval.measure(before, after, told)


def _whole(rows: np.ndarray) -> np.ndarray:
    """Kept in half precision."""
    return rows.astype(np.float32)
