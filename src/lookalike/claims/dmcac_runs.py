"""Runs of the claims about DMCAC: an arm is one way to train on one set, a trial is one run of it."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookalike.claims import ClaimContext, ClaimOutcome, Missing, Verdict
from lookalike.claims.paired import Difference, difference
from lookalike.core.settings import merge

SEEDS = (0, 1, 2, 3, 4)
QUERIES, VIEWS, STEPS = 16, 4, 150
# DMCAC embeds its database as well, forward only: about a twelfth of a run's cost. The others take more steps for it.
LONGER = 1.08
NEAR = 1.0  # points of recall@1 within which nothing has changed
SAMPLE = 1000  # unseen pictures that cosines and attention are measured on

# The upper stages on cached lower ones, in nine views a picture; 96 px, batch-norm frozen.
SMALL: dict[str, Any] = {
    "data": {"validation": 0, "near": False},
    "model": {"name": "efficientnet_lite0", "size": 96, "pooling": "avg", "batch_norm": "frozen"},
    "head": {"kind": "pca", "dim": 128},
    "views": {"mode": "cached", "layer": "stage3", "count": 8, "augment": "rand-m9"},
    "optimiser": {"rate": 1e-4, "loss_rate": 3e-3, "weight_decay": 0.01},
    "schedule": {"kind": "constant"},
    "steps": STEPS,
    "evaluate_every": STEPS,
    "keep": "trained",
    "logs": {"every": 5, "tensorboard": False, "drift_every": 0},
}
END_TO_END: dict[str, Any] = {"views": {"mode": "end_to_end", "count": 0}, "model": {"freeze": "stage2"}}
# What all runs of DMCAC share at small scale, and what those of another method do, at as many pictures a step.
OWN: dict[str, Any] = {
    "method": {"views": VIEWS, "maps": [5, STEPS]},
    "sampler": {"kind": "shuffle", "batch": QUERIES},
}
LONG = round(LONGER * STEPS)
OTHER: dict[str, Any] = {"sampler": {"classes": QUERIES, "images": VIEWS}, "steps": LONG, "evaluate_every": LONG}
# At the paper's scale 256 queries in 6 views are as many pictures as 170 classes of 9 (Hyp's number of each).
OTHER_AT_SCALE: dict[str, Any] = {"sampler": {"kind": "pk", "classes": 170, "images": 9}}
# Every term matters; and as the paper's letter has it: heads as slow as the network, the divergence at τ = 1.
USUAL: dict[str, Any] = {"method": {"name": "dmcac", "temperature": 0.1}, "optimiser": {"loss_rate": 3e-3}}
COLD: dict[str, Any] = {"method": {"temperature": 1.0}}
LETTER: dict[str, Any] = {"method": {"temperature": 1.0}, "optimiser": {"loss_rate": 3e-5}}


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
            from lookalike.training.cookbook import load

            recipe = load(f"dmcac_vit_{self.data}")
            base = merge({k: v for k, v in recipe.items() if ours or k != "method"}, {} if ours else OTHER_AT_SCALE)
        else:
            base = merge(SMALL, END_TO_END if self.end_to_end else {}, OWN if ours else OTHER)
        laid = merge(base, {"keep": "trained"}, dict(self.settings))
        if self.equal_views is not None:
            pictures = base["sampler"]["batch"] * base["method"]["views"]
            given = {"method": {"views": self.equal_views}, "sampler": {"batch": pictures // self.equal_views}}
            laid = merge(laid, given)
        return laid


def dmcac(name: str = "dmcac", *changes: Mapping[str, Any], weights: Sequence[float] = (1, 1, 1), **place: Any) -> Arm:
    """DMCAC with these weights of divergence, classes and attention."""
    three = dict(zip(("divergence", "classes", "attention"), map(float, weights), strict=True))
    return Arm(name, merge(USUAL, {"method": {"weights": three}}, *map(dict, changes)), **place)


DEFAULT = dmcac()


class Runs:
    """What the trials of some arms gave, by seed."""

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = list(seeds)
        self.results: dict[tuple[str, int], dict[str, Any]] = {}

    def has(self, *arms: Arm) -> bool:
        return all((arm.key, seed) in self.results for arm in arms for seed in self.seeds)

    def values(self, arm: Arm, measure: str = "recall") -> list[float]:
        """One number a seed; two arms are paired by place."""
        if not self.has(arm):
            raise Missing(arm.key)
        return [self.results[arm.key, seed][measure] for seed in self.seeds]

    def gap(self, before: Arm, after: Arm, measure: str = "recall", *, level: float = 0.95) -> Difference:
        return difference(self.values(before, measure), self.values(after, measure), level=level)

    def rows(self, arms: Iterable[Arm]) -> list[dict[str, Any]]:
        """The table of results: means over the seeds, and recall@1 of each."""
        out = []
        for arm in arms:
            if self.has(arm):
                means = {name: round(statistics.fmean(self.values(arm, name)), 4) for name in MEASURES}
                recalls = [round(value, 2) for value in self.values(arm)]
                out.append({"data": arm.data, "arm": arm.name, **means, "by seed": recalls})
        return out


def outcome(verdict: Verdict, note: str, found: Runs, arms: Sequence[Arm], **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(verdict, {**figures, "runs": found.rows(arms)}, note)


def run_arms(context: ClaimContext, arms: Iterable[Arm], seeds: Sequence[int]) -> Runs:
    """Every arm on every seed, a seed at a time; arms that claims share are run once."""
    arms = list({arm.key: arm for arm in arms}.values())
    jobs: dict[str, dict[str, Any]] = {}
    places: dict[str, tuple[str, int]] = {}
    for seed in seeds:
        for arm in arms:
            key = f"{arm.key}-seed{seed}"
            folder = str(context.folder(arm.data))
            jobs[key] = {"data": folder, "settings": arm.laid(context.scale), "seed": seed}
            places[key] = (arm.key, seed)
    if context.finished:
        jobs = {key: given for key, given in jobs.items() if context.jobs.stored(key, given) is not None}
    else:
        _prepare(context, arms, jobs)
    found = Runs(seeds)
    for number, (key, result) in enumerate(context.jobs.run_many(jobs, trial, processes=context.threads), 1):
        found.results[places[key]] = result
        context.say(f"{number:3} of {len(jobs)}  {key}: recall@1 {result['recall']:.2f}, {result['seconds']:.0f} s")
    return found


def _prepare(context: ClaimContext, arms: Sequence[Arm], jobs: Mapping[str, Mapping[str, Any]]) -> None:
    """Fill the caches once, before several processes would."""
    if context.scale != "small" or all(context.jobs.stored(key, given) is not None for key, given in jobs.items()):
        return
    for data, whole in sorted({(arm.data, arm.end_to_end) for arm in arms}):
        context.say(f"Preparing the pictures of {data}")
        first = dmcac("first", {"steps": 1, "evaluate_every": 1}, data=data, end_to_end=whole)
        trial(data=str(context.folder(data)), settings=first.laid("small"), seed=0)


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


MEASURES = (
    "recall", "step 0", "frozen", "cosine", "share", "attention", "early share", "early attention", "diagonal",
    "unseen share", "unseen attention", "gradient divergence", "gradient classes", "gradient attention", "seconds",
)  # fmt: skip


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """What is kept of a run's own figures; a mean of the gradients over the second half of the steps."""
    recall = {name: round(100 * found["recall@1"]["value"], 3) for name, found in result["measured"].items()}
    out = {"recall": recall["trained"], "step 0": recall["step 0"], "frozen": recall["starting model"]}
    for name in ("divergence", "classes", "attention"):
        values = [row[f"gradient/{name}"] for row in log if f"gradient/{name}" in row]
        out[f"gradient {name}"] = round(statistics.fmean(values[len(values) // 2 :]), 6) if values else 0.0
    return {**out, "seconds": result["seconds"]["train"]}


def looked_at(run: Any) -> dict[str, float]:
    """Mean cosine of unseen pictures; own-class share and attention, of trained classes early and late, of unseen
    classes at the end. 0 where a method has no attention."""
    import torch

    from lookalike.core.seeds import numpy_rng
    from lookalike.methods.dmcac_maps import diagonal
    from lookalike.models import Embedder
    from lookalike.training import checkpoint
    from lookalike.training.job import load_table

    table, division = load_table(run)
    rows = numpy_rng(0, "claims", "unseen").permutation(division.test)[:SAMPLE]
    z = torch.from_numpy(Embedder.from_pretrained(run.model).encode(table.take(rows), runtime="torch"))
    count = len(z)
    out = dict.fromkeys(MEASURES[4:11], 0.0)
    out["cosine"] = float((z.double().sum(0).square().sum() - count) / (count * (count - 1)))
    state = checkpoint.read(run.checkpoints / checkpoint.LAST)["method"]
    maps = state.get("maps")
    if maps is not None and bool(torch.isfinite(maps[-1]).any()):
        (early, early_mass), (late, late_mass) = ([diagonal(m) for m in pair] for pair in (maps[0], maps[-1]))
        out |= {"early share": early.own, "early attention": early_mass.own, "share": late.own}
        out |= {"attention": late_mass.own, "diagonal": late_mass.rows}
        share, mass = _unseen(z, table.take(rows).labels()[0], state)
        out |= {"unseen share": share, "unseen attention": mass}
    return {name: round(value, 5) for name, value in out.items()}


def _unseen(z: Any, labels: Any, state: Mapping[str, Any]) -> tuple[float, float]:
    """Own-class share and attention where part of the unseen pictures is searched by the rest."""
    import torch

    from lookalike.losses.dmcac import Database, Heads
    from lookalike.methods.dmcac_maps import class_maps, diagonal
    from lookalike.methods.dmcac_split import part

    parted = part(labels, share=0.5, seed=0, tell=False)
    codes = torch.from_numpy(labels)
    heads = Heads(*state["heads.classes"].shape)
    heads.load_state_dict({name: state[f"heads.{name}"] for name in heads.state_dict()})
    queries, searched = (torch.from_numpy(rows) for rows in parted)
    database = Database(z[searched], codes[searched])
    maps = class_maps(z[queries], codes[queries], database, heads, min(12, len(searched)), int(codes.max()) + 1)
    return diagonal(maps.share).own, diagonal(maps.attention).own
