"""AGS (aggregated generalization score) and the other statistics of runs along splits of growing difficulty.

Functions that take ``rows`` expect one dictionary per training run, in any order, with the keys ``method``, ``split``
(its id), ``fid``, ``seed`` and the measures (``recall@1``, ``map@1000``, …).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.bootstrap import Interval

Rows = Sequence[Mapping[str, Any]]
DRAWS = 2000


def ags(fids: Sequence[float], values: Sequence[float]) -> float:
    """Area under a measure over the shift, with the FIDs scaled to [0, 1].

    The first split lies at 0, the last at 1, and the area is that of the trapezoids. The paper's supplement does not
    state the formula; this one reproduces its Table 3. AGS depends on the range of the FIDs, so compare it within one
    set of splits only.

    Args:
        fids: FID of each split, strictly increasing.
        values: The measure on each split.

    Returns:
        The area, a weighted mean of the values.

    Raises:
        LookalikeError: If the lengths differ, there are fewer than 2 splits, or the FIDs do not increase.

    References:
        Milbich et al., "Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning",
        Table 3.

    Example:
        >>> ags([10.0, 20.0, 40.0], [0.9, 0.6, 0.3])
        0.55
    """
    x, y = np.asarray(fids, np.float64), np.asarray(values, np.float64)
    if len(x) != len(y) or len(x) < 2:
        raise LookalikeError(f"AGS needs one value per FID and at least 2 of them, but got {len(y)} and {len(x)}.")
    if not (np.diff(x) > 0).all():
        raise LookalikeError("AGS needs splits of strictly increasing FID.")
    return float(np.trapezoid(y, (x - x[0]) / (x[-1] - x[0])))


def methods_of(rows: Rows) -> list[str]:
    """Names of the methods, in order of first appearance."""
    return list(dict.fromkeys(row["method"] for row in rows))


def fids_of(rows: Rows) -> dict[int, float]:
    """FID by split id, easiest split first."""
    return dict(sorted({row["split"]: row["fid"] for row in rows}.items(), key=lambda item: item[1]))


def values_of(rows: Rows, method: str, measure: str) -> list[np.ndarray]:
    """Values of a measure for one method: one array per split (easiest first), one value per seed."""
    own = sorted((row for row in rows if row["method"] == method), key=lambda row: row["seed"])
    return [np.array([row[measure] for row in own if row["split"] == split], np.float64) for split in fids_of(rows)]


def t_interval(values: np.ndarray) -> Interval:
    """Mean over seeds with Student's 95 % interval; a single seed gives an interval of zero width."""
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def score(rows: Rows, method: str, measure: str, *, seed: int = 0) -> dict[str, Any]:
    """AGS of one method with two intervals.

    Args:
        rows: The runs.
        method: Name of the method.
        measure: Key of the measure, such as ``"recall@1"``.
        seed: Seed of the bootstrap.

    Returns:
        ``value`` (AGS of the mean curve), ``low`` and ``high`` (bootstrap over seeds within each split), ``t_low``
        and ``t_high`` (Student's interval over seeds) and ``by_seed``.
    """
    fids = list(fids_of(rows).values())
    values = values_of(rows, method, measure)
    rng = numpy_rng(seed, "ags", method, measure)
    drawn = np.stack([v[rng.integers(len(v), size=(DRAWS, len(v)))].mean(axis=1) for v in values], axis=1)
    value = ags(fids, [float(v.mean()) for v in values])
    areas = np.trapezoid(drawn, fids, axis=1) / (fids[-1] - fids[0])
    low, high = np.quantile(areas, [0.025, 0.975])
    by_seed = np.array([ags(fids, [v[k] for v in values]) for k in range(min(map(len, values)))])
    t = t_interval(by_seed)
    bounds = {"low": float(min(low, value)), "high": float(max(high, value)), "t_low": t.low, "t_high": t.high}
    return {"value": value, **bounds, "by_seed": by_seed.tolist()}


def scores(rows: Rows, measure: str) -> dict[str, dict[str, Any]]:
    """AGS of every method (see :func:`score`), best first."""
    by_method = {method: score(rows, method, measure) for method in methods_of(rows)}
    return dict(sorted(by_method.items(), key=lambda item: -item[1]["value"]))


def ranks(rows: Rows, measure: str) -> dict[str, Any]:
    """Rank of every method on every split (1 is best), and how the order changes along the splits."""
    from scipy import stats

    names = methods_of(rows)
    means = np.array([[v.mean() for v in values_of(rows, name, measure)] for name in names])
    places = (-means).argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") + 1
    several = len(names) > 1
    tau = [float(stats.kendalltau(means[:, 0], column).statistic) if several else 1.0 for column in means.T]
    tau = [value if value == value else 1.0 for value in tau]  # all methods equal: the order does not change
    above = means[:, None] > means[None]
    swapped = [int((above[..., 0] & above[..., k].T).sum()) for k in range(means.shape[1])]
    return {
        "splits": list(fids_of(rows)),
        "places": {name: places[i].tolist() for i, name in enumerate(names)},
        "tau_with_first": [round(value, 4) for value in tau],
        "pairs_swapped": swapped,
    }


def gaps(rows: Rows, measure: str) -> list[float]:
    """Difference between the best and the worst method on every split."""
    means = np.array([[v.mean() for v in values_of(rows, name, measure)] for name in methods_of(rows)])
    return np.asarray(means.max(axis=0) - means.min(axis=0)).tolist()


def trend(rows: Rows, method: str, measure: str) -> dict[str, float]:
    """Spearman's ρ between FID and the mean over seeds, and the last mean minus the first."""
    means = [float(v.mean()) for v in values_of(rows, method, measure)]
    return {"rho": spearman(list(fids_of(rows).values()), means), "last_less_first": means[-1] - means[0]}


def compare_removals(rows: Rows) -> list[dict[str, Any]]:
    """Recall@1 after each targeted removal beside that of random removals of the same size.

    Fewer classes alone raise recall, so a removal must be compared with random ones.
    """
    out = []
    for method in methods_of(rows):
        own = [row for row in rows if row["method"] == method]
        draws: dict[int, list[float]] = defaultdict(list)
        for split, values in (item for row in own for item in row.get("controls", {}).items()):
            draws[int(split)] += values
        for split, values in sorted(draws.items()):
            if after := [row["recall@1"] for row in own if row["split"] == split]:
                means = {"removal": float(np.mean(after)), "random": float(np.mean(values))}
                out.append({"split": split, "method": method, **means})
    return out


def transfer(rows: Rows) -> dict[str, dict[str, dict[str, float]]]:
    """Recall@1 on other data sets by method, with Student's interval over seeds."""
    recalls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        for name, values in row.get("transfer", {}).items():
            recalls[name][row["method"]].append(values["recall@1"])
    intervals = {name: {m: t_interval(np.array(values)) for m, values in of.items()} for name, of in recalls.items()}
    return {name: {m: interval.to_json() for m, interval in of.items()} for name, of in intervals.items()}


def correlations(rows: Rows, measure: str, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Spearman's ρ between each structural measure of the embeddings and performance, over all runs."""
    rows = [row for row in rows if row.get("structure")]
    if len(rows) < 4:
        return {}
    names = [name for name in rows[0]["structure"] if all(name in row["structure"] for row in rows)]
    values = np.array([[row[measure], *(row["structure"][name] for name in names)] for row in rows], np.float64)
    groups = np.array([row["split"] for row in rows])
    splits = np.unique(groups)
    drawn = numpy_rng(seed, "correlations").choice(splits, size=(500, len(splits)))
    members = {split: np.flatnonzero(groups == split) for split in splits}
    samples = [rank_correlations(values[np.concatenate([members[split] for split in draw])]) for draw in drawn]
    low, high = np.quantile(samples, [0.025, 0.975], axis=0)
    columns = zip(names, rank_correlations(values), low, high, strict=True)
    return {name: {"rho": float(rho), "low": float(a), "high": float(b)} for name, rho, a, b in columns}


def spearman(a: Any, b: Any) -> float:
    """Spearman's rank correlation; 0 where one side is constant."""
    return float(rank_correlations(np.column_stack([a, b]))[0])


def rank_correlations(values: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of the first column with every other one; 0 where one side is constant."""
    from scipy import stats

    ranks = stats.rankdata(values, axis=0)
    ranks -= ranks.mean(axis=0)
    norms = np.linalg.norm(ranks, axis=0)
    products = norms[0] * norms[1:]
    return np.divide(ranks[:, 0] @ ranks[:, 1:], products, out=np.zeros(len(products)), where=products > 0)
