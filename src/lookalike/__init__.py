"""Image embeddings and image search with measured quality.

Every command of the command line is a function here, with the same name and the same options.

Models and data:

- ``Embedder``: images to unit vectors; ``ImageEmbedder`` is the same for scikit-learn pipelines.
- ``read_table``: a folder, table or archive of images as a ``Table``.
- ``embed``, ``export``: vectors to a file; a model to ONNX.

Training and evaluation:

- ``train``, ``pretrain``, ``recipes``: train with or without labels; list the recipes. Both return a ``Run``.
- ``evaluate``, ``compare``, ``report``: metrics with confidence intervals; two models side by side; an HTML report.
- ``adapt``, ``promote``, ``rollback``, ``forget``: adapt a model to unlabeled images, and undo it.

Packages, loaded when they are used: ``data``, ``models``, ``losses``, ``memory``, ``methods``, ``training``,
``evaluation``, and ``shift`` for evaluation under distribution shift (``shift.splits``, ``shift.run``, …).

Search:

- ``index``, ``search``, ``duplicates``, ``serve``: build an index, query it, find duplicates, start the web service.
- ``switch``, ``backup``, ``restore``, ``verify``, ``purge``: change the model of an index, save, check, delete it.
- ``Index``: an open index.
- ``plan``: machines, hours, disk, memory and money for a number of images.

A mistake of the user raises ``LookalikeError`` with a one-line message.

Example:
    >>> import lookalike as la
    >>> model = la.Embedder.from_pretrained("efficientnet_lite0", size=64)
    >>> vectors = model.encode(la.read_table("photos"))
    >>> la.Embedder.similarity(vectors, vectors).shape
    (24, 24)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike._version import __version__
from lookalike.core.device import configure_openmp
from lookalike.core.errors import LookalikeError
from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike import data, evaluation, losses, memory, methods, models, shift, training
    from lookalike.adaptation import adapt, forget, promote, rollback
    from lookalike.core.run import Run
    from lookalike.data import Table, read_table
    from lookalike.evaluation import compare, evaluate
    from lookalike.integrations.sklearn import ImageEmbedder
    from lookalike.models import Embedder, embed, export
    from lookalike.planning import plan
    from lookalike.reporting import report
    from lookalike.searching import Index, backup, duplicates, index, purge, restore, search, switch, verify
    from lookalike.service import serve
    from lookalike.training import pretrain, recipes, train

__all__ = [
    "Embedder", "ImageEmbedder", "Index", "LookalikeError", "Run", "Table", "__version__", "adapt", "backup", "compare",
    "data", "duplicates", "embed", "evaluate", "evaluation", "export", "forget", "index", "losses", "memory", "methods",
    "models", "plan", "pretrain", "promote", "purge", "read_table", "recipes", "report", "restore", "rollback",
    "search", "serve", "shift", "switch", "train", "training", "verify",
]  # fmt: skip

configure_openmp()
__getattr__, __dir__ = lazy_exports(__name__)
