"""A model that is quick to run: a tiny timm network with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lookalike.models import Embedder
from tests.helpers import make_images

SIZE = 48


def tiny(**options: object) -> Embedder:
    return Embedder.from_pretrained(
        "test_efficientnet", weights="random", **{"size": SIZE, "pooling": "gem", **options}
    )


@pytest.fixture
def model() -> Embedder:
    return tiny()


@pytest.fixture
def make() -> Callable[..., Embedder]:
    return tiny


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """12 JPEGs in 4 classes."""
    return sorted(make_images(tmp_path / "images", classes=4, images=3).rglob("*.jpg"))
