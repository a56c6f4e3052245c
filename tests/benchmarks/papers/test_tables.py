"""Rows at the papers' scale against settings typed from the papers' texts, and a smoke run of some of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.helpers import make_images

from benchmarks.papers import Missing, few_shot_runs, t3ar, t3ar_runs, tables
from benchmarks.papers.tables import Row, rows_of, tiny_settings, value_of
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.shift.split_set import SplitSet
from lookalike.training import optim, recipe
from lookalike.training.settings import resolve

# AXBN, section 4.1: supervised contrastive loss, pair margin miner 0.2 and 0.8, rand-m9-mstd0.5, reprob 0.2, mixed
# precision, AdamW 1e-4, ×0.33 every 15 epochs, 50 epochs, best epoch, four images per class; a random last layer of 512
# dimensions, fine-tuned for 2 epochs by SGD 0.001; q 1, p0 1, r 0.01, interval 100 (SOP, In-Shop) or 10 (DeepFashion2);
# memory of 50 % (SOP, In-Shop) or 100 % (DeepFashion2), batch 64 unless stated (tables 1 and 2).
XBN: dict[str, Any] = {
    "model.name": "resnet50",
    "model.batch_norm": "train",
    "head.kind": "random",
    "head.embedding_dim": 512,
    "head.prewarm_epochs": 2,
    "head.prewarm_lr": 1e-3,
    "method.temperature": 0.1,
    "method.miner.kind": "pair_margin",
    "method.miner.pos_margin": 0.2,
    "method.miner.neg_margin": 0.8,
    "method.memory.warmup_steps": 0,
    "method.memory.fill": False,
    "views.mode": "end_to_end",
    "views.rand_augment": "rand-m9-mstd0.5",
    "views.random_erasing": 0.2,
    "precision": "bf16",
    "sampler.images_per_class": 4,
    "optimizer.kind": "adamw",
    "optimizer.lr": 1e-4,
    "schedule.kind": "step",
    "schedule.gamma": 0.33,
}
AXBN = {"method.memory.q": 1.0, "method.memory.p0": 1.0, "method.memory.r": 0.01}
XBN_SETS = {  # training images, fraction in memory, interval of the Kalman gain
    "sop": (59_551, 0.5, 100),
    "in_shop": (25_882, 0.5, 100),
    "deepfashion2": (217_778, 1.0, 10),
}
XBN_TABLES = {  # batch sizes and rules of each table
    "table-1": ({64}, {"none", "xbm", "xbn", "axbn"}),
    "table-2": ({64, 512}, {"none", "xbm*"}),
    "table-3": ({64}, {"none", "xbm", "xbn"}),
    "table-4": ({64}, {"xbn", "ema", "axbn"}),
    "table-5": ({16, 32}, {"none", "xbm", "xbn", "axbn"}),
    "table-6": ({256}, {"none", "xbm", "xbn", "axbn"}),
}
DRIFT = {"none": "none", "xbm": "none", "xbm*": "none", "xbn": "xbn", "axbn": "axbn", "ema": "ema"}

# Appendix B: MoCo of pytorch-metric-learning's CIFAR notebook, batch 128, momentum 0.99, 200 epochs, read at epoch 15.
MOCO = {
    "model.name": "resnet18_cifar",
    "model.weights": "random",
    "model.size": 32,
    "model.batch_norm": "split",
    "model.batch_norm_splits": 8,
    "method.temperature": 0.1,
    "method.momentum": 0.99,
    "method.projection_dim": 128,
    "method.memory.size": 4096,
    "sampler.batch_size": 128,
    "optimizer.kind": "sgd",
    "optimizer.lr": 0.03,
    "optimizer.momentum": 0.9,
    "optimizer.weight_decay": 5e-4,
    "schedule.kind": "cosine",
    "steps": 200 * 390,
    "log.knn_images": None,
}

# CARP, B.1 and section 6: ResNet-50, LARS 0.6 → 0.06 for batches of 1,024 without warm-up, weight decay 1e-6, K 65,536,
# N_B 512, hidden 2,048, embedding 256 (ablations 128); ablations: 50 epochs, batches of 256; η from 0.99 to 1.
CARP = {
    "model.name": "resnet50",
    "model.weights": "random",
    "model.size": 224,
    "method.name": "carp",
    "method.hidden_dim": 2048,
    "optimizer.kind": "lars",
    "optimizer.weight_decay": 1e-6,
    "schedule.kind": "cosine",
    "schedule.warmup_steps": 0,
    "schedule.min_lr_ratio": 0.1,
    "log.knn_images": None,
}
CARP_USUAL = {
    "method.prototypes": 65_536,
    "method.block_size": 512,
    "method.teacher": "ema",
    "method.momentum": 0.99,
    "method.momentum_schedule": "cosine",
    "method.partition": "random",
}
IMAGENET = 1_281_167

# DMCAC, section 4: ViT-S/16 (ImageNet-21k) and DeiT-S (distilled), 256 queries (SOP 128) in 6 views, k 12, β (1, 1, 1),
# AdamW 3e-5 with weight decay 0.01, database 20 %; steps CUB 250, Cars 600, In-Shop 2,500, SOP 25,000; every 15 epochs.
DMCAC = {
    "model.size": 224,
    "model.pooling": "cls",
    "method.k": 12,
    "method.temperature": 1.0,
    "method.refresh.every": 15,
    "method.refresh.unit": "epochs",
    "views.crop": "plain",
    "views.flip": False,
    "views.rand_augment": "rand-tv9",
    "optimizer.kind": "adamw",
    "optimizer.lr": 3e-5,
    "optimizer.loss_lr": 3e-5,
    "optimizer.weight_decay": 0.01,
    "schedule.kind": "constant",
    "schedule.warmup_steps": 0,
}
DMCAC_USUAL = {
    "method.views": 6,
    "method.full": "no",
    "method.database_fraction": 0.2,
    "method.weights": {"divergence": 1.0, "classes": 1.0, "attention": 1.0},
}
DMCAC_STEPS = {"cub": (250, 256), "cars": (600, 256), "in_shop": (2500, 256), "sop": (25_000, 128)}
ENCODERS = {"vit": "vit_small_patch16_224.augreg_in21k", "deit": "deit_small_distilled_patch16_224.fb_in1k"}

# ooDML, supplement B and the authors' code: ResNet-50, frozen batch-norm, 512 dimensions, Adam 1e-5 with weight decay
# 3e-4, 224 px, batches of 56 × 2 with replacement (DiVA 54 × 2), 200 epochs; constants of the methods by data set.
OODML = {
    "model.name": "resnet50",
    "model.size": 224,
    "model.crop": 0.875,
    "model.batch_norm": "frozen",
    "head.embedding_dim": 512,
    "views.mode": "end_to_end",
    "sampler.images_per_class": 2,
    "sampler.replacement": True,
    "optimizer.kind": "adam",
    "optimizer.lr": 1e-5,
    "optimizer.weight_decay": 3e-4,
    "schedule.kind": "constant",
}
OODML_METHODS: dict[str, dict[str, tuple[Any, Any, Any]]] = {  # CUB, Cars, SOP
    "margin": {"method.margin": (0.2,) * 3, "method.beta": (1.2,) * 3},
    "ms": {"method.alpha": (2.0,) * 3, "method.beta": (40.0,) * 3, "method.epsilon": (0.1,) * 3},
    "arcface": {"method.scale": (16.0,) * 3},
    "proxy_anchor": {"method.alpha": (32.0,) * 3, "method.margin": (0.1,) * 3, "optimizer.loss_lr": (0.02,) * 3},
    "r_margin": {"method.beta": (0.6, 0.6, 0.9), "method.switch_probability": (0.4, 0.35, 0.15)},
    "uniform_prior": {"method.weight": (0.2, 0.2, 0.02), "method.hidden_dim": (100, 100, 50)},
    "diva": {"method.alpha": (0.3, 0.15, 0.2), "method.decorrelation": (1500.0, 100.0, 150.0)},
    "s2sd": {"method.beta": (0.6, 0.6, 0.9), "method.switch_probability": (0.4, 0.3, 0.0)},
}
OODML_SETS = {"cub": (9, 5864), "cars": (8, 8054), "sop": (8, 59_551)}


def flat(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Settings by dotted name; nested ones also as a whole."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out[f"{prefix}{key}"] = value
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
    return out


def expect(row: Row, *typed: dict[str, Any]) -> None:
    settings = flat(row.resolve())
    for each in typed:
        for name, value in each.items():
            assert settings[name] == (pytest.approx(value) if isinstance(value, float) else value), (row.name, name)


def test_every_row_of_xbn() -> None:
    rows = [row for row in rows_of("xbn") if row.table != "figure-3"]
    for row in rows:
        rule, batch = row.arm.split("-")[0], int(row.arm.split("-")[1][1:])
        images, memory, interval = XBN_SETS[row.data]
        batches, rules = XBN_TABLES[row.table]
        assert batch in batches and rule in rules and row.seeds == 3
        typed = dict(XBN)
        if row.table == "table-5":
            typed["model.name"] = "swin_base_patch4_window7_224"
        epoch = images // batch
        typed |= {"steps": 50 * epoch, "schedule.step_size": 15 * epoch, "evaluate_every": epoch}
        typed |= {"sampler.classes_per_batch": batch // 4, "method.memory.drift": DRIFT[rule]}
        typed |= {"method.memory.size": memory if rule != "none" else 0, "method.memory.batch_loss": rule == "xbm*"}
        if rule == "axbn":
            typed |= {**AXBN, "method.memory.interval": interval}
        if rule == "ema":
            typed["method.memory.beta"] = 0.1
        norm = row.arm.split("-")[2] if row.table == "table-3" else "none"
        typed |= {"head.norm": norm, "head.norm_batch_size": 128 if norm == "mbn" else None}
        expect(row, typed)
        assert row.resolve()["data"]["validation_fraction"] > 0, "the best epoch is selected"
    assert {table: len([r for r in rows if r.table == table]) for table in XBN_TABLES} == {
        "table-1": 12, "table-2": 4, "table-3": 9, "table-4": 3, "table-5": 8, "table-6": 4,
    }  # fmt: skip


def test_moco_is_read_at_epoch_15_of_200() -> None:
    rows = rows_of("xbn", ["figure-3"])
    assert {(row.data, row.arm) for row in rows} == {
        (d, f"moco-{r}") for d in ("cifar10", "cifar100") for r in ("none", "xbn")
    }
    for row in rows:
        expect(row, MOCO, {"method.memory.drift": row.arm.removeprefix("moco-")})
        assert row.epoch == 15 * 390 and row.epoch % row.resolve()["evaluate_every"] == 0
        assert row.measure == "knn@200" and row.command == "pretrain"


def test_every_row_of_carp() -> None:
    for row in rows_of("carp"):
        batch, epochs, dim = (1024, 200, 256) if row.table == "table-1" else (256, 50, 128)
        typed = dict(CARP_USUAL)
        kind, _, rest = row.arm.partition("-")
        if row.table == "table-1":
            epochs = int(kind)
        elif row.table == "table-3":
            typed["method.prototypes"] = int(kind[1:])
        elif row.table == "table-4":
            batch = int(kind[1:])
        elif row.table == "table-5":
            typed |= {"method.block_size": int(kind[1:]), "method.teacher": rest}
        elif row.table == "table-6" and not rest:
            eta = float(kind[3:])
            typed |= {"method.teacher": "previous"} if eta == 0 else {"method.momentum": eta}
            typed["method.momentum_schedule"] = "cosine" if eta == 0 else "constant"
        elif row.table == "table-7":
            epochs, typed["method.partition"] = 100, kind
            assert row.epoch == int(rest) * (IMAGENET // 256)
        typed |= {"sampler.batch_size": batch, "steps": epochs * (IMAGENET // batch), "method.projection_dim": dim}
        expect(row, CARP, typed, {"optimizer.lr": 0.6 * batch / 1024})
        assert row.measure == "knn@20"
    tables_of_carp = [row.table for row in rows_of("carp")]
    assert {t: tables_of_carp.count(t) for t in sorted(set(tables_of_carp))} == {
        "table-1": 3, "table-3": 6, "table-4": 4, "table-5": 20, "table-6": 6, "table-7": 8,
    }  # fmt: skip


def test_every_row_of_dmcac() -> None:
    for row in rows_of("dmcac"):
        encoder, _, arm = row.arm.partition("-")
        steps, batch = DMCAC_STEPS[row.data]
        typed = {**DMCAC_USUAL, "model.name": ENCODERS[encoder], "steps": steps, "sampler.batch_size": batch}
        if row.table == "table-2":
            three = map(float, arm.split(","))
            typed["method.weights"] = dict(zip(("divergence", "classes", "attention"), three, strict=True))
        elif row.table == "table-3":
            typed["method.views"] = int(arm.split("-")[0])
        elif row.table == "table-4":
            typed |= {"method.full": "gradient", "method.database_fraction": {"cub": 0.1, "cars": 0.05}[row.data]}
        expect(row, DMCAC, typed)
    assert len(rows_of("dmcac")) == 8 + 16 + 12 + 4


def test_every_row_of_oodml() -> None:
    rows = rows_of("oodml")
    assert len([row for row in rows if row.table in ("table-4", "table-5", "table-6")]) == 8 * (9 + 8 + 8)
    for row in rows:
        method, count = row.arm.removesuffix(f"-{row.measure}").split("-split")
        place = list(OODML_SETS).index(row.data)
        splits, images = OODML_SETS[row.data]
        assert row.split == int(count) <= splits and row.seeds == (1 if row.measure in tables.FEW else 5)
        classes = 54 if method == "diva" else 56
        typed = {name: values[place] for name, values in OODML_METHODS[method].items()}
        sizes = {"sampler.classes_per_batch": classes, "steps": 200 * (images // (2 * classes))}
        expect(row, OODML, {"optimizer.loss_lr": 5e-4, **typed}, sizes, {"method.name": method})


# Tables 7 and 8: Margin on the head alone, β at the run's value and not trained, ten times the rate of training.
FEW_SHOT_BETA = {  # CUB, Cars; ArcFace and Multi-Similarity have none of their own, and take Margin's
    "arcface": (1.2, 1.2), "ms": (1.2, 1.2), "s2sd": (0.6, 0.6), "diva": (1.2, 1.2),
}  # fmt: skip
FEW_SHOT = {
    "method.name": "margin",
    "method.margin": 0.2,
    "optimizer.kind": "adam",
    "optimizer.lr": 1e-4,
    "optimizer.head_lr": 1e-4,
    "optimizer.weight_decay": 3e-4,
    "schedule.kind": "constant",
    "views.mode": "cached",
    "views.layer": "pooled",
    "sampler.images_per_class": 2,
}


@pytest.mark.slow
def test_every_row_of_few_shot_adaptation(tmp_path: Path) -> None:
    rows = [row for row in rows_of("oodml") if row.table in ("table-7", "table-8")]
    assert len(rows) == 2 * len(FEW_SHOT_BETA) * (9 + 8)
    assert {row.measure for row in rows} == {"few-2", "few-5"} and len({row.run_name for row in rows}) == len(rows) / 2
    known = {row.name: row.figure for row in rows}
    assert known["table-7-cub-s2sd-split9-few-5"] == 63.56 and known["table-8-cars-arcface-split8-few-2"] == 67.05
    assert known["table-7-cub-ms-split2-few-2"] is None, "not legible"
    table = Table.from_columns(
        {"path": list("abcd"), "label": list("xxyy"), "split": ["train"] * 2 + ["test"] * 2}, name="few"
    )
    for row in rows:
        method, place = row.arm.split("-")[0], ("cub", "cars").index(row.data)
        run = Run.create(method, row.resolve(), path=tmp_path / row.name)
        job = few_shot_runs.few_shot_job(run, table, tables.FEW, tables.EPISODES)
        assert job["shots"] == {"2": 1000, "5": 1500} and job["episodes"] == 10 and job["method"] == "frozen"
        assert (job["train"], job["test"]) == (("x",), ("y",)) and row.methods == [method, "margin"]
        settings, typed = flat(job["adapt"]), {**FEW_SHOT, "method.beta": FEW_SHOT_BETA[method][place]}
        typed["sampler.classes_per_batch"] = 54 if method == "diva" else 56
        for name, value in typed.items():
            assert settings[name] == value, (row.name, name)
        assert settings["optimizer.loss_lr"] <= 1e-12, "β does not move"


# T3AR, table 6 of the supplement: SGD 0.9, 4 epochs of linear warm-up from 1e-5, cosine to 1e-6.
T3AR = {  # learning rate, weight decay, mixup, batch, epochs
    "paper_finetune": (0.1, 0.01, 0.1, 1024, 100),
    "paper_finetune_cub": (0.1, 0.01, 0.0, 1024, 100),
    "paper_finetune_dogs": (0.01, 0.01, 0.0, 512, 100),
    "paper_finetune_20": (0.1, 0.01, 0.1, 512, 30),
    "paper_finetune_cub_20": (0.1, 0.01, 0.0, 512, 30),
    "paper_finetune_dogs_20": (0.01, 0.01, 0.0, 256, 30),
    "paper_train": (0.1, 1e-4, 0.0, 1024, 100),
    "paper_train_dogs": (0.01, 1e-4, 0.0, 512, 100),
    "paper_test": (0.1, 1e-4, 0.0, 1024, 30),
}


@pytest.mark.parametrize("name", T3AR)
def test_every_recipe_of_t3ar(name: str) -> None:
    lr, weight_decay, mixup, batch, epochs = T3AR[name]
    settings = recipe.load(name, "adapt")
    assert settings["lr"] == lr and settings["weight_decay"] == weight_decay and settings.get("mixup", 0.0) == mixup
    assert settings["batch_size"] == batch and settings["epochs"] == epochs
    assert (settings["warmup_epochs"], settings["warmup_start_lr"], settings["min_lr"]) == (4, 1e-5, 1e-6)
    assert settings["head_lr_factor"] == 1, "one learning rate for the whole network"


# The supplement's retrieval (K 2, bank 64k, 16k for small targets and train time) and the baselines' public code.
T3AR_TIMES = {"warmup_epochs": 4, "warmup_start_lr": 1e-5, "min_lr": 1e-6, "head_lr_factor": 1, "nesterov": False}
T3AR_TEST = {**T3AR_TIMES, "lr": 0.1, "weight_decay": 1e-4, "batch_size": 1024, "epochs": 30}
T3AR_CELLS: dict[str, dict[str, Any]] = {
    "t3ar": {**T3AR_TEST, "optimizer": "sgd", "momentum": 0.9, "lr_schedule": "cosine", "contrast.temperature": 0.07},
    "cub t3ar": {**T3AR_TEST, "epochs": 100, "bank.size": 16384, "mixup": 0.0},
    "cub finetune": {**T3AR_TEST, "epochs": 100, "weight_decay": 0.01, "mixup": 0.0},
    "shot": {"lr": 1e-3, "head_lr_factor": 10, "weight_decay": 1e-3, "batch_size": 64, "epochs": 15, "nesterov": True,
             "warmup_epochs": 0, "lr_schedule": "inverse"},
    "adacontrast": {"lr": 2e-4, "head_lr_factor": 10, "weight_decay": 1e-4, "batch_size": 128, "epochs": 15,
                    "nesterov": True, "warmup_epochs": 0, "min_lr": 0.0, "lr_schedule": "cosine", "bank.size": 16384,
                    "key_momentum": 0.999, "contrast.temperature": 0.07},
    "tent": {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0, "epochs": 1, "warmup_epochs": 0},
}  # fmt: skip


def test_every_cell_of_t3ar_at_the_papers_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    cells: dict[str, t3ar_runs.Cell] = {}

    def stand_in(context: Any, chosen: list[t3ar_runs.Cell], seeds: tuple[int, ...]) -> Any:
        cells.update({cell.name: cell for cell in chosen})
        raise Missing("nothing is run")

    monkeypatch.setattr(t3ar, "run_cells", stand_in)
    context: Any = SimpleNamespace(scale="paper", folder=lambda name: Path(name))
    for claim in t3ar.CLAIMS:
        assert claim.judge(context).verdict == "not run" and "--scale paper" in claim.at_scale
    assert {cell.set for cell in cells.values()} == {"cub", "domainnet126"}
    for cell in cells.values():
        made = t3ar_runs.arguments("DATA", cell, 0, paper=True)
        settings, method = flat(made["settings"]), made["settings"]["method"]
        varied = flat(cell.over)
        for name, value in T3AR_CELLS.get(f"cub {method}" if cell.set == "cub" else method, {}).items():
            if name not in varied:
                assert settings[name] == (pytest.approx(value) if isinstance(value, float) else value), (cell, name)
        if method == "t3ar":
            if cell.set != "cub" and "bank.size" not in varied:
                assert settings["bank.size"] == (65536 if cell.fraction == 1 else 16384)
            assert settings["num_neighbors"] == 2 or "num_neighbors" in varied
            assert made["pool"] in ("all", "none", "without", "styles")
        assert settings["layer"] == "pixels" and made["scale"]["model"] == "resnet50" and made["scale"]["size"] == 224
        assert made["retriever"] in ("own", "vit_base_patch16_224.dino", "open_clip:ViT-B-16:openai")
    assert len({cell.over.get("method", "t3ar") for cell in cells.values()}) == 7, "every method has cells"


def test_adam_adds_the_decay_to_the_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    method: Any = SimpleNamespace(param_groups=lambda rates: [{"name": "backbone", "params": [weight], "lr": 0.1}])
    monkeypatch.setattr(optim, "trained", lambda method: [weight])
    for kind, expected in (("adam", 0.9), ("adamw", 1 - 0.1 * 0.3)):
        with torch.no_grad():
            weight.fill_(1.0)
        weight.grad = torch.zeros(1)
        settings = resolve({"optimizer": {"kind": kind, "weight_decay": 0.3}})
        optim.make_optimizer(method, settings).step()
        assert weight.item() == pytest.approx(expected, abs=1e-4)


def test_what_a_row_measures() -> None:
    log = [{"step": 10, "knn/accuracy@20": 0.25}, {"step": 20, "knn/accuracy@20": 0.5}, {"step": 20, "loss": 1.0}]
    assert value_of({"measure": "knn@20", "epoch": None}, {}, log) == 50.0
    assert value_of({"measure": "knn@20", "epoch": 10}, {}, log) == 25.0
    measured = {name: {"recall@1": {"value": 0.5}} for name in ("trained", "step 0", "starting model")}
    assert value_of({"measure": "recall", "epoch": None}, {"measured": measured}, []) == 50.0


SMOKED = {
    "xbn": [
        "table-1-deepfashion2-axbn-b64",
        "table-3-sop-xbm-b64-mbn",
        "table-5-sop-xbn-b16",
        "figure-3-cifar10-moco-xbn",
    ],
    "carp": ["table-5-imagenet-B512-stopgrad"],
    "dmcac": ["table-4-cub-vit-full"],
    "oodml": ["table-4-cub-s2sd-split1", "table-6-sop-diva-split8", "table-8-cars-s2sd-split1-few-5"],
}


@pytest.mark.parametrize("paper", SMOKED)
def test_two_steps_of_some_rows(paper: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them: python -m benchmarks.papers --smoke."""
    chosen = [row for row in rows_of(paper) if row.name in SMOKED[paper]]
    assert len(chosen) == len(SMOKED[paper])
    monkeypatch.setitem(tables.ROWS, paper, lambda: chosen)
    results = tables.smoke(paper, tmp_path / "images", device="cpu")
    assert len(results) == len(chosen) and all(row["loss"] == row["loss"] for row in results)


SIZES = {
    "data", "model.name", "model.weights", "model.size", "model.batch_norm_splits", "head.embedding_dim",
    "schedule.step_size", "head.prewarm_epochs", "method.prototypes", "method.block_size", "method.hidden_dim",
    "method.projection_dim", "method.memory.size", "method.k", "method.map_steps", "method.queue_size",
    "method.target_dims", "steps", "evaluate_every", "sampler", "accumulation_steps", "log",
}  # fmt: skip


@pytest.mark.parametrize("paper", tables.ROWS)
def test_tiny_rows_keep_everything_but_sizes(paper: str) -> None:
    for row in {(row.table, row.recipe): row for row in rows_of(paper)}.values():
        tiny = replace(row, settings=tiny_settings(row))
        full, small = flat(row.resolve()), flat(tiny.resolve())
        changed = {name for name in full if not isinstance(full[name], dict) and full[name] != small[name]}
        assert {name for name in changed if name not in SIZES and name.split(".")[0] not in SIZES} == set(), row.name


def test_unknown_tables_are_named() -> None:
    with pytest.raises(LookalikeError, match="did you mean"):
        rows_of("xbn", ["table-7"])


def test_split_table_has_the_sides_of_a_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_images(tmp_path / "cub", classes=4, images=2)
    sides = {"train": [0, 1, 2, 3], "test": [6, 7], "removed": [4, 5]}
    stub = SimpleNamespace(split=lambda number: number, rows=lambda table, split: sides)
    monkeypatch.setattr(SplitSet, "load", lambda path: stub)
    assert list(tables.split_table(folder, 3).column("split")) == ["train"] * 4 + ["test"] * 2
