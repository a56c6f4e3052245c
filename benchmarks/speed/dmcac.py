"""A step of DMCAC beside the bare cost and the plain forms.

64 queries in 6 views against 100,000 rows of 384, k = 12, 100 classes. Retrieval: ours by blocks against the bare
product and top-k. Union and the three terms, forward and backward, against a loop over the queries that takes all
views of a query at once, finds its union with `unique`, projects keys and values as the equations say and leaves the
gradient to autograd. The whole database as constants: peak memory, each side in a process of its own, of our blocks
and of the plain form. Refreshing: images a second through the loop, all weights changed since the last time, against
`encode(runtime="torch")` of weights it knows, EfficientNet-Lite0 at 96 px. Everything timed is timed in turns.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved, peak_memory, ratio, reset_peak_memory
from lookalike.core import seeds

QUERIES, VIEWS, ROWS, DIM, K, CLASSES = 64, 6, 100_000, 384, 12, 100
TEMPERATURE = 0.1
ROUNDS, STEPS = 7, 60
IMAGES, TIMES = 320, 5  # that a refresh embeds: about as many as the database of Cars has
BARE, LOOP, MEMORY, REFRESH = 1.5, 10.0, 0.2, 0.9


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    before = torch.get_num_threads()
    figures: dict[str, Any] = {"queries": QUERIES, "views": VIEWS, "rows": ROWS, "dim": DIM, "k": K, "classes": CLASSES}
    try:
        torch.set_num_threads(context.threads)
        context.say("Retrieval, union and terms")
        figures["step"], bars = measure_step(*made_up(ROWS))
        context.say("Memory over the whole database")
        figures["whole database"], more = measure_memory(ROWS, context.threads)
        bars += more
        context.say("Refreshing the database")
        figures["refresh"], more = measure_refresh(context)
    finally:
        torch.set_num_threads(before)
    return figures, bars + more


def made_up(rows: int) -> tuple[Any, Any, Any, Any]:
    """Views, their labels, and a database of classes whose directions matter less and less, as embeddings' do."""
    import torch

    generator = seeds.torch_rng(0, "bench", "dmcac", rows)
    fall = torch.linspace(1, 0.1, DIM)
    centers = torch.randn(CLASSES, DIM, generator=generator)
    there = torch.arange(rows) % CLASSES
    labels = torch.arange(QUERIES) % CLASSES

    def noisy(what: Any, size: float) -> Any:
        return what + size * torch.randn(what.shape, generator=generator)

    database = torch.nn.functional.normalize(noisy(centers[there], 0.8) * fall, dim=-1)
    images = noisy(centers[labels], 0.8)[:, None].expand(-1, VIEWS, -1)
    return torch.nn.functional.normalize(noisy(images, 0.5) * fall, dim=-1), labels, database, there


def measure_step(z: Any, labels: Any, rows: Any, there: Any) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.evaluation.neighbors import torch_top_k
    from lookalike.losses import dmcac

    flat = z.flatten(0, 1)
    actual = torch_top_k(flat, rows, K)[1].view(*z.shape[:2], K)
    heads = dmcac.AttentionHeads(CLASSES, DIM, seeds.torch_rng(0, "bench", "heads"))
    database = dmcac.Database(rows, there)
    searches: dict[str, Callable[[], object]] = {
        "retrieval": lambda: torch_top_k(flat, rows, K),
        "product and top-k": lambda: (flat @ rows.t()).topk(K, dim=1),
    }
    steps: dict[str, Callable[[], object]] = {
        "terms": lambda: _step(ours, z, labels, database, actual, heads),
        "loop over queries": lambda: _step(loop, z, labels, database, actual, heads),
    }
    times = {**interleaved(searches, ROUNDS), **interleaved(steps, STEPS)}
    bare = ratio(times["retrieval"], times["product and top-k"])
    faster = ratio(times["loop over queries"], times["terms"])
    figures = {
        "milliseconds": {name: round(1000 * statistics.median(values), 2) for name, values in times.items()},
        "union, mean and most": [round(float(v), 1) for v in _sizes(dmcac.retrieval_union(actual))],
    }
    return figures, [
        Bar("retrieval / bare product and top-k", round(bare, 3), BARE, "lower"),
        Bar("loop over queries / union and terms", round(faster, 2), LOOP),
    ]


def _sizes(actual: Any) -> tuple[Any, Any]:
    return actual.sizes.float().mean(), actual.sizes.max()


def _step(form: Callable[..., Any], z: Any, labels: Any, database: Any, actual: Any, heads: Any) -> float:
    """Forward and backward, to the embeddings and the heads."""
    leaf = z.clone().requires_grad_()
    heads.zero_grad()
    value = form(leaf, labels, database, actual, heads)
    value.backward()
    return float(value.detach())


def ours(z: Any, labels: Any, database: Any, actual: Any, heads: Any) -> Any:
    from lookalike.losses import dmcac

    terms = dmcac.union_terms(z, z, labels, database, dmcac.retrieval_union(actual), heads, TEMPERATURE)
    return (terms.divergence + dmcac.classification_loss(z @ heads.classifier.t(), labels) + terms.attention).mean()


def loop(z: Any, labels: Any, database: Any, actual: Any, heads: Any) -> Any:
    """The equations, query by query."""
    import torch
    from torch.nn.functional import cross_entropy

    total = torch.zeros(())
    for views, label, lists in zip(z, labels, actual, strict=True):
        near = database.vectors[torch.unique(lists)]
        target = label.expand(len(views))
        keys, values = near @ heads.key.t(), near @ heads.value.t()
        weights = torch.softmax(views @ heads.query.t() @ keys.t() / math.sqrt(DIM), dim=1)
        by_attention = cross_entropy(weights @ values @ heads.attention_classifier.t(), target, reduction="sum")
        by_class = cross_entropy(views @ heads.classifier.t(), target, reduction="sum")
        total = total + plain_divergence(views[None], near)[0] + by_class + by_attention
    return total / len(z)


def plain_divergence(z: Any, rows: Any) -> Any:
    """As it is written: P log(P/M) over all pairs of views at once, autograd for the rest."""
    import torch

    p = torch.softmax(z @ rows.t() / TEMPERATURE, dim=2)
    i, j = torch.tril_indices(z.shape[1], z.shape[1], -1)
    first, second = p[:, i], p[:, j]
    middle = (first + second) / 2
    js = ((first * (first / middle).log() + second * (second / middle).log()) / 2).sum(2)
    return js.square().sum(1).sqrt()


# ---- memory ------------------------------------------------------------------------------------------


def measure_memory(rows: int, threads: int) -> tuple[dict[str, Any], list[Bar]]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOOKALIKE_THREADS")
    around = {**os.environ, **dict.fromkeys(names, str(threads))}
    actual = {}
    for who in ("blocks", "plain"):
        command = [sys.executable, "-m", "benchmarks.speed.dmcac", who, str(rows)]
        done = subprocess.run(command, env=around, stdout=subprocess.PIPE, text=True, check=True)
        actual[who] = json.loads(done.stdout.splitlines()[-1])
    apart = abs(actual["blocks"].pop("value") / actual["plain"].pop("value") - 1)
    actual["relative difference of the values"] = round(apart, 7)
    share = actual["blocks"]["megabytes"] / actual["plain"]["megabytes"]
    return actual, [Bar("whole database: blocks / plain form, memory", round(share, 4), MEMORY, "lower")]


def memory_of(who: str, rows: int) -> dict[str, float]:
    """Peak of a forward and backward over the whole database, less what was held before."""
    import time

    from lookalike.losses.dmcac import FullPass

    def work(z: Any, labels: Any, near: Any, there: Any) -> float:
        leaf = z.clone().requires_grad_()
        if who == "blocks":
            value = FullPass.apply(leaf, leaf, near, labels, there, TEMPERATURE, 4096)[0].mean()
        else:
            value = plain_divergence(leaf, near).mean()
        value.backward()
        return float(value.detach())

    work(*made_up(500))  # imports, thread pools, kernels
    inputs = made_up(rows)
    before, start = reset_peak_memory(), time.perf_counter()
    value = work(*inputs)
    seconds = round(time.perf_counter() - start, 2)
    return {"megabytes": round(peak_memory() - before), "seconds": seconds, "value": value}


# ---- refreshing --------------------------------------------------------------------------------------


def measure_refresh(context: BenchContext, images: int = IMAGES) -> tuple[dict[str, Any], list[Bar]]:
    """The loop's own way to embed the database, in a run end to end, and `encode` on the same model and images.

    What `encode` needs to get to know new weights is not in its figure; what the loop needs is. `encode` decodes files,
    which the loop did once before its first step; the bare cost is what runs in `encode`, on squares in memory.
    """
    import numpy as np
    import torch

    from lookalike.data import make_demo_images
    from lookalike.models.inference.torch_runtime import TorchRuntime

    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder:
        make_demo_images(
            Path(folder) / "shelf", classes=images // 16, images_per_class=20, styles=("studio",), size=160
        )
        made = _loop(Path(folder))
        few = np.arange(min(images, len(made.parts.train)))
        ids = np.tile(few, TIMES)
        table = made.parts.train_table
        squares = np.tile(made.source.center(made.parts.train[few]).numpy(), (TIMES, 1, 1, 1))

        def bare() -> None:
            for _ in TorchRuntime(made.model, "embedding", count=len(squares)).run(np.array_split(squares, TIMES * 10)):
                pass

        def refresh(rows: Any) -> None:
            with torch.no_grad():
                for parameter in made.model.parameters():
                    parameter.mul_(0.9999)
            made.encode(rows)

        turns: dict[str, Callable[[], object]] = {
            "refresh": lambda: refresh(ids),
            "refresh of few": lambda: refresh(few),
            "encode, new weights": lambda: made.model.encode(table.take(few), runtime="torch"),
            "encode": lambda: made.model.encode(table.take(ids), runtime="torch"),
            "network alone": bare,
        }
        times = interleaved(turns, 3)
    few_only = ("refresh of few", "encode, new weights")
    rates = {
        name: round((len(few) if name in few_only else len(ids)) / statistics.median(values), 1)
        for name, values in times.items()
    }
    share = ratio(times["encode"], times["refresh"])
    return {"images a second": rates, "images": len(ids), "few": len(few)}, [
        Bar("refresh / encode in torch, images a second", round(share, 3), REFRESH)
    ]


def _loop(folder: Path) -> Any:
    """A run's loop, before its first step."""
    from lookalike.core.run import Run
    from lookalike.training import train
    from lookalike.training.loop import Loop
    from lookalike.training.settings import resolve
    from lookalike.training.setup import build_setup
    from lookalike.training.train_command import load_table

    overrides = {
        "data": {"split": "images", "test_fraction": 0.1, "validation_fraction": 0, "near_duplicates": False},
        "model": {"size": 96},
        "views": {"mode": "end_to_end"},
        "log": {"tensorboard": False},
    }
    train(data=folder / "shelf", method="dmcac", settings=overrides, steps=0, out=folder / "run", report=False)
    run = Run(folder / "run")
    settings = resolve(run.config)
    return Loop(settings, build_setup(settings, *load_table(run), run), run)


if __name__ == "__main__":
    print(json.dumps(memory_of(sys.argv[1], int(sys.argv[2]))))
