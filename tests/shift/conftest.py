"""Made-up features of classes on a line, with a table that goes with them."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.seeds import numpy_rng
from lookalike.data import Table


def make_classes(classes=21, images=9, dim=6, seed=0):
    """A table without files and a feature a row: classes of unequal size, spread along the first axis."""
    rng = numpy_rng(seed, "classes")
    sizes = rng.integers(images - 2, images + 3, classes)
    labels = np.repeat(np.arange(classes), sizes)
    centres = rng.standard_normal((classes, dim)) * np.linspace(2, 0.5, dim)
    features = centres[labels] + 0.6 * rng.standard_normal((len(labels), dim))
    names = [f"kind {label}" for label in labels]
    paths = [f"{name}/{i:04}.jpg" for i, name in enumerate(names)]
    return Table.from_columns({"path": paths, "label": names}, name="kinds"), features.astype(np.float32)


@pytest.fixture
def classes():
    return make_classes
