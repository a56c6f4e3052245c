"""Losses of adaptation: the specification's figures, and naive twins on random numbers."""

from __future__ import annotations

import pytest
import torch
from tests.naive import adapting as naive

from lookalike.losses import adaptation

LOGITS = torch.tensor([[1.0, 0, 0], [0, 2, 0]], dtype=torch.float64)


def test_figures_of_the_specification() -> None:
    assert float(torch.nn.functional.cross_entropy(LOGITS, torch.tensor([0, 2]))) == pytest.approx(1.395495, abs=1e-6)
    assert float(adaptation.diversity_loss(LOGITS)) == pytest.approx(-1.006199, abs=1e-6)
    assert float(adaptation.entropy_loss(LOGITS)) == pytest.approx(0.820450, abs=1e-6)
    assert float(adaptation.information_maximization_loss(LOGITS)) == pytest.approx(-0.185749, abs=1e-6)
    assert float(adaptation.class_confusion_loss(LOGITS, 2.5)) == pytest.approx(0.644931, abs=1e-6)


def test_naive_twins() -> None:
    logits = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    rows = logits.tolist()
    assert float(adaptation.diversity_loss(logits)) == pytest.approx(naive.diversity(rows), abs=1e-12)
    assert float(adaptation.entropy_loss(logits)) == pytest.approx(naive.entropy(rows), abs=1e-12)
    assert float(adaptation.information_maximization_loss(logits)) == pytest.approx(naive.information(rows), abs=1e-12)
    assert float(adaptation.class_confusion_loss(logits, 3.0)) == pytest.approx(naive.confusion(rows, 3.0), abs=1e-12)


def test_labels_of_shot_leave_out_classes_nobody_predicted() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(40, 5, dtype=torch.float64, generator=generator)
    logits = torch.randn(40, 4, dtype=torch.float64, generator=generator)
    logits[:, 2] = -50.0
    actual = adaptation.shot_pseudo_labels(features, logits)
    assert actual.tolist() == naive.shot_labels(features.tolist(), logits.tolist())
    assert 2 not in actual.tolist() and len(set(actual.tolist())) == 3


def test_a_mean_over_earlier_batches_softens_one_sided_ones() -> None:
    one = torch.tensor([[9.0, 0, 0]], dtype=torch.float64)
    even = torch.full((3,), 1 / 3, dtype=torch.float64)
    assert float(adaptation.diversity_loss(one, even)) < float(adaptation.diversity_loss(one)) - 0.5
