from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine, speed
from benchmarks.speed import BENCHES, Bar, bench
from lookalike.core.errors import LookalikeError


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A benchmark with one bar held and two missed, on a quiet machine."""
    module = types.ModuleType("toy_bench")

    def run(context: speed.BenchContext) -> tuple[dict[str, Any], list[Bar]]:
        bars = [Bar("ratio", 3.6, 3.5), Bar("memory", 1.2, 1.0, "lower"), Bar("gain", -0.1, 0.0)]
        return {"ours": 720.0, "threads": context.threads, "data": context.data, "nan": float("nan")}, bars

    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_bench", module)
    monkeypatch.setitem(BENCHES, "toy", "toy_bench")
    monkeypatch.setattr(machine, "others_use", lambda seconds: 0.0)
    return module


@pytest.mark.parametrize("name", list(BENCHES))
def test_every_named_benchmark_is_there(name: str) -> None:
    assert callable(importlib.import_module(BENCHES[name]).run)


@pytest.mark.parametrize(
    ("bar", "ok"),
    [
        (Bar("a", 1.0, 1.0), True),
        (Bar("a", 0.999, 1.0), False),
        (Bar("a", 1.0, 1.0, "lower"), True),
        (Bar("a", 1.001, 1.0, "lower"), False),
        (Bar("a", float("nan"), 1.0), False),
        (Bar("a", float("nan"), 1.0, "lower"), False),
    ],
)
def test_bars(bar: Bar, ok: bool) -> None:
    assert bar.ok is ok


def test_the_result_has_the_promised_form(toy: object) -> None:
    document = json.loads(json.dumps(bench(name="toy").to_json()))
    assert list(document) == ["name", "machine", "figures", "bars"]
    assert list(document["machine"]) == ["load", "threads", "cpu"]
    assert document["bars"][0] == {"name": "ratio", "value": 3.6, "bound": 3.5, "better": "higher", "ok": True}
    assert [bar["ok"] for bar in document["bars"]] == [True, False, False]
    assert document["figures"]["threads"] == 1
    assert document["figures"]["nan"] is None


def test_a_busy_machine_is_refused_and_force_trusts_nothing(toy: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "others_use", lambda seconds: 1.0)
    with pytest.raises(machine.Busy):
        bench(name="toy")
    result = bench(name="toy", force=True)
    assert result.figures["ours"] == 720.0
    assert not any(bar["ok"] for bar in result.bars)
    uses = iter([1.0, 0.0])
    monkeypatch.setattr(machine, "others_use", lambda seconds: next(uses))
    assert bench(name="toy", wait=True).bars[0]["ok"]


def test_a_result_is_stored_with_its_provenance(toy: object, tmp_path: Path) -> None:
    bench(name="toy", data=tmp_path, out=tmp_path / "results")
    saved = json.loads((tmp_path / "results" / "bench-toy.json").read_text())
    assert {"when", "command", "versions", "seconds", "machine", "bars"} <= set(saved)


def test_data_that_is_missing_gives_a_one_line_error() -> None:
    with pytest.raises(LookalikeError, match="This benchmark needs the data set `cub`"):
        speed.BenchContext().folder("cub")
