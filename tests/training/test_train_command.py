"""`train` from end to end on generated images: what it writes, what it says, and what it promises."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests import helpers
from tests.training.conftest import SMALL
from tests.training.methods import Remembering

from lookalike import methods
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import progress_listener
from lookalike.core.run import Run
from lookalike.core.settings import flatten, merge
from lookalike.models import Embedder
from lookalike.training import Plan, checkpoint, train
from lookalike.training.loop import Loop


@pytest.fixture(autouse=True)
def _register():
    methods.register("remembering", Remembering)
    yield
    methods._REGISTERED.pop("remembering")


def run(folder, tiny, out, report=False, **more):
    arguments = {key: more.pop(key) for key in list(more) if key in ("method", "steps", "seed", "processes", "resume")}
    return train(data=folder, model=tiny, out=out, report=report, settings=merge(SMALL, more), **arguments)


def test_a_run_leaves_everything_a_user_needs(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", report=True, keep="trained")
    result = done.result
    assert result["finished"] and result["steps"] == 12
    assert set(result["measured"]) == {"starting model", "step 0", "trained"}
    assert set(result["differences"]) == {"starting model", "step 0"}
    sections = done.read_sections()
    assert {"verdict", "table", "curves", "audit", "settings", "changed", "extremes", "map"} <= set(sections)
    log = done.read_log()
    assert [row["step"] for row in log if "loss" in row] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in log if "validation/recall@1" in row] == [0, 4, 8, 12]
    model = Embedder.from_pretrained(tmp_path / "run")
    assert model.dim == 16
    assert model.card["results"]
    best = checkpoint.read(done.checkpoints / "best.pt")
    assert torch.equal(model.head.weight, best["model"]["head.weight"])
    assert model.parent == Embedder.from_pretrained(tiny).fingerprint()
    # The model folder stands for itself: what it encodes is what was measured.
    from lookalike.evaluation import evaluate

    actual = evaluate(data=done.path / "table.parquet", split="test", model=model, calibration=False)
    measured = result["measured"]["trained"]["recall@1"]["value"]
    assert actual.model.intervals["recall@1"].value == pytest.approx(measured, abs=0.03)


@pytest.mark.parametrize("mode", [
    {"views": {"mode": "end_to_end"}, "model": {"freeze": "stage1"}},
    {"views": {"mode": "cached", "layer": "stage1", "num_cached": 1}},
    {"views": {"mode": "cached", "num_cached": 2}},
])  # fmt: skip
def test_all_ways_to_train_move_what_they_should(folder, tiny, tmp_path, mode):
    done = run(folder, tiny, tmp_path / "run", **mode, keep="trained", steps=3)
    before, after = Embedder.from_pretrained(tiny), Embedder.from_pretrained(tmp_path / "run")
    lower = {id(p) for p in before.lower("stage1").parameters()} if "layer" in str(mode) or "freeze" in str(mode) else {
        id(p) for p in before.backbone.parameters()
    }  # fmt: skip
    best = checkpoint.read(done.checkpoints / "last.pt")["model"]
    names = {name for name, p in before.named_parameters() if id(p) not in lower}
    assert set(best) == names | {"head.weight", "head.bias"}
    state = after.state_dict()
    for name, p in before.named_parameters():
        if id(p) in lower:
            assert torch.equal(p, state[name])
    if names:
        assert any(not torch.equal(best[name], before.state_dict()[name]) for name in names)
    for name, buffer in before.named_buffers():  # frozen batch-norm
        assert torch.equal(buffer, dict(after.named_buffers())[name])


def test_step_0_may_win_and_the_result_says_so(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", optimizer={"lr": 30.0}, report=True)
    assert done.result["best_step"] == 0
    assert done.result["selected"] == "starting model"
    assert "training did not help" in done.result["verdict"]
    remaining = Embedder.from_pretrained(tmp_path / "run")
    assert remaining.fingerprint() == Embedder.from_pretrained(tiny).fingerprint()
    assert "did not help" in done.read_sections()["verdict"]["blocks"][0]["message"]


def test_early_stopping(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", optimizer={"lr": 30.0}, early_stopping=2, steps=100)
    assert done.result["stopped_early"] and done.result["steps"] == 8
    assert checkpoint.read(done.checkpoints / "last.pt")["step"] == 8


def test_no_validation_takes_the_last_step(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", data={"validation_fraction": 0}, steps=6)
    assert done.result["best_step"] == 6
    assert done.result["images"]["validation"] == 0


def test_a_learning_curve_on_test_classes_chooses_nothing(folder, tiny, tmp_path):
    steps = {"steps": 4, "evaluate_every": 2, "data": {"validation_fraction": 0}}
    plain = run(folder, tiny, tmp_path / "plain", **steps)
    curved = run(folder, tiny, tmp_path / "run", **steps, log={"test_classes": 100})
    curve = {line["step"]: line["test/recall@1"] for line in curved.read_log() if "test/recall@1" in line}
    measured = curved.result["measured"]
    assert list(curve) == [0, 2, 4]
    assert curve[4] == pytest.approx(measured["trained"]["recall@1"]["value"], abs=1e-6)
    assert curve[0] == pytest.approx(measured["step 0"]["recall@1"]["value"], abs=1e-6)
    assert measured == plain.result["measured"]


def test_images_are_passed_once(folder, tiny, tmp_path, cli):
    with pytest.raises(LookalikeError, match=r"given twice, as DATA and as `data\.source`"):
        train(data=folder, model=tiny, settings={"data": {"source": str(tmp_path)}})
    answer = cli("train", str(folder), "--set", "data.source=elsewhere")
    assert answer.code == 2 and "leave one of them out" in answer.err


def test_the_verdict_stands_once(folder, tiny, tmp_path, cli):
    words = ["--steps", "1", "--no-report", "--out", str(tmp_path / "run"), "--model", tiny]
    small = [f"{name}={value}" for name, value in flatten(SMALL).items() if not isinstance(value, (list, dict))]
    answer = cli("train", str(folder), *words, *(word for pair in small for word in ("--set", pair)))
    verdict = Run(tmp_path / "run").result["verdict"]
    assert answer.code == 0 and (answer.out + answer.err).count(verdict) == 1


def test_a_dry_run_does_nothing(folder, tiny, tmp_path):
    plan = train(data=folder, model=tiny, dry_run=True, method="supcon", seed=3)
    assert isinstance(plan, Plan)
    assert plan.settings.method.name == "supcon" and plan.settings.seed == 3
    assert "96" not in plan.facts["training"]
    assert "supcon" in str(plan) and str(plan).splitlines()[-1].startswith(list(plan.facts)[-1])
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("processor_time")
@pytest.mark.parametrize("mode", ["cached", "end_to_end"])
def test_a_dry_run_names_every_stage_and_its_estimate_holds_within_a_factor_of_two(mode, tiny, tmp_path):
    images = helpers.make_images(tmp_path / "many", classes=40, images=12, width=80, height=60)
    settings = {**SMALL, "views": {"mode": mode}, "steps": 60, "evaluate_every": 60}
    settings["sampler"] = {"classes_per_batch": 12, "images_per_class": 4}
    ratios = []
    for attempt in range(3):  # another program may take the processor in between
        plan = train(data=images, model=tiny, settings=settings, dry_run=True, report=False)
        with folders.temporary_cache():
            done = train(data=images, model=tiny, settings=settings, report=False, out=tmp_path / f"run-{attempt}")
        seconds = done.result["seconds"]
        assert list(seconds) == [*plan.seconds, "report"] == ["check", "features", "train", "measure", "report"]
        assert all(f"{name} " in plan.facts["time"] for name in plan.seconds)
        ratios.append(sum(plan.seconds.values()) / (sum(seconds.values()) - seconds["report"]))
        if 0.5 <= ratios[-1] <= 2:
            return
    pytest.fail(f"the estimate is off by {ratios}")


def test_the_progress_shows_a_negative_loss_with_a_real_minus_sign(folder, tiny, tmp_path, monkeypatch):
    notes = set()
    monkeypatch.setattr(Loop, "take_step", lambda self, step: -0.25)
    with progress_listener(lambda bar: notes.add(bar.note)):
        run(folder, tiny, tmp_path / "run")
    assert notes == {"", "loss −0.250"}


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(folder, tiny, tmp_path):
    first = run(folder, tiny, tmp_path / "a", method="remembering")
    again = run(folder, tiny, tmp_path / "b", method="remembering")
    other = run(folder, tiny, tmp_path / "c", method="remembering", seed=1)
    states = [checkpoint.read(r.checkpoints / "last.pt") for r in (first, again, other)]
    assert same(states[0], states[1])
    assert not same(states[0]["model"], states[2]["model"])
    assert first.read_log() == again.read_log()


def same(a, b) -> bool:
    """Equal to the bit, however deep."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


# ---- mistakes ------------------------------------------------------------------------------------


def test_one_class_gives_a_one_line_error_and_leaves_nothing(tmp_path, tiny):
    folder = helpers.make_images(tmp_path / "one", classes=1, images=4)
    with pytest.raises(LookalikeError, match="holds 1 class; training needs at least 2"):
        train(data=folder, model=tiny, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_classes_of_single_images_give_a_one_line_error(tmp_path, tiny):
    folder = helpers.make_images(tmp_path / "single", classes=5, images=1)
    with pytest.raises(LookalikeError, match=r"only 0 with at least 2 images.*class-00"):
        train(data=folder, model=tiny)


def test_single_images_are_named(tmp_path, tiny, capsys):
    folder = helpers.make_images(tmp_path / "mixed", classes=8, images=4)
    for number in (1, 2, 3):
        (folder / "class-03" / f"{number}.jpg").unlink()
    train(data=folder, model=tiny, dry_run=True)
    assert "1 class has only one image and cannot be retrieved correctly: `class-03`" in capsys.readouterr().err


def test_few_classes_train_with_smaller_batches(tmp_path, tiny, capsys):
    folder = helpers.make_images(tmp_path / "few", classes=3, images=10)
    done = run(folder, tiny, tmp_path / "run", steps=2)
    messages = capsys.readouterr().err
    assert "batches hold 3 classes, not 4" in messages
    assert "3 of 3 test classes are also trained on" in messages
    assert done.result["finished"]


def test_unreadable_images_are_left_out(tmp_path, tiny, capsys):
    folder = helpers.make_images(tmp_path / "pics", classes=8, images=6)
    (folder / "class-00" / "0.jpg").write_bytes(b"no image")
    done = run(folder, tiny, tmp_path / "run", steps=1)
    assert done.result["audit"]["unreadable"] == 1
    assert sum(done.result["images"].values()) == 47
    assert "class-00/0.jpg" in capsys.readouterr().err


def test_nothing_to_train_on():
    with pytest.raises(LookalikeError, match="give a folder of images"):
        train()
    with pytest.raises(LookalikeError, match="does not exist"):
        train(data="nowhere/")


def test_a_finished_run_and_other_settings_cannot_be_resumed(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", steps=2)
    with pytest.raises(LookalikeError, match="is finished; there is nothing to resume"):
        train(resume=done.path)
    (done.path / "result.json").unlink()
    with pytest.raises(LookalikeError, match=r"started with another `optimizer.lr`"):
        train(resume=done.path, settings={"optimizer": {"lr": 0.5}})
    again = train(resume=done.path, report=False)  # as if it had been killed while it was measured
    assert again.result["finished"]
    with pytest.raises(LookalikeError, match="already holds a run"):
        run(folder, tiny, tmp_path / "run")


def test_a_truncated_checkpoint_gives_a_one_line_error(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", steps=2)
    (done.path / "result.json").unlink()
    last = done.checkpoints / "last.pt"
    last.write_bytes(last.read_bytes()[:1000])
    with pytest.raises(LookalikeError, match="is damaged"):
        train(resume=done.path)


def test_changed_images_stop_a_resume(tmp_path, tiny):
    folder = helpers.make_images(tmp_path / "pics", classes=8, images=4)
    done = run(folder, tiny, tmp_path / "run", steps=1)
    (done.path / "result.json").unlink()
    helpers.make_images(tmp_path / "pics", classes=8, images=4, seed=1)
    with pytest.raises(LookalikeError, match="have changed since"):
        train(resume=done.path)


def test_a_loss_that_explodes_gives_a_one_line_error(folder, tiny, tmp_path):
    class Exploding(Remembering):
        def loss(self, embeddings, batch):
            return super().loss(embeddings, batch) * (float("nan") if self.context.step == 3 else 1)

    methods.register("exploding", Exploding)
    with pytest.raises(LookalikeError, match="not finite at step 3"):
        run(folder, tiny, tmp_path / "run", method="exploding")
    methods._REGISTERED.pop("exploding")


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_logger_gives_a_one_line_error(folder, tiny, tmp_path, name, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(LookalikeError, match=f"pip install 'lookalike\\[{name}\\]'"):
        run(folder, tiny, tmp_path / "run", log={name: "x", "tensorboard": False})


def test_figures_go_to_the_requested_loggers(folder, tiny, tmp_path, monkeypatch):
    sent, about = [], {}

    class Board:
        def log(self, values, step):
            sent.append(("wandb", step, dict(values)))

        def finish(self):
            about["ended"] = True

    wandb = SimpleNamespace(init=lambda **options: about.update(options) or Board())
    mlflow = SimpleNamespace(
        set_tracking_uri=lambda uri: about.update(uri=uri),
        start_run=lambda run_name: None,
        log_params=lambda values: about.update(params=values),
        log_metrics=lambda values, step: sent.append(("mlflow", step, values)),
        end_run=lambda: None,
        exceptions=SimpleNamespace(MlflowException=ConnectionError),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run(folder, tiny, tmp_path / "run", steps=4, log={"wandb": "project", "mlflow": "file:x"})
    assert about["project"] == "project" and about["uri"] == "file:x" and about["ended"]
    assert about["params"]["optimizer.lr"] == 1e-3
    for name, recall in (("wandb", "validation/recall@1"), ("mlflow", "validation/recall_at_1")):
        assert [step for to, step, values in sent if to == name and "loss" in values] == [2, 4]
        assert [step for to, step, values in sent if to == name and recall in values] == [0, 4]


def test_an_unreachable_mlflow_gives_a_one_line_error(folder, tiny, tmp_path, monkeypatch):
    def refuse(run_name):
        raise ConnectionError("nobody there\n  at line 3")

    errors = SimpleNamespace(MlflowException=ConnectionError)
    mlflow = SimpleNamespace(set_tracking_uri=lambda uri: None, start_run=refuse, exceptions=errors)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    with pytest.raises(LookalikeError, match=r"cannot report to `http://nowhere`: nobody there\.$"):
        run(folder, tiny, tmp_path / "run", log={"mlflow": "http://nowhere", "tensorboard": False})


def test_tensorboard_is_written(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", log={"tensorboard": True}, steps=2)
    assert list((done.path / "tensorboard").glob("events*"))


def test_the_run_is_locked_while_it_trains(folder, tiny, tmp_path):
    class Meddling(Remembering):
        def after_step(self):
            with pytest.raises(LookalikeError, match="in use by another process"):
                train(resume=tmp_path / "run")

    methods.register("meddling", Meddling)
    run(folder, tiny, tmp_path / "run", method="meddling", steps=1)
    methods._REGISTERED.pop("meddling")


def test_clipping_and_bf16(folder, tiny, tmp_path):
    done = run(
        folder, tiny, tmp_path / "run", max_grad_norm=1e-9, precision="bf16", optimizer={"kind": "sgd", "lr": 1.0}
    )
    start = checkpoint.read(done.checkpoints / "start.pt")["head"]["weight"]
    last = checkpoint.read(done.checkpoints / "last.pt")["model"]["head.weight"]
    assert not torch.equal(start, last)
    assert np.abs((start - last).numpy()).max() < 1e-2  # weight decay moves it, the clipped gradient hardly
    assert json.loads((done.path / "result.json").read_text())["finished"]
