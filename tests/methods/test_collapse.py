"""The collapse guard: its readings against loops, when it speaks, and what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.methods.test_carp import SMALL, joint
from tests.methods.test_common import batch, context

from lookalike.core.seeds import numpy_rng, torch_rng
from lookalike.losses.carp import Diagnostics
from lookalike.methods.carp import CARP, CARPSettings
from lookalike.methods.collapse import (
    COLLAPSED,
    FALLING,
    HEALTHY,
    STALLED,
    CollapseMonitor,
    RunSize,
    effective_rank,
    expected_balance,
    feature_spread,
)


@pytest.mark.parametrize(("images", "block"), [(6, 4), (64, 512), (128, 512), (1024, 512), (256, 65_536)])
def test_the_balance_of_random_choices_is_that_of_drawing(images, block):
    rng, actual = numpy_rng(0, "draws"), []
    for _ in range(1000):
        counts = np.unique(rng.integers(0, block, images), return_counts=True)[1] / images
        actual.append(math.log(block) + float((counts * np.log(counts)).sum()))
    error = np.std(actual) / len(actual) ** 0.5
    assert abs(expected_balance(images, block) - np.mean(actual)) < 4 * error


@pytest.mark.parametrize(
    ("images", "block", "drawn"),
    [(64, 512, 2.161), (128, 512, 1.555), (256, 512, 0.998), (4096, 512, 0.064), (256, 65_536, 5.548)],
)
def test_the_table_of_the_spec(images, block, drawn):
    """Its figures were drawn, a few times each; ours is the expectation."""
    assert expected_balance(images, block) == pytest.approx(drawn, rel=0.01)


def test_spread_and_rank_of_features():
    rows = torch.randn(400, 20, generator=torch_rng(0, "rows"))
    assert feature_spread(rows) == pytest.approx(1, abs=0.1) and effective_rank(rows) == pytest.approx(20, abs=1)
    one = rows[:1].repeat(400, 1)
    assert feature_spread(one) == pytest.approx(0, abs=1e-3) and effective_rank(one) == pytest.approx(1, abs=0.01)


def guard(**sizes) -> CollapseMonitor:
    return CollapseMonitor(
        RunSize(**{"prototypes": 2048, "block_size": 128, "batch": 64, "steps": 1000, "teacher": "ema", **sizes})
    )


def read(
    actual: CollapseMonitor, step: int, *, clusters: float = 30.0, consistency: float = 2.0, balance: float = 0.5
) -> dict:
    chosen = torch.arange(4) + 4 * step
    readings = (torch.tensor(value, dtype=torch.float64) for value in (math.log(clusters), balance + 0.2, 0.1))
    return actual.update(step, consistency, balance, Diagnostics(*readings, chosen))


def test_the_readings():
    actual = guard()
    for step in range(1, 4):
        messages = read(actual, step)
    assert (
        messages["clusters"] == pytest.approx(30)
        and messages["in_use"] == 12
        and messages["perplexity"] == pytest.approx(12)
    )
    assert messages["consistency"] == pytest.approx(2 / math.log(128)) and messages["balance"] == pytest.approx(
        0.5 / math.log(128)
    )
    assert messages["balance_over_random"] == pytest.approx(0.5 - expected_balance(64, 128))
    assert messages["effective_prototypes"] == pytest.approx(128 * math.exp(-0.5))
    assert messages["effective_prototypes_worst"] == pytest.approx(128 * math.exp(-0.7))
    assert messages["in_use_at_random"] == pytest.approx(2048 * (1 - (1 - 1 / 2048) ** 12))
    assert messages["state"] == HEALTHY


def test_it_is_silent_at_the_start_and_then_speaks_at_once():
    actual = guard()
    states = [read(actual, step, clusters=1.2)["state"] for step in range(1, 60)]
    assert states == [HEALTHY] * 50 + [COLLAPSED] * 9
    assert "has collapsed at step 59" in actual.message(COLLAPSED, 1.2, 2.0, 59)


def test_a_fall_by_half_within_fifty_steps():
    actual = guard()
    states = [read(actual, step, clusters=40 if step <= 100 else 18)["state"] for step in range(1, 160)]
    assert states[:100] == [HEALTHY] * 100 and states[100:150] == [FALLING] * 50 and states[150:] == [HEALTHY] * 9
    assert "is collapsing" in actual.message(FALLING, 18.0, 2.0, 110)


def test_a_stall_is_distinguished_from_a_collapse():
    actual = guard()
    messages = [
        read(actual, step, clusters=1.01, consistency=0.97 * math.log(128), balance=0.01) for step in range(1, 60)
    ]
    assert messages[-1]["state"] == STALLED
    assert "Raise `optimizer.lr`" in actual.message(STALLED, 1.01, 4.7, 59)


def test_the_advice_names_the_setting_in_the_order_of_likely_causes():
    def advice(**sizes) -> str:
        actual = guard(**sizes)
        for step in range(1, 60):
            read(actual, step, clusters=1.5)
        return actual.message(COLLAPSED, 1.5, 2.0, 59)

    assert "`method.block_size` smaller: 512 is more than twice the batch of 64" in advice(
        block_size=512, teacher="stopgrad"
    )
    assert "`method.teacher` to ema: it is stopgrad" in advice(teacher="stopgrad")
    assert "raise `sampler.batch_size` (now 64) or `method.weight`" in advice()
    fast = guard()
    for step in range(1, 60):
        read(fast, step, clusters=1.5, consistency=4.0 if step < 30 else 0.5)
    assert "lower `optimizer.lr`" in fast.message(COLLAPSED, 1.5, 0.5, 59)


def test_a_resumed_guard_speaks_as_an_unbroken_one():
    whole, broken = guard(), guard()
    for step in range(1, 90):
        read(whole, step, clusters=40)
        read(broken, step, clusters=40)
    again = guard()
    again.load_state_dict(broken.state_dict())
    assert read(again, 90, clusters=15) == read(whole, 90, clusters=15)


def test_a_run_without_balance_collapses_and_is_reported(capsys):
    """No weight on the balance: every image goes to the same prototypes, and the guard says so soon."""
    method = CARP(CARPSettings.parse({**SMALL, "weight": 0.0, "teacher": "stopgrad"}), context())
    method.context.steps = 200
    parameters = [*method.context.model.backbone.parameters(), *method.prototype_head.parameters()]
    solver = torch.optim.Adam(parameters, lr=0.05)
    states = []
    for step in range(1, 71):
        method.context.step, method.context.logs = step, {}
        method.loss(method.embed(batch()), joint(batch())).backward()
        solver.step()
        solver.zero_grad()
        states.append(method.context.logs["guard/state"])
    assert states[-1] == COLLAPSED and method.context.logs["guard/clusters"] < 1.5
    said = capsys.readouterr().err
    assert said.count("The run has collapsed at step 51") == 1 and "`method.teacher` to ema" in said
    assert method.context.logs["guard/spread"] > 0.2  # the features have not
