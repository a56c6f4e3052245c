"""MoCo: the loss against a naive loop, the key encoder's motion, the shuffle."""

from __future__ import annotations

import math

import pytest
import torch
from tests.methods.test_common import batch, context

from lookalike.core.seeds import torch_rng
from lookalike.methods import Batch
from lookalike.methods.moco import MoCo, MoCoSettings


def make(**settings) -> MoCo:
    return MoCo(MoCoSettings.parse({"projection_dim": 5, "memory": {"size": 30}, **settings}), context())


def pair(number: int) -> dict[str, torch.Tensor]:
    generator = torch_rng(number, "pair")
    return {
        name: torch.nn.functional.normalize(torch.randn(12, 5, generator=generator), dim=1) for name in ("query", "key")
    }


def naive(query, keys, positive, temperature=0.1):
    """−log of the share that the own key has of all keys in the queue."""
    total = 0.0
    for i, q in enumerate(query.tolist()):
        scores = [sum(a * b for a, b in zip(q, k, strict=True)) / temperature for k in keys]
        most = max(scores)
        total -= scores[positive[i]] - most - math.log(sum(math.exp(s - most) for s in scores))
    return total / len(query)


def test_the_loss_is_that_of_the_own_key_among_the_queue():
    method, queue = make(), []
    for number in (1, 2, 3, 4):
        method.context.step = number
        actual = pair(number)
        queue = [*queue, *actual["key"].tolist()][-30:]
        expected = naive(actual["query"], queue, range(len(queue) - 12, len(queue)))
        assert method.loss(actual, batch()).item() == pytest.approx(expected, rel=1e-4)
    assert method.memory.count == 30


def test_with_xbn_the_queue_has_the_moments_of_the_keys_that_come():
    method = make(memory={"size": 24, "drift": "xbn"})
    method.context.step = 1
    method.loss(pair(1), batch())
    method.context.step = 2
    second = pair(2)
    method.loss(second, batch())
    older = method.memory.rows[:12]
    assert torch.allclose(older.mean(0), second["key"].mean(0), atol=1e-5)
    assert torch.allclose(older.std(0, correction=0), second["key"].std(0, correction=0), atol=1e-5)


def test_the_key_encoder_follows_slowly_and_has_no_gradient():
    method = make(momentum=0.9)
    before = [p.clone() for p in method.key_model.parameters()]
    with torch.no_grad():
        for parameter in method.context.model.parameters():
            parameter.add_(1.0)
    method.before_step()
    for old, new in zip(before, method.key_model.parameters(), strict=True):
        assert torch.allclose(new, old + 0.1)
        assert not new.requires_grad
    actual = method.embed(batch())
    assert actual["query"].requires_grad and not actual["key"].requires_grad


def test_keys_are_shuffled_and_put_back():
    method, seen = make(), []
    usual = method.context.features

    def watch(a_batch, view, model=None):
        if model is not None:
            seen.append(a_batch.views[0])
        return usual(a_batch, view, model)

    method.context.features = watch
    rows = batch()
    same = Batch((rows.views[0], rows.views[0]), rows.layer, rows.labels, rows.ids)
    actual = method.embed(same)
    assert not torch.equal(seen[0], rows.views[0])
    assert sorted(seen[0].tolist()) == sorted(rows.views[0].tolist())
    # The encoders are still equal, so each key is its own image's query.
    assert torch.allclose(actual["query"], actual["key"], atol=1e-6)
    assert len(method.views("a view")) == 2
