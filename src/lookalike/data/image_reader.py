"""Read images in threads ahead of their consumer: in order, in bounded memory, with failures reported.

The pixel cache, the audit, the route from images to vectors, indexing and the duplicate search pass a function that
loads one item (read the file, decode it, compute what is needed) and receive the results in order. `read_batches` is
the same for batches; it returns the very batch objects that it was given, so one may carry an array to write into.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lookalike.core.device import threads
from lookalike.core.files import hash_bytes
from lookalike.data.decoding import UnreadableImage, content_id, decode
from lookalike.data.exif import photo_facts

if TYPE_CHECKING:
    from lookalike.data.table import Table

T = TypeVar("T")
R = TypeVar("R")
B = TypeVar("B", bound=Sequence)
Preprocess = Callable[[np.ndarray], np.ndarray]

PREFETCH = 3
REMOTE_READERS = 16  # threads that wait for a bucket
_BATCH = 32  # items that `read_images` hands over together
_CHUNK = 8  # items per task: enough to make handing over cheap, few enough to keep all threads busy


@dataclass(frozen=True)
class ReadFailure:
    """The result for an image that cannot be read."""

    reason: str  # a short phrase in lower case
    transient: bool = False  # the file could not be opened, but may be readable later

    @classmethod
    def from_error(cls, error: UnreadableImage | OSError) -> ReadFailure:
        """Return the failure that an exception of `decode` or `open_bytes` stands for."""
        if isinstance(error, UnreadableImage):
            return cls(error.reason)
        return cls((error.strerror or str(error)).lower(), transient=True)


def read_batches(
    load: Callable[[T], R],
    batches: Iterable[B],
    *,
    workers: int | None = None,
    prefetch: int = PREFETCH,
    adaptive: bool = False,
) -> Iterator[tuple[B, list[R | ReadFailure]]]:
    """Load batches of items in threads and yield them in order with their results.

    Args:
        load: Loads one item. `UnreadableImage` and `OSError` become a `ReadFailure`; any other exception
            is raised in the consumer.
        batches: Sequences of items. Drawn only as they are needed.
        workers: Greatest number of threads; `None` for one per available core.
        prefetch: Batches being loaded or waiting at any time, which bounds the memory.
        adaptive: Start with one thread and add another whenever the consumer had to wait for several batches in a
            row, for consumers that need the processor themselves.

    Yields:
        Each batch and the list of its results.

    Example:
        >>> from pathlib import Path
        >>> files = sorted(Path("photos").rglob("*.jpg"))
        >>> for batch, results in read_batches(la.data.decode, [files[:3], files[3:5]]):
        ...     print(len(batch), [pixels.dtype.name for pixels in results])
        3 ['uint8', 'uint8', 'uint8']
        2 ['uint8', 'uint8']
    """
    workers = workers or threads()
    source = iter(batches)
    waiting: deque[tuple[B, list[Future[list[R | ReadFailure]]]]] = deque()
    with _DecodeThreads(workers, adaptive) as pool:
        while True:
            for batch in itertools.islice(source, prefetch - len(waiting)):
                size = max(1, min(_CHUNK, len(batch) // (2 * workers)))
                chunks = (batch[start : start + size] for start in range(0, len(batch), size))
                waiting.append((batch, [pool.submit(_load_chunk, load, chunk) for chunk in chunks]))
            if not waiting:
                return
            batch, tasks = waiting.popleft()
            pool.report_wait(not all(task.done() for task in tasks))
            yield batch, [result for task in tasks for result in task.result()]


def read_images(
    load: Callable[[T], R], items: Iterable[T], *, workers: int | None = None, prefetch: int = PREFETCH
) -> Iterator[R | ReadFailure]:
    """Load items in threads and yield their results in order.

    The arguments are those of `read_batches`, in groups of 32 items; yields what `load` returned, or a `ReadFailure`.

    Example:
        >>> [result.reason for result in read_images(la.data.decode, ["missing.jpg"])]
        ['no such file or directory']
    """
    source = iter(items)
    groups = iter(lambda: list(itertools.islice(source, _BATCH)), [])
    for _, results in read_batches(load, groups, workers=workers, prefetch=prefetch):
        yield from results


def _load_chunk(load: Callable[[T], R], items: Iterable[T]) -> list[R | ReadFailure]:
    results: list[R | ReadFailure] = []
    for item in items:
        try:
            results.append(load(item))
        except (UnreadableImage, OSError) as error:
            results.append(ReadFailure.from_error(error))
    return results


class _DecodeThreads:
    """A pool of threads; an adaptive one grows from one thread while its consumer has to wait."""

    def __init__(self, workers: int, adaptive: bool) -> None:
        self.spare = workers - 1 if adaptive else 0
        self.waits = self.submitted = 0
        self.pools = [ThreadPoolExecutor(1 if adaptive else workers, "lookalike-decode")]

    def submit(self, load_chunk: Callable[..., list[R]], *arguments: object) -> Future[list[R]]:
        self.submitted += 1
        return self.pools[self.submitted % len(self.pools)].submit(load_chunk, *arguments)

    def report_wait(self, waited: bool) -> None:
        """Count batches in a row that the consumer waited for; the first ones of a stream always come late."""
        self.waits = self.waits + 1 if waited else 0
        if self.waits > PREFETCH and self.spare:
            self.pools.append(ThreadPoolExecutor(1, "lookalike-decode"))
            self.spare -= 1
            self.waits = 0

    def __enter__(self) -> _DecodeThreads:
        return self

    def __exit__(self, *_: object) -> None:
        for wait in (False, True):  # all of them stop before one is waited for
            for pool in self.pools:
                pool.shutdown(wait=wait, cancel_futures=True)


@dataclass(frozen=True)
class DecodedImage:
    """What indexing needs of an image.

    Args:
        hash: Hash of the encoded bytes.
        content: Hash of the decoded pixels.
        ratio: Width by height.
        color: Mean color as ``#rrggbb``, shown until the thumbnail is loaded.
        pixels: The preprocessed input of the model.
        photo: Date, camera and place from EXIF, if they were to be read.
    """

    hash: str
    content: str
    ratio: float
    color: str
    pixels: np.ndarray | None = field(default=None, compare=False)
    photo: dict[str, str] | None = None

    def payload(self) -> dict[str, Any]:
        """Return the columns that are stored."""
        own = {"_hash": self.hash, "content_id": self.content, "_ratio": self.ratio, "_color": self.color}
        return own if self.photo is None else own | {"_exif": 1}


def decode_row(
    table: Table, row: int, min_side: float, preprocess: Preprocess | None = None, *, exif: bool = False
) -> DecodedImage:
    """Read one image.

    Copies are recognized by their pixels at the size that the model needs: equal files still give equal pixels, and
    decoding a photo in full would take longer than embedding it (docs/design/index-and-stores.md).

    Raises:
        UnreadableImage: If it cannot be decoded.
        OSError: If it cannot be opened.
    """
    data = table.open_bytes(row)
    pixels = decode(data, box=table.box(row), min_side=min_side)
    height, width = pixels.shape[:2]
    mean = pixels[:: max(1, height // 16), :: max(1, width // 16)].reshape(-1, 3).mean(axis=0)
    color = "#" + "".join(f"{int(c):02x}" for c in np.clip(mean, 0, 255))
    model_input = preprocess(pixels) if preprocess is not None else None
    photo = photo_facts(data) if exif else None
    return DecodedImage(hash_bytes(data), content_id(pixels), round(width / height, 4), color, model_input, photo)
