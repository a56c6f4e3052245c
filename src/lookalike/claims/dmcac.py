"""Claims of Trivedy and Latecki, "Image Retrieval with Self-Supervised Divergence Minimization and Cross-Attention
Classification" (DMCAC).

Everything is paired by seed: the same pictures in the same order, the same head at the start. At small scale the upper
stages of EfficientNet-Lite0 are trained at 96 px on cached lower ones, in views drawn from nine a picture; claim 7 is
run end to end on Cars as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lookalike.claims import Claim, ClaimContext, ClaimOutcome, Verdict
from lookalike.claims.dmcac_contest import against_others
from lookalike.claims.dmcac_new import points_instead, stale_database, temperatures
from lookalike.claims.dmcac_runs import COLD, DEFAULT, LETTER, NEAR, SEEDS, Arm, Runs, dmcac, outcome, run_arms
from lookalike.claims.paired import Difference, difference, more, none_of_note, worst

PAPER = "dmcac"
COLLAPSED = 0.95  # mean cosine of unseen pictures
LIFT = 0.02  # own-class attention beyond the own-class share that is worth speaking of


# ---- 1 to 4: the settings ------------------------------------------------------------------------------


def full_retrieval(context: ClaimContext) -> ClaimOutcome:
    near = {
        name: dmcac(f"share-{name}", {"method": {"share": share}}) for name, share in (("0.05", 0.05), ("0.2", 0.2))
    }
    full = {
        (how, name): dmcac(f"full-{how}-{name}", {"method": {"share": float(name), "full": how}})
        for how in ("constants", "gradient")
        for name in near
    }
    arms = [*near.values(), *full.values()]
    found = run_arms(context, arms, SEEDS)
    gaps = {key: found.gap(near[key[1]], arm) for key, arm in full.items()}
    unequal = found.gap(near["0.2"], full["gradient", "0.05"])
    told = "; ".join(f"{how}, database {float(name):.0%}: {gap}" for (how, name), gap in gaps.items())
    note = (
        f"full − approximate at an equal split: {told}; with the paper's smaller database for the full one: {unequal}"
    )
    figures = {f"{how}, {name}": gap.to_json() for (how, name), gap in gaps.items()}
    return outcome(more(gaps["gradient", "0.05"], 0.4), note, found, arms, differences=figures)


def _dropped(ce: float, cold: bool) -> tuple[Arm, Arm, Arm]:
    """All terms, without the divergence, without the attention."""
    changes = (COLD,) if cold else ()
    name = f"ce{ce:g}{'-cold' * cold}"
    whole = dmcac(name, *changes, weights=(1, ce, 1)) if ce != 1 or cold else DEFAULT
    # Without the divergence its temperature does not matter.
    return (
        whole,
        dmcac(f"ce{ce:g}-no-divergence", weights=(0, ce, 1)),
        dmcac(f"{name}-no-attention", *changes, weights=(1, ce, 0)),
    )


def dropping_terms(context: ClaimContext) -> ClaimOutcome:
    cases = {(ce, cold): _dropped(ce, cold) for ce in (0.5, 1.0) for cold in (True, False)}
    arms = [arm for three in cases.values() for arm in three]
    found = run_arms(context, arms, SEEDS)
    figures: dict[str, Any] = {}
    gaps: dict[tuple[float, bool], tuple[Difference, Difference]] = {}
    for (ce, cold), (whole, no_divergence, no_attention) in cases.items():
        pair = found.gap(no_divergence, whole), found.gap(no_attention, whole)
        gaps[ce, cold] = pair
        name = f"β_ce {ce:g}, τ {1 if cold else 0.1}"
        figures[name] = {"divergence": pair[0].to_json(), "attention": pair[1].to_json()}
    told = "; ".join(
        f"{name}: " + ", ".join(f"{k} {_short(v)}" for k, v in both.items()) for name, both in figures.items()
    )
    verdict = worst(*(more(gap, 1.1) for gap in gaps[0.5, True]))
    ratio = _mean(found, cases[1.0, True][0], "gradient divergence") / max(
        _mean(found, DEFAULT, "gradient classes"), 1e-12
    )
    note = f"what each term brings, points of recall@1: {told}; at τ = 1 its gradient is {ratio:.1%} of the classes'"
    return outcome(verdict, note, found, arms, differences=figures)


def _short(gap: dict[str, Any]) -> str:
    return f"{gap['mean']:+.2f} ({gap['low']:+.2f} to {gap['high']:+.2f})"


def _mean(found: Runs, arm: Arm, measure: str) -> float:
    values = found.values(arm, measure)
    return sum(values) / len(values)


def classes_dispensable(context: ClaimContext) -> ClaimOutcome:
    arms = [DEFAULT, dmcac("no-classes", weights=(1, 0, 1)), dmcac("no-classes-half", weights=(0.5, 0, 1))]
    arms += [dmcac("ce1-cold", COLD), dmcac("no-classes-cold", COLD, weights=(1, 0, 1))]
    found = run_arms(context, arms, SEEDS)
    gaps = {"τ 0.1": found.gap(arms[1], arms[0]), "τ 0.1, β_frob 0.5": found.gap(arms[2], arms[0])}
    gaps["τ 1"] = found.gap(arms[4], arms[3])
    note = "what classifying the views themselves brings: " + ", ".join(f"{k}: {gap}" for k, gap in gaps.items())
    note += (
        f"; mean cosine without it {_mean(found, arms[1], 'cosine'):.2f}, with it {_mean(found, arms[0], 'cosine'):.2f}"
    )
    figures = {name: gap.to_json() for name, gap in gaps.items()}
    return outcome(none_of_note(gaps["τ 1"], NEAR), note, found, arms, differences=figures)


def number_of_views(context: ClaimContext) -> ClaimOutcome:
    """At equal queries, and at equal pictures a step."""
    counts, base = (2, 3, 6, 9), DEFAULT
    same = {n: dmcac(f"views{n}", {"method": {"views": n}}) for n in counts}
    equal = {n: dmcac(f"views{n}-equal", equal_views=n) for n in (2, 8)}
    arms = [base, *same.values(), *equal.values()]
    found = run_arms(context, arms, SEEDS)
    gaps = {arm.name: found.gap(base, arm) for arm in arms[1:]}
    note = "against 4 views: " + ", ".join(f"{name} {gap}" for name, gap in gaps.items())
    verdict = worst(*(_unchanged(gap) for gap in gaps.values()))
    return outcome(verdict, note, found, arms, differences={name: gap.to_json() for name, gap in gaps.items()})


def _unchanged(gap: Difference) -> Verdict:
    """Of the claim that nothing changes: contradicted by a change either way."""
    if gap.low > 0 or gap.high < 0:
        return "contradicted"
    return "no difference found" if max(-gap.low, gap.high) < NEAR else "not testable at this scale"


# ---- 5 and 6: what happens inside ------------------------------------------------------------------------


def diagonal_attention(context: ClaimContext) -> ClaimOutcome:
    letter = dmcac("letter", LETTER)
    found = run_arms(context, [letter, DEFAULT], SEEDS)
    gaps = {
        (arm.name, where): difference(found.values(arm, f"{where}share"), found.values(arm, f"{where}attention"))
        for arm in (letter, DEFAULT)
        for where in ("early ", "", "unseen ")
    }
    verdict = beyond(gaps["letter", ""], LIFT)
    told = []
    for arm, name in ((letter, "as the paper has it"), (DEFAULT, "with heads that learn (rate 3e-3)")):
        places = (("early ", "step 5"), ("", "the end"), ("unseen ", "unseen classes"))
        told.append(f"{name}: " + ", ".join(f"{word} {_fine(gaps[arm.name, where])}" for where, word in places))
    note = "own-class attention − own-class share of what was retrieved; " + "; ".join(told)
    figures = {f"{arm}, {where.strip() or 'end'}": gap.to_json() for (arm, where), gap in gaps.items()}
    return outcome(verdict, note, found, [letter, DEFAULT], lifts=figures)


def beyond(gap: Difference, margin: float) -> Verdict:
    """Of the claim of a rise: one smaller than `margin` is none."""
    if gap.low > margin:
        return "reproduced"
    if gap.high < 0:
        return "contradicted"
    return "no difference found" if gap.high < margin else "not testable at this scale"


def _fine(found: Difference) -> str:
    return f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def collapse(context: ClaimContext) -> ClaimOutcome:
    arms = {
        name: dmcac(f"divergence-alone{name}", *changes, weights=(1, 0, 0))
        for name, changes in (("", ()), ("-cold", (COLD,)))
    }
    found = run_arms(context, [*arms.values(), DEFAULT], SEEDS)
    cosines = {name: found.values(arm, "cosine") for name, arm in arms.items()}
    fallen = sum(value > COLLAPSED for values in cosines.values() for value in values)
    count = len(SEEDS) * len(arms)
    rises = {name: difference(found.values(DEFAULT, "cosine"), values) for name, values in cosines.items()}
    verdict: Verdict = "reproduced" if fallen == count else "not reproduced"
    if all(rise.high < 0 for rise in rises.values()):
        verdict = "contradicted"
    drops = {name: difference(found.values(arm, "step 0"), found.values(arm)) for name, arm in arms.items()}
    note = (
        f"{fallen} of {count} runs end above a mean cosine of {COLLAPSED:g} on unseen pictures; against all three "
        f"terms {_fine(rises[''])} at τ 0.1, {_fine(rises['-cold'])} at τ 1; recall@1 over step 0 {drops['']}, "
        f"{drops['-cold']}"
    )
    figures = {"cosines": cosines, "recall over step 0": {k or "default": v.to_json() for k, v in drops.items()}}
    return outcome(verdict, note, found, [*arms.values(), DEFAULT], **figures)


CARS = "Cars at 96 px, upper stages on cached lower ones, 16 queries in 4 views, 150 steps, 5 seeds"


def _claim(
    key: str, statement: str, figure: str, small: str, run: Callable[[ClaimContext], ClaimOutcome], data: str = "cars"
) -> Claim:
    at_scale = f"`lookalike reproduce dmcac --scale paper --only {key}`, with the data set as DATA/{data} and ViT-S"
    return Claim(key, PAPER, statement, figure, small, at_scale, run)


CLAIMS = [
    _claim(
        "1-full-retrieval",
        "Full retrieval is at least as good as approximate retrieval, at an equal split.",
        "+0.2, +0.6 (CUB, DeiT and ViT), +0.4, +0.7 (Cars), with unequal splits",
        f"{CARS}; both readings, databases of 5 % and 20 %",
        full_retrieval,
    ),
    _claim(
        "2-dropping-terms",
        "Dropping the divergence or the attention term hurts.",
        "β_ce 0.5: −1.1 to −1.3 without the divergence, −0.9 to −1.0 without attention; β_ce 1: −0.1 to −0.3 (In-Shop)",
        f"{CARS}; β_ce 0.5 and 1, τ 1 and 0.1; judged at the paper's τ and β_ce 0.5",
        dropping_terms,
    ),
    _claim(
        "3-classes-dispensable",
        "Cross-entropy on the views themselves is dispensable.",
        "+0.1, 0.0 without it; +0.3, +0.4 with β_frob 0.5 (In-Shop)",
        CARS,
        classes_dispensable,
    ),
    _claim(
        "4-number-of-views",
        "The number of views hardly matters.",
        "CUB 78.6 to 77.7 (DeiT), 86.0 to 86.3 (ViT) for 3 to 20 views",
        f"{CARS}; 2 to 9 views at equal queries, 2 and 8 at equal pictures",
        number_of_views,
    ),
    _claim(
        "5-diagonal-attention",
        "Attention becomes class-diagonal beyond what retrieval alone gives.",
        "Figure 3, steps 5 and 100, without numbers",
        f"{CARS}; own-class attention less own-class share, as the paper has it and with heads that learn",
        diagonal_attention,
    ),
    _claim(
        "6-collapse",
        "The divergence alone collapses.",
        "text only",
        f"{CARS}; mean cosine of unseen pictures, τ 1 and 0.1",
        collapse,
    ),
    _claim(
        "7-against-others",
        "DMCAC is better than other methods at equal cost.",
        "over Hyp (ViT): +0.6 CUB, +0.2 In-Shop, +2.0 Cars, +0.4 SOP",
        "Cars end to end, CUB and Grocery on cached lower stages, 64 pictures a step, 5 seeds: Proxy-Anchor, SupCon, "
        "cross-entropy alone, Hyp, Sph, the frozen encoder",
        against_others,
    ),
    _claim("8-stale", "A database that is never made anew costs nothing.", "new here", CARS, stale_database),
    _claim(
        "8-points",
        "Comparing what views retrieve is better than comparing the views.",
        "new here",
        CARS,
        points_instead,
    ),
    _claim("8-temperature", "A temperature below 1 helps.", "new here", f"{CARS}; τ 0.2, 0.1 and 0.05", temperatures),
]
