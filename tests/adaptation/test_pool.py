"""Who is retrieved for whom, and that an image taken away changes nobody else's lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adaptation.conftest import small

from lookalike.adaptation import pool as pools
from lookalike.adaptation import pool_vectors
from lookalike.adaptation.pool import Pool, Receipts, read_pool, receipt_rows
from lookalike.adaptation.settings import resolve
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.data import audit, read_table


def rows(count: int, seed: int) -> np.ndarray:
    result = np.random.default_rng(seed).normal(size=(count, 6))
    return (result / np.linalg.norm(result, axis=1, keepdims=True)).astype(np.float32)


def names(count: int, letter: str) -> list[str]:
    return [f"{letter}{i:03d}" for i in range(count)]


def test_nearest_equals_the_twin_and_leaves_copies_out() -> None:
    target, pool = rows(12, 0), rows(40, 1)
    pool[7], pool[8] = target[3], target[4] + 0.001
    pool[8] /= np.linalg.norm(pool[8])
    outside = names(40, "a")
    outside[9] = "t005"  # the same image, seen otherwise by the retriever
    result = pools.nearest(target, pool, names(12, "t"), outside, 3)
    for i in range(12):
        order = sorted(range(40), key=lambda j: (-float(np.dot(pool[j].astype(float), target[i].astype(float))), j))
        expected = [j for j in order if pool[j] @ target[i] < 0.98 and outside[j] != f"t{i:03d}"][:3]
        assert result.index[i].tolist() == expected
    assert result.copies >= 3 - 1


@pytest.mark.parametrize("kind", ["nearest", "random"])
def test_an_image_taken_away_changes_only_lists_it_was_in(kind: str) -> None:
    target, pool = rows(30, 2), rows(25, 3)
    outside = names(25, "a")

    def lists(keep: list[int]) -> list[list[str]]:
        ids = [outside[i] for i in keep]
        draw = pools.nearest if kind == "nearest" else pools.random_retrievals
        return [[ids[j] for j in row] for row in draw(target, pool[keep], names(30, "t"), ids, 2).index]

    before, after = lists(list(range(25))), lists([i for i in range(25) if i != 11])
    hit = [i for i, row in enumerate(before) if "a011" in row]
    assert hit and [i for i in range(30) if before[i] != after[i]] == hit


def test_random_draws_leave_copies_out_too() -> None:
    target, pool = rows(4, 0), rows(12, 1)
    plain = pools.random_retrievals(target, pool, names(4, "t"), names(12, "a"), 2)
    first = int(plain.index[1, 0])
    pool[first] = target[1]
    result = pools.random_retrievals(target, pool, names(4, "t"), names(12, "a"), 2)
    assert first not in result.index[1] and result.copies == 1 and plain.copies == 0
    assert result.index[1, 0] == plain.index[1, 1], "the rest of the draw stays"
    pool[:] = target[1]
    assert (pools.random_retrievals(target, pool, names(4, "t"), names(12, "a"), 2).index[1] == -1).all()


def test_random_draws_are_spread_and_keyed() -> None:
    result = pools.random_retrievals(rows(200, 0), rows(50, 1), names(200, "t"), names(50, "a"), 2)
    assert np.bincount(result.index.ravel(), minlength=50).max() < 25
    again = pools.random_retrievals(rows(200, 0), rows(50, 1), names(200, "t"), names(50, "a"), 2, seed=1)
    assert (result.index != again.index).any()


def test_a_pool_smaller_than_k_and_no_pool() -> None:
    result = pools.nearest(rows(3, 0), rows(2, 1), names(3, "t"), names(2, "a"), 4)
    assert (result.index[:, 2:] == -1).all() and set(result.used) == {0, 1}
    assert len(pools.nearest(rows(3, 0), rows(0, 1), names(3, "t"), [], 2).used) == 0


def test_the_pool_is_read_once_and_lists_hold(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = read_pool([pool, pool], deny=["outside/class-00/*"], allow=["outside/*"])
    assert len(result) == 10 and result.left_out == {"copies": 10, "denied": 10}
    assert len(read_pool([pool], allow=["outside/class-01/*"])) == 5
    assert len(read_pool([pool], deny=[result.ids[0]])) == 14
    assert result.ids == sorted(result.ids)
    expert = small(None)
    table = result.table(np.arange(10))
    first = pool_vectors.embedded(expert, result.ids, table)
    monkeypatch.setattr(type(expert), "encode", None)  # nothing is embedded again
    assert np.array_equal(pool_vectors.embedded(expert, result.ids[::-1], table), first[::-1])
    monkeypatch.undo()
    for file in folders.cache("pools").glob("*/rows.npy"):
        file.write_bytes(file.read_bytes()[:-1] + b"?")  # damaged vectors are computed again, not used
    assert np.array_equal(pool_vectors.embedded(expert, result.ids, table), first)
    assert pool_vectors.purge(result.ids[:3]) >= 3, "of every retriever's vectors"
    assert pool_vectors.purge(result.ids[:3]) == 0
    alone = pool_vectors.embedded(expert, result.ids[:1], table.take([0]))
    assert np.array_equal(alone[0], first[0]), "a vector does not depend on its company"


def test_an_unchanged_pool_is_never_searched_again(pool: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expert, outside, new = small(None), read_pool([pool]), audit(read_table(target), near=False).table
    ids = [str(id_) for id_ in new.column("content_id")]
    chosen = resolve(None, {"copy_threshold": 2.0})
    first = pool_vectors.retrieve(expert, ids, new, outside, chosen)
    assert (first.index >= 0).all()
    with monkeypatch.context() as patch:  # nothing is embedded, nothing searched
        patch.setattr(pool_vectors, "embedded", None)
        patch.setattr(pool_vectors, "nearest", None)
        again = pool_vectors.retrieve(expert, ids, new, outside, chosen)
        assert np.array_equal(first.index, again.index) and np.array_equal(first.scores, again.scores)
        for other in (
            {"num_neighbors": 3},
            {"copy_threshold": 1.5},
            {"retrieval": "random"},
        ):
            with pytest.raises(TypeError, match="not callable"):
                pool_vectors.retrieve(expert, ids, new, outside, resolve(None, {"copy_threshold": 2.0, **other}))
        with pytest.raises(TypeError, match="not callable"):
            pool_vectors.retrieve(expert, ids, new, outside.only(set(outside.ids[1:])), chosen)
    assert len(list(folders.cache("searches").iterdir())) >= 1
    pool_vectors.purge(outside.ids[:1])
    assert list(folders.cache("searches").iterdir()) == [], "a search may name forgotten images"


def test_two_that_embed_at_once_keep_each_others_rows(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = small(None, dim=5), read_pool([pool])  # one that nobody has embedded with
    table, usual = read.table(np.arange(len(read))), pool_vectors.embedded_anew
    counts: list[int] = []

    def anew(retriever: Any, images: Any, *rest: Any, **more: Any) -> np.ndarray:
        counts.append(len(images))
        if len(counts) == 1:  # another process comes and goes meanwhile
            pool_vectors.embedded(retriever, read.ids[3:8], table.take(np.arange(3, 8)))
        return usual(retriever, images, *rest, **more)

    monkeypatch.setattr(pool_vectors, "embedded_anew", anew)
    pool_vectors.embedded(model, read.ids[:5], table.take(np.arange(5)))
    again = pool_vectors.embedded(model, read.ids[:8], table.take(np.arange(8)))
    assert counts == [5, 5] and again.shape == (8, model.dim)


def test_what_was_embedded_before_a_kill_is_not_embedded_again(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = small(None, dim=6), read_pool([pool])
    table, usual = read.table(np.arange(len(read))), pool_vectors.embedded_anew
    counts: list[int] = []

    def anew(retriever: Any, images: Any, *rest: Any, **more: Any) -> np.ndarray:
        counts.append(len(images))
        if len(counts) == 2:
            raise KeyboardInterrupt
        return usual(retriever, images, *rest, **more)

    monkeypatch.setattr(pool_vectors, "BLOCK", 8)
    monkeypatch.setattr(pool_vectors, "embedded_anew", anew)
    with pytest.raises(KeyboardInterrupt):
        pool_vectors.embedded(model, read.ids, table)
    pool_vectors.embedded(model, read.ids, table)
    assert counts == [8, 7, 7], "the first block was stored"


def test_a_folder_without_files_is_an_empty_pool(tmp_path: Path) -> None:
    (tmp_path / "bare" / "below").mkdir(parents=True)
    assert len(read_pool([tmp_path / "bare"])) == 0
    (tmp_path / "bare" / "notes.txt").write_text("no image")
    with pytest.raises(LookalikeError, match="no images"):
        read_pool([tmp_path / "bare"])


def test_receipts_name_whom_an_image_served() -> None:
    index = np.array([[1, 0], [-1, -1], [1, -1]])
    scores = np.array([[0.9, 0.8], [-np.inf, -np.inf], [0.7, -np.inf]])
    pool = Pool([], ["x", "y", "z"], [(0, 0), (0, 1), (0, 2)], ["p/x", "p/y", "p/z"])
    receipts = Receipts(2)
    receipts.load(np.array([1]), 4)
    rows = receipt_rows(receipts, pools.Retrieved(index, scores), pool, names(3, "t"))
    assert [(row["path"], row["last_step"]) for row in rows] == [("p/x", -1), ("p/y", 4)]
    assert [row["served"] for row in rows] == [
        [{"target": "t000", "score": 0.8, "rank": 2}],
        [{"target": "t000", "score": 0.9, "rank": 1}, {"target": "t002", "score": 0.7, "rank": 1}],
    ]
