"""What a run would cost, for `--dry-run`: counts that are known, times that are guessed."""

from __future__ import annotations

from typing import Any

import numpy as np

from lookalike import methods
from lookalike.core.device import threads
from lookalike.core.files import human_bytes
from lookalike.data.table import Table
from lookalike.training.settings import TrainSettings
from lookalike.training.split import Division

# EfficientNet-Lite0 on one thread of a recent processor; other networks and machines differ by several times.
_PIXELS_A_SECOND = 165 * 160 * 160
_TRAINED_PIXELS_A_SECOND = 75 * 96 * 96


def estimate(settings: TrainSettings, table: Table, division: Division) -> dict[str, Any]:
    """Names and values to print; nothing is decoded or loaded for them."""
    codes = table.labels()[0]

    def side(rows: np.ndarray) -> str:
        return f"{len(rows):,} images, {len(np.unique(codes[rows])):,} classes"

    size = settings.model.size or 224
    views = len(table) + settings.views.num_cached * len(division.train)
    cache = views * size**2 / _PIXELS_A_SECOND / threads()
    sampler = settings.sampler
    batch = sampler.classes_per_batch * sampler.images_per_class if sampler.kind == "pk" else sampler.batch_size
    kind, own = methods.find(settings.method.name), settings.method.own()
    views_per_image = kind.views_per_image(own)
    if settings.views.mode == "cached" and settings.views.layer == "pooled":
        each = 0.015
        disk = views * 1280 * 4
    else:
        each = (
            batch
            * views_per_image
            * size**2
            * (1 + (settings.accumulation_steps > 1))
            / _TRAINED_PIXELS_A_SECOND
            / threads()
        )
        disk = len(table) * round(size / 0.875) ** 2 * 4
    return {
        "training": side(division.train),
        "validation": side(division.validation),
        "test": side(division.test),
        "parted by": division.rule,
        "method": settings.method.name,
        **kind.describe_plan(own, len(division.train), min(batch, len(division.train))),
        "model": settings.model.name,
        "steps": f"{settings.steps:,} of {batch:,} images"
        + (f" in {views_per_image} views" if views_per_image > 1 else ""),
        "time": f"roughly {_span(cache + settings.steps * each)} the first time ({_span(cache)} to fill the cache)",
        "disk": f"about {human_bytes(disk)} of cache",
    }


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
