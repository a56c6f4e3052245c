"""A small real model, and an index that tests may copy."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import helpers


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two model folders, `first` and `second`, fed with 64 pixels so that tests are quick."""
    from lookalike.models import Embedder

    folder = tmp_path_factory.mktemp("models")
    model = Embedder.from_pretrained("efficientnet_lite0", size=64)
    model.save_pretrained(folder / "first")
    model.set_random_head(32, seed=1)
    model.save_pretrained(folder / "second")
    return folder


@pytest.fixture(scope="session")
def model(models: Path) -> Path:
    return models / "first"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """24 images in 4 classes."""
    return helpers.make_images(tmp_path / "images")


@pytest.fixture(scope="session")
def _made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    from lookalike.searching import index

    base = tmp_path_factory.mktemp("made")
    images = helpers.make_images(base / "images", classes=5, images=12)
    shutil.copy(images / "class-01" / "3.jpg", images / "class-01" / "copy of 3.jpg")
    index(folder=images, model=model, index=base / "index", progress=False)
    return images, base / "index"


@pytest.fixture
def made(_made: tuple[Path, Path]) -> Any:
    """(images, index) of 61 images in 5 classes, one of them twice; not to be changed."""
    return _made
