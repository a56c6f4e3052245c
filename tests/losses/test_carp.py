"""CARP's loss: the spec's vectors, a naive twin, closed-form gradients, and what must not be possible."""

from __future__ import annotations

import math

import pytest
import torch
from tests.naive import carp as naive

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.losses.carp import (
    CARPLoss,
    CARPOptions,
    carp_reference,
    check_blocks,
    draw_partition,
    fused_carp,
    view_pairs,
)

LN3 = math.log(3)
A = (
    [[[LN3, 0, 0, 0], [0, 0, 0, LN3]], [[LN3, 0, 0, 0], [0, 0, 0, 0]]],
    [[[LN3, 0, 0, 0], [0, 0, 0, LN3]], [[0, 0, 0, 0], [0, 0, 0, LN3]]],
)
B = (
    [[[1, -0.5, 2, 0], [0.3, 0.7, -1, 1.5]], [[0.8, 0, 1.5, -0.2], [-0.4, 1.1, 0.2, 0.9]]],
    [[[1.2, -0.1, 1.7, 0.1], [0.1, 0.5, -0.6, 1]], [[0.5, 0.2, 1.9, -0.7], [0, 0.6, -0.3, 1.4]]],
)
VECTORS = [
    (A, 2, [0, 1, 2, 3], 0.637361, 0.017683, 1.985552),
    (A, 2, [0, 3, 1, 2], 0.637361, 0.0, 1.967870),
    (A, 4, [0, 1, 2, 3], 1.242453, 0.031584, 2.516491),
    (B, 2, [2, 0, 3, 1], 0.656259, 0.005120, 2.010785),
    (B, 4, [0, 1, 2, 3], 0.991578, 0.030524, 2.013679),
]


def tensors(case, dtype=torch.float64):
    return tuple(torch.tensor(side, dtype=dtype) for side in case)


def logits(views: int, count: int, prototypes: int, name: str = "student", scale: float = 2.0) -> torch.Tensor:
    return scale * torch.randn(views, count, prototypes, generator=torch_rng(0, name), dtype=torch.float64)


@pytest.mark.parametrize(("case", "size", "permutation", "consistency", "balance", "pseudo"), VECTORS)
def test_the_vectors_of_the_spec(case, size, permutation, consistency, balance, pseudo):
    student, teacher = tensors(case)
    order = torch.tensor(permutation)
    actual = CARPLoss(size)(student, teacher, order)
    assert actual.consistency.item() == pytest.approx(consistency, abs=1e-6)
    assert actual.balance.item() == pytest.approx(balance, abs=1e-6)
    assert actual.loss.item() == pytest.approx(consistency + balance, abs=2e-6)
    theirs = naive.pseudocode(*student, *teacher, order, size).item()
    assert theirs == pytest.approx(pseudo, abs=2e-6)
    summed = CARPLoss(size, pair_reduction="sum")(student, teacher, order)
    assert summed.loss.item() + math.log(4 // size) == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    ("case", "permutation", "expected"),
    [
        (
            A,
            [0, 1, 2, 3],
            [
                [[0.004447, -0.004447, -0.005930, 0.005930], [0.005930, -0.005930, 0.014303, -0.014303]],
                [[-0.014303, 0.014303, -0.005930, 0.005930], [0.005930, -0.005930, 0.025320, -0.025320]],
            ],
        ),
        (
            B,
            [2, 0, 3, 1],
            [
                [[0.020500, -0.030325, -0.020500, 0.030325], [-0.008102, 0.015315, 0.008102, -0.015315]],
                [[0.009474, 0.003405, -0.009474, -0.003405], [-0.024496, 0.012711, 0.024496, -0.012711]],
            ],
        ),
    ],
)
def test_the_gradients_of_the_spec(case, permutation, expected):
    student, teacher = tensors(case)
    student.requires_grad_()
    CARPLoss(2)(student, teacher, torch.tensor(permutation)).loss.backward()
    assert torch.allclose(student.grad, torch.tensor(expected, dtype=torch.float64), atol=2e-6)


@pytest.mark.parametrize("size", [2, 3, 6, 12])
@pytest.mark.parametrize("views", [(2, 2), (4, 2), (2, 1)])
@pytest.mark.parametrize("pairs", ["mean", "sum"])
@pytest.mark.parametrize("over", ["both", "student"])
def test_the_terms_are_those_of_a_loop_over_numbers(size, views, pairs, over):
    student, teacher = logits(views[0], 5, 12), logits(views[1], 5, 12, "teacher")
    order = torch.randperm(12, generator=torch_rng(1, "order"))
    actual = CARPLoss(size, pair_reduction=pairs, mean_over=over, weight=0.7)(student, teacher, order)
    arguments = (student.tolist(), teacher.tolist(), order.tolist(), size)
    consistency, balance = naive.terms(*arguments, pairs=pairs, over=over)
    assert actual.consistency.item() == pytest.approx(consistency, rel=1e-9)
    assert actual.balance.item() == pytest.approx(balance, rel=1e-9)
    assert actual.loss.item() == pytest.approx(consistency + 0.7 * balance, rel=1e-9)


@pytest.mark.parametrize("options", [CARPOptions(), CARPOptions(pair_reduction="sum", mean_over="student", weight=0.5)])
def test_the_reference_form_is_that_of_a_loop_over_numbers(options):
    student, teacher, order = logits(3, 5, 12), logits(2, 5, 12, "teacher"), torch.arange(12).flip(0)
    inputs = student.tolist(), teacher.tolist(), order.tolist(), 4
    terms = naive.terms(*inputs, pairs=options.pair_reduction, over=options.mean_over)
    value = carp_reference(student, teacher, order, 4, options).item()
    assert value == pytest.approx(terms[0] + options.weight * terms[1], rel=1e-12)


@pytest.mark.parametrize("size", [2, 4, 12])
@pytest.mark.parametrize("views", [(2, 2), (8, 2)])
@pytest.mark.parametrize("rule", [CARPOptions(), CARPOptions(pair_reduction="sum", mean_over="student", weight=0.5)])
def test_the_closed_form_gradient_is_autograds_on_both_sides(size, views, rule):
    student, teacher = (logits(v, 3, 12, name).requires_grad_() for v, name in zip(views, "st", strict=True))
    order = torch.randperm(12, generator=torch_rng(2, "order"))
    loss = CARPLoss(size, pair_reduction=rule.pair_reduction, mean_over=rule.mean_over, weight=rule.weight)
    ours = torch.autograd.grad(3 * loss(student, teacher, order).loss, (student, teacher))
    plain = carp_reference(student, teacher, order, size, rule)
    for mine, theirs in zip(ours, torch.autograd.grad(3 * plain, (student, teacher)), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-13)
    rows = ours[0][..., order].unflatten(-1, (-1, size)).sum(-1)
    assert rows.abs().max() < 1e-15  # inside a block nothing is gained by moving all logits


def test_gradcheck():
    student, teacher = logits(2, 2, 6).requires_grad_(), logits(2, 2, 6, "teacher").requires_grad_()
    order = torch.randperm(6, generator=torch_rng(3, "order"))
    assert torch.autograd.gradcheck(lambda s, t: CARPLoss(3)(s, t, order).loss, (student, teacher))


@pytest.mark.parametrize("size", [2, 8, 48])
@pytest.mark.parametrize("chunk", [5, 16, 1000])
def test_the_fused_form_is_the_plain_one(size, chunk):
    z, w = logits(4, 6, 7, "z").requires_grad_(), logits(2, 6, 7, "w")
    ours, theirs = (logits(1, 48, 7, name)[0].requires_grad_() for name in ("c", "t"))
    order = torch.randperm(48, generator=torch_rng(4, "order"))
    unit = torch.nn.functional.normalize
    plain = carp_reference(z @ unit(ours, dim=1).t(), w @ unit(theirs, dim=1).t(), order, size)
    expected = torch.autograd.grad(plain, (z, ours, theirs))
    actual = fused_carp(z, w, ours, theirs, order, size, chunk=chunk, diagnostics=True)
    assert actual.loss.item() == pytest.approx(plain.item(), rel=1e-12)
    for mine, other in zip(torch.autograd.grad(actual.loss, (z, ours, theirs)), expected, strict=True):
        assert torch.allclose(mine, other, atol=1e-13)
    messages = actual.diagnostics
    scores = (w @ unit(theirs, dim=1).t())[0]
    assert torch.equal(messages.assignments, scores.argmax(1))
    student = (z @ unit(ours, dim=1).t()).tolist()
    assert messages.information.item() == pytest.approx(naive.information(student, order.tolist(), size), rel=1e-9)
    assert messages.max_balance >= actual.balance - 1e-12
    assert 1 / size - 1e-9 <= messages.max_fraction <= 1


def test_float32_is_near_float64():
    z, w, c, t = logits(2, 16, 32, "z"), logits(2, 16, 32, "w"), logits(1, 256, 32, "c")[0], logits(1, 256, 32, "t")[0]
    order = torch.randperm(256, generator=torch_rng(5, "order"))
    actual = []
    for kind in (torch.float64, torch.float32):
        inputs = [x.to(kind).requires_grad_() for x in (z, w, c, t)]
        loss = fused_carp(*inputs, order, 32).loss
        actual.append((loss.double(), [g.double() for g in torch.autograd.grad(loss, inputs)]))
    assert actual[0][0].item() == pytest.approx(actual[1][0].item(), rel=1e-5)
    for wide, narrow in zip(actual[0][1], actual[1][1], strict=True):
        assert torch.allclose(wide, narrow, atol=1e-5 * wide.abs().max())


def test_a_constant_and_the_order_inside_a_partition_change_nothing_another_partition_does():
    student, teacher = logits(2, 4, 12), logits(2, 4, 12, "teacher")
    loss, order = CARPLoss(4), torch.randperm(12, generator=torch_rng(6, "order"))
    start = loss(student, teacher, order).loss
    assert loss(student + 7.5, teacher - 3, order).loss.item() == pytest.approx(start.item(), rel=1e-12)
    moved = torch.cat([order[8:], order[:4].flip(0), order[4:8]])
    assert loss(student, teacher, moved).loss.item() == pytest.approx(start.item(), rel=1e-12)
    assert abs(loss(student, teacher, order.roll(1)).loss.item() - start.item()) > 1e-4
    places = torch.randperm(12, generator=torch_rng(7, "order"))
    assert loss(student[..., places], teacher[..., places], torch.argsort(places)[order]).loss.item() == pytest.approx(
        start.item(), rel=1e-12
    )


def test_one_block_is_equation_two_with_its_weight():
    student, teacher = logits(2, 4, 8), logits(2, 4, 8, "teacher")
    s, t = student.softmax(-1), teacher.softmax(-1)
    mean = torch.cat([s, t]).mean((0, 1))
    consistency = -((s[0] * t[1]).sum(-1).log() + (s[1] * t[0]).sum(-1).log()).mean() / 2
    for weight in (0.3, 2.0):
        expected = consistency + weight * ((mean * mean.log()).sum() + math.log(8))
        actual = CARPLoss(8, weight=weight)(student, teacher)
        assert actual.loss.item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("size", [1e4, 1e30])
def test_views_that_disagree_surely_keep_a_gradient(size):
    student = torch.tensor([[[size, 0.0], [0.0, size]], [[size, 0.0], [size, 0.0]]]).requires_grad_()
    teacher = torch.tensor([[[0.0, size], [0.0, size]], [[0.0, size], [size, 0.0]]])
    actual = CARPLoss(2)(student, teacher)
    actual.loss.backward()
    assert torch.isfinite(actual.loss) and torch.isfinite(student.grad).all()
    near = torch.tensor([[[20.0, 0.0]], [[20.0, 0.0]]], dtype=torch.float64).requires_grad_()
    far = torch.tensor([[[0.0, 20.0]], [[0.0, 20.0]]], dtype=torch.float64)
    messages = CARPLoss(2, weight=0.0)(near, far)
    assert messages.consistency.item() == pytest.approx(20 - math.log(2), rel=1e-9)
    messages.loss.backward()
    assert near.grad[0, 0, 0].item() == pytest.approx(0.25, rel=1e-6)  # half of one pair of two


@pytest.mark.parametrize("gap", [1.0, 30.0, 60.0, 300.0])
def test_rows_far_apart_and_near_ones_are_those_of_the_plain_form(gap):
    """⟨s, t⟩ of e^−gap: where the product of the softmaxes has lost its digits the logits are taken."""
    student, teacher = logits(2, 6, 12), logits(2, 6, 12, "teacher")
    student[0, 1, :3] += gap  # one view of one image, and only blocks that hold these
    teacher[1, 1, 3:6] += gap
    for kind, close in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        a, b = (x.to(kind).requires_grad_() for x in (student, teacher))
        actual = CARPLoss(6)(a, b, torch.arange(12))
        wide = [x.detach().double().requires_grad_() for x in (a, b)]
        plain = carp_reference(*wide, torch.arange(12), 6)
        assert actual.loss.item() == pytest.approx(plain.item(), rel=close)
        mine, theirs = torch.autograd.grad(actual.loss, (a, b)), torch.autograd.grad(plain, wide)
        assert all(torch.allclose(x.double(), y, atol=close) for x, y in zip(mine, theirs, strict=True))


def test_a_siamese_gradient_is_twice_that_with_a_stop():
    z = logits(2, 6, 12).requires_grad_()
    order = torch.randperm(12, generator=torch_rng(8, "order"))
    for size in (2, 4, 12):
        stopped = torch.autograd.grad(CARPLoss(size)(z, z.detach(), order).loss, z)[0]
        both = torch.autograd.grad(CARPLoss(size)(z, z, order).loss, z)[0]
        assert torch.allclose(both, 2 * stopped, atol=1e-15)


def test_extremes():
    flat = torch.zeros(2, 3, 8)
    actual = CARPLoss(4)(flat, flat)
    assert actual.consistency.item() == pytest.approx(math.log(4)) and actual.balance.item() == pytest.approx(
        0, abs=1e-6
    )
    one = torch.full((2, 3, 8), -1e4)
    one[..., ::4] = 1e4
    actual = CARPLoss(4)(one, one, torch.arange(8))
    assert actual.consistency.item() == pytest.approx(0, abs=1e-6)
    assert actual.balance.item() == pytest.approx(math.log(4))


def test_partitions_are_functions_of_seed_and_step():
    kinds = {kind: [draw_partition(kind, 64, 3, step) for step in (1, 2)] for kind in ("random", "fixed", "constant")}
    for orders in kinds.values():
        assert all(torch.equal(order.sort().values, torch.arange(64)) for order in orders)
    assert not torch.equal(*kinds["random"]) and torch.equal(*kinds["fixed"])
    assert torch.equal(kinds["constant"][0], torch.arange(64))
    assert not torch.equal(kinds["fixed"][0], kinds["constant"][0])
    assert torch.equal(draw_partition("random", 64, 3, 2), kinds["random"][1])
    assert not torch.equal(draw_partition("random", 64, 4, 2), kinds["random"][1])


def test_the_loss_draws_anew_at_each_step_of_training_and_its_state_goes_on():
    student, teacher = logits(2, 4, 64), logits(2, 4, 64, "teacher")
    loss = CARPLoss(8)
    values = [loss(student, teacher).loss.item() for _ in range(3)]
    assert len(set(values)) == 3
    again = CARPLoss(8)
    again.load_state_dict({"step": torch.tensor(2)})
    assert again(student, teacher).loss.item() == values[2]
    loss.eval()
    assert loss(student, teacher).loss.item() == loss(student, teacher).loss.item()


def test_eight_views_and_two_teachers_have_fourteen_pairs():
    assert len(view_pairs(8, 2)) == 14 and (0, 0) not in view_pairs(8, 2) and (5, 1) in view_pairs(8, 2)


def test_impossible_blocks_and_views_are_refused():
    with pytest.raises(LookalikeError, match="constant softmax"):
        check_blocks(8, 1)
    with pytest.raises(LookalikeError, match="cannot be divided into blocks of 3"):
        CARPLoss(3)(logits(2, 2, 8), logits(2, 2, 8))
    with pytest.raises(LookalikeError, match="8 prototypes cannot be divided into blocks of 16"):
        CARPLoss(16)(logits(2, 2, 8), logits(2, 2, 8))
    with pytest.raises(LookalikeError, match="needs two different views"):
        CARPLoss(2)(logits(1, 2, 8), logits(1, 2, 8))
    with pytest.raises(LookalikeError, match="do not match"):
        CARPLoss(2)(logits(2, 2, 8), logits(2, 3, 8))
    with pytest.raises(LookalikeError, match="does not fit 8 prototypes"):
        CARPLoss(2)(logits(2, 2, 8), logits(2, 2, 8), torch.arange(4))


def test_a_gradient_may_be_taken_again_and_has_no_second_derivative():
    student, teacher = logits(2, 2, 8).requires_grad_(), logits(2, 2, 8, "teacher")
    loss = CARPLoss(2)(student, teacher).loss
    twice = [torch.autograd.grad(factor * loss, student, retain_graph=True)[0] for factor in (1, 3)]
    assert torch.allclose(3 * twice[0], twice[1])
    with pytest.raises(LookalikeError, match="no second derivative"):
        torch.autograd.grad(CARPLoss(2)(student, teacher).loss, student, create_graph=True)
    with torch.no_grad():
        assert not CARPLoss(2)(student, teacher).loss.requires_grad
