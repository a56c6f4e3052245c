"""`compare --models`: several models on the same images, and the list of models."""

from __future__ import annotations

from pathlib import Path

import pytest

import lookalike as la
from lookalike.core.errors import LookalikeError
from lookalike.evaluation.results import ModelComparison
from lookalike.models import Embedder, list_models
from tests import helpers


def test_several_models_are_ranked_on_the_same_queries(tmp_path: Path) -> None:
    images = helpers.make_images(tmp_path / "images", classes=12, images=4)
    (images / "class-00" / "broken.jpg").write_bytes(b"\xff\xd8 no image")
    calls: list[str] = []

    class Counted(Embedder):
        def encode(self, images, **options):  # type: ignore[no-untyped-def]
            calls.append(self.name)
            return super().encode(images, **options)

    good = Counted.from_pretrained("efficientnet_lite0", size=64)
    bad = Counted.from_pretrained("resnet10_small", weights="random", size=32)
    bad.set_random_head(1)
    done = la.compare(data=images, models=[bad, good, "efficientnet_lite0"], out=tmp_path / "run")
    assert isinstance(done, ModelComparison) and calls == ["resnet10_small", "efficientnet_lite0"]  # once each
    values = [row.metrics["recall@1"].value for row in done.rows]
    assert values == sorted(values, reverse=True) and done.queries == 48 and len(done.failures) == 1
    best = done.rows[0]
    assert best.p is None and best.to_best is None and not best.ties
    last = next(row for row in done.rows if row.name == "resnet10_small")
    assert last.p is not None and last.p < 0.05 and not last.ties and last.to_best is not None
    alone = la.evaluate(data=images, model=good)
    row = next(row for row in done.rows if row.name == "efficientnet_lite0")
    assert row.metrics["recall@1"] == alone.model.intervals["recall@1"] and row.dim == 1280
    assert best.name in done.verdict and str(done).count("\n") >= 4
    assert la.Run(tmp_path / "run").result["rows"][0]["name"] == best.name


def test_a_model_ties_with_itself(tmp_path: Path) -> None:
    images = helpers.make_images(tmp_path / "images", classes=6, images=4)
    model = Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    done = la.compare(data=images, models=[model, model])
    assert isinstance(done, ModelComparison)
    assert [row.ties for row in done.rows] == [False, True] and done.rows[1].p == 1.0
    assert "No difference to it was found" in done.verdict


@pytest.mark.parametrize("options", [{}, {"a": "x"}, {"a": "x", "b": "y", "models": "x,y"}, {"models": "x"}])
def test_which_models_must_be_said(options: dict[str, str]) -> None:
    with pytest.raises(LookalikeError, match=r"--models|at least two models"):
        la.compare(data="images", **options)  # type: ignore[arg-type]


def test_the_models_that_can_be_used_are_listed(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    listed = list_models(measure=False, pattern="test_vit*")
    first, other = listed.models[0], listed.models[-1]
    assert (first.name, first.here, first.dim, first.images_per_second) == ("efficientnet_lite0", True, 1280, None)
    assert other.name.startswith("test_vit") and not other.here and other.bytes > 0 and other.license
    assert "efficientnet_lite2" in str(listed) and listed.unreadable == []
    with pytest.raises(LookalikeError, match="No timm model with weights matches"):
        list_models(measure=False, pattern="nothing_like_it")
