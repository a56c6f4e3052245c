"""The threaded reader: results in order, bounded memory, failures reported, threads ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from lookalike.data.decoding import UnreadableImage
from lookalike.data.image_reader import ReadFailure, _DecodeThreads, read_batches, read_images


def decode_threads() -> int:
    return sum(thread.name.startswith("lookalike-decode") for thread in threading.enumerate())


def test_results_are_in_order() -> None:
    def load(item: int) -> int:
        time.sleep(0.001 * (item % 3))
        return item * item

    assert list(read_images(load, range(100), workers=4)) == [i * i for i in range(100)]
    assert list(read_images(load, [], workers=4)) == []
    assert decode_threads() == 0


def test_the_same_batches_come_back() -> None:
    batches = [[1, 2, 3], [4], list(range(50))]
    for adaptive in (False, True):
        out = list(read_batches(str, batches, workers=2, adaptive=adaptive))
        assert [batch for batch, _ in out] == batches
        assert all(batch is batch_in for (batch, _), batch_in in zip(out, batches, strict=True))
        assert [results for _, results in out] == [list(map(str, batch)) for batch in batches]


def test_failures_are_results() -> None:
    def load(item: int) -> int:
        if item == 1:
            raise UnreadableImage("the file is damaged", "a.jpg")
        if item == 2:
            raise PermissionError(13, "Permission denied")
        return item

    assert list(read_images(load, range(4))) == [
        0,
        ReadFailure("the file is damaged"),
        ReadFailure("permission denied", transient=True),
        3,
    ]


def test_other_errors_reach_the_consumer_and_end_the_threads() -> None:
    with pytest.raises(ZeroDivisionError):
        list(read_images(lambda item: 1 // item, [1, 0]))
    assert decode_threads() == 0


def test_memory_is_bounded() -> None:
    drawn: list[int] = []

    def batches() -> Iterator[list[int]]:
        for number in range(20):
            drawn.append(number)
            yield [number] * 4

    reader = read_batches(lambda item: item, batches(), workers=2, prefetch=2)
    for count, _ in enumerate(reader, 1):
        assert len(drawn) <= count + 1
        if count == 10:
            break
    reader.close()
    assert decode_threads() == 0 and len(drawn) < 20


def test_an_adaptive_pool_grows_while_the_consumer_waits() -> None:
    with _DecodeThreads(3, adaptive=True) as pool:
        for waited in (True, True, True, False, True, True, True, True):
            assert len(pool.pools) == 1
            pool.report_wait(waited)
        assert len(pool.pools) == 2
        for _ in range(20):
            pool.report_wait(True)
        assert len(pool.pools) == 3
