"""What is special to the local store: kills, full and read-only disks, damage, several processes, and its graph."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.store import Condition, local_graph
from lookalike.store import graph as graph_module
from lookalike.store.graph import quantize
from lookalike.store.local import LocalStore
from lookalike.store.scan import nearest
from tests import helpers
from tests.kills import killed

DIM = 8


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, DIM)).astype(np.float32)


def filled(place: Path, batches: int = 3) -> LocalStore:
    store = LocalStore.create(str(place), DIM)
    for batch in range(batches):
        ids = [f"{batch}/{i}" for i in range(10)]
        store.upsert(ids, vectors(10, batch), [{"label": f"l{batch}", "n": i} for i in range(10)])
    return store


def contents(place: Path) -> dict[str, list[float]]:
    store = LocalStore.open(str(place), write=True)
    records = [record for part in store.scan(vectors=True) for record in part]
    assert store.verify() == [] and store.count() == len(records)
    for record in records:
        assert record.vector is not None and store.query(record.vector, 1)[0].id == record.id
    counted = dict(store.facets("label"))
    assert sum(counted.values()) == len(records)
    store.close()
    return {record.id: record.vector.round(5).tolist() for record in records if record.vector is not None}


def test_killed_at_every_change_of_a_write(tmp_path: Path) -> None:
    """What was acknowledged is there, and of what was under way all or nothing."""
    filled(tmp_path / "first", 2).close()
    before, strike = contents(tmp_path / "first"), 1

    def write() -> None:
        store = LocalStore.open(str(tmp_path / "s"), write=True)
        store.upsert(["0/0", "new"], vectors(2, 9), [{"label": "x"}] * 2)
        store.delete(["1/1"])

    while True:
        shutil.copytree(tmp_path / "first", tmp_path / "s")
        if not killed(strike, write):
            break
        after = contents(tmp_path / "s")
        assert len(after) in (20, 21) and ("new" in after) == (after["0/0"] != before["0/0"])
        assert {k: v for k, v in after.items() if k not in ("0/0", "new", "1/1")} == {
            k: v for k, v in before.items() if k not in ("0/0", "1/1")
        }
        shutil.rmtree(tmp_path / "s")
        strike += 1
    assert strike > 8 and "1/1" not in contents(tmp_path / "s")


def test_killed_at_every_change_of_a_compaction(tmp_path: Path) -> None:
    store = filled(tmp_path / "first", 2)
    store.delete([f"0/{i}" for i in range(9)])
    store.close()
    before, strike = contents(tmp_path / "first"), 1

    def build() -> None:
        LocalStore.open(str(tmp_path / "s"), write=True).build()

    while True:
        shutil.copytree(tmp_path / "first", tmp_path / "s")
        if not killed(strike, build):
            break
        assert contents(tmp_path / "s") == before
        assert len(list((tmp_path / "s").glob("vectors-*"))) == 1, "what was left is cleared"
        shutil.rmtree(tmp_path / "s")
        strike += 1
    assert contents(tmp_path / "s") == before and (tmp_path / "s" / "vectors-2.f32").exists()
    assert strike > 5


def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s", 2)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LookalikeError, match="full"):
            store.upsert(["a", "b"], vectors(2, 9), [{}, {}])
    assert store.count() == 20 and store.query(vectors(10, 1)[4], 1)[0].id == "1/4", "reading goes on"
    store.upsert(["c"], vectors(1, 5), [{}])
    with store.database.transaction(write=False) as connection:
        connection.execute("PRAGMA max_page_count=1")  # as if the disk ended here
    with pytest.raises(LookalikeError, match="full"):
        store.upsert([f"d{i}" for i in range(500)], vectors(500, 9), [{"label": "d" * 50}] * 500)
    assert store.count() == 21
    store.close()
    again = LocalStore.open(str(tmp_path / "s"))
    assert again.count() == 21 and again.query(vectors(1, 5)[0], 1)[0].id == "c"
    again.close()


def test_a_torn_or_zero_tail_has_no_rows(tmp_path: Path) -> None:
    filled(tmp_path / "s", 2).close()
    for tail in (b"\0" * 64, b"x" * 31):
        with (tmp_path / "s" / "vectors-1.f32").open("ab") as file:
            file.write(tail)
        store = LocalStore.open(str(tmp_path / "s"), write=True)
        store.upsert(["new"], vectors(1, 7), [{}])
        assert store.query(vectors(1, 7)[0], 1)[0].id == "new" and store.count() == 21 and store.verify() == []
        store.close()


@pytest.mark.parametrize("where", [0.1, 0.5, 0.95])
def test_verify_detects_a_flipped_bit(tmp_path: Path, where: float) -> None:
    filled(tmp_path / "s").close()
    path = tmp_path / "s" / "vectors-1.f32"
    raw = bytearray(path.read_bytes())
    raw[int(where * len(raw))] ^= 1
    path.write_bytes(bytes(raw))
    store = LocalStore.open(str(tmp_path / "s"))
    [problem] = store.verify()
    assert f"Vectors {int(30 * where) // 10 * 10}" in problem
    store.close()


def test_verify_reports_a_hash_without_rows(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    with store.database.transaction() as connection:
        connection.execute(store.tables.sql("UPDATE blocks_$ SET stop = 'x'"))
    [problem] = store.verify()
    assert problem.startswith("Vectors from 0 of")
    store.close()


def test_a_damaged_database_is_reported_at_open(tmp_path: Path) -> None:
    filled(tmp_path / "s").close()
    path = tmp_path / "s" / "lookalike.db"
    raw = bytearray(path.read_bytes())
    raw[:16] = b"\0" * 16
    path.write_bytes(bytes(raw))
    with pytest.raises(LookalikeError, match="damaged"):
        LocalStore.open(str(tmp_path / "s"))


def test_a_second_writer_learns_who_has_the_lock(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    with pytest.raises(Locked, match=f"process {os.getpid()}"):
        LocalStore.open(str(tmp_path / "s"), write=True)
    store.close()
    LocalStore.open(str(tmp_path / "s"), write=True).close()


READER = """
import sys, time
from lookalike.store.local import LocalStore
store = LocalStore.open(sys.argv[1])
print(store.count(), flush=True)
while store.count() < 40:
    time.sleep(0.01)
print(store.query(store.get(["3/4"], vectors=True)[0].vector, 1)[0].id, flush=True)
while store.count() == 40:
    time.sleep(0.01)
print(store.count(), store.facets("label"), flush=True)
"""


def test_readers_in_other_processes_follow_commits(tmp_path: Path) -> None:
    """Also through a compaction, which replaces the file that they have mapped."""
    store = filled(tmp_path / "s")
    command = [sys.executable, "-c", READER, str(tmp_path / "s")]
    readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for reader in readers:
        assert reader.stdout is not None and reader.stdout.readline() == "30\n"
    store.upsert([f"3/{i}" for i in range(10)], vectors(10, 3), [{"label": "l3"}] * 10)
    start = time.monotonic()
    for reader in readers:
        assert reader.stdout is not None and reader.stdout.readline() == "3/4\n"
    assert time.monotonic() - start < 1
    store.delete([f"{batch}/{i}" for batch in range(2) for i in range(10)])
    store.build()
    for reader in readers:
        out, _ = reader.communicate(timeout=20)
        assert out == "20 [('l2', 10), ('l3', 10)]\n" and reader.returncode == 0
    store.close()


def test_a_read_only_medium_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s").close()
    before = sorted(path.name for path in (tmp_path / "s").iterdir())
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    store = LocalStore.open(str(tmp_path / "s"))
    assert store.query(vectors(10, 1)[3], 1)[0].id == "1/3"
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == before, "nothing was written"
    store.close()


def test_a_scan_sees_one_state(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    pages = store.scan(batch=7)
    first = next(pages)
    store.delete([f"1/{i}" for i in range(10)] + [f"2/{i}" for i in range(10)])
    store.build()
    assert len(first) + sum(map(len, pages)) == 30 and store.count() == 10
    store.close()


def test_ranges_and_beginnings_that_keep_many_rows(tmp_path: Path) -> None:
    """They are slices of a column in the order of its values, which follow every write; also of lists."""
    store, rng = LocalStore.create(str(tmp_path / "s"), DIM), np.random.default_rng(0)
    lines: dict[str, dict[str, Any]] = {}

    def write(first: int, count: int) -> None:
        new: dict[str, dict[str, Any]] = {
            f"r{i}": {"n": int(rng.integers(100)), "path": f"{'ab'[i % 9 == 0]}/{i}", "all": f"{chr(0x10FFFF)}{i}"}
            for i in range(first, first + count)
        }
        for i, line in enumerate(new.values()):
            if i % 7 == 0:
                line["n"] = [line["n"], f"{rng.integers(100)}", "2024-05"]
        lines.update(new)
        store.upsert(list(new), vectors(count, first), list(new.values()))

    conditions = [Condition("path", (start,), prefix=True) for start in ("", "a", "b/", "c")]
    conditions += [Condition("all", (chr(0x10FFFF),), prefix=True), Condition("n", low="2024-01")]
    conditions += [
        Condition("n", low=low, high=high, strict=strict, negate=negate)
        for low, high in (("5", ""), ("", "95"), ("3", "97"), ("-1e999", "2"))
        for strict, negate in ((False, False), (True, True))
    ]
    for change in (
        lambda: write(0, 1500),
        lambda: write(1400, 400),
        lambda: store.delete(list(lines)[::4]),
        store.build,
    ):
        change()
        for record in set(lines) - {record.id for part in store.scan() for record in part}:
            del lines[record]
        for condition in conditions:
            expected = {name for name, line in lines.items() if condition.matches(line.get(condition.column))}
            assert {r.id for part in store.scan(where=[condition]) for r in part} == expected, condition
    assert len(lines) == 1350 and store.state().version == 2
    store.close()


# -- the graph ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A store of 6,000 rows in 120 clusters, with a graph."""
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(120, 96))
    centers /= np.linalg.norm(centers, axis=1, keepdims=True)
    rows = 0.6 * np.repeat(centers, 50, axis=0) + 0.5 * rng.normal(size=(6000, 96)) / np.sqrt(96)
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    place = tmp_path_factory.mktemp("graph") / "s"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_graph, "GRAPH_ROWS", 1000)
        store = LocalStore.create(str(place), 96)
        payloads = [{"cluster": str(i // 50), "part": str((i * 7919) % 1000)} for i in range(6000)]
        store.upsert([f"r{i}" for i in range(6000)], rows, payloads)
        facts = store.build()
        assert facts["indexed"] == 6000 and facts["recall"] >= 0.99
        store.close()
    return place, rows


def scan_is_slow(store: LocalStore) -> None:
    """As with many more rows: the planner prefers the graph wherever it may."""
    from dataclasses import replace

    graph = store.load_graph()
    assert graph is not None
    graph.info = replace(graph.info, scan_seconds=1.0, pass_seconds=1.0)


@pytest.mark.parametrize("percent", [0.1, 1, 10, 50, 95, 100])
def test_filtered_recall(clustered: tuple[Path, np.ndarray], percent: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By cluster, for queries whose own cluster is kept and whose is filtered out, and across clusters."""
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    place, rows = clustered
    store = LocalStore.open(str(place))
    scan_is_slow(store)
    rng = np.random.default_rng(1)
    queries = rows[::60] + 0.3 * rng.normal(size=(100, 96)) / np.sqrt(96)
    filters = [Condition("cluster", high=str(int(1.2 * percent))), Condition("part", high=str(10 * percent - 1))]
    for where in filters:
        truth = store.search(queries, 10, where=[where], exact=True)
        for near in (
            store.search(queries, 10, where=[where]).rows,
            np.concatenate([store.search(query, 10, where=[where]).rows for query in queries]),
        ):
            there = truth.rows >= 0
            hits = np.array([np.isin(t, line) for t, line in zip(truth.rows, near, strict=True)]) & there
            selected = np.arange(0, 6000, 60) // 50 <= 1.2 * percent
            for part in (selected, ~selected) if where.column == "cluster" else (slice(None),):
                if there[part].any():
                    assert hits[part].sum() / there[part].sum() >= 0.97, where
    store.close()


def test_the_first_pass_over_int8_copies_is_exact(
    clustered: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For queries near and far from rows, all rows or some of them, and whenever too many are left it says so."""
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    store, rng = LocalStore.open(str(clustered[0])), np.random.default_rng(3)
    graph, rows = store.load_graph(), store.state().vectors
    assert graph is not None and graph.info.error < 0.02 and np.isfinite(graph.info.pass_seconds)
    assert np.array_equal(graph._codes, quantize(rows[graph._rows], graph.info.scale)), "each copy knows its row"
    noise = rng.normal(size=(40, 96)) / np.sqrt(96)
    queries = np.concatenate([rows[::150] + 0.5 * noise, noise[:20], rows[:5], -rows[:5]]).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    masks = [None, rng.random(6000) < 0.5, np.arange(6000) // 50 == 7, np.arange(6000) // 50 != 7]
    monkeypatch.setattr(graph_module, "COMPARED", 1000)  # in several threads
    answered = 0
    for query in queries:
        for mask in masks:
            for k in (1, 10, 40):
                selected = None if mask is None else np.flatnonzero(mask)
                result = graph.first_pass(query, k, rows, selected)
                if result is not None:
                    truth = nearest(query[None], rows, k, selected)
                    np.testing.assert_allclose(result[1], truth[1][0], atol=1e-6)
                    assert set(result[0]) == set(truth[0][0])
                    answered += 1
    assert answered > 300
    store.close()


def test_rows_added_and_deleted_since_the_build(
    clustered: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    shutil.copytree(clustered[0], tmp_path / "s")
    store = LocalStore.open(str(tmp_path / "s"), write=True)
    scan_is_slow(store)
    rows = clustered[1]
    store.delete([f"r{i}" for i in range(50)])
    store.upsert(["r60", "new"], rows[[2000, 10]], [{}, {}])
    assert store.query(rows[10], 1)[0].id == "new" and store.query(rows[2000], 2)[1].score > 0.999
    near = store.search(rows[::100], 10)
    truth = store.search(rows[::100], 10, exact=True)
    assert np.mean([np.isin(t, n).mean() for t, n in zip(truth.rows, near.rows, strict=True)]) >= 0.97
    first = store.load_graph()
    store.upsert([f"more{i}" for i in range(1500)], -rows[:1500], [{}] * 1500)
    assert store.build()["indexed"] == 7502 and store.load_graph() is not first, "a fifth has changed"
    store.close()


def test_a_damaged_graph_is_never_searched_and_built_again(
    clustered: tuple[Path, np.ndarray],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    shutil.copytree(clustered[0], tmp_path / "s")
    [graph] = (tmp_path / "s").glob("graph-*")
    raw = bytearray(graph.read_bytes())
    raw[len(raw) // 2] ^= 4
    graph.write_bytes(bytes(raw))
    store = LocalStore.open(str(tmp_path / "s"))
    assert any("graph" in problem for problem in store.verify())
    assert store.query(clustered[1][77], 1)[0].id == "r77"
    helpers.until(lambda: store.load_graph() is not None)
    assert capfd.readouterr().err.count("is damaged") == 1
    assert store.query(clustered[1][77], 1)[0].id == "r77" and store.verify() == []
    store.close()


def test_ranges_of_numbers_and_dates(tmp_path: Path) -> None:
    store = LocalStore.create(str(tmp_path / "s"), DIM)
    lines: list[dict[str, Any]] = [
        {"width": "800", "taken": "2024-05-31T23:59:59"},
        {"width": "1000", "taken": "2024-06-01"},
        {"width": 1200, "taken": "2024-08-31 12:00:00"},
        {"width": "wide", "taken": "2025"},
        {"width": ["3", "2000"], "taken": "2024-07-01T00:30:00+02:00"},
        {"width": float("nan"), "taken": "nan"},
        {"width": None},
    ]
    store.upsert([str(i) for i in range(7)], vectors(7), lines)
    assert store.verify() == []
    cases: list[tuple[Condition, set[str]]] = [
        (Condition("width", low="1000"), {"1", "2", "4"}),
        (Condition("width", low="1000", strict=True), {"2", "4"}),
        (Condition("width", high="1000"), {"0", "1", "4"}),
        (Condition("width", low="900", high="1100"), {"1"}),
        (Condition("width", low="1000", negate=True), {"0", "3", "5", "6"}),
        (Condition("taken", low="2024-06"), {"1", "2", "4"}),
        (Condition("taken", low="2024-06", high="2024-08"), {"1", "2", "4"}),
        (Condition("taken", high="2024-06"), {"0", "1", "4"}),
        (Condition("taken", low="2024-06", strict=True), {"2"}),
        (Condition("taken", low="2025"), {"3"}),
    ]
    for condition, expected in cases:
        assert {r.id for part in store.scan(where=[condition]) for r in part} == expected, condition
        assert {str(i) for i, line in enumerate(lines) if condition.matches(line.get(condition.column))} == expected
    store.close()


def test_a_filter_that_keeps_only_rows_added_since_the_build(
    clustered: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    shutil.copytree(clustered[0], tmp_path / "s")
    store = LocalStore.open(str(tmp_path / "s"), write=True)
    scan_is_slow(store)
    store.upsert([f"new{i}" for i in range(1000)], clustered[1][:1000], [{"cluster": "new"}] * 1000)
    hits = store.query(clustered[1][5], 10, where=[Condition("cluster", ("new",))])
    assert hits[0].id == "new5" and len(hits) == 10
    store.close()


def test_building_a_graph_beside_a_compaction_deletes_no_vectors(
    clustered: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that builds a graph sees a file of vectors that nobody has committed yet."""
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    shutil.copytree(clustered[0], tmp_path / "s")
    [graph] = (tmp_path / "s").glob("graph-*")
    graph.unlink()
    (tmp_path / "s" / "vectors-2.f32").write_bytes(b"being written")
    store = LocalStore.open(str(tmp_path / "s"))
    assert store.load_graph() is not None and (tmp_path / "s" / "vectors-2.f32").exists()
    store.close()


def test_a_writer_that_starts_beside_a_build_deletes_no_new_graph(
    clustered: tuple[Path, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graph has its name before it is measured, and is committed after that."""
    monkeypatch.setattr(local_graph, "GRAPH_ROWS", 1000)
    shutil.copytree(clustered[0], tmp_path / "s")
    [graph] = (tmp_path / "s").glob("graph-*")
    graph.unlink()
    measured, measure = [], graph_module._measured

    def during(*arguments: Any) -> Any:
        LocalStore.open(str(tmp_path / "s"), write=True).close()
        measured.append(1)
        return measure(*arguments)

    monkeypatch.setattr(graph_module, "_measured", during)
    store = LocalStore.open(str(tmp_path / "s"))
    loaded = store.load_graph()
    assert loaded is not None and measured and (tmp_path / "s" / loaded.info.file).exists()
    store.close()
    LocalStore.open(str(tmp_path / "s"), write=True).close()
    assert [file.name for file in (tmp_path / "s").glob("graph-*")] == [loaded.info.file]


def test_killed_at_every_change_of_building_a_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "first", 3).close()
    before, strike = contents(tmp_path / "first"), 1

    def build() -> dict[str, Any]:
        with monkeypatch.context() as patch, contextlib.closing(LocalStore.open(str(tmp_path / "s"), write=True)) as s:
            patch.setattr(local_graph, "GRAPH_ROWS", 20)
            return s.build()

    while True:
        shutil.copytree(tmp_path / "first", tmp_path / "s")
        if not killed(strike, build):
            break
        assert contents(tmp_path / "s") == before
        assert build()["indexed"] == 30, strike
        assert contents(tmp_path / "s") == before, "the graph is whole, too"
        left = {path.name for path in (tmp_path / "s").iterdir() if "graph" in path.name} - {".graph"}
        assert len(left) == 1, left
        shutil.rmtree(tmp_path / "s")
        strike += 1
    assert strike > 4


def test_threads_read_while_rows_come_and_go(tmp_path: Path) -> None:
    store = filled(tmp_path / "s")
    failures: list[BaseException] = []

    def read() -> None:
        try:
            for _ in range(150):
                assert {hit.id.partition("/")[0] for hit in store.query(vectors(1)[0], 50)} >= {"0", "1", "2"}
                assert store.count([Condition("label", ("l1",))]) == 10 and sum(map(len, store.scan())) >= 30
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(40):
        store.upsert([f"x/{i}" for i in range(12)], vectors(12, number), [{"label": "x"}] * 12)
        store.delete([f"x/{i}" for i in range(12)])
        if number % 5 == 4:
            store.build()
    for thread in threads:
        thread.join()
    assert not failures and store.count() == 30
    store.close()
