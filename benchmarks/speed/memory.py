"""A step with a cross-batch memory: ours, pytorch-metric-learning's, and the bare matrix products.

SupCon with the pair-margin miner, batch 64, 512 numbers a row. A step is enqueue, loss and gradient of a fresh
batch; XBN and AXBN adapt the memory as well. The margin of the miner is set so that the given share of the
negatives is mined, for each rule on the rows as it has adapted them. The bare cost is the two products of the
matrix (forward and gradient, in their faster layout) and one log-sum-exp over it. A foreign loss (contrastive)
needs the adapted rows themselves: a step with it, and what writing them out takes, are shown beside the rest.
Everything is measured in turns, round after round, and ratios are taken within a round, so that a passing
disturbance hits all of them. The rules and the bare products, whose bars are the narrow ones, are measured apart
from the slow peer, in twice as many rounds. Everything is gone through in several passes: a machine that others
share can have bad spells of ten seconds, which must not be all that one case sees.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved, ratio
from lookalike.core import seeds

BATCH, DIM, TEMPERATURE = 64, 512, 0.1
SIZES = {4096: 2.5, 29775: 3.5, 59551: 3.5}
"""Rows, and how many times faster than the peer a step must be."""
SHARES = (0.01, 0.1, 0.9)
FOREIGN = 0.1
"""The share at which a foreign loss is shown as well."""
PASSES, ROUNDS = 3, {4096: 14, 29775: 7, 59551: 5}
"""Rounds a pass of the peer beside ours; the narrow bars get twice as many, what is only shown one."""
LARGE = 29775
"""From here on the bars against the bare products and between the rules hold."""
BARE, ADDED = 1.4, 1.15
RULES = {"xbm": None, "xbn": "xbn", "axbn": "axbn"}
Times = dict[str, list[float]]


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    before = torch.get_num_threads()
    rounds = {str(size): PASSES * count for size, count in ROUNDS.items()}
    figures: dict[str, Any] = {"batch": BATCH, "dim": DIM, "rounds": rounds}
    bars: list[Bar] = []
    try:
        for threads in sorted({1, context.threads}):
            torch.set_num_threads(threads)
            word = f"{threads} thread{'s' * (threads > 1)}"
            times: dict[tuple[int, float], Times] = {(size, share): {} for size in SIZES for share in SHARES}
            for number, size in itertools.product(range(PASSES), SIZES):
                context.say(f"{word}, pass {number + 1} of {PASSES}: {size:,} rows.")
                for share, actual in measure(size):
                    for job, seconds in actual.items():
                        times[size, share].setdefault(job, []).extend(seconds)
            for (size, share), actual in times.items():
                name = f"{word}, {size} rows"
                figures.setdefault(name, {})[f"{share:.0%} mined"], more = judged(
                    size, f"{name}, {share:.0%} mined: ", actual
                )
                bars += more
    finally:
        torch.set_num_threads(before)
    return figures, bars


def measure(size: int) -> Iterator[tuple[float, Times]]:
    """Seconds of every round of every job, for each share of mined negatives."""
    rows, labels, batches = images(size)
    for share in SHARES:
        narrow: dict[str, Callable[[], object]] = {"bare": bare(rows, batches)}
        for rule, drift in RULES.items():
            wide = margin(rows, labels, batches[0], drift, share)
            narrow[rule] = step(ours(rows, labels, drift, wide), batches)
        pml = step(peer(rows, labels, margin(rows, labels, batches[0], None, share)), batches)
        shown: dict[str, Callable[[], object]] = {
            "rows written out": partial(getattr, ours(rows, labels, "xbn", 0.8), "rows")
        }
        if share == FOREIGN:
            for rule in ("xbm", "xbn"):
                wide = margin(rows, labels, batches[0], RULES[rule], share)
                shown[f"{rule}, foreign loss"] = step(ours(rows, labels, RULES[rule], wide, foreign=True), batches)
        yield (
            share,
            {
                **interleaved({"pml": pml, "xbm beside pml": narrow["xbm"]}, ROUNDS[size]),
                **interleaved(narrow, 2 * ROUNDS[size]),
                **interleaved(shown, 1),
            },
        )


def judged(size: int, title: str, times: Times) -> tuple[dict[str, Any], list[Bar]]:
    ratios = {
        "pml / xbm": ratio(times["pml"], times["xbm beside pml"]),
        "xbm / bare": ratio(times["xbm"], times["bare"]),
        "xbn / xbm": ratio(times["xbn"], times["xbm"]),
        "axbn / xbm": ratio(times["axbn"], times["xbm"]),
    }
    figures = {
        "milliseconds": {k: round(1000 * statistics.median(v), 3) for k, v in times.items()},
        "ratios": {k: round(v, 3) for k, v in ratios.items()},
    }
    bars = [Bar(title + "pml / xbm", ratios["pml / xbm"], SIZES[size])]
    if size >= LARGE:
        bars.append(Bar(title + "xbm / bare", ratios["xbm / bare"], BARE, "lower"))
        bars += [Bar(title + f"{r} / xbm", ratios[f"{r} / xbm"], ADDED, "lower") for r in ("xbn", "axbn")]
    return figures, bars


def images(size: int, count: int = 12) -> tuple[Any, Any, list[tuple[Any, Any]]]:
    """Unit rows of classes of five, crowded to one side as embeddings are, and batches of 16 classes with 4 each."""
    import torch

    generator = seeds.torch_rng(0, "bench", "memory", size)
    classes = max(BATCH, size // 5)
    centers = torch.randn(classes, DIM, generator=generator)
    spread = torch.linspace(1, 0.05, DIM) ** 1.5
    side = 0.3 * torch.randn(DIM, generator=generator)

    def draw(labels: Any) -> Any:
        noise = 0.6 * torch.randn(len(labels), DIM, generator=generator)
        return torch.nn.functional.normalize(side + (centers[labels] + noise) * spread, dim=1)

    labels = torch.randint(0, classes, (size,), generator=generator)
    rows = draw(labels)
    batches = []
    for _ in range(count):
        chosen = torch.randint(0, classes, (BATCH // 4,), generator=generator).repeat_interleave(4)
        batches.append((draw(chosen), chosen))
    return rows, labels, batches


def margin(rows: Any, labels: Any, batch: tuple[Any, Any], drift: str | None, share: float) -> float:
    """The miner's distance that keeps `share` of the negatives, on the rows as this rule adapts them."""
    import torch

    memory = ours(rows, labels, drift, 0.8)
    memory(*batch)
    stored = torch.nn.functional.normalize(memory.rows[:4096], dim=1)
    cosines = (batch[0] @ stored.t())[batch[1][:, None] != memory.row_labels[None, :4096]]
    cut = float(cosines.kthvalue(max(round((1 - share) * len(cosines)), 1)).values)
    return math.sqrt(2 - 2 * cut)


def ours(rows: Any, labels: Any, drift: str | None, neg_margin: float, *, foreign: bool = False) -> Any:
    from pytorch_metric_learning.losses import ContrastiveLoss, SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner

    from lookalike.memory import CrossBatchMemory

    loss = ContrastiveLoss() if foreign else SupConLoss(TEMPERATURE)
    memory = CrossBatchMemory(loss, DIM, len(rows), miner=PairMarginMiner(neg_margin=neg_margin), drift=drift)
    memory.fill(rows, labels)
    return memory


def peer(rows: Any, labels: Any, neg_margin: float) -> Any:
    from pytorch_metric_learning.losses import CrossBatchMemory, SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner

    memory = CrossBatchMemory(SupConLoss(TEMPERATURE), DIM, len(rows), miner=PairMarginMiner(neg_margin=neg_margin))
    memory.embedding_memory.copy_(rows)
    memory.label_memory.copy_(labels)
    memory.has_been_filled = True
    return memory


def step(memory: Any, batches: list[tuple[Any, Any]]) -> Callable[[], object]:
    stream = itertools.cycle(batches)

    def job() -> None:
        embeddings, labels = next(stream)
        memory(embeddings.clone().requires_grad_(), labels).backward()

    return job


def bare(rows: Any, batches: list[tuple[Any, Any]]) -> Callable[[], object]:
    """Both products and the log-sum-exp, in the layout in which they are fastest."""
    import torch

    queries = batches[0][0]

    def upright() -> None:
        matrix = rows @ queries.t()
        torch.logsumexp(matrix, 0)
        matrix.t() @ rows

    def flat() -> None:
        matrix = queries @ rows.t()
        torch.logsumexp(matrix, 1)
        matrix @ rows

    times = interleaved({"upright": upright, "flat": flat}, 3)
    return upright if min(times["upright"]) <= min(times["flat"]) else flat
