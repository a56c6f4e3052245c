"""`pretrain`: images without labels to a backbone that everything else takes."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import helpers
from tests.training.test_resume import assert_same

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.settings import merge
from lookalike.methods.moco import MoCo
from lookalike.models import Embedder
from lookalike.training import Plan, checkpoint, pretrain, train
from lookalike.training.batchnorm import split_statistics

FEW = {
    "model": {"size": 32},
    "method": {"projection_dim": 8},
    "memory": {"size": 40, "drift": "xbn"},
    "sampler": {"batch_size": 16},
    "steps": 6,
    "evaluate_every": 3,
    "log": {"every_n_steps": 2, "tensorboard": False},
    "data": {"near_duplicates": False},
}


@pytest.fixture(scope="module")
def flat(folder, tmp_path_factory):
    """The same images without labels."""
    target = tmp_path_factory.mktemp("flat") / "photos"
    target.mkdir()
    for path in folder.rglob("*.jpg"):
        shutil.copy(path, target / f"{path.parent.name}-{path.name}")
    return target


def test_an_unlabeled_folder_becomes_a_model_that_train_and_index_take(flat, folder, tiny, tmp_path):
    done = pretrain(data=flat, method="moco", model=tiny, out=tmp_path / "run", settings=FEW)
    assert done.result["finished"] and done.result["selected"] == "undecided"
    assert "no labeled images" in done.result["verdict"]
    before, after = Embedder.from_pretrained(tiny), Embedder.from_pretrained(done.path / "trained")
    assert Embedder.from_pretrained(done.path).fingerprint() == before.fingerprint()  # the default stays
    assert isinstance(after.head, torch.nn.Identity) and after.dim == before.dim
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert any(moved)
    log = done.read_log()
    assert [row["step"] for row in log if "loss" in row] == [2, 4, 6]
    assert not any("knn/accuracy@20" in row for row in log)
    from tests.training.conftest import SMALL

    next_run = train(
        data=folder, model=done.path / "trained", out=tmp_path / "next", settings=SMALL, steps=1, report=False
    )
    assert next_run.result["finished"]
    from lookalike.searching import index

    index(folder=folder, model=str(done.path / "trained"), index=tmp_path / "index")


def test_with_labels_knn_is_followed_and_decides(folder, tiny, tmp_path):
    done = pretrain(data=folder, method="moco", model=tiny, out=tmp_path / "run", settings=FEW)
    rows = [row for row in done.read_log() if "knn/accuracy@20" in row]
    assert [row["step"] for row in rows] == [0, 3, 6]
    assert all(0 <= row["knn/accuracy@20"] <= 1 for row in rows)
    result = done.result
    assert result["images"] == {"train": 72, "validation": 0, "test": 24}
    assert result["queries"] == 24  # held-out images, looked for among those trained on
    assert result["selected"] == ("trained" if result["better"] else "starting model")
    assert result["better"] == (result["knn"]["difference"]["low"] > 0)
    assert set(result["knn"]["accuracy"]["trained"]) == {"10", "20", "100", "200"}
    assert "curves" in done.read_sections() and "table" in done.read_sections()
    titles = [block["y_label"] for block in done.read_sections()["curves"]["blocks"]]
    assert "k-NN accuracy" in titles
    assert "lookalike pretrain" in done.read_sections()["settings"]["blocks"][0]["text"]


def test_from_scratch_starts_from_random_weights(flat, tmp_path):
    plan = pretrain(data=flat, method="moco", model="test_efficientnet", from_scratch=True, settings=FEW, dry_run=True)
    assert isinstance(plan, Plan)
    assert plan.settings.model.weights == "random" and plan.settings.model.batch_norm == "train"
    assert plan.settings.optimizer.lr == 0.03
    assert "in 2 views" in plan.facts["steps"], "a query and a key of every image"
    done = pretrain(
        data=flat,
        recipe="moco_cifar",
        settings=merge(FEW, {"data": {"split": "auto"}, "model": {"batch_norm_splits": 2}}),
        out=tmp_path / "run",
        steps=2,
        report=False,
    )
    model = Embedder.from_pretrained(done.path)
    assert model.architecture == "resnet18_cifar" and model.backbone.conv1.stride == (1, 1)
    state = checkpoint.read(done.checkpoints / "last.pt")
    assert "backbone.bn1.running_mean" in state["model"]  # statistics moved, and are kept
    keys = state["method"]["key_model.backbone.bn1.running_mean"]
    assert not torch.equal(keys, state["model"]["backbone.bn1.running_mean"])  # the key encoder has its own


def test_each_command_has_its_methods(folder, tiny):
    with pytest.raises(LookalikeError, match="`moco` is a method of `lookalike pretrain`"):
        train(data=folder, model=tiny, method="moco", dry_run=True)
    with pytest.raises(LookalikeError, match=r"`supcon` is a method of `lookalike train`; .*moco"):
        pretrain(data=folder, model=tiny, method="supcon", dry_run=True)


def test_with_the_backbone_frozen_nothing_would_be_trained(flat, tiny, tmp_path):
    settings = merge(FEW, {"views": {"mode": "cached"}})
    with pytest.raises(LookalikeError, match="nothing would be trained"):
        pretrain(data=flat, method="moco", model=tiny, out=tmp_path / "run", settings=settings)


def test_images_without_a_label_train_too():
    from lookalike.data import Table
    from lookalike.training.settings import DataSettings
    from lookalike.training.split import divide

    labels = [*"aaaaabbbbbcccccdddddeeeeefffff", None, None]
    table = Table.from_columns({"path": [f"{n}.jpg" for n in range(32)], "label": labels}, name="some")
    division = divide(table, DataSettings(split="images", test_fraction=0.2, validation_fraction=0)).with_unlabeled(
        table
    )
    assert {30, 31} <= set(division.train) and not {30, 31} & set(division.test)
    assert len(division.train) + len(division.test) == 32


def struck(folder: Path, model: Path, out: Path) -> None:
    """A run that is killed, in a process of its own."""

    def strike(self):
        if self.context.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    MoCo.after_step = strike
    pretrain(data=folder, method="moco", model=model, out=out, settings=FEW, report=False)


def test_killed_and_resumed_it_ends_with_the_same_bits(flat, tiny, tmp_path):
    whole = pretrain(data=flat, method="moco", model=tiny, out=tmp_path / "whole", settings=FEW, report=False)
    ended = helpers.apart(struck, flat, tiny, tmp_path / "run")
    assert ended.code == -signal.SIGKILL, ended.err
    assert_same(pretrain(resume=tmp_path / "run", report=False), whole)


def test_split_batch_norm_is_batch_norm_of_each_part():
    from lookalike.core.seeds import torch_rng

    x = torch.randn(8, 3, 2, 2, generator=torch_rng(0, "x"))
    ours, theirs = torch.nn.BatchNorm2d(3), [torch.nn.BatchNorm2d(3) for _ in range(2)]
    split_statistics(ours, 2)
    with torch.no_grad():
        for layer in (ours, *theirs):
            layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
    out = ours(x)
    expected = torch.empty_like(x)
    for part, layer in enumerate(theirs):
        expected[part::2] = layer(x[part::2])
    assert torch.allclose(out, expected, atol=1e-6)
    assert torch.allclose(ours.running_mean, sum(layer.running_mean for layer in theirs) / 2)
    assert torch.allclose(ours.running_var, sum(layer.running_var for layer in theirs) / 2)
    assert torch.equal(ours.eval()(x), torch.nn.functional.batch_norm(
        x, ours.running_mean, ours.running_var, ours.weight, ours.bias
    ))  # fmt: skip
    assert not np.allclose(out.detach(), theirs[0].train()(x).detach())


@pytest.mark.usefixtures("processor_time")
def test_the_estimate_of_a_dry_run_holds_within_a_factor_of_two(tiny, tmp_path):
    images = helpers.make_images(tmp_path / "many", classes=25, images=12, width=80, height=60)
    settings = merge(FEW, {"views": {"mode": "end_to_end"}, "sampler": {"batch_size": 48}})
    settings |= {"steps": 40, "evaluate_every": 40}
    ratios = []
    for attempt in range(3):  # another program may take the processor in between
        options = {"data": images, "method": "moco", "model": tiny, "settings": settings, "report": False}
        plan = pretrain(**options, dry_run=True)
        with folders.temporary_cache():
            seconds = pretrain(**options, out=tmp_path / f"run-{attempt}").result["seconds"]
        assert list(seconds) == [*plan.seconds, "report"] == ["check", "features", "train", "measure", "report"]
        ratios.append(sum(plan.seconds.values()) / (sum(seconds.values()) - seconds["report"]))
        if 0.5 <= ratios[-1] <= 2:
            return
    pytest.fail(f"the estimate is off by {ratios}")
