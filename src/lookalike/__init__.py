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
from lookalike.core.lazy import lazily

if TYPE_CHECKING:
    from lookalike import shift
    from lookalike.adapting import adapt, forget, protocol, rollback
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
    "adapt",
    "backup",
    "bench",
    "compare",
    "demo",
    "doctor",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "forget",
    "index",
    "migrate",
    "pretrain",
    "protocol",
    "purge",
    "read_table",
    "recipes",
    "report",
    "reproduce",
    "restore",
    "rollback",
    "search",
    "serve",
    "shift",
    "switch",
    "train",
]

# Where each name lives. Imported on first use, so that `import lookalike` stays instant.
_find, __dir__ = lazily(
    __name__,
    {
        "Embedder": "models",
        "ImageEmbedder": "models",
        "Table": "data",
        "read_table": "data",
        "Run": "core.run",
        "embed": "models",
        "export": "models",
        "evaluate": "evaluation",
        "compare": "evaluation",
        "train": "training",
        "pretrain": "training",
        "adapt": "adapting",
        "rollback": "adapting",
        "forget": "adapting",
        "protocol": "adapting",
        "index": "searching",
        "search": "searching",
        "duplicates": "searching",
        "switch": "searching",
        "backup": "searching",
        "restore": "searching",
        "purge": "searching",
        "Index": "searching",
        "report": "reporting",
        "demo": "tour",
        "doctor": "tour",
        "bench": "benches",
        "reproduce": "claims",
        "serve": "service",
        "recipes": "training",
        "migrate": "tour",
    },
)


def __getattr__(name: str) -> Any:
    if name == "shift":  # a room of verbs: `lookalike.shift.splits(...)` is `lookalike shift splits`
        return importlib.import_module("lookalike.shift")
    return _find(name)
