"""The models a run ends with, as folders."""

from __future__ import annotations

from typing import Any

import torch

from lookalike import methods
from lookalike.core.run import Run
from lookalike.training import checkpoint
from lookalike.training.knn_eval import put_beside
from lookalike.training.loop import TrainingProgress
from lookalike.training.outcome import TRAINED, Outcome
from lookalike.training.prototypes import Facet, facet
from lookalike.training.setup import Assembly, starting_model

KEYS = ("recall@1", "map@r")


def save_models(run: Run, parts: Assembly, outcome: Outcome, done: TrainingProgress) -> Facet | None:
    """`model` is the kept one, its measured results in its card. What was trained without labels stands beside it when
    it is not the one (`trained`), and so does a student whose teacher is kept (`student`).

    The answer is what the report shows of the trained model's prototypes, if it has any.
    """
    settings = parts.settings
    best = checkpoint.read(run.checkpoints / checkpoint.BEST)
    model = parts.model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    model.requires_grad_(True)
    model.name, model.parent = run.path.name, parts.parent
    how = f"{settings.method.name}, step {done.best_step} of {settings.steps}, seed {settings.seed}"
    card = _card(parts, outcome)
    for name in put_beside(parts, best):
        model.save_pretrained(run.path / name, card={**card, "method": f"{how}, {name}"})
    found = facet(parts, best.get("keepsakes", {}))
    if found is not None:
        model.prototypes = found.prototypes
    if outcome.kept == TRAINED:
        model.save_pretrained(run.model, card={**card, "method": how})
        return found
    if not methods.find(settings.method.name).needs_labels:
        model.save_pretrained(run.path / TRAINED, card={**card, "method": how})
    starting_model(settings, parts.device).save_pretrained(run.model, card=card)
    return found


def _card(parts: Assembly, outcome: Outcome) -> dict[str, Any]:
    results = [
        {"model": name + (" (this one)" if name == outcome.kept else ""), **{k: m.intervals[k].to_json() for k in KEYS}}
        for name, m in outcome.measured.items()
    ]
    where = f"{len(outcome.rows):,} {outcome.side} images of the same collection"
    return {
        "data": f"{parts.table.name}: {len(parts.train):,} images"
        + (f" of {parts.classes:,} classes" if parts.classes else ""),
        "results": results,
        "limits": f"Measured on {where}. {outcome.sentence}",
    }
