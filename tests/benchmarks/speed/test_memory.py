"""The benchmark of the memory, in miniature: what it compares, and that the share of mined negatives is right."""

from __future__ import annotations

import pytest
import torch

from benchmarks.speed import BenchContext
from benchmarks.speed import memory as bench


@pytest.mark.parametrize("drift", [None, "xbn", "axbn"])
@pytest.mark.parametrize("share", bench.SHARES)
def test_the_requested_fraction_of_negatives_is_mined(drift: str | None, share: float) -> None:
    rows, labels, batches = bench.images(2000)
    neg_margin = bench.margin(rows, labels, batches[0], drift, share)
    memory = bench.ours(rows, labels, drift, neg_margin)
    memory(*batches[0])
    embeddings, expected = batches[0]
    distances = torch.cdist(embeddings, torch.nn.functional.normalize(memory.rows, dim=1))
    other = expected[:, None] != memory.row_labels[None, :]
    assert (distances < neg_margin)[other].float().mean().item() == pytest.approx(share, abs=0.002)


def test_both_sides_have_the_same_loss() -> None:
    rows, labels, batches = bench.images(600)
    ours, peer = bench.ours(rows, labels, None, 1.2), bench.peer(rows, labels, 1.2)
    for batch in batches:
        value = ours(*batch).item()
        assert value > 0
        assert value == pytest.approx(peer(*batch).item(), rel=1e-5)


def test_the_whole_in_miniature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "SIZES", {200: 1.0, 300: 1.0})
    monkeypatch.setattr(bench, "ROUNDS", {200: 1, 300: 1})
    monkeypatch.setattr(bench, "LARGE", 300)
    before = torch.get_num_threads()
    figures, bars = bench.run(BenchContext(threads=1, say=lambda text: None))
    assert torch.get_num_threads() == before
    assert len(bars) == 3 + 3 * 4
    assert figures["1 thread, 300 rows"]["10% mined"]["milliseconds"]["xbn, foreign loss"] > 0
