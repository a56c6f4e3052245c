"""A store on a server that has grown beyond one collection; what it answers is in test_common.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.store import create_store, remove_store, shards
from lookalike.store.pgvector import PgvectorStore
from tests import helpers

pytestmark = pytest.mark.needs("postgres")
DIM = 8


@pytest.fixture
def address(postgres_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(shards, "SHARD_ROWS", 10)
    yield postgres_server.address
    helpers.forget_stores(tmp_path)


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def names(*numbers: int) -> list[str]:
    return [f"r/{n}" for n in range(*numbers)]


def test_rows_fill_one_collection_after_the_other_and_stay_where_they_are(address, tmp_path):
    store = create_store(address, tmp_path / "store", DIM)
    store.upsert(names(24), rows(24), [{"label": "old"}] * 24)
    assert [shard.count() for shard in store.shards] == [10, 10, 4]
    store.upsert(names(5, 30), rows(25, 1), [{"label": "new"}] * 25)
    assert [shard.count() for shard in store.shards] == [10, 10, 10] and store.count() == 30
    assert dict(store.facets("label")) == {"new": 25, "old": 5}
    hits = store.query_many(rows(25, 1), 3)
    assert [line[0].id for line in hits] == names(5, 30)
    unit = np.concatenate([rows(5), rows(25, 1)])
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    query = rows(1, 2)[0]
    nearest = np.argsort(-unit @ query)[:7]
    assert [hit.id for hit in store.query(query, 7)] == [f"r/{i}" for i in nearest]
    store.close()


def test_a_reader_sees_the_collection_that_a_writer_begins(address, tmp_path):
    store = create_store(address, tmp_path / "store", DIM)
    store.upsert(names(10), rows(10), [{}] * 10)
    reader = PgvectorStore.open(str(tmp_path / "store"))
    assert reader.count() == 10
    store.upsert(names(10, 15), rows(5, 1), [{}] * 5)
    assert reader.count() == 15 and reader.query(rows(5, 1)[3], 1)[0].id == "r/13"
    reader.close()
    store.close()


def test_what_a_kill_leaves_of_a_new_collection_is_made_again_or_dropped(address, tmp_path, monkeypatch):
    place = tmp_path / "store"
    store = create_store(address, place, DIM)
    store.upsert(names(10), rows(10), [{}] * 10)
    before = tables(store)

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Path, "rename", killed)  # the tables are there, and not yet a part of the store
        store.upsert(names(10, 12), rows(2, 1), [{}] * 2)
    assert store.count() == 10 and tables(store) == before + 3
    store.upsert(names(10, 12), rows(2, 1), [{}] * 2)
    assert store.count() == 12 and tables(store) == before + 3
    store.close()
    other = create_store(address, tmp_path / "other", DIM)
    remove_store(place)
    assert tables(other) == before
    other.close()


def tables(store: Any) -> int:
    """How many tables of stores the server has."""
    with store.shards[0]._connections.use() as cursor:
        cursor.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'lookalike%%'")
        return int(cursor.fetchone()[0])
