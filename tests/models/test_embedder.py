"""Heads, fingerprints, and what a model is."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch

from lookalike import LookalikeError
from lookalike.models import Embedder


def test_pixels_and_normalized_images_give_the_same(model: Embedder) -> None:
    pixels = torch.randint(0, 256, (3, 48, 48, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (model.preprocess.mean, model.preprocess.std))
    images = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
    with torch.inference_mode():
        torch.testing.assert_close(model(pixels), model(images), rtol=1e-5, atol=1e-6)


def test_the_scale_of_features_does_not_matter_to_the_head(model: Embedder) -> None:
    model.set_random_head(8)
    x = torch.rand(4, model.feature_dim)
    torch.testing.assert_close(model.from_features(x), model.from_features(17 * x))
    assert torch.allclose(model.from_features(x).norm(dim=1), torch.ones(4))


def features(model: Embedder, count: int = 60) -> np.ndarray:
    rng = np.random.default_rng(3)
    return (
        rng.random((count, 6)) @ rng.random((6, model.feature_dim)) + 0.01 * rng.random((count, model.feature_dim))
    ).astype(np.float32)


def test_pca_head_is_the_top_of_the_second_moment(model: Embedder) -> None:
    rows = features(model)
    model.set_pca_head(rows, 5)
    assert isinstance(model.head, torch.nn.Linear)
    assert not model.head.bias.any()
    basis = model.head.weight.detach().numpy().astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    moment = unit.T.astype(np.float64) @ unit  # not centered: the mean direction comes first
    np.testing.assert_allclose(basis @ basis.T, np.eye(5), atol=1e-5)
    largest = np.sort(np.linalg.eigvalsh(moment))[::-1][:5]
    np.testing.assert_allclose(np.diag(basis @ moment @ basis.T), largest, rtol=1e-4, atol=1e-5)
    mean = unit.mean(0)
    assert abs(basis[0] @ mean) / np.linalg.norm(mean) > 0.99


def test_a_full_pca_head_keeps_every_similarity(model: Embedder) -> None:
    rows = features(model)
    before = model.from_features(torch.from_numpy(rows)).numpy()
    model.set_pca_head(rows, model.feature_dim)
    with torch.inference_mode():
        after = model.from_features(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(after @ after.T, before @ before.T, atol=1e-5)


def test_pca_head_is_deterministic(make: Callable[..., Embedder]) -> None:
    a, b = make(), make()
    rows = features(a)
    a.set_pca_head(rows, 4)
    b.set_pca_head(rows[::-1].copy(), 4)  # another order of the rows, the same head
    torch.testing.assert_close(a.head.weight, b.head.weight, atol=1e-5, rtol=1e-5)


def test_random_head_is_seeded_and_in_the_usual_range(make: Callable[..., Embedder]) -> None:
    a, b = make(), make()
    a.set_random_head(16, seed=1)
    torch.rand(3)
    b.set_random_head(16, seed=1)
    assert a.fingerprint() == b.fingerprint()
    b.set_random_head(16, seed=2)
    assert a.fingerprint() != b.fingerprint()
    bound = a.feature_dim**-0.5
    assert 0.9 * bound < a.head.weight.abs().max() <= bound


def test_bad_heads(model: Embedder) -> None:
    with pytest.raises(LookalikeError, match="columns are needed"):
        model.set_pca_head(np.ones((4, 3)), 2)
    with pytest.raises(LookalikeError, match="dimensions cannot be made"):
        model.set_pca_head(features(model), model.feature_dim + 1)
    rows = features(model)
    rows[0, 0] = np.nan
    with pytest.raises(LookalikeError, match="not finite"):
        model.set_pca_head(rows, 2)


def test_the_fingerprint_changes_with_everything_that_matters(make: Callable[..., Embedder]) -> None:
    model = make()
    start = model.fingerprint()
    assert make().fingerprint() == start
    assert make(pooling="avg").fingerprint() != start
    assert make(size=64).fingerprint() != start

    pooled, stage = model.fingerprint("pooled"), model.fingerprint("stage1")
    model.set_random_head(8, 0)
    with_head = model.fingerprint()
    assert with_head != start
    assert model.fingerprint("pooled") == pooled  # what lies below the head is what it was
    with torch.no_grad():
        model.backbone.conv_head.weight.add_(0.01)
    assert model.fingerprint() != with_head
    assert model.fingerprint("pooled") != pooled
    assert model.fingerprint("stage1") == stage
    with torch.no_grad():
        model.backbone.conv_stem.weight[0] += 0.01
    assert model.fingerprint("stage1") != stage


def test_the_fingerprint_sees_every_kind_of_write(model: Embedder) -> None:
    seen = {model.fingerprint()}

    def changed() -> bool:
        before = len(seen)
        seen.add(model.fingerprint())
        return len(seen) > before

    assert not changed()
    model.backbone.bn2.running_mean.data.add_(1.0)  # torch counts no writes through .data
    assert changed()
    for seed in range(6):  # a new head at the address of the old one is still a new head
        model.set_random_head(8, seed)
        assert changed()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.rand(2, 3, 48, 48)).sum().backward()
    optimizer.step()
    assert changed()
    model.load_state_dict({key: value + 1 for key, value in model.state_dict().items()})
    assert changed()


def test_a_copy_has_the_same_fingerprint_and_its_own_life(model: Embedder) -> None:
    name = model.fingerprint()
    other = copy.deepcopy(model)
    assert other.fingerprint() == name
    with torch.no_grad():
        other.backbone.conv_stem.weight.zero_()
    assert other.fingerprint() != name == model.fingerprint()


def test_a_fingerprint_is_cheap_the_second_time(model: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    model.fingerprint()
    monkeypatch.setattr("lookalike.models.embedder.hash_bytes", lambda *_: pytest.fail("hashed again"))
    model.fingerprint()


def test_similarity(model: Embedder) -> None:
    a = np.array([[2.0, 0.0], [0.0, 3.0]])
    np.testing.assert_allclose(model.similarity(a, a[0]), [[1.0], [0.0]])


def test_it_shows_itself_in_a_notebook(model: Embedder) -> None:
    model.name = "<b>"
    page = model._repr_html_()
    assert "test_efficientnet" in page
    assert "<b>" not in page
