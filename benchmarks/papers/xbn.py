"""Claims of Ajanthan et al., "Adaptive Cross Batch Normalization for Metric Learning".

Everything is paired by seed: the same order of images, the same start. At small scale the images are 3,000 generated
products of 5 images each (`products.py`) at 64 px, half of the classes for training, upper stages on cached lower ones.
The memory holds all training images, is used in the second half of the steps and filled at their start: the paper's
warm-up, without which XBM collapses here. Cars has fewer classes, more images each, and a memory of at most 63 steps.

Effects are compared relative to what is learned: an effect of the paper divided by what its run without memory
learned over step 0, times what ours learned.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome, Missing, Verdict, claim_maker
from benchmarks.papers.gates import Gate, all_of, always, flattened, learned
from benchmarks.papers.grid import GridResults
from benchmarks.papers.paired import Difference, difference, more, none_of_note, pool, spread_ratio, worst
from benchmarks.papers.xbn_runs import MOCO_EPOCHS, Cell, MoCoCell, row, run_cells, run_moco

PAPER = "xbn"
SEEDS = tuple(range(10))
FEW_SEEDS = SEEDS[:5]
BATCHES = (32, 64)
ARMS = ("none", "xbm", "xbm*", "xbn", "axbn")
COLLAPSED = 0.95  # mean cosine
# Table 2 on SOP: what the paper's run without memory learned over its start (table 3), and its effects relative to it.
LEARNED = 75.94 - 48.96
EFFECTS = {
    "xbn − none": (80.62 - 75.94) / LEARNED,
    "xbn − xbm": (80.62 - 76.80) / LEARNED,
    "xbm* − xbm": (79.53 - 76.80) / LEARNED,
    "xbn − xbm*": (80.62 - 79.53) / LEARNED,
    "axbn − xbn": (80.73 - 80.62) / LEARNED,
    "none − xbm": (88.76 - 86.17) / LEARNED,
    "ln − none": (79.51 - 76.80) / LEARNED,
    "gap 64 − gap 256": ((80.62 - 76.80) - (79.96 - 78.38)) / LEARNED,
    "xbn 64 − none 512": (80.62 - 79.63) / LEARNED,
}


def _outcome(verdict: Verdict, note: str, results: GridResults, cells: list[Cell], **figures: Any) -> ClaimOutcome:
    figures["runs"] = [row(results, cell) for cell in cells]
    return ClaimOutcome(results.judged(verdict), figures, results.so_far + note)


def _main() -> list[Cell]:
    """The runs that most claims share."""
    return [Cell(rule, batch) for batch in BATCHES for rule in ARMS]


def _expected(effect: str, results: GridResults, *cells: Cell) -> float:
    """The paper's effect at the size of what our runs without memory learned, the least of them."""
    return EFFECTS[effect] * min(results.mean(cell) - results.mean(cell, "step 0") for cell in cells)


def _gaps(results: GridResults, before: str, after: str) -> dict[str, Difference]:
    """By batch size, and pooled."""
    gaps = {f"batch {batch}": results.gap(Cell(before, batch), Cell(after, batch)) for batch in BATCHES}
    return {**gaps, "pooled": pool(list(gaps.values()))}


def _compare(context: ClaimContext, before: str, after: str) -> tuple[Verdict, str, GridResults, dict[str, Any]]:
    results = run_cells(context, _main(), SEEDS)
    gaps = _gaps(results, before, after)
    expected = _expected(f"{after} − {before}", results, *(Cell("none", batch) for batch in BATCHES))
    text = ", ".join(f"{where} {gap}" for where, gap in gaps.items())
    note = f"{text}; the paper's effect relative to what is learned would be {expected:+.2f}"
    figures = {"differences": {where: gap.to_json() for where, gap in gaps.items()}, "expected": round(expected, 3)}
    return more(gaps["pooled"], expected), note, results, figures


def xbn_over_none(context: ClaimContext) -> ClaimOutcome:
    verdict, note, results, figures = _compare(context, "none", "xbn")
    levels = ", ".join(
        f"{results.mean(Cell('none', b)):.2f} → {results.mean(Cell('xbn', b)):.2f} at batch {b}" for b in BATCHES
    )
    return _outcome(verdict, f"recall@1 {levels}; XBN − no memory: {note}", results, _main(), **figures)


def xbn_over_xbm(context: ClaimContext) -> ClaimOutcome:
    verdict, note, results, figures = _compare(context, "xbm", "xbn")
    return _outcome(verdict, f"XBN − XBM: {note}", results, _main(), **figures)


def xbm_below_none(context: ClaimContext) -> ClaimOutcome:
    """Somewhere: with the memory from the first step on."""
    cells = [Cell("none"), *(Cell(rule, wait=False) for rule in ARMS if rule != "none")]
    results = run_cells(context, cells, FEW_SEEDS)
    gap = results.gap(Cell("xbm", wait=False), Cell("none"))
    expected = _expected("none − xbm", results, Cell("none"))
    collapsed = sum(value > COLLAPSED for value in results.values(Cell("xbm", wait=False), "cosine"))
    xbn = results.gap(Cell("xbm", wait=False), Cell("xbn", wait=False))
    note = (
        f"memory from the first step, batch 32: no memory − XBM {gap}; {collapsed} of {len(results.seeds)} XBM runs "
        f"collapsed to one point; XBN − XBM {xbn}"
    )
    figures = {"difference": gap.to_json(), "xbn − xbm": xbn.to_json()}
    return _outcome(more(gap, expected), note, results, cells, **figures)


def xbm_spread(context: ClaimContext) -> ClaimOutcome:
    results = run_cells(context, _main(), SEEDS)
    cells = [Cell(rule) for rule in ("xbm", "xbn")]
    if len(results.seeds) < 2:
        raise Missing
    ratio = spread_ratio(*(results.values(cell) for cell in cells))
    verdict: Verdict = "reproduced" if ratio["p"] < 0.05 else "not testable at this scale"
    if spread_ratio(*(results.values(cell) for cell in reversed(cells)))["p"] < 0.05:
        verdict = "contradicted"
    note = f"sd {ratio['wide']} against {ratio['narrow']}: only a ratio above {ratio['least_ratio_seen']} is evidence"
    return _outcome(verdict, note, results, cells, spread=ratio)


def order_of_three(context: ClaimContext) -> ClaimOutcome:
    results = run_cells(context, _main(), SEEDS)
    rules = ("xbm", "xbm*", "xbn")
    steps = {f"{b} − {a}": _gaps(results, a, b) for a, b in pairwise(rules)}
    nothing = [Cell("none", batch) for batch in BATCHES]
    verdict = worst(*(more(gaps["pooled"], _expected(name, results, *nothing)) for name, gaps in steps.items()))
    note = ", ".join(f"{name} {gaps['pooled']}" for name, gaps in steps.items())
    figures = {name: {where: gap.to_json() for where, gap in gaps.items()} for name, gaps in steps.items()}
    cells = [Cell(rule, batch) for batch in BATCHES for rule in rules]
    return _outcome(verdict, note, results, cells, differences=figures)


def small_batch_against_large(context: ClaimContext) -> ClaimOutcome:
    """Equal epochs, so the large batch takes an eighth of the steps."""
    large, small = Cell("none", 256, steps=113), Cell("xbn")
    results = run_cells(context, [large, small], FEW_SEEDS)
    gap = results.gap(large, small)
    note = f"XBN at {small.batch} − no memory at {large.batch} {gap}"
    expected = _expected("xbn 64 − none 512", results, large)
    return _outcome(more(gap, expected), note, results, [large, small], difference=gap.to_json())


def axbn_over_xbn(context: ClaimContext) -> ClaimOutcome:
    verdict, note, results, figures = _compare(context, "xbn", "axbn")
    gains = {str(b): round(results.mean(Cell("axbn", b), "gain"), 4) for b in BATCHES}
    text = ", ".join(f"{gain} at batch {b}" for b, gain in gains.items())
    note = f"AXBN (r estimated from the run) − XBN: {note}; gain of the filter {text}"
    return _outcome(verdict, note, results, _main(), gains=gains, **figures)


def gap_shrinks(context: ClaimContext) -> ClaimOutcome:
    cells = {batch: [Cell(rule, batch, steps=steps) for rule in ("none", "xbm", "xbn")]
             for batch, steps in ((64, None), (256, 225))}  # fmt: skip
    results = run_cells(context, [cell for three in cells.values() for cell in three], FEW_SEEDS)
    gaps = {batch: results.gap(xbm, xbn) for batch, (_, xbm, xbn) in cells.items()}
    fall = difference(gaps[256].by_seed, gaps[64].by_seed)
    note = ", ".join(f"at {b} {gap}" for b, gap in gaps.items())
    figures = {"gaps": {str(b): gap.to_json() for b, gap in gaps.items()}, "fall": fall.to_json()}
    expected = _expected("gap 64 − gap 256", results, *(three[0] for three in cells.values()))
    text = f"XBN − XBM {note}; from 64 to 256 it falls by {fall}"
    return _outcome(more(fall, expected), text, results, [c for three in cells.values() for c in three], **figures)


def moco_ahead_early(context: ClaimContext) -> ClaimOutcome:
    """k-NN accuracy on held-out images halfway and at the end."""
    plain, xbn = MoCoCell("none"), MoCoCell("xbn")
    results = run_moco(context, (plain, xbn), FEW_SEEDS)
    gaps = {name: results.gap(plain, xbn, name) for name in ("early", "last")}
    note = f"k-NN accuracy of MoCo with XBN − MoCo: {gaps['early']} halfway, {gaps['last']} after {MOCO_EPOCHS} epochs"
    rows = [
        {"rule": cell.drift, "seed": seed, "untrained": values["curve"][0], **values}
        for cell in (plain, xbn)
        for seed in results.seeds
        for values in (results.results[cell.name, seed],)
    ]
    figures = {name: gap.to_json() for name, gap in gaps.items()}
    return ClaimOutcome(more(gaps["early"], 4.0), {**figures, "runs": rows}, note)


def lower_drift(context: ClaimContext) -> ClaimOutcome:
    """The fall from XBM to XBN, of runs that did not collapse: a model at one point hardly moves."""
    results = run_cells(context, _main(), SEEDS)
    falls = {
        name: pool([results.gap(Cell("xbn", b), Cell("xbm", b), name) for b in BATCHES])
        for name in ("drift", "drift max", "stale")
    }
    text = ", ".join(f"{name} {_fine(fall)}" for name, fall in falls.items())
    cells = [Cell(rule, batch) for batch in BATCHES for rule in ("xbm", "xbn")]
    figures = {name: fall.to_json() for name, fall in falls.items()}
    return _outcome(more(falls["drift"], 0.0), f"XBM − XBN: {text}", results, cells, differences=figures)


def _fine(gap: Difference) -> str:
    if len(gap.by_seed) == 1:
        return f"{gap.mean:+.4f} (one seed)"
    return f"{gap.mean:+.4f} ({gap.low:+.4f} to {gap.high:+.4f})"


def batch_loss_useless(context: ClaimContext) -> ClaimOutcome:
    cells = [Cell("xbn"), Cell("xbn*")]
    results = run_cells(context, cells, FEW_SEEDS)
    gap = results.gap(cells[0], cells[1])
    return _outcome(none_of_note(gap, 1.0), f"XBN* − XBN {gap}", results, cells, difference=gap.to_json())


def norm_heads(context: ClaimContext) -> ClaimOutcome:
    cells = {norm: Cell("xbm", norm=norm) for norm in ("none", "ln", "bn", "mbn")}
    results = run_cells(context, cells.values(), FEW_SEEDS)
    layer = results.gap(cells["none"], cells["ln"])
    rises = {n: difference(results.values(cells[n], "step 0"), results.values(cells[n])) for n in ("bn", "mbn")}
    stuck: list[Verdict] = ["reproduced" if rise.high <= 0 else none_of_note(rise, 1.0) for rise in rises.values()]
    note = f"LN − none {layer} for XBM; over step 0: " + ", ".join(f"{n} {rise}" for n, rise in rises.items())
    figures = {"layer": layer.to_json(), "rises": {n: rise.to_json() for n, rise in rises.items()}}
    verdict = worst(more(layer, _expected("ln − none", results, cells["none"])), *stuck)
    return _outcome(verdict, note, results, [*cells.values()], **figures)


def ema_beside_xbn(context: ClaimContext) -> ClaimOutcome:
    base, near, slow = Cell("xbn"), Cell("ema"), Cell("ema0.9")
    results = run_cells(context, [base, near, slow], FEW_SEEDS)
    gaps = {"0.1": results.gap(base, near), "0.9": results.gap(base, slow)}
    gap = gaps["0.1"]
    across = gap.low <= 0 <= gap.high
    narrow = across and max(-gap.low, gap.high) < 1.0
    verdict: Verdict = "no difference found" if narrow else "not testable at this scale" if across else "contradicted"
    note = "EMA − XBN " + ", ".join(f"β {beta}: {gap}" for beta, gap in gaps.items())
    figures = {beta: gap.to_json() for beta, gap in gaps.items()}
    return _outcome(verdict, note, results, [base, near, slow], differences=figures)


def cars_memory(context: ClaimContext) -> ClaimOutcome:
    """Our own question: does a memory help where it is never old?"""
    cells = {rule: Cell(rule, 64, "cars") for rule in ARMS}
    results = run_cells(context, cells.values(), FEW_SEEDS)
    gaps = {rule: results.gap(cells["none"], cells[rule]) for rule in ARMS[1:]}
    note = "less no memory: " + ", ".join(f"{rule.upper()} {gap}" for rule, gap in gaps.items())
    figures = {rule: gap.to_json() for rule, gap in gaps.items()}
    expected = _expected("xbn − none", results, cells["none"])
    return _outcome(more(gaps["xbn"], expected), note, results, [*cells.values()], differences=figures)


def own_default(context: ClaimContext) -> ClaimOutcome:
    """The product's default, XBN that waits until the measured drift is small, against no memory."""
    places = {"products": 32, "cars": 64}
    pairs = {data: (Cell("none", b, data), Cell("xbn", b, data, "auto")) for data, b in places.items()}
    results = run_cells(context, [cell for pair in pairs.values() for cell in pair], FEW_SEEDS)
    gaps = {data: results.gap(*pair) for data, pair in pairs.items()}
    verdict = worst(*(more(gap, _expected("xbn − none", results, pairs[data][0])) for data, gap in gaps.items()))
    note = "XBN by default − no memory: " + ", ".join(f"{data} {gap}" for data, gap in gaps.items())
    figures = {data: gap.to_json() for data, gap in gaps.items()}
    return _outcome(verdict, note, results, [c for pair in pairs.values() for c in pair], differences=figures)


def own_shrinkage(context: ClaimContext) -> ClaimOutcome:
    """Moments shrunk towards running ones: not below XBN on products, not below XBM on Cars."""
    pairs = {
        "products": (Cell("xbn"), Cell("shrink")),
        "cars": (Cell("xbm", 64, "cars", wait=False), Cell("shrink", 64, "cars", wait=False)),
    }
    results = run_cells(context, [cell for pair in pairs.values() for cell in pair], FEW_SEEDS)
    gaps = {data: results.gap(*pair) for data, pair in pairs.items()}
    verdict = worst(*(_not_worse(gap) for gap in gaps.values()))
    note = f"shrunk − XBN on products {gaps['products']}, shrunk − XBM on Cars {gaps['cars']}"
    figures = {data: gap.to_json() for data, gap in gaps.items()}
    return _outcome(verdict, note, results, [c for pair in pairs.values() for c in pair], differences=figures)


def _not_worse(gap: Difference, margin: float = 0.5) -> Verdict:
    """Of the claim that nothing is lost: half a point is what a user would not notice."""
    if gap.low > -margin:
        return "reproduced"
    return "contradicted" if gap.high < -margin else "not testable at this scale"


PRODUCTS = (
    "3,000 generated product classes of 5 images at 64 px, half of them for training; upper stages on cached lower "
    "ones, 900 steps, memory of all training images used and filled after 450"
)


def _memory_works(row: Any) -> bool:
    """Arms that are not meant to collapse."""
    return bool(row["rule"] != "xbm" or row["memory from"] != "the start")


LEARNS: Gate = all_of(learned("recall@1", "step 0", "frozen", rows=_memory_works), flattened(rows=_memory_works))


_claim = claim_maker(PAPER, "table-1", LEARNS)


CLAIMS = [
    _claim(
        "0-xbn-over-none",
        "Is XBN better than training without a memory?",
        "80.62 against 75.94 (SOP), 91.49 against 88.76 (In-Shop), 45.12 against 36.45 (DeepFashion2) (table 2)",
        f"{PRODUCTS}; batch 32 and 64, 10 seeds",
        xbn_over_none,
        question=True,
    ),
    _claim(
        "0-cars",
        "Is a memory better than none on Cars, where it is at most 63 steps old?",
        "–",
        "Cars at 96 px, 16×4 images, 450 steps, memory used and filled after 225, 5 seeds",
        cars_memory,
        question=True,
    ),
    _claim(
        "0-default",
        "Is `--method xbn` as it comes, waiting until the measured drift is small, better than no memory?",
        "–",
        "as the two questions above, batch 32 and 64, 5 seeds",
        own_default,
        question=True,
    ),
    _claim(
        "0-shrinkage",
        "Do moments shrunk towards running ones lose nothing against XBN on products and against XBM on Cars?",
        "–",
        "products as above at batch 32; Cars with the memory from the first step on; 5 seeds; within half a point",
        own_shrinkage,
        question=True,
    ),
    _claim(
        "1-xbn-over-xbm",
        "XBN is above XBM.",
        "+3.8 (SOP), +5.3 (In-Shop), +3.9 (DeepFashion2) (table 2)",
        f"{PRODUCTS}; batch 32 and 64, 10 seeds",
        xbn_over_xbm,
    ),
    _claim(
        "2-xbm-below-none",
        "XBM is below training without memory somewhere.",
        "In-Shop 86.17 < 88.76 (table 2); Swin, batch 16: 61.18 < 77.80 (table 5)",
        "as claim 1 at batch 32, but the memory is used from the first step on; 5 seeds",
        xbm_below_none,
        "table-5",
    ),
    _claim(
        "3-xbm-spread",
        "XBM's results spread more over the seeds than XBN's.",
        "sd 2.65 against 0.17 (SOP), 2.96 against 0.08 (DeepFashion2) (table 2)",
        "the runs of claim 1 at batch 32",
        xbm_spread,
    ),
    _claim(
        "4-xbm-xbmstar-xbn",
        "XBM < XBM* (batch loss added) < XBN.",
        "76.80 < 79.53 < 80.62 (SOP, table 2)",
        "the runs of claim 1",
        order_of_three,
        "table-2",
    ),
    _claim(
        "5-small-batch",
        "XBN at batch 64 is at least as good as no memory at batch 512.",
        "80.62 against 79.63 (SOP, table 2)",
        "XBN at 32 against no memory at 256, equal epochs (the large batch takes an eighth of the steps), 5 seeds",
        small_batch_against_large,
        "table-2",
    ),
    _claim(
        "6-axbn-over-xbn",
        "AXBN is at least as good as XBN.",
        "+0.11 ± 0.30 (SOP), +0.02 ± 0.20 (In-Shop) (table 2); Swin +0.15 (table 5)",
        "the runs of claim 1, with r estimated from the run: with the published constants the filter's gain is 0.9998",
        axbn_over_xbn,
    ),
    _claim(
        "7-gap-shrinks",
        "The gap between XBN and XBM shrinks at batch 256.",
        "3.8 at 64 (table 2), 1.6 at 256 (table 6)",
        "as claim 1 at batch 64 and 256, equal epochs, 5 seeds",
        gap_shrinks,
        "table-6",
    ),
    _claim(
        "8-moco-xbn-early",
        "MoCo with XBN is ahead of MoCo early in training.",
        "about +4 points of k-NN accuracy at epoch 15 of 200 (CIFAR-10 and CIFAR-100, appendix B)",
        "Tiny-ImageNet (100 classes, 60 images each) at 32 px, ResNet-18 from scratch, 10 epochs",
        moco_ahead_early,
        "figure-3",
        learned("last", "untrained", least=2.0),
    ),
    _claim(
        "9-lower-drift",
        "XBN lowers feature drift against XBM.",
        "figure 2, without numbers",
        "the runs of claim 1, measured every 50th step",
        lower_drift,
    ),
    _claim(
        "10-batch-loss",
        "Adding the batch loss to XBN does not help.",
        '"no improvement", without numbers',
        "as claim 1 at batch 32, 5 seeds",
        batch_loss_useless,
    ),
    _claim(
        "11-norm-heads",
        "Layer-norm behind the head helps XBM; batch-norm and momentum batch-norm do not train.",
        "XBM 76.80 → 79.51 with LN; BN and MBN stay at the pre-warm-up's 48.96 (table 3)",
        "as claim 1 at batch 32, 5 seeds",
        norm_heads,
        "table-3",
        gate=always,
    ),
    _claim(
        "12-ema",
        "A moving average (EMA) lies beside XBN.",
        "80.48 against 80.62 (SOP, table 4)",
        "as claim 1 at batch 32; β 0.1, 0.9; 5 seeds",
        ema_beside_xbn,
        "table-4",
    ),
]
