"""Claim 8 of DMCAC, which the paper does not make: a stale database, points instead of laws, temperature."""

from __future__ import annotations

from benchmarks.papers import ClaimContext, ClaimOutcome
from benchmarks.papers.dmcac_runs import COLD, NEAR, SEEDS, family, outcome, run_arms
from benchmarks.papers.paired import more, none_of_note


def stale_database(context: ClaimContext) -> ClaimOutcome:
    make = family(context.scale, "cars")
    plans = {
        "never": {"unit": "never"},
        "15 epochs": {"every": 15, "unit": "epochs"},
        "50 steps": {"every": 50, "unit": "steps"},
        "every step": {"every": 1, "unit": "steps"},
    }
    names = {plan: f"refresh-{plan.replace(' ', '-')}" for plan in plans}
    if context.scale == "small":
        names["50 steps"] = "dmcac"
    arms = {plan: make(names[plan], {"method": {"refresh": given}}) for plan, given in plans.items()}
    found = run_arms(context, arms.values(), SEEDS)
    gaps = {plan: found.gap(arms["never"], arm) for plan, arm in arms.items() if plan != "never"}
    note = "a database made anew − never: " + ", ".join(f"{plan} {gap}" for plan, gap in gaps.items())
    figures = {plan: gap.to_json() for plan, gap in gaps.items()}
    return outcome(none_of_note(gaps["every step"], NEAR), note, found, list(arms.values()), differences=figures)


def points_instead(context: ClaimContext) -> ClaimOutcome:
    make = family(context.scale, "cars")
    whole, points = make(), make("points", {"method": {"distance": "cosine"}})
    nothing = make("ce1-no-divergence", weights=(0, 1, 1))
    found = run_arms(context, [whole, points, nothing], SEEDS)
    gap, own = found.gap(points, whole), found.gap(nothing, points)
    note = f"divergence of what is retrieved − distance of the views {gap}; that distance − nothing {own}"
    return outcome(more(gap, NEAR), note, found, [whole, points, nothing], difference=gap.to_json(), own=own.to_json())


def temperatures(context: ClaimContext) -> ClaimOutcome:
    make = family(context.scale, "cars")
    cold = make("ce1-cold", COLD)
    names = {0.1: "dmcac" if context.scale == "small" else "tau0.1", 0.2: "tau0.2", 0.05: "tau0.05"}
    arms = {t: make(name, {"method": {"temperature": t}}) for t, name in names.items()}
    found = run_arms(context, [cold, *arms.values()], SEEDS)
    level = 1 - 0.05 / len(arms)
    gaps = {t: found.gap(cold, arm, level=level) for t, arm in arms.items()}
    note = "against τ = 1: " + ", ".join(f"τ {t:g} {gap}" for t, gap in gaps.items())
    best = max(gaps.values(), key=lambda gap: gap.low)
    figures = {f"{t:g}": gap.to_json() for t, gap in gaps.items()}
    return outcome(more(best, NEAR), note, found, [cold, *arms.values()], level=level, differences=figures)
