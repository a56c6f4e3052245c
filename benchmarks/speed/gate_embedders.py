"""The label-free gate for models without a classifier, judged by retrieval.

The simulations of the benchmark `gate` without the classifiers: classes come from labeled images of the source, or
from clusters of the target. An adaptation harms when recall@1 or MAP@R among the target's images falls by more than
half a point, and helps when one of them rises by as much and none falls so. Thresholds are chosen on one half and
judged on the other; the halves share no shift and no recipe of harm.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.gate_rules import GateRule
from benchmarks.speed.gate_simulations import HELP, Simulations, source_of

SIMULATIONS = Simulations(
    "gate-embedders",
    harm=(
        ("rate x 30", "shuffled labels", "pool of noise"),
        ("entropy alone", "sorted batches", "pool is the target"),
    ),
    seeds=(tuple(range(1, 5)), tuple(range(13, 17))),  # the second seeds were not seen when the rule was made
)


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    chosen_on, judged_on = ([measured(result) for result in half] for half in SIMULATIONS.run(context, trial))
    figures, bars = RULE.evaluate(chosen_on, judged_on)
    worse = [row for row in judged_on if max(changes(row["before"], row["after"])) < 0]
    limits = {"chosen": _limits(**figures["chosen"]), "defaults": _limits()}
    figures["worse by both measures, judged on"] = {name: RULE.counted(worse, own) for name, own in limits.items()}
    figures["judged on, starts drawn"] = RULE.by_start(judged_on, limits["chosen"])
    return figures, bars


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """A finished adaptation with its gain and the gate's signals."""
    from benchmarks.papers import simulated_adaptations

    signals = {
        key: round(value, 6) for key, value in simulated_adaptations.embedder_signals(SIMULATIONS.load(result)).items()
    }
    return {**result, **signals, "gain": gain(result["before"], result["after"])}


def gain(before: dict[str, float], after: dict[str, float]) -> float:
    """Of recall@1 and MAP@R the one that fell by more than the margin, else the one that rose most."""
    both = changes(before, after)
    return min(both) if min(both) < -MARGIN else max(both)


def changes(before: dict[str, float], after: dict[str, float]) -> list[float]:
    return [after[name] - before[name] for name in ("recall", "map")]


def _rejections(row: dict[str, Any], limits: Any) -> list[str]:
    from lookalike.adaptation.gate_retrieval import reasons_to_keep

    return reasons_to_keep(row, limits, alarm=row["alarm"])


def _limits(**values: float) -> Any:
    from lookalike.adaptation.gate_retrieval import FindingThresholds

    return FindingThresholds.model_validate(values)


# From lax to strict. A search of which more than four tenths change is another search, whatever the counts say.
GRID: dict[str, tuple[float, ...]] = {
    "overlap": (0.6, 0.65, 0.7, 0.75, 0.8, 0.85),
    "names": (-0.02, -0.01, -0.005, 0.0, 0.005, 0.01),
    "stable": (-0.01, -0.005, 0.0, 0.005, 0.01, 0.02),
}
MARGIN = 0.005
RULE = GateRule(GRID, _limits, _rejections, margin=MARGIN, usual=HELP, allowed=0.0, stricter=2)


def trial(
    *, data: str, scale: dict[str, Any], source: str, target: str, recipe: str, seed: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """One adaptation; what the models make of held-out images is in the file it names."""
    import numpy as np
    import torch

    from benchmarks.papers import simulated_adaptations
    from lookalike.adaptation.settings import AdaptSettings

    torch.set_num_threads(1)
    start = _start(data, source, target, seed)
    found, told = simulated_adaptations.adapted_embedder(
        start, simulated_adaptations.pool_features(data), recipe, AdaptSettings.parse(settings)
    )
    small = {name: rows.astype(np.float16) if rows.dtype == np.float32 else rows for name, rows in found.items()}
    job = {"source": source, "target": target, "recipe": recipe, "seed": seed}
    return {**job, **told, "held": SIMULATIONS.store(small, job, data, scale, settings)}


@lru_cache(maxsize=8)
def _start(data: str, source: str, target: str, seed: int) -> Any:
    from benchmarks.papers import simulated_adaptations

    known = simulated_adaptations.domain_features(data, source), simulated_adaptations.domain_features(data, target)
    return simulated_adaptations.EmbedderStart(source_of(data, source, seed), *known, seed)
