"""The gradient of a step is that of the joint loss: under accumulation, over processes, with dropout and batch-norm."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from lookalike.core import distributed
from lookalike.core.seeds import torch_rng
from lookalike.losses.pml import MultiSimilarityLoss
from lookalike.methods.base import Batch, Method
from lookalike.training.batchnorm import gather_statistics
from lookalike.training.step import joint_gradient

COUNT, WIDTH, DIM = 11, 7, 5


class Net(nn.Module):
    """Batch-norm, dropout and a head; `mode` says how batch-norm behaves."""

    def __init__(self, mode: str, dropout: float = 0.0) -> None:
        super().__init__()
        generator = torch_rng(0, "net")
        self.first, self.norm = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(8, DIM)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        if mode == "frozen":
            self.norm.eval()
        elif mode == "gathered":
            gather_statistics(self)
        self.double()

    @staticmethod
    def apply_norm(rows):
        return rows

    def forward(self, x):
        return nn.functional.normalize(self.head(self.dropout(torch.relu(self.norm(self.first(x))))), dim=1)


class Both(Method):
    """Has a parameter that works in `embed`, one in `loss` and one in both, and a tensor without gradient."""

    name = "both"

    def __init__(self, model):
        super().__init__(None, SimpleNamespace(model=model))
        self.early, self.late, self.shared = (nn.Parameter(torch.full((DIM,), v).double()) for v in (1.1, 0.9, 1.3))
        self.criterion = MultiSimilarityLoss()

    def embed(self, batch):
        z = self.context.model(batch.views[0])
        return {"z": z * self.early * self.shared, "fixed": z.detach() * 2, "ids": batch.ids}

    def loss(self, embeddings, batch):
        assert not batch.views
        assert embeddings["ids"].tolist() == batch.ids.tolist()  # the joint order
        rows = embeddings["z"] * self.late + self.shared + 0.1 * embeddings["fixed"]
        return self.criterion(rows, batch.labels) + rows.var(0).sum()


def batch() -> Batch:
    generator = torch_rng(1, "batch")
    x = torch.randn(COUNT, WIDTH, generator=generator).double()
    return Batch((x,), "pooled", torch.arange(COUNT) % 3, torch.arange(COUNT) * 10)


def gradients(accumulate: int, mode: str = "frozen", dropout: float = 0.0) -> dict:
    torch.manual_seed(5)
    model = Net(mode, dropout)
    method = Both(model)
    joint = batch()
    loss = joint_gradient(
        method,
        joint.part(distributed.rank_slice(COUNT)),
        joint,
        accumulate=accumulate,
        autocast=contextlib.nullcontext,
        backward=lambda value: value.backward(),
    )
    named = [*model.named_parameters(), *method.named_parameters()]
    return {
        "loss": loss.item(),
        **{name: parameter.grad.tolist() for name, parameter in named},
        "running": [model.norm.running_mean.tolist(), model.norm.running_var.tolist()],
        "seen": int(model.norm.num_batches_tracked),
        "after": torch.rand(1).item(),
    }


def assert_equal(actual: dict, expected: dict, **tolerance) -> None:
    tolerance = tolerance or {"rtol": 1e-5, "atol": 1e-6}  # embeddings meet the loss in float32
    for name, value in expected.items():
        if name != "after":
            np.testing.assert_allclose(actual[name], value, err_msg=name, **tolerance)


@pytest.mark.parametrize("accumulate", [2, 3, COUNT])
def test_accumulation_gives_the_gradient_of_the_joint_batch(accumulate):
    assert_equal(gradients(accumulate), gradients(1))


def test_without_the_joint_loss_the_gradient_would_be_another():
    """The twin that everybody writes first: the mean of the micro-batches' losses."""
    method = Both(Net("frozen"))
    joint = batch()
    for rows in (slice(0, 6), slice(6, 11)):
        part = joint.part(rows)
        (method.loss(method.embed(part), Batch((), "pooled", part.labels, part.ids)) / 2).backward()
    expected = gradients(1)
    assert not np.allclose(method.context.model.first.weight.grad, expected["first.weight"], rtol=0.05)


def test_dropout_draws_the_same_numbers_in_both_passes():
    torch.manual_seed(5)
    first = gradients(3, dropout=0.5)
    again = gradients(3, dropout=0.5)
    assert first == again
    # The naive twin: one graph over the three parts, kept in memory, with the same random numbers.
    torch.manual_seed(5)
    method = Both(Net("frozen", 0.5))
    joint = batch()
    outputs = [method.embed(joint.part(distributed.rank_slice(COUNT, n, 3))) for n in range(3)]
    whole = {name: torch.cat([o[name] for o in outputs]).float() for name in ("z", "fixed")}
    method.loss(whole | {"ids": joint.ids}, Batch((), "pooled", joint.labels, joint.ids)).backward()
    np.testing.assert_allclose(first["first.weight"], method.context.model.first.weight.grad, rtol=1e-5, atol=1e-6)


def test_running_statistics_move_once_under_accumulation():
    actual = gradients(2, mode="train")
    assert actual["seen"] == 2  # one for each micro-batch, none for the pass without gradient


def several() -> list[dict]:
    """One start of two processes for all cases: starting them is what takes the time."""
    return [gradients(1, "frozen"), gradients(2, "frozen"), gradients(1, "gathered")]


def test_two_processes_give_the_gradient_of_one_on_the_joint_batch():
    frozen, trained = gradients(1, "frozen"), gradients(1, "train")
    for plain, accumulated, gathered in distributed.launch(several, 2):
        assert_equal(plain, frozen)
        assert_equal(accumulated, frozen)
        assert_equal(gathered, trained)


def test_gathered_statistics_with_one_process_are_torchs_own():
    assert_equal(gradients(1, mode="gathered"), gradients(1, mode="train"), rtol=1e-6, atol=1e-7)


def test_gathered_statistics_go_through_timms_batch_norm_with_its_activation():
    from lookalike.core.imports import import_timm

    import_timm()
    from timm.layers import BatchNormAct2d

    x = torch.randn(4, 3, 5, 5, generator=torch_rng(2, "x"))
    ours, theirs = BatchNormAct2d(3), BatchNormAct2d(3)
    gather_statistics(ours)
    assert torch.allclose(ours(x), theirs(x), atol=1e-6)
    assert torch.allclose(ours.running_var, theirs.running_var)
    assert torch.allclose(ours.eval()(x), theirs.eval()(x), atol=1e-6)
    assert (ours(x) >= 0).all()
