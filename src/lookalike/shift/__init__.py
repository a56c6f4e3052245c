"""How far a model can be trusted: splits of growing difficulty, performance along them, few-shot, and placement.

Each command of ``lookalike shift`` is a function here: ``lookalike shift splits birds/`` is
``lookalike.shift.splits(data="birds/")``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.shift.experiment import run
    from lookalike.shift.few_shot import fewshot
    from lookalike.shift.make_splits import splits
    from lookalike.shift.placement import place
    from lookalike.shift.split_set import Split, SplitSet

__all__ = ["Split", "SplitSet", "fewshot", "place", "run", "splits"]

__getattr__, __dir__ = lazy_exports(__name__)
