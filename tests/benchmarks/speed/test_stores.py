"""The benchmarks of stores and of how they grow, on a few vectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed import BenchContext, growth, stores
from lookalike import planning

QUIET = BenchContext(say=lambda text: None)


@pytest.mark.needs("postgres")
def test_stores_are_measured_side_by_side(postgres_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"QUERIES": 20, "ROUNDS": 1, "FILTERED_QUERIES": 3, "DIM": 16}.items():
        monkeypatch.setattr(stores, name, value)
    addresses = {"local": "local", "postgresql": postgres_server.address}
    figures, bars = stores.measure(QUIET, addresses, tmp_path, 1200)
    assert figures["not measured"] == ["milvus"]
    for name in addresses:
        facts = figures[name]
        assert facts["recall"] == 1 and facts["bytes_a_vector"] > 4 * 16 and facts["queries a second, one a call"]
        assert set(facts["filtered"]) == {f"{p} %, class {w}" for p in (1, 10, 50) for w in ("kept", "filtered out")}
    by_name = {bar.name: bar for bar in bars}
    assert by_name["postgresql, filter 1 %, class filtered out: recall@10"].ok
    assert not by_name["milvus: recall@10"].ok, "what was not measured does not hold"


def test_growth_is_measured_and_its_last_point_predicted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(planning, "measure_machine", lambda: {"threads": 1})
    monkeypatch.setattr(growth, "BLOCK", 500)
    monkeypatch.setattr(growth, "QUERIES", 20)
    figures, bars = growth.measure(QUIET, (200, 300, 400, 500), (500, 1000, 1500, 2000))
    assert figures["graph"]["rows"] == [200, 300, 400, 500] and figures["exact"]["rows"][-1] == 2000
    assert all(value > 0 for kind in ("graph", "exact") for values in figures[kind].values() for value in values)
    assert len(bars) == 9 and all(math.isfinite(bar.value) and bar.better == "lower" for bar in bars)
    assert growth.bars({"dim": 384})[0].ok is False
