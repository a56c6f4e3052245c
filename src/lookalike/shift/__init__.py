"""How far a model can be trusted: splits of growing difficulty, the curve over them, few shots, and placing.

Each verb of `lookalike shift` is a function here: `lookalike.shift.splits(data="birds/")`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, since torch takes seconds.
_LAZY = {
    "Split": "splitset",
    "SplitSet": "splitset",
    "fewshot": "adapting",
    "place": "placing",
    "run": "running",
    "splits": "splitting",
}

if TYPE_CHECKING:
    from lookalike.shift.adapting import fewshot
    from lookalike.shift.placing import place
    from lookalike.shift.running import run
    from lookalike.shift.splitset import Split, SplitSet
    from lookalike.shift.splitting import splits

__all__ = ["Split", "SplitSet", "fewshot", "place", "run", "splits"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
