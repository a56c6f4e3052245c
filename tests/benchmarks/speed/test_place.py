"""The judged placing and the whole curve: what their figures say of given runs."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.speed import curve, place
from lookalike.core.seeds import numpy_rng


def row(truth, low, high, kind="few", known=False, placed=True):
    estimate = {"low": low, "high": high, "value": (low + high) / 2} if placed else {}
    common = {"set": "cub", "kind": kind, "truth": truth, "classes known": known, "placed": placed}
    return {**common, **estimate, "blind_low": 0.2, "blind_high": 1.0}


def test_coverage_width_and_interval_score():
    rows = [
        row(0.5, 0.4, 0.6),
        row(0.9, 0.4, 0.8),
        row(0.3, 0.0, 0.6),
        row(0.6, 0.4, 0.8),
        row(0.5, 0, 0, placed=False),
    ]
    result = place.figures_of(rows)
    assert result["covered"] == 0.75 and result["folders"] == 5 and result["placed"] == 4
    assert result["placed_fraction"] == 0.8 and result["width"] == pytest.approx(0.4)
    assert result["score"] == pytest.approx(0.4 + 20 * 0.1 / 4) and result["blind_score"] == pytest.approx(0.8)
    assert result["mean_error"] == pytest.approx((0.0 + 0.3 + 0.0 + 0.0) / 4)


def test_the_worst_kind_is_judged_and_both_ways_to_ask():
    good = [row(0.5, 0.4, 0.6, known=known) for known in (False, True) for _ in range(30)]
    bad = [row(0.9, 0.4, 0.6, "many") for _ in range(25)]
    few = [row(0.9, 0.4, 0.6, "rare") for _ in range(5)]
    figures, bars = place.summarize([*good, *bad, *few])
    assert figures["seen while the rule was made"] == ["cub"] and figures["judged once"] == []
    assert bars[0].value == 0.0 and "cub many" in bars[0].name and not bars[0].ok
    assert bars[4].value == 1.0 and not bars[5].ok  # covered too often
    assert len(figures["classes unknown"]["kinds"]) == 3


def test_judged_folders_have_the_classes_and_sizes_of_their_kind():
    labels = np.repeat(np.arange(20), 30)
    rng = numpy_rng(0, "judged")
    chosen = labels[place.draw(labels, rng, 10, 5, falling=False)]
    assert (np.unique(chosen, return_counts=True)[1] == 5).all() and len(np.unique(chosen)) == 10
    sizes = np.unique(labels[place.draw(labels, rng, 10, 8, falling=True)], return_counts=True)[1]
    assert sizes.max() == 16 and sizes.min() <= 3


def test_the_time_of_a_curve_is_that_of_its_runs():
    rows = [
        {
            "method": method,
            "split": split,
            "fid": float(split),
            "seed": seed,
            "steps": 1000,
            "recall@1": 0.5,
            "seconds": {"train": 40.0, "measure": 8.0},
        }
        for method in "abcdefgh"
        for split in range(1, 10)
        for seed in range(3)
    ]
    result = {"rows": rows, "ags": {"recall@1": {"a": {"value": 0.5}}, "map@1000": {"a": {"value": 0.2}}}}
    figures, bars = curve.figures_of(result, 10.0, 2)
    assert figures["runs"] == 216 and figures["minutes"] == pytest.approx(216 * 48 / 2 / 60, abs=0.1)
    assert all(bar.ok for bar in bars)
    assert figures["table"][0]["split 9"] == 0.5
    slow = curve.figures_of(result, 100 * 60.0, 2)[1]
    assert not slow[1].ok
