"""Claim 7 of DMCAC: against other methods, at equal cost.

Every method has the learning rate that is best on held-out training classes, out of the same few.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome
from benchmarks.papers.dmcac_runs import LETTER, PAPERS, SEEDS, Arm, Runs, dmcac, run_arms
from benchmarks.papers.paired import Difference, more, one_of_several, pool, worst
from lookalike.core.errors import LookalikeError
from lookalike.core.settings import merge

OTHERS: dict[str, dict[str, Any]] = {
    "cross-entropy": {"name": "norm_softmax"},
    "proxy_anchor": {"name": "proxy_anchor"},
    "supcon": {"name": "supcon"},
    "hyp": {"name": "hyp"},
    "sph": {"name": "hyp", "space": "sphere"},
}
METHODS = ("dmcac", *OTHERS)
PLACES = {"small": (("cars", True), ("cub", False), ("grocery", False)), "paper": tuple((d, True) for d in PAPERS)}
RATES = {"small": (3e-5, 1e-4, 3e-4), "paper": (3e-5, 1e-4)}
HELD = 0.2  # of the training classes, to choose a rate by
LEAST = 0.6  # points over Hyp on CUB in the paper
CONTEST = SEEDS[:3]  # 6 methods on 3 sets: 54 runs, an hour and more


def _arm(method: str, rate: float, scale: str, data: str, whole: bool, held: float = 0.0) -> Arm:
    place: dict[str, Any] = {"data": data, "end_to_end": whole}
    name = f"{method}-{rate:g}{'-held' * bool(held)}"
    changes: dict[str, Any] = {"optimizer": {"lr": rate}, "data": {"validation_fraction": held}}
    if method == "dmcac":
        return dmcac(name, *((LETTER,) if scale == "paper" else ()), changes, **place)
    return Arm(name, merge(changes, {"method": OTHERS[method]}), **place)


def trials(scale: str) -> dict[tuple[str, float], Arm]:
    """The runs that choose the rates: one seed, on the first of the sets."""
    place = PLACES[scale][0]
    return {(method, rate): _arm(method, rate, scale, *place, HELD) for method in METHODS for rate in RATES[scale]}


def best_rates(found: Runs, tried: Mapping[tuple[str, float], Arm]) -> dict[str, float]:
    """By recall@1 on the classes held out, then by MAP@R; of equals the lower rate."""

    def worth(method: str, rate: float) -> list[float]:
        arm = tried[method, rate]
        return [*(found.values(arm, f"validation {name}")[0] for name in ("recall@1", "map@r")), -rate]

    rates = sorted({rate for _, rate in tried})
    return {method: max(rates, key=lambda rate: worth(method, rate)) for method in METHODS}


def _equal_cost(found: Runs, data: str, arms: Mapping[str, Arm]) -> None:
    """The others' steps make up for a database of a known size: on other images than those they would not."""
    spent = {name: found.values(arm, "images")[0] for name, arm in arms.items()}
    least, most = min(spent, key=spent.__getitem__), max(spent, key=spent.__getitem__)
    if spent[most] > 1.01 * spent[least]:
        raise LookalikeError(
            f"On `{data}` {most} embedded {spent[most]:,.0f} images and {least} {spent[least]:,.0f}: that is no "
            "equal cost. The sizes of DMCAC's databases in benchmarks/papers/dmcac_runs.py are of other images."
        )


def against_others(context: ClaimContext) -> ClaimOutcome:
    """As many images embedded by each; DMCAC's database is paid for by the others' longer runs."""
    scale, tried = context.scale, trials(context.scale)
    first = run_arms(context, tried.values(), SEEDS[:1])
    rates = best_rates(first, tried)
    contests = {place: {m: _arm(m, rates[m], scale, *place) for m in METHODS} for place in PLACES[scale]}
    found = run_arms(context, [arm for arms in contests.values() for arm in arms.values()], CONTEST)
    gaps: dict[str, dict[str, Difference]] = {}
    for (data, whole), arms in contests.items():
        _equal_cost(found, data, arms)
        each = {name: found.gap(arms[name], arms["dmcac"]) for name in OTHERS}
        each["frozen"] = found.change(arms["dmcac"], "frozen", "recall")
        gaps[f"{data}{', end to end' * whole}"] = each
    gaps["pooled"] = {name: pool([each[name] for each in gaps.values()]) for name in (*OTHERS, "frozen")}
    verdicts = {
        where: worst(*(more(one_of_several(gap, len(each)), LEAST) for gap in each.values()))
        for where, each in gaps.items()
    }
    note = f"{found.so_far}DMCAC − each, mean over the sets: " + ", ".join(
        f"{name} {gap}" for name, gap in gaps["pooled"].items()
    )
    note += "; by set: " + ", ".join(f"{where} {verdict}" for where, verdict in verdicts.items() if where != "pooled")
    held = {
        f"{method} at {rate:g}": round(first.values(arm, "validation recall@1")[0], 2)
        for (method, rate), arm in tried.items()
    }
    figures = {
        "verdicts": verdicts,
        "differences": {where: {name: gap.to_json() for name, gap in each.items()} for where, each in gaps.items()},
        "rates": {name: f"{rate:g}" for name, rate in rates.items()},
        "recall@1 on the classes held out": held,
        "runs": [row for arms in contests.values() for row in found.rows(arms.values())],
    }
    return ClaimOutcome(verdicts["pooled"], figures, note)
