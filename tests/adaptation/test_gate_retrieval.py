"""The gate for models without a classifier: signals against plain loops, and what passes."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.adaptation import gate_retrieval, signals
from lookalike.adaptation.gate_retrieval import FindingThresholds, Seen
from lookalike.adaptation.target_classes import normalize

CLASSES, COUNT = 6, 520


def model(spread: float, seed: int = 0, shake: float = 0.3) -> tuple[Seen, np.ndarray]:
    """Images around the directions of their classes, a view of each, and the probabilities of the classes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLASSES, COUNT)
    centers = normalize(rng.normal(size=(CLASSES, 12)))
    own, more = rng.normal(size=(COUNT, 12)), np.random.default_rng(seed + 1).normal(size=(2, COUNT, 12))
    rows = normalize(centers[truth] + spread * own + 0.02 * more[0])
    logits = rows @ centers.T / 0.07
    p = np.exp(logits - logits.max(1, keepdims=True))
    seen = Seen(rows.astype(np.float32), normalize(rows + shake * spread * more[1]).astype(np.float32))
    return seen, p / p.sum(1, keepdims=True)


def nearest(row: np.ndarray, rows: np.ndarray, own: int, k: int) -> set[int]:
    order = sorted((i for i in range(len(rows)) if i != own), key=lambda i: -float(row @ rows[i]))
    return set(order[:k])


def test_signals_equal_plain_loops() -> None:
    (one, told), (two, _) = model(0.3), model(0.25, seed=5)
    rows, other = one.rows[:60], two.rows[:60]
    stay = [len(nearest(rows[i], rows, i, 10) & nearest(other[i], other, i, 10)) / 10 for i in range(60)]
    assert signals.overlap(rows, other) == pytest.approx(np.mean(stay))
    again = one.again[:60]
    found = [len(nearest(rows[i], rows, i, 10) & nearest(again[i], rows, i, 10)) / 10 for i in range(60)]
    assert signals.stable(rows, again) == pytest.approx(np.mean(found))
    codes, scores = told.argmax(1)[:60], []
    for i, row in enumerate(rows):
        size = int((codes == codes[i]).sum()) - 1
        order = sorted((j for j in range(60) if j != i), key=lambda j: -float(row @ rows[j]))
        hits = [codes[j] == codes[i] for j in order[:size]]
        scores.append(sum(np.mean(hits[: n + 1]) for n in range(size) if hits[n]) / size)
    assert signals.found_by_names(rows, codes) == pytest.approx(np.mean(scores), abs=1e-6)
    assert signals.found_by_names(rows[:2], np.array([0, 1])) == 0.0
    assert signals.overlap(rows[:1], other[:1]) == 0.0


def test_what_finds_better_passes_and_worse_does_not() -> None:
    before, told = model(0.35)
    better = model(0.3, shake=0.2)[0]
    found = gate_retrieval.without_labels(before, better, told)
    assert found.promoted and "by what it finds" in found.sentence and "not shown to be large" in found.sentence
    assert list(found.headline.values()) == [found.figures[name] for name in ("overlap", "names", "stable")]
    same = gate_retrieval.without_labels(before, before, told)
    assert not same.promoted and "finds too few more" in same.sentence and "MAP@R +0.0" in same.sentence
    rng = np.random.default_rng(3)
    noise = normalize(rng.normal(size=before.rows.shape)).astype(np.float32)
    ruined = gate_retrieval.without_labels(before, Seen(noise, noise), told)
    assert not ruined.promoted and "of the ten nearest images" in ruined.sentence and "surest" in ruined.sentence
    point = normalize(np.ones_like(before.rows) + 0.05 * noise).astype(np.float32)  # all on one point, in no order
    assert not gate_retrieval.without_labels(before, Seen(point, point[::-1].copy()), told).promoted
    shaky = Seen(better.rows, model(0.3, shake=2.0)[0].again)
    assert "another view" in gate_retrieval.without_labels(before, shaky, told).sentence
    assert "alarm" in gate_retrieval.without_labels(before, better, told, alarm="alarm").sentence
    few = (Seen(seen.rows[:50], seen.again[:50]) for seen in (before, better))
    assert "too few" in gate_retrieval.without_labels(*few, told[:50]).sentence


def test_every_threshold_decides() -> None:
    limits = FindingThresholds()
    good = {"images": 500, "overlap": 0.9, "names": 0.02, "stable": 0.02}
    assert not gate_retrieval.reasons_to_keep(good, limits)
    for name in ("overlap", "names", "stable"):
        assert len(gate_retrieval.reasons_to_keep({**good, name: getattr(limits, name) - 1e-6}, limits)) == 1, name
        assert len(gate_retrieval.reasons_to_keep({**good, name: float("nan")}, limits)) == 1, (
            "what is no number never passes"
        )
