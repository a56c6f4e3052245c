"""T3AR's claims: the rules of the verdicts on made-up results, and one small run of each kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import helpers

from lookalike.claims import t3ar, t3ar_cells, t3ar_runs, t3ar_train

CONTEXT: Any = SimpleNamespace(scale="small", finished=False, folder=lambda name: Path(name))


def told(monkeypatch: pytest.MonkeyPatch, accuracy: Any) -> None:
    """Made-up results: `accuracy(cell, seed)`."""

    def stand_in(context: Any, cells: list[t3ar_cells.Cell], seeds: tuple[int, ...], function: Any) -> t3ar_cells.Found:
        found = t3ar_cells.Found(seeds)
        for cell in cells:
            for seed in seeds:
                value = accuracy(cell, seed)
                if value is not None:
                    found.results[cell.name, seed] = {"accuracy": value + 0.1 * np.sin(seed)}
        return found

    monkeypatch.setattr(t3ar, "run_cells", stand_in)


def is_t3ar(cell: t3ar_cells.Cell) -> bool:
    return cell.pool != "none"


def test_retrieval_must_help_on_every_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, lambda cell, seed: 50 + 3.0 * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.retrieval_helps(CONTEXT).verdict == "reproduced"
    told(monkeypatch, lambda cell, seed: 50 + (3.0 if cell.target != "sketch" else -3.0) * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.retrieval_helps(CONTEXT).verdict == "contradicted"
    told(monkeypatch, lambda cell, seed: None if cell.target == "sketch" else 50.0)
    assert t3ar.retrieval_helps(CONTEXT).verdict == "not run"


def test_the_gain_must_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, lambda cell, seed: 50 + (4.0 if cell.fraction == 0.01 else 0.5) * is_t3ar(cell) + 0.01 * seed)
    found = t3ar.gain_shrinks(CONTEXT)
    assert found.verdict == "reproduced"
    assert [row["fraction"] for row in found.figures["curve"]][::3] == [0.01, 0.1, 1.0]
    told(monkeypatch, lambda cell, seed: 50 + (0.5 if cell.fraction == 0.01 else 4.0) * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.gain_shrinks(CONTEXT).verdict == "contradicted"


def test_the_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(cell: t3ar_cells.Cell, seed: int) -> float:
        method = cell.over.get("method", "t3ar")
        value = {"source": 40.0, "bn": 41.0, "tent": 45.0, "shot": 55.0, "adacontrast": 60.0}.get(method, 50.0)
        value += 2.0 * (cell.retriever == "efficientnet_lite2") + 3.0 * (cell.pool == "without")
        value -= 5.0 * (cell.over.get("retrieval") == "random") + 4.0 * (cell.source == "pretrained")
        return value + 0.01 * seed

    told(monkeypatch, by)
    for claim in (t3ar.stronger_retriever, t3ar.order_of_methods, t3ar.pool_with_classes, t3ar.nearest_beats_random):
        assert claim(CONTEXT).verdict == "reproduced", claim.__name__
    assert t3ar.beats_pretraining(CONTEXT).figures["difference"]["mean"] == pytest.approx(4.0)


def test_subsets_have_every_class() -> None:
    labels = np.repeat([0, 1, 2], [200, 50, 3])
    rows = t3ar_runs.stratified(labels, 0.01, 0)
    assert np.bincount(labels[rows]).tolist() == [2, 1, 1]
    assert (rows != t3ar_runs.stratified(labels, 0.01, 1)).any()
    assert len(t3ar_runs.stratified(labels, 1.0, 0)) == 253


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, name in enumerate(("photo", "sketch")):
        helpers.pictures(tmp_path / "pacs" / name, classes=3, images=6, width=40, height=32, seed=number)
    folder = helpers.pictures(tmp_path / "pool", classes=2, images=4, width=40, height=32, seed=9)
    rows = [f"class-{c:02d}/{n}.jpg,x,y,{'dog' if c else ''}" for c in range(2) for n in range(4)]
    (folder / "pool.csv").write_text("\n".join(["path,source,source_label,pacs_class", *rows]) + "\n")
    return tmp_path


def test_a_run_of_each_kind(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lookalike.models import Embedder

    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    model.save_pretrained(tmp_path / "model")
    # A network of random weights sees everything alike; nothing shall pass for a copy.
    quick = {"layer": "stage1", "batch": 6, "steps": 3, "views": 1, "near_copy": 2.0}
    scale = {
        "model": str(tmp_path / "model"),
        "size": 32,
        "head": 8,
        "source": quick,
        "adapt": {**quick, "bank": {"size": 64}},
    }
    found = {}
    for name, cell in {
        "t3ar": t3ar_cells.Cell("photo", "sketch"),
        "again": t3ar_cells.Cell("photo", "sketch"),
        "without": t3ar_cells.Cell("photo", "sketch", pool="without"),
        "source": t3ar_cells.Cell("photo", "sketch", 0.5, over={"method": "source"}, pool="none"),
    }.items():
        found[name] = t3ar_runs.trial(data=str(data), **cell.arguments(0, scale))
    assert found["t3ar"] == found["again"] and found["t3ar"]["used"] > found["without"]["used"] > 0
    assert found["source"]["pictures"] == 9 and found["source"]["unseen"] is not None
    assert len(found["t3ar"]["by_class"]) == 3

    sides = {side: t3ar_runs.domain(str(data), "pacs", name) for side, name in (("train", "photo"), ("test", "sketch"))}
    monkeypatch.setattr(t3ar_train, "cub", lambda data, side: sides[side])
    monkeypatch.setattr(t3ar_train, "TRAIN", {**quick, "bank": {"size": 64}})
    cell = t3ar_cells.Cell("imagenet", "cub", over={"method": "t3ar", "neighbours": 1}, pool="pool", set="cub")
    assert t3ar_train.trial(data=str(data), **cell.arguments(0, scale))["used"] > 0
