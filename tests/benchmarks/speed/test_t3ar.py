"""The benchmark of a step of T3AR on a small scale: the same answers as the plain algorithm's parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.adaptation.conftest import small

from benchmarks.speed import t3ar


def test_a_step_is_measured_against_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t3ar, "BATCH", 8)
    mixed = t3ar.Kind(2, 3)
    figures, bars = t3ar.measure(5, mixed, "small", size=900, rounds=1)
    assert set(figures["milliseconds"]) == {"bare", "ours", "plain"}
    assert [bar.bound for bar in bars] == [t3ar.BARE, t3ar.FASTER]
    bank, batch = t3ar.material(5, mixed, 900)
    assert len(bank) == 900 and int(bank.counts.max()) == 3
    for job in (t3ar.ours, t3ar.plain):
        assert torch.isfinite(job(bank, batch)()).all()


def test_a_pool_is_embedded_and_searched_once(tmp_path: Path) -> None:
    small(None).save_pretrained(tmp_path / "model")
    figures, bars = t3ar.pool_twice(20, str(tmp_path / "model"))
    assert figures["first"]["embedded"] == 20 and figures["first"]["searches"] == 1
    assert [bar.value for bar in bars] == [0, 0] and all(bar.ok for bar in bars)
