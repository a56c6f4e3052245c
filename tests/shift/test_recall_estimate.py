"""The estimate of recall: what judges a folder, its interval, and that every kind weighs the same."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.shift import recall_estimate
from lookalike.shift.recall_estimate import Estimator, GradedFolder, judging_folders, ridge, weighted_quantile


def folder(rng, classes, quirk, images=200, per_class=12.0):
    """Recall depends on what the folder tells and on its classes, of which it tells nothing."""
    features = rng.standard_normal(3)
    level = 0.8 + 0.2 * features[0] + quirk[list(classes)].mean() + 0.03 * rng.standard_normal()
    recall = float(np.sin(np.clip(level, 0.05, 1.5)) ** 2)
    known = tuple(int(code) for code in classes)
    return GradedFolder(known, known, max(2, round(images / per_class)), images, 1.0, recall, tuple(features.tolist()))


def test_the_interval_covers_what_it_promises_on_unseen_classes():
    covered, widths, blind = [], [], []
    for trial in range(12):
        rng = numpy_rng(trial, "world")
        quirk = 0.15 * rng.standard_normal(36)
        fitted = Estimator.fit([folder(rng, rng.permutation(24)[:4], quirk) for _ in range(200)])
        for _ in range(8):
            new = folder(rng, 24 + rng.permutation(12)[:4], quirk)
            result, nothing = (
                fitted.predict(new.columns(classes_known=False), new.images, 0.9),
                fitted.predict_baseline(0.9),
            )
            assert result.low <= result.value <= result.high
            covered.append(result.low <= new.recall <= result.high)
            widths.append(result.high - result.low)
            blind.append(nothing.high - nothing.low)
    assert 0.83 <= np.mean(covered) <= 0.99
    assert np.mean(widths) < 0.8 * np.mean(blind)


def test_what_judges_a_folder_has_none_of_its_classes():
    rng = numpy_rng(3, "apart")
    folders = [folder(rng, rng.permutation(12)[: 1 + k % 6], np.zeros(12)) for k in range(60)]
    for own, mask in zip(folders, judging_folders(folders), strict=True):
        expected = [not set(own.excluded) & set(other.classes) for other in folders]
        assert mask.tolist() == expected


def test_folders_that_cannot_judge_each_other_are_refused():
    rng = numpy_rng(0, "one class")
    with pytest.raises(LookalikeError, match="Only 0 of 40 folders"):
        Estimator.fit([folder(rng, [0], np.zeros(1)) for _ in range(40)])


def test_with_the_number_of_classes_far_kinds_do_not_count():
    rng, none = numpy_rng(2, "near"), np.zeros(80)
    folders = [folder(rng, [k % 40], none, per_class=(2.0, 30.0)[k % 2]) for k in range(200)]
    fitted = Estimator.fit(folders, classes_known=True)
    assert len(fitted.mean) == len(Estimator.fit(folders).mean) + 2
    weights = fitted._weights(0)
    assert (weights[fitted.kinds == 4] == 0).all() and (weights[fitted.kinds == 0] > 0).all()
    assert (fitted._weights(2) > 0).all()  # none is near: all count
    by_kind = [fitted._weights(None)[fitted.kinds == kind].sum() for kind in (0, 4)]
    assert by_kind == pytest.approx([1.0, 1.0])


def test_ridge_and_quantiles_by_hand(monkeypatch):
    monkeypatch.setattr(recall_estimate, "PENALTY", 0.0)
    x = np.array([[0.0, 1], [1, 1], [2, 1], [5, 1]])
    assert ridge(x, np.array([1.0, 3, 5, 99]), np.array([1.0, 1, 1, 0])) == pytest.approx([2, 1], abs=1e-6)
    values, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 1.0, 2.0])
    assert [weighted_quantile(values, weights, q) for q in (0.2, 0.25, 0.5, 0.9)] == [1.0, 1.0, 2.0, 3.0]
