"""The terms of DMCAC: the vectors of the paper's equations worked by hand, the slow twin, and what must not change."""

from __future__ import annotations

import math

import pytest
import torch
from tests.naive import dmcac as naive
from torch.nn.functional import normalize

from lookalike.core.seeds import torch_rng
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.losses import dmcac, hyperbolic
from lookalike.losses.dmcac import (
    AttentionHeads,
    Database,
    RetrievalUnion,
    full_terms,
    js_divergences,
    log_ratios_to_mean,
    retrieval_union,
    union_terms,
)


def js_divergence(similarity, temperature=1.0):
    """The divergence of the kernel that trains, of similarities to rows that all exist."""
    columns = torch.eye(similarity.shape[2], dtype=similarity.dtype).expand(len(similarity), -1, -1)
    everything = torch.ones(similarity.shape[::2], dtype=torch.bool)
    return dmcac._UnionTerms.apply(similarity, torch.zeros_like(similarity), columns, everything, temperature)[0]


def at(*degrees):
    angles = torch.tensor(degrees, dtype=torch.float64) * math.pi / 180
    return torch.stack([angles.cos(), angles.sin()], -1)


def plain_heads() -> AttentionHeads:
    """Those of the vectors: 2 classes, 2 numbers."""
    heads = AttentionHeads(2, 2).double()
    values = {
        "classifier": torch.eye(2),
        "query": 2 * torch.eye(2),
        "key": torch.eye(2),
        "value": torch.diag(torch.tensor([1.0, -1.0])),
        "attention_classifier": torch.tensor([[1.0, 0.5], [-0.5, 1.0]]),
    }
    heads.load_state_dict({name: value.double() for name, value in values.items()})
    return heads


def as_dict(heads: AttentionHeads) -> dict:
    return dict(heads.named_parameters())


def cloud(*shape, seed=0, dtype=torch.float64):
    return normalize(torch.randn(*shape, generator=torch_rng(seed, "cloud", *shape), dtype=dtype), dim=-1)


def case(queries=5, views=3, rows=40, dim=6, classes=4, k=4, seed=0, dtype=torch.float64):
    """Views near one another, so that they share some of what they retrieve."""
    middle = cloud(queries, 1, dim, seed=seed)
    z = normalize(middle + 0.4 * cloud(queries, views, dim, seed=seed + 1), dim=-1).to(dtype)
    database = Database(cloud(rows, dim, seed=seed + 2).to(dtype), torch.arange(rows) % classes)
    labels = torch.arange(queries) % classes
    heads = AttentionHeads(classes, dim, torch_rng(seed, "heads")).to(dtype)
    with torch.no_grad():  # large enough for an attention that is not flat
        for parameter in heads.parameters():
            parameter.mul_(4)
    actual = retrieval_union(torch_top_k(z.flatten(0, 1), database.vectors, k)[1].view(queries, views, k))
    return z, labels, database, heads, actual


def three(z, labels, database, heads, actual, temperature):
    terms = (
        full_terms(z, z, labels, database, heads, temperature, block=7)
        if actual is None
        else union_terms(z, z, labels, database, actual, heads, temperature)
    )
    return terms.divergence, dmcac.classification_loss(z @ heads.classifier.t(), labels), terms.attention


# ---- vectors -----------------------------------------------------------------------------------------


def test_one_query_by_hand():
    z, rows, heads = at(0, 20, 60)[None], at(10, 40, 90, 180), plain_heads()
    database, actual = (
        Database(rows, torch.zeros(4)),
        RetrievalUnion(torch.arange(4)[None], torch.ones(1, 4, dtype=torch.bool)),
    )
    frob, ce, cac = three(z, torch.tensor([0]), database, heads, actual, 1.0)
    assert [frob.item(), ce.item(), cac.item()] == pytest.approx([0.029445, 1.644389, 0.794127], abs=1e-6)
    assert (frob + ce + cac).item() == pytest.approx(2.467961, abs=2e-6)
    weights = dmcac.attention_weights(heads, z, rows[None], actual.mask)[0]
    expected = [
        [0.489551, 0.359283, 0.121603, 0.029564],
        [0.415478, 0.389797, 0.167401, 0.027324],
        [0.244398, 0.371923, 0.335126, 0.048553],
    ]
    assert torch.allclose(weights, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    similarity = (z @ rows.t()).requires_grad_()
    js_divergence(similarity).sum().backward()
    slope = [
        [0.038862, -0.003487, -0.030365, -0.005010],
        [0.014559, 0.001443, -0.012871, -0.003131],
        [-0.050354, -0.008110, 0.051011, 0.007453],
    ]
    assert torch.allclose(similarity.grad[0], torch.tensor(slope, dtype=torch.float64), atol=1e-6)
    pairs = [js_divergence(similarity[:, [a, b]].detach()).item() for a, b in ((1, 0), (2, 0), (2, 1))]
    assert pairs == pytest.approx([0.001985, 0.025566, 0.014472], abs=1e-6)
    cold = three(z, torch.tensor([0]), database, heads, actual, 0.1)
    assert cold[0].item() == pytest.approx(0.552076, abs=1e-6)
    assert sum(cold).item() == pytest.approx(2.990592, abs=2e-6)


def test_two_queries_with_unions_of_different_size_by_hand():
    z, rows = torch.stack([at(12, 50), at(100, 105)]), at(0, 30, 80, 120, 200)
    actual = retrieval_union(torch_top_k(z.flatten(0, 1), rows, 2)[1].view(2, 2, 2))
    assert actual.members.tolist() == [[0, 1, 2], [2, 3, 0]]
    assert actual.mask.tolist() == [[True, True, True], [True, True, False]]
    frob, ce, cac = three(z, torch.tensor([0, 1]), Database(rows, torch.zeros(5)), plain_heads(), actual, 1.0)
    assert frob.tolist() == pytest.approx([0.0129210, 1.110352e-4], abs=1e-7)
    assert ce.tolist() == pytest.approx([1.137097, 0.530662], abs=1e-6)
    assert cac.tolist() == pytest.approx([0.473690, 1.603661], abs=1e-6)
    assert sum(t.mean() for t in (frob, ce, cac)).item() == pytest.approx(1.879071, abs=1e-6)


# ---- the slow twin -----------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("term", [0, 1, 2])
def test_every_term_and_its_gradients_are_those_of_the_loop(full, temperature, term):
    z, labels, database, heads, actual = case()
    database = database._replace(vectors=database.vectors.clone().requires_grad_(full))
    weights = [float(n == term) for n in range(3)]
    z = z.requires_grad_()
    k = None if full else 4
    slow, _ = naive.dmcac(z, labels, database.vectors, as_dict(heads), k=k, temperature=temperature, weights=weights)
    fast = three(z, labels, database, heads, None if full else actual, temperature)[term].mean()
    assert fast.item() == pytest.approx(slow.item(), rel=1e-9)
    inputs = [z, *heads.parameters(), *([database.vectors] if full else [])]
    expected = torch.autograd.grad(slow, inputs, allow_unused=True)
    ours = torch.autograd.grad(fast, inputs, allow_unused=True)
    for a, b in zip(ours, expected, strict=True):
        zero = torch.zeros((), dtype=torch.float64)
        assert torch.allclose(zero if a is None else a, zero if b is None else b, rtol=1e-7, atol=1e-11)


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_the_kernel_is_the_reference_form(scale):
    z, labels, database, heads, actual = case()
    heads.scale = scale
    inputs = z.requires_grad_(), *heads.parameters()
    terms, gradients = [], []
    for form in (dmcac.union_terms, dmcac.terms_reference):
        output = form(z, 1.5 * z, labels, database, actual, heads, 0.2)
        terms.append(torch.stack(output))
        total = (output.divergence + output.attention).sum()
        gradients.append(torch.autograd.grad(total, inputs, allow_unused=True))
    assert torch.allclose(*terms)
    for ours, plain in zip(*gradients, strict=True):
        assert ours is plain is None or torch.allclose(ours, plain, atol=1e-10)


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.05])
def test_float32_keeps_its_digits_where_views_nearly_agree(temperature):
    z, labels, database, heads, actual = case(views=4, rows=60)
    close = normalize(z[:, :1] + 1e-3 * z, dim=-1)
    slow, means = naive.dmcac(close, labels, database.vectors, as_dict(heads), k=4, temperature=temperature)
    small = [close.float(), labels, database._replace(vectors=database.vectors.float()), heads.float(), actual]
    actual = retrieval_union(torch_top_k(close.flatten(0, 1), database.vectors, 4)[1].view(5, 4, 4))
    fast = three(*small[:4], actual, temperature)
    assert means[0].item() < 1e-3
    assert fast[0].mean().item() == pytest.approx(means[0].item(), rel=2e-3)
    assert sum(t.mean() for t in fast).item() == pytest.approx(slow.item(), rel=1e-5)


@pytest.mark.parametrize("form", ["union", "all"])
def test_gradients_by_central_differences(form):
    z, labels, database, heads, actual = case(queries=2, views=3, rows=9, dim=3, k=3)

    def loss(z, rows, query, key, value):
        own = AttentionHeads(4, 3).double()
        tensors = {
            "query": query,
            "key": key,
            "value": value,
            "classifier": heads.classifier,
            "attention_classifier": heads.attention_classifier,
        }
        for name, tensor in tensors.items():
            delattr(own, name)
            setattr(own, name, tensor)
        members = actual if form == "union" else None
        return sum(x.sum() for x in three(z, labels, Database(rows, database.labels), own, members, 0.5))

    rows = database.vectors.clone().requires_grad_(form == "all")
    squares = [getattr(heads, n).detach().clone().requires_grad_() for n in ("query", "key", "value")]
    assert torch.autograd.gradcheck(loss, (z.requires_grad_(), rows, *squares))


@pytest.mark.parametrize("d", [0.0, 1e-4, -0.3, 3.9, -4.1, 30.0, -200.0])
def test_the_stable_form_of_the_summand(d):
    """Beside h(d) = d·tanh(d/2) − 2 log cosh(d/2), of which M·h/2 is a divergence's summand."""
    exact = 0.0 if d == 0 else d * math.tanh(d / 2) - 2 * (abs(d) / 2 + math.log1p(math.exp(-abs(d))) - math.log(2))
    larger = 0.4
    for dtype in (torch.float64, torch.float32):
        p, q = (torch.tensor(larger * math.exp(min(side * d, 0)), dtype=dtype) for side in (1, -1))
        ell_p, ell_q = log_ratios_to_mean(p, q)
        summand, expected = (p * ell_p + q * ell_q).item(), (p + q).item() * exact / 2
        assert summand == pytest.approx(expected, rel=1e-5 if dtype == torch.float64 else 2e-2, abs=1e-15)
        assert math.isfinite(ell_p) and math.isfinite(ell_q)
    empty = torch.zeros(1)
    assert log_ratios_to_mean(empty, empty) == (empty, empty)


@pytest.mark.parametrize(("spread", "most"), [(1e-2, 5e-5), (1e-3, 5e-4)])
def test_digits_of_divergences_that_are_nearly_nothing(spread, most):
    """Of 24 rows, JS 2e-5 and 2e-7: the worst of 960 pairs has these digits left in float32, where the sum of
    P log(P/M) has 3e-3 and 0.2."""
    rng = torch_rng(0, "digits")
    similarity = torch.rand(64, 1, 24, generator=rng) / 2 + 0.3 + spread * torch.randn(64, 6, 24, generator=rng)
    ours, exact = (js_divergences(torch.softmax(x, dim=2))[2] for x in (similarity, similarity.double()))
    assert 0.1 < exact.mean() / (spread / 2) ** 2 < 3
    assert ((ours - exact) / exact).abs().max() < most


# ---- what must not change anything -------------------------------------------------------------------


def test_padding_never_leaks():
    z, labels, database, heads, actual = case()
    z.requires_grad_()
    assert actual.mask.sum(1).unique().numel() > 1
    wide = RetrievalUnion(
        torch.nn.functional.pad(actual.members, (0, 5)), torch.nn.functional.pad(actual.mask, (0, 5), value=False)
    )
    spoilt = database.vectors.clone()
    without = torch.tensor([0 not in m[k].tolist() for m, k in zip(actual.members, actual.mask, strict=True)])
    assert without.any()
    spoilt[0] = 1e4
    for data, members, checked in (
        (database, wide, slice(None)),
        (database._replace(vectors=spoilt), actual, without),
    ):
        one, other = three(z, labels, database, heads, actual, 0.1), three(z, labels, data, heads, members, 0.1)
        for a, b in zip(one, other, strict=True):
            assert torch.allclose(a[checked], b[checked], rtol=1e-6)
            first, second = (torch.autograd.grad(x[checked].sum(), z, retain_graph=True)[0] for x in (a, b))
            assert torch.allclose(first[checked], second[checked], rtol=1e-6, atol=1e-12)
        assert torch.isfinite(torch.autograd.grad(sum(x.sum() for x in other), z)[0]).all()


def test_identical_views_agree_and_have_a_slope():
    for dtype in (torch.float32, torch.float64):
        z, labels, database, heads, _ = case(dtype=dtype)
        z = z[:, :1].expand(-1, 3, -1).clone().requires_grad_()
        actual = retrieval_union(torch_top_k(z.flatten(0, 1), database.vectors, 4)[1].view(5, 3, 4))
        for members in (actual, None):
            frob = three(z, labels, database, heads, members, 0.05)[0]
            assert (frob <= 1e-6).all()
            (slope,) = torch.autograd.grad(frob.sum(), z)
            # Equal rows of a product may differ in their last bit.
            assert torch.isfinite(slope).all() and slope.abs().max() < 1e-5
        similarity = (z.detach() @ database.vectors.t())[:, :1].expand(-1, 3, -1).clone().requires_grad_()
        frob = js_divergence(similarity, temperature=0.05)
        assert frob.abs().max() == 0 and torch.autograd.grad(frob.sum(), similarity)[0].abs().max() == 0


@pytest.mark.parametrize("temperature", [1.0, 0.01])
def test_bounds(temperature):
    similarity = 2 * torch.rand(6, 4, 9, generator=torch_rng(0, "bounds")) - 1
    two = js_divergence(similarity[:, :2], temperature=temperature)
    assert (two > 0).all() and (two <= math.log(2) + 1e-6).all()
    whole = js_divergence(similarity.requires_grad_(), temperature=temperature)
    assert (whole <= math.sqrt(6) * math.log(2) + 1e-5).all()
    whole.sum().backward()
    assert torch.isfinite(similarity.grad).all()
    assert js_divergence(similarity[:, :1]).abs().max() == 0  # one view agrees with itself
    assert js_divergence(similarity[:, :, :1]).abs().max() == 0  # one row leaves nothing to disagree about


def test_orders_do_not_matter():
    z, labels, database, heads, actual = case()
    there = torch.stack(three(z, labels, database, heads, actual, 0.1))
    views, queries = torch.tensor([2, 0, 1]), torch.tensor([4, 2, 0, 3, 1])
    here = three(z[:, views], labels, database, heads, actual, 0.1)
    assert torch.allclose(torch.stack(here), there)
    moved = RetrievalUnion(actual.members[queries], actual.mask[queries])
    here = three(z[queries], labels[queries], database, heads, moved, 0.1)
    assert torch.allclose(torch.stack(here), there[:, queries])
    order = torch.randperm(len(database.vectors), generator=torch_rng(3, "order"))
    shuffled = Database(database.vectors[order], database.labels[order])
    again = retrieval_union(torch_top_k(z.flatten(0, 1), shuffled.vectors, 4)[1].view(5, 3, 4))
    assert torch.allclose(torch.stack(three(z, labels, shuffled, heads, again, 0.1)), there)


def test_the_union_is_what_unique_gives():
    actual = torch.randint(0, 12, (30, 4, 5), generator=torch_rng(0, "union"))
    ours = retrieval_union(actual)
    for lists, members, mask in zip(actual, ours.members, ours.mask, strict=True):
        assert members[mask].tolist() == naive.union(lists.tolist())
        assert (members[~mask] == 0).all()
    assert int(ours.sizes.max()) == ours.mask.shape[1]


def test_approximate_with_everything_is_full_and_blocks_do_not_matter():
    z, labels, database, heads, _ = case()
    everything = retrieval_union(torch_top_k(z.flatten(0, 1), database.vectors, 40)[1].view(5, 3, 40))
    near = torch.stack(three(z, labels, database, heads, everything, 0.1))
    for block in (1, 7, 40, 100):
        far = full_terms(z, z, labels, database, heads, 0.1, block=block)
        assert torch.allclose(torch.stack([far.divergence, far.attention]), near[[0, 2]])
        expected = union_terms(z, z, labels, database, everything, heads, 0.1)
        assert all(torch.allclose(a, b) for a, b in zip(far, expected, strict=True))


def test_a_database_of_constants_gets_no_gradient_and_full_gradient_detached_is_full():
    z, labels, database, heads, _ = case()
    moving = database._replace(vectors=database.vectors.clone().requires_grad_())
    inputs = [z.requires_grad_(), *heads.parameters()]

    def slopes(data):
        total = sum(t.sum() for t in three(z, labels, data, heads, None, 0.1))
        return torch.autograd.grad(total, inputs, retain_graph=True), total

    (with_it, total), (without, _) = slopes(moving), slopes(database)
    assert all(torch.equal(a, b) for a, b in zip(with_it, without, strict=True))
    assert torch.autograd.grad(total, moving.vectors)[0].abs().sum() > 0


def test_what_was_retrieved_gets_no_gradient():
    z, labels, database, heads, actual = case()
    moving = database._replace(vectors=database.vectors.clone().requires_grad_())
    sum(t.sum() for t in three(z.requires_grad_(), labels, moving, heads, actual, 0.1)).backward()
    assert moving.vectors.grad is None and z.grad.abs().sum() > 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.01])
def test_gradients_in_float32_are_those_of_the_loop(full, temperature):
    z, labels, database, heads, actual = case(views=4)
    k = None if full else 4
    actual = retrieval_union(torch_top_k(z.flatten(0, 1), database.vectors, 4)[1].view(5, 4, 4))
    slow, _ = naive.dmcac(z.requires_grad_(), labels, database.vectors, as_dict(heads), k=k, temperature=temperature)
    expected = torch.autograd.grad(slow, z)[0]
    small = z.detach().float().requires_grad_()
    data = database._replace(vectors=database.vectors.float())
    fast = sum(t.mean() for t in three(small, labels, data, heads.float(), None if full else actual, temperature))
    ours = torch.autograd.grad(fast, small)[0].double()
    # Rounding z to float32 moves logits by 6e-8/τ alone.
    assert float((ours - expected).norm() / expected.norm()) < max(5e-6, 5e-7 / temperature)


def test_attention_masses_are_shares_of_one():
    z, labels, database, heads, actual = case()
    weights = dmcac.attention_weights(heads, z, database.vectors[actual.members], actual.mask)
    assert torch.allclose(weights.sum(2), torch.ones(5, 3, dtype=torch.float64))
    assert (weights[~actual.mask[:, None].expand_as(weights)] == 0).all()
    one = retrieval_union(actual.members[:, :1].expand(-1, 4).reshape(5, 2, 2))  # a union of one row
    alone = dmcac.attention_weights(heads, z, database.vectors[one.members], one.mask)
    assert alone.shape[2] == 1 and torch.allclose(alone, torch.ones_like(alone))
    assert (union_terms(z, z, labels, database, one, heads, 0.1).divergence == 0).all()
    every = [union_terms(z, z, labels * 0 + c, database, actual, heads, 1.0).own_attention for c in range(4)]
    assert torch.allclose(torch.stack(every).sum(0), torch.ones(5, dtype=torch.float64))


def test_points_instead_of_laws():
    z = torch.stack([at(0, 60), at(30, 30)]).requires_grad_()
    actual = dmcac.cosine_disagreement(z)
    assert actual.tolist() == pytest.approx([0.5, 0.0], abs=1e-12)
    actual.sum().backward()
    assert torch.isfinite(z.grad).all()


# ---- the hyperbolic pairwise loss --------------------------------------------------------------------

# Slot by slot: image 1 of both classes, then image 2.
VECTORS = torch.tensor([[1.0, 0.0], [-1.0, 1.0], [2.0, 1.0], [0.0, 3.0]], dtype=torch.float64)


def test_the_hyperbolic_vector():
    ball = hyperbolic.to_poincare_ball(VECTORS, 0.1, 2.3)
    expected = [[0.967948, 0], [-0.938267, 0.938267], [1.722114, 0.861057], [0, 1.965120]]
    assert torch.allclose(ball, torch.tensor(expected, dtype=torch.float64), atol=1e-6)
    apart = hyperbolic.hyperbolic_distances(ball, ball, 0.1)
    there = [apart[a, b].item() for a, b in ((0, 2), (0, 1), (0, 3), (2, 1), (2, 3), (1, 3))]
    assert there == pytest.approx([2.925845, 4.522046, 5.249888, 6.298451, 5.755033, 3.697527], abs=2e-6)
    assert hyperbolic.hyperbolic_loss(VECTORS, 2).item() == pytest.approx(0.00844296, abs=1e-8)
    assert hyperbolic.spherical_loss(normalize(VECTORS, dim=1), 2).item() == pytest.approx(0.04201984, abs=1e-8)


@pytest.mark.parametrize("kind", ["hyperbolic", "spherical"])
def test_pairwise_losses_are_those_of_the_loop(kind):
    u = (3 * torch.randn(12, 5, generator=torch_rng(0, "hyp"), dtype=torch.float64)).requires_grad_()
    if kind == "hyperbolic":
        fast = hyperbolic.hyperbolic_loss(u, 3)
        rows, score, temperature = (
            [naive.to_ball(row, 0.1, 2.3) for row in u],
            lambda x, y: -naive.distance(x, y, 0.1),
            0.2,
        )
    else:
        fast = hyperbolic.spherical_loss(normalize(u, dim=1), 3)
        rows, score, temperature = list(normalize(u, dim=1)), lambda x, y: x @ y, 0.1
    slow = naive.pairwise([rows[0:4], rows[4:8], rows[8:12]], score, temperature)
    assert fast.item() == pytest.approx(slow.item(), rel=1e-6)
    ours, theirs = (torch.autograd.grad(x, u, retain_graph=True)[0] for x in (fast, slow))
    assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-9)


def test_equal_images_have_a_finite_slope():
    u = VECTORS[[0, 1, 0, 3]].clone().requires_grad_()
    hyperbolic.hyperbolic_loss(u, 2).backward()
    assert torch.isfinite(u.grad).all()
