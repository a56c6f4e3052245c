"""A step of adaptation with retrieval: look-up, pseudo-labels (one vote an image) and the contrastive term.

65,536 entries of 256 numbers, a batch of 128. Four kinds of bank: all entries of the target, each of its images three
times over; two thirds of the pool, as in a run, with the images retrieved for each (`own`) or all of them as
negatives; and a small target, each of its images some ninety times over. Entries of one image are alike. The bare
cost is the products: both queries with the bank, and the gradient. The peer is AdaContrast's algorithm written plainly:
a full sort of every row for the neighbors, logits, mask, cross entropy and autograd; every entry votes by itself.
Everything is measured in turns, and ratios are taken within a round. Then a pool is embedded and searched twice: the
second time nothing of it may be done again.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved, ratio
from lookalike.core import seeds

BATCH, SIZE, DIM, K, TAU = 128, 65536, 256, 10, 0.07
CLASSES = (7, 126)
BARE, FASTER = 2.0, 3.0
ROUNDS = 11
IMAGES = 300
"""Of the pool that is embedded and searched."""


@dataclass(frozen=True)
class Kind:
    """A bank: pool entries for each entry of the target, entries of each target image, and what is a negative."""

    pool: int
    copies: int
    pool_set: str = "own"


KINDS = {
    "target only": Kind(0, 3),
    "two thirds of the pool": Kind(2, 3),
    "two thirds of the pool, all negatives": Kind(2, 3, "all"),
    "a small target": Kind(0, 94),
}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    before = torch.get_num_threads()
    figures: dict[str, Any] = {"batch": BATCH, "entries": SIZE, "dim": DIM, "rounds": ROUNDS}
    bars: list[Bar] = []
    try:
        for threads in sorted({1, context.threads}):
            torch.set_num_threads(threads)
            for classes in CLASSES:
                for what, kind in KINDS.items():
                    name = f"{threads} thread{'s' * (threads > 1)}, {classes} classes, {what}"
                    context.say(name)
                    figures[name], kwargs = measure(classes, kind, name)
                    bars += kwargs
    finally:
        torch.set_num_threads(before)
    context.say(f"A pool of {IMAGES} images, twice")
    figures["pool"], kwargs = pool_twice()
    return figures, bars + kwargs


@contextmanager
def _home(folder: Path) -> Iterator[None]:
    """Caches of their own, empty at first."""
    before = os.environ.get("LOOKALIKE_HOME")
    os.environ["LOOKALIKE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["LOOKALIKE_HOME"]
        if before is not None:
            os.environ["LOOKALIKE_HOME"] = before


def pool_twice(images: int = IMAGES, model: str = "efficientnet_lite0") -> tuple[dict[str, Any], list[Bar]]:
    """Embed and search a pool, then ask again: how much is done anew."""
    import numpy as np

    from lookalike.adaptation import pool_vectors
    from lookalike.adaptation.pool import read_pool
    from lookalike.adaptation.settings import resolve
    from lookalike.core.device import CPU
    from lookalike.data.synthetic import make_demo_images
    from lookalike.models import Embedder

    done = {"embedded": 0, "searches": 0}
    usual = pool_vectors.embedded_anew, pool_vectors.nearest

    def embedded_anew(*args: Any, **kwargs: Any) -> Any:
        out = usual[0](*args, **kwargs)
        done["embedded"] += len(out)
        return out

    def nearest(*args: Any, **kwargs: Any) -> Any:
        done["searches"] += 1
        return usual[1](*args, **kwargs)

    figures: dict[str, Any] = {"images": images}
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder, _home(Path(folder) / "home"):
        make_demo_images(Path(folder) / "shelf", classes=10, images_per_class=images // 10, styles=("studio",), size=96)
        pool = read_pool([Path(folder) / "shelf"])
        target = pool.table(np.arange(0, len(pool), 5))
        ids = [str(id_) for id_ in target.column("content_id")]
        expert = Embedder.from_pretrained(model, size=96, device=CPU)
        pool_vectors.embedded_anew, pool_vectors.nearest = embedded_anew, nearest
        try:
            for turn in ("first", "again"):
                done.update(embedded=0, searches=0)
                start = time.perf_counter()
                pool_vectors.retrieve(expert, ids, target, pool, resolve(None, {"copy_threshold": 2.0}))
                figures[turn] = {**done, "seconds": round(time.perf_counter() - start, 4)}
        finally:
            pool_vectors.embedded_anew, pool_vectors.nearest = usual
    return figures, [
        Bar("pool images embedded again", figures["again"]["embedded"], 0, "lower"),
        Bar("searches of the pool done again", figures["again"]["searches"], 0, "lower"),
    ]


def measure(
    classes: int, kind: Kind, name: str, *, size: int = SIZE, rounds: int = ROUNDS
) -> tuple[dict[str, Any], list[Bar]]:
    bank, batch = material(classes, kind, size)
    jobs = {"bare": bare(bank, batch), "ours": ours(bank, batch, kind.pool_set), "plain": plain(bank, batch)}
    times = interleaved(jobs, rounds)
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


def material(classes: int, kind: Kind, size: int = SIZE) -> tuple[Any, dict[str, Any]]:
    """A full bank, and a batch of images that are in it; entries of one image have a cosine of about 0.9."""
    import torch
    from torch.nn.functional import normalize

    from lookalike.adaptation.bank import Bank

    generator = seeds.torch_rng(0, "bench", "t3ar", classes, kind.pool)
    entries = size // (1 + kind.pool)
    images = entries // kind.copies

    def rows(count: int) -> Any:
        return normalize(torch.randn(count, DIM, generator=generator), dim=1)

    own_rows = rows(images)

    def like(ids: Any) -> Any:
        return normalize(own_rows[ids] + rows(len(ids)) / 3, dim=1)

    bank = Bank(size, DIM, classes, images, pool_fraction=1 - entries / size)
    ids = torch.arange(entries) % images
    bank.push_target(like(ids), ids, torch.randn(entries, classes, generator=generator))
    rest = size - entries
    if rest:
        numbers = images + torch.arange(rest) % (2 * images)
        bank.push_pool(rows(rest), numbers, torch.randint(0, classes, (rest,), generator=generator))
    own = torch.randperm(images, generator=generator)[:BATCH]
    batch = {
        "own": own,
        "weak": like(own),
        "strong": like(own),
        "logits": torch.randn(BATCH, classes, generator=generator),
        "lists": torch.stack([images + 2 * own, images + 2 * own + 1], 1) if kind.pool else torch.full((BATCH, 2), -1),
    }
    return bank, batch


def ours(bank: Any, batch: dict[str, Any], pool_set: Any = "own") -> Any:
    import torch

    from lookalike.adaptation.bank import votes
    from lookalike.adaptation.contrast import ContrastQueries, contrastive

    nobody = torch.zeros_like(batch["lists"], dtype=torch.bool)

    def step() -> Any:
        q = batch["strong"].clone().requires_grad_()
        labels = votes(batch["weak"], batch["own"], bank, batch["logits"], k=K).argmax(1)
        queries = ContrastQueries(batch["own"], labels, batch["lists"], nobody)
        contrastive(q, batch["weak"], queries, bank.columns(), tau=TAU, pool_set=pool_set)[0].mean().backward()
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
    probabilities = bank.target.read("logits").softmax(1)
    generator = seeds.torch_rng(0, "labels")
    labels = torch.randint(0, probabilities.shape[1], (len(rows),), generator=generator)

    def step() -> Any:
        q = batch["strong"].clone().requires_grad_()
        order = (1 - batch["weak"] @ target.T).sort(1).indices[:, :K]
        result = probabilities[order].mean(1).argmax(1)
        near = (q * batch["weak"]).sum(1, keepdim=True)
        logits = torch.cat([near, q @ rows.T], 1) / TAU
        mask = torch.cat([torch.zeros(BATCH, 1, dtype=torch.bool), result[:, None] == labels[None]], 1)
        logits = torch.where(mask, torch.full_like(logits, -torch.inf), logits)
        torch.nn.functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.int64)).backward()
        return q.grad

    return step
