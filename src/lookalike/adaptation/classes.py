"""Where the classes of an adaptation come from: the model, labels, a gallery, clusters, or nowhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from lookalike.adaptation import clusters
from lookalike.adaptation.network import TEMPERATURE
from lookalike.core.errors import LookalikeError
from lookalike.data import Table, audit, read_table
from lookalike.models import Embedder

if TYPE_CHECKING:
    from lookalike.adaptation.request import Asked


@dataclass(frozen=True)
class Classes:
    """Names (where known), prototypes (where the model has no classifier), and how they came about."""

    names: list[str]
    prototypes: np.ndarray | None
    how: str
    moving: bool = False
    table: Table | None = None
    codes: np.ndarray | None = None
    """The images the prototypes are means of, and their classes."""

    def of(self, model: Embedder) -> np.ndarray | None:
        """The prototypes as this model sees them."""
        if self.prototypes is None or self.table is None or self.codes is None:
            return None
        return clusters.prototypes(model.encode(self.table, runtime="torch"), self.codes, len(self.prototypes))


def find_classes(model: Embedder, learn: Table, asked: Asked) -> Classes:
    """The classifier's own classes, those of labels or of a gallery, or clusters; or none, with the reason."""
    if model.classifier is not None:
        return Classes(names_of(model), None, "the model's classifier")
    if asked.labeled or asked.gallery is not None:
        table = learn if asked.gallery is None else audit(read_table(asked.gallery), near=False).table
        codes, names = table.labels()
        if len(names) < 2:
            raise LookalikeError(f"`{table.name}` has {len(names)} classes; at least 2 are needed.")
        rows = model.encode(table, runtime="torch")
        how = "labels of the target" if asked.gallery is None else f"prototypes of {len(names)} classes of the gallery"
        return Classes(names, clusters.prototypes(rows, codes, len(names)), how, table=table, codes=codes)
    rows = clusters.unit(model.encode(learn, runtime="torch"))
    found = clusters.find(rows, asked.clusters, seed=asked.seed)
    if found.centers is None:
        return Classes([], None, found.why)
    groups = (rows @ found.centers.T).argmax(1)
    return Classes([], found.centers, found.why, moving=True, table=learn, codes=groups)


def with_classifier(model: Embedder, classes: Classes) -> Embedder:
    """A copy with a classifier that starts as the prototypes; a model with one of its own keeps it."""
    out = copy.deepcopy(model)
    own = classes.of(out) if out.classifier is None else None
    if own is not None:
        out.classifier = nn.Linear(out.dim, len(own))
        with torch.no_grad():
            out.classifier.weight.copy_(torch.from_numpy(own / TEMPERATURE))
            out.classifier.bias.zero_()
        out.card["classes"] = list(classes.names)
    return out


def names_of(model: Embedder) -> list[str]:
    """The classes of its classifier."""
    return [str(name) for name in model.card.get("classes", [])]


def codes_of(table: Table, names: list[str]) -> np.ndarray:
    """Labels as places in `names`."""
    codes, own = table.labels()
    place = {name: i for i, name in enumerate(names)}
    missing = [name for name in own if name not in place]
    if (codes < 0).any() or missing:
        what = f"the class `{missing[0]}`, which the model does not know" if missing else "images without a label"
        raise LookalikeError(f"`{table.name}` has {what}; its labels cannot be learned from.")
    return np.array([place[own[code]] for code in codes], np.int64)
