"""Norm layers behind the head: the formulas, and a model folder that remembers its layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.models import Embedder
from lookalike.models.heads import NORM_NAMES, MomentumBatchNorm, make_norm, momentum_decay, norm_name
from lookalike.models.pooling import unit
from tests.naive import norms as naive


def test_the_decay_grows_from_nothing_to_what_the_paper_uses():
    assert [momentum_decay(t, 50, 64, 128) for t in (1, 50)] == pytest.approx([0.0, 0.5])
    assert [momentum_decay(t, 50, 16, 32) for t in (1, 50)] == pytest.approx([0.0, 0.5])
    values = [momentum_decay(t, 10, 20, 50) for t in range(1, 11)]
    assert values == pytest.approx([naive.decay(t, 10, 20, 50) for t in range(1, 11)])
    assert values == sorted(values)
    assert momentum_decay(3, 10, 80, 50) == 0.0  # a batch that is large enough needs no past
    assert momentum_decay(1, 1, 20, 50) == 0.0


def test_momentum_batch_norm_is_the_formula():
    generator = torch_rng(0, "rows")
    batches = [torch.randn(n, 3, generator=generator).double() for n in (6, 6, 4)]
    layer = MomentumBatchNorm(3, reference_batch=10).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 0.5, 2.0]))
        layer.bias.copy_(torch.tensor([0.0, 0.3, -1.0]))
    epochs_of = [1, 2, 4]
    got = []
    for rows, epoch in zip(batches, epochs_of, strict=True):
        layer.set_epoch(epoch, 4)
        got.append(layer(rows).detach().numpy())
    listed = [rows.tolist() for rows in batches]
    expected, mean, var = naive.momentum_batch_norm(
        listed, epochs_of, 4, 10, layer.weight.tolist(), layer.bias.tolist(), eps=layer.eps
    )
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    np.testing.assert_allclose(layer.running_mean, mean, rtol=1e-9)
    np.testing.assert_allclose(layer.running_var, var, rtol=1e-9)
    # Inference uses those, and the layer's own eps.
    x = batches[0]
    expected = (x - layer.running_mean) / (layer.running_var + layer.eps).sqrt() * layer.weight + layer.bias
    assert torch.allclose(layer.eval()(x), expected)


def test_the_gradient_of_momentum_batch_norm_goes_through_the_present_batch():
    layer = MomentumBatchNorm(2, reference_batch=8).double()
    layer.mean.fill_(0.3)
    layer.var.fill_(1.7)

    def value(rows):
        layer.mean.fill_(0.3)
        layer.var.fill_(1.7)
        layer.set_epoch(3, 4)
        return (layer(rows) ** 3).sum()

    rows = torch.randn(4, 2, generator=torch_rng(1, "rows")).double().requires_grad_()
    assert torch.autograd.gradcheck(value, rows)
    # In epoch 1 nothing of the past is used: batch-norm itself.
    layer.set_epoch(1, 4)
    plain = torch.nn.BatchNorm1d(2).double()
    assert torch.allclose(layer(rows), plain(rows))


@pytest.mark.parametrize("name", NORM_NAMES)
def test_a_saved_model_keeps_its_norm_layer(name, tmp_path):
    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    model.set_random_head(6)
    before = model.fingerprint()
    model.norm = make_norm(name, 6)
    assert norm_name(model.norm) == name
    assert (model.fingerprint() == before) == (name == "none")
    with torch.no_grad():
        for parameter in model.norm.parameters():
            parameter.add_(torch.rand(parameter.shape, generator=torch_rng(2, "w")))
        for number, buffer in enumerate(b for b in model.norm.buffers() if b.is_floating_point()):
            buffer.add_(0.1 * number + 0.05)
    model.save_pretrained(tmp_path / "model")
    again = Embedder.from_pretrained(tmp_path / "model")
    assert again.fingerprint() == model.fingerprint()
    image = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    rows = model.eval().encode([image], runtime="torch")
    np.testing.assert_array_equal(again.encode([image], runtime="torch"), rows)
    # Linear → length one → norm → length one.
    inner = unit(model.head(unit(torch.from_numpy(model.features([image], runtime="torch")))))
    expected = inner if name == "none" else unit(model.norm(inner))
    np.testing.assert_allclose(rows, expected.detach().numpy(), atol=1e-6)


def test_a_misspelt_layer_is_answered():
    with pytest.raises(LookalikeError, match="norm layer"):
        make_norm("batch", 3)
