"""`evaluate`: exact retrieval measures against pytorch-metric-learning, in time and in memory.

60,502 rows of 512 in 11,316 classes (the sizes of Stanford Online Products' test half), leave-one-out and as
query/gallery halves, and 10,000 rows in 7 classes. Rows are made up: class centers and noise with a spectrum that
falls like that of real embeddings, for a recall@1 of about 0.7. Each side runs in a process of its own; memory is the
peak of that process less what it held before.

"The bare product that is needed" is, for leave-one-out, the upper triangle of the symmetric product with its diagonal
blocks, in float32, by tiles in threads. Screening in bfloat16 may be faster than that; its bare product is shown too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import peak_memory, reset_peak_memory
from lookalike.core.seeds import numpy_rng

ROWS, CLASSES, DIM = 60_502, 11_316, 512


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    """Ours, the peer and the bare product, in turn."""
    figures: dict[str, Any] = {"peer": "pytorch-metric-learning AccuracyCalculator, k=1000, faiss"}
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder:

        def measure(case: str, who: str) -> dict[str, Any]:
            context.say(f"{case}: {who}")
            return _in_process(case, who, Path(folder), context.threads)

        _save(Path(folder) / "products", *made_up(ROWS, CLASSES, noise=1.13))
        _save(Path(folder) / "domains", *made_up(10_000, 7, noise=3.2, power=0.3))
        for case in ("leave-one-out", "query-gallery", "seven-classes"):
            figures[case] = {who: measure(case, who) for who in ("ours", "peer")}
        figures["bare"] = {
            who: measure("leave-one-out", who)["seconds"]
            for who in ("half product", "half product, bfloat16", "product")
        }
    return figures, list(_bars(figures))


def _bars(figures: dict[str, Any]) -> list[Bar]:
    whole, halves, seven = (figures[case] for case in ("leave-one-out", "query-gallery", "seven-classes"))

    def times_faster(case: dict[str, Any]) -> float:
        return round(case["peer"]["seconds"] / case["ours"]["seconds"], 2)

    figures["times faster"] = {c: times_faster(figures[c]) for c in ("leave-one-out", "query-gallery", "seven-classes")}
    figures["of the bare product"] = {
        name: round(whole["ours"]["seconds"] / seconds, 2) for name, seconds in figures["bare"].items()
    }
    apart = max(abs(case["ours"]["recall@1"] - case["peer"]["recall@1"]) for case in (whole, halves, seven))
    return [
        Bar("leave-one-out, times faster than the peer (goal 3)", times_faster(whole), 1.5),
        Bar("leave-one-out, extra memory in MB", whole["ours"]["megabytes"], 1000, "lower"),
        Bar(
            "leave-one-out, time over the bare product needed",
            figures["of the bare product"]["half product"],
            1.5,
            "lower",
        ),
        Bar("query/gallery halves, times faster than the peer", times_faster(halves), 1.0),
        Bar("10,000 rows in 7 classes, times faster than the peer", times_faster(seven), 1.0),
        Bar("largest difference of recall@1 from the peer", round(apart, 6), 1e-4, "lower"),
    ]


def made_up(
    rows: int, classes: int, *, noise: float, power: float = 0.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Unit rows and labels: classes of unequal size and spread, energy falling as k^(−2·power) over the dimensions."""
    rng = numpy_rng(seed, "bench", rows, classes)
    if classes * 12 >= rows:  # like products: 2 to 12 images a class
        sizes = np.full(classes, 2)
        weight = rng.exponential(size=classes)
        while (left := rows - int(sizes.sum())) > 0:
            growing = np.flatnonzero(sizes < 12)
            drawn = rng.choice(growing, size=left, p=weight[growing] / weight[growing].sum())
            sizes = np.minimum(sizes + np.bincount(drawn, minlength=classes), 12)
        labels = np.repeat(np.arange(classes), sizes)
    else:
        labels = rng.integers(classes, size=rows)
    labels = rng.permutation(labels)
    energy = ((1 + np.arange(DIM)) ** -power).astype(np.float32)
    centers = rng.standard_normal((classes, DIM), dtype=np.float32) * energy
    spread = (noise * rng.uniform(0.5, 1.5, classes)).astype(np.float32)
    out = centers[labels]
    out += spread[labels, None] * rng.standard_normal((rows, DIM), dtype=np.float32) * energy
    out /= np.linalg.norm(out, axis=1, keepdims=True)
    return out, labels


def _save(path: Path, rows: np.ndarray, labels: np.ndarray) -> None:
    np.save(path.with_suffix(".rows.npy"), rows)
    np.save(path.with_suffix(".labels.npy"), labels)


def _in_process(case: str, who: str, folder: Path, threads: int) -> dict[str, Any]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOOKALIKE_THREADS")
    around = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, "-m", "benchmarks.speed.evaluate", case, who, str(folder)]
    done = subprocess.run(command, env=around, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


# --- in the process of one side ---


def _child(case: str, who: str, folder: Path) -> dict[str, Any]:
    name = "domains" if case == "seven-classes" else "products"
    rows, labels = np.load(folder / f"{name}.rows.npy"), np.load(folder / f"{name}.labels.npy")
    half = numpy_rng(0, "halves").permutation(len(rows)) < len(rows) // 2 if case == "query-gallery" else None
    measure = {"ours": _ours, "peer": _peer}.get(who)
    if measure is None:
        return _bare(rows, who)
    few = slice(0, 3000)
    measure(rows[few], labels[few], None if half is None else half[few])  # imports, thread pools, kernels
    before, start = reset_peak_memory(), time.perf_counter()
    measures = measure(rows, labels, half)
    seconds = time.perf_counter() - start
    return {"seconds": round(seconds, 2), "megabytes": round(peak_memory() - before), **measures}


def _ours(rows: np.ndarray, labels: np.ndarray, half: np.ndarray | None) -> dict[str, float]:
    from lookalike.evaluation.retrieval import retrieval_metrics

    sides = {} if half is None else {"query": half, "gallery": ~half}
    result = retrieval_metrics(rows, labels, recall_at=(1, 10, 100, 1000), top=1000, **sides).mean()
    return {name: round(result[name], 5) for name in ("recall@1", "map@1000", "map@r")}


def _peer(rows: np.ndarray, labels: np.ndarray, half: np.ndarray | None) -> dict[str, float]:
    import logging

    import torch
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    logging.disable(logging.WARNING)
    peer_names = {
        "precision_at_1": "recall@1",
        "mean_average_precision": "map@1000",
        "mean_average_precision_at_r": "map@r",
    }
    # The device is named: elsewhere the peer would take a GPU, and the bench compares processors.
    calculator = AccuracyCalculator(include=tuple(peer_names), k=1000, device=torch.empty(0).device)
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)
    result = (
        calculator.get_accuracy(x, y) if half is None else calculator.get_accuracy(x[half], y[half], x[~half], y[~half])
    )
    return {ours: round(float(result[theirs]), 5) for theirs, ours in peer_names.items()}


def _bare(rows: np.ndarray, who: str) -> dict[str, Any]:
    """The product alone, tile by tile in threads, nothing done with it."""
    import threading

    from lookalike.evaluation._ranking import counting, screening
    from lookalike.evaluation._ranking.screening import in_threads

    kind = screening.HalfScreen if "bfloat16" in who else screening.Screen
    screen, local = kind(rows, rows), threading.local()

    def multiply(tile: counting.Tile) -> None:
        if not hasattr(local, "block"):
            local.block = screen.block(counting.ROWS, counting.COLUMNS)
        screen.product(tile[0], tile[1], local.block)

    start = time.perf_counter()
    in_threads(multiply, counting.tiles(len(rows), len(rows), who != "product"))
    return {"seconds": round(time.perf_counter() - start, 2)}


def _main(words: list[str], say: Callable[[str], object] = print) -> None:
    say(json.dumps(_child(words[0], words[1], Path(words[2]))))


if __name__ == "__main__":
    _main(sys.argv[1:])
