"""A tiny model and a few images, shared by the tests of training."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import helpers

from lookalike.core.run import Run
from lookalike.core.settings import merge

# Small enough that a run takes a second, with everything in it that a real one has.
SMALL = {
    "head": {"embedding_dim": 16},
    "sampler": {"classes_per_batch": 4, "images_per_class": 3},
    "steps": 12,
    "evaluate_every": 4,
    "log": {"every_n_steps": 2, "tensorboard": False},
    "optimizer": {"lr": 1e-3},
    "data": {"near_duplicates": False},
}
PAIR = merge(SMALL, {"keep": "trained", "steps": 8, "views": {"mode": "end_to_end"}, "model": {"freeze": "stage0"}})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 8 images."""
    return helpers.make_images(tmp_path_factory.mktemp("images") / "shelf", classes=12, images=8, width=48, height=40)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: a small EfficientNet with random weights at 32 px."""
    import torch

    from lookalike.models import Embedder

    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    path = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def pair(folder: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two processes, made once."""
    from lookalike.training import train

    out = tmp_path_factory.mktemp("pair") / "run"
    return train(data=folder, model=tiny, out=out, method="proxy_anchor", settings=PAIR, processes=2, report=False)
