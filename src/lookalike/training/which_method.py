"""Which method suits the images, by what was measured: `configs/measured.json`, which is made from `results/`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json
from lookalike.data.table import Table

FEW_IMAGES = 12
"""Up to so many images a class (the median) are few: methods were compared at 5 and from 33 on."""


def measured_choice(command: str, kind: str) -> tuple[str, str]:
    """The method that a command runs on this kind of data, and what was measured."""
    path = Path(str(resources.files("lookalike") / "configs" / "measured.json"))
    row = read_json(path, "list of methods")[command][kind]
    return row["method"], row["why"]


def choose_method(table: Table) -> tuple[str, str]:
    """The name of the training method for labeled images, and the reason in one line; raise without labels."""
    codes = table.labels()[0]
    counts = np.unique(codes[codes >= 0], return_counts=True)[1]
    if not len(counts):
        raise LookalikeError(f"`{table.name}` has no labels to train on: `lookalike pretrain` learns without them.")
    images = int(np.median(counts))
    kind = "few images" if images <= FEW_IMAGES else "many images"
    method, why = measured_choice("train", kind)
    return method, f"{len(counts):,} classes of {images} images, which is {kind} a class: {why}"
