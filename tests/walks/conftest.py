"""The terminal of the walks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.walks.terminal import Terminal


@pytest.fixture
def terminal(cli: Callable[..., Any]) -> Terminal:
    """Runs commands in this process, as the `lookalike` command does."""
    return Terminal(cli)
