"""Claims of Zancato et al., "Train/Test-Time Adaptation with Retrieval".

Test time: PACS, a model of the photos adapted to art, cartoons and sketches, with the data set `pool`. Train time
(claims 3 and 5): CUB, with `pool`, `tinyimagenet100` and `cars` as the pool. Everything is paired by seed and subset.
The equations are rebuilt (docs/decisions/0200), so a claim that does not hold says something about this reading of it.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from benchmarks.papers import Claim, ClaimContext, ClaimOutcome, Verdict
from benchmarks.papers.cells import Found
from benchmarks.papers.paired import Difference, difference, more, one_of_several, worst
from benchmarks.papers.t3ar_cells import Cell, run_cells
from benchmarks.papers.t3ar_protocols import PROTOCOLS

PAPER = "t3ar"
SEEDS = (0, 1, 2, 3, 4)
SUBSETS = 2
"""Subsets of 1 % for every seed; those of different seeds differ."""
FRACTIONS = (0.01, 0.1, 1.0)
POOLS = "pool+tinyimagenet100+cars"
"""The pool of train time."""
WITHOUT = {"contrast": {"pool_set": "none"}}


def _shifts(context: ClaimContext) -> tuple[tuple[tuple[str, str], ...], str]:
    """The shifts and the data set they are of."""
    name = "domainnet126" if context.scale == "paper" else "pacs"
    context.folder(name)
    context.folder("pool")
    return PROTOCOLS[name].shifts, name


def _gap(found: Found, before: list[Cell], after: list[Cell], measure: str = "accuracy") -> Difference:
    """`after − before`, each the mean over its cells, by seed."""

    def means(cells: list[Cell]) -> list[float]:
        return [statistics.fmean(values) for values in zip(*(found.values(c, measure) for c in cells), strict=True)]

    return difference(means(before), means(after))


def _missing(found: Found, cells: list[Cell]) -> ClaimOutcome | None:
    lacking = sum(not found.has(cell) for cell in cells)
    return ClaimOutcome("not run", {}, f"{lacking} of {len(cells)} settings are not finished") if lacking else None


def _rows(found: Found) -> list[dict[str, Any]]:
    return [{"run": name, "seed": seed, **result} for (name, seed), result in sorted(found.results.items())]


def _outcome(verdict: Verdict, note: str, found: Found, **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": _rows(found)}, note)


def retrieval_helps(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    pairs = {s: [Cell(*s, over=WITHOUT, pool="none", set=name), Cell(*s, set=name)] for s in shifts}
    source, bn = ([Cell(*s, over={"method": m}, pool="none", set=name) for s in shifts] for m in ("source", "bn"))
    every = [Cell(*s, over={"contrast": {"pool_set": "all"}}, set=name) for s in shifts]
    cells = [cell for pair in pairs.values() for cell in pair] + source + bn + every
    found = run_cells(context, cells, SEEDS)
    if lacking := _missing(found, cells):
        return lacking
    gaps = {f"{a} to {b}": _gap(found, [pair[0]], [pair[1]]) for (a, b), pair in pairs.items()}
    note = "with − without retrieval: " + ", ".join(f"{where} {gap}" for where, gap in gaps.items())
    second = {f"{a} to {b}": _gap(found, [pairs[a, b][0]], [cell]) for (a, b), cell in zip(shifts, every, strict=True)}
    note += "; with all pool images as negatives: " + ", ".join(f"{where} {gap}" for where, gap in second.items())
    over = {f"{a} to {b}": _gap(found, [cell], [pairs[a, b][1]]) for (a, b), cell in zip(shifts, source, strict=True)}
    note += "; with retrieval − the source model as it is: " + ", ".join(
        f"{where} {gap}" for where, gap in over.items()
    )
    verdict = worst(*(more(one_of_several(gap, len(gaps)), 2.0) for gap in gaps.values()))
    parts = (("own", gaps), ("all", second), ("over the source", over))
    figures = {name: {k: v.to_json() for k, v in part.items()} for name, part in parts}
    return _outcome(verdict, note, found, differences=figures)


def gain_shrinks(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)

    def cells(fraction: float, kind: str) -> list[Cell]:
        kinds: dict[str, dict[str, Any]] = {"none": WITHOUT, "adacontrast": {"method": "adacontrast"}, "t3ar": {}}
        pool = "all" if kind == "t3ar" else "none"
        count = SUBSETS if fraction == 0.01 else 1
        return [Cell(*s, fraction, n, kinds[kind], pool, set=name) for s in shifts for n in range(count)]

    wanted = [c for f in FRACTIONS for kind in ("none", "adacontrast", "t3ar") for c in cells(f, kind)]
    found = run_cells(context, wanted, SEEDS)
    if lacking := _missing(found, wanted):
        return lacking
    gains = {f: _gap(found, cells(f, "none"), cells(f, "t3ar")) for f in FRACTIONS}
    # Largest at 1 %: larger than at each of the others.
    falls = {f: difference(gains[f].by_seed, gains[0.01].by_seed) for f in FRACTIONS[1:]}
    leads = {f: _gap(found, cells(f, "adacontrast"), cells(f, "t3ar")) for f in FRACTIONS}
    note = "gain by retrieval " + ", ".join(f"at {f:.0%} {gain}" for f, gain in gains.items())
    note += "; at 1 % it is larger " + ", ".join(f"than at {f:.0%} by {fall}" for f, fall in falls.items())
    note += "; T3AR − AdaContrast " + ", ".join(f"at {f:.0%} {lead}" for f, lead in leads.items())
    figures = {f"{f:.0%}": gain.to_json() for f, gain in gains.items()}
    curve = [
        {
            "fraction": f,
            "method": kind,
            "accuracy": statistics.fmean(v for c in cells(f, kind) for v in found.values(c, "accuracy")),
        }
        for f in FRACTIONS
        for kind in ("none", "adacontrast", "t3ar")
    ]
    shrinks = [more(one_of_several(fall, len(falls)), 2.0) for fall in falls.values()]
    verdict = worst(more(gains[0.01], 2.0), *shrinks, _catches_up(leads[0.01], leads[1.0]))
    more_figures = {
        name: {f"{f:.0%}": gap.to_json() for f, gap in part.items()}
        for name, part in (("falls", falls), ("leads", leads))
    }
    return _outcome(verdict, note, found, gains=figures, curve=curve, **more_figures)


def _catches_up(few: Difference, whole: Difference) -> Verdict:
    """Who was never behind cannot catch up: a lead with few images, and at most a point of it with all."""
    level: Verdict = (
        "contradicted" if whole.low > 1 else "reproduced" if whole.high < 1 else "not testable at this scale"
    )
    return worst(more(few, 2.0), level)


NEIGHBORS = (0, 1, 2, 5)


def _train_cell(k: int, **over: Any) -> Cell:
    pool = POOLS if k else "none"
    settings = {"method": "t3ar", **({"num_neighbors": k} if k else WITHOUT), **over}
    return Cell("imagenet", "cub", over=settings, pool=pool, set="cub")


def _train_sets(context: ClaimContext) -> None:
    for name in ("cub", *POOLS.split("+")):
        context.folder(name)


def nearest_beats_random(context: ClaimContext) -> ClaimOutcome:
    _train_sets(context)
    by_k = {k: _train_cell(k) for k in NEIGHBORS}
    chance = _train_cell(1, retrieval="random")
    # What the contrast does at all: fine-tuning without it, and at the paper's weight.
    beside = {"fine-tuning": Cell("imagenet", "cub", over={"method": "finetune"}, pool="none", set="cub")}
    beside |= {f"weight 1, {k} neighbors": _train_cell(k, weights={"contrast": 1.0}) for k in (0, 2)}
    cells = [*by_k.values(), chance, *(beside.values() if context.scale == "small" else ())]
    found = run_cells(context, cells, SEEDS)
    if lacking := _missing(found, cells):
        return lacking
    better, flat = _gap(found, [chance], [by_k[1]]), _gap(found, [by_k[2]], [by_k[5]])
    rise = _gap(found, [by_k[0]], [by_k[2]])  # what never rises does not saturate
    saturates: Verdict = (
        "contradicted" if flat.low > 0.5 else "reproduced" if flat.high < 1 else "not testable at this scale"
    )
    curve = [{"neighbors": k, "accuracy": statistics.fmean(found.values(cell, "accuracy"))} for k, cell in by_k.items()]
    note = f"nearest − random {better}; 2 − 0 neighbors {rise}; 5 − 2 {flat}; without retrieval to 5: "
    note += ", ".join(f"{row['accuracy']:.1f}" for row in curve)
    means = {name: statistics.fmean(found.values(c, "accuracy")) for name, c in beside.items() if found.has(c)}
    note += "".join(f"; {name} {mean:.1f}" for name, mean in means.items())
    figures = {name: gap.to_json() for name, gap in (("nearest", better), ("rise", rise), ("flat", flat))}
    return _outcome(worst(more(better, 1.0), more(rise, 1.0), saturates), note, found, **figures, curve=curve)


def stronger_retriever(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    experts = ("own", "efficientnet_lite0", "efficientnet_lite2")
    cells = {who: [Cell(*s, retriever=who, set=name) for s in shifts] for who in experts}
    wanted = [cell for part in cells.values() for cell in part]
    found = run_cells(context, wanted, SEEDS)
    if lacking := _missing(found, wanted):
        return lacking
    gap = _gap(found, cells["efficientnet_lite0"], cells["efficientnet_lite2"])
    own = statistics.fmean(value for cell in cells["own"] for value in found.values(cell, "accuracy"))
    note = f"retriever Lite2 − Lite0 {gap}; the model as its own retriever {own:.2f}"
    return _outcome(more(gap, 1.0), note, found, difference=gap.to_json())


def beats_pretraining(context: ClaimContext) -> ClaimOutcome:
    _train_sets(context)
    steps = 100_000 if context.scale == "paper" else 300
    first = Cell("pretrained", "cub", over={"method": "finetune", "pretrain_steps": steps}, pool=POOLS, set="cub")
    plain = Cell("imagenet", "cub", over={"method": "finetune"}, pool="none", set="cub")
    ours = _train_cell(2)
    found = run_cells(context, [plain, first, ours], SEEDS)
    if lacking := _missing(found, [plain, first, ours]):
        return lacking
    gap, tune = _gap(found, [first], [ours]), _gap(found, [plain], [ours])
    note = f"T3AR − pretraining on the pool, then fine-tuning {gap}; − fine-tuning alone {tune}"
    return _outcome(more(gap, 1.1), note, found, difference=gap.to_json(), finetune=tune.to_json())


ORDER = ("source", "tent", "shot", "adacontrast")


def order_of_methods(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    cells = {m: [Cell(*s, over={"method": m}, pool="none", set=name) for s in shifts] for m in (*ORDER, "bn")}
    wanted = [cell for part in cells.values() for cell in part]
    found = run_cells(context, wanted, SEEDS)
    if lacking := _missing(found, wanted):
        return lacking
    gaps = {f"{b} − {a}": _gap(found, cells[a], cells[b]) for a, b in pairwise(ORDER)}
    means = {m: statistics.fmean(v for c in part for v in found.values(c, "accuracy")) for m, part in cells.items()}
    note = ", ".join(f"{m} {value:.1f}" for m, value in means.items()) + "; "
    note += ", ".join(f"{what} {gap}" for what, gap in gaps.items())
    sizes = zip(gaps.values(), (2.1, 9.4, 0.7), strict=True)
    verdict = worst(*(more(one_of_several(gap, len(gaps)), size) for gap, size in sizes))
    return _outcome(verdict, note, found, differences={k: v.to_json() for k, v in gaps.items()}, means=means)


def pool_with_classes(context: ClaimContext) -> ClaimOutcome:
    """Our own question: are the target's classes in the pool a danger, and does the exclusion help?"""
    shifts, name = _shifts(context)
    guard = {"contrast": {"exclusion": "pseudo"}}
    cells = {
        "with": [Cell(*s, set=name) for s in shifts],
        "without": [Cell(*s, pool="without", set=name) for s in shifts],
        "with, guarded": [Cell(*s, over=guard, set=name) for s in shifts],
    }
    wanted = [cell for part in cells.values() for cell in part]
    found = run_cells(context, wanted, SEEDS)
    if lacking := _missing(found, wanted):
        return lacking
    risk = _gap(found, cells["with"], cells["without"])
    guarded = _gap(found, cells["with"], cells["with, guarded"])
    note = f"pool without − with the target's classes {risk}; guarded − not guarded {guarded}"
    return _outcome(more(risk, 1.0), note, found, risk=risk.to_json(), guard=guarded.to_json())


EMBEDDERS = ("frozen", "bn", "gallery", "clusters", "contrast")


def pure_embedder(context: ClaimContext) -> ClaimOutcome:
    """Our own question: what does adaptation give a model without classes, and how good are its pseudo-labels?"""
    shifts, name = _shifts(context)
    cells = {
        kind: [Cell(*s, pool="none" if kind in ("frozen", "bn") else "all", set=name, embedder=kind) for s in shifts]
        for kind in EMBEDDERS
    }
    wanted = [cell for part in cells.values() for cell in part]
    found = run_cells(context, wanted, SEEDS[:3])
    if lacking := _missing(found, wanted):
        return lacking
    means = {
        kind: {
            "map@r": round(statistics.fmean(v for c in part for v in found.values(c, "accuracy")), 2),
            "recall@1": round(statistics.fmean(v for c in part for v in found.values(c, "recall")), 2),
        }
        for kind, part in cells.items()
    }
    gaps = {start: {kind: _gap(found, cells[start], cells[kind]) for kind in EMBEDDERS[2:]} for start in EMBEDDERS[:2]}
    labels = {
        f"{cell.source} to {cell.target}, {kind}": found.results[cell.name, 0].get("labels before")
        for kind in ("gallery", "clusters")
        for cell in cells[kind]
    }
    note = "MAP@R " + ", ".join(f"{kind} {value['map@r']:.1f}" for kind, value in means.items())
    for start, each in gaps.items():
        note += f"; over {start}: " + ", ".join(f"{kind} {gap}" for kind, gap in each.items())
    figures = {f"over {start}": {kind: gap.to_json() for kind, gap in each.items()} for start, each in gaps.items()}
    verdict = more(gaps["frozen"]["gallery"], 1.0)
    return _outcome(verdict, note, found, means=means, differences=figures, labels=labels)


def shortcut(context: ClaimContext) -> ClaimOutcome:
    """A check of our own: one shift from the pixels up, beside the same with lower stages computed once."""
    shifts, name = _shifts(context)
    where = shifts[0]
    whole = {"layer": "pixels"}
    ways = {
        "cached": [Cell(*where, over=WITHOUT, pool="none", set=name), Cell(*where, set=name)],
        "whole": [Cell(*where, over={**WITHOUT, **whole}, pool="none", set=name), Cell(*where, over=whole, set=name)],
    }
    wanted = [cell for pair in ways.values() for cell in pair]
    found = run_cells(context, wanted, SEEDS)
    if lacking := _missing(found, wanted):
        return lacking
    gaps = {way: _gap(found, pair[:1], pair[1:]) for way, pair in ways.items()}
    told = {way: more(gap, 2.0) for way, gap in gaps.items()}
    same: Verdict = "reproduced" if told["cached"] == told["whole"] else "not testable at this scale"
    verdict: Verdict = "contradicted" if set(told.values()) == {"reproduced", "contradicted"} else same
    note = f"{where[0]} to {where[1]}, with − without retrieval: "
    note += ", ".join(f"{way} {gap} ({told[way]})" for way, gap in gaps.items())
    return _outcome(verdict, note, found, differences={k: v.to_json() for k, v in gaps.items()})


def _claim(key: str, statement: str, figure: str, small: str, run: Any, data: str = "domainnet126") -> Claim:
    at_scale = f"`lookalike reproduce t3ar --scale paper --only {key}`, with the data set as DATA/{data}"
    return Claim(key, PAPER, statement, figure, small, at_scale, run)


TEST = (
    "PACS, photo to art, cartoon and sketch at 96 px, lower stages cached, 60 steps, 5 seeds, all of the target asked"
)
CUB = (
    "CUB, official split, 96 px, lower stages cached, 300 steps, 5 seeds; the contrast weighs 0.1; pool, "
    "tinyimagenet100 and cars as the pool"
)
CLAIMS = [
    _claim("1-retrieval-helps", "With retrieval beats without, on every shift.", "Table 8", TEST, retrieval_helps),
    _claim(
        "2-most-with-few",
        "The gain is largest at 1 % and shrinks with data; AdaContrast catches up at 100 %.",
        "Figure 7, Table 8",
        f"{TEST}; 1 % (10 subsets in all), 10 %, 100 %",
        gain_shrinks,
    ),
    _claim(
        "3-nearest-beats-random",
        "Nearest beats random; 2–5 neighbors saturate.",
        "Figure 8",
        CUB,
        nearest_beats_random,
        "cub",
    ),
    _claim("4-stronger-retriever", "A stronger retriever adapts better.", "Section B", TEST, stronger_retriever),
    _claim(
        "5-beats-pretraining",
        "T3AR beats pretraining on the pool then fine-tuning.",
        "Table 10",
        CUB,
        beats_pretraining,
        "cub",
    ),
    _claim(
        "6-order-of-methods",
        "Source only < TENT < SHOT < AdaContrast on average.",
        "Table 8",
        TEST,
        order_of_methods,
    ),
    _claim(
        "7-classes-in-the-pool",
        "A pool that holds the target's classes gives false negatives (not in the paper: the risk of its method).",
        "none",
        f"{TEST}; the pool with and without images of PACS classes",
        pool_with_classes,
    ),
    _claim(
        "8-pure-embedder",
        "A model without classes gains by adaptation with prototypes of a gallery (not in the paper).",
        "none",
        f"{TEST.replace('5 seeds', '3 seeds')}; ImageNet's features; the photos as the gallery",
        pure_embedder,
    ),
    _claim(
        "9-shortcut",
        "That the lower stages are computed once does not change the verdict (not in the paper: our shortcut).",
        "none",
        f"{TEST.replace('lower stages cached', 'lower stages cached, and from the pixels up')}; photo to art alone",
        shortcut,
    ),
]
