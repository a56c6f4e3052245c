"""Jobs in turns: how often each runs, and that disturbed rounds are made again."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import machine
from benchmarks.speed.turns import in_turns, ratio


def test_every_job_runs_once_a_round_after_a_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: None)
    order: list[str] = []
    times = in_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 2)
    assert order == ["a", "b"] * 3
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_a_round_beside_other_processes_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([0.0, 1.0, 1.0, 1.0, 1.0, 1.0])  # the first of the rounds is disturbed
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: next(spent))
    calls = itertools.count()
    times = in_turns({"a": lambda: next(calls)}, 2)
    assert len(times["a"]) == 2
    assert next(calls) == 1 + 1 + 2


def test_a_machine_that_is_never_quiet_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = itertools.count()
    monkeypatch.setattr(machine, "spent_elsewhere", lambda: float(next(spent)))
    calls = itertools.count()
    times = in_turns({"a": lambda: next(calls)}, 3)
    assert len(times["a"]) == 3
    assert next(calls) == 1 + 3 + 3


def test_ratios_are_taken_within_a_round() -> None:
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 1.0]) == 3.0
