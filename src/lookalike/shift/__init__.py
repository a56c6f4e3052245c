"""How far a model can be trusted: splits of growing difficulty, the curve over them, few shots, and placing.

Each verb of `lookalike shift` is a function here: `lookalike.shift.splits(data="birds/")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.lazy import lazily

if TYPE_CHECKING:
    from lookalike.shift.few_shot import fewshot
    from lookalike.shift.placement import place
    from lookalike.shift.running import run
    from lookalike.shift.splitset import Split, SplitSet
    from lookalike.shift.splitting import splits

__all__ = ["Split", "SplitSet", "fewshot", "place", "run", "splits"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Split": "splitset",
        "SplitSet": "splitset",
        "fewshot": "few_shot",
        "place": "placement",
        "run": "running",
        "splits": "splitting",
    },
)
