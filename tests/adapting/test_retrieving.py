"""Who is retrieved for whom, and that a picture taken away changes nobody else's lists."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.adapting.conftest import small

from lookalike.adapting import retrieving


def rows(count: int, seed: int) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(count, 6))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def names(count: int, letter: str) -> list[str]:
    return [f"{letter}{i:03d}" for i in range(count)]


def test_nearest_equals_the_twin_and_leaves_copies_out() -> None:
    target, pool = rows(12, 0), rows(40, 1)
    pool[7], pool[8] = target[3], target[4] + 0.001
    pool[8] /= np.linalg.norm(pool[8])
    outside = names(40, "a")
    outside[9] = "t005"  # the same picture, seen otherwise by the retriever
    found = retrieving.nearest(target, pool, names(12, "t"), outside, 3)
    for i in range(12):
        order = sorted(range(40), key=lambda j: (-float(np.dot(pool[j].astype(float), target[i].astype(float))), j))
        wanted = [j for j in order if pool[j] @ target[i] < 0.98 and outside[j] != f"t{i:03d}"][:3]
        assert found.index[i].tolist() == wanted
    assert found.copies >= 3 - 1


@pytest.mark.parametrize("kind", ["nearest", "random"])
def test_a_picture_taken_away_changes_only_lists_it_was_in(kind: str) -> None:
    target, pool = rows(30, 2), rows(25, 3)
    outside = names(25, "a")

    def lists(keep: list[int]) -> list[list[str]]:
        ids = [outside[i] for i in keep]
        draw = retrieving.nearest if kind == "nearest" else retrieving.at_random
        return [[ids[j] for j in row] for row in draw(target, pool[keep], names(30, "t"), ids, 2).index]

    before, after = lists(list(range(25))), lists([i for i in range(25) if i != 11])
    hit = [i for i, row in enumerate(before) if "a011" in row]
    assert hit and [i for i in range(30) if before[i] != after[i]] == hit


def test_random_draws_are_spread_and_keyed() -> None:
    found = retrieving.at_random(rows(200, 0), rows(50, 1), names(200, "t"), names(50, "a"), 2)
    assert np.bincount(found.index.ravel(), minlength=50).max() < 25
    again = retrieving.at_random(rows(200, 0), rows(50, 1), names(200, "t"), names(50, "a"), 2, seed=1)
    assert (found.index != again.index).any()


def test_a_pool_smaller_than_k_and_no_pool() -> None:
    found = retrieving.nearest(rows(3, 0), rows(2, 1), names(3, "t"), names(2, "a"), 4)
    assert (found.index[:, 2:] == -1).all() and set(found.used) == {0, 1}
    assert len(retrieving.nearest(rows(3, 0), rows(0, 1), names(3, "t"), [], 2).used) == 0


def test_the_pool_is_read_once_and_lists_hold(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = retrieving.read_pool([pool, pool], deny=["outside/class-00/*"], allow=["outside/*"])
    assert len(found) == 10 and found.left_out == {"copies": 10, "denied": 10}
    assert len(retrieving.read_pool([pool], allow=["outside/class-01/*"])) == 5
    assert len(retrieving.read_pool([pool], deny=[found.ids[0]])) == 14
    assert found.ids == sorted(found.ids)
    expert = small(None)
    table = found.table(np.arange(10))
    first = retrieving.embedded(expert, found.ids, table)
    monkeypatch.setattr(type(expert), "encode", None)  # nothing is embedded again
    assert np.array_equal(retrieving.embedded(expert, found.ids[::-1], table), first[::-1])
    monkeypatch.undo()
    assert retrieving.purge(found.ids[:3]) == 3
    alone = retrieving.embedded(expert, found.ids[:1], table.take([0]))
    assert np.array_equal(alone[0], first[0]), "a vector does not depend on its company"
