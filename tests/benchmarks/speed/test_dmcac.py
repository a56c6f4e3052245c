"""The benchmark of DMCAC in miniature: both sides compute the same, and every bar is there."""

from __future__ import annotations

import pytest
import torch

from benchmarks.speed import BenchContext
from benchmarks.speed import dmcac as bench
from lookalike.core import seeds
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.losses import dmcac
from lookalike.losses.dmcac import FullPass


@pytest.fixture
def small(monkeypatch):
    sizes = {"QUERIES": 5, "VIEWS": 3, "DIM": 16, "K": 4, "CLASSES": 6, "ROWS": 300, "ROUNDS": 1, "STEPS": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(bench, name, value)


def test_our_terms_are_the_loops(small):
    z, labels, rows, there = bench.made_up(300)
    assert z.shape == (5, 3, 16) and rows.shape == (300, 16)
    result = torch_top_k(z.flatten(0, 1), rows, 4)[1].view(5, 3, 4)
    heads = dmcac.AttentionHeads(6, 16, seeds.torch_rng(0, "heads"))
    values, slopes = [], []
    for form in (bench.ours, bench.loop):
        values.append(bench._step(form, z, labels, dmcac.Database(rows, there), result, heads))
        slopes.append([p.grad.clone() for p in heads.parameters()])
    assert values[0] == pytest.approx(values[1], rel=1e-5)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*slopes, strict=True))


def test_the_plain_form_is_the_same_divergence(small):
    z, labels, rows, there = bench.made_up(300)
    blocks = FullPass.apply(z, z, rows, labels, there, bench.TEMPERATURE, 64)[0]
    assert torch.allclose(blocks, bench.plain_divergence(z, rows), rtol=1e-3)


def test_the_whole_in_miniature(small, monkeypatch):
    sides = {"blocks": {"megabytes": 10, "value": 1.0}, "plain": {"megabytes": 100, "value": 1.0}}
    monkeypatch.setattr(
        bench, "measure_memory", lambda rows, threads: (sides, [bench.Bar("memory", 0.1, 0.2, "lower")])
    )
    monkeypatch.setattr(bench, "measure_refresh", lambda context: ({}, [bench.Bar("refresh", 1.0, 0.9)]))
    before = torch.get_num_threads()
    figures, bars = bench.run(BenchContext(threads=1, say=lambda text: None))
    assert torch.get_num_threads() == before and len(bars) == 4
    assert figures["step"]["milliseconds"]["terms"] > 0


def test_each_side_says_what_it_held(small):
    for who in ("blocks", "plain"):
        result = bench.memory_of(who, 300)
        assert result["megabytes"] >= 0 and result["value"] > 0
