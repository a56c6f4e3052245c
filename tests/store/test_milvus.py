"""What is special to Milvus: addresses and passwords, filters in its language, its graph, and a server that is away."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.store import create_store, graph, milvus_client, milvus_filters, remove_store, shards, store_name
from lookalike.store.milvus import MilvusStore
from lookalike.store.protocol import prefix_end
from tests import helpers, milvus_server

needs_milvus = pytest.mark.needs("milvus")
SECRET = "hunter2-and-more"


# -- addresses, names and texts: no server needed ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("milvus://box", "milvus://box:19530"),
        ("milvus://box:7/", "milvus://box:7"),
        ("milvus://BOX.example:19530/team_a", "milvus://box.example:19530/team_a"),
        ("milvus://[::1]:5?tls", "milvus://[::1]:5?tls"),
    ],
)
def test_addresses_are_written_in_one_way(text: str, meant: str) -> None:
    assert store_name(text) == meant == store_name(meant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"milvus://root:{SECRET}@box:19530", "must not contain a password"),
        (f"milvus://{SECRET}@box", "must not contain a password"),
        (f"milvus://box:19530?token={SECRET}", "not the address of a Milvus server"),
        (f"milvus://box:19530#{SECRET}", "not the address of a Milvus server"),
        ("milvus://", "not the address of a Milvus server"),
        ("milvus://box:ninety", "not the address of a Milvus server"),
        ("milvus://box:99999", "not the address of a Milvus server"),
        ("milvus://box/a/b", "not the address of a Milvus server"),
        ("milvus", "give its address, as in `milvus://host:19530`"),
        ("local://box", "takes no address"),
        ("milfus://box", "did you mean `milvus`"),
    ],
)
def test_what_is_no_address_is_reported_without_its_secrets(text: str, message: str) -> None:
    with pytest.raises(LookalikeError, match=message) as raised:
        store_name(text)
    assert SECRET not in str(raised.value) and "\n" not in str(raised.value)


@given(st.text())
def test_columns_come_back_under_their_names(column: str) -> None:
    key = milvus_filters.to_key(column)
    assert milvus_filters.from_key(key) == column
    assert key.isascii() and key.replace("_", "").isalnum()


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), st.text(st.characters(exclude_categories=["Cs"])))
def test_the_text_behind_all_that_begin_alike(start: str, other: str) -> None:
    def order(text: str) -> bytes:
        return text.encode()

    end = prefix_end(start)
    inside = order(start) <= order(other) and (not end or order(other) < order(end))
    assert inside == other.startswith(start)
    assert order(start + other) < order(end) if end else set(start) <= {chr(0x10FFFF)}


# -- a real server ----------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "store")
    if (tmp_path / "store" / "store.json").exists():
        remove_store(tmp_path / "store")


def unit(count: int, dim: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def clustered(count: int, dim: int, seed: int) -> np.ndarray:
    """Rows about 200 centers, the same for every seed."""
    centers, rng = unit(200, dim, 99), np.random.default_rng(seed)
    rows = centers[rng.integers(200, size=count)] + 0.35 / np.sqrt(dim) * rng.normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@needs_milvus
@pytest.mark.parametrize(
    ("count", "dim"), [(3000, 48), pytest.param(20_000, 384, marks=pytest.mark.slow)], ids=["short", "long"]
)
@pytest.mark.slow
def test_the_graphs_width_is_chosen_by_measurement(milvus: str, place: str, count: int, dim: int) -> None:
    """On queries it never saw, the graph finds what exact search finds, with the same scores."""
    store = create_store(milvus, place, dim)
    rows = clustered(count, dim, 0)
    for start in range(0, count, 2000):
        part = rows[start : start + 2000]
        store.upsert([f"r/{start + i}" for i in range(len(part))], part, [{"label": "x"}] * len(part))
    facts = store.build()
    assert facts["rows"] == count and facts["recall"] >= graph.MIN_RECALL
    assert facts["ef"] // shards.MARGIN in graph.WIDTHS
    store.close()
    store = MilvusStore.open(place)
    queries = clustered(200, dim, 1)
    truth = np.argsort(-(queries @ rows.T), axis=1)[:, :10]
    quick, exact = store.query_many(queries, 10), store.query_many(queries, 10, exact=True)
    assert [[hit.id for hit in hits] for hits in exact] == [[f"r/{i}" for i in line] for line in truth]
    common = [len({h.id for h in a} & {h.id for h in b}) / 10 for a, b in zip(exact, quick, strict=True)]
    assert np.mean(common) >= 0.97
    for query, hits in zip(queries, quick, strict=True):
        expected = [float(query @ rows[int(hit.id[2:])]) for hit in hits]
        np.testing.assert_allclose([hit.score for hit in hits], expected, atol=1e-4)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    # What is deleted is not found, and a row more is no reason to measure again.
    store.delete([f"r/{i}" for i in truth[0]])
    assert not {hit.id for hit in store.query(queries[0], 10)} & {f"r/{i}" for i in truth[0]}
    store.shards[0]._record(ef=77)  # type: ignore[attr-defined]
    assert store.build()["ef"] == 77
    store.close()


@needs_milvus
@pytest.mark.slow
def test_pages_give_every_row_once(milvus: str, place: str) -> None:
    """Rows in closed segments and in growing ones, some of them written twice, in pages that cut through them."""
    store = create_store(milvus, place, 4)
    ids = [f"r/{i}" for i in range(140)]
    store.upsert(ids[:80], unit(80, 4), [{"n": 1}] * 80)
    store.shards[0]._client.build()
    store.upsert(ids[60:], unit(80, 4, 1), [{"n": 2}] * 80)
    assert store.count() == 140
    for size in (1, 7, 100, 139, 140, 1000):
        seen = [record for page in store.scan(batch=size) for record in page]
        assert sorted(record.id for record in seen) == sorted(ids)
        assert sum(record.payload["n"] for record in seen) == 60 + 2 * 80
    store.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as some:
        return int(some.getsockname()[1])


@needs_milvus
def test_a_server_that_is_not_there_gives_a_one_line_error(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    for address in (f"milvus://127.0.0.1:{free_port()}", "milvus://no-such-host.invalid"):
        with pytest.raises(Unavailable, match=r"No Milvus server answers at .*: start it, or check the address\.$"):
            create_store(address, place, 4)
    assert not (Path(place) / "store.json").exists()
    assert capfd.readouterr().err == "", "the client says nothing of its own"


@needs_milvus
def test_passwords_are_prompted_for_and_stored_nowhere(
    milvus: str, place: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for token in ("", f"root:{SECRET}"):
        monkeypatch.setenv(milvus_client.TOKEN, token)
        with pytest.raises(
            LookalikeError, match="rejects the user or the password: set LOOKALIKE_MILVUS_TOKEN"
        ) as raised:
            create_store(milvus, place, 4)
        assert SECRET not in str(raised.value)
    monkeypatch.undo()
    logging.getLogger("pymilvus").setLevel(logging.DEBUG)
    store = create_store(milvus, place, 4)
    store.upsert(["a"], unit(1, 4), [{}])
    written = "".join(path.read_text() for path in Path(place).rglob("*") if path.is_file())
    assert (
        milvus_server.PASSWORD not in written
        and json.loads((Path(place) / "store.json").read_text())["address"] == milvus
    )
    assert f":{milvus_server.PASSWORD}" not in capfd.readouterr().err
    assert (Path(place) / "store.json").stat().st_mode & 0o077 == 0
    store.close()


@needs_milvus
def test_a_server_goes_and_comes_back(milvus: str, place: str) -> None:
    gate = milvus_server.Gate(milvus)
    store = create_store(gate.address, place, 4)
    store.upsert(["a", "b"], unit(2, 4), [{}, {}])
    gate.shut()
    for call in (
        lambda: store.count(),
        lambda: store.query(unit(1, 4)[0], 1),
        lambda: store.upsert(["c"], unit(1, 4), [{}]),
        lambda: store.delete(["a"]),
        lambda: MilvusStore.open(place),
        lambda: remove_store(place),
    ):
        with pytest.raises(Unavailable, match="No Milvus server answers"):
            call()
    assert (Path(place) / "store.json").exists(), "what cannot be deleted there is not forgotten here"
    gate.open()
    assert store.count() == 2 and {r.id for page in store.scan() for r in page} == {"a", "b"}
    store.close()
    remove_store(place)
    gate.shut()


def write_until_killed(folder: Path) -> None:
    """Write to a server of its own until it is killed, start it again, and compare."""
    milvus_server.alone()
    os.environ[milvus_client.TOKEN] = f"root:{milvus_server.PASSWORD}"
    milvus_client.SECONDS = milvus_client.CONNECT = 5.0
    place, written = str(folder / "store"), 0
    (folder / "server").mkdir()
    with milvus_server.running(folder / "server") as (process, port):
        store = create_store(f"milvus://127.0.0.1:{port}", place, 4)
        timer = threading.Timer(2.0, process.kill)
        timer.start()
        with pytest.raises(LookalikeError):
            while True:
                store.upsert([f"{written}/{i}" for i in range(20)], unit(20, 4, written), [{"batch": written}] * 20)
                written += 1
        timer.join()
    milvus_client.SECONDS = 120.0
    with milvus_server.running(folder / "server") as (_, port):
        meta = Path(place) / "store.json"
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "address": f"milvus://127.0.0.1:{port}"}))
        store = MilvusStore.open(place)
        ids = {record.id for page in store.scan() for record in page}
        assert written > 3 and {f"{batch}/{i}" for batch in range(written) for i in range(20)} <= ids
        assert store.query(unit(20, 4, written - 1)[7], 1)[0].id == f"{written - 1}/7"


@needs_milvus
@pytest.mark.slow
def test_a_killed_server_loses_nothing_acknowledged(tmp_path: Path) -> None:
    ended = helpers.apart(write_until_killed, tmp_path)
    assert ended.code == 0, ended.err


@needs_milvus
def test_what_is_wrong_with_a_collection_gives_a_one_line_error(milvus: str, place: str) -> None:
    store = create_store(milvus, place, 4)
    with pytest.raises(LookalikeError, match="exceed what Milvus stores per row"):
        store.upsert(["a"], unit(1, 4), [{"essay": "x" * 70_000}])
    assert store.count() == 0
    store.close()
    meta = Path(place) / "store.json"
    right = meta.read_text()
    meta.write_text(right.replace('"dim": 4', '"dim": 5'))
    with pytest.raises(LookalikeError, match="has vectors of dimension 4, not 5"):
        MilvusStore.open(place)
    meta.write_text(right)
    MilvusStore.drop(place)
    with pytest.raises(LookalikeError, match="no longer has the collection `lookalike_"):
        MilvusStore.open(place)
    with pytest.raises(LookalikeError, match="has no database `nowhere`"):
        create_store(f"{milvus}/nowhere", str(Path(place) / "other"), 4)
    remove_store(place)
    remove_store(place)


@needs_milvus
def test_with_tls_nothing_is_reported_in_clear(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookalike.store.milvus_client.CONNECT", 2.0)
    monkeypatch.setenv(milvus_client.TOKEN, f"root:{SECRET}")
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)

        def listen() -> None:
            end, _ = listener.accept()
            with end:
                heard.append(end.recv(4096))

        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(Unavailable):
            create_store(f"milvus://127.0.0.1:{listener.getsockname()[1]}?tls", place, 4)
        thread.join()
    assert heard[0][:2] == b"\x16\x03", "a TLS handshake comes first"


def test_without_the_client_it_says_what_to_install(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(LookalikeError, match=r"pip install 'lookalike\[milvus\]'"):
        create_store("milvus://127.0.0.1:1", place, 4)
