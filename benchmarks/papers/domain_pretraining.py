"""Pretraining without labels on a user's images, from the default backbone: CARP and MoCo on four domains.

Compared on held-out images of the domain, each searched in the others: the starting model, the starting model with
batch-norm statistics of the domain (which costs one pass over the images), and the pretrained model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks.papers import ClaimContext, ClaimOutcome
from benchmarks.papers.gates import late
from benchmarks.papers.grid import GridResults, run_grid, training_run
from benchmarks.papers.paired import Difference, more, pool, worst

REVISION = 1
SEEDS = (0, 1, 2)
DOMAINS = {"sketch": "pacs", "cartoon": "pacs", "cars": "cars", "grocery": "grocery"}
STEPS, SIZE = 500, 96
BATCH = 64
WORTH = 1.0  # points of recall@1 that a user notices


@dataclass(frozen=True)
class Cell:
    """A method on a domain."""

    method: str
    domain: str

    @property
    def name(self) -> str:
        return f"lite0-{self.domain}-{self.method}"

    def settings(self) -> dict[str, Any]:
        """What differs from the recipe `pretrain`, which users run."""
        return {
            "method": {"name": self.method},
            "data": {"near_duplicates": False},
            "model": {"size": SIZE},
            "sampler": {"batch_size": BATCH},
            "steps": STEPS,
            "evaluate_every": STEPS // 4,
            "keep": "trained",
            "log": {"tensorboard": False, "every_n_steps": 50},
        }


def run_cells(context: ClaimContext, cells: Iterable[Cell], seeds: Iterable[int] = SEEDS) -> GridResults:
    """Every method on every domain and seed."""

    def arguments(cell: Cell, seed: int) -> dict[str, Any]:
        data = str(context.folder(DOMAINS[cell.domain]))
        return {"data": data, "domain": cell.domain, "settings": cell.settings(), "seed": seed}

    return run_grid(
        context,
        cells,
        list(seeds),
        arguments,
        trial,
        revision=REVISION,
        methods=lambda cell: (cell.method,),
        measure="trained",
        whole_seeds=True,
        describe=lambda result: (
            f"recall@1 {result['start']:.2f}, recalibrated {result['recalibrated']:.2f}, "
            f"trained {result['trained']:.2f}"
        ),
    )


def trial(*, data: str, domain: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run: recall@1 and MAP@R (%) on held-out images of the three models, and the curve of the k-NN accuracy."""
    from lookalike.models import Embedder
    from lookalike.training.train_command import load_table

    images = domain_table(data, domain)
    with training_run("pretrain", data=images, recipe="pretrain", settings=settings, seed=seed) as run:
        table, division = load_table(run)
        start = Embedder.from_pretrained("efficientnet_lite0", size=SIZE)
        models = {
            "start": start,
            "recalibrated": recalibrate(start, table.take(division.train)),
            "trained": Embedder.from_pretrained(run.model),
        }
        out: dict[str, Any] = {}
        for name, model in models.items():
            recall, precision = retrieval(model, table.take(division.test))
            out |= {name: recall, f"{name} map@r": precision}
        log = run.read_log()
        out["curve"] = [round(100 * line["knn/accuracy@20"], 2) for line in log if "knn/accuracy@20" in line]
        return {**out, "images": len(division.train), "seconds": run.result["seconds"]["train"]}


def domain_table(data: str, domain: str) -> Any:
    """The images of a domain, without the splits of its data set."""
    from lookalike.data import read_table

    table = read_table(data, layout=DOMAINS[domain])
    if domain != DOMAINS[domain]:
        table = table.where("domain", domain)
    return table.without("split", "official_split", "domain")


def retrieval(model: Any, table: Any) -> tuple[float, float]:
    """Recall@1 and MAP@R in percent, each image searched in the others."""
    from lookalike.evaluation.retrieval import retrieval_metrics

    vectors = model.encode(table, runtime="torch")
    measured = retrieval_metrics(vectors, table.labels()[0], recall_at=(1,)).mean()
    return round(100 * measured["recall@1"], 3), round(100 * measured["map@r"], 3)


def recalibrate(model: Any, table: Any, batch: int = BATCH) -> Any:
    """A copy of the model whose batch-norm statistics are those of these images: one pass, cumulative means."""
    from lookalike.training.batchnorm import layers

    out = copy.deepcopy(model).eval()
    norms = list(layers(out.backbone))
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    order = np.random.default_rng(0).permutation(len(table))
    with torch.no_grad():
        for start in range(0, len(order) - 1, batch):  # a last batch of one image has no variance
            rows = table.take(order[start : start + batch])
            crops = np.stack([out.crop(rows.open_bytes(row)) for row in range(len(rows))])
            out(torch.from_numpy(crops).to(out.device))
    return out.eval()


def on_own_images(method: str, context: ClaimContext) -> ClaimOutcome:
    """Is the pretrained model better than the start, and than recalibrated batch-norm alone?"""
    cells = {domain: Cell(method, domain) for domain in DOMAINS}
    results = run_cells(context, cells.values())
    gaps: dict[str, dict[str, Difference]] = {
        before: {domain: results.change(cell, before, "trained") for domain, cell in cells.items()}
        for before in ("start", "recalibrated")
    }
    pooled = {before: pool(list(each.values())) for before, each in gaps.items()}
    verdict = worst(*(more(gap, WORTH) for gap in pooled.values()))
    by_domain = ", ".join(
        f"{domain} {results.mean(cell, 'start'):.1f} → {results.mean(cell, 'recalibrated'):.1f} (recalibrated), "
        f"{results.mean(cell, 'trained'):.1f} (trained)"
        for domain, cell in cells.items()
    )
    note = (
        f"{results.so_far}{method} − start {pooled['start']}, − recalibrated batch-norm {pooled['recalibrated']} "
        f"points of recall@1, mean of {len(DOMAINS)} domains; {by_domain}"
    )
    figures = {
        "pooled": {before: gap.to_json() for before, gap in pooled.items()},
        "domains": {before: {d: gap.to_json() for d, gap in each.items()} for before, each in gaps.items()},
        "runs": [_row(results, cell) for cell in cells.values()],
    }
    return ClaimOutcome(results.judged(verdict), figures, note)


def _row(results: GridResults, cell: Cell) -> dict[str, Any]:
    names = ("start", "recalibrated", "trained", "start map@r", "recalibrated map@r", "trained map@r", "images")
    return {"domain": cell.domain, "method": cell.method, **results.means(cell, names, 3),
            "curve": results.mean_curve(cell), "by seed": results.by_seed(cell)}  # fmt: skip


def moved(figures: Any) -> list[str]:
    """The gate of a user's question: it can be answered by any finished run that is no longer learning."""
    rising = [row["domain"] for row in figures.get("runs", []) if late(row["curve"]) > 0.5]
    return [f"still learning on {', '.join(rising)}"] if rising else []
