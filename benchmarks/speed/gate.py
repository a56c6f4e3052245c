"""The gate without labels, judged once: how many harmful and how many helpful adaptations does it promote?

Simulated adaptations of PACS models (methods that usually help, and recipes made to harm) on shifts, seeds and with an
expert that played no part in choosing the rule: every shift that does not start from photos, and Lite2 as the expert
(the rule was chosen on shifts from photos with Lite0). The first thresholds, judged on seed 31, let too little help
through. So that seed chooses others, and further seeds judge both: the thresholds of the grid that promote most of the
helpful adaptations of seed 31 and at most 4 % of its harmful ones; among equals the first of the grid. They become the
defaults if they meet both goals on the judging seeds; else the first ones stay. Methods run with the defaults of
`adapt` on 700 images, and the gate sees 300 others. An adaptation helps (harms) if accuracy on all images that it did
not learn from rises (falls) by more than a point. A cell is a shift and a seed; finished cells are stored under
`results/cells/gate`.
`LOOKALIKE_THREADS=1 python -m benchmarks.speed gate --out results` runs one after the other; several such processes
share them, and one that is started again goes on. The figures are judged when all cells are there.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.cells import Cells
from benchmarks.speed import Bar, BenchContext
from lookalike.core.engine import LocalEngine
from lookalike.core.files import hash_bytes

HARMFUL, HELPFUL, MIN_COUNT = 0.05, 0.70, 60
CHOOSING, JUDGING = (31,), (32, 33)
"""Seeds, of nine shifts each: 117 adaptations of classifiers, 99 of embedders; a kind takes 22 minutes."""
CHOSEN = 0.04
"""Of the choosing seed's harmful adaptations, at most so many pass the chosen thresholds."""
REVISION = 3
"""Of the simulations; raised whenever a cell computes something else. Methods have their own (`Method.revision`)."""
HARM = ("rate x 30", "entropy alone", "sorted batches", "shuffled labels", "pool of noise", "pool is the target")
CHANGED = ("swapped", "merged")
GRID = {"neighbors": (0.0, 0.01, 0.02, 0.03, 0.05), "matching": (0.0, 0.7, 0.8, 0.9, 1.0), "lost": (0.0, 0.15, 0.3)}
FOLDER = Path("results") / "cells" / "gate"
Row = dict[str, Any]


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    return judge(simulated(context, classifier=True, recipes=(*HARM, *CHANGED)), GRID)


def simulated(context: BenchContext, *, classifier: bool, recipes: Sequence[str]) -> list[Row]:
    """The rows of all cells; those that are finished are not run again."""
    from benchmarks.papers.grid import revisions
    from benchmarks.papers.simulated_adaptations import DOMAINS, HELP, settings_of, simulate

    def settings(grade: int) -> str:
        """A name of the settings of all recipes: with another default the cells are others."""
        return hash_bytes(*(settings_of(name, grade).model_dump_json() for name in (*HELP, *recipes)))[:12]

    revision = {}
    for method in {settings_of(name).method for name in (*HELP, *recipes)} - {"bn"}:  # which learns nothing
        revision |= revisions(REVISION, method)
    data = str(context.folder("pacs").parent)
    cells = Cells(FOLDER, {"DATA": Path(data)})
    shifts = [(a, b) for a, b in itertools.permutations(DOMAINS, 2) if a != "photo"]
    jobs = {
        f"{'classifier' if classifier else 'embedder'}-{source}-{target}-s{seed}": {
            "data": data,
            "source": source,
            "target": target,
            "seed": seed,
            "grade": seed + number,  # so that every seed and most shifts have several
            "classifier": classifier,
            "recipes": [*HELP, *recipes],
            "revision": {**revision, "settings": settings(seed + number)},
        }
        for seed in (*CHOOSING, *JUDGING)
        for number, (source, target) in enumerate(shifts)
    }
    rows: list[Row] = []
    for number, (key, result) in enumerate(cells.run_many(jobs, simulate, engine=LocalEngine(context.threads)), 1):
        context.say(f"{number} of {len(jobs)}: {key}")
        rows += result
    return rows


def judge(rows: Sequence[Row], grid: Mapping[str, Sequence[float]]) -> tuple[dict[str, Any], list[Bar]]:
    """Count what the gate promotes; beside it what the thresholds chosen on the first seed and others would do."""
    from benchmarks.papers.simulated_adaptations import HELP
    from lookalike.adaptation.gate import Thresholds

    def trade_off(rows: Sequence[Row]) -> list[Row]:
        others = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        return undominated(
            [
                {**values, **{kind: counts["promoted"] for kind, counts in counted(rows, **values).items()}}
                for values in others
            ]
        )

    choosing = [row for row in rows if row["seed"] in CHOOSING]
    rows = [row for row in rows if row["seed"] in JUDGING]
    chosen = [row for row in trade_off(choosing) if row["harmful"] <= CHOSEN][-1]
    chosen = {name: chosen[name] for name in grid}
    result = counted(rows)
    figures = {
        "thresholds": Thresholds().model_dump(),
        "judged": result,
        "chosen on the first seed": chosen,
        "chosen, judged": counted(rows, **chosen),
        "methods alone": counted([row for row in rows if row["recipe"] in HELP]),
        "made to harm": counted([row for row in rows if row["recipe"] not in HELP]),
        "by recipe": {
            name: counted([row for row in rows if row["recipe"] == name])
            for name in sorted({r["recipe"] for r in rows})
        },
        "trade-off": trade_off(rows),
        "shifts": sorted({f"{row['source']} to {row['target']}" for row in rows}),
        "seeds": sorted({row["seed"] for row in rows}),
    }
    bars = [
        Bar("harmful promoted", result["harmful"]["promoted"], HARMFUL, "lower"),
        Bar("helpful promoted", result["helpful"]["promoted"], HELPFUL),
        Bar("harmful adaptations judged", result["harmful"]["count"], MIN_COUNT),
        Bar("helpful adaptations judged", result["helpful"]["count"], MIN_COUNT),
    ]
    return figures, bars


def counted(rows: Sequence[Row], **thresholds: float) -> dict[str, Any]:
    """Of the harmful, the helpful and the rest: how many, and the promoted fraction with its interval."""
    from lookalike.adaptation import gate
    from lookalike.evaluation.bootstrap import wilson_interval

    limits = gate.Thresholds.model_validate(thresholds)
    kinds = {
        "harmful": [row for row in rows if row["gain"] < -gate.HARM],
        "helpful": [row for row in rows if row["gain"] > gate.HARM],
        "neutral": [row for row in rows if abs(row["gain"]) <= gate.HARM],
    }
    out: dict[str, Any] = {}
    for kind, members in kinds.items():
        promoted = sum(not gate.reasons_to_keep(row, limits, alarm=row["alarm"]) for row in members)
        ends = wilson_interval(promoted, len(members)) if members else None
        out[kind] = {
            "count": len(members),
            "promoted": 0.0 if ends is None else round(ends.value, 4),
            "low": 0.0 if ends is None else round(ends.low, 4),
            "high": 1.0 if ends is None else round(ends.high, 4),
        }
    return out


def undominated(rows: Sequence[Row]) -> list[Row]:
    """The best that can be had: no other thresholds promote more helpful ones with as few harmful ones."""
    out: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["harmful"], -row["helpful"])):
        if not out or row["helpful"] > out[-1]["helpful"]:
            out.append(row)
    return out
