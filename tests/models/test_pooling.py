"""Pooling, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookalike import LookalikeError
from lookalike.models.pooling import Pooling, unit


def naive(name: str, values: np.ndarray) -> float:
    """Pools the values of one channel."""
    if name == "avg":
        return float(sum(values) / len(values))
    if name == "max":
        return float(max(values))
    if name == "avgmax":
        return float((sum(values) / len(values) + max(values)) / 2)
    return float((sum(max(v, 1e-6) ** 3 for v in values) / len(values)) ** (1 / 3))


@pytest.mark.parametrize("name", ["avg", "max", "avgmax", "gem"])
@pytest.mark.parametrize("layout", ["maps", "channels last", "tokens"])
def test_every_pooling_equals_its_loops(name: str, layout: str) -> None:
    maps = np.random.default_rng(0).normal(size=(2, 5, 3, 4))
    x = torch.from_numpy(maps)
    pool = Pooling(name)
    if layout == "channels last":
        pool, x = Pooling(name, channels_last=True), x.permute(0, 2, 3, 1)
    if layout == "tokens":  # one class token in front, that must not be pooled
        pool, x = Pooling(name, prefix=1), torch.cat([torch.full((2, 1, 5), 99.0), x.flatten(2).transpose(1, 2)], 1)
    got = pool(x).numpy()
    expected = [[naive(name, maps[n, c].ravel()) for c in range(5)] for n in range(2)]
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_class_token_is_the_first() -> None:
    tokens = torch.rand(2, 4, 6)
    assert torch.equal(Pooling("cls", prefix=1)(tokens), tokens[:, 0])


def test_own_and_vectors_pass() -> None:
    x = torch.rand(2, 3, 4, 4)
    assert Pooling("own")(x) is x
    assert Pooling("gem")(x[:, :, 0, 0]).shape == (2, 3)


def test_no_class_token_is_a_users_error() -> None:
    with pytest.raises(LookalikeError, match="no class token"):
        Pooling("cls")


def test_misspelt() -> None:
    with pytest.raises(LookalikeError, match="did you mean `gem`"):
        Pooling("gemm")


def test_unit_keeps_zeros_finite() -> None:
    rows = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    assert rows.tolist() == [[pytest.approx(0.6), pytest.approx(0.8)], [0.0, 0.0]]
