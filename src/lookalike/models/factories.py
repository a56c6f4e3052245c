"""Networks of the user's own: made by a function of theirs, which is imported only when they allow it."""

from __future__ import annotations

import importlib
import os
import re
from typing import Any

from torch import nn

from lookalike.core.errors import LookalikeError

PREFIX = "factory:"
VARIABLE = "LOOKALIKE_FACTORIES"


def trust(factory: str) -> None:
    """Allow a factory in this process and in those it starts."""
    if not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", factory):
        raise LookalikeError(f"`{factory}` is not a factory: write `package.module:function`.")
    os.environ[VARIABLE] = ",".join(sorted({*_trusted(), factory}))


def _trusted() -> set[str]:
    return {name for name in os.environ.get(VARIABLE, "").split(",") if name}


def create(factory: str) -> nn.Module:
    """Call a factory, if it is allowed.

    Raises:
        LookalikeError: If the user did not allow it, it cannot be imported, or it makes no ``nn.Module``.
    """
    if factory not in _trusted():
        raise LookalikeError(
            f"This model is made by `{factory}`, code that is not part of lookalike. If you trust it: "
            f'Embedder.from_pretrained(…, factory="{factory}"), or {VARIABLE}={factory} in the environment.'
        )
    module, _, function = factory.partition(":")
    try:
        make: Any = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise LookalikeError(f"The factory `{factory}` cannot be imported ({error}).") from error
    network = make()
    if not isinstance(network, nn.Module):
        raise LookalikeError(f"The factory `{factory}` returned a {type(network).__name__}, not an nn.Module.")
    return network
