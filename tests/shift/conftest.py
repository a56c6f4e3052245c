"""Made-up features of classes on a line, with a table that goes with them."""

from __future__ import annotations

import numpy as np
import pytest
from tests import helpers

from lookalike.core.seeds import numpy_rng
from lookalike.data import Table
from lookalike.shift import running_time

ESTIMATE = running_time.running_time


def make_classes(classes=21, images=9, dim=6, seed=0):
    """A table without files and a feature a row: classes of unequal size, spread along the first axis."""
    rng = numpy_rng(seed, "classes")
    sizes = rng.integers(images - 2, images + 3, classes)
    labels = np.repeat(np.arange(classes), sizes)
    centers = rng.standard_normal((classes, dim)) * np.linspace(2, 0.5, dim)
    features = centers[labels] + 0.6 * rng.standard_normal((len(labels), dim))
    names = [f"kind {label}" for label in labels]
    paths = [f"{name}/{i:04}.jpg" for i, name in enumerate(names)]
    return Table.from_columns({"path": paths, "label": names}, name="kinds"), features.astype(np.float32)


@pytest.fixture(scope="session", autouse=True)
def no_estimate():
    """Runs do not time their stages first; the test of that puts `ESTIMATE` back."""
    stages = dict.fromkeys(("splits", "features", "runs", "report"), 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_time, "running_time", lambda *_, **__: stages)
        yield


@pytest.fixture
def classes():
    return make_classes


# A small model and images, as the tests of training have them.
SMALL = {
    "head": {"embedding_dim": 16},
    "sampler": {"classes_per_batch": 4, "images_per_class": 2},
    "optimizer": {"lr": 1e-3},
    "views": {"num_cached": 1},
}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """16 classes of 9 images."""
    return helpers.make_images(tmp_path_factory.mktemp("images") / "kinds", classes=16, images=9, width=48, height=40)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A model folder: a small EfficientNet with random weights at 32 px."""
    import torch

    from lookalike.models import Embedder

    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    path = tmp_path_factory.mktemp("models") / "tiny"
    model.save_pretrained(path)
    return path
