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
    "splits": "splitting",
}

if TYPE_CHECKING:
    from lookalike.shift.splitset import Split, SplitSet
    from lookalike.shift.splitting import splits

__all__ = ["Split", "SplitSet", "splits"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
