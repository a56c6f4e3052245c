"""Runs of the XBN paper at its own scale."""

from __future__ import annotations

from typing import Any

from benchmarks.papers.xbn_runs import RULES, Cell
from lookalike.core.settings import merge

BATCH = 64


def paper_settings(cell: Cell, recipe: str = "xbn_sop") -> dict[str, Any]:
    """Settings of a cell at the paper's scale: the recipe's epochs, whatever the batch size."""
    from lookalike.training.recipe import load

    base = load(recipe)
    scale = BATCH / cell.batch
    own = {
        "memory": RULES[cell.rule],
        "head": {"norm": cell.norm},
        "sampler": {"classes_per_batch": cell.batch // 4, "images_per_class": 4},
        "schedule": {"step_size": round(base["schedule"]["step_size"] * scale)},
        "steps": round(base["steps"] * scale),
        "evaluate_every": round(base["evaluate_every"] * scale),
        "keep": "trained",
    }
    return merge(base, own)
