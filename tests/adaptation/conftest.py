"""A small model with classes, and the same as a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests import helpers
from torch import nn

from lookalike.adaptation import gate
from lookalike.models import Embedder


def small(classes: int | None = 3, dim: int = 8) -> Embedder:
    """A small EfficientNet with random weights at 32 px, a head, and a classifier where classes are wanted."""
    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    model.set_random_head(dim)
    if classes:
        model.classifier = nn.Linear(dim, classes)
        model.card["classes"] = [f"class-{i:02d}" for i in range(classes)]
        with torch.no_grad():
            model.classifier.weight.mul_(10)
    return model


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "classifier"
    small(4).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "embedder"
    small(None).save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def expert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "expert"
    torch.manual_seed(1)
    Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg").save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def small_expert(expert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Judged by a small network; the real experts would take most of the time."""
    monkeypatch.setattr(gate, "EXPERTS", (str(expert),))


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return helpers.make_images(tmp_path_factory.mktemp("target") / "new", classes=4, images=10, width=40, height=32)


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other images."""
    return helpers.make_images(
        tmp_path_factory.mktemp("pool") / "outside", classes=3, images=5, width=40, height=32, seed=7
    )
