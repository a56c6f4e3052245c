"""`shift`: the FIDs of CUB's whole sequence of swaps and removals, against SciPy's matrix root.

Features of 1,280 numbers, FID on samples. The peer computes each FID from nothing, as a single process does it: two
covariances and `sqrtm` of their product, with as many threads as BLAS may use. Ours includes choosing the classes.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext

MODEL = "efficientnet_lite0"


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import scipy

    from lookalike.shift.class_swaps import swap_sequence
    from lookalike.shift.fid import ClassFID
    from lookalike.shift.make_splits import default_sides

    table, features = _features(context)
    codes, names = table.labels()
    sides = default_sides(table)
    context.say("ours")
    begun = time.perf_counter()
    whole = swap_sequence(ClassFID(features, codes), names, sides, draws=0)
    ours = time.perf_counter() - begun
    begun = time.perf_counter()
    swap_sequence(ClassFID(features, codes, "means"), names, sides, draws=0)
    means = time.perf_counter() - begun
    rows = ClassFID(features, codes)
    differences, begun = [], time.perf_counter()
    for number, (step, state) in enumerate(zip(whole.steps, whole.sides, strict=True), 1):
        expected = by_root(rows.rows(state.train), rows.rows(state.test))
        differences.append(abs(step.fid - expected) / expected)
        context.say(f"peer {number} of {len(whole.steps)}")
    peer = time.perf_counter() - begun
    fids = [step.fid for step in whole.steps]
    figures = {
        "peer": f"SciPy {scipy.__version__} sqrtm, each FID from nothing",
        "features": list(features.shape),
        "steps": len(whole.steps),
        "seconds": {"ours": round(ours, 2), "peer": round(peer, 2), "ours, on class means": round(means, 2)},
        "seconds a step": {"ours": round(ours / len(fids), 3), "peer": round(peer / len(fids), 3)},
        "fid": {"easiest": min(fids), "start": fids[whole.start], "end of swapping": fids[whole.end], "last": fids[-1]},
    }
    return figures, [
        Bar("times faster than recomputing with SciPy's matrix root", round(peer / ours, 1), 10),
        Bar("largest relative difference from it", float(f"{max(differences):.1e}"), 1e-6, "lower"),
    ]


def by_root(x: np.ndarray, y: np.ndarray) -> float:
    """The peer."""
    from scipy.linalg import sqrtm

    gap = x.mean(0) - y.mean(0)
    first, second = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    return float(gap @ gap + np.trace(first) + np.trace(second) - 2 * np.trace(sqrtm(first @ second)).real)


def _features(context: BenchContext) -> tuple[Any, np.ndarray]:
    from lookalike.data import read_table
    from lookalike.data.augmentation import CenterView
    from lookalike.models import Embedder, features_for

    model = Embedder.from_pretrained(MODEL)
    table = read_table(context.folder("cub"))
    return table, np.array(features_for(model, table, views=[CenterView(model.preprocess)])[0])
