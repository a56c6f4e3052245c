"""Simulated adaptations on cached features: all twelve shifts of PACS in two halves, a model of each source, methods
that usually help and recipes made to harm.

What is finished is kept: a stopped bench goes on, and another rule is judged without adapting again.
"""

from __future__ import annotations

import io
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import BenchContext
from lookalike.core import folders
from lookalike.core.files import hash_bytes, write_bytes
from lookalike.core.job_cache import Jobs

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
HELP = ("bn", "tent", "shot", "t3ar", "adacontrast")


@dataclass(frozen=True)
class Simulations:
    """The adaptations of a bench: those of the half that chooses, and of the half that judges."""

    name: str
    harm: Sequence[Sequence[str]]
    """Recipes made to harm, of each half."""
    seeds: Sequence[Sequence[int]]

    def shifts(self) -> list[list[tuple[str, str]]]:
        """Two halves of the twelve: of every pair of domains one direction lies in each."""
        pairs = list(itertools.permutations(range(len(DOMAINS)), 2))
        first = [(a, b) for a, b in pairs if (b - a) % 4 == 1 or ((b - a) % 4 == 2 and a < b)]
        rest = [pair for pair in pairs if pair not in first]
        return [[(DOMAINS[a], DOMAINS[b]) for a, b in part] for part in (first, rest)]

    def planned(self) -> list[list[dict[str, Any]]]:
        return [
            [
                {"source": a, "target": b, "recipe": recipe, "seed": seed}
                for a, b in shifts
                for recipe in (*HELP, *harm)
                for seed in seeds
            ]
            for shifts, harm, seeds in zip(self.shifts(), self.harm, self.seeds, strict=True)
        ]

    def run(self, context: BenchContext, work: Callable[..., dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Both halves, adapted by `work`."""
        jobs = Jobs(self._folder())
        shared = self._ready(context, jobs)
        return [self._half(context, jobs, half, work, shared) for half in self.planned()]

    def _ready(self, context: BenchContext, jobs: Jobs) -> dict[str, Any]:
        """Features of the four domains and of the pool, and models of each domain; the arguments all jobs share."""
        from benchmarks.papers.simulated_adaptations import SCALE

        shared = {"data": str(context.folder("pacs").parent), "scale": SCALE}
        context.folder("pool")  # said now if it is missing
        context.say("Features of the four domains and of the pool, and a model of each domain")
        every = sorted({seed for own in self.seeds for seed in own})
        first = {f"features-{name}": {**shared, "name": name} for name in (*DOMAINS, "pool")}
        then = {f"source-{name}-{seed}": {**shared, "name": name, "seed": seed} for name in DOMAINS for seed in every}
        for given, work in ((first, prepared), (then, trained)):
            for key, told in jobs.run_many(given, work, processes=context.threads):
                context.say(f"{key}: {told}")
        return shared

    def _half(
        self,
        context: BenchContext,
        jobs: Jobs,
        half: Sequence[dict[str, Any]],
        work: Callable[..., dict[str, Any]],
        shared: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """Those that were finished before a stop are not done again."""
        from benchmarks.papers.simulated_adaptations import settings_of

        given = {
            "-".join(map(str, each.values())): {
                **shared,
                **each,
                "settings": settings_of(each["recipe"], each["seed"]).model_dump(mode="json"),
            }
            for each in half
        }
        left = set()
        for key, arguments in given.items():
            record = jobs.stored(key, arguments)
            if record is None or not self._held(record["result"]["held"]).is_file():
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

    # ---- what the models made of held-out images ---------------------------------------------------

    def store(self, arrays: dict[str, Any], job: dict[str, Any], *known: Any) -> str:
        """Store arrays beside the job they come from; returns the file's name."""
        name = f"{'-'.join(map(str, job.values()))}-{hash_bytes(json.dumps(known, sort_keys=True))[:12]}.npz"
        packed = io.BytesIO()
        np.savez(packed, **arrays)
        write_bytes(self._held(name), packed.getvalue())
        return name

    def load(self, result: dict[str, Any]) -> dict[str, np.ndarray]:
        with np.load(self._held(result["held"])) as arrays:
            return dict(arrays)

    def _folder(self) -> Path:
        return folders.home() / "jobs" / self.name

    def _held(self, name: str) -> Path:
        return self._folder() / "held" / name


def prepared(*, data: str, scale: dict[str, Any], name: str) -> int:
    """Make the cached features of a domain, or of the pool; how many images it has. `scale` names the job."""
    from benchmarks.papers import simulated_adaptations

    return len(
        simulated_adaptations.pool_features(data).ids
        if name == "pool"
        else simulated_adaptations.domain_features(data, name).ids
    )


def trained(*, data: str, scale: dict[str, Any], name: str, seed: int) -> str:
    """Make the model of a domain; its fingerprint."""
    import torch

    torch.set_num_threads(1)
    return str(source_of(data, name, seed).fingerprint())


@cache
def source_of(data: str, source: str, seed: int) -> Any:
    from benchmarks.papers import simulated_adaptations

    return simulated_adaptations.source_model(data, source, seed)
