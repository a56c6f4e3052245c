"""Parts of the library lightly, which is an extra: `pip install 'lookalike[ssl]'`."""

from __future__ import annotations

import importlib
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.imports import prepare_torchvision


def part(module: str, name: str, method: str) -> Any:
    """`lightly.MODULE.NAME`, or the sentence that says how to get it."""
    prepare_torchvision()
    try:
        return getattr(importlib.import_module(f"lightly.{module}"), name)
    except ImportError as error:
        raise LookalikeError(
            f"The method `{method}` needs the library lightly: pip install 'lookalike[ssl]', or take carp or moco."
        ) from error
