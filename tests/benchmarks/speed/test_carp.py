"""The benchmark of CARP's loss: that both sides compute the same, and how its bars are made."""

from __future__ import annotations

import math

import pytest
import torch
from tests.naive import carp as naive

from benchmarks.speed import BenchContext, carp
from lookalike.losses.carp import CARPLoss


def test_the_pseudocode_is_the_naive_one_and_ours_up_to_its_constant():
    z, w, c, t = carp.inputs(64)
    unit = torch.nn.functional.normalize
    student, teacher = z @ unit(c, dim=1).t(), w @ unit(t, dim=1).t()
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    theirs = carp.pseudocode(*student, *teacher, 16, order)
    assert theirs.item() == pytest.approx(naive.pseudocode(*student, *teacher, order, 16).item(), rel=1e-5)
    ours = CARPLoss(16, pair_reduction="sum")(student, teacher, order).loss
    assert ours.item() + math.log(64 / 16) == pytest.approx(theirs.item(), rel=1e-4)


@pytest.mark.parametrize(
    "who", ["pseudocode", "fused", "fused, with diagnostics", "products", "logits", "pseudocode on logits"]
)
def test_every_step_runs(who):
    carp.job(who, prototypes=1024, block=32)()


def test_bars_and_figures(monkeypatch):
    monkeypatch.setattr(carp, "compared", lambda name: ({"seconds": {}}, [carp.Bar(f"{name}: faster", 2.5, 2.2)]))
    monkeypatch.setattr(carp, "in_process", lambda who, threads: {"pseudocode": 900.0, "fused": 120.0}[who])
    seconds = {str(size): 1.0 for size in carp.BLOCKS} | {"32": 1.3}
    monkeypatch.setattr(carp, "curves", lambda: (seconds, {str(k): k / 50_000 for k in carp.COUNTS}))
    figures, bars = carp.run(BenchContext(threads=2, say=lambda text: None))
    result = {bar.name: (bar.value, bar.ok) for bar in bars}
    assert result["extra peak memory over the pseudocode's"] == (pytest.approx(120 / 900), True)
    assert result["slowest over fastest block size, 32 to 4,096"] == (pytest.approx(1.3), True)
    assert result["dearest over cheapest prototype, 16,384 to 131,072"] == (pytest.approx(1.0), True)
    assert {"1 thread: faster", "2 threads: faster"} <= set(result) and figures["megabytes"]["fused"] == 120.0
