"""From images to vectors: threads decode and crop ahead of the model, the runtime computes, in order.

``encode`` is the whole route; ``CropEncoder`` is the same in two halves, for callers that decode images themselves
(the service, indexing).
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.progress import Progress
from lookalike.data.decoding import Preprocess, UnreadableImage, decode, prepare
from lookalike.data.image_reader import REMOTE_READERS, ReadFailure, read_batches
from lookalike.models.embedder import Embedder
from lookalike.models.inference import inputs, runtimes, torch_runtime
from lookalike.models.inference.compiled_embedder import central_part
from lookalike.models.inference.inputs import Failure, ImageInput, ImageStream, image_stream
from lookalike.models.inference.openvino_compiled import BLOCK
from lookalike.models.inference.runtime_base import Runtime

BATCH_SIZE = 32  # crops that `CropEncoder` stacks at a time
CACHE_FRIENDLY_SIZE = 112  # image size (px) at which a block of crops fits a core's cache


def encode(
    model: Embedder,
    images: Any,
    *,
    layer: str = "embedding",
    batch_size: int = 32,
    runtime: str = "auto",
    precision: str = "f32",
    on_error: str = "raise",
    progress: bool | Progress = False,
    view: Any = None,
    seed: int = 0,
    normalized: bool = False,
) -> Any:
    """Compute the output of a layer for images; see ``Embedder.encode`` and ``Embedder.features`` for arguments."""
    if on_error not in ("raise", "skip"):
        raise LookalikeError(f"on_error is `{on_error}`: it must be `raise` or `skip`.")
    choose(precision, ("f32", "bf16"), "a precision")
    if batch_size < 1:
        raise LookalikeError(f"batch_size is {batch_size}; it must be at least 1.")
    if normalized:
        if view is not None or on_error == "skip":
            raise LookalikeError("Normalized tensors are neither augmented nor unreadable: leave these options out.")
        return _encode_normalized(model, images, layer, precision, batch_size)
    source = image_stream(images)
    engine = runtimes.select_runtime(model, layer, runtime, precision, source, batch_size)
    loader = ImageLoader(model.preprocess, view, seed, skip=on_error == "skip")
    parts: list[np.ndarray] = []
    output: np.ndarray | None = None  # allocated once where the number of images is known
    done = 0
    own = contextlib.nullcontext(progress) if isinstance(progress, Progress) else None
    with own or Progress("Embedding", source.count, shown=bool(progress)) as bar:
        for rows in engine.run(loader.batches(source.items, batch_size, remote=source.remote)):
            if source.count is not None and output is None:
                output = np.empty((source.count, *rows.shape[1:]), rows.dtype)
            if output is None:
                parts.append(rows.copy())
            else:
                output[done : done + len(rows)] = rows
            done += len(rows)
            bar.advance(len(rows))
    result = np.concatenate(parts or [_no_rows(model, layer)]) if output is None else output[:done]
    if on_error == "skip":
        return result, loader.failures
    return result[0] if source.single else result


def _encode_normalized(model: Embedder, images: Any, layer: str, precision: str, batch_size: int) -> Any:
    """Run float tensors that are the network's input already."""
    whole = hasattr(images, "ndim")
    single = whole and images.ndim == 3
    items = itertools.chain.from_iterable(map(inputs.batch_items, [images] if whole else inputs.iterable(images)))
    runtime, side = torch_runtime.TorchRuntime(model, layer, precision), model.preprocess.size

    def checked(one: Any) -> torch.Tensor:
        tensor = torch.as_tensor(one) if hasattr(one, "ndim") else None
        if tensor is None or tensor.shape != (3, side, side) or not tensor.is_floating_point():
            what = type(one).__name__ if tensor is None else f"{tensor.dtype} of {tuple(tensor.shape)}"
            raise LookalikeError(f"A normalized image is a float tensor of (3, {side}, {side}), not {what}.")
        return tensor.detach().float().cpu()

    def batches() -> Iterator[np.ndarray]:
        while group := list(map(checked, itertools.islice(items, batch_size))):
            yield torch.stack(group).numpy()

    rows = [np.array(part) for part in runtime.run(batches())]
    result = np.concatenate(rows or [_no_rows(model, layer)])
    return result[0] if single else result


def _no_rows(model: Embedder, layer: str) -> np.ndarray:
    return np.empty((0, {"embedding": model.dim, "pooled": model.feature_dim}.get(layer, 0)), np.float32)


# --- pixels ---


def center_crop(pixels: np.ndarray, preprocess: Preprocess) -> np.ndarray:
    """Cut out the central part of decoded pixels and resize it to the model's input size.

    torch resamples 8-bit pixels to within a level or two of Pillow in a quarter of the time; at small sizes resizing
    would otherwise be the most expensive step before the model (docs/design/inference.md).

    Shape:
        - pixels: ``(H, W, 3)``, uint8.
        - output: ``(size, size, 3)``, uint8.
    """
    region = central_part(pixels, preprocess)
    if region.shape[:2] == (preprocess.size, preprocess.size):
        return region
    if not region.flags.writeable:  # torch would warn
        region = region.copy()
    x = torch.from_numpy(region)[None].permute(0, 3, 1, 2)  # torch sees channels last, which is twice as fast
    size = (preprocess.size, preprocess.size)
    y = F.interpolate(x, size=size, mode=preprocess.interpolation, antialias=True, align_corners=False)
    return y[0].permute(1, 2, 0).numpy()


def load_crop(image: Any, preprocess: Preprocess, box: Any = None) -> np.ndarray:
    """Decode an image (path, bytes, PIL image or array) and take its center crop, after cutting out ``box``."""
    if preprocess.interpolation == "lanczos":  # torch has none
        return prepare(image, preprocess, box=box)
    return center_crop(decode(image, box=box, min_side=preprocess.size / preprocess.crop), preprocess)


def load_view(image: Any, view: Any, rng: np.random.Generator, box: Any = None) -> np.ndarray:
    """Decode an image and apply a view to it; decoding keeps enough pixels for the smallest region it may take."""
    if view.kind == "center":
        return load_crop(image, view.pre, box)
    smallest = min(getattr(view, "scale", (1.0,))) ** 0.5
    return view(decode(image, box=box, min_side=view.pre.size / smallest), rng)


@dataclass
class ImageLoader:
    """Decodes a stream of images into batches of pixels, in threads ahead of the model.

    Args:
        preprocess: Input size, crop fraction and interpolation of the model.
        view: Augmentation in place of the center crop.
        seed: Seed of the view's random numbers; an image's view depends on the seed and its index alone.
        skip: Whether to leave out unreadable images instead of raising.
    """

    preprocess: Preprocess
    view: Any = None
    seed: int = 0
    skip: bool = False
    failures: list[Failure] = field(default_factory=list)
    """The images left out, filled while the batches are drawn."""

    def __post_init__(self) -> None:
        size = getattr(getattr(self.view, "pre", None), "size", None)
        if self.view is not None and size != self.preprocess.size:
            raise LookalikeError(f"The view gives images of {size} px, but the model takes {self.preprocess.size} px.")

    def load(self, image: ImageInput) -> np.ndarray:
        """Decode one image into the model's input pixels."""
        data = image.load()
        if self.view is None:
            return load_crop(data, self.preprocess, image.box)
        return load_view(data, self.view, seeds.numpy_rng(self.seed, "view", image.index), image.box)

    def batches(
        self, items: Iterator[ImageInput], batch_size: int, workers: int | None = None, *, remote: bool = False
    ) -> Iterator[np.ndarray]:
        """Yield batches ``(N, size, size, 3)`` in the order of the images, decoded by up to ``workers`` threads.

        Threads are added while the model has to wait for them; those that wait for a bucket are all there at once.
        """
        side = self.preprocess.size
        buffers: deque[np.ndarray] = deque()

        def groups() -> Iterator[list[tuple[ImageInput, np.ndarray]]]:
            while group := list(itertools.islice(items, batch_size)):
                buffers.append(np.empty((len(group), side, side, 3), np.uint8))
                yield list(zip(group, buffers[-1], strict=True))

        workers = REMOTE_READERS if remote else workers
        for group, results in read_batches(self._load_into, groups(), workers=workers, adaptive=not remote):
            pixels = buffers.popleft()
            readable = np.array([not isinstance(result, ReadFailure) for result in results])
            if not readable.all():
                self._report([image for image, _ in group], results)
                pixels = pixels[readable]
            if len(pixels):
                yield pixels

    def _load_into(self, target: tuple[ImageInput, np.ndarray]) -> None:
        image, pixels = target
        pixels[...] = self.load(image)

    def _report(self, images: list[ImageInput], results: Sequence[ReadFailure | None]) -> None:
        for image, result in zip(images, results, strict=True):
            if isinstance(result, ReadFailure):
                if not self.skip:
                    raise UnreadableImage(result.reason, image.name)
                self.failures.append(Failure(image.index, image.name, result.reason))


# --- decoding and computing apart ---


class CropEncoder:
    """``Embedder.encode`` in two halves: ``crop`` in any thread, ``encode`` in one (or several, see ``concurrent``).

    Few crops run in a batch of their own size, many in blocks of a fixed size, which is faster
    (docs/design/inference.md).

    Args:
        model: The model.
        fast: Convert the model for a fast runtime now (about two seconds, cached) instead of using one only if it
            was converted before.
        layer: The layer to compute.

    Example:
        >>> encoder = CropEncoder(la.Embedder.from_pretrained("resnet10_small", weights="random"))
        >>> encoder.encode([encoder.crop(np.zeros((80, 90, 3), np.uint8))]).shape
        (1, 256)
    """

    def __init__(self, model: Embedder, *, fast: bool = False, layer: str = "embedding") -> None:
        self.model, self.layer = model, layer
        self._runtimes: dict[bool, Runtime] = {}
        if fast:
            self._runtime(BLOCK, torch_runtime.MIN_IMAGES)

    def _runtime(self, count: int, expected: int = 1) -> Runtime:
        many = count >= BLOCK
        if many not in self._runtimes:
            source = ImageStream(iter(()), max(expected, count))
            self._runtimes[many] = runtimes.select_runtime(self.model, self.layer, "auto", "f32", source, max(count, 1))
        return self._runtimes[many]

    @property
    def concurrent(self) -> bool:
        """Whether several threads may call ``encode`` at once."""
        return self._runtime(1).name == "openvino"

    @property
    def max_batch(self) -> int:
        """How many crops to pass to ``encode`` at best; where threads share the model, what a core's cache holds."""
        if not self.concurrent:
            return BATCH_SIZE
        return min(max(round(BLOCK * (CACHE_FRIENDLY_SIZE / self.model.preprocess.size) ** 2), 1), BLOCK)

    def crop(self, image: Any) -> np.ndarray:
        """Decode an image into the model's input pixels, ``(size, size, 3)`` uint8."""
        return self.model.crop(image)

    def encode(self, crops: Sequence[np.ndarray]) -> np.ndarray:
        """Compute the vectors of crops, ``(N, D)``."""
        return np.concatenate([np.array(part) for part in self.stream(crops, len(crops))])

    def stream(self, crops: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
        """Yield the vectors of at most ``count`` crops in order, a few at a time, while further crops are drawn."""
        return self._runtime(count, count).run(_stack(iter(crops)))


def _stack(crops: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
    while part := list(itertools.islice(crops, BATCH_SIZE)):
        yield np.stack(part)
