"""The rules by which ooDML's claims are judged: pure functions of FIDs and of the runs' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.oodml_runs import MEASURES
from lookalike.core.files import read_json
from lookalike.shift import ags
from lookalike.shift.trials import FROZEN

RISES, GAIN_SHARE, FALLS = 0.9, 0.8, -0.8
SAME = 1e-9  # of the greatest FID: swaps may come back to the same sides, and rounding must not choose among them
FEWEST = 3  # splits that make a trend
CONTROLLED = "recall@1"  # the only measure stored for random removals


@cache
def paper() -> dict[str, Any]:
    """The paper's Tables 1 and 3 to 6, by our names of sets, methods and measures."""
    result: dict[str, Any] = read_json(Path(__file__).with_name("oodml_paper.json"), "paper's tables")
    return result


def trained(rows: ags.Rows) -> list[Mapping[str, Any]]:
    return [row for row in rows if row["method"] != FROZEN]


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {key: round(float(value), 4) for key, value in figures.items()}


def judge_sequence(fids: Sequence[float]) -> dict[str, Any]:
    """Claim 1: no non-rise before 80 % of the maximal gain, ρ ≥ 0.9 up to the maximum; and what follows it.

    Values that differ by rounding alone are one value: the first of them is the maximum, and going from one to the
    other is no rise.
    """
    values = np.asarray(fids, np.float64)
    same = SAME * values.max()
    top = int(np.argmax(values >= values.max() - same))
    rises = np.diff(values) > same
    early = values[:-1] - values[0] < GAIN_SHARE * (values[top] - values[0])
    early[top:] = False
    rho = round(ags.spearman(np.arange(top + 1), values[: top + 1]), 9)
    return {
        "fid": [round(float(v), 2) for v in values],
        "steps": len(values) - 1,
        "maximum_at": top,
        "rho": rho,
        "non_rises_before_80_percent": int((~rises & early).sum()),
        "non_rises_before_maximum": int((~rises[:top]).sum()),
        "plateau": len(values) - 1 - top,
        "plateau_non_rises": int((~rises[top:]).sum()),
        "plateau_least_of_maximum": round(float(values[top:].min() / values[top]), 4),
        "holds": bool(top > 1 and rho >= RISES and not (~rises & early).any()),
    }


def removals(rows: ags.Rows) -> set[int]:
    """The splits with classes removed: those that random removals are stored for."""
    return {int(split) for row in rows for split in row.get("controls", {})}


def judge_fall(rows: ags.Rows, method: str, measure: str) -> dict[str, Any]:
    """Claim 2 for one curve, with the control (`holds`) and raw over all splits (`raw_holds`).

    With the control: ρ ≤ −0.8 and last below first over the splits without removal, and recall after each removal
    below the mean of random removals of the same size. mAP is not stored for random removals, so that its removal
    splits judge nothing. Fewer than three splits without removal show no trend, and the curve does not hold.
    """
    gone = removals(rows)
    selected = [row for row in rows if row["split"] not in gone]
    count = len(ags.fids_of(selected))
    swaps = ags.trend(selected, method, measure) if count >= FEWEST else {}
    raw = ags.trend(rows, method, measure)
    holds = bool(swaps) and _falls(**swaps)
    out: dict[str, Any] = {"method": method, "measure": measure, "swap_splits": count, **rounded(swaps)}
    if measure == CONTROLLED:
        outcomes = ags.compare_removals([row for row in rows if row["method"] == method])
        below = sum(row["removal"] < row["random"] for row in outcomes)
        holds = holds and below == len(gone)
        out["below_random"] = f"{below} of {len(gone)}"
    out |= {"holds": holds, **{f"raw_{key}": value for key, value in rounded(raw).items()}, "raw_holds": _falls(**raw)}
    return out


def _falls(rho: float, last_less_first: float) -> bool:
    return round(rho, 9) <= FALLS and last_less_first < 0  # a ρ of exactly −0.8 may come out as −0.7999999999999999


def judge_gain(name: str, method: str, means: Sequence[float], frozen: Sequence[float]) -> dict[str, Any]:
    """What training gains over the frozen model along splits of growing FID; it falls if ρ ≤ −0.8 and last < first."""
    gains = np.asarray(means) - np.asarray(frozen)
    rho = ags.spearman(np.arange(len(gains)), gains)
    change = float(gains[-1] - gains[0])
    return {
        "set": name,
        "method": method,
        "gain": [round(100 * float(gain), 2) for gain in gains],
        "rho": round(rho, 4),
        "learned": bool(gains[0] > 0),
        "holds": _falls(rho, change),
    }


def gains_of(name: str, rows: ags.Rows) -> list[dict[str, Any]]:
    """Gain over the frozen model of every method on a data set (:func:`judge_gain`)."""
    frozen = [float(v.mean()) for v in ags.values_of(rows, FROZEN, "recall@1")]
    means = {m: [float(v.mean()) for v in ags.values_of(rows, m, "recall@1")] for m in ags.methods_of(trained(rows))}
    return [judge_gain(name, method, values, frozen) for method, values in means.items()]


def learned_over_frozen(figures: Mapping[str, Any]) -> list[str]:
    """Gate: on the easiest split of every set most methods are above the frozen model, as all are in the paper."""
    gains = figures.get("gains")
    if not gains:
        return ["the gain over the frozen model was not stored with the verdict: run it again"]
    out = []
    for name in dict.fromkeys(row["set"] for row in gains):
        rows = [row for row in gains if row["set"] == name]
        below = [row["method"] for row in rows if not row["learned"]]
        if 2 * len(below) > len(rows):
            out.append(f"{name}: {len(below)} of {len(rows)} methods end below the frozen model on the easiest split")
    return out


def paper_falls() -> list[dict[str, Any]]:
    """The paper's own curves by the raw rule, over all splits and over those without removal, and how many fall at
    every split. Curves with a number that is not legible are left out."""
    tables = paper()
    out = []
    for measure in MEASURES:
        for name, methods in tables[measure].items():
            fids, swaps = tables["fid"][name], tables["swaps"][name]
            whole = [values for values in methods.values() if None not in values]
            out.append(
                {
                    "set": name,
                    "measure": measure,
                    "legible": len(whole),
                    "fall": sum(_row_falls(fids, values) for values in whole),
                    "fall_without_removal": sum(_row_falls(fids[:swaps], values[:swaps]) for values in whole),
                    "fall_at_every_split": sum(bool((np.diff(values) < 0).all()) for values in whole),
                }
            )
    return out


def _row_falls(fids: Sequence[float], values: Sequence[float]) -> bool:
    return _falls(ags.spearman(fids, values), values[-1] - values[0])


def fall_note(judged: ags.Rows, cases: ags.Rows, theirs: ags.Rows) -> str:
    """Claim 2 in a sentence: by the rule, raw, and the paper's own curves."""

    def count(key: str, measure: str = "") -> str:
        chosen = [row for row in judged if measure in ("", row["measure"])]
        return f"{sum(row[key] for row in chosen)} of {len(chosen)}"

    below = sum(row["removal"] < row["random"] for row in cases)
    legible, fall, every = (sum(r[key] for r in theirs) for key in ("legible", "fall", "fall_at_every_split"))
    few = sorted({row["set"] for row in judged if row["swap_splits"] < FEWEST})
    return "; ".join(
        [
            f"{count('holds')} curves fall by the rule: recall@1 {count('holds', 'recall@1')} (removals against random "
            f"ones), mAP {count('holds', 'map@1000')} (splits without removal alone, as it has no control)",
            *([f"no trend for want of splits without removal: {', '.join(few)}"] if few else []),
            f"raw over all splits {count('raw_holds')}",
            *([f"recall after removal is below random removal in {below} of {len(cases)} cases"] if cases else []),
            f"the paper's own: {fall} of {legible} legible curves fall by the raw rule, {every} at every split",
        ]
    )


def sure_swaps(rows: ags.Rows) -> list[str]:
    """Pairs whose difference has opposite signs on two splits, both intervals (t over seeds) off zero."""
    names = ags.methods_of(rows)
    values = {name: ags.values_of(rows, name, "recall@1") for name in names}
    out = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            bands = [ags.t_interval(x - y) for x, y in zip(values[a], values[b], strict=True)]
            if any(v.low > 0 for v in bands) and any(v.high < 0 for v in bands):
                out.append(f"{a}, {b}")
    return out


def everywhere(by_set: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """The structural measures whose ρ (set → measure → low, high) has one sign and an interval off zero on each set."""
    shared = set.intersection(*(set(measures) for measures in by_set.values()))
    out = []
    for measure in sorted(shared):
        bounds = [measures[measure] for measures in by_set.values()]
        if all(b["low"] > 0 for b in bounds) or all(b["high"] < 0 for b in bounds):
            out.append(measure)
    return out


def judge_shots(summary: ags.Rows) -> dict[str, list[bool]]:
    """Claim 7 by its parts: few-shot helps (interval above zero), more on the hardest split, 5 shots over 2."""
    by = {(row["method"], row["split"], row["shots"]): row["recall@1"] for row in summary}
    splits, methods = list(ags.fids_of(summary)), ags.methods_of(summary)
    gain = {key: result["gain"]["value"] for key, result in by.items()}
    return {
        "helps": [row["recall@1"]["gain"]["low"] > 0 for row in summary],
        "more_on_hard": [gain[m, splits[-1], k] > gain[m, splits[0], k] for m in methods for k in (2, 5)],
        "five_over_two": [by[m, split, 5]["few"] > by[m, split, 2]["few"] for m in methods for split in splits],
    }


def normalized(values: Sequence[float]) -> list[float]:
    """From 0 at the least to 1 at the greatest."""
    low, high = min(values), max(values)
    return [(v - low) / (high - low) for v in values]


def flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """One row of few-shot results as a row of a table."""
    out = {key: row[key] for key in ("split", "method", "shots", "episodes")}
    for measure in MEASURES:
        result = row[measure]
        out |= {f"{measure} zero": round(result["zero"], 4), f"{measure} few": round(result["few"], 4)}
        out |= {f"{measure} gain {key}": round(result["gain"][key], 4) for key in ("value", "low", "high")}
    return out
