"""The way from images to rows, behind `Embedder.encode` and `Embedder.features`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import Progress
from lookalike.models.inference import runtimes
from lookalike.models.inference.inputs import stream
from lookalike.models.inference.pipeline import Decoder, check_on_error

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder


def encode(
    model: Embedder,
    images: Any,
    layer: str,
    batch_size: int,
    runtime: str,
    precision: str,
    on_error: str,
    progress: bool,
    *,
    view: Any = None,
    seed: int = 0,
) -> Any:
    skip = check_on_error(on_error)
    choose(precision, ("f32", "bf16"), "a precision")
    if batch_size < 1:
        raise LookalikeError(f"batch_size is {batch_size}; it must be at least 1.")
    source = stream(images)
    engine, items = runtimes.select(model, layer, runtime, precision, source, batch_size)
    decoder = Decoder(model.preprocess, view, seed, skip)
    blocks: list[np.ndarray] = []
    whole: np.ndarray | None = None
    done = 0
    with Progress("Embedding", source.count, shown=progress) as bar:
        for rows in engine.run(decoder.batches(items, batch_size, threads())):
            if source.count is not None and whole is None:
                whole = np.empty((source.count, *rows.shape[1:]), rows.dtype)
            if whole is None:
                blocks.append(rows.copy())
            else:
                whole[done : done + len(rows)] = rows
            done += len(rows)
            bar.advance(len(rows))
    if whole is not None:
        result = whole[:done]
    else:
        result = np.concatenate(blocks) if blocks else np.empty((0, *runtimes.row_shape(model, layer)), np.float32)
    if skip:
        return result, decoder.failures
    return result[0] if source.single else result
