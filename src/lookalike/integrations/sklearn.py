"""A scikit-learn transformer around ``Embedder``, for pipelines and grid searches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from lookalike.models.embedder import Embedder


class ImageEmbedder(TransformerMixin, BaseEstimator):
    """A scikit-learn transformer from images to unit vectors; there is nothing to fit.

    Args:
        model: A model folder, run, timm or open_clip name, or an ``Embedder``.
        batch_size: Images decoded and run together.
        runtime: ``"auto"``, ``"torch"``, ``"openvino"`` or ``"onnx"``.

    Shape:
        - X: N images (paths, bytes, PIL images or arrays), also as a data frame with one column.
        - output: ``(N, dim)``, float32.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> table = la.read_table("photos")
        >>> model = la.Embedder.from_pretrained("efficientnet_lite0", size=64)
        >>> pipeline = make_pipeline(la.ImageEmbedder(model), LogisticRegression())
        >>> files = [table.file(row) for row in range(len(table))]
        >>> pipeline.fit(files, table.column("label")).score(files, table.column("label"))
        1.0
    """

    def __init__(
        self, model: str | Path | Embedder = "efficientnet_lite0", *, batch_size: int = 32, runtime: str = "auto"
    ) -> None:
        self.model = model
        self.batch_size = batch_size
        self.runtime = runtime

    def fit(self, X: Any, y: Any = None) -> ImageEmbedder:
        """Load the model; the images are not used."""
        self.embedder_ = self._open()
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Compute the vectors of images."""
        vectors: np.ndarray = self._open().encode(_as_images(X), batch_size=self.batch_size, runtime=self.runtime)
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """Names of the output columns (``imageembedder0``, ``imageembedder1``, …)."""
        return np.array([f"imageembedder{number}" for number in range(self._open().dim)], dtype=object)

    def _open(self) -> Embedder:
        if isinstance(self.model, Embedder):
            return self.model
        loaded = getattr(self, "_loaded", None)
        if loaded is None or loaded[0] != self.model:  # `set_params` may have changed it
            loaded = self._loaded = (self.model, Embedder.from_pretrained(self.model))
        return loaded[1]

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.no_validation = True
        return tags


def _as_images(X: Any) -> Any:
    """Turn a column of paths, as data frames and ``ColumnTransformer`` pass it, into a list of paths."""
    if hasattr(X, "to_numpy"):
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.dtype.kind in "OUS" and X.ndim == 2 and X.shape[1] == 1:
        X = X[:, 0]
    return list(X) if isinstance(X, np.ndarray) and X.dtype.kind in "OUS" else X
