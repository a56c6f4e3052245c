"""The label-free gate, judged: how many harmful and how many helpful adaptations does it let pass?

A bed of adaptations on cached features: all twelve shifts of PACS, a model of each source, methods that usually help
and recipes made to harm. Thresholds are chosen on one half and judged on the other; the halves share no shift and no
recipe of harm. An adaptation helps (harms) when it gains (loses) more than a point on held-out pictures. What the
models make of the held-out pictures is kept, so that another rule is judged without adapting again.
"""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.benches import Bar, BenchContext
from lookalike.core import folders
from lookalike.core.files import hash_bytes, write_bytes
from lookalike.core.jobs import Jobs

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
SEEDS = tuple(range(1, 7)), tuple(range(7, 11))  # of the half that chooses, and of the one that judges
HELP = ("bn", "tent", "shot", "t3ar", "adacontrast")
HARM = (
    ("rate x 30", "shuffled labels", "swapped", "pool of noise"),
    ("entropy alone", "sorted batches", "merged", "pool is the target"),
)
MARGIN = 0.01
HARMFUL, HELPFUL, LEAST = 0.05, 0.70, 60
CHOSEN = 0.02  # of the harmful, on the half that chooses: shifts that were not seen may be harder
# From lax to strict.
GRID = {
    "agreement": (0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    "worst_class": (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "neighbours": (-0.02, -0.01, 0.0, 0.01, 0.02, 0.03),
}


def halves() -> list[dict[str, Any]]:
    """Two halves of the twelve shifts: of every pair of domains one direction lies in each."""
    pairs = list(itertools.permutations(range(len(DOMAINS)), 2))
    first = [(a, b) for a, b in pairs if (b - a) % 4 == 1 or ((b - a) % 4 == 2 and a < b)]
    rest = [pair for pair in pairs if pair not in first]
    return [
        {"shifts": [(DOMAINS[a], DOMAINS[b]) for a, b in part], "harm": harm}
        for part, harm in zip((first, rest), HARM, strict=True)
    ]


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.adapting.bed import SCALE, settings_of

    jobs = Jobs(folders.home() / "jobs" / "gate")
    data = str(context.folder("pacs").parent)
    context.folder("pool")  # said now if it is missing
    context.say("Features of the four domains and of the pool, and a model of each domain")
    scale = {"data": data, "scale": SCALE}
    first = {f"features-{name}": {**scale, "name": name} for name in (*DOMAINS, "pool")}
    every = sorted({*SEEDS[0], *SEEDS[1]})
    then = {f"source-{name}-{seed}": {**scale, "name": name, "seed": seed} for name in DOMAINS for seed in every}
    for given, work in ((first, prepared), (then, trained)):
        for key, told in jobs.run_many(given, work, processes=context.threads):
            context.say(f"{key}: {told}")
    rows: list[list[dict[str, Any]]] = []
    for half, seeds in zip(halves(), SEEDS, strict=True):
        given = {
            f"{a}-{b}-{recipe}-{seed}": {
                **scale,
                "source": a,
                "target": b,
                "recipe": recipe,
                "seed": seed,
                "settings": settings_of(recipe, seed).model_dump(mode="json"),
                "kept": "probabilities",
            }
            for a, b in half["shifts"]
            for recipe in (*HELP, *half["harm"])
            for seed in seeds
        }
        rows.append([measured(result) for result in _bed(context, jobs, given)])
    return judged(rows[0], rows[1])


def _bed(context: BenchContext, jobs: Jobs, given: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """All adaptations of one half; those that were finished before a stop are not done again."""
    left = set()
    for key, arguments in given.items():
        record = jobs.stored(key, arguments)
        if record is None or not _held(record["result"]["held"]).is_file():
            jobs.path(key, arguments).unlink(missing_ok=True)  # without its file it counts for nothing
            left.add(key)
    found, start, total = [], time.monotonic(), len(left)
    for key, result in jobs.run_many(given, trial, processes=context.threads):
        found.append(result)
        if key in left:
            left.discard(key)
            done = total - len(left)
            if done % 20 == 0:
                rest = (time.monotonic() - start) / done * len(left) / 60
                context.say(f"{done} of {total}: {key}; about {rest:.0f} min left in this half")
    return found


def judged(
    chosen_on: Sequence[dict[str, Any]], judged_on: Sequence[dict[str, Any]]
) -> tuple[dict[str, Any], list[Bar]]:
    """Choose thresholds on the first, count on the second; the default thresholds are counted beside them."""
    from lookalike.adapting.gate import Thresholds

    limits = choose_limits(chosen_on)
    figures: dict[str, Any] = {
        "chosen": limits.model_dump(),
        "chosen on": counted(chosen_on, limits),
        "chosen on, each shift by the others' thresholds": without_one(chosen_on),
        "judged on": counted(judged_on, limits),
        "judged on, methods alone": counted([r for r in judged_on if r["recipe"] in HELP], limits),
        "judged on, made to harm": counted([r for r in judged_on if r["recipe"] not in HELP], limits),
        "defaults": Thresholds().model_dump(),
        "defaults, judged on": counted(judged_on, Thresholds()),
        "trade-off": undominated([{**t, **_short(counted(judged_on, Thresholds(**t)))} for t in _grid()]),
        "by recipe": {
            recipe: counted([r for r in judged_on if r["recipe"] == recipe], limits)
            for recipe in sorted({r["recipe"] for r in judged_on})
        },
        "shifts": sorted({f"{r['source']} to {r['target']}" for r in judged_on}),
    }
    found = figures["judged on"]
    bars = [
        Bar("harmful promoted", found["harmful"]["promoted"], HARMFUL, "lower"),
        Bar("helpful promoted", found["helpful"]["promoted"], HELPFUL),
        Bar("harmful adaptations judged", found["harmful"]["count"], LEAST),
        Bar("helpful adaptations judged", found["helpful"]["count"], LEAST),
    ]
    return figures, bars


def _grid() -> list[dict[str, Any]]:
    return [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]


def _short(found: dict[str, Any]) -> dict[str, float]:
    return {kind: found[kind]["promoted"] for kind in ("harmful", "helpful")}


def undominated(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The best that can be had: no other thresholds let more helpful ones pass with as few harmful ones."""
    out: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: (row["harmful"], -row["helpful"])):
        if not out or row["helpful"] > out[-1]["helpful"]:
            out.append(row)
    return out


def choose_limits(rows: Sequence[dict[str, Any]]) -> Any:
    """Thresholds that let most helpful ones pass while at most 2 % of the harmful do; if none do, those with the
    fewest. Among equals the strictest."""
    from lookalike.adapting.gate import Thresholds

    grid = _grid()
    found = [_short(counted(rows, Thresholds(**values))) for values in grid]
    safe = [i for i, f in enumerate(found) if f["harmful"] <= CHOSEN]
    if not safe:
        fewest = min(f["harmful"] for f in found)
        safe = [i for i, f in enumerate(found) if f["harmful"] == fewest]
    best = max(safe, key=lambda i: (found[i]["helpful"], -found[i]["harmful"], _strictness(grid[i])))
    return Thresholds(**grid[best])


def _strictness(values: dict[str, Any]) -> float:
    return sum(GRID[name].index(value) / len(GRID[name]) for name, value in values.items())


def without_one(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every shift judged by thresholds that the others choose: promoted, and how many there are."""
    out = {kind: {"promoted": 0, "count": 0} for kind in ("harmful", "helpful")}
    for shift in sorted({(r["source"], r["target"]) for r in rows}):
        own = [r for r in rows if (r["source"], r["target"]) == shift]
        found = counted(own, choose_limits([r for r in rows if r not in own]))
        for kind, total in out.items():
            total["promoted"] += round(found[kind]["promoted"] * found[kind]["count"])
            total["count"] += found[kind]["count"]
    return out


def counted(rows: Sequence[dict[str, Any]], limits: Any) -> dict[str, Any]:
    """Of the harmful, the helpful and the rest: how many, and the promoted share with its interval."""
    from lookalike.adapting.gate import reasons_to_keep
    from lookalike.evaluation.bootstrap import share

    kinds = {
        "harmful": [r for r in rows if r["gain"] < -MARGIN],
        "helpful": [r for r in rows if r["gain"] > MARGIN],
        "neutral": [r for r in rows if abs(r["gain"]) <= MARGIN],
    }
    out: dict[str, Any] = {}
    for kind, members in kinds.items():
        passed = sum(
            not reasons_to_keep(r, limits, alarm=r["alarm"], anchor_asked=r["recipe"] == "bn") for r in members
        )
        found = share(passed, len(members)) if members else None
        out[kind] = {
            "count": len(members),
            "promoted": 0.0 if found is None else round(found.value, 4),
            "low": 0.0 if found is None else round(found.low, 4),
            "high": 1.0 if found is None else round(found.high, 4),
        }
    return out


# --- the bed --------------------------------------------------------------------------------------


def prepared(*, data: str, scale: dict[str, Any], name: str) -> int:
    """Make the cached features of a domain, or of the pool; how many pictures it has. `scale` names the job."""
    from lookalike.adapting import bed

    return len(bed.pool_features(data).ids if name == "pool" else bed.domain_features(data, name).ids)


def trained(*, data: str, scale: dict[str, Any], name: str, seed: int) -> str:
    """Make the model of a domain; its fingerprint."""
    import torch

    torch.set_num_threads(1)
    return str(_source(data, name, seed).fingerprint())


def trial(
    *,
    data: str,
    scale: dict[str, Any],
    source: str,
    target: str,
    recipe: str,
    seed: int,
    settings: dict[str, Any],
    kept: str,
) -> dict[str, Any]:
    """One adaptation; what the models make of held-out pictures is in the file it names. `kept` names the job."""
    import torch

    from lookalike.adapting import bed
    from lookalike.adapting.settings import AdaptSettings

    torch.set_num_threads(1)
    model, chosen = _source(data, source, seed), AdaptSettings.parse(settings)
    found, alarm = bed.adapted(model, bed.domain_features(data, target), bed.pool_features(data), recipe, seed, chosen)
    known = hash_bytes(data, json.dumps([scale, settings], sort_keys=True))[:12]
    name, packed = f"{source}-{target}-{recipe}-{seed}-{known}.npz", io.BytesIO()
    arrays: dict[str, Any] = found
    np.savez(packed, **arrays)
    write_bytes(_held(name), packed.getvalue())
    return {"source": source, "target": target, "recipe": recipe, "seed": seed, "alarm": alarm, "held": name}


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """A finished adaptation with its gain and the gate's signals."""
    from lookalike.adapting import bed

    with np.load(_held(result["held"])) as kept:
        return {**result, **{key: round(value, 6) for key, value in bed.measured(kept).items()}}


def _held(name: str) -> Path:
    return folders.home() / "jobs" / "gate" / "held" / name


@cache
def _source(data: str, source: str, seed: int) -> Any:
    from lookalike.adapting import bed

    return bed.source_model(data, source, seed)
