"""`pretrain` with CARP: what is kept and why, prototypes to browse by, resume in bits, two processes, micro-batches."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import helpers
from tests.training.test_pretrain import flat  # noqa: F401
from tests.training.test_resume import assert_same

import lookalike
from lookalike.core.settings import merge
from lookalike.methods import _utils
from lookalike.methods.carp import CARP
from lookalike.models import Embedder
from lookalike.training import Plan, checkpoint, pretrain, train

FEW = {
    "model": {"size": 32},
    "method": {"projection_dim": 8, "hidden_dim": 12, "prototypes": 24, "block_size": 8},
    "sampler": {"batch_size": 16},
    "steps": 6,
    "evaluate_every": 3,
    "schedule": {"freeze_backbone_steps": 2, "warmup_steps": 0},
    "log": {"every_n_steps": 2, "tensorboard": False},
    "data": {"near_duplicates": False},
}
GATHERED = {"model": {"batch_norm": "gathered"}}


@pytest.fixture(scope="module")
def done(flat, tiny, tmp_path_factory):  # noqa: F811
    """A run without labels, made once."""
    return pretrain(data=flat, model=tiny, out=tmp_path_factory.mktemp("done") / "run", settings=FEW)


def test_without_labels_both_models_are_stored_and_the_verdict_is_undecided(done, tiny):
    result = done.result
    assert result["method"] == "carp" and result["selected"] == "undecided" and not result["better"]
    start, remaining = Embedder.from_pretrained(tiny), Embedder.from_pretrained(done.path)
    trained, student = (Embedder.from_pretrained(done.path / name) for name in ("trained", "student"))
    assert remaining.fingerprint() == start.fingerprint()
    assert len({start.fingerprint(), trained.fingerprint(), student.fingerprint()}) == 3
    sections = done.read_sections()
    verdict = sections["verdict"]["blocks"][0]
    assert verdict["message"].startswith("Undecided") and "The guard says: healthy" in verdict["message"]
    assert {figure["label"] for figure in verdict["figures"]} >= {"clusters", "in use", "spread"}
    assert result["guard"]["clusters"] >= 1 and "guard" in sections
    assert {"consistency", "balance", "guard/clusters", "guard/in_use"} <= set(done.read_log()[-1]) | set(
        done.read_log()[-2]
    )


def test_prototypes_are_stored_shown_and_tag_an_index(done, flat, tmp_path):  # noqa: F811
    trained = Embedder.from_pretrained(done.path / "trained")
    assert trained.prototypes is not None and 1 <= len(trained.prototypes) <= 24
    shown = done.read_sections()["prototypes"]["blocks"][0]
    counts = [int(row["lists"][0]["name"].split(": ")[1].split()[0]) for row in shown["rows"]]
    assert counts == sorted(counts, reverse=True) and min(counts) >= 2
    scores = [hit["score"] for hit in shown["rows"][0]["lists"][0]["hits"]]
    assert scores == sorted(scores, reverse=True)

    from lookalike.searching import Index, index, search

    place = tmp_path / "index"
    index(folder=flat, model=str(done.path / "trained"), index=place)
    features = trained.features(sorted(flat.iterdir()))
    expected = trained.prototypes.assign(features).prototype.astype(str)
    with Index.open(place) as opened:
        stored = {
            record.payload["path"]: record.payload["prototype"] for part in opened.store.scan() for record in part
        }
        assert stored == dict(zip(sorted(p.name for p in flat.iterdir()), expected, strict=True))
        assert dict(opened.store.facets("prototype")) == dict(
            zip(*np.unique(expected, return_counts=True), strict=True)
        )
        assert "prototype" in opened.generation.columns
        vectors = {r.id: r.vector for part in opened.store.scan(vectors=True) for r in part}
    assert all(np.isclose(np.linalg.norm(v), 1, atol=1e-4) for v in vectors.values())
    first = sorted(flat.iterdir())[0]
    actual = search(query=first, index=place, filters={"prototype": stored[first.name]}, k=3)
    assert actual.hits[0].path == first.name


def test_what_was_pretrained_can_be_adapted(done, folder, tmp_path):
    """The prototypes belong to the backbone as it was: an adapted one has none."""
    quick = {"batch_size": 16, "epochs": 1, "num_views": 1}
    run = lookalike.adapt(
        model=done.path / "trained", target=folder, judge=folder, settings=quick, out=tmp_path / "adapted"
    )
    assert run.result["counts"]["target"] == 96
    assert Embedder.from_pretrained(run.path / "versions" / "0" / "model").prototypes is not None
    for version in (run.path / "versions" / "1").glob("model"):  # kept where it was better
        assert Embedder.from_pretrained(version).prototypes is None


def test_with_labels_knn_decides_and_teacher_and_student_are_measured(folder, tiny, tmp_path):
    done = pretrain(data=folder, model=tiny, out=tmp_path / "run", settings=FEW)
    result, log = done.result, done.read_log()
    assert result["selected"] == ("trained" if result["knn"]["difference"]["low"] > 0 else "starting model")
    assert set(result["knn"]["accuracy"]) == {"starting model", "trained", "student"}
    assert "k-NN accuracy" in result["verdict"] and "24 held-out images" in result["verdict"]
    rows = [row for row in log if "knn/accuracy@20" in row]
    assert [row["step"] for row in rows] == [0, 3, 6]
    assert rows[0]["knn/accuracy@20"] == rows[0]["knn/student_accuracy@20"]  # they start equal
    grid = done.read_sections()["verdict"]["blocks"][1]
    assert grid["columns"][1:] == ["10 neighbors", "20 neighbors", "100 neighbors", "200 neighbors"]
    assert (done.path / "student").is_dir()
    better = pretrain(
        data=folder, model=tiny, out=tmp_path / "kept", settings=merge(FEW, {"keep": "trained"}), report=False
    )
    assert better.result["selected"] == "trained" and not (better.path / "trained").exists()
    assert Embedder.from_pretrained(better.path).prototypes is not None


def test_a_head_on_top_keeps_the_prototypes_a_trained_backbone_drops_them(done, folder, tmp_path):
    from tests.training.conftest import SMALL

    for name, more, there in (("head", {}, True), ("whole", {"views": {"mode": "end_to_end"}}, False)):
        settings = merge(SMALL, {"steps": 1, "keep": "trained"}, more)
        run = train(data=folder, model=done.path / "trained", out=tmp_path / name, settings=settings, report=False)
        assert (Embedder.from_pretrained(run.path).prototypes is not None) == there


def test_the_backbone_waits_while_the_new_layers_learn(flat, tiny, tmp_path):  # noqa: F811
    done = pretrain(data=flat, model=tiny, out=tmp_path / "run", settings=merge(FEW, {"steps": 2}), report=False)
    student = Embedder.from_pretrained(done.path / "student")
    assert student.fingerprint() == Embedder.from_pretrained(tiny).fingerprint()
    state = checkpoint.read(done.checkpoints / "last.pt")["method"]
    assert not torch.equal(state["prototype_head.prototypes"], state["teacher_head.prototypes"])


def test_from_scratch_is_the_papers_setting(flat):  # noqa: F811
    plan = pretrain(
        data=flat, model="test_efficientnet", from_scratch=True, settings={"model": {"size": 32}}, dry_run=True
    )
    assert isinstance(plan, Plan)
    chosen = plan.settings
    assert "in blocks of" in plan.facts["prototypes"] and "in 2 views" in plan.facts["steps"]
    assert (chosen.optimizer.kind, chosen.model.weights, chosen.model.batch_norm) == ("lars", "random", "train")
    assert chosen.optimizer.lr == pytest.approx(0.6 * chosen.sampler.batch_size / 1024)
    assert chosen.schedule.min_lr_ratio == pytest.approx(0.1) and chosen.schedule.freeze_backbone_steps == 0
    untrained = {"model": {"size": 32, "weights": "random"}}
    moved = pretrain(data=flat, method="moco", model="test_efficientnet", settings=untrained, dry_run=True)
    assert moved.settings.optimizer.kind == "sgd" and moved.settings.schedule.freeze_backbone_steps == 0


@pytest.mark.parametrize("teacher", ["ema", "previous", "stopgrad", "siamese"])
def test_every_reading_of_the_teacher_runs_from_scratch(flat, tmp_path, teacher):  # noqa: F811
    settings = merge(FEW, {"steps": 2, "method": {"teacher": teacher, "local_crops": 1, "local_crop_size": 24}})
    run = pretrain(
        data=flat, model="test_efficientnet", from_scratch=True, settings=settings, out=tmp_path / "run", report=False
    )
    assert run.result["finished"] and (run.path / "student").exists() == (teacher == "ema")


def struck(folder: Path, model: Path, out: Path) -> None:
    """A run that is killed, in a process of its own."""

    def strike(self):
        if self.context.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

    CARP.after_step = strike
    pretrain(data=folder, model=model, out=out, settings=FEW, report=False)


def test_killed_and_resumed_it_ends_with_the_same_bits(flat, tiny, tmp_path):  # noqa: F811
    whole = pretrain(data=flat, model=tiny, out=tmp_path / "whole", settings=FEW, report=False)
    ended = helpers.apart(struck, flat, tiny, tmp_path / "run")
    assert ended.code == -signal.SIGKILL, ended.err
    assert_same(pretrain(resume=tmp_path / "run", report=False), whole)


def last_state(run) -> dict:
    state = checkpoint.read(run.checkpoints / "last.pt")
    return {**state["model"], **state["method"]}


def test_micro_batches_have_the_gradient_of_the_joint_batch(flat, tiny, tmp_path):  # noqa: F811
    """One partition and one p̄ for all of them. Head's batch-norm is of each micro-batch, so it is taken out here."""

    class Still(torch.nn.Identity):
        running_mean = running_var = None

        def __init__(self, width: int) -> None:
            super().__init__()

    settings = merge(
        FEW, {"steps": 2, "schedule": {"freeze_backbone_steps": 0}, "optimizer": {"kind": "sgd", "lr": 0.01}}
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_utils.nn, "BatchNorm1d", Still)
        whole, parts = (
            last_state(
                pretrain(
                    data=flat,
                    model=tiny,
                    out=tmp_path / str(n),
                    settings=merge(settings, {"accumulation_steps": n}),
                    report=False,
                )
            )
            for n in (1, 4)
        )
    for name, value in whole.items():
        assert torch.allclose(value.float(), parts[name].float(), atol=1e-5), name
