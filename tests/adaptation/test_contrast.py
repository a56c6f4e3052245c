"""Bank, votes and contrastive term: the specification's figures, naive twins, and what must not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.naive import adapting as naive
from torch import Tensor

from lookalike.adaptation.bank import Bank, exact_top_k, votes
from lookalike.adaptation.contrast import Columns, ContrastQueries, contrastive, listed

ROWS = [(1, 0, 0, 0), (3, 1, 0, 0), (0, 1, 0, 0), (2, 1, 0, 1), (1, 1, 1, 0), (0, 0, 1, 1), (2, 0, 0, 1), (1, 2, 0, 2)]
IDS = [0, 1, 2, 1, 3, 5, 6, 7]
LOGITS = [(2.0, 0, 0), (2.0, 0, 1), (0, 2.0, 0), (0, 1.0, 0), (0, 0, 3.0)]
LABELS = torch.tensor([0, 0, 1, 2])  # of the target images, as the vectors of the specification have them


def unit(rows: Any) -> Tensor:
    return torch.nn.functional.normalize(torch.tensor(rows, dtype=torch.float64), dim=-1)


def spec_bank() -> Bank:
    bank = Bank(8, 4, 3, 4, pool_fraction=3 / 8, dtype=torch.float64)
    bank.push_target(unit(ROWS[:5]), torch.tensor(IDS[:5]), torch.tensor(LOGITS, dtype=torch.float64))
    bank.push_pool(unit(ROWS[5:]), torch.tensor(IDS[5:]), torch.tensor([-1, -1, -1]))
    return bank


Q, K, W = unit([(2, 1, 0, 0)]), unit([(4, 1, 1, 0)]), unit([(3, 2, 0, 0)])


def ask(near: list[int], *, id_: int = 0, label: int = 0, barred: list[int] | None = None) -> ContrastQueries:
    lists = torch.tensor([near or [-1]])
    flags = torch.zeros_like(lists, dtype=torch.bool) if barred is None else torch.isin(lists, torch.tensor(barred))
    return ContrastQueries(torch.tensor([id_]), torch.tensor([label]), lists, flags)


def spec_loss(near: list[int], pool_set: Any, *, by_class: bool = True, id_: int = 0, labels: Any = LABELS) -> float:
    loss, _ = contrastive(Q, K, ask(near, id_=id_), spec_bank().columns(labels), pool_set=pool_set, by_class=by_class)
    return float(loss[0])


def test_contrastive_figures_of_the_specification() -> None:
    about = pytest.approx
    assert spec_loss([], "all", by_class=False, id_=99) == about(1.404456, abs=1e-6)
    assert spec_loss([], "all", by_class=False) == about(1.284440, abs=1e-6)
    assert spec_loss([], "none") == about(0.080600, abs=1e-6)
    assert spec_loss([], "all") == about(0.190617, abs=1e-6)
    assert spec_loss([6, 7], "own") == about(0.190616, abs=1e-6)
    assert spec_loss([7], "own") == about(0.086589, abs=1e-6)
    assert spec_loss([7], "others") == about(0.185222, abs=1e-6)
    assert spec_loss([6], "positive") == about(1.252641, abs=1e-6)
    relabeled = torch.tensor([0, 0, 1, 0])
    assert spec_loss([], "all", labels=relabeled) == about(0.119411, abs=1e-6), "labels written before the loss"
    assert spec_loss([], "none", labels=torch.zeros(4, dtype=torch.int64)) == 0.0


def test_gradient_of_the_specification() -> None:
    q = Q.clone().requires_grad_()
    loss, _ = contrastive(q, K, ask([]), spec_bank().columns(LABELS), pool_set="all")
    loss.sum().backward()
    assert q.grad is not None
    assert q.grad[0].tolist() == pytest.approx([-0.482598, 0.042885, -0.017491, 0.682464], abs=1e-6)


@pytest.mark.parametrize("tau", [0.005, 0.02, 0.07])
def test_no_temperature_overflows(tau: float) -> None:
    """A query opposite to its key and next to a negative, in float32: far beyond exp's range."""
    q = unit([(1.0, 0.2)]).float().requires_grad_()
    key, row = -unit([(1.0, 0.3)]).float(), unit([(1.0, 0.1), (-1.0, 0.5)]).float()
    columns = [Columns(row, torch.tensor([5, 6]), torch.tensor([1, 1]), pool=False)]
    loss, _ = contrastive(q, key, ask([]), columns, tau=tau)
    loss.sum().backward()
    rows = torch.cat([key, row]).double()
    exact = q.detach().double().requires_grad_()
    expected = torch.logsumexp(exact @ rows.T / tau, 1) - (exact * key.double()).sum(1) / tau
    expected.sum().backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert q.grad is not None and exact.grad is not None
    assert q.grad[0].tolist() == pytest.approx(exact.grad[0].tolist(), rel=1e-4)


def test_no_negatives_no_gradient() -> None:
    q = Q.clone().requires_grad_()
    loss, counts = contrastive(q, K, ask([]), spec_bank().columns(torch.zeros(4, dtype=torch.int64)), pool_set="none")
    loss.sum().backward()
    assert float(loss.detach()) == 0.0 and q.grad is not None and q.grad.abs().max() == 0
    assert sum(int(c.sum()) for c in counts) == 0


def test_votes_of_the_specification() -> None:
    bank, own = spec_bank(), torch.tensor([0])
    assert bank.probabilities(torch.tensor(1)).tolist() == pytest.approx([0.451863, 0.274069, 0.274069], abs=1e-6)
    assert bank.probabilities(torch.tensor(1), of_logits=False).tolist() == pytest.approx(
        [0.438591, 0.333074, 0.228335], abs=1e-6
    )
    logits = torch.zeros(1, 3, dtype=torch.float64)
    probabilities = votes(W, own, bank, logits, k=3)
    assert probabilities[0].tolist() == pytest.approx([0.201216, 0.368778, 0.430006], abs=1e-6)
    probabilities = votes(W, own, bank, logits, k=3, self_vote=True)
    assert probabilities[0].tolist() == pytest.approx([0.428042, 0.141951, 0.430006], abs=1e-6)
    twin = naive.Bank(8)
    twin.push([naive.Slot(naive.unit(r), i, logits=z) for r, i, z in zip(ROWS[:5], IDS[:5], LOGITS, strict=True)])
    plain = naive.vote(W[0].tolist(), 0, twin, [0, 0, 0], k=3, dedupe=False, self_vote=True, aggregate=False)
    assert plain == pytest.approx([0.554723, 0.257551, 0.187726], abs=1e-6)


def random_case(seed: int, *, size: int = 150, steps: int = 9) -> tuple[Bank, naive.Bank, torch.Generator]:
    """A bank and its twin after some pushes, with copies, wrapped rings, and pool images that are target images."""
    generator = torch.Generator().manual_seed(seed)
    bank = Bank(size, 6, 3, 12, pool_fraction=0.4, dtype=torch.float64)
    twin = naive.Bank(size, len(bank.pool.ids))
    for _ in range(steps):
        rows = torch.nn.functional.normalize(torch.randn(14, 6, dtype=torch.float64, generator=generator), dim=1)
        ids = torch.randint(0, 12, (14,), generator=generator)
        logits = torch.randn(14, 3, dtype=torch.float64, generator=generator)
        bank.push_target(rows, ids, logits)
        twin.push(
            [naive.Slot(r, i, logits=z) for r, i, z in zip(rows.tolist(), ids.tolist(), logits.tolist(), strict=True)]
        )
        rows = torch.nn.functional.normalize(torch.randn(9, 6, dtype=torch.float64, generator=generator), dim=1)
        ids, guesses = torch.randint(8, 30, (9,), generator=generator), torch.randint(0, 3, (9,), generator=generator)
        bank.push_pool(rows, ids, guesses)
        twin.push(
            [naive.Slot(r, i, guess=g) for r, i, g in zip(rows.tolist(), ids.tolist(), guesses.tolist(), strict=True)]
        )
    return bank, twin, generator


@pytest.mark.parametrize("size", [3, 23, 150, 400])
def test_the_bank_is_a_deque(size: int) -> None:
    bank, twin, _ = random_case(size, size=size)
    target = sorted((s.id, s.row) for s in twin.slots if not s.pool)
    pool = sorted((s.id, s.row) for s in twin.slots if s.pool)
    assert sorted(zip(bank.target.read("ids").tolist(), bank.target.read("rows").tolist(), strict=True)) == target
    assert sorted(zip(bank.pool.read("ids").tolist(), bank.pool.read("rows").tolist(), strict=True)) == pool
    sums, counts = bank.sums.clone(), bank.counts.clone()
    bank.recount()
    assert torch.equal(counts, bank.counts) and torch.allclose(sums, bank.sums, atol=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dedupe": False},
        {"self_vote": True},
        {"of_logits": False},
        {"refine": "comatch"},
        {"refine": "self"},
        {"refine": "none"},
        {"k": 40},
    ],
)
def test_votes_equal_the_twin(options: dict[str, Any]) -> None:
    bank, twin, generator = random_case(5)
    weak = torch.nn.functional.normalize(torch.randn(7, 6, dtype=torch.float64, generator=generator), dim=1)
    own, logits = torch.arange(7), torch.randn(7, 3, dtype=torch.float64, generator=generator)
    probabilities = votes(weak, own, bank, logits, **{"k": 4, **options})
    for i in range(7):
        expected = naive.vote(weak[i].tolist(), i, twin, logits[i].tolist(), **{"k": 4, **options})
        assert probabilities[i].tolist() == pytest.approx(expected, abs=1e-10)


def test_votes_where_nobody_may_vote_are_the_models_own() -> None:
    bank = Bank(4, 2, 2, 3)
    logits = torch.tensor([[1.0, 0.0]])
    row = torch.tensor([[1.0, 0.0]])
    assert torch.equal(votes(row, torch.tensor([0]), bank, logits), logits.double().softmax(1))
    bank.push_target(row, torch.tensor([0]), torch.tensor([[0.0, 5.0]]))
    assert torch.equal(votes(row, torch.tensor([0]), bank, logits), logits.double().softmax(1)), "its own entry alone"


@pytest.mark.parametrize("pool_set", ["own", "all", "others", "positive", "none"])
@pytest.mark.parametrize("pseudo", [False, True])
def test_contrastive_equals_the_twin(pool_set: Any, pseudo: bool) -> None:
    bank, twin, generator = random_case(7)
    q = torch.nn.functional.normalize(
        torch.randn(5, 6, dtype=torch.float64, generator=generator), dim=1
    ).requires_grad_()
    key = torch.nn.functional.normalize(torch.randn(5, 6, dtype=torch.float64, generator=generator), dim=1)
    lists = torch.tensor([[9, 20], [13, -1], [-1, -1], [29, 8], [21, 22]])
    barred = torch.tensor([[False, True]] * 5)
    labels = torch.randint(0, 3, (5,), generator=generator)
    queries = ContrastQueries(torch.arange(5) + 8, labels, lists, barred)
    slots, by_id = list(twin.slots), {i: twin.label(i) for i in {s.id for s in twin.slots if not s.pool}}
    loss, counts = contrastive(q, key, queries, bank.columns(), pool_set=pool_set, pseudo=pseudo)
    times = 0
    for i in range(5):
        free = [int(x) for x, no in zip(lists[i], barred[i], strict=True) if x >= 0 and not no]
        held = [int(x) for x, no in zip(lists[i], barred[i], strict=True) if x >= 0 and no]
        against = naive.negatives(
            slots, by_id, i + 8, int(labels[i]), free, pool_set=pool_set, pseudo=pseudo, barred=held
        )
        more = [s for s in slots if s.pool and s.id in free and s.id != i + 8] if pool_set == "positive" else []
        expected = naive.contrastive(q[i].tolist(), key[i].tolist(), against, more=more)
        assert float(loss[i].detach()) == pytest.approx(expected, abs=1e-9)
        times += sum(s.pool for s in against)
    columns = bank.columns()
    assert sum(int(c.sum()) for c in counts) == times
    loss.sum().backward()
    step = torch.zeros_like(q).detach()
    step[3, 2] = 1e-6
    ends = [
        contrastive(q.detach() + s * step, key, queries, columns, pool_set=pool_set, pseudo=pseudo)[0].sum()
        for s in (1, -1)
    ]
    assert q.grad is not None
    assert float(q.grad[3, 2]) == pytest.approx(float(ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)


def test_more_columns_than_a_block_and_what_must_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.nn.functional.normalize(torch.randn(5000, 8, dtype=torch.float64, generator=generator), dim=1)
    ids, labels = torch.randint(0, 900, (5000,), generator=generator), torch.randint(0, 4, (5000,), generator=generator)
    q, key = rows[:3] * 1.0, rows[3:6]
    queries = ContrastQueries(
        torch.arange(3), torch.tensor([0, 1, 2]), torch.full((3, 1), -1), torch.zeros(3, 1, dtype=torch.bool)
    )

    def loss(keep: Any) -> Tensor:
        return contrastive(q, key, queries, [Columns(rows[keep], ids[keep], labels[keep], pool=False)])[0]

    shuffled = torch.randperm(5000, generator=generator)
    assert torch.allclose(loss(slice(None)), loss(shuffled), atol=1e-12)
    mine = (ids == 0) | (labels == 0)
    assert float(loss(slice(None))[0]) == pytest.approx(float(loss(~mine)[0]), abs=1e-12), "own id, own class"
    assert bool((loss(slice(0, 4000)) <= loss(slice(None))).all()), "a negative more never lowers it"


def test_the_best_of_many_are_exact() -> None:
    scores = torch.rand(4, 64 * 30 + 17, generator=torch.Generator().manual_seed(1))
    near, index = exact_top_k(scores, 10)
    assert torch.equal(near, scores.sort(1, descending=True).values[:, :10])
    assert torch.equal(scores.gather(1, index), near)


def test_pairs_of_lists_and_columns() -> None:
    ids, lists = torch.tensor([5, 3, 5, -1, 8]), torch.tensor([[5, -1], [8, 3], [-1, -1], [5, 5]])
    pairs = listed(ids, lists)
    assert list(zip(pairs.rows.tolist(), pairs.columns.tolist(), strict=True)) == [
        (0, 0),
        (3, 0),
        (1, 1),
        (0, 2),
        (3, 2),
        (1, 4),
    ]
    assert len(listed(ids[:0], lists).rows) == 0 == len(listed(ids, lists[2:3]).rows)
