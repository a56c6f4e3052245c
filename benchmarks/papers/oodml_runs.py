"""Runs of ooDML's claims: made once, stored as jobs, shared by every claim."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers import ClaimContext
from benchmarks.papers.grid import run_grid
from lookalike.shift import ags
from lookalike.shift.trials import FROZEN

SETS = ("cub", "cars", "grocery")
METHODS = ("s2sd", "diva", "margin", "ms", "arcface", "proxy_anchor", "r_margin", "uniform_prior")  # longest first
MEASURES = ("recall@1", "map@1000")
REVISION = 1
"""Of the experiments; raised whenever a run computes something else for the same settings."""
SEEDS = (0, 1, 2)
SPLITS = 5
STEPS = 700
FEW_METHODS = ("ms", "s2sd")
EPISODES, ADAPT_STEPS, SHOTS = 5, 200, (2, 5)
# The images are 96 to 112 px high; enlarged to 160 they are worth most for their cost.
INPUT: dict[str, Any] = {"size": 160, "pooling": "gem"}
REFERENCE_MODELS = ("efficientnet_lite0", "efficientnet_lite2")
# End to end a run takes a quarter of an hour of one thread at this size.
END_TO_END_STEPS = 450
END_TO_END: dict[str, Any] = {
    "model": {"size": 96},
    "views": {"mode": "end_to_end"},
    "sampler": {"classes_per_batch": 32},
    "optimizer": {"lr": 1e-4, "head_lr": 3e-4},
}


def settings_for(
    method: str, seed: int, name: str = SETS[0], more: Mapping[str, Any] | None = None, steps: int = STEPS
) -> Any:
    from lookalike.shift.experiment import RECIPE
    from lookalike.shift.experiment import trial_settings as resolved

    options: dict[str, Any] = {
        "recipe": RECIPE,
        "model": REFERENCE_MODELS[0],
        "steps": steps,
        "settings": {"model": INPUT} if more is None else more,
    }
    return resolved(method, seed=seed, layout=name, **options)


def table_of(context: ClaimContext, name: str, part: str = "all") -> Path:
    """The stored table of a set; `part` "test": the test side of its default split, for transfer."""
    from lookalike.data import audit, read_table
    from lookalike.data.table import Table

    path = context.jobs.folder / f"{name}-{part}.parquet"
    if not path.exists():
        if part == "all":
            audit(read_table(context.folder(name), layout=name), near=False).table.save(path)
        else:
            table = Table.load(table_of(context, name))
            splits = splits_of(context, name)
            table.take(splits.rows(table, splits.split(splits.default))["test"]).save(path)
    return path


def splits_of(context: ClaimContext, name: str) -> Any:
    """Five splits of a set with the whole sequence, by the first reference model; easier ones for CUB alone."""
    from lookalike.data.table import Table
    from lookalike.shift.make_splits import make_splits
    from lookalike.shift.split_set import SplitSet

    path = context.jobs.folder / f"{name}-splits.json"
    if not path.exists():
        context.say(f"Splits of {name}")
        table, model = Table.load(table_of(context, name)), _reference_model(REFERENCE_MODELS[0])
        make_splits(table, model, count=SPLITS, easier=name == "cub").save(path)
    return SplitSet.load(path)


def _reference_model(name: str) -> Any:
    from lookalike.models import Embedder

    return Embedder.from_pretrained(name, **INPUT)


@dataclass(frozen=True)
class Cell:
    """A method on one split of a data set."""

    set: str
    method: str
    split: Any
    kind: str = ""

    @property
    def name(self) -> str:
        return f"{self.set}-{self.kind}{self.method}-split{self.split.id}"

    @property
    def trained_by(self) -> tuple[str, ...]:
        return () if self.method == FROZEN else (self.method,)

    def row(self, seed: int, result: dict[str, Any]) -> dict[str, Any]:
        return {"method": self.method, "split": self.split.id, "fid": self.split.fid, "seed": seed, **result}


def rows_of(context: ClaimContext, name: str) -> list[dict[str, Any]]:
    """All runs of a data set, as the rows of `lookalike.shift.ags`.

    The first claim that asks runs all data sets, seed by seed and the slowest methods first. With `--finished` only
    seeds count on which every method is finished.
    """
    from lookalike.shift.experiment import controls
    from lookalike.shift.trials import trial

    if context.finished and not (context.jobs.folder / f"{name}-splits.json").exists():
        return []  # no run was ever started
    sets = (name,) if context.finished else SETS
    split_sets = {each: splits_of(context, each) for each in sets}

    def arguments(cell: Cell, seed: int) -> dict[str, Any]:
        splits = split_sets[cell.set]
        others = {other: str(table_of(context, other, "test")) for other in SETS if other != cell.set}
        settings = settings_for(cell.method if cell.method != FROZEN else METHODS[0], seed, cell.set)
        return {
            "table": str(table_of(context, cell.set)),
            "train": list(cell.split.train),
            "test": list(cell.split.test),
            "method": cell.method,
            "settings": settings.model_dump(mode="json"),
            "controls": controls(splits, splits.splits) if cell.split is splits.end_of_swapping() else {},
            "transfer": others if cell.split.id == splits.default else {},
        }

    rows = []
    for methods, seeds in ((METHODS, SEEDS), ((FROZEN,), SEEDS[:1])):  # the frozen model has no seed
        cells = [Cell(each, method, split) for method in methods for each in sets for split in split_sets[each].splits]
        results = run_grid(
            context,
            cells,
            seeds,
            arguments,
            trial,
            revision=REVISION,
            methods=lambda cell: cell.trained_by,
            prepare=lambda _: warm(context),
            whole_seeds=True,
            describe=_describe,
        )
        own = [cell for cell in cells if cell.set == name]
        rows += [cell.row(seed, results.results[cell.name, seed]) for cell in own for seed in results.seeds]
    return rows if any(row["method"] != FROZEN for row in rows) else []


def _describe(result: dict[str, Any]) -> str:
    return f"recall@1 {result['recall@1']:.4f}"


def sets_of(context: ClaimContext, rows: Callable[[ClaimContext, str], Any]) -> list[str]:
    """The data sets to judge by: all, or those with finished runs."""
    return [name for name in SETS if not context.finished or rows(context, name)]


def warm(context: ClaimContext) -> None:
    """Fill the caches once, before several processes start."""
    from lookalike.shift import shared_features

    for name in SETS:
        for part in ("all", "test"):
            context.say(f"Features of {name} ({part})")
            shared_features.load(table_of(context, name, part), settings_for(METHODS[0], 0))


def fewshot_rows(context: ClaimContext, name: str) -> list[dict[str, Any]]:
    """Zero- and few-shot on the easiest, the default and the hardest split of a data set."""
    from lookalike.shift.few_shot import ADAPT, fewshot_job, fewshot_trial, summarize

    splits = splits_of(context, name)
    chosen = {splits.splits[0].id, splits.default, splits.splits[-1].id}
    config = {"shots": SHOTS, "episodes": EPISODES, "adapt_steps": ADAPT_STEPS}
    cells = [
        Cell(name, method, split, "few-")
        for method in reversed(FEW_METHODS)
        for split in splits.splits
        if split.id in chosen
    ]

    def arguments(cell: Cell, seed: int) -> dict[str, Any]:
        settings = settings_for(cell.method, seed, name)
        return fewshot_job(table_of(context, name), cell.split, cell.method, settings, config, "")

    results = run_grid(
        context,
        cells,
        SEEDS,
        arguments,
        fewshot_trial,
        revision=REVISION,
        methods=lambda cell: (*cell.trained_by, ADAPT["method"]["name"]),
        prepare=lambda _: warm(context),
        whole_seeds=True,
    )
    episodes = ((cell, seed, one) for cell in cells for seed in results.seeds
                for one in results.results[cell.name, seed]["episodes"])  # fmt: skip
    return summarize([cell.row(seed, one) for cell, seed, one in episodes])


def end_to_end_rows(context: ClaimContext, name: str = "cars") -> tuple[list[dict[str, Any]], int]:
    """Two methods trained end to end on the first, middle and last split, beside the frozen model; number of seeds."""
    from lookalike.shift.trials import trial

    splits = splits_of(context, name).splits
    chosen = (splits[0], splits[len(splits) // 2], splits[-1])
    rows, counts = [], []
    for methods, seeds in ((FEW_METHODS, SEEDS), ((FROZEN,), SEEDS[:1])):
        cells = [Cell(name, method, split, "end-to-end-") for method in methods for split in chosen]

        def arguments(cell: Cell, seed: int) -> dict[str, Any]:
            method = cell.method if cell.method != FROZEN else FEW_METHODS[0]
            settings = settings_for(method, seed, name, END_TO_END, END_TO_END_STEPS).model_dump(mode="json")
            sides = {"train": list(cell.split.train), "test": list(cell.split.test)}
            return {"table": str(table_of(context, name)), **sides, "method": cell.method, "settings": settings}

        results = run_grid(
            context,
            cells,
            seeds,
            arguments,
            trial,
            revision=REVISION,
            methods=lambda cell: cell.trained_by,
            whole_seeds=True,
            describe=_describe,
        )
        rows += [cell.row(seed, results.results[cell.name, seed]) for cell in cells for seed in results.seeds]
        counts.append(len(results.seeds))
    return rows, min(counts[0], len(SEEDS) * counts[1])


def stored_curve() -> dict[str, list[float]]:
    """Mean recall@1 by method on the nine splits of CUB, easiest first, from the stored benchmark ``curve``."""
    from lookalike.core.files import read_json

    table = read_json(Path(__file__).parents[2] / "results" / "bench-curve.json", "stored curve")["figures"]["table"]
    return {row["method"]: [value for key, value in row.items() if key != "method"] for row in table}


def transfer_of(context: ClaimContext, name: str) -> dict[str, dict[str, dict[str, float]]]:
    """Models of a set's default split on the other sets: target → method → recall@1 with its interval over seeds."""
    return ags.transfer(rows_of(context, name))


def sequence_of(context: ClaimContext, name: str) -> list[float]:
    """FID along the unfiltered swaps, from the default split to the last."""
    return [step.fid for step in splits_of(context, name).sequence if step.kind in ("start", "harder")]


def progression_of(context: ClaimContext, name: str, model: str) -> list[float]:
    """The same swaps (those of the first model) as another backbone sees them."""
    splits_of(context, name)  # writes the file
    files = {"table": str(table_of(context, name)), "splits": str(context.jobs.folder / f"{name}-splits.json")}
    fids: list[float] = context.job(f"{name}-{model}", progression, **files, model=model)
    return fids


def progression(*, table: str, splits: str, model: str) -> list[float]:
    """FID of every swap of a file of splits, measured with another backbone."""
    from lookalike.data.augmentation import CenterView
    from lookalike.data.table import Table
    from lookalike.models import features_for
    from lookalike.shift.fid import ClassFID
    from lookalike.shift.split_set import SplitSet

    images, split_set, embedder = Table.load(Path(table)), SplitSet.load(splits), _reference_model(model)
    features = features_for(embedder, images, views=[CenterView(embedder.preprocess)])[0]
    codes, names = images.labels()
    place = {name: code for code, name in enumerate(names)}
    start = split_set.split(split_set.default)
    train, test = (list(map(place.__getitem__, side)) for side in (start.train, start.test))
    states = [(tuple(train), tuple(test))]
    for step in split_set.sequence:
        if step.kind == "harder":
            for left, right in step.swapped:
                train[train.index(place[left])], test[test.index(place[right])] = place[right], place[left]
            states.append((tuple(train), tuple(test)))
    return ClassFID(features[codes >= 0], codes[codes >= 0], "samples").along(states)
