"""A scikit-learn transformer around `Embedder`, for pipelines and grid searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from lookalike.models.embedder import Embedder


class ImageEmbedder(TransformerMixin, BaseEstimator):
    """Images (paths, bytes, PIL images, arrays) to unit vectors. There is nothing to fit.

    >>> make_pipeline(ImageEmbedder(), LogisticRegression()).fit(paths, labels)  # doctest: +SKIP
    """

    def __init__(
        self, model: str | Path | Embedder = "efficientnet_lite0", *, batch_size: int = 32, runtime: str = "auto"
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.runtime = runtime

    def fit(self, X: Any, y: Any = None) -> ImageEmbedder:
        self.embedder_ = self._open()
        return self

    def transform(self, X: Any) -> np.ndarray:
        rows: np.ndarray = self._open().encode(_images(X), batch_size=self.batch_size, runtime=self.runtime)
        return rows

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.array([f"imageembedder{number}" for number in range(self._open().dim)], dtype=object)

    def _open(self) -> Embedder:
        if isinstance(self.model, Embedder):
            return self.model
        known = getattr(self, "_opened", None)
        if known is None or known[0] != self.model:  # `set_params` may have changed it
            known = self._opened = (self.model, Embedder.from_pretrained(self.model))
        return known[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.no_validation = True
        return tags


def _images(X: Any) -> Any:
    """A column of paths, as data frames and `ColumnTransformer` hand it on, is a list of paths."""
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS" and X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    return list(X) if isinstance(X, np.ndarray) and X.dtype.kind in "OUS" else X
