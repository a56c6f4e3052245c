"""SimSiam and DINO with lightly's losses, against loops over numbers."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from tests.methods.test_common import batch, context

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.methods import Batch, _utils
from lookalike.methods.dino import DINO, DINOSettings
from lookalike.methods.simsiam import SimSiam, SimSiamSettings

pytestmark = pytest.mark.needs("lightly")


def draw(*shape: int, name: str) -> torch.Tensor:
    return torch.randn(*shape, generator=torch_rng(0, name))


def make_simsiam() -> SimSiam:
    return SimSiam(SimSiamSettings.parse({"projection_dim": 6, "hidden_dim": 7, "prediction_dim": 3}), context())


def make_dino(**more) -> DINO:
    return DINO(DINOSettings.parse({"output_dim": 9, "hidden_dim": 7, "bottleneck_dim": 5, **more}), context())


def test_simsiam_is_the_mean_cosine_of_prediction_and_the_other_view():
    p, z = draw(4, 2, 6, name="p"), draw(4, 2, 6, name="z")
    total = 0.0
    for i in range(4):
        for v, w in ((0, 1), (1, 0)):
            a, b = p[i, v].tolist(), z[i, w].tolist()
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            total -= dot / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))
    actual = make_simsiam().loss({"p": p, "target": z}, batch())
    assert actual.item() == pytest.approx(total / 8, rel=1e-5)


def test_simsiam_stops_the_gradient_at_the_target():
    actual = make_simsiam().embed(batch())
    assert actual["p"].requires_grad and not actual["target"].requires_grad
    assert actual["p"].shape == actual["target"].shape == (12, 2, 6)


def test_dino_is_the_cross_entropy_with_a_centered_sharp_teacher():
    method = make_dino()
    student, teacher = draw(4, 2, 9, name="s"), draw(4, 2, 9, name="t")
    rows = {"student": student, "teacher": teacher}
    method.loss(rows, batch())  # the center moves
    center = 0.1 * teacher.mean((0, 1))
    assert torch.allclose(method.criterion.center.flatten(), center, atol=1e-6)
    total = 0.0
    for i in range(4):
        for v, w in ((0, 1), (1, 0)):
            target = ((teacher[i, w] - center) / 0.04).softmax(0)
            total -= float((target * (student[i, v] / 0.1).log_softmax(0)).sum())
    assert method.loss(rows, batch()).item() == pytest.approx(total / 8, rel=1e-4)


def test_dinos_teacher_follows_and_is_exported():
    method = make_dino(momentum=0.9)
    assert method.export_model() is method.teacher and method.extra_models() == {"student": method.context.model}
    before = [p.clone() for p in method.teacher.parameters()]
    with torch.no_grad():
        for parameter in method.context.model.parameters():
            parameter.add_(1.0)
    method.before_update()
    assert all(torch.allclose(n, o + 0.1) for o, n in zip(before, method.teacher.parameters(), strict=True))
    actual = method.embed(batch())
    assert actual["student"].shape == (12, 2, 9) and not actual["teacher"].requires_grad
    assert actual["student"].detach().abs().max() <= 1 + 1e-6  # products of unit rows


@pytest.mark.parametrize("make", [make_simsiam, make_dino])
def test_the_gradient_reaches_the_backbone_and_heads(make):
    method, rows = make(), batch()
    method.loss(method.embed(rows), Batch((), rows.layer, rows.labels, rows.ids)).backward()
    moved = [*method.context.model.backbone.parameters(), *(p for p in method.parameters() if p.requires_grad)]
    assert all(p.grad is not None for p in moved)


def test_without_the_library_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightly.loss", None)
    with pytest.raises(LookalikeError, match=r"pip install 'lookalike\[ssl\]'"):
        _utils.import_lightly("loss", "DINOLoss", "dino")
