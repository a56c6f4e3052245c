"""Protocols on folders of generated images laid out as the data sets are, and embedders measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import helpers
from tests.adaptation.conftest import small

import lookalike as la
from benchmarks.papers import t3ar_measure, t3ar_protocols
from lookalike.adaptation.pool import read_pool
from lookalike.adaptation.settings import resolve
from lookalike.adaptation.task import norm_layers
from lookalike.core.errors import LookalikeError
from lookalike.models import Embedder

QUICK = {"layer": "stage1", "batch_size": 6, "steps": 2, "num_views": 1, "copy_threshold": 2.0}


@pytest.fixture
def scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    model.save_pretrained(tmp_path / "model")
    result = {
        "model": str(tmp_path / "model"),
        "size": 32,
        "head": 8,
        "source": QUICK,
        "adapt": {**QUICK, "bank": {"size": 64}},
    }
    monkeypatch.setitem(t3ar_protocols.SCALES, "small", result)
    return result


def domainnet(root: Path) -> Path:
    """Four domains with lists; each has an image more than its list names, as the full set has."""
    for number, name in enumerate(("real", "clipart", "painting", "sketch")):
        helpers.make_images(root / name, classes=3, images=4, width=40, height=32, seed=number)
        lines = [f"{name}/class-{c:02d}/{n}.jpg {c}" for c in range(3) for n in range(3)]
        (root / f"{name}_list.txt").write_text("\n".join(lines) + "\n")
    return root


def visda(root: Path) -> Path:
    for number, name in enumerate(("train", "validation")):
        helpers.make_images(root / name, classes=3, images=4, width=40, height=32, seed=number)
        lines = [f"class-{c:02d}/{n}.jpg {c}" for c in range(3) for n in range(4)]
        (root / name / "image_list.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.slow
def test_domainnets_seven_shifts(tmp_path: Path, pool: Path, scale: dict[str, Any]) -> None:
    data = domainnet(tmp_path / "domainnet-126")
    run = t3ar_protocols.protocol(
        name="domainnet126",
        data=data,
        pool=[pool],
        method=["source", "t3ar"],
        neighbors=[0, 1],
        out=tmp_path / "run",
    )
    rows = run.result["rows"]
    assert len(rows) == 7 * (2 + 2) and all(row["images"] == 9 for row in rows), "the lists hold, not the folders"
    assert {(row["source"], row["target"]) for row in rows} == set(t3ar_protocols.PROTOCOLS["domainnet126"].shifts)
    assert {row["used"] > 0 for row in rows if row["method"] == "t3ar" and row.get("neighbors") != 0} == {True}
    result = run.read_sections()
    assert len(result["protocol-table"]["blocks"][0]["columns"]) == 9
    (curve,) = result["protocol-curves"]["blocks"]
    assert curve["x_label"] == "neighbors of each image" and curve["series"][0]["x"] == [0, 1]
    assert la.report(run=run).stat().st_size > 1000


def test_visda_counts_every_class_the_same(
    tmp_path: Path, scale: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = visda(tmp_path / "visda")
    request = {"name": "visda", "data": data, "method": ["source", "bn"], "fraction": [0.5, 1.0]}
    run = t3ar_protocols.protocol(**request, out=tmp_path / "run")
    rows = run.result["rows"]
    assert [row["images"] for row in rows] == [6, 6, 12, 12] and run.result["measure"] == "class_mean"
    for row in rows:
        assert row["class_mean"] == pytest.approx(np.mean(list(row["by_class"].values())), abs=0.01)
    result = run.read_sections()
    _, by_class = result["protocol-table"]["blocks"]
    assert by_class["columns"] == ["method", "class-00", "class-01", "class-02", "mean"]
    assert result["protocol-curves"]["blocks"][0]["x_label"] == "share of the target"
    monkeypatch.setattr(t3ar_protocols, "trial", None)  # what is finished is not done again
    twice = {
        **request,
        "method": ["source", "bn", "source"],
        "fraction": [0.5, 1, 1.0],
    }  # a repeated one: once
    again = t3ar_protocols.protocol(**twice, out=tmp_path / "again")
    assert again.result["rows"] == rows


def test_every_method_runs(tmp_path: Path, pool: Path, scale: dict[str, Any]) -> None:
    data = visda(tmp_path / "visda")
    settings = {"steps": 1}
    methods = list(t3ar_protocols.METHODS)
    run = t3ar_protocols.protocol(
        name="visda", data=data, pool=[pool], method=methods, settings=settings, retriever=scale["model"],
        out=tmp_path / "run",
    )  # fmt: skip
    assert [row["method"] for row in run.result["rows"]] == methods
    used = {row["method"]: row["used"] for row in run.result["rows"]}
    assert {name for name, count in used.items() if count} == {"t3ar", "random"}


def test_statistics_alone_are_the_targets_whatever_the_others_keep(tmp_path: Path, scale: dict[str, Any]) -> None:
    there = t3ar_measure.different(
        la.read_table(helpers.make_images(tmp_path / "t", classes=3, images=6, width=40, height=32))
    )
    base, rows = t3ar_measure.source_model(there, 0, scale), np.arange(len(there))
    result = {}
    for method in ("source", "bn"):
        settings = resolve(None, {**QUICK, "method": method, "batch_norm": "keep"})
        model, _ = t3ar_measure.adapted(base, there, rows, settings)
        result[method] = norm_layers(model, settings.layer)[0].running_mean
    assert not torch.equal(result["source"], result["bn"])


def test_mistakes_are_reported(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="did you mean `visda`"):
        t3ar_protocols.protocol(name="visada", data=tmp_path)
    with pytest.raises(LookalikeError, match="give --pool"):
        t3ar_protocols.protocol(name="visda", data=tmp_path)
    with pytest.raises(LookalikeError, match="Fractions"):
        t3ar_protocols.protocol(name="visda", data=tmp_path, method=["bn"], fraction=[2.0])


@pytest.mark.parametrize("kind", ["frozen", "bn", "gallery", "clusters", "contrast", "clusters with shot"])
def test_embedders_are_measured(kind: Any, tmp_path: Path, pool: Path) -> None:
    model = small(None)
    there = t3ar_measure.different(
        la.read_table(helpers.make_images(tmp_path / "t", classes=4, images=14, width=40, height=32))
    )
    shot = kind == "clusters with shot"
    settings = resolve(None, {**QUICK, "method": "shot" if shot else "t3ar", "bank": {"size": 128}})
    result = t3ar_measure.evaluate_embedder(model, there, there, kind, settings, pool=read_pool([pool]), expert=model)
    assert 0 <= result["accuracy"] <= 100 and 0 <= result["recall"] <= 100
    assert (result["used"] > 0) == (kind not in ("frozen", "bn", "clusters with shot"))
    if kind == "gallery":
        assert result["classes"] == 4
