"""Claim 7 of DMCAC: against other methods, at equal cost."""

from __future__ import annotations

from typing import Any

from lookalike.claims import ClaimContext, ClaimOutcome
from lookalike.claims.dmcac_runs import SEEDS, Arm, dmcac, run_arms
from lookalike.claims.paired import Difference, difference, more, pool, worst

OTHERS: dict[str, dict[str, Any]] = {
    "proxy_anchor": {"name": "proxy_anchor"},
    "supcon": {"name": "supcon"},
    "hyp": {"name": "hyp"},
    "sph": {"name": "hyp", "space": "sphere"},
}
PLACES = (("cars", True), ("cub", False), ("grocery", False))
AT_SCALE = tuple((name, True) for name in ("cub", "cars", "in_shop", "sop"))


def _contest(data: str, whole: bool) -> dict[str, Arm]:
    place: dict[str, Any] = {"data": data, "end_to_end": whole}
    ours = {"dmcac": dmcac(**place), "cross-entropy": dmcac("classes-alone", weights=(0, 1, 0), **place)}
    return ours | {name: Arm(name, {"method": method}, **place) for name, method in OTHERS.items()}


def against_others(context: ClaimContext) -> ClaimOutcome:
    """Equal pictures a step; DMCAC's database is paid for by the others' longer runs."""
    contests = {place: _contest(*place) for place in (PLACES if context.scale == "small" else AT_SCALE)}
    found = run_arms(context, [arm for arms in contests.values() for arm in arms.values()], SEEDS)
    names = ["cross-entropy", *OTHERS]
    gaps: dict[str, dict[str, Difference]] = {}
    for place, arms in contests.items():
        each = {name: found.gap(arms[name], arms["dmcac"]) for name in names}
        each["frozen"] = difference(found.values(arms["dmcac"], "frozen"), found.values(arms["dmcac"]))
        gaps[f"{place[0]}{', end to end' * place[1]}"] = each
    over_sets = {name: pool([each[name] for each in gaps.values()]) for name in [*names, "frozen"]}
    note = "DMCAC − each, mean over the sets: " + ", ".join(f"{name} {gap}" for name, gap in over_sets.items())
    rows = [row for arms in contests.values() for row in found.rows(arms.values())]
    figures = {where: {name: gap.to_json() for name, gap in each.items()} for where, each in gaps.items()}
    figures["pooled"] = {name: gap.to_json() for name, gap in over_sets.items()}
    verdict = worst(*(more(gap, 0.6) for gap in over_sets.values()))
    return ClaimOutcome(verdict, {"differences": figures, "runs": rows}, note)
