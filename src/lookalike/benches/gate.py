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
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.benches import Bar, BenchContext
from lookalike.benches.judging import Judge
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


def halves(harm: Sequence[Sequence[str]] = HARM) -> list[dict[str, Any]]:
    """Two halves of the twelve shifts: of every pair of domains one direction lies in each."""
    pairs = list(itertools.permutations(range(len(DOMAINS)), 2))
    first = [(a, b) for a, b in pairs if (b - a) % 4 == 1 or ((b - a) % 4 == 2 and a < b)]
    rest = [pair for pair in pairs if pair not in first]
    return [
        {"shifts": [(DOMAINS[a], DOMAINS[b]) for a, b in part], "harm": own}
        for part, own in zip((first, rest), harm, strict=True)
    ]


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    jobs = Jobs(folders.home() / "jobs" / "gate")
    scale = ready(context, jobs, SEEDS)
    return JUDGE.judged(
        *(
            [measured(result) for result in series(context, jobs, half, scale, trial, _held, kept="probabilities")]
            for half in planned(HARM, SEEDS)
        )
    )


def planned(harm: Sequence[Sequence[str]], seeds: Sequence[Sequence[int]]) -> list[list[dict[str, Any]]]:
    """The adaptations of both halves."""
    return [
        [
            {"source": a, "target": b, "recipe": recipe, "seed": seed}
            for a, b in half["shifts"]
            for recipe in (*HELP, *half["harm"])
            for seed in own
        ]
        for half, own in zip(halves(harm), seeds, strict=True)
    ]


def ready(context: BenchContext, jobs: Jobs, seeds: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Features of the four domains and of the pool, and models of each domain; the arguments all jobs share."""
    from lookalike.adapting.bed import SCALE

    scale = {"data": str(context.folder("pacs").parent), "scale": SCALE}
    context.folder("pool")  # said now if it is missing
    context.say("Features of the four domains and of the pool, and a model of each domain")
    first = {f"features-{name}": {**scale, "name": name} for name in (*DOMAINS, "pool")}
    every = sorted({seed for own in seeds for seed in own})
    then = {f"source-{name}-{seed}": {**scale, "name": name, "seed": seed} for name in DOMAINS for seed in every}
    for given, work in ((first, prepared), (then, trained)):
        for key, told in jobs.run_many(given, work, processes=context.threads):
            context.say(f"{key}: {told}")
    return scale


def series(
    context: BenchContext,
    jobs: Jobs,
    half: Sequence[dict[str, Any]],
    scale: dict[str, Any],
    work: Callable[..., dict[str, Any]],
    held: Callable[[str], Path],
    **more: Any,
) -> list[dict[str, Any]]:
    """All adaptations of one half; those that were finished before a stop are not done again."""
    from lookalike.adapting.bed import settings_of

    given = {
        "-".join(map(str, each.values())): {
            **scale,
            **each,
            "settings": settings_of(each["recipe"], each["seed"]).model_dump(mode="json"),
            **more,
        }
        for each in half
    }
    left = set()
    for key, arguments in given.items():
        record = jobs.stored(key, arguments)
        if record is None or not held(record["result"]["held"]).is_file():
            jobs.path(key, arguments).unlink(missing_ok=True)  # without its file it counts for nothing
            left.add(key)
    found, start, total = [], time.monotonic(), len(left)
    for key, result in jobs.run_many(given, work, processes=context.threads):
        found.append(result)
        if key in left:
            left.discard(key)
            done = total - len(left)
            if done % 20 == 0:
                rest = (time.monotonic() - start) / done * len(left) / 60
                context.say(f"{done} of {total}: {key}; about {rest:.0f} min left in this half")
    return found


def _keeps(row: dict[str, Any], limits: Any) -> list[str]:
    from lookalike.adapting.gate import reasons_to_keep

    return reasons_to_keep(row, limits, alarm=row["alarm"], anchor_asked=row["recipe"] == "bn")


def _limits(**values: float) -> Any:
    from lookalike.adapting.gate import Thresholds

    return Thresholds.model_validate(values)


# From lax to strict.
GRID: dict[str, tuple[float, ...]] = {
    "agreement": (0.7, 0.75, 0.8, 0.85, 0.9, 0.95),
    "worst_class": (0.0, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    "neighbours": (-0.02, -0.01, 0.0, 0.01, 0.02, 0.03),
}
JUDGE = Judge(GRID, _limits, _keeps, margin=0.01, usual=HELP)


# --- the bed --------------------------------------------------------------------------------------


def prepared(*, data: str, scale: dict[str, Any], name: str) -> int:
    """Make the cached features of a domain, or of the pool; how many pictures it has. `scale` names the job."""
    from lookalike.adapting import bed

    return len(bed.pool_features(data).ids if name == "pool" else bed.domain_features(data, name).ids)


def trained(*, data: str, scale: dict[str, Any], name: str, seed: int) -> str:
    """Make the model of a domain; its fingerprint."""
    import torch

    torch.set_num_threads(1)
    return str(source_of(data, name, seed).fingerprint())


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
    model, chosen = source_of(data, source, seed), AdaptSettings.parse(settings)
    found, alarm = bed.adapted(model, bed.domain_features(data, target), bed.pool_features(data), recipe, seed, chosen)
    job = {"source": source, "target": target, "recipe": recipe, "seed": seed}
    return {**job, "alarm": alarm, "held": keep(found, _held, job, data, scale, settings)}


def keep(found: dict[str, Any], held: Callable[[str], Path], job: dict[str, Any], *known: Any) -> str:
    """Write what was found beside the job that found it; the file's name."""
    name = f"{'-'.join(map(str, job.values()))}-{hash_bytes(json.dumps(known, sort_keys=True))[:12]}.npz"
    packed = io.BytesIO()
    np.savez(packed, **found)
    write_bytes(held(name), packed.getvalue())
    return name


def measured(result: dict[str, Any]) -> dict[str, Any]:
    """A finished adaptation with its gain and the gate's signals."""
    from lookalike.adapting import bed

    with np.load(_held(result["held"])) as kept:
        return {**result, **{key: round(value, 6) for key, value in bed.measured(kept).items()}}


def _held(name: str) -> Path:
    return folders.home() / "jobs" / "gate" / "held" / name


@cache
def source_of(data: str, source: str, seed: int) -> Any:
    from lookalike.adapting import bed

    return bed.source_model(data, source, seed)
