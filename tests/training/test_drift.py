"""The drift meter: its formulas, that it disturbs nothing, and what the report says."""

from __future__ import annotations

import math

import pytest
import torch
from tests.training.conftest import SMALL
from tests.training.test_train_command import same

from lookalike.core.report_blocks import Lines, Text
from lookalike.core.seeds import torch_rng
from lookalike.core.settings import merge
from lookalike.memory.queue import WatchedRows
from lookalike.methods.collapse import mean_cosine
from lookalike.training import checkpoint, drift, train
from lookalike.training.drift import describe_filter, drift_section


def rows(count: int, name: str) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 4, generator=torch_rng(0, name)), dim=1)


def test_the_formulas_against_plain_loops():
    a, b = rows(7, "a"), rows(7, "b")
    moved = [math.dist(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    actual = drift.feature_drift(a, b)
    assert actual == pytest.approx({"drift/mean": sum(moved) / 7, "drift/max": max(moved)}, rel=1e-5)
    pairs = [float(a[i] @ a[j]) for i in range(7) for j in range(7) if i != j]
    assert mean_cosine(a) == pytest.approx(sum(pairs) / len(pairs), abs=1e-6)
    assert mean_cosine(a[:1].expand(5, 4)) == pytest.approx(1.0)
    assert mean_cosine(a[:1]) == 0.0
    stored = WatchedRows(torch.arange(7), 3 * a, b)
    actual = drift.staleness(stored, a, b, a)
    assert actual["memory/stale"] == pytest.approx(0.0, abs=1e-6)  # rows off the sphere are brought back
    assert actual["memory/stale_original"] == actual["memory/floor"] == pytest.approx(sum(moved) / 7, rel=1e-5)


@pytest.mark.parametrize("method", ["supcon", "xbm"])
def test_reading_the_meter_changes_nothing(method, folder, tiny, tmp_path):
    settings = merge(SMALL, {"views": {"mode": "end_to_end"}, "model": {"batch_norm": "train"}, "steps": 6})
    settings |= {"memory": {"warmup_steps": 0}} if method == "xbm" else {}
    options = {"data": folder, "model": tiny, "method": method, "report": False}
    plain, read = (
        train(**options, out=tmp_path / name, settings=merge(settings, {"log": {"drift_every_n_steps": every}}))
        for name, every in (("plain", 0), ("read", 2))
    )
    states = [checkpoint.read(run.checkpoints / "last.pt") for run in (plain, read)]
    assert same(states[0], states[1])
    readings = [row for row in read.read_log() if "drift/mean" in row]
    assert [row["step"] for row in readings] == [2, 4, 6]
    assert all(0 < row["drift/mean"] <= row["drift/max"] < 2 for row in readings)
    assert all(-1 <= row["drift/cosine"] <= 1 for row in readings)
    assert all(("memory/stale" in row) == (method == "xbm") for row in readings)
    assert not any("drift/mean" in row for row in plain.read_log())


@pytest.mark.parametrize("rule", ["xbn", "axbn", "shrink"])
def test_on_cached_features_a_corrected_memory_is_never_staler(rule, folder, tiny, tmp_path):
    """Nothing drifts below the head: what a rule changes is noise."""
    settings = merge(SMALL, {"steps": 40, "optimizer": {"lr": 1e-4}, "log": {"drift_every_n_steps": 5}})
    stale = []
    for name, drift_rule in (("as stored", "none"), ("corrected", rule)):
        memory = {"drift": drift_rule, "warmup_steps": 0, "fill": False}
        run = train(
            data=folder,
            model=tiny,
            method="xbm",
            out=tmp_path / name,
            settings=merge(settings, {"memory": memory}),
            report=False,
        )
        stale.append([row["memory/stale"] for row in run.read_log() if "memory/stale" in row])
    assert len(stale[0]) == 8
    assert all(corrected <= stored + 1e-6 for stored, corrected in zip(*stale, strict=True))


def test_the_report_draws_drift_age_and_collapse_and_says_what_the_filter_did(folder, tiny, tmp_path):
    settings = merge(
        SMALL, {"log": {"drift_every_n_steps": 3, "tensorboard": True}, "memory": {"drift": "axbn", "warmup_steps": 0}}
    )
    done = train(data=folder, model=tiny, method="xbm", out=tmp_path / "run", settings=settings)
    section = done.read_sections()["drift"]
    titles = [block["title"] for block in section["blocks"]]
    assert titles == ["Feature drift", "Age of the memory", "Collapse", "The filter"]
    age = {line["name"]: line["y"] for line in section["blocks"][1]["series"]}
    assert len(age) == 3 and all(len(values) == 4 for values in age.values())
    assert "in effect XBN" in section["blocks"][3]["text"]
    assert "every 3 steps" in section["blocks"][0]["note"]
    events = b"".join(path.read_bytes() for path in (done.path / "tensorboard").glob("events*"))
    assert b"drift/mean" in events and b"memory/stale" in events and b"memory/gain" in events


def test_the_summary_of_the_filter():
    log = [{"step": n, "memory/gain": g, "memory/window": w} for n, g, w in ((1, 0.5, 3.0), (2, 0.25, 7.0))]
    messages = describe_filter(log)
    assert (
        "ended at 0.25 (from 0.25 to 0.5)" in messages and "window of 7 batches" in messages and "XBN" not in messages
    )
    log[-1] |= {"memory/r": 0.002, "memory/q": 1e-5}
    assert "r 0.002, q 1e-05" in describe_filter(log)
    assert describe_filter([{"step": 1, "loss": 2.0}]) == ""
    assert drift_section([{"step": 1, "loss": 2.0}], 5) is None


def test_a_collapsed_run_is_called_so():
    log = [{"step": 1, "drift/mean": 0.1, "drift/max": 0.2, "drift/cosine": 0.995}]
    section = drift_section(log, 1)
    assert section is not None
    assert "has collapsed: 0.995" in section.blocks[-1].note
    assert [type(block) for block in section.blocks] == [Lines, Lines]
    assert not any(isinstance(block, Text) for block in section.blocks)
