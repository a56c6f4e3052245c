"""The scikit-learn transformer, by scikit-learn's own rules."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from lookalike.integrations.sklearn import ImageEmbedder
from lookalike.models import Embedder


@parametrize_with_checks([ImageEmbedder("test_efficientnet")])
def test_it_keeps_the_conventions(estimator: ImageEmbedder, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def test_in_a_pipeline(model: Embedder, files: list[Path]) -> None:
    labels = [file.parent.name for file in files]
    pipeline = make_pipeline(ImageEmbedder(model, runtime="torch"), LogisticRegression(C=100.0)).fit(files, labels)
    assert list(pipeline.predict(files)) == labels


def test_in_a_grid_search(model: Embedder, files: list[Path]) -> None:
    labels = np.array([file.parent.name for file in files])
    pipeline = make_pipeline(ImageEmbedder(model, runtime="torch"), LogisticRegression())
    search = GridSearchCV(pipeline, {"imageembedder__batch_size": [2, 8]}, cv=3).fit(
        np.array(files, dtype=object), labels
    )
    assert len(search.cv_results_["params"]) == 2


def test_what_it_gives(model: Embedder, files: list[Path]) -> None:
    transformer = ImageEmbedder(model, batch_size=5)
    expected = model.encode(files)
    for images in (files, [str(f) for f in files], np.array([[str(f)] for f in files])):
        np.testing.assert_allclose(transformer.fit_transform(images), expected, atol=1e-6)
    assert list(transformer.get_feature_names_out())[:2] == ["imageembedder0", "imageembedder1"]
    assert len(transformer.get_feature_names_out()) == model.dim
    framed = transformer.set_output(transform="pandas").transform(files)
    assert framed.shape == (12, model.dim)


def test_parameters(model: Embedder, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "m")
    transformer = ImageEmbedder(tmp_path / "m", batch_size=4)
    again = clone(transformer)
    assert again.get_params() == {"model": tmp_path / "m", "batch_size": 4, "runtime": "auto"}
    names = len(transformer.get_feature_names_out())
    model.set_random_head(7)
    model.save_pretrained(tmp_path / "n")
    assert len(transformer.set_params(model=tmp_path / "n").get_feature_names_out()) == 7 != names


def test_pickled(files: list[Path], tmp_path: Path, model: Embedder) -> None:
    model.save_pretrained(tmp_path / "m")
    transformer = ImageEmbedder(tmp_path / "m").fit(files)
    again = pickle.loads(pickle.dumps(transformer))
    np.testing.assert_allclose(again.transform(files[:2]), transformer.transform(files[:2]), atol=1e-6)


@pytest.mark.parametrize("name", ["Embedder", "ImageEmbedder", "embed", "export"])
def test_it_is_exported_by_the_package(name: str) -> None:
    import lookalike

    assert getattr(lookalike, name).__name__ == name
