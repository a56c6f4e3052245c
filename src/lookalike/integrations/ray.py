"""Vectors inside Ray Data pipelines: a callable class for ``ray.data.Dataset.map_batches``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError

__all__ = ["Embed"]


class Embed:
    """Add a column of unit vectors to batches of images.

    Ray makes one object per worker, which loads the model once. Images may be encoded bytes, structs of bytes and path
    (as ``datasets`` writes them), paths and URLs, or arrays as ``ray.data.read_images`` gives them. Ray Data needs a
    processor for itself: leave it some with ``num_cpus=0.9``, or its pool waits for ever.

    Args:
        model: A model folder, run or model name, as every node can load it.
        image_column: Column of the images.
        vector_column: Column of the vectors.
        on_error: Unreadable images: ``"null"`` for a missing vector, or ``"raise"`` at the first.
        batch_size: Images decoded and run together.
        runtime: What runs the model: ``"auto"``, ``"torch"``, ``"openvino"`` or ``"onnx"``.
        device: Device to run on.
        options: Further arguments of ``Embedder.from_pretrained``.

    Example:
        Images to a folder of Parquet files::

            import ray
            from lookalike.integrations.ray import Embed

            images = ray.data.read_parquet("s3://bucket/images", columns=["id", "image"])
            vectors = images.map_batches(
                Embed, fn_constructor_args=["efficientnet_lite0"], batch_format="pyarrow",
                batch_size=256, concurrency=4, num_cpus=0.9,
            )
            vectors.drop_columns(["image"]).write_parquet("s3://bucket/vectors")

        or into Milvus, a batch at a time::

            def insert(batch):
                from pymilvus import MilvusClient

                client = MilvusClient("http://milvus:19530")
                client.upsert("images", batch.select(["id", "vector"]).to_pylist())
                return batch.select(["id"])

            vectors.map_batches(insert, batch_format="pyarrow", concurrency=2, num_cpus=0.5).materialize()

        On a single batch it is a function of an Arrow table:

        >>> import pyarrow as pa
        >>> from pathlib import Path
        >>> batch = pa.table({"image": [path.read_bytes() for path in sorted(Path("photos").rglob("*.jpg"))[:2]]})
        >>> Embed("resnet10_small", weights="random")(batch).column_names
        ['image', 'vector']
    """

    def __init__(
        self,
        model: str | Path,
        *,
        image_column: str = "image",
        vector_column: str = "vector",
        on_error: str = "null",
        batch_size: int = 32,
        runtime: str = "auto",
        device: str = "auto",
        **options: Any,
    ) -> None:
        from lookalike.models import Embedder
        from lookalike.models.vector_shards import resolve_runtime

        if on_error not in ("null", "raise"):
            raise LookalikeError(f"on_error is `{on_error}`: it must be `null` or `raise`.")
        self.image_column, self.vector_column, self.on_error = image_column, vector_column, on_error
        self.batch_size = batch_size
        self.model = Embedder.from_pretrained(model, device=device, **options)
        self.runtime = resolve_runtime(self.model, runtime)

    def __call__(self, batch: Any) -> Any:
        """Return the batch with its vectors; those of unreadable images are missing (NaN outside of Arrow).

        Args:
            batch: An Arrow table, a pandas frame, or a dictionary of arrays, as ``batch_format`` says.
        """
        import numpy as np
        import pyarrow as pa

        images = _images(batch, self.image_column)
        rows = np.full((len(images), self.model.dim), np.nan, np.float32)
        missing = np.ones(len(images), bool)
        if images:
            options: dict[str, Any] = {"batch_size": self.batch_size, "runtime": self.runtime}
            vectors, failures = self.model.encode(images, on_error="skip", **options)
            if failures and self.on_error == "raise":
                raise LookalikeError(f"Image {failures[0].index} of a batch cannot be read: {failures[0].reason}.")
            missing[:] = np.isin(np.arange(len(images)), [failure.index for failure in failures])
            rows[~missing] = vectors
        if isinstance(batch, dict):
            return {**batch, self.vector_column: rows}
        if not isinstance(batch, pa.Table):
            return batch.assign(**{self.vector_column: list(rows)})
        column = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), self.model.dim, mask=pa.array(missing))
        if self.vector_column in batch.column_names:
            batch = batch.drop_columns([self.vector_column])
        return batch.append_column(self.vector_column, column)


def _images(batch: Any, column: str) -> Sequence[Any]:
    """The images of a batch: arrays as they are, all else as Python values."""
    names = batch.column_names if hasattr(batch, "column_names") else list(batch)
    if column not in names:
        raise LookalikeError(f"There is no column `{column}` in the batch; it has {', '.join(names)}.")
    values = batch[column]
    if isinstance(batch, dict) or not hasattr(values, "to_pylist"):
        values = list(values)
    else:
        values = values.combine_chunks()
        values = list(values.to_numpy_ndarray()) if hasattr(values, "to_numpy_ndarray") else values.to_pylist()
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if value is None:
        return b""
    if isinstance(value, str) and "://" in value:
        from lookalike.core.storage import location

        return location(value).read_bytes()
    return value
