"""lookalike: from a folder of images to a search you can trust.

Every verb of the command line is a function here, with the same name and options::

    import lookalike as la

    model = la.Embedder.from_pretrained("efficientnet_lite0")
    vectors = model.encode(["a.jpg", "b.jpg"])
    la.train(data="birds/")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike._version import __version__
from lookalike.core.errors import LookalikeError
from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike import shift
    from lookalike.adaptation import adapt, forget, rollback
    from lookalike.core.run import Run
    from lookalike.data import Table, read_table
    from lookalike.evaluation import compare, evaluate
    from lookalike.integrations.sklearn import ImageEmbedder
    from lookalike.models import Embedder, embed, export
    from lookalike.reporting import report
    from lookalike.searching import Index, backup, duplicates, index, purge, restore, search, switch
    from lookalike.service import serve
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
    "compare",
    "duplicates",
    "embed",
    "evaluate",
    "export",
    "forget",
    "index",
    "pretrain",
    "purge",
    "read_table",
    "recipes",
    "report",
    "restore",
    "rollback",
    "search",
    "serve",
    "shift",
    "switch",
    "train",
]

__getattr__, __dir__ = lazy_exports(__name__)
