"""The papers' tables at the papers' own scale: one recipe and one command a table.

``python -m benchmarks.papers xbn --scale paper --only table-5`` runs the rows of a table and shows them beside the
paper's figures; ``--smoke`` runs two steps of every row at tiny width on generated images, on any device. The settings
of all rows are compared with the papers' by tests/benchmarks/papers/test_tables.py.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.papers.cells import Cells
from benchmarks.papers.grid import recalls, revisions, run_training
from lookalike.core.settings import merge
from lookalike.training import recipe
from lookalike.training.settings import resolve

load_recipe = functools.cache(recipe.load)  # hundreds of rows share them

REVISION = 1


@dataclass(frozen=True)
class Row:
    """A row of a table: one way to train on one data set.

    Args:
        table: Its table, as `table-1`.
        arm: Its name within the table.
        data: Folder of the data set within ``--data``.
        recipe: The recipe.
        settings: What differs from the recipe.
        figure: The paper's figure in percent; None where its text has none.
        command: `train` or `pretrain`.
        measure: What the figure measures: `recall`, `knn@K`, the k-NN accuracy with K neighbors, or `few-K`, recall@1
            after adaptation to K images of every test class.
        epoch: Read at this epoch instead of the end, in steps.
        seeds: Number of seeds.
        split: Number of the split of ooDML in DATA/{data}-splits.json.
    """

    table: str
    arm: str
    data: str
    recipe: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    figure: float | None = None
    command: str = "train"
    measure: str = "recall"
    epoch: int | None = None
    seeds: int = 1
    split: int | None = None

    @property
    def name(self) -> str:
        return f"{self.table}-{self.data}-{self.arm}"

    @property
    def run_name(self) -> str:
        """The name of its run; a run gives the figures of both numbers of shots."""
        return self.name.removesuffix(f"-{self.measure}")

    @property
    def methods(self) -> list[str]:
        """The methods it trains and adapts by."""
        own: str = self.resolve()["method"]["name"]
        return [own, "margin"] if self.measure in FEW else [own]

    def resolve(self) -> dict[str, Any]:
        """The complete settings."""
        return resolve(load_recipe(self.recipe), dict(self.settings)).model_dump(mode="json")


# ---- XBN -------------------------------------------------------------------------------------------------------------

RULES: dict[str, dict[str, Any]] = {
    "none": {"size": 0, "drift": "none"},
    "xbm": {"drift": "none"},
    "xbm*": {"drift": "none", "batch_loss": True},
    "xbn": {"drift": "xbn"},
    "ema": {"drift": "ema", "beta": 0.1},
    "axbn": {"drift": "axbn"},
}
IMAGES = {"sop": 59_551, "in_shop": 25_882, "deepfashion2": 217_778}
RECIPES = {"sop": "xbn_sop", "in_shop": "xbn_in_shop", "deepfashion2": "xbn_deepfashion2"}
EPOCHS, FALL = 50, 15  # the learning rate falls every 15 epochs


def _xbn(
    table: str, data: str, rule: str, figure: float | None, batch: int = 64, recipe: str = "", norm: str = "none"
) -> Row:
    epoch = IMAGES[data] // batch
    settings = {
        "memory": {**RULES[rule], "warmup_steps": 0, "fill": False},
        "head": {"norm": norm, "norm_batch_size": 2 * batch if norm == "mbn" else None},
        "sampler": {"classes_per_batch": batch // 4, "images_per_class": 4},
        "schedule": {"step_size": FALL * epoch},
        "steps": EPOCHS * epoch,
        "evaluate_every": epoch,
        "keep": "trained",
    }
    arm = "-".join([rule, f"b{batch}", *([norm] if norm != "none" else [])])
    return Row(table, arm, data, recipe or RECIPES[data], settings, figure, seeds=3)


def _xbn_rows() -> list[Row]:
    figures = {
        "sop": {"none": 75.94, "xbm": 76.80, "xbm*": 79.53, "xbn": 80.62, "axbn": 80.73},
        "in_shop": {"none": 88.76, "xbm": 86.17, "xbm*": 90.91, "xbn": 91.49, "axbn": 91.51},
        "deepfashion2": {"none": 36.45, "xbm": 41.22, "xbn": 45.12, "axbn": 45.33},
    }
    rows = [
        _xbn("table-1", data, rule, each[rule]) for data, each in figures.items() for rule in each if rule != "xbm*"
    ]
    rows += [_xbn("table-2", data, "none", figure, 512) for data, figure in (("sop", 79.63), ("in_shop", 90.39))]
    rows += [_xbn("table-2", data, "xbm*", figures[data]["xbm*"]) for data in ("sop", "in_shop")]
    norms = {"bn": (48.96,) * 3, "mbn": (48.96,) * 3, "ln": (75.77, 79.51, 80.58)}
    rows += [
        _xbn("table-3", "sop", rule, value, norm=norm)
        for norm, values in norms.items()
        for rule, value in zip(("none", "xbm", "xbn"), values, strict=True)
    ]
    rows += [_xbn("table-4", "sop", rule, value) for rule, value in (("xbn", 80.62), ("ema", 80.48), ("axbn", 80.73))]
    swin = {16: (77.80, 61.18, 86.25, 86.40), 32: (81.81, 86.99, 87.59, 87.74)}
    rules = ("none", "xbm", "xbn", "axbn")
    rows += [
        _xbn("table-5", "sop", rule, value, batch, "xbn_swin_sop")
        for batch, values in swin.items()
        for rule, value in zip(rules, values, strict=True)
    ]
    large = (78.69, 78.38, 79.96, 80.31)
    rows += [_xbn("table-6", "sop", rule, value, 256) for rule, value in zip(rules, large, strict=True)]
    for data in ("cifar10", "cifar100"):  # 200 epochs of 390 steps, read at the 15th
        for rule in ("none", "xbn"):
            settings = {"memory": {"drift": rule}, "keep": "trained"}
            common: dict[str, Any] = {"command": "pretrain", "measure": "knn@200", "epoch": 15 * 390}
            rows.append(Row("figure-3", f"moco-{rule}", data, "moco_cifar", settings, **common))
    return rows


# ---- CARP ------------------------------------------------------------------------------------------------------------

IMAGENET = 1_281_167


def _carp(table: str, arm: str, figure: float | None, batch: int, epochs: int, read: int | None = None,
          recipe: str = "carp_ablation", **method: Any) -> Row:  # fmt: skip
    epoch = IMAGENET // batch
    settings = {
        "method": method,
        "sampler": {"batch_size": batch},
        "optimizer": {"lr": 0.6 * batch / 1024},
        "steps": epochs * epoch,
        "evaluate_every": 25 * epoch,
        "keep": "trained",
    }
    common: dict[str, Any] = {"command": "pretrain", "measure": "knn@20", "epoch": read and read * epoch}
    return Row(table, arm, "imagenet", recipe, settings, figure, **common)


def _carp_rows() -> list[Row]:
    rows = [
        _carp("table-1", f"{epochs}-epochs", figure, 1024, epochs, recipe="carp_imagenet")
        for epochs, figure in ((200, 64.8), (400, 66.1), (800, 66.8))
    ]
    counts = {1024: 48.81, 2048: 49.98, 4096: 50.69, 16_384: 50.81, 65_536: 51.2, 262_144: 51.31}
    rows += [_carp("table-3", f"K{k}", figure, 256, 50, prototypes=k) for k, figure in counts.items()]
    batches = {128: 46.56, 256: 51.32, 512: 54.23, 1024: 56.63}
    rows += [_carp("table-4", f"b{batch}", figure, batch, 50) for batch, figure in batches.items()]
    blocks = (32, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)
    ema = (49.56, 50.75, 51.19, 51.20, 51.32, 51.06, 51.31, 51.08, 49.67, 0.11)
    without = (48.95, 49.28, 48.81, 47.37, 46.16, 44.68, 44.29, 44.39, 47.25, 0.11)
    rows += [
        _carp("table-5", f"B{block}-{teacher}", figure, 256, 50, block_size=block, teacher=teacher)
        for teacher, figures in (("ema", ema), ("stopgrad", without))
        for block, figure in zip(blocks, figures, strict=True)
    ]
    rows.append(_carp("table-6", "eta0", 51.0, 256, 50, teacher="previous"))
    constant = {0.5: 50.2, 0.9: 50.3, 0.99: 51.1, 0.999: 50.1}
    rows += [
        _carp("table-6", f"eta{eta:g}", figure, 256, 50, momentum=eta, momentum_schedule="constant")
        for eta, figure in constant.items()
    ]
    rows.append(_carp("table-6", "eta0.99-1", 51.3, 256, 50))
    drawn = {"constant": (45.15, 49.89, 52.81, 53.32), "random": (48.68, 53.98, 55.93, 56.38)}
    rows += [
        _carp("table-7", f"{kind}-{epochs}", figure, 256, 100, epochs, partition=kind)
        for kind, figures in drawn.items()
        for epochs, figure in zip((25, 50, 75, 100), figures, strict=True)
    ]
    return rows


# ---- DMCAC -----------------------------------------------------------------------------------------------------------


def _dmcac(table: str, arm: str, data: str, encoder: str, figure: float, **method: Any) -> Row:
    recipe = f"dmcac_{encoder}_{data}"
    return Row(table, f"{encoder}-{arm}", data, recipe, {"method": method, "keep": "trained"}, figure)


def _dmcac_rows() -> list[Row]:
    main = {
        "deit": {"cub": 78.4, "in_shop": 91.1, "cars": 84.4, "sop": 84.2},
        "vit": {"cub": 86.2, "in_shop": 92.7, "cars": 88.5, "sop": 86.3},
    }
    rows = [_dmcac("table-1", "dmcac", data, e, figure) for e, each in main.items() for data, figure in each.items()]
    weights = {
        (1, 1, 1): (91.1, 92.7), (1, 0, 1): (91.2, 92.7), (1, 1, 0): (91.0, 92.4), (0.5, 0.5, 1): (91.4, 93.0),
        (0.5, 0, 1): (91.4, 93.1), (1, 0.5, 0.5): (91.3, 92.9), (1, 0.5, 0): (90.2, 91.9), (0, 0.5, 1): (90.3, 91.7),
    }  # fmt: skip
    for three, figures in weights.items():
        named = dict(zip(("divergence", "classes", "attention"), map(float, three), strict=True))
        arm = ",".join(f"{w:g}" for w in three)
        rows += [
            _dmcac("table-2", arm, "in_shop", e, figure, weights=named)
            for e, figure in zip(("deit", "vit"), figures, strict=True)
        ]
    views = {3: (78.6, 86.0), 6: (78.4, 86.2), 9: (78.3, 86.3), 12: (78.2, 86.1), 15: (77.9, 86.1), 20: (77.7, 86.0)}
    rows += [
        _dmcac("table-3", f"{count}-views", "cub", e, figure, views=count)
        for count, figures in views.items()
        for e, figure in zip(("deit", "vit"), figures, strict=True)
    ]
    full = {"cub": (0.1, (78.6, 86.8)), "cars": (0.05, (84.8, 89.2))}
    rows += [
        _dmcac("table-4", "full", data, e, figure, full="gradient", database_fraction=fraction)
        for data, (fraction, figures) in full.items()
        for e, figure in zip(("deit", "vit"), figures, strict=True)
    ]
    return rows


# ---- ooDML -----------------------------------------------------------------------------------------------------------

SPLITS = {"cub": (9, 5864), "cars": (8, 8054), "sop": (8, 59_551)}  # splits, training images of the default one


FEW = {"few-2": 1000, "few-5": 1500}  # tables 7 and 8: steps of adaptation by the measure
EPISODES, FEW_LR = 10, 1e-4  # the head learns ten times as fast as in training


def _oodml_settings(method: str, data: str) -> dict[str, Any]:
    from lookalike.shift.experiment import AUTHOR_SETTINGS, AUTHOR_SETTINGS_BY_LAYOUT

    classes = 54 if method == "diva" else 56
    epoch = SPLITS[data][1] // (2 * classes)
    return merge(
        load_recipe("oodml"),  # again, since a method that is named brings its own defaults along
        {"method": {"name": method, **AUTHOR_SETTINGS_BY_LAYOUT.get(data, {}).get(method, {})}},
        {"optimizer": {"loss_lr": 5e-4}},
        AUTHOR_SETTINGS.get(method, {}),
        {
            "sampler": {"classes_per_batch": classes},
            "steps": 200 * epoch,
            "evaluate_every": 20 * epoch,
            "data": {"split": "table"},
        },
    )


def _oodml_rows() -> list[Row]:
    """Tables 4 to 6: recall@1 of every method on every split of a set; tables 7 and 8: after few-shot adaptation."""
    from benchmarks.papers.oodml_rules import paper
    from lookalike.shift.experiment import METHODS

    rows, curves, few = [], paper()["recall@1"], paper()["few-shot"]
    for table, (data, (count, _)) in zip(("table-4", "table-5", "table-6"), SPLITS.items(), strict=True):
        for method in METHODS:
            settings = _oodml_settings(method, data)
            figures = curves[data].get(method, [None] * count)
            rows += [
                Row(table, f"{method}-split{number}", data, "oodml", settings, figure, seeds=5, split=number)
                for number, figure in zip(range(1, count + 1), figures, strict=True)
            ]
    for table, data in (("table-7", "cub"), ("table-8", "cars")):
        for measure, number in itertools.product(FEW, range(1, SPLITS[data][0] + 1)):
            for method, figures in few[data][measure.removeprefix("few-")].items():
                figure = dict(zip(few[data]["splits"], figures, strict=True)).get(number)
                common: dict[str, Any] = {"measure": measure, "split": number}
                settings = _oodml_settings(method, data)
                rows.append(Row(table, f"{method}-split{number}-{measure}", data, "oodml", settings, figure, **common))
    return rows


ROWS: dict[str, Callable[[], list[Row]]] = {
    "xbn": _xbn_rows,
    "carp": _carp_rows,
    "dmcac": _dmcac_rows,
    "oodml": _oodml_rows,
}


def rows_of(paper: str, only: Iterable[str] = ()) -> list[Row]:
    """The rows of a paper's tables, or of some of them."""
    from lookalike.core.errors import choose

    rows = ROWS[choose(paper, ROWS, "a paper with tables at its own scale")]()
    chosen = [choose(table, {row.table for row in rows}, f"a table of {paper}") for table in only]
    return [row for row in rows if not chosen or row.table in chosen]


# ---- running them ----------------------------------------------------------------------------------------------------


def run_tables(
    paper: str, data: Path, *, only: Iterable[str] = (), out: str | Path = "results", finished: bool = False
) -> list[dict[str, Any]]:
    """Run the rows of a paper's tables, one after another, on the best device.

    Args:
        paper: One of `ROWS`.
        data: Folder of the data sets.
        only: Tables; all by default.
        out: Folder of the results; cells are stored in ``OUT/cells/PAPER/paper/``.
        finished: Start no run, and show the rows that are finished.

    Returns:
        The rows, with the paper's figure and the mean over the seeds.
    """
    cells, answer = Cells(Path(out) / "cells" / paper / "paper", {"DATA": data}), []
    for row in rows_of(paper, only):
        values = []
        for seed in range(row.seeds):
            arguments = {"data": str(data / row.data), "row": row_arguments(row), "seed": seed}
            arguments["revision"] = revisions(REVISION, *row.methods)
            key = f"{row.run_name}-s{seed}"
            stored = cells.stored(key, arguments)
            if stored is not None or not finished:
                result = (stored or {"result": cells.run(key, run_row, **arguments)})["result"]
                values.append(result[row.measure if row.measure in FEW else "value"])
        mean = round(sum(values) / len(values), 2) if values else None
        answer.append({"table": row.table, "data": row.data, "arm": row.arm, "paper": row.figure, "here": mean,
                       "seeds": len(values)})  # fmt: skip
    return answer


def row_arguments(row: Row) -> dict[str, Any]:
    """What a row is, as JSON."""
    return {
        "command": row.command,
        "recipe": row.recipe,
        "settings": dict(row.settings),
        "measure": "few-shot" if row.measure in FEW else row.measure,
        "epoch": row.epoch,
        "split": row.split,
    }


def run_row(*, data: str, row: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train one row; its figure in percent."""
    table: Any = data if row["split"] is None else split_table(Path(data), row["split"])
    if row["measure"] == "few-shot":
        from benchmarks.papers.few_shot_runs import run_few_shot

        return run_few_shot(table, row, seed)
    result, log = run_training(
        row["command"], threads=None, data=table, recipe=row["recipe"], settings=row["settings"], seed=seed
    )
    return {"value": value_of(row, result, log), "seconds": result["seconds"]["train"]}


def value_of(row: Mapping[str, Any], result: Mapping[str, Any], log: Iterable[Mapping[str, Any]]) -> float:
    """What a row measures, of a finished run."""
    if row["measure"] == "recall":
        return recalls(result)["recall"]
    key = f"knn/accuracy@{row['measure'].removeprefix('knn@')}"
    curve = {line["step"]: 100 * line[key] for line in log if key in line}
    return round(curve[row["epoch"] or max(curve)], 3)


def split_table(data: Path, number: int) -> Any:
    """A data set of ooDML with one of its splits as column."""
    import numpy as np

    from lookalike.data import read_table
    from lookalike.shift.split_set import SplitSet

    table, splits = read_table(data), SplitSet.load(data.with_name(f"{data.name}-splits.json"))
    sides = splits.rows(table, splits.split(number))
    column = np.full(len(table), "removed", object)
    column[sides["train"]], column[sides["test"]] = "train", "test"
    return table.with_column("split", column).take(np.flatnonzero(column != "removed"))


# ---- a smoke test on any device --------------------------------------------------------------------------------------

# Networks of the same kind, so small that a step takes no time on a processor.
TINY = {"resnet50": "test_resnet", "resnet18_cifar": "resnet10_small"}
TINY_TRANSFORMER = "test_vit"


def tiny_settings(row: Row) -> dict[str, Any]:
    """Two steps of a row at tiny width: everything but sizes as at the paper's scale."""
    full = row.resolve()
    transformer = full["model"]["name"] not in TINY
    name = TINY.get(full["model"]["name"], TINY_TRANSFORMER)
    method = full["method"]
    own: dict[str, Any] = {}
    if method["name"] == "carp":
        own = {"prototypes": 64, "block_size": 64 if method["block_size"] == method["prototypes"] else 16,
               "hidden_dim": 32, "projection_dim": 16}  # fmt: skip
    elif method["name"] == "moco":
        own = {"memory": {"size": 64}}
    elif method["name"] == "dmcac":
        own = {"k": 3, "map_steps": [1, 2]}
    elif method["name"] == "diva":
        own = {"queue_size": 32}
    elif method["name"] == "s2sd":
        own = {"target_dims": [32, 48]}
    return merge(
        dict(row.settings),
        {
            "data": {
                "layout": "auto",
                "split": "images" if row.command == "pretrain" else "table",
                "near_duplicates": False,
            },
            "model": {"name": name, "weights": "random", "size": 160 if transformer else 32, "batch_norm_splits": 2},
            "head": {"embedding_dim": 32 if method["name"] != "diva" else 64, "prewarm_epochs": 1}
            if full["head"]["kind"] != "none"
            else {},
            "method": own,
            "sampler": {"classes_per_batch": 4, "images_per_class": 2, "batch_size": 8},
            "schedule": {"step_size": 1},
            "log": {"tensorboard": False, "every_n_steps": 1},
            "accumulation_steps": 2 if full["accumulation_steps"] > 1 else 1,
            "steps": 2,
            "evaluate_every": 1,
        },
    )


def smoke(paper: str, folder: Path, *, device: str = "auto", only: Iterable[str] = ()) -> list[dict[str, Any]]:
    """Run two steps of every distinct row at tiny width on generated images.

    Args:
        paper: One of `ROWS`, or `t3ar`, whose recipes are those of `adapt`.
        folder: Where the images are generated.
        device: Device to run on.
        only: Tables; all by default.

    Returns:
        One entry a row: table, arm, the loss of the last step.

    Raises:
        LookalikeError: If a row cannot be run.
    """
    from lookalike.data.synthetic import make_demo_images

    table = make_demo_images(folder, classes=16, images_per_class=8, size=48, styles=("studio",))
    if paper == "t3ar":
        return _smoke_t3ar(folder, device)
    answer, seen = [], set()
    for row in rows_of(paper, only):
        settings = merge(tiny_settings(row), {"device": device})
        key = (row.command, row.recipe, row.measure in FEW, repr(settings))
        if key in seen:
            continue
        seen.add(key)
        if row.measure in FEW:
            from benchmarks.papers.few_shot_runs import run_few_shot

            tiny = {**row_arguments(row), "settings": settings}
            run_few_shot(table, tiny, 0, steps=dict.fromkeys(FEW, 2), episodes=1)
        _, log = run_training(row.command, threads=None, data=table, recipe=row.recipe, settings=settings, seed=0)
        loss = next(line["loss"] for line in reversed(log) if "loss" in line)
        answer.append({"table": row.table, "data": row.data, "arm": row.arm, "loss": round(loss, 4)})
    return answer


def _smoke_t3ar(folder: Path, device: str) -> list[dict[str, Any]]:
    """Two steps of every recipe of T3AR's table 6."""
    import tempfile

    from lookalike.adaptation import adapt
    from lookalike.models import Embedder

    answer, model = [], folder.with_name(f"{folder.name}-model")
    Embedder.from_pretrained("test_efficientnet", weights="random", size=32).save_pretrained(model)
    for name in [name for name in recipe.names("adapt") if name.startswith("paper_")]:
        labeled = not name.startswith("paper_test")
        with tempfile.TemporaryDirectory(prefix="lookalike-smoke-") as out:
            run = adapt(
                model=model,
                target=folder,
                pool=[] if "finetune" in name else [folder],
                labeled=labeled,
                clusters=None if labeled else 4,
                config=name,
                steps=2,
                device=device,
                settings={"batch_size": 8, "bank": {"size": 64}},
                out=Path(out) / "run",
            )
            answer.append({"table": "table-6", "data": "generated", "arm": name, "loss": run.read_log()[-1]["loss"]})
    return answer
