"""CARP's loss, forward and backward: ours, the paper's pseudocode (appendix B.2) written plainly, the bare products.

65,536 prototypes of 256 numbers, 256 images in two views, blocks of 512. Times are taken in turns, round after round,
and ratios within a round. Memory is that of a process of its own: its peak less what it held with the inputs in it.
The curves are ours alone: over the size of the blocks, and over the number of prototypes.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved, peak_memory, ratio, reset_peak_memory
from lookalike.core import seeds

PROTOTYPES, DIM, IMAGES, BLOCK = 65_536, 256, 256, 512
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
COUNTS = (16_384, 32_768, 65_536, 131_072)
FASTER, LOGITS_FASTER, LEANER, FLAT, LINEAR = 2.2, 1.4, 0.25, 1.4, 1.4
ROUNDS = 5


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    before = torch.get_num_threads()
    figures: dict[str, Any] = {
        "prototypes": PROTOTYPES, "dim": DIM, "images": IMAGES, "block": BLOCK, "rounds": ROUNDS
    }  # fmt: skip
    bars: list[Bar] = []
    try:
        for threads in sorted({1, context.threads}):
            torch.set_num_threads(threads)
            name = f"{threads} thread{'s' * (threads > 1)}"
            context.say(f"{name}: ours and the pseudocode")
            figures[name], more = compared(name)
            bars += more
        context.say("Memory")
        used = {who: in_process(who, context.threads) for who in ("pseudocode", "fused")}
        figures["megabytes"] = used
        bars.append(Bar("extra peak memory over the pseudocode's", used["fused"] / used["pseudocode"], LEANER, "lower"))
        context.say("Curves")
        figures["seconds by block"], figures["seconds by prototypes"] = curves()
    finally:
        torch.set_num_threads(before)
    by_block = list(figures["seconds by block"].values())
    each = [seconds / int(count) for count, seconds in figures["seconds by prototypes"].items()]
    bars.append(Bar("slowest over fastest block size, 32 to 4,096", max(by_block) / min(by_block), FLAT, "lower"))
    bars.append(Bar("dearest over cheapest prototype, 16,384 to 131,072", max(each) / min(each), LINEAR, "lower"))
    return figures, bars


def compared(name: str) -> tuple[dict[str, Any], list[Bar]]:
    names = "pseudocode", "fused", "fused, with diagnostics", "products"
    whole = interleaved({who: job(who) for who in names}, ROUNDS)
    logits = interleaved({who: job(who) for who in ("pseudocode on logits", "logits")}, ROUNDS)
    times = {**whole, **logits}
    gain = ratio(whole["pseudocode"], whole["fused"])
    gain_logits = ratio(logits["pseudocode on logits"], logits["logits"])
    figures = {
        "seconds": {who: round(statistics.median(values), 3) for who, values in times.items()},
        "ratios": {"from embeddings": round(gain, 3), "from logits": round(gain_logits, 3)},
    }
    bars = [
        Bar(f"{name}: times faster than the pseudocode, from embeddings", gain, FASTER),
        Bar(f"{name}: times faster than the pseudocode, from logits", gain_logits, LOGITS_FASTER),
    ]
    return figures, bars


def curves() -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a step by N_B at 65,536 prototypes, and by K at blocks of 512; the fastest of three rounds."""
    sizes = interleaved({str(size): job("fused", block=size) for size in BLOCKS}, 3)
    counts = interleaved({str(count): job("fused", prototypes=count) for count in COUNTS}, 3)
    return tuple({k: round(min(v), 4) for k, v in actual.items()} for actual in (sizes, counts))  # type: ignore[return-value]


# ---- one step of each ----------------------------------------------------------------------------


def job(who: str, *, prototypes: int = PROTOTYPES, block: int = BLOCK) -> Callable[[], object]:
    """A step: the partition is drawn, the loss and all gradients are taken."""
    import torch

    from lookalike.losses.carp import CARPLoss, draw_partition, fused_carp

    z, w, c, t = inputs(prototypes)
    steps = iter(range(1_000_000))
    if "logits" in who:
        a, b = ((rows @ torch.nn.functional.normalize(p, dim=1).t()).detach() for rows, p in ((z, c), (w, t)))
        z = w = c = t = torch.empty(0)
        a.requires_grad_()
        loss = CARPLoss(block)
        if who == "logits":
            return lambda: torch.autograd.grad(loss(a, b).loss, a)
        return lambda: torch.autograd.grad(pseudocode(a[0], a[1], b[0], b[1], block), a)
    if who == "products":
        return lambda: products(z, w, c, t)
    if who == "pseudocode":
        return lambda: torch.autograd.grad(plain(z, w, c, t, block), (z, c))

    def fused() -> object:
        order = draw_partition("random", prototypes, 0, next(steps))
        actual = fused_carp(z, w, c, t, order, block, diagnostics="diagnostics" in who)
        return torch.autograd.grad(actual.loss, (z, c))

    return fused


def inputs(prototypes: int) -> tuple[Any, Any, Any, Any]:
    """Embeddings of two views as long as a network's at the start (9.5), student and teacher alike, and prototypes."""
    import torch

    generator = seeds.torch_rng(0, "bench", "carp", prototypes)

    def draw(*shape: int, scale: float) -> Any:  # in place: the peak before a step must be what is held
        return torch.randn(*shape, generator=generator).mul_(scale)

    z, c = draw(2, IMAGES, DIM, scale=0.6), draw(prototypes, DIM, scale=DIM**-0.5)
    w = draw(2, IMAGES, DIM, scale=0.1).add_(z)
    t = draw(prototypes, DIM, scale=0.01 * DIM**-0.5).add_(c)
    return z.requires_grad_(), w, c.requires_grad_(), t


def plain(z: Any, w: Any, c: Any, t: Any, block: int) -> Any:
    """The pseudocode from embeddings and prototypes of any length, as a linear layer with unit rows gives it."""
    import torch

    unit = torch.nn.functional.normalize
    student = [view @ unit(c, dim=1).t() for view in z]
    with torch.no_grad():
        teacher = [view @ unit(t, dim=1).t() for view in w]
    return pseudocode(student[0], student[1], teacher[0], teacher[1], block)


def pseudocode(s1: Any, s2: Any, t1: Any, t2: Any, block: int, order: Any = None) -> Any:
    """Appendix B.2, line by line; `order` instead of a drawn one is for tests."""
    import torch

    count = s1.shape[1]
    drawn = torch.multinomial(torch.ones(count), count, replacement=False) if order is None else order
    ids = torch.stack(torch.split(drawn, block))

    def group(logits: Any) -> Any:
        parts = logits[:, ids.flatten()].split(block, dim=1)
        return torch.softmax(torch.stack(parts, dim=0), dim=-1)

    def consistency(s: Any, t: Any) -> Any:
        return -torch.log(torch.einsum("knc,knc->kn", s, t)).mean()

    preds, targets = [group(s1), group(s2)], [group(t1), group(t2)]
    value = consistency(preds[0], targets[1]) + consistency(preds[1], targets[0])
    joined = torch.cat([torch.cat(preds, dim=1), torch.cat(targets, dim=1)], dim=1).transpose(0, 1)
    mean = joined.mean(0)
    return value + (math.log(count) + (mean * torch.log(mean)).sum(-1)).mean()


def products(z: Any, w: Any, c: Any, t: Any) -> None:
    """The matrix products that cannot be saved: logits of both sides, and the gradients of rows and prototypes."""
    import torch

    with torch.no_grad():
        rows = z.flatten(0, 1)
        logits = rows @ c.t()
        w.flatten(0, 1) @ t.t()
        logits @ c
        logits.t() @ rows


# ---- memory, in a process of its own -------------------------------------------------------------


def in_process(who: str, threads: int) -> float:
    """Megabytes at the peak of one step, over those with the inputs in memory."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOOKALIKE_THREADS")
    around = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, "-m", "benchmarks.speed.carp", who]
    done = subprocess.run(command, env=around, stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def _child(who: str) -> float:
    job(who, prototypes=4 * BLOCK)()  # imports, thread pools, kernels
    step = job(who)
    before = reset_peak_memory()
    step()
    return round(peak_memory() - before, 1)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_child(sys.argv[1])) + "\n")
