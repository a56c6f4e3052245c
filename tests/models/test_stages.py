"""A backbone cut at a stage and put together again is the same backbone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lookalike import LookalikeError
from lookalike.models import Embedder

FAMILIES = ["test_efficientnet", "test_resnet", "test_convnext", "test_vit", "mobilenetv3_small_050", "regnetx_002"]


@pytest.mark.parametrize("name", FAMILIES)
def test_lower_and_upper_make_the_whole(name: str) -> None:
    model = Embedder.from_pretrained(name, weights="random", size=64)
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    stages = [layer for layer in model.layers if layer.startswith("stage")]
    assert len(stages) >= 2
    with torch.inference_mode():
        expected = model(x)
        for layer in stages:
            torch.testing.assert_close(model.from_layer(layer, model.stage(layer, x)), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(model.from_layer("pooled", model.pooled(x)), expected)
        assert torch.equal(model.from_layer("embedding", expected), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_halves_share_every_weight_and_split_them(name: str) -> None:
    model = Embedder.from_pretrained(name, weights="random", size=64)
    whole = {id(p) for p in model.backbone.parameters()}
    lower = {id(p) for p in model.lower("stage1").parameters()}
    upper = {id(p) for p in model.upper("stage1").parameters()}
    assert lower and upper
    assert lower | upper == whole
    assert not lower & upper


def test_training_the_upper_part_reaches_the_model(make: Callable[..., Embedder]) -> None:
    model = make()
    x = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        below = model.stage("stage2", x)
    model.from_layer("stage2", below).sum().backward()
    assert all(p.grad is None for p in model.lower("stage2").parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.upper("stage2").parameters())


def test_features_of_a_stage_are_float16(model: Embedder) -> None:
    images = [np.full((60, 60, 3), value, np.uint8) for value in (10, 200)]
    rows = model.features(images, layer="stage1", runtime="torch")
    assert rows.dtype == np.float16
    assert rows.ndim == 4
    with torch.inference_mode():
        again = model.from_layer("stage1", torch.from_numpy(rows)).numpy()
    assert np.abs(again - model.encode(images, runtime="torch")).max() < 5e-3


def test_layers_that_do_not_exist(model: Embedder) -> None:
    with pytest.raises(LookalikeError, match=r"its layers are stage0.*pooled"):
        model.features(np.zeros((8, 8, 3), np.uint8), layer="stage99")
    other = Embedder.from_pretrained("test_byobnet", weights="random", size=64)
    with pytest.raises(LookalikeError, match="cannot be split"):
        other.features(np.zeros((8, 8, 3), np.uint8), layer="stage1")
