"""Runs of the claims about DMCAC: an arm is one way to train on one data set; what is stored of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.papers import ClaimContext, ClaimOutcome, Verdict
from benchmarks.papers.grid import GridResults, recalls, run_grid, training_run
from lookalike.core.settings import merge

REVISION = 1
"""Of the experiments; raised whenever a run computes something else for the same settings."""
SEEDS = (0, 1, 2, 3, 4)
QUERIES, VIEWS, STEPS, REFRESH = 16, 4, 120, 50
BATCH = QUERIES * VIEWS  # images a step of every method
DATABASE = {"cars": 784, "cub": 1177, "grocery": 527}  # images that DMCAC searches, by set
PARTS = 6  # of a run, after each of which its learning curve gets a point
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
    "evaluate_every": STEPS // PARTS,
    "keep": "trained",
    "log": {"every_n_steps": 5, "tensorboard": False, "drift_every_n_steps": 0, "test_classes": 10},
}
END_TO_END: dict[str, Any] = {"views": {"mode": "end_to_end", "num_cached": 0}, "model": {"freeze": "stage2"}}
# Its own split has the same classes on both sides; this experiment needs classes that were never seen.
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


def others(data: str) -> dict[str, Any]:
    """What runs of another method share. They see as many images as DMCAC, its database counted each time that it is
    embedded; cropped and mirrored as Hyp has it, without RandAugment."""
    steps = round((STEPS * BATCH + -(-STEPS // REFRESH) * DATABASE[data]) / BATCH)
    sampler = {"kind": "pk", "classes_per_batch": QUERIES, "images_per_class": VIEWS}
    return {"views": {"rand_augment": ""}, "sampler": sampler, "steps": steps, "evaluate_every": -(-steps // PARTS)}


SAMPLE = 1000  # unseen images that cosines and attention are measured on
# Of a run's own figures, and of what its maps show: means on and off the diagonal, early and late in training and on
# unseen classes.
FIGURES = (
    "recall", "step 0", "frozen", "cosine", "cosine 0", "gradient divergence", "gradient classes", "gradient attention",
    "images", "seconds",
)  # fmt: skip
PLACES = ("early", "late", "unseen")
MAPS = ("share", "attention", "whole", "near")
MAPPED = tuple(f"{place} {name}{side}" for place in PLACES for name in MAPS for side in ("", " other"))
MEASURES = (*FIGURES, *MAPPED, "diagonal")


@dataclass(frozen=True)
class Arm:
    """One way to train on one data set; `name` identifies it, `label` is its name within the set."""

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What is varied, over the settings of the scale."""
    data: str = "cars"
    end_to_end: bool = False
    equal_views: int | None = None
    """So many views of each query, and as many fewer queries."""

    @property
    def name(self) -> str:
        return f"{self.data}-{'whole-' * self.end_to_end}{self.label}"

    def resolve(self) -> dict[str, Any]:
        """The settings of its runs."""
        ours = self.settings["method"]["name"] == "dmcac"
        base = merge(SMALL, BY_SET.get(self.data, {}), END_TO_END if self.end_to_end else {}, OWN if ours else {})
        base = merge(base, {} if ours else others(self.data))
        settings = merge(base, dict(self.settings))
        if self.equal_views is not None:
            own = {"method": {"views": self.equal_views}, "sampler": {"batch_size": BATCH // self.equal_views}}
            settings = merge(settings, own)
        return settings


def dmcac(name: str = "dmcac", *changes: Mapping[str, Any], weights: Sequence[float] = (1, 1, 1), **place: Any) -> Arm:
    """DMCAC with these weights of divergence, classes and attention."""
    three = dict(zip(("divergence", "classes", "attention"), map(float, weights), strict=True))
    return Arm(name, merge(USUAL, {"method": {"weights": three}}, *map(dict, changes)), **place)


def rows(results: GridResults, arms: Iterable[Arm]) -> list[dict[str, Any]]:
    """The table of runs: means over the seeds, and recall@1 of each."""
    return [
        {"data": arm.data, "arm": arm.label, **results.means(arm, FIGURES), "by seed": results.by_seed(arm)}
        | ({"curve": results.mean_curve(arm)} if "curve" in results.results[arm.name, results.seeds[0]] else {})
        for arm in {arm.name: arm for arm in arms}.values()
        if results.has(arm) and results.seeds
    ]


def outcome(verdict: Verdict, note: str, results: GridResults, arms: Sequence[Arm], **figures: Any) -> ClaimOutcome:
    return ClaimOutcome(results.judged(verdict), {**figures, "runs": rows(results, arms)}, results.so_far + note)


def run_arms(context: ClaimContext, arms: Iterable[Arm], seeds: Sequence[int]) -> GridResults:
    """Every arm on every seed; arms that claims share are run once."""
    arms = list(arms)

    def arguments(arm: Arm, seed: int) -> dict[str, Any]:
        return {"data": str(context.folder(arm.data)), "settings": arm.resolve(), "seed": seed}

    def prepare(missing: object) -> None:
        kinds = {(arm.data, arm.end_to_end, arm.settings["method"]["name"] == "dmcac"): arm for arm in arms}
        for (data, _, ours), arm in kinds.items():
            context.say(f"Preparing the images of {data}{'' if ours else ', not augmented'}")
            once = merge(arm.resolve(), {"steps": 1, "evaluate_every": 1})
            trial(data=str(context.folder(data)), settings=once, seed=0)

    return run_grid(
        context,
        arms,
        seeds,
        arguments,
        trial,
        revision=REVISION,
        methods=lambda arm: (arm.settings["method"]["name"],),
        prepare=prepare,
        whole_seeds=True,
        describe=lambda result: f"recall@1 {result['recall']:.2f}, {result['seconds']:.0f} s",
    )


def trial(*, data: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """One run: its worth on unseen classes, and what its attention does."""
    with training_run("train", data=data, settings=settings, seed=seed) as run:
        return {**readings(run.result, run.read_log()), **inspect(run)}


def readings(result: Mapping[str, Any], log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A run's own figures; gradients are means over the second half of the steps."""
    out: dict[str, Any] = recalls(result)
    for name in ("divergence", "classes", "attention"):
        values = [row[f"gradient/{name}"] for row in log if f"gradient/{name}" in row]
        out[f"gradient {name}"] = round(statistics.fmean(values[len(values) // 2 :]), 6) if values else 0.0
    validation = [row for row in log if "validation/recall@1" in row]
    if validation:  # of the last step, whichever was the best
        out |= {f"validation {name}": 100 * validation[-1][f"validation/{name}"] for name in ("recall@1", "map@r")}
    # By validation classes where there are any, else by some of the test classes: a reading, nothing is chosen by it.
    for name in ("validation/recall@1", "test/recall@1"):
        if points := [round(100 * row[name], 2) for row in log if name in row]:
            return {**out, "curve": points, "seconds": result["seconds"]["train"]}
    return {**out, "seconds": result["seconds"]["train"]}


def inspect(run: Any) -> dict[str, float]:
    """Mean cosine of unseen images before and after; images that were embedded to train; what the maps show, of
    trained classes early and late, of unseen classes at the end. 0 where a method has no attention."""
    import torch

    from lookalike.core.seeds import numpy_rng
    from lookalike.methods.collapse import mean_cosine
    from lookalike.methods.dmcac_report import ClassMaps, diagonal
    from lookalike.models import Embedder
    from lookalike.training import checkpoint
    from lookalike.training.selection import embed_features
    from lookalike.training.settings import resolve
    from lookalike.training.setup import build_setup
    from lookalike.training.train_command import load_table

    table, division = load_table(run)
    parts = build_setup(resolve(run.config), table, division, run)
    rows = numpy_rng(0, "claims", "unseen").permutation(division.test)[:SAMPLE]
    before = torch.from_numpy(embed_features(parts.model.head, parts.features[rows], parts.start_norm))
    z = torch.from_numpy(Embedder.from_pretrained(run.model).encode(table.take(rows), runtime="torch"))
    out = dict.fromkeys((*MAPPED, "diagonal"), 0.0)
    out |= {"cosine 0": mean_cosine(before), "cosine": mean_cosine(z)}
    state = checkpoint.read(run.checkpoints / checkpoint.LAST)["method"]
    out["images"] = images_embedded(parts, len(state.get("database", ())))
    stored_maps = state.get("maps")
    if stored_maps is not None and len(stored_maps) and bool(torch.isfinite(stored_maps[-1]).any()):
        places = (
            ClassMaps(*stored_maps[0]),
            ClassMaps(*stored_maps[-1]),
            _unseen(z, table.take(rows).labels()[0], state, run.config["method"].get("head_scale", 1.0)),
        )
        for place, maps in zip(PLACES, places, strict=True):
            for name, values in zip(MAPS, maps, strict=True):
                out[f"{place} {name}"], out[f"{place} {name} other"], _ = diagonal(values)
        out["diagonal"] = diagonal(places[1].attention)[2]
    return {name: round(value, 5) for name, value in out.items()}


def images_embedded(parts: Any, database: int) -> float:
    """Images that were embedded to train: those of the batches, and DMCAC's database whenever it was made."""
    from lookalike import methods

    settings, sampler = parts.settings, parts.sampler
    kind, steps = methods.find(settings.method.name), settings.steps
    total = steps * sampler.size * kind.views_per_image(settings.method.own())
    own: Any = kind.Settings.parse(settings.method.own())
    if database and (own.weights.divergence or own.weights.attention):
        every, epoch = own.refresh.every, sampler.steps_per_epoch
        made = {"steps": -(-steps // every), "epochs": -(-steps // (every * epoch)), "never": 1}[own.refresh.unit]
        total += database * (2 * steps if own.full == "gradient" else made)
    return float(total)


def _unseen(z: Any, labels: Any, state: Mapping[str, Any], head_scale: float) -> Any:
    """The maps where part of the unseen images is searched by the rest."""
    import torch

    from lookalike.losses.dmcac import AttentionHeads, Database
    from lookalike.methods.dmcac import split_database
    from lookalike.methods.dmcac_report import class_maps

    halves = split_database(labels, fraction=0.5, seed=0, verbose=False)
    codes = torch.from_numpy(labels)
    heads = AttentionHeads(*state["heads.classifier"].shape, scale=head_scale)
    heads.load_state_dict({name: state[f"heads.{name}"] for name in heads.state_dict()})
    queries, searched = (torch.from_numpy(rows) for rows in halves)
    classes = int(codes.max()) + 1
    k = min(12, len(searched))
    return class_maps(z[queries], codes[queries], Database(z[searched], codes[searched]), heads, k, (classes, classes))
