"""Claims of Zancato et al., "Train/Test-Time Adaptation with Retrieval".

Test time: PACS, a model of the photos adapted to art, cartoons and sketches, with the data set `pool`. Train time
(claims 3 and 5): CUB, with `pool`, `tinyimagenet100` and `cars` as the pool. Everything is paired by seed and subset.
The equations are rebuilt (docs/design/adaptation.md), so a claim that does not hold says something about this reading.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from typing import Any

from benchmarks.papers import Claim, ClaimContext, ClaimOutcome, Missing, Verdict
from benchmarks.papers.grid import GridResults
from benchmarks.papers.paired import Difference, difference, more, one_of_several, worst
from benchmarks.papers.t3ar_protocols import PROTOCOLS
from benchmarks.papers.t3ar_runs import Cell, run_cells

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


def _gap(results: GridResults, before: list[Cell], after: list[Cell], measure: str = "accuracy") -> Difference:
    """`after − before`, each the mean over its cells, by seed."""

    def means(cells: list[Cell]) -> list[float]:
        return [statistics.fmean(values) for values in zip(*(results.values(c, measure) for c in cells), strict=True)]

    return difference(means(before), means(after))


def _run(context: ClaimContext, cells: list[Cell], seeds: tuple[int, ...]) -> GridResults:
    """The runs of a claim, which is judged only when all of them are finished."""
    results = run_cells(context, cells, seeds)
    if lacking := sum(not results.has(cell) for cell in cells):
        raise Missing(f"{lacking} of {len(cells)} settings are not finished")
    return results


def _rows(results: GridResults) -> list[dict[str, Any]]:
    return [{"run": name, "seed": seed, **result} for (name, seed), result in sorted(results.results.items())]


def _outcome(verdict: Verdict, note: str, results: GridResults, **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": _rows(results)}, note)


def retrieval_helps(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    pairs = {s: [Cell(*s, over=WITHOUT, pool="none", set=name), Cell(*s, set=name)] for s in shifts}
    source, bn = ([Cell(*s, over={"method": m}, pool="none", set=name) for s in shifts] for m in ("source", "bn"))
    every = [Cell(*s, over={"contrast": {"pool_set": "all"}}, set=name) for s in shifts]
    cells = [cell for pair in pairs.values() for cell in pair] + source + bn + every
    results = _run(context, cells, SEEDS)
    gaps = {f"{a} to {b}": _gap(results, [pair[0]], [pair[1]]) for (a, b), pair in pairs.items()}
    note = "with − without retrieval: " + ", ".join(f"{where} {gap}" for where, gap in gaps.items())
    second = {
        f"{a} to {b}": _gap(results, [pairs[a, b][0]], [cell]) for (a, b), cell in zip(shifts, every, strict=True)
    }
    note += "; with all pool images as negatives: " + ", ".join(f"{where} {gap}" for where, gap in second.items())
    over = {f"{a} to {b}": _gap(results, [cell], [pairs[a, b][1]]) for (a, b), cell in zip(shifts, source, strict=True)}
    note += "; with retrieval − the source model as it is: " + ", ".join(
        f"{where} {gap}" for where, gap in over.items()
    )
    verdict = worst(*(more(one_of_several(gap, len(gaps)), 2.0) for gap in gaps.values()))
    parts = (("own", gaps), ("all", second), ("over the source", over))
    figures = {name: {k: v.to_json() for k, v in part.items()} for name, part in parts}
    return _outcome(verdict, note, results, differences=figures)


def gain_shrinks(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)

    def cells(fraction: float, kind: str) -> list[Cell]:
        kinds: dict[str, dict[str, Any]] = {"none": WITHOUT, "adacontrast": {"method": "adacontrast"}, "t3ar": {}}
        pool = "all" if kind == "t3ar" else "none"
        count = SUBSETS if fraction == 0.01 else 1
        return [Cell(*s, fraction, n, kinds[kind], pool, set=name) for s in shifts for n in range(count)]

    wanted = [c for f in FRACTIONS for kind in ("none", "adacontrast", "t3ar") for c in cells(f, kind)]
    results = _run(context, wanted, SEEDS)
    gains = {f: _gap(results, cells(f, "none"), cells(f, "t3ar")) for f in FRACTIONS}
    # Largest at 1 %: larger than at each of the others.
    falls = {f: difference(gains[f].by_seed, gains[0.01].by_seed) for f in FRACTIONS[1:]}
    leads = {f: _gap(results, cells(f, "adacontrast"), cells(f, "t3ar")) for f in FRACTIONS}
    note = "gain by retrieval " + ", ".join(f"at {f:.0%} {gain}" for f, gain in gains.items())
    note += "; at 1 % it is larger " + ", ".join(f"than at {f:.0%} by {fall}" for f, fall in falls.items())
    note += "; T3AR − AdaContrast " + ", ".join(f"at {f:.0%} {lead}" for f, lead in leads.items())
    figures = {f"{f:.0%}": gain.to_json() for f, gain in gains.items()}
    curve = [
        {
            "fraction": f,
            "method": kind,
            "accuracy": statistics.fmean(v for c in cells(f, kind) for v in results.values(c, "accuracy")),
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
    return _outcome(verdict, note, results, gains=figures, curve=curve, **more_figures)


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
    results = _run(context, cells, SEEDS)
    better, flat = _gap(results, [chance], [by_k[1]]), _gap(results, [by_k[2]], [by_k[5]])
    rise = _gap(results, [by_k[0]], [by_k[2]])  # what never rises does not saturate
    saturates: Verdict = (
        "contradicted" if flat.low > 0.5 else "reproduced" if flat.high < 1 else "not testable at this scale"
    )
    curve = [
        {"neighbors": k, "accuracy": statistics.fmean(results.values(cell, "accuracy"))} for k, cell in by_k.items()
    ]
    note = f"nearest − random {better}; 2 − 0 neighbors {rise}; 5 − 2 {flat}; without retrieval to 5: "
    note += ", ".join(f"{row['accuracy']:.1f}" for row in curve)
    means = {name: statistics.fmean(results.values(c, "accuracy")) for name, c in beside.items() if results.has(c)}
    note += "".join(f"; {name} {mean:.1f}" for name, mean in means.items())
    figures = {name: gap.to_json() for name, gap in (("nearest", better), ("rise", rise), ("flat", flat))}
    return _outcome(worst(more(better, 1.0), more(rise, 1.0), saturates), note, results, **figures, curve=curve)


def stronger_retriever(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    experts = ("own", "efficientnet_lite0", "efficientnet_lite2")
    cells = {who: [Cell(*s, retriever=who, set=name) for s in shifts] for who in experts}
    wanted = [cell for part in cells.values() for cell in part]
    results = _run(context, wanted, SEEDS)
    gap = _gap(results, cells["efficientnet_lite0"], cells["efficientnet_lite2"])
    own = statistics.fmean(value for cell in cells["own"] for value in results.values(cell, "accuracy"))
    note = f"retriever Lite2 − Lite0 {gap}; the model as its own retriever {own:.2f}"
    return _outcome(more(gap, 1.0), note, results, difference=gap.to_json())


def beats_pretraining(context: ClaimContext) -> ClaimOutcome:
    _train_sets(context)
    steps = 100_000 if context.scale == "paper" else 300
    first = Cell("pretrained", "cub", over={"method": "finetune", "pretrain_steps": steps}, pool=POOLS, set="cub")
    plain = Cell("imagenet", "cub", over={"method": "finetune"}, pool="none", set="cub")
    ours = _train_cell(2)
    results = _run(context, [plain, first, ours], SEEDS)
    gap, tune = _gap(results, [first], [ours]), _gap(results, [plain], [ours])
    note = f"T3AR − pretraining on the pool, then fine-tuning {gap}; − fine-tuning alone {tune}"
    return _outcome(more(gap, 1.1), note, results, difference=gap.to_json(), finetune=tune.to_json())


ORDER = ("source", "tent", "shot", "adacontrast")


def order_of_methods(context: ClaimContext) -> ClaimOutcome:
    shifts, name = _shifts(context)
    cells = {m: [Cell(*s, over={"method": m}, pool="none", set=name) for s in shifts] for m in (*ORDER, "bn")}
    wanted = [cell for part in cells.values() for cell in part]
    results = _run(context, wanted, SEEDS)
    gaps = {f"{b} − {a}": _gap(results, cells[a], cells[b]) for a, b in pairwise(ORDER)}
    means = {m: statistics.fmean(v for c in part for v in results.values(c, "accuracy")) for m, part in cells.items()}
    note = ", ".join(f"{m} {value:.1f}" for m, value in means.items()) + "; "
    note += ", ".join(f"{what} {gap}" for what, gap in gaps.items())
    sizes = zip(gaps.values(), (2.1, 9.4, 0.7), strict=True)
    verdict = worst(*(more(one_of_several(gap, len(gaps)), size) for gap, size in sizes))
    return _outcome(verdict, note, results, differences={k: v.to_json() for k, v in gaps.items()}, means=means)


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
    results = _run(context, wanted, SEEDS)
    risk = _gap(results, cells["with"], cells["without"])
    guarded = _gap(results, cells["with"], cells["with, guarded"])
    note = f"pool without − with the target's classes {risk}; guarded − not guarded {guarded}"
    return _outcome(more(risk, 1.0), note, results, risk=risk.to_json(), guard=guarded.to_json())


EMBEDDERS = ("frozen", "bn", "gallery", "clusters", "contrast")


def pure_embedder(context: ClaimContext) -> ClaimOutcome:
    """Our own question: what does adaptation give a model without classes, and how good are its pseudo-labels?"""
    shifts, name = _shifts(context)
    cells = {
        kind: [Cell(*s, pool="none" if kind in ("frozen", "bn") else "all", set=name, embedder=kind) for s in shifts]
        for kind in EMBEDDERS
    }
    wanted = [cell for part in cells.values() for cell in part]
    results = _run(context, wanted, SEEDS[:3])
    means = {
        kind: {
            "map@r": round(statistics.fmean(v for c in part for v in results.values(c, "accuracy")), 2),
            "recall@1": round(statistics.fmean(v for c in part for v in results.values(c, "recall")), 2),
        }
        for kind, part in cells.items()
    }
    gaps = {
        start: {kind: _gap(results, cells[start], cells[kind]) for kind in EMBEDDERS[2:]} for start in EMBEDDERS[:2]
    }
    labels = {
        f"{cell.source} to {cell.target}, {kind}": results.results[cell.name, 0].get("labels before")
        for kind in ("gallery", "clusters")
        for cell in cells[kind]
    }
    note = "MAP@R " + ", ".join(f"{kind} {value['map@r']:.1f}" for kind, value in means.items())
    for start, each in gaps.items():
        note += f"; over {start}: " + ", ".join(f"{kind} {gap}" for kind, gap in each.items())
    figures = {f"over {start}": {kind: gap.to_json() for kind, gap in each.items()} for start, each in gaps.items()}
    verdict = more(gaps["frozen"]["gallery"], 1.0)
    return _outcome(verdict, note, results, means=means, differences=figures, labels=labels)


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
    results = _run(context, wanted, SEEDS)
    gaps = {way: _gap(results, pair[:1], pair[1:]) for way, pair in ways.items()}
    verdicts = {way: more(gap, 2.0) for way, gap in gaps.items()}
    same: Verdict = "reproduced" if verdicts["cached"] == verdicts["whole"] else "not testable at this scale"
    verdict: Verdict = "contradicted" if set(verdicts.values()) == {"reproduced", "contradicted"} else same
    note = f"{where[0]} to {where[1]}, with − without retrieval: "
    note += ", ".join(f"{way} {gap} ({verdicts[way]})" for way, gap in gaps.items())
    return _outcome(verdict, note, results, differences={k: v.to_json() for k, v in gaps.items()})


def _claim(key: str, statement: str, figure: str, small: str, run: Any, data: str = "domainnet126") -> Claim:
    at_scale = f"`python -m benchmarks.papers t3ar --scale paper --only {key}`, with the data set as DATA/{data}"
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
