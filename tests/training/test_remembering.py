"""A memory in the loop: killed and resumed with the same bits, the same on every process."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest
import torch
from pydantic import Field
from tests import helpers
from tests.helpers import ROOT
from tests.training.conftest import SMALL
from tests.training.test_resume import assert_same
from tests.training.test_train_command import same

from lookalike import methods
from lookalike.core.errors import LookalikeError
from lookalike.core.settings import merge, parse_set
from lookalike.methods.xbm import XBM
from lookalike.training import checkpoint, train
from lookalike.training.recipe import load
from lookalike.training.settings import resolve

# Batches of 12 into 30 rows: full in the third step, which wraps inside the batch.
MEMORY = {"size": 30, "drift": "axbn", "r": 4.0, "interval": 2, "warmup_steps": 0, "fill": False}
CASES = {
    "axbn": {"memory": MEMORY},
    "auto": {"memory": {**MEMORY, "r": "auto", "interval_mode": "noise", "batch_loss": True}, "steps": 20},
    "wait": {"memory": {"size": 30, "drift": "shrink"}, "steps": 44, "evaluate_every": 7},
    "end to end": {
        "memory": {**MEMORY, "drift": "xbn", "warmup_steps": 2, "fill": True},
        "views": {"mode": "end_to_end"},
        "model": {"freeze": "stage0"},
        "accumulation_steps": 2,
        "log": {"drift_every_n_steps": 2},
        "head": {"kind": "random", "prewarm_epochs": 1, "norm": "mbn"},
    },
}


def settings_of(case: str) -> dict:
    return merge(SMALL, {"keep": "trained", "evaluate_every": 1}, CASES[case])


def struck(case: str, step: int, folder: Path, model: Path, out: Path) -> None:
    """A run that is killed, in a process of its own."""

    def strike(self):
        if self.context.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    XBM.after_step = strike
    train(data=folder, model=model, out=out, method="xbm", settings=settings_of(case), report=False)


@pytest.mark.parametrize(
    ("case", "step"),
    [
        ("axbn", 2),  # in the middle of filling
        ("axbn", 7),  # wrapped
        ("end to end", 4),
        ("wait", 22),  # the memory starts after step 20, when drift was first measured
        pytest.param("auto", 19, marks=pytest.mark.slow),
        pytest.param("axbn", 3, marks=pytest.mark.slow),
        pytest.param("end to end", 3, marks=pytest.mark.slow),
        pytest.param("end to end", 9, marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_ends_with_the_same_bits(case, step, folder, tiny, tmp_path, capsys):
    whole = train(
        data=folder, model=tiny, out=tmp_path / "whole", method="xbm", settings=settings_of(case), report=False
    )
    if case == "wait":  # the memory starts as soon as drift allows; every second step is logged
        assert next(row["step"] for row in whole.read_log() if "memory/rows" in row) == 22
        assert "The memory is used from step 21 on: a step moves embeddings by" in capsys.readouterr().err
    out = tmp_path / "run"
    ended = helpers.apart(struck, case, step, folder, tiny, out)
    assert ended.code == -signal.SIGKILL, ended.err
    assert checkpoint.read(out / "checkpoints" / "last.pt")["step"] == step - 1
    assert_same(train(resume=out, report=False), whole)


def test_the_memory_is_set_beside_the_method(folder, tiny):
    plan = train(
        data=folder, model=tiny, method="xbm", settings={"memory": {"drift": "ema", "beta": 0.5}}, dry_run=True
    )
    own = plan.settings.method.own()
    assert own["memory"]["drift"] == "ema" and own["memory"]["beta"] == 0.5 and own["memory"]["size"] == 1.0
    assert plan.settings.log.drift_every_n_steps > 0
    assert resolve(plan.settings.model_dump(mode="json")) == plan.settings
    with pytest.raises(LookalikeError, match="`memory` is not one of the settings of the method supcon"):
        train(data=folder, model=tiny, method="supcon", settings={"memory": {"size": 3}}, dry_run=True)


class WiderMemory(XBM.Settings.model_fields["memory"].annotation):
    """The settings of the memory and one more, as if it had been added to them."""

    halflife: float = 3.0
    """Steps after which a row counts half."""


class WiderSettings(XBM.Settings):
    """Settings with the wider memory."""

    memory: WiderMemory = Field(default_factory=WiderMemory)
    """The memory."""


class Wider(XBM):
    """A method with them."""

    name = "wider"
    Settings = WiderSettings


def test_a_setting_of_the_memory_is_written_once(tmp_path, monkeypatch):
    """Schema, YAML, Python, constructor and the table of the docs know a field that only the class states."""
    from lookalike.memory import CrossBatchMemory

    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    monkeypatch.setitem(methods._REGISTERED, "wider", Wider)
    assert WiderSettings.model_json_schema()["$defs"]["WiderMemory"]["properties"]["halflife"]["default"] == 3.0
    assert ("`memory.halflife`", "`3.0`", "Steps after which a row counts half.") in generate._fields(WiderSettings)
    for own_settings in (parse_set(["memory.halflife=5"]), {"method": {"memory": {"halflife": 5}}}):
        assert resolve({"method": "wider"}, own_settings).method.own()["memory"]["halflife"] == 5.0
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("method: wider\nmemory:\n  halflife: 7\n", encoding="utf-8")
    assert resolve(load(recipe)).method.own()["memory"]["halflife"] == 7
    memory = CrossBatchMemory(None, 4, settings=WiderMemory.parse({"halflife": 2, "drift": "xbn"}))
    assert memory.settings.halflife == 2 and memory.state_dict()["_extra_state"]["settings"]["halflife"] == 2


def test_settings_beside_a_method_belong_to_it(folder, tiny):
    plan = train(data=folder, model=tiny, method="supcon", settings={"method": {"temperature": 0.3}}, dry_run=True)
    assert plan.settings.method.own() == {"temperature": 0.3}


def test_the_command_line_takes_the_memory(folder, tiny, cli):
    words = ["train", folder, "--method", "xbm", "--set", "memory.drift=axbn", "--model", tiny, "--dry-run", "--json"]
    actual = cli(*words)
    assert actual.code == 0, actual.err
    assert actual.json["settings"]["method"]["memory"]["drift"] == "axbn"


# ---- the head: pre-warm-up and norm layers -------------------------------------------------------


def test_the_pre_warm_up_moves_the_head_alone_and_is_step_0(folder, tiny, tmp_path):
    def start(name, **head):
        settings = merge(SMALL, {"head": {"kind": "random", **head}, "steps": 1, "keep": "trained"})
        run = train(data=folder, model=tiny, out=tmp_path / name, method="supcon", settings=settings, report=False)
        return run, checkpoint.read(run.checkpoints / "start.pt")["head"]

    plain, cold = start("cold")
    warm_run, warm = start("warm", prewarm_epochs=3, prewarm_lr=1.0)
    again, _ = start("again", prewarm_epochs=3, prewarm_lr=1.0)
    assert not torch.equal(cold["weight"], warm["weight"])
    assert same(warm, checkpoint.read(again.checkpoints / "start.pt")["head"])
    first = [checkpoint.read(run.checkpoints / "last.pt")["model"]["head.weight"] for run in (plain, warm_run)]
    assert (first[1] - warm["weight"]).abs().max() < 0.01 < (first[1] - cold["weight"]).abs().max()
    assert (first[0] - cold["weight"]).abs().max() < 0.01


@pytest.mark.parametrize("norm", ["bn", "mbn", "ln"])
def test_a_norm_layer_is_trained_measured_and_saved(norm, folder, tiny, tmp_path):
    from lookalike.models import Embedder

    settings = merge(SMALL, {"head": {"norm": norm}, "keep": "trained", "steps": 4, "data": {"validation_fraction": 0}})
    run = train(data=folder, model=tiny, out=tmp_path / "run", method="supcon", settings=settings, report=False)
    model = Embedder.from_pretrained(run.path)
    last = checkpoint.read(run.checkpoints / "last.pt")["model"]
    assert torch.equal(model.norm.weight, last["norm.weight"])
    assert not torch.equal(model.norm.weight, torch.ones(16))
    if norm != "ln":  # its statistics moved with the joint batch
        assert not torch.equal(model.norm.running_mean, torch.zeros(16))
    with pytest.raises(LookalikeError, match="has a head already"):
        train(data=folder, model=run.path, out=tmp_path / "next", settings=merge(SMALL, {"head": {"norm": "ln"}}))
