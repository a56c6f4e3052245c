"""Fine-tuning with few labels: which images, the paper's schedule, and that the model given stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookalike.core.errors import LookalikeError
from lookalike.data import read_table
from lookalike.evaluation import finetune
from lookalike.models import Embedder
from tests import helpers


def test_a_share_of_every_class_at_least_one():
    labels = np.repeat([0, 1, 2, -1], [200, 50, 3, 40])
    rows = finetune.few_labels(labels, 0.1, 0)
    assert [int((labels[rows] == code).sum()) for code in (0, 1, 2, -1)] == [20, 5, 1, 0]
    assert np.array_equal(rows, finetune.few_labels(labels, 0.1, 0))
    assert not np.array_equal(rows, finetune.few_labels(labels, 0.1, 1))
    with pytest.raises(LookalikeError, match="at least 2 classes"):
        finetune.few_labels(np.zeros(5, np.int64), 0.1, 0)


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    folder = helpers.make_images(tmp_path_factory.mktemp("few") / "shelf", classes=6, images=8, width=40, height=40)
    return read_table(folder)


@pytest.mark.parametrize(
    ("schedule", "share", "labeled", "wanted"),
    [
        (finetune.FEW_LABELS, 0.5, 18, {0: (0.002, 0.5), 11: (0.002, 0.5), 12: (0.0004, 0.1), 16: (8e-5, 0.02)}),
        (finetune.LINEAR, 1.0, 36, {0: (0, 0.3), 59: (0, 0.3), 60: (0, 0.03), 80: (0, 0.003)}),
    ],
)
def test_the_schedules_are_the_papers_and_the_model_stays(schedule, share, labeled, wanted, table, monkeypatch):
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    before, rates, moved = model.fingerprint(), [], []
    usual = torch.optim.SGD.step

    def watch(self, closure=None):
        rates.append([group["lr"] for group in self.param_groups])
        assert all(group["momentum"] == 0.9 for group in self.param_groups)
        moved.append(any(p.grad is not None for p in self.param_groups[0]["params"]))
        return usual(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", watch)
    labels = table.labels()[0]
    known = np.arange(len(table)) % 8 < 6
    found = finetune.fine_tune(
        model,
        table.take(known),
        labels[known],
        table.take(~known),
        labels[~known],
        share=share,
        schedule=schedule,
        seed=0,
    )
    assert found.labeled == labeled and 0 <= found.top1 <= found.top5 <= 1 and found.top5 > 0.5
    assert {epoch: tuple(rates[epoch]) for epoch in wanted} == {e: pytest.approx(r) for e, r in wanted.items()}
    assert len(rates) == schedule.epochs and model.fingerprint() == before
    assert any(moved) != found.linear  # a linear classifier leaves the network alone
