"""lookalike: from a folder of pictures to a search you can trust.

Every verb of the command line is a function here, with the same name and options::

    import lookalike as la

    model = la.Embedder.from_pretrained("efficientnet_lite0")
    vectors = model.encode(["a.jpg", "b.jpg"])
    la.train(data="birds/")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lookalike._version import __version__
from lookalike.core.errors import LookalikeError

# Name -> where it lives; imported on first use, so that `import lookalike` stays instant.
_LAZY = {
    "Embedder": "lookalike.models",
    "ImageEmbedder": "lookalike.models",
    "Table": "lookalike.data",
    "read_table": "lookalike.data",
    "Run": "lookalike.core.run",
    "embed": "lookalike.models",
    "export": "lookalike.models",
    "evaluate": "lookalike.evaluation",
    "compare": "lookalike.evaluation",
    "train": "lookalike.training",
    "pretrain": "lookalike.training",
    "index": "lookalike.searching",
    "search": "lookalike.searching",
    "duplicates": "lookalike.searching",
    "switch": "lookalike.searching",
    "backup": "lookalike.searching",
    "restore": "lookalike.searching",
    "purge": "lookalike.searching",
    "Index": "lookalike.searching",
    "report": "lookalike.reporting",
    "demo": "lookalike.tour",
    "doctor": "lookalike.tour",
    "bench": "lookalike.benches",
    "reproduce": "lookalike.claims",
    "serve": "lookalike.service",
    "recipes": "lookalike.training",
    "migrate": "lookalike.tour",
}

if TYPE_CHECKING:
    from lookalike import shift
    from lookalike.benches import bench
    from lookalike.claims import reproduce
    from lookalike.core.run import Run
    from lookalike.data import Table, read_table
    from lookalike.evaluation import compare, evaluate
    from lookalike.models import Embedder, ImageEmbedder, embed, export
    from lookalike.reporting import report
    from lookalike.searching import Index, backup, duplicates, index, purge, restore, search, switch
    from lookalike.service import serve
    from lookalike.tour.demo import demo
    from lookalike.tour.doctor import doctor
    from lookalike.tour.migrate import migrate
    from lookalike.training import pretrain, recipes, train

__all__ = [
    "Embedder",
    "ImageEmbedder",
    "Index",
    "LookalikeError",
    "Run",
    "Table",
    "__version__",
    "backup",
    "bench",
    "compare",
    "demo",
    "doctor",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "index",
    "migrate",
    "pretrain",
    "purge",
    "read_table",
    "recipes",
    "report",
    "reproduce",
    "restore",
    "search",
    "serve",
    "shift",
    "switch",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "shift":  # a room of verbs: `lookalike.shift.splits(...)` is `lookalike shift splits`
        return importlib.import_module("lookalike.shift")
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'lookalike' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY, "shift"])
