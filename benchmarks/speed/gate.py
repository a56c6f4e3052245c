"""The label-free gate, judged: how many harmful and how many helpful adaptations does it let pass?

Thresholds are chosen on one half of simulated adaptations and judged on the other; the halves share no shift and no
recipe of harm. An adaptation helps (harms) when it gains (loses) more than a point on held-out images.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.gate_rules import GateRule
from benchmarks.speed.gate_simulations import HELP, Simulations, source_of

SIMULATIONS = Simulations(
    "gate",
    harm=(
        ("rate x 30", "shuffled labels", "swapped", "pool of noise"),
        ("entropy alone", "sorted batches", "merged", "pool is the target"),
    ),
    seeds=(tuple(range(1, 7)), tuple(range(7, 11))),
)


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    return RULE.evaluate(*([measured(result) for result in half] for half in SIMULATIONS.run(context, trial)))


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """A finished adaptation with its gain and the gate's signals."""
    from benchmarks.papers import simulated_adaptations

    return {
        **result,
        **{key: round(value, 6) for key, value in simulated_adaptations.signals(SIMULATIONS.load(result)).items()},
    }


def _rejections(row: dict[str, Any], limits: Any) -> list[str]:
    from lookalike.adaptation.gate import reasons_to_keep

    return reasons_to_keep(row, limits, alarm=row["alarm"], anchor_asked=row["recipe"] == "bn")


def _limits(**values: float) -> Any:
    from lookalike.adaptation.gate import Thresholds

    return Thresholds.model_validate(values)


# From lax to strict.
GRID: dict[str, tuple[float, ...]] = {
    "agreement": (0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    "worst_class": (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "neighbors": (-0.02, -0.01, 0.0, 0.01, 0.02, 0.03),
}
RULE = GateRule(GRID, _limits, _rejections, margin=0.01, usual=HELP)


def trial(
    *, data: str, scale: dict[str, Any], source: str, target: str, recipe: str, seed: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """One adaptation; what the models make of held-out images is in the file it names."""
    import torch

    from benchmarks.papers import simulated_adaptations
    from lookalike.adaptation.settings import AdaptSettings

    torch.set_num_threads(1)
    model, chosen = source_of(data, source, seed), AdaptSettings.parse(settings)
    found, alarm = simulated_adaptations.adapted(
        model,
        simulated_adaptations.domain_features(data, target),
        simulated_adaptations.pool_features(data),
        recipe,
        seed,
        chosen,
    )
    job = {"source": source, "target": target, "recipe": recipe, "seed": seed}
    return {**job, "alarm": alarm, "held": SIMULATIONS.store(found, job, data, scale, settings)}
