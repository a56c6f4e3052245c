"""`python -m benchmarks.papers t3ar --protocol`: adaptation measured as papers do, on folders a user has.

Every shift of a data set, several methods, parts of the target, numbers of neighbors and seeds. A run that is finished
is kept, so the same command goes on after a stop.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core import progress as say
from lookalike.core.device import threads
from lookalike.core.engine import Jobs
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.report_blocks import Block, Cell, Grid, Lines, Section, Series, Verdict
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.training import recipe


@dataclass(frozen=True)
class Protocol:
    """How a data set is read, its shifts (source, target), and what counts."""

    layout: str
    shifts: tuple[tuple[str, str], ...]
    measure: str = "accuracy"
    """`accuracy` over all images, or `class_mean`, the mean over the classes."""
    paper: dict[str, Any] = field(default_factory=dict)
    """What is other at the paper's scale."""


PROTOCOLS = {
    "pacs": Protocol("pacs", (("photo", "art_painting"), ("photo", "cartoon"), ("photo", "sketch"))),
    # In the order of Table 8.
    "domainnet126": Protocol(
        "domainnet",
        (
            ("real", "clipart"),
            ("real", "painting"),
            ("painting", "clipart"),
            ("clipart", "sketch"),
            ("sketch", "painting"),
            ("real", "sketch"),
            ("painting", "real"),
        ),
    ),
    "visda": Protocol(
        "visda",
        (("synthetic", "real/val"),),
        "class_mean",
        {
            "source": {"epochs": 10},
            "methods": {"shot": {"lr": 1e-4, "late_labels": True}, "mcc": {"confusion_temperature": 3.0}},
        },
    ),
}
# A method by name -> what it changes.
METHODS: dict[str, dict[str, Any]] = {
    "t3ar": {},
    "without": {"contrast": {"pool_set": "none"}},
    "random": {"retrieval": "random"},
    **{name: {"method": name} for name in ("source", "bn", "tent", "shot", "adacontrast", "mcc")},
}
SHORT = {"steps": 60, "epochs": None, "batch_size": 32, "batch_norm": "keep"}
"""As T3AR and SHOT are run small, in place of the authors' epochs and batches."""
SMALL: dict[str, Any] = {
    "model": "efficientnet_lite0",
    "size": 96,
    "head": 256,
    "source": {
        "layer": "stage4",
        "batch_size": 64,
        "steps": 200,
        "lr": 5e-3,
        "num_views": 4,
        "batch_norm": "keep",
        "cls_view": "weak",
        "label_smoothing": 0.1,
        "nesterov": True,
    },
    # T3AR's default settings, but for the layer, which `auto` would choose as well.
    "adapt": {"layer": "stage4"},
    "methods": {
        "tent": {**SHORT, "lr": 1e-5},
        "adacontrast": {**SHORT, "lr": 1e-4, "key_momentum": 0.95},
        "mcc": SHORT,
    },
}
PAPER: dict[str, Any] = {
    "device": "auto",
    "model": "resnet50",
    "size": 224,
    "head": 256,
    "norm": "bn",
    "source": {
        "layer": "pixels",
        "batch_size": 128,
        "epochs": 60,
        "lr": 2e-4,
        "batch_norm": "target-train",
        "cls_view": "weak",
        "label_smoothing": 0.1,
    },
    "adapt": {"config": "paper_test"},
    "few": {"config": "paper_test_few"},
    "methods": {
        "tent": {**recipe.load("tent", "adapt"), "warmup_epochs": 0},
        "shot": {
            **recipe.load("shot", "adapt"),
            "head_lr_factor": 10,
            "epochs": 15,
            "batch_size": 64,
            "warmup_epochs": 0,
        },
        "adacontrast": {
            **recipe.load("adacontrast", "adapt"),
            "head_lr_factor": 10,
            "min_lr": 0.0,
            "warmup_epochs": 0,
        },
        "mcc": {**recipe.load("mcc", "adapt"), "warmup_epochs": 0},
    },
}
# `methods` of a scale is what a baseline is run with in place of T3AR's rate, batch and so on.
SCALES = {"small": SMALL, "paper": PAPER}
PICKED = ("source", "bn", "without", "t3ar")


def protocol(
    *,
    name: str,
    data: str | Path,
    pool: Sequence[str | Path] = (),
    method: Sequence[str] = PICKED,
    fraction: Sequence[float] = (1.0,),
    neighbors: Sequence[int] = (),
    retriever: str | None = None,
    seeds: int = 1,
    scale: str = "small",
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
) -> Run:
    """Measure adaptation over the shifts of PACS, DomainNet-126 or VisDA-C, lying in the folder `data`.

    For every shift a classifier is trained on the source alone, adapted by each method to (stratified parts of)
    the target, and asked for all of the target. `neighbors` adds runs of t3ar with so many. `scale` is `small` (a
    small network at 96 px, lower layers computed once) or `paper` (ResNet-50 at 224 px, Table 6); `settings` lie over.
    """
    chosen, base = PROTOCOLS[choose(name, PROTOCOLS, "a protocol")], SCALES[choose(scale, SCALES, "a scale")]
    for each in method:
        choose(each, METHODS, "a method of a protocol")
    if any(not 0 < share <= 1 for share in fraction) or seeds < 1:
        raise LookalikeError("Fractions lie above 0 and up to 1, and at least one seed is needed.")
    if not pool and ({"t3ar", "random"} & set(method) or neighbors):
        raise LookalikeError(
            "Retrieval needs images to retrieve: give --pool, or methods without (`without`, `bn`, …)."
        )
    if scale == "paper":
        base = merge(base, chosen.paper)
    base = {**base, "adapt": merge(base["adapt"], dict(settings or {}))}
    method, neighbors = list(dict.fromkeys(method)), list(dict.fromkeys(neighbors))
    fraction = list(dict.fromkeys(map(float, fraction)))
    options = {
        "data": str(Path(data).absolute()),
        "layout": chosen.layout,
        "pool": [str(Path(folder).absolute()) for folder in pool],
        "retriever": retriever,
        "scale": base,
    }
    request = {"name": name, "methods": list(method), "fractions": list(fraction), "neighbors": list(neighbors)}
    run = Run.create("protocol", {**options, **request, "seeds": seeds}, path=out)
    with run.removed_if_failed(), run.locked():
        rows = _measured(options, chosen, method, fraction, neighbors, seeds)
        for section, content in sections(name, chosen, rows).items():
            run.write_section(section, content)
        run.checkpoints.mkdir()
        run.write_result(finished=True, protocol=name, measure=chosen.measure, rows=rows)
    return run


def _measured(
    arguments: dict[str, Any],
    chosen: Protocol,
    methods: Sequence[str],
    fractions: Sequence[float],
    neighbors: Sequence[int],
    seeds: int,
) -> list[dict[str, Any]]:
    """A row a run."""
    plans: list[dict[str, Any]] = []
    for seed in range(seeds):
        for source, target in chosen.shifts:
            plain = {"source": source, "target": target, "seed": seed}
            for fraction in fractions:
                plans += [{**plain, "fraction": fraction, "method": method} for method in methods]
            plans += [{**plain, "fraction": 1.0, "method": "t3ar", "neighbors": k} for k in neighbors]
    jobs = Jobs(folders.home() / "jobs" / "protocol")
    todo = {" ".join(map(str, plan.values())): {**arguments, **plan} for plan in plans}
    rows, start = [], time.monotonic()
    for number, (key, plan) in enumerate(zip(todo, plans, strict=True), 1):
        result = jobs.run(key, trial, **todo[key])
        rows.append({**plan, **result})
        rest = (time.monotonic() - start) / number * (len(todo) - number) / 60
        say.say(f"{number} of {len(todo)}  {key}: {result[chosen.measure]:.2f}; about {rest:.0f} min left")
    return rows


def trial(
    *,
    data: str,
    layout: str,
    pool: list[str],
    retriever: str | None,
    scale: dict[str, Any],
    source: str,
    target: str,
    fraction: float,
    method: str,
    seed: int,
    neighbors: int | None = None,
) -> dict[str, Any]:
    """One run. Without a retriever's name the source model retrieves."""
    import torch

    from benchmarks.papers import t3ar_measure as how
    from lookalike.adaptation.pool import read_pool
    from lookalike.core.device import CPU
    from lookalike.models import Embedder

    torch.set_num_threads(threads())
    over = merge(METHODS[method], {} if neighbors is None else {"num_neighbors": neighbors})
    settings = how.settings_for(scale, over, fraction)
    expert = None
    if retriever is not None:
        expert = Embedder.from_pretrained(retriever, size=scale["size"], device=scale.get("device", CPU))
    here, there = how.domain(data, layout, source), how.domain(data, layout, target)
    base = how.source_model(here, seed, scale)
    rows = how.stratified(there.labels()[0], fraction, seed)
    outside = read_pool(pool) if pool else None
    model, used = how.adapted(base, there, rows, settings, pool=outside, expert=expert, source=here, seed=seed)
    return {**how.accuracy(model, settings.layer, there, rows), "used": used}


def sections(name: str, chosen: Protocol, rows: Sequence[Mapping[str, Any]]) -> dict[str, Section]:
    """Tables by shift (and by class), and the curves against the target's size and the number of neighbors."""
    whole = [row for row in rows if row["fraction"] == max(r["fraction"] for r in rows) and "neighbors" not in row]
    methods = list(dict.fromkeys(row["method"] for row in whole))
    means = {method: _mean(whole, chosen.measure, method=method) for method in methods}
    best = max(means, key=means.__getitem__)
    message = f"{best} names most right: {means[best]:.1f} % ({chosen.measure.replace('_', ' ')}, {name})."
    out = {"protocol-verdict": Section(title="Verdict", order=10, blocks=[Verdict(message=message)])}
    columns = ["method", *(f"{a} → {b}" for a, b in chosen.shifts), "mean"]
    table: list[list[Cell]] = [
        [m, *(_round(_mean(whole, chosen.measure, method=m, source=a, target=b)) for a, b in chosen.shifts), _round(v)]
        for m, v in means.items()
    ]
    blocks: list[Block] = [Grid(title="Named right, %", columns=columns, rows=table)]
    if chosen.measure == "class_mean":
        names = list(whole[0]["by_class"])
        by_class: list[list[Cell]] = [
            [
                m,
                *(_round(statistics.fmean(r["by_class"][n] for r in whole if r["method"] == m)) for n in names),
                _round(v),
            ]
            for m, v in means.items()
        ]
        blocks.append(Grid(title="By class, %", columns=["method", *names, "mean"], rows=by_class))
    out["protocol-table"] = Section(title="By shift", order=20, blocks=blocks)
    curves = _curves(chosen.measure, [r for r in rows if "neighbors" not in r], "fraction", "share of the target")
    near = [r for r in rows if "neighbors" in r]
    more = _curves(chosen.measure, near, "neighbors", "neighbors of each image")
    if curves or more:
        out["protocol-curves"] = Section(title="Against size and neighbors", order=30, blocks=[*curves, *more])
    return out


def _curves(measure: str, rows: Sequence[Mapping[str, Any]], by: str, label: str) -> list[Block]:
    values = sorted({row[by] for row in rows})
    if len(values) < 2:
        return []
    series = [
        Series(name=m, x=values, y=[_mean(rows, measure, method=m, **{by: value}) for value in values])
        for m in dict.fromkeys(row["method"] for row in rows)
    ]
    return [Lines(x_label=label, y_label="named right, %", series=series)]


def _mean(rows: Sequence[Mapping[str, Any]], measure: str, **where: Any) -> float:
    return statistics.fmean(r[measure] for r in rows if all(r[key] == value for key, value in where.items()))


def _round(value: float) -> float:
    return round(value, 1)
