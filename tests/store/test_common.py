"""What every store must do: one suite, run for each of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.searching.filters import meets
from lookalike.store import Condition, Store, create_store, direction, remove_store, shards, store_class, stores

DIM = 16


def rows(count: int, seed: int = 0) -> np.ndarray:
    result = np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)
    return result / np.linalg.norm(result, axis=1, keepdims=True)


def payload(i: int) -> dict[str, Any]:
    return {
        "label": f"class {i % 3}",
        "path": f"{'sea' if i % 2 else 'sky'}/{i}.jpg",
        "tags": ["all", f"t{i % 5}"],
        "a.b": "even" if i % 2 == 0 else None,
        "size": 100 + i,
        "_hash": f"h{i}",
    }


def fill(store: Store, count: int, seed: int = 0) -> np.ndarray:
    vectors = rows(count, seed)
    store.upsert([f"set/{i}.jpg" for i in range(count)], vectors, [payload(i) for i in range(count)])
    return vectors


@pytest.fixture
def kind(any_store: str) -> type[Store]:
    return store_class(any_store)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "index" / "store")


@pytest.fixture
def store(any_store: str, place: str) -> Iterator[Store]:
    opened = create_store(any_store, place, DIM)
    yield opened
    opened.close()


def test_every_store_is_registered_and_keeps_the_protocol(store: Store) -> None:
    assert {"local", "milvus", "postgresql"} <= set(stores())
    assert isinstance(store, Store)
    with pytest.raises(LookalikeError, match="did you mean `local`"):
        store_class("locale")


def test_an_empty_store_answers(store: Store) -> None:
    assert store.count() == 0
    assert store.query(rows(1)[0], 5) == []
    assert store.query_many(rows(3), 5) == [[], [], []]
    assert list(store.scan()) == []
    assert store.facets("label") == []
    assert store.get(["nobody"]) == [None]
    store.delete(["nobody"])
    store.upsert([], np.empty((0, DIM), np.float32), [])
    store.build()
    assert store.count() == 0


def test_query_gives_cosines_best_first_with_payload(store: Store) -> None:
    vectors = fill(store, 200)
    query = rows(1, seed=9)[0] * 7  # its length does not matter
    hits = store.query(query, 10)
    truth = vectors @ (query / np.linalg.norm(query))
    order = np.argsort(-truth)[:10]
    assert [hit.id for hit in hits] == [f"set/{i}.jpg" for i in order]
    np.testing.assert_allclose([hit.score for hit in hits], truth[order], atol=1e-5)
    first = {name: value for name, value in payload(int(order[0])).items() if value is not None}
    assert hits[0].payload == first
    assert store.query(vectors[17], 1)[0].score == pytest.approx(1.0, abs=1e-6)
    assert len(store.query(query, 1000)) == 200


def test_query_many_equals_single_queries(store: Store) -> None:
    fill(store, 150)
    queries = rows(7, seed=3)
    where = [Condition("label", ("class 1",))]
    together = store.query_many(queries, 6, where=where)
    for query, hits in zip(queries, together, strict=True):
        alone = store.query(query, 6, where=where)
        assert [h.id for h in hits] == [h.id for h in alone]
        np.testing.assert_allclose([h.score for h in hits], [h.score for h in alone], atol=1e-6)


FILTERS: list[tuple[list[Condition], Any]] = [
    ([Condition("label", ("class 1",))], lambda i: i % 3 == 1),
    ([Condition("label", ("class 1", "class 2"))], lambda i: i % 3 in (1, 2)),
    ([Condition("label", ("class 1",), negate=True)], lambda i: i % 3 != 1),
    ([Condition("path", ("sea/",), prefix=True)], lambda i: i % 2 == 1),
    ([Condition("path", ("sea/1", "sky/2"), prefix=True)], lambda i: payload(i)["path"][:5] in ("sea/1", "sky/2")),
    ([Condition("path", ("sea/",), prefix=True, negate=True)], lambda i: i % 2 == 0),
    ([Condition("tags", ("t3",))], lambda i: i % 5 == 3),
    ([Condition("tags", ("t3",), negate=True)], lambda i: i % 5 != 3),
    ([Condition("a.b", ("even",))], lambda i: i % 2 == 0),
    ([Condition("a.b", ("even",), negate=True)], lambda i: i % 2 == 1),
    ([Condition("label", ("class 0",)), Condition("path", ("sky/",), prefix=True)], lambda i: i % 6 == 0),
    ([Condition("label", ("nobody",))], lambda i: False),
    ([Condition("no such column", ("x",))], lambda i: False),
    ([Condition("no such column", ("x",), negate=True)], lambda i: True),
]


def test_filters_return_exactly_what_they_should(store: Store) -> None:
    fill(store, 120)
    for where, keep in FILTERS:
        expected = {f"set/{i}.jpg" for i in range(120) if keep(i)}
        assert {hit.id for hit in store.query(rows(1, 5)[0], 500, where=where)} == expected, where
        assert {record.id for part in store.scan(where=where, batch=7) for record in part} == expected, where
        assert store.count(where) == len(expected), where


NASTY = [
    "", " ", '"', "'", "\\", "\\\\", '\\"', '" or pk != "', '"] or true or $meta["x"] in ["', "a%", "a_", "a", "ab",
    "%", "_", "\n", "\r\n", "\t", "\x00", "\x1f", "\x7f", "é", "e\u0301", "日本", "🦊", "\ufeff", "\ud7ff", "\ue000",
    "\uffff", chr(0x10FFFF), "a" + chr(0x10FFFF), "null", "true", "1", "[0]", "{}", "$meta", "sea/IMG_0%1",
    "sea/IMGx", "\\u0041", "\\x41", "\\n", "`", "--", "/*", "a" * 3000,
]  # fmt: skip
COLUMNS = [
    "label", "path", "a.b", 'q"uote', "back\\slash", "$meta", "pk", "vector", "", "日本", "x_41", "\0x", "tab\t",
    "c_label", "[0]",
]  # fmt: skip


def test_filters_by_hostile_columns_and_values(store: Store, any_store: str, place: str) -> None:
    """Hostile values and columns, lists and plain text, whole values and beginnings, negated or not."""
    rng = np.random.default_rng(0)

    def value() -> Any:
        kind = rng.integers(5)
        if kind == 0:
            return None
        if kind == 1:
            return [NASTY[i] for i in rng.integers(len(NASTY), size=rng.integers(1, 4))]
        return NASTY[rng.integers(len(NASTY))]

    plain = set(COLUMNS[1::2])  # these hold no lists
    payloads = [
        {name: v for name in COLUMNS if not isinstance(v := value(), list) or name not in plain} for _ in range(150)
    ]
    lines = {f"r/{i}": {k: v for k, v in line.items() if v is not None} for i, line in enumerate(payloads)}
    store.upsert(list(lines), rows(150), payloads)
    assert {r.id: r.payload for part in store.scan() for r in part} == lines
    conditions = [
        Condition(column, tuple(values), prefix=prefix, negate=negate)
        for column in COLUMNS
        for values in ([NASTY[rng.integers(len(NASTY))]], [NASTY[i] for i in rng.integers(len(NASTY), size=3)])
        for prefix in (False, True)
        for negate in (False, True)
    ]
    conditions += [Condition("path", (v,), prefix=prefix) for v in NASTY for prefix in (False, True)]
    for condition in conditions:
        expected = {name for name, line in lines.items() if meets(line, [condition])}
        assert {r.id for part in store.scan(where=[condition]) for r in part} == expected, condition
    two = [conditions[3], conditions[30]]
    assert store.count(two) == sum(meets(line, two) for line in lines.values())
    for column in COLUMNS:
        values = [line[column] for line in lines.values() if column in line]
        counts = Counter(v for value in values for v in set(value if isinstance(value, list) else [value]) if v)
        assert store.facets(column, limit=1000) == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])), column
    store.close()
    again = store_class(any_store).open(place)
    assert {r.id: r.payload for part in again.scan() for r in part}.keys() == lines.keys()
    assert again.count([Condition('q"uote', ("",), prefix=True)]) == sum('q"uote' in line for line in lines.values())
    again.close()


RANGES: list[tuple[Condition, Any]] = [
    (Condition("size", low="150"), lambda i: i >= 50),
    (Condition("size", low="150", high="160"), lambda i: 50 <= i <= 60),
    (Condition("size", high="150", strict=True), lambda i: i < 50),
    (Condition("size", low="150", negate=True), lambda i: i < 50),
    (Condition("taken", low="2024-02", high="2024-03"), lambda i: i % 12 in (1, 2)),
    (Condition("taken", low="2024-11", strict=True), lambda i: i % 12 == 11),
    (Condition("label", low="1"), lambda i: False),
]


def test_ranges_of_numbers_and_dates(store: Store) -> None:
    lines = [payload(i) | {"taken": f"2024-{1 + i % 12:02d}-{1 + i % 28:02d}T10:00:00"} for i in range(120)]
    store.upsert([f"set/{i}.jpg" for i in range(120)], rows(120), lines)
    for condition, keep in RANGES:
        expected = {f"set/{i}.jpg" for i in range(120) if keep(i)}
        assert {hit.id for hit in store.query(rows(1, 5)[0], 500, where=[condition])} == expected, condition
        assert store.count([condition]) == len(expected), condition
        assert {f"set/{i}.jpg" for i in range(120) if condition.matches(lines[i].get(condition.column))} == expected
    record = store.get(["set/3.jpg"])[0]
    assert record is not None and record.payload == {k: v for k, v in lines[3].items() if v is not None}


def test_filters_lose_no_neighbors(store: Store, any_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of queries whose own cluster is kept, and of those whose is filtered out; with a graph.

    Stores on a server compare the query with all rows that a filter keeps, if there are at most so many.
    """
    for module in ("local_graph", "pgvector"):
        monkeypatch.setattr(f"lookalike.store.{module}.GRAPH_ROWS", 1000)
    centers, rng = rows(60, 7), np.random.default_rng(2)
    vectors = np.repeat(centers, 30, axis=0) + 0.4 / 4 * rng.normal(size=(1800, DIM))
    ids = [f"r/{i}" for i in range(1800)]
    payloads = [{"cluster": str(i // 30), "rank": (i * 7919) % 1800} for i in range(1800)]
    with monkeypatch.context() as patch:
        patch.setattr(shards, "SHARD_ROWS", max(shards.SHARD_ROWS, 700))
        store.upsert(ids, vectors.astype(np.float32), payloads)
    assert store.build()["recall"] >= 0.97
    queries = vectors[::18] + 0.1 / 4 * rng.normal(size=(100, DIM))
    cluster = np.arange(0, 1800, 18) // 30
    filters = [(Condition("rank", high=str(rank)), cluster >= 0) for rank in (1, 17, 179, 899, 1709)]  # 0.1 to 95 %
    filters += [(Condition("cluster", high=str(last)), cluster <= last) for last in (0, 5, 29, 56, 59)]
    for condition, selected in filters:
        truth = store.search(queries, 10, where=[condition], exact=True).rows
        for compared in (300,) if any_store == "local" else (300, 20_000):
            for module in ("milvus", "pgvector"):
                monkeypatch.setattr(f"lookalike.store.{module}.COMPARED", compared)
            near = store.search(queries, 10, where=[condition]).rows
            assert ((near >= 0) == (truth >= 0)).all()
            hits = np.array([np.isin(t, n).mean() for t, n in zip(truth, near, strict=True)])
            for group in (selected, ~selected):
                assert not group.any() or hits[group].mean() >= 0.97, (condition, compared)


def test_facets_count_the_filtered_rows(store: Store) -> None:
    fill(store, 100)
    assert store.facets("label") == [("class 0", 34), ("class 1", 33), ("class 2", 33)]
    sea = [Condition("path", ("sea/",), prefix=True)]
    assert sum(count for _, count in store.facets("label", where=sea)) == 50
    assert store.facets("tags")[0] == ("all", 100)
    assert store.facets("a.b") == [("even", 50)]
    assert len(store.facets("path", limit=5)) == 5
    assert store.facets("_hash") == [] == store.facets("size") == store.facets("missing")


def test_writing_an_id_again_replaces_it(store: Store) -> None:
    vectors = fill(store, 40)
    store.upsert(["set/3.jpg"], vectors[20:21], [{"label": "new"}])
    assert store.count() == 40
    record = store.get(["set/3.jpg"], vectors=True)[0]
    assert record is not None and record.payload == {"label": "new"}
    np.testing.assert_allclose(record.vector, vectors[20], atol=1e-6)
    assert {hit.id for hit in store.query(vectors[20], 2)} == {"set/3.jpg", "set/20.jpg"}


def test_deleted_rows_are_gone_and_can_come_back(store: Store) -> None:
    vectors = fill(store, 40)
    store.delete(["set/5.jpg", "set/6.jpg", "nobody"])
    assert store.count() == 38
    assert store.get(["set/5.jpg", "set/7.jpg"])[0] is None
    assert store.query(vectors[5], 1)[0].id != "set/5.jpg"
    store.upsert(["set/5.jpg"], vectors[5:6], [payload(5)])
    assert store.query(vectors[5], 1)[0].id == "set/5.jpg"


def test_scan_gives_every_row_once_with_its_vector(store: Store) -> None:
    vectors = fill(store, 95)
    seen = [record for part in store.scan(vectors=True, batch=10) for record in part]
    assert len(seen) == 95 == len({record.id for record in seen})
    for record in seen:
        number = int(record.id.split("/")[1].removesuffix(".jpg"))
        np.testing.assert_allclose(record.vector, vectors[number], atol=1e-6)
        assert record.payload["size"] == 100 + number and record.payload["_hash"] == f"h{number}"


def test_more_like_these_less_like_those(store: Store) -> None:
    vectors = fill(store, 300)
    positive, negative = vectors[[3, 8]], vectors[[40]]
    expected = positive.mean(0) - 0.5 * negative.mean(0)
    truth = np.argsort(-(vectors @ expected))[:5]
    hits = store.query(positive, 5, negative=negative)
    assert [hit.id for hit in hits] == [f"set/{i}.jpg" for i in truth]
    with pytest.raises(LookalikeError, match="cancel"):
        store.query(vectors[3], 5, negative=np.stack([vectors[3], vectors[3]]) * 2)


def test_vectors_that_are_no_directions_never_get_in(store: Store) -> None:
    vectors = fill(store, 5)
    for bad in (np.nan, np.inf, 0.0):
        broken = vectors[:2].copy()
        broken[1] = bad if bad == 0.0 else broken[1]
        broken[1, 0] = bad
        with pytest.raises(LookalikeError, match="`b`"):
            store.upsert(["a", "b"], broken, [{}, {}])
        assert store.count() == 5 and store.get(["a"]) == [None]
        with pytest.raises(LookalikeError):
            store.query(broken[1], 1)


def test_wrong_widths_and_counts_are_refused(store: Store) -> None:
    fill(store, 5)
    with pytest.raises(LookalikeError, match="dimension 17"):
        store.upsert(["a"], np.ones((1, 17), np.float32), [{}])
    with pytest.raises(LookalikeError, match="dimension 17"):
        store.query(np.ones(17, np.float32), 1)
    with pytest.raises(ValueError, match="do not fit"):
        store.upsert(["a", "b"], rows(1), [{}, {}])
    with pytest.raises(ValueError, match="twice"):
        store.upsert(["a", "a"], rows(2), [{}, {}])


def test_a_column_may_change_from_text_to_lists(store: Store) -> None:
    store.upsert(["a"], rows(1), [{"label": "x"}])
    store.upsert(["b", "c"], rows(2, 1), [{"label": ["x", "y"]}, {"label": "z"}])
    assert store.count([Condition("label", ("x",))]) == 2
    assert dict(store.facets("label")) == {"x": 2, "y": 1, "z": 1}


def test_everything_is_there_after_reopening(kind: type[Store], any_store: str, place: str) -> None:
    store = create_store(any_store, place, DIM)
    vectors = fill(store, 60)
    store.delete(["set/1.jpg"])
    store.build()
    store.close()
    for write in (True, False):
        again = kind.open(place, write=write)
        assert again.dim == DIM and again.count() == 59
        assert again.query(vectors[7], 1)[0].id == "set/7.jpg"
        assert again.facets("label")[0][1] == 20
        again.close()
    with pytest.raises(LookalikeError, match="already holds"):
        create_store(any_store, place, DIM)
    remove_store(place)
    with pytest.raises(LookalikeError, match="no store"):
        kind.open(place)
    remove_store(place)


def test_only_one_writer_at_a_time(store: Store, kind: type[Store], place: str) -> None:
    fill(store, 5)
    with pytest.raises(Locked, match=r"[Aa]nother process"):
        kind.open(place, write=True)
    assert store.count() == 5


def test_a_store_that_is_not_there(kind: type[Store], tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="no store"):
        kind.open(str(tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()


def test_threads_may_ask_while_one_writes(store: Store) -> None:
    vectors = fill(store, 100)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            for i in range(30):
                assert store.query(vectors[i], 1)[0].score > 0.999
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20):
        store.upsert([f"more/{i}"], rows(1, 100 + i), [{"label": "more"}])
    for thread in threads:
        thread.join()
    assert not failures and store.count() == 120


WRITER = """
import sys
import numpy as np
from lookalike.store import store_class
kind, place, start = store_class(sys.argv[1]), sys.argv[2], int(sys.argv[3])
store = kind.open(place, write=True)
for n in range(start, start + 10_000):
    ids = [f"r/{n}/{i}" for i in range(20)]
    vectors = np.random.default_rng(n).normal(size=(20, 16)).astype(np.float32)
    store.upsert(ids, vectors, [{"label": f"b{n}", "n": i} for i in range(20)])
    if n % 7 == 3:
        store.delete([f"r/{n}/0"])
    print(n, flush=True)
"""


def test_kill_9_loses_nothing_acknowledged(kind: type[Store], any_store: str, place: str) -> None:
    """Killed while it writes, a few times over: every acknowledged row is there once, and the store opens."""
    create_store(any_store, place, DIM).close()
    acknowledged, start, rng = -1, 0, np.random.default_rng(1)
    for _ in range(2):
        command = [sys.executable, "-c", WRITER, any_store, place, str(start)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        first = writer.stdout.readline()
        assert first, "the writer could not open the store"
        time.sleep(float(rng.uniform(0.05, 0.25)))
        os.kill(writer.pid, signal.SIGKILL)
        lines = [first, *writer.stdout.read().splitlines()]
        writer.wait()
        acknowledged = max(int(line) for line in lines if line.strip())
        store = kind.open(place, write=True)
        ids = [record.id for part in store.scan() for record in part]
        assert len(ids) == len(set(ids)) == store.count()
        expected = {f"r/{n}/{i}" for n in range(acknowledged + 1) for i in range(20) if not (n % 7 == 3 and i == 0)}
        missing = expected - set(ids)
        assert not missing
        # What was on its way may be there too, but nothing else.
        assert {int(x.split("/")[1]) for x in set(ids) - expected} <= {acknowledged + 1}
        probe = np.random.default_rng(acknowledged).normal(size=(20, DIM)).astype(np.float32)[4]
        assert store.query(probe, 1)[0].id == f"r/{acknowledged}/4"
        store.close()
        start = acknowledged + 1
    assert acknowledged >= 2, "both wrote something"


def test_direction_of_one_example_is_the_example() -> None:
    one = rows(1)[0]
    np.testing.assert_allclose(direction(3 * one), one, atol=1e-6)
