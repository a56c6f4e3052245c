"""What is kept of a run of DMCAC's claims."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SAMPLE = 1000  # unseen images that cosines and attention are measured on
# Of a run's own figures, and of what its maps show: means on and off the diagonal, early and late in training and on
# unseen classes.
FIGURES = (
    "recall", "step 0", "frozen", "cosine", "cosine 0", "gradient divergence", "gradient classes", "gradient attention",
    "images", "seconds",
)  # fmt: skip
PLACES = ("early", "late", "unseen")
MAPS = ("share", "attention", "whole", "near")
MAPPED = tuple(f"{place} {name}{side}" for place in PLACES for name in MAPS for side in ("", " other"))
MEASURES = (*FIGURES, *MAPPED, "diagonal")


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What is kept of a run's own figures; a mean of the gradients over the second half of the steps."""
    recall = {name: round(100 * found["recall@1"]["value"], 3) for name, found in result["measured"].items()}
    out = {"recall": recall["trained"], "step 0": recall["step 0"], "frozen": recall["starting model"]}
    for name in ("divergence", "classes", "attention"):
        values = [row[f"gradient/{name}"] for row in log if f"gradient/{name}" in row]
        out[f"gradient {name}"] = round(statistics.fmean(values[len(values) // 2 :]), 6) if values else 0.0
    held = [row for row in log if "validation/recall@1" in row]
    if held:  # of the last step, whichever was the best
        out |= {f"validation {name}": 100 * held[-1][f"validation/{name}"] for name in ("recall@1", "map@r")}
    return {**out, "seconds": result["seconds"]["train"]}


def looked_at(run: Any) -> dict[str, float]:
    """Mean cosine of unseen images before and after; images that were embedded to train; what the maps show, of
    trained classes early and late, of unseen classes at the end. 0 where a method has no attention."""
    import torch

    from lookalike.core.seeds import numpy_rng
    from lookalike.methods.collapse import mean_cosine
    from lookalike.methods.dmcac_report import ClassMaps, diagonal
    from lookalike.models import Embedder
    from lookalike.training import checkpoint
    from lookalike.training.runner import load_table
    from lookalike.training.selection import embed_features
    from lookalike.training.settings import resolve
    from lookalike.training.setup import build_setup

    table, division = load_table(run)
    parts = build_setup(resolve(run.config), table, division, run)
    rows = numpy_rng(0, "claims", "unseen").permutation(division.test)[:SAMPLE]
    before = torch.from_numpy(embed_features(parts.model.head, parts.features[rows], parts.start_norm))
    z = torch.from_numpy(Embedder.from_pretrained(run.model).encode(table.take(rows), runtime="torch"))
    out = dict.fromkeys((*MAPPED, "diagonal"), 0.0)
    out |= {"cosine 0": mean_cosine(before), "cosine": mean_cosine(z)}
    state = checkpoint.read(run.checkpoints / checkpoint.LAST)["method"]
    out["images"] = spent(parts, len(state.get("database", ())))
    kept = state.get("maps")
    if kept is not None and len(kept) and bool(torch.isfinite(kept[-1]).any()):
        places = (ClassMaps(*kept[0]), ClassMaps(*kept[-1]), _unseen(z, table.take(rows).labels()[0], state))
        for place, maps in zip(PLACES, places, strict=True):
            for name, found in zip(MAPS, maps, strict=True):
                own = diagonal(found)
                out |= {f"{place} {name}": own.own, f"{place} {name} other": own.other}
        out["diagonal"] = diagonal(places[1].attention).rows
    return {name: round(value, 5) for name, value in out.items()}


def spent(parts: Any, database: int) -> float:
    """Images that were embedded to train: those of the batches, and DMCAC's database whenever it was made."""
    from lookalike import methods

    settings, sampler = parts.settings, parts.sampler
    kind, steps = methods.find(settings.method.name), settings.steps
    total = steps * sampler.size * kind.views_per_image(settings.method.own())
    own: Any = kind.Settings.parse(settings.method.own())
    if database and (own.weights.divergence or own.weights.attention):
        every, epoch = own.refresh.every, sampler.steps_per_epoch
        made = {"steps": -(-steps // every), "epochs": -(-steps // (every * epoch)), "never": 1}[own.refresh.unit]
        total += database * (2 * steps if own.full == "gradient" else made)
    return float(total)


def _unseen(z: Any, labels: Any, state: Mapping[str, Any]) -> Any:
    """The maps where part of the unseen images is searched by the rest."""
    import torch

    from lookalike.losses.dmcac import AttentionHeads, Database
    from lookalike.methods.dmcac import split_database
    from lookalike.methods.dmcac_report import class_maps

    parted = split_database(labels, fraction=0.5, seed=0, verbose=False)
    codes = torch.from_numpy(labels)
    heads = AttentionHeads(*state["heads.classifier"].shape)
    heads.load_state_dict({name: state[f"heads.{name}"] for name in heads.state_dict()})
    queries, searched = (torch.from_numpy(rows) for rows in parted)
    classes = int(codes.max()) + 1
    k = min(12, len(searched))
    return class_maps(z[queries], codes[queries], Database(z[searched], codes[searched]), heads, k, (classes, classes))
