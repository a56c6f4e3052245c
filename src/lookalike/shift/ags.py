"""AGS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.bootstrap import Interval


def ags(fids: Sequence[float], values: Sequence[float]) -> float:
    """Trapezoid area of the values over FID, stretched so that the first split lies at 0 and the last at 1.

    The supplement does not spell it out; this is what gives the paper's own table (docs/decisions/0113). It depends
    on the range of FID: compare it within one file of splits only.
    """
    x, y = np.asarray(fids, np.float64), np.asarray(values, np.float64)
    if len(x) != len(y) or len(x) < 2:
        raise LookalikeError(f"AGS needs as many values as FIDs, at least 2: there are {len(y)} and {len(x)}.")
    if not (np.diff(x) > 0).all():
        raise LookalikeError("AGS needs splits of rising FID.")
    return float(np.trapezoid(y, (x - x[0]) / (x[-1] - x[0])))


Rows = Sequence[Mapping[str, Any]]
DRAWS = 2000


def methods_of(rows: Rows) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))


def fids_of(rows: Rows) -> dict[int, float]:
    """FID of each split, easiest first."""
    found = {row["split"]: row["fid"] for row in rows}
    return dict(sorted(found.items(), key=lambda item: item[1]))


def values_of(rows: Rows, method: str, measure: str) -> list[np.ndarray]:
    """A measure of one method: one array a split (easiest first), a number a seed."""
    out: list[np.ndarray] = []
    for split in fids_of(rows):
        chosen = [row for row in rows if row["method"] == method and row["split"] == split]
        chosen.sort(key=lambda row: row["seed"])
        out.append(np.array([row[measure] for row in chosen], np.float64))
    return out


def t_interval(values: np.ndarray, *, seed: int = 0) -> Interval:
    """The mean over seeds with the t interval; one seed alone has no width."""
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Interval(mean, mean - half, mean + half)


def score(rows: Rows, method: str, measure: str, *, seed: int = 0) -> dict[str, Any]:
    """AGS of a method: of the mean curve, its bootstrap over seeds within each split, and the t interval of seeds."""
    fids = list(fids_of(rows).values())
    values = values_of(rows, method, measure)
    rng = numpy_rng(seed, "ags", method, measure)
    drawn = np.stack([v[rng.integers(len(v), size=(DRAWS, len(v)))].mean(axis=1) for v in values], axis=1)
    draws = np.array([ags(fids, row) for row in drawn])
    value = ags(fids, [float(v.mean()) for v in values])
    low, high = np.quantile(draws, [0.025, 0.975])
    count = min(map(len, values))
    by_seed = np.array([ags(fids, [v[k] for v in values]) for k in range(count)])
    t = t_interval(by_seed)
    return {
        "value": value,
        "low": float(min(low, value)),
        "high": float(max(high, value)),
        "t_low": t.low,
        "t_high": t.high,
        "by_seed": by_seed.tolist(),
    }


def scores(rows: Rows, measure: str) -> dict[str, dict[str, Any]]:
    """AGS of every method, best first."""
    found = {method: score(rows, method, measure) for method in methods_of(rows)}
    return dict(sorted(found.items(), key=lambda item: -item[1]["value"]))


def ranks(rows: Rows, measure: str) -> dict[str, Any]:
    """Each method's place (1 is best) on every split, and how far the order is that of the easiest split."""
    from scipy import stats

    names = methods_of(rows)
    means = np.array([[v.mean() for v in values_of(rows, name, measure)] for name in names])
    places = (-means).argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") + 1
    several = len(names) > 1
    tau = [float(stats.kendalltau(means[:, 0], column).statistic) if several else 1.0 for column in means.T]
    tau = [value if value == value else 1.0 for value in tau]  # all alike: nothing changes places
    above = means[:, None] > means[None]  # who beats whom, on every split
    swapped = [int((above[..., 0] & above[..., k].T).sum()) for k in range(means.shape[1])]
    return {
        "splits": list(fids_of(rows)),
        "places": {name: places[i].tolist() for i, name in enumerate(names)},
        "tau_with_first": [round(value, 4) for value in tau],
        "pairs_swapped": swapped,
    }


def gaps(rows: Rows, measure: str) -> list[float]:
    """Best less worst method on every split."""
    means = np.array([[v.mean() for v in values_of(rows, name, measure)] for name in methods_of(rows)])
    return np.asarray(means.max(axis=0) - means.min(axis=0)).tolist()


def trend(rows: Rows, method: str, measure: str) -> dict[str, float]:
    """Spearman's ρ of FID and the mean over seeds, and last less first."""
    means = [float(v.mean()) for v in values_of(rows, method, measure)]
    return {"rho": spearman(list(fids_of(rows).values()), means), "last_less_first": means[-1] - means[0]}


def compare_removals(rows: Rows) -> list[dict[str, Any]]:
    """Recall@1 after each removal, and on as many random classes before it: fewer classes alone raise recall."""
    out = []
    for method in methods_of(rows):
        mine = [row for row in rows if row["method"] == method]
        draws: dict[int, list[float]] = {}
        for row in mine:
            for split, values in row.get("controls", {}).items():
                draws.setdefault(int(split), []).extend(values)
        for split, values in sorted(draws.items()):
            after = [row["recall@1"] for row in mine if row["split"] == split]
            if after:
                means = {"removal": float(np.mean(after)), "random": float(np.mean(values))}
                out.append({"split": split, "method": method, **means})
    return out


def correlations(rows: Rows, measure: str, *, seed: int = 0) -> dict[str, dict[str, float]]:
    """Spearman's ρ of each structural measure with performance over all runs; the interval draws whole splits."""
    rows = [row for row in rows if row.get("structure")]
    if len(rows) < 4:
        return {}
    groups = np.array([row["split"] for row in rows])
    target = np.array([row[measure] for row in rows])
    splits = np.unique(groups)
    rng = numpy_rng(seed, "correlations")
    drawn = rng.choice(splits, size=(500, len(splits)))
    members = {split: np.flatnonzero(groups == split) for split in splits}
    out = {}
    for name in (name for name in rows[0]["structure"] if all(name in row["structure"] for row in rows)):
        values = np.array([row["structure"][name] for row in rows], np.float64)
        chosen = (np.concatenate([members[split] for split in row]) for row in drawn)
        low, high = np.quantile([spearman(values[index], target[index]) for index in chosen], [0.025, 0.975])
        out[name] = {"rho": spearman(values, target), "low": float(low), "high": float(high)}
    return out


def spearman(a: Any, b: Any) -> float:
    """Correlation of the ranks; 0 where one side does not vary."""
    from scipy import stats

    if len(np.unique(a)) < 2 or len(np.unique(b)) < 2:
        return 0.0
    return float(stats.spearmanr(a, b).statistic)
