"""The judged placing and the whole curve: what their figures say of given runs."""

from __future__ import annotations

import pytest

from benchmarks.speed import curve, place


def row(truth, low, high, verdict="placed"):
    return {
        "truth": truth,
        "low": low,
        "high": high,
        "value": (low + high) / 2,
        "blind_low": 0.2,
        "blind_high": 1.0,
        "verdict": verdict,
    }


def test_coverage_and_width():
    rows = [row(0.5, 0.4, 0.6), row(0.9, 0.4, 0.8), row(0.3, 0.0, 0.6, "out_of_range"), row(0.6, 0.4, 0.8)]
    found = place.summary(rows)
    assert found["covered"] == 0.75 and found["folders"] == 4 and found["out_of_range"] == 1
    assert found["covered_low"] < 0.75 < found["covered_high"]
    assert found["width"] == pytest.approx(0.4) and found["width_ratio"] == pytest.approx(0.5)
    assert found["mean_error"] == pytest.approx((0.0 + 0.3 + 0.0 + 0.0) / 4)


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
