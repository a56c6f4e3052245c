"""Runs of the claims about DMCAC: an arm is one way to train on one set, a trial is one run of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.papers import ClaimContext, ClaimOutcome, Missing, Verdict
from benchmarks.papers.dmcac_measured import FIGURES, looked_at, readings
from benchmarks.papers.paired import Difference, difference
from lookalike.core.settings import merge

SEEDS = (0, 1, 2, 3, 4)
QUERIES, VIEWS, STEPS, REFRESH = 16, 4, 120, 50
BATCH = QUERIES * VIEWS  # images a step of every method
DATABASE = {"cars": 784, "cub": 1177, "grocery": 527}  # images that DMCAC searches, by set
NEAR = 1.0  # points of recall@1 within which nothing has changed

# The upper stages on cached lower ones, in nine views an image; 96 px, batch-norm frozen.
SMALL: dict[str, Any] = {
    "data": {"validation_fraction": 0, "near_duplicates": False},
    "model": {"name": "efficientnet_lite0", "size": 96, "pooling": "avg", "batch_norm": "frozen"},
    "head": {"kind": "pca", "embedding_dim": 128},
    "views": {"mode": "cached", "layer": "stage3", "num_cached": 8, "rand_augment": "rand-tv9"},
    "optimizer": {"lr": 3e-5, "loss_lr": 3e-3, "weight_decay": 0.01},
    "schedule": {"kind": "constant"},
    "steps": STEPS,
    "evaluate_every": STEPS,
    "keep": "trained",
    "log": {"every_n_steps": 5, "tensorboard": False, "drift_every_n_steps": 0},
}
END_TO_END: dict[str, Any] = {"views": {"mode": "end_to_end", "num_cached": 0}, "model": {"freeze": "stage2"}}
# Its own split has the same classes on both sides; what is asked for here is classes that were never seen.
BY_SET: dict[str, dict[str, Any]] = {"grocery": {"data": {"split": "classes", "test_fraction": 0.5}}}
# What all runs of DMCAC share at small scale.
OWN: dict[str, Any] = {
    "method": {"views": VIEWS, "map_steps": [5, STEPS], "refresh": {"every": REFRESH, "unit": "steps"}},
    "sampler": {"kind": "shuffle", "batch_size": QUERIES},
}
# The default for users; and as the paper's letter has it: heads as slow as the network, the divergence at τ = 1.
USUAL: dict[str, Any] = {"method": {"name": "dmcac", "temperature": 0.1}, "optimizer": {"loss_lr": 3e-3}}
COLD: dict[str, Any] = {"method": {"temperature": 1.0}}
LETTER: dict[str, Any] = {"method": {"temperature": 1.0}, "optimizer": {"loss_lr": 3e-5}}


class Paper(NamedTuple):
    """A set as the paper has it: DMCAC's run, and Hyp's batch of classes × images, which all others are given."""

    steps: int
    batch: int
    database: int
    made: int
    """Times that the database is embedded."""
    classes: int
    images: int


PAPERS = {
    "cub": Paper(250, 1536, 1173, 1, 100, 9),
    "cars": Paper(600, 1536, 1611, 2, 98, 9),
    "in_shop": Paper(2500, 1536, 5176, 3, 450, 2),
    "sop": Paper(25_000, 768, 11_910, 5, 450, 2),
}


def others(data: str, scale: str) -> dict[str, Any]:
    """What runs of another method share. They see as many images as DMCAC, its database counted each time that it is
    embedded; cropped and mirrored as Hyp has it, without RandAugment."""
    if scale == "paper":
        paper = PAPERS[data]
        classes, images = paper.classes, paper.images
        spent = paper.steps * paper.batch + paper.made * paper.database
        views = {"rand_augment": "", "crop": "resized", "scale": [0.2, 1.0], "flip": True}
        rates = {"optimizer": {"loss_lr": USUAL["optimizer"]["loss_lr"]}}
    else:
        classes, images, rates, views = QUERIES, VIEWS, {}, {"rand_augment": ""}
        spent = STEPS * BATCH + -(-STEPS // REFRESH) * DATABASE[data]
    steps = round(spent / (classes * images))
    sampler = {"kind": "pk", "classes_per_batch": classes, "images_per_class": images}
    return {"views": views, "sampler": sampler, "steps": steps, "evaluate_every": steps, **rates}


@dataclass(frozen=True)
class Arm:
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What is varied, over the settings of the scale."""
    data: str = "cars"
    end_to_end: bool = False
    equal_views: int | None = None
    """So many views of each query, and as many fewer queries."""

    @property
    def key(self) -> str:
        return f"{self.data}-{'whole-' * self.end_to_end}{self.name}"

    def laid(self, scale: str) -> dict[str, Any]:
        ours = self.settings["method"]["name"] == "dmcac"
        if scale == "paper":
            from lookalike.training.recipe import load

            recipe = load(f"dmcac_vit_{self.data}")
            base = {name: part for name, part in recipe.items() if ours or name != "method"}
        else:
            base = merge(SMALL, BY_SET.get(self.data, {}), END_TO_END if self.end_to_end else {}, OWN if ours else {})
        base = merge(base, {} if ours else others(self.data, scale))
        laid = merge(base, {"keep": "trained"}, dict(self.settings))
        if self.equal_views is not None:
            images = base["sampler"]["batch_size"] * base["method"]["views"]
            given = {"method": {"views": self.equal_views}, "sampler": {"batch_size": images // self.equal_views}}
            laid = merge(laid, given)
        return laid


def dmcac(name: str = "dmcac", *changes: Mapping[str, Any], weights: Sequence[float] = (1, 1, 1), **place: Any) -> Arm:
    """DMCAC with these weights of divergence, classes and attention."""
    three = dict(zip(("divergence", "classes", "attention"), map(float, weights), strict=True))
    return Arm(name, merge(USUAL, {"method": {"weights": three}}, *map(dict, changes)), **place)


def family(scale: str, data: str) -> Callable[..., Arm]:
    """What makes the arms of a claim: small ones on Cars with the default for users; at the paper's scale those of its
    letter, on the set of its table."""

    def make(name: str = "dmcac", *changes: Mapping[str, Any], **given: Any) -> Arm:
        return dmcac(name, LETTER, *changes, data=data, **given) if scale == "paper" else dmcac(name, *changes, **given)

    return make


class Runs:
    """What the trials of some arms gave, by seed; `asked` is how many seeds there should be."""

    def __init__(self, seeds: Sequence[int], asked: int | None = None) -> None:
        self.seeds, self.asked = list(seeds), len(seeds) if asked is None else asked
        self.results: dict[tuple[str, int], dict[str, Any]] = {}

    def has(self, *arms: Arm) -> bool:
        return all((arm.key, seed) in self.results for arm in arms for seed in self.seeds)

    def values(self, arm: Arm, measure: str = "recall") -> list[float]:
        """One number a seed; two arms are paired by place."""
        if not self.seeds or not self.has(arm):
            raise Missing(arm.key)
        return [self.results[arm.key, seed][measure] for seed in self.seeds]

    def gap(self, before: Arm, after: Arm, measure: str = "recall", *, level: float = 0.95) -> Difference:
        return difference(self.values(before, measure), self.values(after, measure), level=level)

    def change(self, arm: Arm, before: str, after: str) -> Difference:
        """From one measure of an arm to another."""
        return difference(self.values(arm, before), self.values(arm, after))

    def rows(self, arms: Iterable[Arm]) -> list[dict[str, Any]]:
        """The table of results: means over the seeds, and recall@1 of each."""
        out = []
        for arm in {arm.key: arm for arm in arms}.values():
            if self.has(arm):
                means = {name: round(statistics.fmean(self.values(arm, name)), 4) for name in FIGURES}
                recalls = [round(value, 2) for value in self.values(arm)]
                out.append({"data": arm.data, "arm": arm.name, **means, "by seed": recalls})
        return out

    @property
    def so_far(self) -> str:
        """What a note begins with where not all seeds are finished."""
        return f"{len(self.seeds)} of {self.asked} seeds so far; " if len(self.seeds) < self.asked else ""


def outcome(verdict: Verdict, note: str, found: Runs, arms: Sequence[Arm], **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": found.rows(arms)}, found.so_far + note)


def run_arms(context: ClaimContext, arms: Iterable[Arm], seeds: Sequence[int]) -> Runs:
    """Every arm on every seed, a seed at a time; arms that claims share are run once. Where only finished runs count,
    the seeds are those on which every arm is finished."""
    arms = list({arm.key: arm for arm in arms}.values())
    asked = len(seeds)
    jobs: dict[str, dict[str, Any]] = {}
    places: dict[str, tuple[str, int]] = {}
    for seed in seeds:
        for arm in arms:
            key = f"{arm.key}-seed{seed}"
            folder = str(context.folder(arm.data))
            jobs[key] = {"data": folder, "settings": arm.laid(context.scale), "seed": seed}
            places[key] = (arm.key, seed)
    if context.finished:
        lacking = {places[key][1] for key, given in jobs.items() if context.jobs.stored(key, given) is None}
        seeds = [seed for seed in seeds if seed not in lacking]
        jobs = {key: given for key, given in jobs.items() if places[key][1] in seeds}
    else:
        _prepare(context, arms, jobs)
    found = Runs(seeds, asked)
    for number, (key, result) in enumerate(context.jobs.run_many(jobs, trial, processes=context.threads), 1):
        found.results[places[key]] = result
        context.say(f"{number:3} of {len(jobs)}  {key}: recall@1 {result['recall']:.2f}, {result['seconds']:.0f} s")
    return found


def _prepare(context: ClaimContext, arms: Sequence[Arm], jobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Fill the caches once, before several processes would."""
    if context.scale != "small" or all(context.jobs.stored(key, given) is not None for key, given in jobs.items()):
        return
    kinds = {(arm.data, arm.end_to_end, arm.settings["method"]["name"] == "dmcac"): arm for arm in arms}
    for (data, _, ours), arm in kinds.items():
        context.say(f"Preparing the images of {data}{'' if ours else ', not augmented'}")
        once = merge(arm.laid("small"), {"steps": 1, "evaluate_every": 1})
        trial(data=str(context.folder(data)), settings=once, seed=0)


def trial(*, data: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """One run; what it was worth on classes it has not seen, and what its attention does."""
    import torch

    from lookalike.core import progress
    from lookalike.training import train

    torch.set_num_threads(1)
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            run: Any = train(data=data, settings=settings, seed=seed, out=Path(folder) / "run", report=False)
            return {**readings(run.result, run.read_log()), **looked_at(run)}
    finally:
        progress.set_level(level)
