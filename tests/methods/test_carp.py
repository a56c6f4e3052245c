"""CARP as a method: who teaches whom, partitions, views, what is kept; and its choice of K and N_B."""

from __future__ import annotations

import math

import pytest
import torch
from tests.methods.test_common import batch, context

from lookalike.core.errors import LookalikeError
from lookalike.data import Preprocess, RandomView
from lookalike.losses.carp import carp_reference, draw_partition
from lookalike.methods import Batch, LearningRates
from lookalike.methods.carp import CARP, CARPSettings, choose_blocks
from lookalike.models.prototypes import Prototypes

SMALL = {"prototypes": 12, "block_size": 4, "projection_dim": 5, "hidden_dim": 7}


def make(**settings) -> CARP:
    return CARP(CARPSettings.parse({**SMALL, **settings}), context())


def joint(rows: Batch) -> Batch:
    return Batch((), rows.layer, rows.labels, rows.ids)


def logits(method: CARP, name: str, prototypes: torch.Tensor) -> torch.Tensor:
    rows = method.embed(batch())[name].transpose(0, 1)
    return rows @ torch.nn.functional.normalize(prototypes, dim=1).t()


def test_the_loss_is_that_of_the_networks_logits():
    method = make()
    with torch.no_grad():
        method.teacher_head.prototypes.add_(0.1)  # student and teacher must not be the same by chance
    actual = method.embed(batch())
    assert actual["student"].shape == (12, 2, 5) and actual["student"].requires_grad
    assert actual["teacher"].shape == (12, 2, 5) and not actual["teacher"].requires_grad
    student = logits(method, "student", method.prototype_head.prototypes)
    teacher = logits(method, "teacher", method.teacher_head.prototypes)
    order = draw_partition("random", 12, 0, 1)
    expected = carp_reference(student, teacher, order, 4)
    assert method.loss(actual, joint(batch())).item() == pytest.approx(expected.item(), rel=1e-5)


def test_views_of_an_image_stay_together():
    """Row i of what is embedded is image i in every view, whatever the order in which views are joined."""
    method = make()
    whole = method.eval().embed(batch())["student"]
    one = Batch(tuple(v[3:4] for v in batch().views), "pooled", batch().labels[3:4], batch().ids[3:4])
    assert torch.allclose(method.embed(one)["student"][0], whole[3], atol=1e-6)


def test_one_partition_a_step_from_seed_and_step_alone():
    method, again = make(), make()
    orders = []
    for step in (1, 2):
        method.context.step = again.context.step = step
        assert torch.equal(method.partition(), again.partition())
        orders.append(method.partition())
    assert not torch.equal(*orders)
    fixed = make(partition="fixed")
    first = fixed.partition()
    fixed.context.step = 9
    assert torch.equal(first, fixed.partition())
    assert torch.equal(make(partition="constant").partition(), torch.arange(12))


def test_the_teacher_takes_in_what_the_step_was_computed_with():
    """ξ ← η ξ + (1 − η) θ with the θ before the optimizer's step; η from 0.9 to 1 along a cosine."""
    method = make(momentum=0.9)
    with torch.no_grad():
        for parameter in [*method.context.model.parameters(), *method.prototype_head.parameters()]:
            parameter.add_(1.0)
    for step in (1, 6, 10):
        method.context.step = step
        eta = 1 - 0.1 * (1 + math.cos(math.pi * (step - 1) / 10)) / 2
        assert method.momentum == pytest.approx(eta)
        before = method.teacher_head.prototypes.clone()
        method.before_update()
        expected = eta * before + (1 - eta) * method.prototype_head.prototypes
        assert torch.allclose(method.teacher_head.prototypes, expected, atol=1e-6)
    assert not any(p.requires_grad for p in [*method.teacher.parameters(), *method.teacher_head.parameters()])
    assert make(momentum=0.9, momentum_schedule="constant").momentum == 0.9


def test_statistics_of_batch_norm_are_each_networks_own():
    method = make()
    method.embed(batch())
    student, teacher = method.prototype_head.projection[1], method.teacher_head.projection[1]
    assert not torch.equal(student.running_mean, torch.zeros(7))
    before = teacher.running_mean.clone()
    method.before_update()
    assert torch.equal(teacher.running_mean, before)


def test_previous_is_one_step_old_and_stopgrad_is_now():
    old, now = make(teacher="previous"), make(teacher="stopgrad")
    for method in (old, now):
        method.before_update()
        with torch.no_grad():  # the optimizer's step
            method.prototype_head.projection[0].weight.add_(0.3 * method.prototype_head.projection[0].weight.roll(1, 0))
    actual = old.embed(batch())
    assert not torch.allclose(actual["teacher"], actual["student"][:, :2], atol=1e-4)
    old.before_update()
    actual = old.embed(batch())
    assert torch.allclose(actual["teacher"], actual["student"][:, :2], atol=1e-5)
    actual = now.embed(batch())
    assert torch.equal(actual["teacher"], actual["student"][:, :2].detach()) and not actual["teacher"].requires_grad
    assert now.teacher_models() == [] and now.extra_models() == {} and now.export_model() is now.context.model


def test_siamese_has_twice_the_gradient_of_stopgrad():
    gradients = {}
    for who in ("stopgrad", "siamese"):
        method = make(teacher=who)
        method.loss(method.embed(batch()), joint(batch())).backward()
        gradients[who] = [
            p.grad for p in [*method.context.model.backbone.parameters(), *method.prototype_head.parameters()]
        ]
    for one, two in zip(gradients["stopgrad"], gradients["siamese"], strict=True):
        assert torch.allclose(two, 2 * one, atol=1e-6)


def test_shared_prototypes_are_the_students():
    method = make(share_prototypes=True)
    with torch.no_grad():
        method.prototype_head.prototypes.mul_(-1)
    student = logits(method, "student", method.prototype_head.prototypes)
    teacher = logits(method, "teacher", method.prototype_head.prototypes)
    expected = carp_reference(student, teacher, draw_partition("random", 12, 0, 1), 4)
    assert method.loss(method.embed(batch()), joint(batch())).item() == pytest.approx(expected.item(), rel=1e-5)


def test_two_ways_of_looking_and_small_crops():
    view = RandomView(Preprocess(size=224, crop=1.0), scale=(0.2, 1.0), color_jitter=0.5, grayscale=0.2)
    first, second, *rest = make(local_crops=6).views(view)
    assert (first.blur, first.solarize) == (1.0, 0.0) and (second.blur, second.solarize) == (0.1, 0.2)
    assert all((aug.color_jitter, aug.saturation, aug.grayscale) == (0.5, 0.5, 0.2) for aug in (first, second))
    assert len(rest) == 6 and all(v.pre.size == 96 and v.scale == (0.05, 0.2) and v.blur == 0.5 for v in rest)
    assert make(asymmetric=False).views(view) == [view, view]


def test_small_crops_go_through_the_student_only():
    method = make(local_crops=2)
    rows = batch()
    four = Batch((*rows.views, rows.views[0] + 0.1, rows.views[1] - 0.1), "pixels", rows.labels, rows.ids)
    seen = []
    method.context.model.pooled = method.teacher.pooled = None
    usual = method.context.features

    def watch(a_batch, view=0, model=None):
        seen.append((model is method.teacher, len(a_batch.views[0])))
        return usual(Batch(a_batch.views, "pooled", a_batch.labels, a_batch.ids), view, model)

    method.context.features = watch
    actual = method.embed(four)
    assert actual["student"].shape == (12, 4, 5) and actual["teacher"].shape == (12, 2, 5)
    assert seen == [(False, 48), (True, 24)]  # crops of one size go through the network together
    method.loss(actual, joint(rows)).backward()
    with pytest.raises(LookalikeError, match="Local crops need pixels"):
        method.embed(Batch(four.views, "pooled", rows.labels, rows.ids))


def test_the_exported_model_is_the_teacher_with_its_prototypes():
    method = make()
    assert method.export_model() is method.teacher and method.extra_models() == {"student": method.context.model}
    for _ in range(3):
        method.embed(batch())
    method.eval()
    selected = Prototypes(method.export_tensors())
    features = method.crops(batch(), method.teacher, 1).detach()
    z = method.teacher_head.projection(features)
    assert torch.allclose(selected.project(features), z, atol=1e-5)  # batch-norm is folded in
    scores = z @ torch.nn.functional.normalize(method.teacher_head.prototypes, dim=1).t()
    assigned = selected.assign(features.numpy())
    assert assigned.prototype.tolist() == scores.argmax(1).tolist()
    best = scores.topk(2, dim=1).values
    assert torch.allclose(torch.from_numpy(assigned.margin), (best[:, 0] - best[:, 1]).detach(), atol=1e-5)
    used = selected.select_used(features.numpy())
    counts = torch.bincount(scores.argmax(1), minlength=12)
    assert len(used) == int((counts >= 2).sum())


def test_rates_head_and_prototypes_together():
    groups = {group["name"]: group for group in make().param_groups(LearningRates(1.0, 2.0, 3.0))}
    assert len([p for p in groups["loss"]["params"] if p.requires_grad]) == 0
    assert any(p.shape == (12, 5) for p in groups["head"]["params"]) and groups["head"]["lr"] == 2.0


@pytest.mark.parametrize(
    ("images", "batch", "prototypes", "block"),
    [
        (50_000, 256, 16_384, 512),
        (1_281_167, 1024, 65_536, 512),
        (1000, 64, 256, 64),
        (20_000, 64, 4096, 128),
        (6000, 32, 2048, 64),
        (72, 16, 64, 16),
        (12, 12, 12, 4),
    ],
)
def test_prototypes_and_blocks_follow_from_images_and_batch(images, batch, prototypes, block):
    actual = choose_blocks(images, batch)
    assert actual[:2] == (prototypes, block)
    assert prototypes % block == 0 and prototypes <= max(images, 12)
    assert f"{images:,} images" in actual[2]


def test_requested_options_are_used_or_refused():
    assert choose_blocks(100, 64, 4096, 512)[:2] == (4096, 512)
    assert choose_blocks(100_000, 256, 3000)[:2] == (3000, 500)
    assert choose_blocks(100_000, 256, 4096)[:2] == (4096, 512)
    assert choose_blocks(10_000, 64, None, 96)[1] == 96 and choose_blocks(10_000, 64, None, 96)[0] % 96 == 0
    with pytest.raises(LookalikeError, match="cannot be divided into blocks of 3"):
        choose_blocks(100, 64, 4096, 3)
    with pytest.raises(LookalikeError, match="A block of 1"):
        make(block_size=1)
    with pytest.raises(LookalikeError, match="cannot be divided into blocks"):
        make(block_size=16)
    with pytest.raises(LookalikeError, match="cannot be divided into blocks"):
        choose_blocks(100, 64, 13 * 2 + 1 + 2)
