"""What is special to Qdrant Edge: the graph and its measured width, its errors as sentences, damaged files."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.store import Condition, graph_width
from lookalike.store.protocol import point_id
from lookalike.store.qdrant import QdrantStore


def clustered(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(200, dim))
    return (centers[rng.integers(200, size=count)] + 0.35 * rng.normal(size=(count, dim))).astype(np.float32)


def test_ids_are_a_function_of_the_name() -> None:
    assert point_id("set/a.jpg") == point_id("set/a.jpg") != point_id("set/b.jpg")
    assert uuid.UUID(point_id("set/ä\udcff.jpg"))


def test_the_graphs_width_is_chosen_by_measurement(tmp_path: Path) -> None:
    """Enough vectors for a graph: the width that `build` chose reaches its recall on queries it never saw."""
    store = QdrantStore.create(str(tmp_path / "s"), 192)
    rows = clustered(16_000, 192)
    for start in range(0, len(rows), 2000):
        part = rows[start : start + 2000]
        store.upsert([f"r/{start + i}" for i in range(len(part))], part, [{}] * len(part))
    facts = store.build()
    assert facts["indexed"] > 0 and facts["ef"] in graph_width.WIDTHS and facts["recall"] >= 0.97
    store.close()
    assert json.loads((tmp_path / "s" / "store.json").read_text())["ef"] == facts["ef"]

    store = QdrantStore.open(str(tmp_path / "s"))
    queries = clustered(16_100, 192)[-100:]
    exact = store.query_many(queries, 10, exact=True)
    quick = store.query_many(queries, 10)
    truth = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    best = np.argsort(-(truth @ queries[0]))[:10]
    assert [hit.id for hit in exact[0]] == [f"r/{i}" for i in best]
    common = [len({h.id for h in a} & {h.id for h in b}) / 10 for a, b in zip(exact, quick, strict=True)]
    assert np.mean(common) >= 0.97
    scores = {hit.id: hit.score for hit in exact[0]}
    assert all(abs(hit.score - scores[hit.id]) < 1e-4 for hit in quick[0] if hit.id in scores)
    store.close()


def test_a_batch_is_asked_by_several_threads_and_comes_back_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookalike.store.qdrant.threads", lambda: 3)
    store = QdrantStore.create(str(tmp_path / "s"), 8)
    rows = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    store.upsert([f"r/{i}" for i in range(50)], rows, [{}] * 50)
    asked: list[int] = []
    real = store._batch
    store._batch = lambda part, **options: (asked.append(len(part)), real(part, **options))[1]  # type: ignore[method-assign,assignment]
    for count, parts in ((0, [0]), (1, [1]), (15, [15]), (16, [8, 8]), (50, [17, 17, 16])):
        asked.clear()
        assert [hits[0].id for hits in store.query_many(rows[:count], 1)] == [f"r/{i}" for i in range(count)]
        assert sorted(asked) == sorted(parts)
    with pytest.raises(LookalikeError, match="The query has dimension 7"):
        store.query_many(rows[:, :7], 1)
    store.close()


def test_rows_are_counted_anew_after_every_write(tmp_path: Path) -> None:
    store = QdrantStore.create(str(tmp_path / "s"), 4)
    rows = np.eye(4, dtype=np.float32)
    assert store.count() == 0
    store.upsert(list("abc"), rows[:3], [{"label": "x"}, {"label": "y"}, {"label": "y"}])
    assert store.count() == store.count() == 3 and store.count([Condition("label", ("y",))]) == 2
    store.upsert(["c"], rows[3:], [{"label": "x"}])
    assert store.count() == 3 and store.count([Condition("label", ("y",))]) == 1
    store.delete(["a", "nobody"])
    assert store.count() == 2
    store.close()


class Failing:
    """A shard that answers every write like a full disk."""

    def __init__(self, shard: Any) -> None:
        self.shard = shard

    def __getattr__(self, name: str) -> Any:
        if name == "update":
            raise Exception("Service runtime error: IO Error: No space left on device (os error 28)")
        return getattr(self.shard, name)


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    store = QdrantStore.create(str(tmp_path / "s"), 4)
    store.upsert(["a"], np.ones((1, 4), np.float32), [{}])
    store._shard = Failing(store._shard)
    with pytest.raises(LookalikeError, match="is full"):
        store.upsert(["b"], np.ones((1, 4), np.float32), [{}])
    store._shard = store._shard.shard
    assert store.count() == 1
    store.close()


def test_a_disk_that_is_nearly_full_is_refused_before_it_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = QdrantStore.create(str(tmp_path / "s"), 4)
    store.upsert(["a"], np.ones((1, 4), np.float32), [{}])
    with monkeypatch.context() as patch:
        patch.setattr("lookalike.core.files.free_bytes", lambda path: 50_000_000)
        with pytest.raises(LookalikeError, match=r"Storing 1 more images needs .* only 50.0 MB are free"):
            store.upsert(["b"], np.ones((1, 4), np.float32), [{}])
        with pytest.raises(LookalikeError, match="`exact` takes less"):
            QdrantStore.create(str(tmp_path / "t"), 4)
    assert store.count() == 1 and not (tmp_path / "t").exists()
    store.close()


@pytest.mark.parametrize("what", ["segment.json", "edge_config.json", "first-index", "segments"])
def test_damage_is_a_sentence_or_repaired(tmp_path: Path, what: str) -> None:
    store = QdrantStore.create(str(tmp_path / "s"), 4)
    store.upsert(["a"], np.ones((1, 4), np.float32), [{"label": "x"}])
    store.close()
    for file in (tmp_path / "s").rglob(what):
        if file.is_dir():
            file.rename(file.with_name("elsewhere"))
        else:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    try:
        again = QdrantStore.open(str(tmp_path / "s"))
    except LookalikeError as error:
        assert "damaged" in str(error) and "\n" not in str(error)
    else:
        assert again.count() in (0, 1)
        again.close()


def test_whoever_is_refused_does_no_harm(tmp_path: Path) -> None:
    """Qdrant's own refusal comes too late: the second opener has by then cut files of the first."""
    from lookalike.core.locks import Locked

    place = str(tmp_path / "s")
    store = QdrantStore.create(place, 8)
    rows = clustered(40, 8)

    def put(start: int, count: int) -> None:
        ids = [f"r{start + i}" for i in range(count)]
        store.upsert(ids, rows[start : start + count], [{"path": name, "label": "x"} for name in ids])

    put(0, 13)
    store.build()
    for turn in range(3):
        with pytest.raises(Locked):
            QdrantStore.open(place)
        put(13 + 3 * turn, 3)
        store.delete([f"r{turn}"])
    assert store.count() == 19
    store.close()
    again = QdrantStore.open(place)
    assert again.count() == 19
    again.close()
