"""Claim 8 of DMCAC, which the paper does not make: a stale database, points instead of laws, temperature."""

from __future__ import annotations

from lookalike.claims import ClaimContext, ClaimOutcome
from lookalike.claims.dmcac_runs import COLD, DEFAULT, NEAR, SEEDS, dmcac, outcome, run_arms
from lookalike.claims.paired import more, none_of_note


def stale_database(context: ClaimContext) -> ClaimOutcome:
    plans = {
        "never": {"unit": "never"},
        "15 epochs": {"every": 15, "unit": "epochs"},
        "every step": {"every": 1},
    }
    arms = {name: dmcac(f"refresh-{name.replace(' ', '-')}", {"method": {"refresh": r}}) for name, r in plans.items()}
    found = run_arms(context, [DEFAULT, *arms.values()], SEEDS)
    gaps = {name: found.gap(arms["never"], arm) for name, arm in (("50 steps", DEFAULT), *list(arms.items())[1:])}
    note = "a database made anew − never: " + ", ".join(f"{name} {gap}" for name, gap in gaps.items())
    figures = {name: gap.to_json() for name, gap in gaps.items()}
    return outcome(none_of_note(gaps["every step"], NEAR), note, found, [DEFAULT, *arms.values()], differences=figures)


def points_instead(context: ClaimContext) -> ClaimOutcome:
    points = dmcac("points", {"method": {"distance": "cosine"}})
    nothing = dmcac("ce1-no-divergence", weights=(0, 1, 1))
    found = run_arms(context, [DEFAULT, points, nothing], SEEDS)
    gap, own = found.gap(points, DEFAULT), found.gap(nothing, points)
    note = f"divergence of what is retrieved − distance of the views {gap}; that distance − nothing {own}"
    return outcome(
        more(gap, NEAR), note, found, [DEFAULT, points, nothing], difference=gap.to_json(), own=own.to_json()
    )


def temperatures(context: ClaimContext) -> ClaimOutcome:
    cold = dmcac("ce1-cold", COLD)
    arms = {0.1: DEFAULT} | {t: dmcac(f"tau{t:g}", {"method": {"temperature": t}}) for t in (0.2, 0.05)}
    found = run_arms(context, [cold, *arms.values()], SEEDS)
    level = 1 - 0.05 / len(arms)
    gaps = {t: found.gap(cold, arm, level=level) for t, arm in arms.items()}
    note = "against τ = 1: " + ", ".join(f"τ {t:g} {gap}" for t, gap in gaps.items())
    best = max(gaps.values(), key=lambda gap: gap.low)
    figures = {f"{t:g}": gap.to_json() for t, gap in gaps.items()}
    return outcome(more(best, NEAR), note, found, [cold, *arms.values()], level=level, differences=figures)
