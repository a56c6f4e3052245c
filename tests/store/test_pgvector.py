"""What only the store on PostgreSQL does; the rest is in test_common.py."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.locks import Locked
from lookalike.store import Condition, create_store, pgvector, remove_store
from lookalike.store.pgvector import PgvectorStore, parse_address
from tests import helpers

DIM = 32


@pytest.fixture
def address(postgres_server: Any, tmp_path: Path) -> Iterator[str]:
    yield postgres_server.address
    helpers.forget_stores(tmp_path)


def clusters(count: int, size: int, noise: float = 0.4, dim: int = DIM) -> np.ndarray:
    rng = np.random.default_rng(3)
    centers = rng.normal(size=(count, dim))
    return (np.repeat(centers, size, axis=0) + noise * rng.normal(size=(count * size, dim))).astype(np.float32)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("postgresql://localhost/images", "postgresql://localhost:5432/images"),
        ("postgresql://shop@[::1]:7000/a%20b?sslmode=require", "postgresql://shop@[::1]:7000/a%20b?sslmode=require"),
        ("postgresql:///images?host=/run/postgresql", "postgresql:///images?host=%2Frun%2Fpostgresql"),
    ],
)
def test_addresses(text: str, address: str) -> None:
    assert parse_address(text) == address == parse_address(address)


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://",
        "postgresql://host",
        "postgresql://host:port/x",
        "mysql://host/x",
        "postgresql://h/x?options=-cx",
    ],
)
def test_wrong_addresses_are_refused(text: str) -> None:
    with pytest.raises(LookalikeError, match="is not the address"):
        parse_address(text)


@pytest.mark.parametrize("text", ["postgresql://me:hunter2@host/x", "postgresql://host/x?password=hunter2"])
def test_a_password_in_an_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(LookalikeError, match="must not contain a password") as refused:
        parse_address(text)
    assert "hunter2" not in str(refused.value)


@pytest.mark.needs("postgres")
def test_a_wide_filter_without_the_own_cluster_loses_no_neighbors(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the graph finds beyond the own cluster is not complete, however many of it the filter keeps."""
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 1000)
    monkeypatch.setattr(pgvector, "COMPARED", 100)
    vectors = clusters(300, 50, noise=0.8, dim=128)
    count = len(vectors)
    store = create_store(address, tmp_path / "store", 128)
    payloads = [{"cluster": str(i // 50), "rank": (i * 7919) % count} for i in range(count)]
    store.upsert([f"r/{i}" for i in range(count)], vectors, payloads)
    assert store.build()["recall"] >= 0.97
    for part in (0.1, 0.5):
        recall = []
        for row in range(0, count, count // 40):
            where = [
                Condition("rank", high=str(round(part * count))),
                Condition("cluster", (str(row // 50),), negate=True),
            ]
            truth = store.search(vectors[row : row + 1], 10, where=where, exact=True).rows
            recall.append(np.isin(truth, store.search(vectors[row : row + 1], 10, where=where).rows).mean())
        assert np.mean(recall) >= 0.97, (part, np.mean(recall))
    store.close()


@pytest.mark.needs("postgres")
def test_rows_written_after_the_build_are_hits(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 500)
    vectors = clusters(20, 30)
    store = create_store(address, tmp_path / "store", DIM)
    store.upsert([f"r/{i}" for i in range(600)], vectors, [{}] * 600)
    assert store.build()["ef"]
    later = clusters(1, 50, dim=DIM) * -1
    store.upsert([f"later/{i}" for i in range(50)], later, [{}] * 50)
    assert store.query(later[7], 1)[0].id == "later/7"
    store.delete(["later/7"])
    assert store.query(later[7], 1)[0].id != "later/7"
    store.close()


@pytest.mark.needs("postgres")
def test_dimensions_beyond_the_graph_of_float32(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 500)
    vectors = clusters(25, 20, dim=2048)
    store = create_store(address, tmp_path / "store", 2048)
    store.upsert([f"r/{i}" for i in range(500)], vectors, [{}] * 500)
    facts = store.build()
    assert facts["ef"] and facts["recall"] >= 0.97
    hits = store.query(vectors[123], 3)
    assert hits[0].id == "r/123" and hits[0].score == pytest.approx(1, abs=1e-6)
    store.close()


@pytest.mark.needs("postgres")
def test_a_filter_is_counted_once_and_the_build_takes_bounded_memory(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pgvector, "GRAPH_ROWS", 500)
    monkeypatch.setattr(pgvector, "MAX_MEMORY", 64)
    counted, settings, count, use = [], [], pgvector.Tables.count, pgvector.Connections.use

    def counting(self: Any, where: Any = ()) -> int:
        counted.append(where)
        return count(self, where)

    @contextlib.contextmanager
    def using(self: Any) -> Iterator[Any]:
        with use(self) as cursor:
            yield cursor
            settings.append(cursor.execute("SHOW maintenance_work_mem").fetchone()[0])

    vectors = clusters(25, 20)
    store = create_store(address, tmp_path / "store", DIM)
    store.upsert([f"r/{i}" for i in range(500)], vectors, [{"rank": i} for i in range(500)])
    with monkeypatch.context() as patch:
        patch.setattr(pgvector.Connections, "use", using)
        store.build()
    assert "64MB" in settings
    monkeypatch.setattr(pgvector.Tables, "count", counting)
    where = [Condition("rank", high="400")]
    for query in vectors[:5]:
        assert store.query(query, 3, where=where)
    assert len(counted) == 2, "the rows of the filter and all rows"
    store.delete(["r/0"])
    store.query(vectors[1], 3, where=where)
    assert len(counted) == 4
    store.close()


@pytest.mark.needs("postgres")
def test_a_killed_server_loses_nothing_acknowledged(postgres_server: Any, address: str, tmp_path: Path) -> None:
    store = create_store(address, tmp_path / "store", DIM)
    vectors, written = clusters(40, 10), 0
    timer = threading.Timer(0.3, postgres_server.kill)
    timer.start()
    with pytest.raises(Unavailable, match="does not answer") as lost:
        while True:
            ids = [f"r/{written}/{i}" for i in range(10)]
            store.upsert(ids, vectors[written % 40 * 10 :][:10], [{"batch": str(written)}] * 10)
            written += 1
    timer.join()
    assert str(postgres_server.port) in str(lost.value)
    with pytest.raises(Unavailable):
        store.count()
    postgres_server.start()
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            count = store.count()
            break
        except Unavailable:  # it recovers from its log
            time.sleep(0.1)
    assert written > 2 and count in (10 * written, 10 * written + 10)
    assert store.count([Condition("batch", (str(written - 1),))]) == 10
    store.close()


@pytest.mark.needs("postgres")
def test_a_writer_on_another_machine_is_noticed(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pgvector, "SESSION_END", 0.2)
    place, copy = tmp_path / "store", tmp_path / "copy"
    store = create_store(address, place, DIM)
    copy.mkdir()
    (copy / "store.json").write_bytes((place / "store.json").read_bytes())
    with pytest.raises(Locked, match="another machine"):
        PgvectorStore.open(str(copy), write=True)
    PgvectorStore.open(str(copy)).close()
    store.close()
    PgvectorStore.open(str(copy), write=True).close()


@pytest.mark.needs("postgres")
def test_a_session_that_the_server_is_still_ending_is_waited_for(address: str, tmp_path: Path) -> None:
    """The server notices a closed or killed writer, and releases its lock, maybe after the next open."""
    place, copy = tmp_path / "store", tmp_path / "copy"
    store = create_store(address, place, DIM)
    copy.mkdir()
    (copy / "store.json").write_bytes((place / "store.json").read_bytes())
    ending = threading.Timer(0.3, store.close)
    ending.start()
    PgvectorStore.open(str(copy), write=True).close()
    ending.join()


@pytest.mark.needs("postgres")
def test_a_wrong_password_is_one_line_without_secrets(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    with pytest.raises(Unavailable, match="password authentication failed") as refused:
        create_store(address, tmp_path / "store", DIM)
    assert "hunter2" not in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.needs("postgres")
def test_tables_that_are_gone(postgres_server: Any, address: str, tmp_path: Path) -> None:
    create_store(address, tmp_path / "store", DIM).close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "store.json").write_bytes((tmp_path / "store" / "store.json").read_bytes())
    remove_store(tmp_path / "copy")
    with pytest.raises(LookalikeError, match="no longer at"):
        PgvectorStore.open(str(tmp_path / "store"))
