"""Training methods by name: ours, those of other packages (entry points), and those registered in this process.

A package adds a method with an entry point of the group `lookalike.methods`::

    [project.entry-points."lookalike.methods"]
    mine = "my_package.mine:Mine"        # a subclass of lookalike.methods.Method

Example:
    >>> from lookalike import methods
    >>> methods.find("supcon").__name__
    'SupCon'
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.core.settings import Settings
    from lookalike.methods.base import Batch, Context, LearningRates, Method
    from lookalike.methods.pml_methods import LossMethod

GROUP = "lookalike.methods"
BUILT_IN = {
    "arcface": "pml_methods:ArcFace",
    "axbn": "xbm:AXBN",
    "carp": "carp:CARP",
    "contrastive": "pml_methods:Contrastive",
    "dino": "dino:DINO",
    "diva": "diva:DiVA",
    "dmcac": "dmcac:DMCAC",
    "hyp": "hyp:Hyp",
    "margin": "margin:Margin",
    "moco": "moco:MoCo",
    "ms": "pml_methods:MultiSimilarity",
    "norm_softmax": "pml_methods:NormSoftmax",
    "proxy_anchor": "pml_methods:ProxyAnchor",
    "r_margin": "margin:RMargin",
    "s2sd": "s2sd:S2SD",
    "simsiam": "simsiam:SimSiam",
    "supcon": "pml_methods:SupCon",
    "triplet": "pml_methods:Triplet",
    "uniform_prior": "uniform_prior:UniformPrior",
    "xbm": "xbm:XBM",
    "xbn": "xbm:XBN",
}
"""Module and class of our methods."""
_HIDDEN = {"own_loss": "own_loss:OwnLoss"}
"""Methods that need objects, so that no name on the command line starts them."""
_REGISTERED: dict[str, type[Method]] = {}

__all__ = [
    "GROUP",
    "Batch",
    "Context",
    "LearningRates",
    "LossMethod",
    "Method",
    "Settings",
    "find",
    "names",
    "register",
]


def names() -> list[str]:
    """Return the names of all methods, sorted.

    Example:
        >>> "carp" in names()
        True
    """
    return sorted({point.name for point in entry_points(group=GROUP)} | set(BUILT_IN) | set(_REGISTERED))


def find(name: str) -> type[Method]:
    """Return the class of a method.

    Args:
        name: Name of the method, one of `names()`.

    Raises:
        LookalikeError: If there is no such method (with the nearest name), or its package cannot be imported.

    Example:
        >>> find("xbm").__name__
        'XBM'
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if ours := (BUILT_IN | _HIDDEN).get(name):  # without a look at other packages, which takes 50 ms
        module, attribute = ours.split(":")
        return getattr(import_module(f"{__name__}.{module}"), attribute)
    choose(name, names(), "a training method")
    point = next(p for p in entry_points(group=GROUP) if p.name == name)
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise LookalikeError(f"The method `{name}` ({point.value}) cannot be loaded: {error}.") from error


def register(name: str, method: type[Method]) -> None:
    """Register a method for this process only, for notebooks and tests.

    Args:
        name: Its name.
        method: Its class.

    Example:
        >>> register("mine", find("supcon"))
        >>> find("mine").__name__
        'SupCon'
        >>> del _REGISTERED["mine"]
    """
    _REGISTERED[name] = method


__getattr__, __dir__ = lazy_exports(__name__)
