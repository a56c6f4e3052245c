"""The losses of the shift curve's methods against their slow twins, the library, and values worked by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tests.naive import losses as naive
from torch.nn.functional import normalize

from lookalike.core.seeds import torch_rng
from lookalike.losses import diva, margin, s2sd, uniform_prior
from lookalike.losses.margin import MarginLoss, Triplets
from lookalike.losses.pml import ActiveMultiSimilarityLoss, ArcFaceLoss, ProxyAnchorLoss

LABELS = {
    "even": [0, 0, 1, 1, 2, 2, 3, 3],
    "uneven": [0, 0, 0, 0, 1, 1, 2],
    "a class with one image": [0, 1, 1, 2, 2],
    "one class": [1, 1, 1],
    "no pair": [0, 1, 2],
}


def rows(count, dim=6, seed=0):
    return normalize(torch.randn(count, dim, generator=torch_rng(seed, count, dim), dtype=torch.float64), dim=1)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch_rng(seed, "noise"), dtype=torch.float64)


def at(*cosines):
    """Unit rows in the plane with these cosines to the first axis."""
    return torch.tensor([[c, math.sqrt(1 - c * c)] for c in cosines], dtype=torch.float64)


def same_gradient(ours, twin, *tensors):
    """Values and gradients of two functions of the same tensors."""
    mine, theirs = ([t.detach().clone().requires_grad_() for t in tensors] for _ in range(2))
    value, expected = ours(*mine), twin(*theirs)
    assert value.item() == pytest.approx(expected.item(), rel=1e-9, abs=1e-10)
    value.backward()
    expected.backward()
    for a, b in zip(mine, theirs, strict=True):
        grads = [torch.zeros_like(a) if g is None else g for g in (a.grad, b.grad)]
        assert torch.allclose(*grads, rtol=1e-7, atol=1e-9)


# ---- Margin and R-Margin -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("apart", [0.0, 0.4, 1.0])
def test_margin_equals_its_twin(kind, apart):
    labels = torch.tensor(LABELS[kind])
    z, noise = rows(len(labels)), uniform(3, len(labels), len(labels))
    drawn = margin.sample_triplets(z, labels, noise[:2])
    if apart:
        drawn = margin.switch_negatives(drawn, apart, noise[2].diagonal())
    beta = torch.linspace(0.7, 1.3, 4, dtype=torch.float64)

    def ours(z, beta):
        loss = MarginLoss(4, switch_probability=apart)
        del loss.beta
        loss.beta = beta
        return loss(z, labels, noise)

    same_gradient(ours, lambda z, beta: naive.margin(z, labels, drawn, beta), z, beta)


def test_margin_worked_by_hand_and_by_the_library():
    from pytorch_metric_learning.losses import MarginLoss

    z = torch.zeros(3, 2, dtype=torch.float64)
    z[1, 0], z[2, 1] = 1.3, 1.1
    one = Triplets(*torch.tensor([[0], [1], [2]]))
    value = margin.margin_loss(z, one, torch.tensor([1.2], dtype=torch.float64))
    assert value.item() == pytest.approx(0.6, abs=1e-7)  # the library's divisor gives 0.3
    # Where every triplet has one active term, both divisors are the same, and so is the loss.
    labels = torch.tensor([0, 0, 1, 1])
    z = at(0.9, 0.5, -0.2, -0.7)
    chosen = Triplets(*torch.tensor([[0, 1], [1, 0], [2, 3]]))
    library = MarginLoss(margin=0.2, nu=0, beta=0.5, learn_beta=False)
    ours = margin.margin_loss(z, chosen, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert ours.item() == pytest.approx(library(z, labels, tuple(chosen)).item(), rel=1e-6)


def test_distance_weights_worked_by_hand():
    distances = torch.tensor([0.5, 1.0], dtype=torch.float64)
    for dim, expected in ((3, [2 / 3, 1 / 3]), (4, [0.78155, 0.21845])):
        assert margin.log_weights(distances, dim).softmax(0).tolist() == pytest.approx(expected, abs=5e-6)
    for dim in (2, 8, 128):
        actual = margin.log_weights(torch.tensor([0.1, 0.6, 1.2, 1.9], dtype=torch.float64), dim)
        expected = [math.log(naive.inverse_density(d, dim)) for d in (0.1, 0.6, 1.2, 1.9)]
        assert actual.tolist() == pytest.approx(expected)
    assert torch.isfinite(margin.log_weights(torch.tensor([0.0, 2.0]), 512)).all()


def test_negatives_are_drawn_by_their_weights():
    labels = torch.tensor([0, 0, 1, 2, 3])
    z, counts, draws = rows(5, 3), torch.zeros(5), 4000
    for seed in range(draws):
        drawn = margin.sample_by_distance(z, labels[:, None] != labels, uniform(5, 5, seed=seed))
        counts[drawn[0]] += 1
    weights = [naive.inverse_density((z[0] - z[j]).norm(), 3) if labels[j] else 0.0 for j in range(5)]
    expected = torch.tensor(weights) / sum(weights)
    assert torch.allclose(counts / draws, expected, atol=0.03)
    assert counts[:2].sum() == 0


def test_triplets_are_of_the_right_classes():
    labels = torch.tensor(LABELS["uneven"])
    z, noise = rows(7), uniform(3, 7, 7)
    drawn = margin.sample_triplets(z, labels, noise[:2])
    assert drawn.anchor.tolist() == [0, 1, 2, 3, 4, 5]  # the last has no other of its class
    assert (labels[drawn.anchor] == labels[drawn.positive]).all() and (drawn.anchor != drawn.positive).all()
    assert (labels[drawn.anchor] != labels[drawn.negative]).all()
    apart = margin.switch_negatives(drawn, 1.0, noise[2].diagonal())
    assert (apart.positive == apart.anchor).all() and (apart.negative == drawn.positive).all()
    never = margin.switch_negatives(drawn, 0.0, noise[2].diagonal())
    assert all(torch.equal(a, b) for a, b in zip(never, drawn, strict=True))


def test_pushing_apart_lengthens_the_distance_within_a_class():
    z = at(0.9, 0.8, -0.5, -0.6).requires_grad_()
    labels = torch.tensor([0, 0, 1, 1])
    MarginLoss(2, beta=0.6, switch_probability=1.0)(z, labels, uniform(3, 4, 4)).backward()
    moved = normalize(z.detach() - 0.05 * z.grad, dim=1)
    assert (moved[0] - moved[1]).norm() > (z[0] - z[1]).norm()


# ---- the others ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LABELS)
def test_active_multi_similarity_equals_its_twin(kind):
    labels = torch.tensor(LABELS[kind])
    same_gradient(
        lambda z: ActiveMultiSimilarityLoss()(z, labels),
        lambda z: naive.multi_similarity_of_active(z, labels),
        rows(len(labels)),
    )


def test_multi_similarity_worked_by_hand():
    """One positive at 0.6 and one negative at 0.55: (1/2) log(1 + e^−0.2) + (1/40) log(1 + e^2)."""
    z = torch.zeros(3, 3, dtype=torch.float64)
    z[0, 0] = 1
    z[1] = torch.tensor([0.6, 0.8, 0.0])
    z[2] = torch.tensor([0.55, 0.0, math.sqrt(1 - 0.55**2)])
    expected = 0.5 * math.log1p(math.exp(-0.2)) + math.log1p(math.exp(2)) / 40
    assert expected == pytest.approx(0.3522426, abs=1e-7)
    labels = torch.tensor([0, 0, 1])
    # The anchors 1 and 2 change the means; with ε at 0 and the pair (1, 2) at 0.33, anchor 1 keeps nothing.
    actual = ActiveMultiSimilarityLoss(epsilon=0.0)(z, labels)
    assert actual.item() == pytest.approx(naive.multi_similarity_of_active(z, labels, epsilon=0.0).item())
    only = ActiveMultiSimilarityLoss(epsilon=0.1)
    twin = naive.multi_similarity_of_active(z, labels)
    assert only(z, labels).item() == pytest.approx(twin.item())


@pytest.mark.parametrize("kind", LABELS)
def test_arcface_equals_its_twin(kind):
    labels = torch.tensor(LABELS[kind])
    loss = ArcFaceLoss(4, 6, generator=torch_rng(1, "w")).double()
    z = rows(len(labels))
    weights = loss.loss.W.detach().t().clone().requires_grad_()
    mine, theirs = z.clone().requires_grad_(), z.clone().requires_grad_()
    value, expected = loss(mine, labels), naive.arcface(theirs, labels, weights)
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    value.backward()
    expected.backward()
    assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6)
    assert torch.allclose(loss.loss.W.grad.t(), weights.grad, rtol=1e-4, atol=1e-6)


def test_arcface_worked_by_hand_and_its_start():
    loss = ArcFaceLoss(2, 3).double()
    with torch.no_grad():
        loss.loss.W.copy_(torch.tensor([[0.8, 0.3], [0.6, 0.0], [0.0, math.sqrt(1 - 0.09)]]))
    z = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    assert loss(z, torch.tensor([0])).item() == pytest.approx(0.1486975, abs=1e-6)
    start = ArcFaceLoss(100, 64, generator=torch_rng(0, "w")).loss.W.detach()
    assert 0.12 < start.abs().max() <= 1 / 8
    assert torch.equal(start, ArcFaceLoss(100, 64, generator=torch_rng(0, "w")).loss.W.detach())


def test_proxy_anchor_worked_by_hand_and_its_start():
    loss = ProxyAnchorLoss(1, 2).double()
    with torch.no_grad():
        loss.loss.proxies.copy_(torch.tensor([[1.0, 0.0]]))
    assert loss(at(0.5), torch.tensor([0])).item() == pytest.approx(2.7608e-6, rel=1e-4)
    loss = ProxyAnchorLoss(2, 2).double()
    with torch.no_grad():  # the second proxy is the image's own, at cosine 1
        loss.loss.proxies.copy_(torch.stack([torch.tensor([1.0, 0.0]), at(0.2)[0]]))
    pull = math.log1p(math.exp(-32 * 0.9))
    assert loss(at(0.2), torch.tensor([1])).item() == pytest.approx(9.6000677 / 2 + pull, rel=1e-6)
    drawn = ProxyAnchorLoss(100, 64, std=1 / 8, generator=torch_rng(0, "w")).loss.proxies.std().item()
    assert drawn == pytest.approx(1 / 8, rel=0.05)


def test_uniform_prior_equals_its_twin():
    layers = [layer.double() for layer in uniform_prior.init_discriminator(4, 5, torch_rng(0, "d"))]
    x = rows(6, 4)

    def twin(x):
        sure = [naive.discriminator(layers, list(row)) for row in x]
        return -sum(torch.log(torch.sigmoid(s)) for s in sure) / len(sure)

    same_gradient(lambda x: uniform_prior.prior_loss(layers, x), twin, x)
    noise = uniform(6, 4)

    def other(*layers):
        real = [torch.sigmoid(naive.discriminator(layers, list(row))) for row in noise]
        fake = [torch.sigmoid(naive.discriminator(layers, list(row))) for row in x]
        return -sum(map(torch.log, real)) / 6 - sum(torch.log(1 - f) for f in fake) / 6

    same_gradient(lambda *layers: uniform_prior.discriminator_loss(layers, x, noise), other, *layers)
    moving = x.clone().requires_grad_()
    uniform_prior.discriminator_loss([layer.clone().requires_grad_() for layer in layers], moving, noise).backward()
    assert moving.grad is None


def test_chunks():
    x = torch.arange(2 * 7).reshape(2, 7)
    assert uniform_prior.split_chunks(x, 3).tolist() == [[0, 1, 2], [3, 4, 5], [7, 8, 9], [10, 11, 12]]


def test_self_similarity_equals_its_twin():
    keys, queue = rows(5, 6, 1), rows(9, 6, 2)
    same_gradient(
        lambda q: diva.self_similarity_loss(q, keys, queue, 0.1),
        lambda q: naive.self_similarity(q, keys, queue, 0.1),
        rows(5),
    )
    assert diva.self_similarity_loss(rows(5), keys, queue[:0]).item() == 0


def test_keys_beyond_the_cutoff_weigh_nothing_in_self_similarity():
    """One key at a right angle to one query and opposite to the other, one opposite to both."""
    queries = torch.tensor([[1.0, 0.0], [0.8, 0.6]]).double()
    queue = torch.tensor([[0.3, 0.9539392], [-0.9486833, -0.3162278]]).double()
    distances = (queries[:, None] - queue).norm(dim=2)
    assert (distances[:, 0] < 1.4).all() and (distances[:, 1] > 1.4).all()
    moved = queue.clone()
    moved[0] = torch.tensor([-0.1, 0.9949874])  # beyond the cutoff of the first query only
    assert (queries - moved[0]).norm(dim=1)[0] > 1.4 > (queries - moved[0]).norm(dim=1)[1]
    cosines = queries @ moved.T
    logits = torch.stack([torch.ones(2).double(), torch.tensor([0.0, cosines[1, 0]]), cosines[:, 1] / 2], 1) / 0.1
    expected = torch.nn.functional.cross_entropy(logits, torch.zeros(2, dtype=torch.long))
    assert diva.self_similarity_loss(queries, queries, moved, 0.1).item() == pytest.approx(expected.item(), rel=1e-6)


def test_decorrelation_and_the_reversed_gradient():
    main, other = rows(4, 3).requires_grad_(), rows(4, 3, 5).requires_grad_()
    value = diva.decorrelation_loss(diva.reverse_gradient(main), diva.reverse_gradient(other))
    by_hand = -sum((main[i, k] * other[i, k]) ** 2 for i in range(4) for k in range(3)) / 12
    assert value.item() == pytest.approx(by_hand.item())
    value.backward()
    straight = torch.autograd.grad(by_hand, main)[0]
    assert torch.allclose(main.grad, -straight, atol=1e-12)  # heads unlearn what they share


def test_triplets_of_the_paper():
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    z, noise = rows(8), uniform(2, 8, 8)
    shared = diva.sample_shared_triplets(z, labels, noise)
    classes = torch.stack([labels[part] for part in shared])
    assert len(shared.anchor) == 8
    assert all(len(set(column.tolist())) == 3 for column in classes.T)
    intra = diva.sample_intra_triplets(z, labels, noise)
    assert intra.anchor.tolist() == [0, 1, 2, 3, 4, 5]  # the last class has two images
    assert all(len({int(part[i]) for part in intra}) == 3 for i in range(6))
    assert (labels[intra.anchor] == labels[intra.negative]).all()
    assert len(diva.sample_shared_triplets(z[:6], labels[:6], noise[:, :6, :6]).anchor) == 0  # there is no third class


@pytest.mark.parametrize("temperature", [1.0, 0.2])
def test_distillation_equals_its_twin(temperature):
    teacher = rows(6, 9, 3)
    same_gradient(
        lambda z: s2sd.distillation_loss(teacher, z, temperature),
        lambda z: naive.distillation(teacher, z, temperature),
        rows(6),
    )
    assert s2sd.distillation_loss(teacher, teacher, temperature).item() == pytest.approx(0, abs=1e-12)
    moving = teacher.clone().requires_grad_()
    s2sd.distillation_loss(moving, rows(6).requires_grad_()).backward()
    assert moving.grad is None
