"""Embedding ahead: in order, one batch ahead of the store, and no failure is lost."""

from __future__ import annotations

import threading

import pytest

from lookalike.searching.embedding import Batch, ahead


def test_the_next_batch_is_worked_on_while_one_is_stored():
    started = [threading.Event() for _ in range(4)]

    def work(batch):
        started[batch.rows[0]].set()
        return batch.rows[0] * 10

    seen = []
    for batch, made in ahead((Batch([number]) for number in range(4)), work):
        if batch.rows[0] < 3:
            assert started[batch.rows[0] + 1].wait(10)  # before this one is stored
        seen.append((batch.rows[0], made))
    assert seen == [(0, 0), (1, 10), (2, 20), (3, 30)]


def test_what_fails_in_a_batch_comes_after_those_before_it():
    def work(batch):
        if batch.rows[0] == 2:
            raise OSError("gone")
        return batch.rows[0]

    seen = []
    with pytest.raises(OSError, match="gone"):
        for batch, _ in ahead((Batch([number]) for number in range(9)), work):
            seen.append(batch.rows[0])
    assert seen == [0, 1]


def test_nothing_gives_nothing_and_stopping_stops():
    assert list(ahead(iter([]), lambda batch: 1)) == []
    worked = []
    found = ahead((Batch([number]) for number in range(9)), lambda batch: worked.append(batch.rows[0]))
    next(found)
    found.close()
    assert len(worked) <= 2
    assert not any(thread.name.startswith("lookalike-embed") for thread in threading.enumerate())
