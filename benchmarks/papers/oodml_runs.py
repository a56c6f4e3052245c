"""The runs behind ooDML's claims: made once, stored as jobs, read by every claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers import ClaimContext
from lookalike.shift import ags
from lookalike.shift.trials import FROZEN

SETS = ("cub", "cars", "grocery")
METHODS = ("s2sd", "diva", "margin", "ms", "arcface", "proxy_anchor", "r_margin", "uniform_prior")  # longest first
MEASURES = ("recall@1", "map@1000")
SEEDS = (0, 1, 2)
SPLITS = 5
STEPS = 700
FEW_METHODS = ("ms", "s2sd")
EPISODES, ADAPT_STEPS, SHOTS = 5, 200, (2, 5)
# The images are 96 to 112 px high; enlarged to 160 they are worth most for their cost.
INPUT: dict[str, Any] = {"size": 160, "pooling": "gem"}
REFERENCE_MODELS = ("efficientnet_lite0", "efficientnet_lite2")


def settings_for(method: str, seed: int, name: str = SETS[0]) -> Any:
    from lookalike.shift.experiment import RECIPE
    from lookalike.shift.experiment import trial_settings as resolved

    given: dict[str, Any] = {
        "recipe": RECIPE,
        "model": REFERENCE_MODELS[0],
        "steps": STEPS,
        "settings": {"model": INPUT},
    }
    return resolved(method, seed=seed, layout=name, **given)


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
    """Five splits of a set with the whole sequence, by the first model."""
    from lookalike.data.table import Table
    from lookalike.shift.make_splits import make_splits
    from lookalike.shift.split_set import SplitSet

    path = context.jobs.folder / f"{name}-splits.json"
    if not path.exists():
        context.say(f"Splits of {name}")
        make_splits(Table.load(table_of(context, name)), _reference_model(REFERENCE_MODELS[0]), count=SPLITS).save(path)
    return SplitSet.load(path)


def _reference_model(name: str) -> Any:
    from lookalike.models import Embedder

    return Embedder.from_pretrained(name, **INPUT)


def rows_of(context: ClaimContext, name: str) -> list[dict[str, Any]]:
    """Every run of a set. The first claim that asks makes those of all sets: seed after seed, the longest first, so
    that what is finished early is a whole (`reproduce --finished` judges by whole seeds)."""
    from lookalike.shift.trials import trial

    if context.finished:
        return whole_seeds(context, plan(context, name))
    plans = {found: plan(context, found) for found in SETS}
    order = (*METHODS, FROZEN)
    both = {key: pair for plan in plans.values() for key, pair in plan.items()}
    keys = sorted(both, key=lambda key: (both[key][1]["seed"], order.index(both[key][1]["method"])))
    jobs = {key: both[key][0] for key in keys}
    missing = sum(context.jobs.stored(key, given) is None for key, given in jobs.items())
    if missing:
        context.say(f"{missing} of {len(jobs)} runs are to be made")
        warm(context)
    results = {}
    for key, found in context.jobs.run_many(jobs, trial, processes=context.threads if missing else 1):
        results[key] = found
        if missing and len(results) % 24 == 0:
            context.say(f"{len(results)} of {len(jobs)} runs")
    return [{**about, **results[key]} for key, (_, about) in plans[name].items()]


Plan = dict[str, tuple[dict[str, Any], dict[str, Any]]]


def whole_seeds(context: ClaimContext, plan: Plan) -> list[dict[str, Any]]:
    """The finished runs of those seeds of which every run is finished; the frozen model has one seed only."""
    found = {key: context.jobs.stored(key, given) for key, (given, _) in plan.items()}
    missing = {plan[key][1]["seed"] for key, record in found.items() if record is None}
    rows = []
    for key, record in found.items():
        about = plan[key][1]
        if record is not None and (about["seed"] not in missing or about["method"] == FROZEN):
            rows.append({**about, **record["result"]})
    return rows if any(row["method"] != FROZEN for row in rows) else []


def sets_of(context: ClaimContext, rows: Callable[[ClaimContext, str], Any]) -> list[str]:
    """The sets to judge by: all, or those of which something is finished."""
    return [name for name in SETS if not context.finished or rows(context, name)]


def plan(context: ClaimContext, name: str) -> Plan:
    """Arguments and description of every run of a set, by name."""
    from lookalike.shift.experiment import controls

    splits = splits_of(context, name)
    end = splits.end_of_swapping()
    others = {other: str(table_of(context, other, "test")) for other in SETS if other != name}
    out = {}
    for method in (*METHODS, FROZEN):
        for split in splits.splits:
            for seed in SEEDS if method != FROZEN else SEEDS[:1]:
                settings = settings_for(method if method != FROZEN else METHODS[0], seed, name)
                about = {"method": method, "split": split.id, "fid": split.fid, "seed": seed}
                given = {
                    "table": str(table_of(context, name)),
                    "train": list(split.train),
                    "test": list(split.test),
                    "method": method,
                    "settings": settings.model_dump(mode="json"),
                    "controls": controls(splits, splits.splits) if split is end else {},
                    "transfer": others if split.id == splits.default else {},
                }
                out[f"{name}-{method}-split{split.id}-seed{seed}"] = (given, about)
    return out


def warm(context: ClaimContext) -> None:
    """Fill the caches once, before several processes ask for them."""
    from lookalike.shift import shared_features

    for name in SETS:
        for part in ("all", "test"):
            context.say(f"Features of {name} ({part})")
            shared_features.load(table_of(context, name, part), settings_for(METHODS[0], 0))


def fewshot_rows(context: ClaimContext, name: str) -> list[dict[str, Any]]:
    """Zero- and few-shot on the easiest, the default and the hardest split of a set."""
    from lookalike.shift.few_shot import fewshot_job, fewshot_trial, summarize

    splits = splits_of(context, name)
    chosen = {splits.splits[0].id, splits.default, splits.splits[-1].id}
    config = {"shots": SHOTS, "episodes": EPISODES, "adapt_steps": ADAPT_STEPS}
    plan: Plan = {}
    for method in reversed(FEW_METHODS):
        for split in (split for split in splits.splits if split.id in chosen):
            for seed in SEEDS:
                about = {"method": method, "split": split.id, "fid": split.fid, "seed": seed}
                given = fewshot_job(
                    table_of(context, name), split, method, settings_for(method, seed, name), config, ""
                )
                plan[f"{name}-few-{method}-split{split.id}-seed{seed}"] = (given, about)
    if context.finished:
        done = whole_seeds(context, plan)
        return summarize([{**row, **found} for row in done for found in row.pop("episodes")])
    if any(context.jobs.stored(key, given) is None for key, (given, _) in plan.items()):
        context.say(f"Few-shot on {name}")
        warm(context)
    rows: list[dict[str, Any]] = []
    jobs = {key: given for key, (given, _) in plan.items()}
    for key, found in context.jobs.run_many(jobs, fewshot_trial, processes=context.threads):
        rows += [{**plan[key][1], **row} for row in found["episodes"]]
    return summarize(rows)


def transfer_of(context: ClaimContext, name: str) -> dict[str, dict[str, dict[str, float]]]:
    """Models of a set's default split on the other sets: target → method → recall@1 with its interval over seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows_of(context, name):
        for target, values in row.get("transfer", {}).items():
            found.setdefault(target, {}).setdefault(row["method"], []).append(values["recall@1"])
    return {
        target: {method: ags.t_interval(np.array(values)).to_json() for method, values in methods.items()}
        for target, methods in found.items()
    }


def sequence_of(context: ClaimContext, name: str) -> list[float]:
    """FID along the unfiltered swaps, from the default split to the last."""
    return [step.fid for step in splits_of(context, name).sequence if step.kind in ("start", "harder")]


def progression_of(context: ClaimContext, name: str, model: str) -> list[float]:
    """The same swaps (those of the first model) as another backbone sees them."""
    found: list[float] = context.job(
        f"{name}-{model}",
        progression,
        table=str(table_of(context, name)),
        splits=str(_splits_file(context, name)),
        model=model,
    )
    return found


def _splits_file(context: ClaimContext, name: str) -> Path:
    splits_of(context, name)
    return context.jobs.folder / f"{name}-splits.json"


def progression(*, table: str, splits: str, model: str) -> list[float]:
    """FID of every swap of a file of splits, measured with another backbone."""
    from lookalike.data.augmentation import CenterView
    from lookalike.data.table import Table
    from lookalike.models import features_for
    from lookalike.shift.fid import ClassFID
    from lookalike.shift.split_set import SplitSet

    images, found, embedder = Table.load(Path(table)), SplitSet.load(splits), _reference_model(model)
    features = features_for(embedder, images, views=[CenterView(embedder.preprocess)])[0]
    codes, names = images.labels()
    place = {name: code for code, name in enumerate(names)}
    start = found.split(found.default)
    train, test = (list(map(place.__getitem__, side)) for side in (start.train, start.test))
    states = [(tuple(train), tuple(test))]
    for step in found.sequence:
        if step.kind == "harder":
            for left, right in step.swapped:
                train[train.index(place[left])], test[test.index(place[right])] = place[right], place[left]
            states.append((tuple(train), tuple(test)))
    return ClassFID(features[codes >= 0], codes[codes >= 0], "samples").along(states)
