"""What the methods of the shift curve become when their own parts are switched off, and how their parts move."""

from __future__ import annotations

import pytest
import torch
from tests.methods.test_common import DIM, batch, context

from lookalike import methods
from lookalike.core.errors import LookalikeError
from lookalike.methods import Batch
from lookalike.models.heads import BlockLinear


def make(name, **settings):
    kind = methods.find(name)
    return kind(kind.Settings.parse(settings), context())


def loss_of(method, z=None):
    rows = batch()
    actual = method.embed(rows)
    if z is not None:
        actual["z"] = z
    return method.loss(actual, Batch((), rows.layer, rows.labels, rows.ids))


def test_what_remains_when_the_parts_are_off():
    plain = loss_of(make("margin")).item()
    assert loss_of(make("r_margin", beta=1.2, switch_probability=0.0)).item() == plain
    assert loss_of(make("uniform_prior", weight=0.0)).item() == plain
    base = loss_of(make("r_margin")).item()
    assert loss_of(make("s2sd", target_dims=[], feature_weight=0.0)).item() == base
    assert loss_of(make("r_margin", beta=1.2)).item() != plain
    assert loss_of(make("s2sd")).item() != base


def test_diva_alone_is_margin_on_its_first_head():
    method = make("diva", alpha=0.0, decorrelation=0.0)
    z = method.embed(batch())["z"]
    first = torch.nn.functional.normalize(z[:, : DIM // 4], dim=1)
    assert loss_of(method).item() == pytest.approx(loss_of(make("margin"), first).item(), rel=1e-6)


@pytest.mark.parametrize("tasks", ["random", "paper"])
def test_divas_tasks_reach_their_heads(tasks):
    method = make("diva", decorrelation=0.0, tasks=tasks)
    method.filled += 5
    method.queue[:5] = torch.nn.functional.normalize(torch.ones(5, DIM // 4) + torch.arange(5)[:, None], dim=1)
    loss_of(method).backward()
    by_head = method.context.model.head.weight.grad.view(4, -1).abs().sum(1)
    assert (by_head > 0).all()


def test_divas_slow_copy_and_queue():
    method = make("diva", queue_size=30, momentum=0.5)
    head = method.context.model.head
    before = head.weight.detach().clone()
    with torch.no_grad():
        head.weight += 1.0
    selected = head.weight.detach().clone()
    method.loss(method.embed(batch()), batch())
    assert torch.equal(head.weight, selected)  # the slow weights were in it for a moment only
    for _ in range(3):
        method.after_step()
    slow = method.get_buffer(f"momentum_{[id(p) for p in method._trained].index(id(head.weight))}")
    assert torch.allclose(slow, before + (1 - 0.5**3))
    assert int(method.filled) == 36
    assert (method.queue.norm(dim=1) - 1).abs().max() < 1e-5


def test_permuted_labels_are_dealt_out_and_come_back_in_any_order():
    method, rows = make("diva"), batch()
    dealt = method.stream.shuffled(rows.labels, rows.ids, 1, "shared")
    assert sorted(dealt.tolist()) == sorted(rows.labels.tolist())
    assert dealt.tolist() != rows.labels.tolist()
    flipped = method.stream.shuffled(rows.labels.flip(0), rows.ids.flip(0), 1, "shared")
    assert torch.equal(flipped, dealt.flip(0))


def test_the_discriminator_steps_as_adam_does():
    method = make("uniform_prior", update_every=1, lr=0.01)
    loss_of(method)
    twin = [layer.clone().requires_grad_() for layer in method.layers]
    adam = torch.optim.Adam(twin, lr=0.01, betas=(0.5, 0.999))
    from lookalike.losses import uniform_prior

    for step in (1, 2, 3):
        method.context.step = step
        noise = 2 * method.stream.uniform(tuple(method._rows.shape), step, "noise") - 1
        adam.zero_grad()
        uniform_prior.discriminator_loss(twin, method._rows, noise).backward()
        adam.step()
        method.after_step()
    for ours, theirs in zip(method.layers, twin, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)


def test_the_priors_rows_get_the_spread_of_uniform_noise():
    method = make("uniform_prior")
    loss_of(method)
    assert method._rows.square().mean().item() == pytest.approx(1 / 3, rel=1e-5)


def test_a_teacher_draws_the_student():
    """A step along S2SD's feature term brings the similarities nearer to those of the features."""
    method = make("s2sd", target_dims=[], feature_weight=1.0)
    actual = method.embed(batch())
    from lookalike.losses.s2sd import distillation_loss

    z = actual["z"].detach().requires_grad_()
    apart = distillation_loss(actual["features"], z)
    apart.backward()
    moved = torch.nn.functional.normalize(z.detach() - 0.5 * z.grad, dim=1)
    assert distillation_loss(actual["features"], moved) < apart


def test_blocks():
    plain = torch.nn.Linear(5, 8)
    head = BlockLinear.from_linear(plain, 4)
    assert BlockLinear.from_linear(head, 4) is head
    x = torch.randn(3, 5)
    raw = plain(x)
    out = head(x).view(3, 4, 2)
    assert torch.allclose(out.norm(dim=2), torch.ones(3, 4))
    assert torch.allclose(
        out[:, 1], torch.nn.functional.normalize(raw[:, [1, 5]], dim=1), atol=1e-6
    )  # dealt out in turn
    with pytest.raises(LookalikeError, match="cannot be cut into 3"):
        BlockLinear.from_linear(plain, 3)


def test_active_anchors_need_the_miner():
    with pytest.raises(LookalikeError, match="epsilon"):
        make("ms", average="active")
    assert loss_of(make("ms", average="active", epsilon=0.1)).item() > 0
