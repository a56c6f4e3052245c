"""Claims about CARP's collapse, judged by the guard's exp(I): claims 1 and 10."""

from __future__ import annotations

import statistics

from benchmarks.papers import ClaimContext, ClaimOutcome, Verdict
from benchmarks.papers.carp_runs import BLOCK, DEFAULT, PROTOTYPES, SEEDS, WITHOUT, Cell, outcome, run_cells, untrained
from benchmarks.papers.cells import Found


def collapsed(found: Found, cell: Cell) -> int:
    """Runs whose prototypes say next to nothing about an image: exp(I) below the guard's floor."""
    assert cell.block is not None
    floor = max(2.0, 0.05 * min(cell.block, cell.batch))
    return sum(value < floor for value in found.values(cell, "clusters"))


def one_block(context: ClaimContext) -> ClaimOutcome:
    """N_B = K, K/N = 32, in both readings of the pairs, with and without momentum."""
    arms = {
        (teacher, pairs): Cell(
            block=PROTOTYPES, teacher=teacher, more={} if pairs == "mean" else {"pair_reduction": pairs}
        )
        for pairs in ("mean", "sum")
        for teacher in ("ema", *WITHOUT)
    }
    found = run_cells(context, [*arms.values(), DEFAULT], SEEDS)
    counts = {arm: collapsed(found, cell) for arm, cell in arms.items()}
    total = len(SEEDS)
    momentum = all(counts["ema", pairs] == total for pairs in ("mean", "sum"))
    without = all(counts[teacher, pairs] == total for pairs in ("mean", "sum") for teacher in WITHOUT)
    verdict: Verdict = "reproduced" if momentum and without else "not reproduced"
    if not any(counts.values()):
        verdict = "contradicted"
    each = "; ".join(
        f"{teacher}, {pairs} of pairs: {count} of {total} collapsed, exp(I) "
        f"{statistics.fmean(found.values(arms[teacher, pairs], 'clusters')):.1f}, k-NN "
        f"{statistics.fmean(found.values(arms[teacher, pairs], 'knn')):.2f}"
        for (teacher, pairs), count in counts.items()
    )
    base = statistics.fmean(found.values(DEFAULT, "knn")), statistics.fmean(found.values(DEFAULT, "clusters"))
    note = f"{each}; blocks of {BLOCK} with momentum: exp(I) {base[1]:.1f}, k-NN {base[0]:.2f}; "
    figures = {f"{teacher}, {pairs}": count for (teacher, pairs), count in counts.items()}
    cells = [*arms.values(), DEFAULT]
    return outcome(verdict, note + untrained(found, DEFAULT), found, cells, collapsed=figures)


def weight_of_balance(context: ClaimContext) -> ClaimOutcome:
    """By exp(I): without partitions λ_e = 1 should collapse and a larger one not; in blocks 1 should be enough."""
    weights = (1.0, 2.0, 5.0)
    whole = {w: Cell(block=PROTOTYPES, teacher="stopgrad", more={"weight": w} if w != 1 else {}) for w in weights}
    parted = {w: Cell(teacher="stopgrad", more={"weight": w} if w != 1 else {}) for w in weights}
    cells = [*whole.values(), *parted.values()]
    found = run_cells(context, cells, SEEDS)
    one, many = ([collapsed(found, side[w]) for w in weights] for side in (whole, parted))
    needed = one[0] == len(SEEDS) and min(one[1:]) == 0
    enough = many[0] == 0
    verdict: Verdict = "reproduced" if needed and enough else "contradicted" if one[0] == 0 else "not reproduced"
    each = "; ".join(
        f"λ {w:g}: one block {a} of {len(SEEDS)} collapsed (exp(I) {_mean(found, whole[w])}), blocks of {BLOCK} {b} "
        f"(exp(I) {_mean(found, parted[w])})"
        for w, a, b in zip(weights, one, many, strict=True)
    )
    return outcome(verdict, f"{each}; {untrained(found, parted[1.0])}", found, cells)


def _mean(found: Found, cell: Cell) -> str:
    return f"{statistics.fmean(found.values(cell, 'clusters')):.1f}"
