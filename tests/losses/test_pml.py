"""Every loss against its slow twin: values and gradients, on random and on awkward batches."""

from __future__ import annotations

import math

import pytest
import torch
from tests.naive import losses as naive

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.losses.pml import (
    ContrastiveLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    SupConLoss,
    TripletLoss,
)

BATCHES = {
    "even": [0, 0, 1, 1, 2, 2, 3, 3],
    "uneven": [0, 0, 0, 0, 1, 1, 2],
    "single": [0, 1, 1, 2, 2],
    "one class": [1, 1, 1],
    "no pair": [0, 1, 2],
}


def batch(name, seed=0, dim=6):
    labels = torch.tensor(BATCHES[name])
    generator = torch_rng(seed, "test", name)
    centers = torch.randn(4, dim, generator=generator, dtype=torch.float64)
    z = centers[labels] + 0.7 * torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(z, dim=1), labels


def compare(ours, twin, z, labels, others=()):
    rows = [z.clone().requires_grad_() for _ in range(2)]
    value, expected = ours(rows[0], labels), twin(rows[1], labels)
    assert value.ndim == 0
    assert value.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-8)
    value.backward()
    expected.backward()
    # PML normalizes once more; so does the twin: gradients agree on the sphere and off it.
    assert torch.allclose(rows[0].grad, rows[1].grad, rtol=1e-5, atol=1e-7)
    for mine, theirs in others:
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-5, atol=1e-7)


PAIRS = {
    "supcon": (SupConLoss(0.1), naive.supcon),
    "supcon cold": (SupConLoss(0.02), lambda z, y: naive.supcon(z, y, 0.02)),
    "ms": (MultiSimilarityLoss(), naive.multi_similarity),
    "ms mined": (MultiSimilarityLoss(epsilon=0.1), lambda z, y: naive.multi_similarity(z, y, epsilon=0.1)),
    "contrastive": (ContrastiveLoss(), naive.contrastive),
    "contrastive mined": (ContrastiveLoss(mine=True), lambda z, y: naive.contrastive(z, y, mine=True)),
    **{
        f"triplet {m}": (TripletLoss(0.2, m), lambda z, y, m=m: naive.triplet(z, y, 0.2, m))
        for m in ("all", "semihard", "hard", "batch_hard")
    },
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", BATCHES)
def test_pair_losses_equal_their_twins(name, kind):
    ours, twin = PAIRS[name]
    z, labels = batch(kind)
    compare(ours, twin, z, labels)


@pytest.mark.parametrize("kind", BATCHES)
@pytest.mark.parametrize(
    ("ours", "twin"), [(ProxyAnchorLoss, naive.proxy_anchor), (NormSoftmaxLoss, naive.norm_softmax)]
)
def test_proxy_losses_equal_their_twins(ours, twin, kind):
    z, labels = batch(kind)
    loss = ours(4, 6, generator=torch_rng(1, "proxies")).double()
    parameter = next(loss.parameters())
    transposed = parameter.shape[0] == 6
    proxies = (parameter.t() if transposed else parameter).detach().clone().requires_grad_()

    class View:
        @property
        def grad(self):
            return parameter.grad.t() if transposed else parameter.grad

    compare(loss, lambda rows, y: twin(rows, y, proxies), z, labels, [(View(), proxies)])


def test_proxies_come_from_their_own_stream():
    torch.manual_seed(0)
    first = ProxyAnchorLoss(5, 3, generator=torch_rng(4, "proxies")).loss.proxies
    torch.manual_seed(1)
    second = ProxyAnchorLoss(5, 3, generator=torch_rng(4, "proxies")).loss.proxies
    assert torch.equal(first, second)
    assert not torch.equal(first, ProxyAnchorLoss(5, 3, generator=torch_rng(5, "proxies")).loss.proxies)


def test_a_misspelt_miner_is_answered_with_the_nearest():
    with pytest.raises(LookalikeError, match="did you mean `semihard`"):
        TripletLoss(miner="semi-hard")


def test_arcface_beyond_pi_minus_the_margin_is_the_authors_linear_form():
    from lookalike.losses import ArcFaceLoss

    loss = ArcFaceLoss(2, 2, scale=4.0, margin=0.5)
    with torch.no_grad():
        loss.loss.W.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    for angle in (1.0, 2.5, 2.8, 3.1):
        z = torch.tensor([[math.cos(angle), math.sin(angle)]])
        own = math.cos(angle + 0.5) if angle <= math.pi - 0.5 else math.cos(angle) - 0.5 * math.sin(0.5)
        expected = math.log1p(math.exp(4 * (math.sin(angle) - own)))
        assert loss(z, torch.tensor([0])).item() == pytest.approx(expected, rel=1e-5)
