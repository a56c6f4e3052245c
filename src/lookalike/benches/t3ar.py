"""A step of adaptation with retrieval: look-up, pseudo-labels (one vote a picture) and the contrastive term.

65,536 entries of 256 numbers, a batch of 128; all entries of the target (each of its pictures three times over), and
two thirds of the pool as in a run. The bare cost is the products: both queries with the bank, and the gradient. The
peer is AdaContrast's algorithm written plainly: a full sort of every row for the neighbours, logits, mask, cross
entropy and autograd. Everything is measured in turns, and ratios are taken within a round.
"""

from __future__ import annotations

import statistics
from typing import Any

from lookalike.benches import Bar, BenchContext
from lookalike.benches.turns import in_turns, ratio
from lookalike.core import seeds

BATCH, SIZE, DIM, K, TAU = 128, 65536, 256, 10, 0.07
CLASSES = (7, 126)
POOL = (0, 2)
"""Pool entries for each entry of the target."""
BARE, FASTER = 2.0, 3.0
ROUNDS = 11


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    before = torch.get_num_threads()
    figures: dict[str, Any] = {"batch": BATCH, "entries": SIZE, "dim": DIM, "rounds": ROUNDS}
    bars: list[Bar] = []
    try:
        for threads in sorted({1, context.threads}):
            torch.set_num_threads(threads)
            for classes in CLASSES:
                for pool in POOL:
                    name = f"{threads} thread{'s' * (threads > 1)}, {classes} classes, {pool} of the pool for each"
                    context.say(name)
                    figures[name], more = measure(classes, pool, name)
                    bars += more
    finally:
        torch.set_num_threads(before)
    return figures, bars


def measure(
    classes: int, pool: int, name: str, *, size: int = SIZE, rounds: int = ROUNDS
) -> tuple[dict[str, Any], list[Bar]]:
    bank, batch = material(classes, pool, size)
    times = in_turns({"bare": bare(bank, batch), "ours": ours(bank, batch), "plain": plain(bank, batch)}, rounds)
    ratios = {
        "ours / bare": ratio(times["ours"], times["bare"]),
        "plain / ours": ratio(times["plain"], times["ours"]),
    }
    figures = {
        "milliseconds": {key: round(1000 * statistics.median(value), 2) for key, value in times.items()},
        "ratios": {key: round(value, 3) for key, value in ratios.items()},
    }
    bars = [
        Bar(f"{name}: ours / bare", ratios["ours / bare"], BARE, "lower"),
        Bar(f"{name}: plain / ours", ratios["plain / ours"], FASTER),
    ]
    return figures, bars


def material(classes: int, pool: int, size: int = SIZE) -> tuple[Any, dict[str, Any]]:
    """A full bank, and a batch of pictures that are in it."""
    import torch
    from torch.nn.functional import normalize

    from lookalike.adapting.bank import Bank

    generator = seeds.torch_rng(0, "bench", "t3ar", classes, pool)
    entries = size // (1 + pool)
    pictures = entries // 3

    def rows(count: int) -> Any:
        return normalize(torch.randn(count, DIM, generator=generator), dim=1)

    bank = Bank(size, DIM, classes, pictures)
    ids = torch.arange(entries) % pictures
    bank.push_target(rows(entries), ids, torch.randn(entries, classes, generator=generator))
    rest = size - entries
    if rest:
        numbers = pictures + torch.arange(rest) % (2 * pictures)
        bank.push_pool(rows(rest), numbers, torch.randint(0, classes, (rest,), generator=generator))
    own = torch.randperm(pictures, generator=generator)[:BATCH]
    batch = {
        "own": own,
        "weak": rows(BATCH),
        "strong": rows(BATCH),
        "logits": torch.randn(BATCH, classes, generator=generator),
        "lists": torch.stack([pictures + 2 * own, pictures + 2 * own + 1], 1) if pool else torch.full((BATCH, 2), -1),
    }
    return bank, batch


def ours(bank: Any, batch: dict[str, Any]) -> Any:
    import torch

    from lookalike.adapting.contrast import Asking, contrastive
    from lookalike.adapting.refining import votes

    nobody = torch.zeros_like(batch["lists"], dtype=torch.bool)

    def step() -> Any:
        q = batch["strong"].clone().requires_grad_()
        labels = votes(batch["weak"], batch["own"], bank, batch["logits"], k=K).argmax(1)
        asking = Asking(batch["own"], labels, batch["lists"], nobody)
        contrastive(q, batch["weak"], asking, bank.columns(), tau=TAU)[0].mean().backward()
        return q.grad

    return step


def _all_rows(bank: Any) -> Any:
    import torch

    return torch.cat([bank.target.read("rows"), bank.pool.read("rows")])


def bare(bank: Any, batch: dict[str, Any]) -> Any:
    import torch

    rows, queries = _all_rows(bank), torch.cat([batch["weak"], batch["strong"]])

    def step() -> Any:
        scores = queries @ rows.T
        return scores[BATCH:] @ rows

    return step


def plain(bank: Any, batch: dict[str, Any]) -> Any:
    """AdaContrast's algorithm: every entry votes with its own probabilities, entries of the same label are masked."""
    import torch

    rows = _all_rows(bank)
    target = bank.target.read("rows")
    probabilities = bank.target.read("values").softmax(1)
    generator = seeds.torch_rng(0, "labels")
    labels = torch.randint(0, probabilities.shape[1], (len(rows),), generator=generator)

    def step() -> Any:
        q = batch["strong"].clone().requires_grad_()
        order = (1 - batch["weak"] @ target.T).sort(1).indices[:, :K]
        found = probabilities[order].mean(1).argmax(1)
        near = (q * batch["weak"]).sum(1, keepdim=True)
        logits = torch.cat([near, q @ rows.T], 1) / TAU
        mask = torch.cat([torch.zeros(BATCH, 1, dtype=torch.bool), found[:, None] == labels[None]], 1)
        logits = torch.where(mask, torch.full_like(logits, -torch.inf), logits)
        torch.nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64)).backward()
        return q.grad

    return step
