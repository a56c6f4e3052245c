"""An index whose vectors are on a Milvus server: the same commands, the same hits, and a server that goes away."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lookalike
from lookalike.core import files
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.searching import Index, index, ingest, search, switch
from lookalike.searching.generations import compare_generations, drop_generation
from lookalike.store import milvus_client
from tests import helpers, milvus_server
from tests.searching import fake

pytestmark = [pytest.mark.needs("milvus"), pytest.mark.slow]


def collections(address: str) -> set[str]:
    """What the server holds of ours."""
    from pymilvus import MilvusClient

    client = MilvusClient(
        milvus_client.parse_address(address).uri, token=os.environ[milvus_client.TOKEN], dedicated=True
    )
    try:
        return set(client.list_collections())
    finally:
        client.close()


def collection(place: Path, number: int = 1) -> str:
    return str(json.loads((place / "generations" / str(number) / "store.json").read_text())["collection"])


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake.install(monkeypatch)
    for seed, name in enumerate(("first", "second")):
        fake.FakeEmbedder(seed).save_pretrained(tmp_path / "fakes" / name)
    return tmp_path / "fakes"


@pytest.fixture
def gate(milvus: str, tmp_path: Path) -> Iterator[milvus_server.Gate]:
    """A way to the server that can be shut."""
    made = milvus_server.Gate(milvus)
    yield made
    helpers.forget_stores(tmp_path)
    made.shut()


def test_the_command_line_from_index_to_purge(
    folder: Path, model: Path, tmp_path: Path, home: Path, milvus: str, cli: Any
) -> None:
    """What a user types, the first time in a process of its own, beside the same images under exact search."""
    done = helpers.lookalike("index", folder, "--model", model, "--index", "there", "--store", milvus, "--json")
    assert done.code == 0 and done.json["images"] == 24, done.err
    index(folder=folder, model=model, index="here", progress=False)
    place = Index.open("there").path
    query = folder / "class-01" / "2.jpg"
    for words in (["--filter", "label=class-01"], ["--filter", "path=class-0*", "--exact"]):
        there = cli("search", query, "--index", "there", "-k", 8, "--json", *words).json["hits"]
        here = search(query=query, index="here", k=8, filters=words[1])
        assert [hit["id"] for hit in there] == [hit.id for hit in here], words
        np.testing.assert_allclose([hit["score"] for hit in there], [hit.score for hit in here], atol=1e-4)
    copies = cli("duplicates", "there", "--json")
    assert copies.code == 0, copies.err
    files = [path for path in place.rglob("*") if path.is_file()]
    secret = milvus_server.PASSWORD.encode()
    assert files and not [path for path in files if b":" + secret in path.read_bytes()]
    named = collection(place)
    assert named in collections(milvus)
    other = cli("index", folder, "--index", "there", "--store", "local")
    assert other.code == 2 and f"`{milvus}`, not in `local`" in other.err
    gone = cli("purge", "there", "--yes")
    assert gone.code == 0 and named not in collections(milvus) and not place.exists(), gone.err


def test_mistakes_give_one_line_errors_and_exit_2(
    folder: Path, model: Path, home: Path, milvus: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hunter2"
    make = ("index", folder, "--model", model, "--index", "x", "--store")
    for store, message in (
        (f"milvus://root:{secret}@127.0.0.1", "An address must not contain a password"),
        ("milvus", "give its address, as in `milvus://host:19530`"),
        ("milvus://127.0.0.1:1", "No Milvus server answers at 127.0.0.1:1: start it, or check the address."),
    ):
        done = cli(*make, store)
        assert done.code == 2 and message in done.err and secret not in done.out + done.err
        assert len(done.err.strip().splitlines()) == 1 and "Traceback" not in done.err, done.err
    monkeypatch.setenv(milvus_client.TOKEN, f"root:{secret}")
    refused = cli(*make, milvus)
    assert refused.code == 2 and "rejects the user or the password" in refused.err and secret not in refused.err
    assert list(home.rglob("lookalike.db")) == []


def test_vectors_on_a_server_need_no_space_here(
    folder: Path, fakes: Path, tmp_path: Path, milvus: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 rows of a table fit on this disk, their vectors and payloads would not."""
    index(folder=folder, model=fakes / "first", index=tmp_path / "before", progress=False)
    lookalike.backup(index=tmp_path / "before", out=tmp_path / "kept.tar", progress=False)
    monkeypatch.setattr(files, "free_bytes", lambda path: 20_000)
    for store, fits in ((milvus, True), ("local", False)):
        with contextlib.nullcontext() if fits else pytest.raises(LookalikeError, match=r"only 20\.0 kB are free"):
            index(folder=folder, model=fakes / "first", index=tmp_path / store[:5], store=store, progress=False)
        with pytest.raises(LookalikeError, match=r"only 20\.0 kB are free"):  # a backup is unpacked and checked first
            again = tmp_path / f"{store[:5]}-again"
            lookalike.restore(file=tmp_path / "kept.tar", index=again, store=store, progress=False)
    helpers.forget_stores(tmp_path)


def test_another_model_beside_the_old_one(folder: Path, fakes: Path, tmp_path: Path, milvus: str) -> None:
    place = tmp_path / "index"
    index(folder=folder, model=fakes / "first", index=place, store=milvus, progress=False)
    with pytest.raises(LookalikeError, match="made with model"):
        index(folder=folder, model=fakes / "second", index=place, progress=False)
    from lookalike.searching.indexing import update_index

    update_index(folder.resolve(), place, model=fakes / "second", live=False, progress=False)
    with Index.open(place) as old, Index.open(place, generation=2) as new:
        assert new.generation.store == milvus, "beside the old one, on the same server"
        result = compare_generations(old, new)
    assert result["queries"] == 24 and result["recall"] == 1.0 and 0 < result["agreement"] <= 1
    assert collection(place, 1) != collection(place, 2) and {collection(place, 1), collection(place, 2)} <= collections(
        milvus
    )
    assert switch(index=place).live == 2 and search(query=folder / "class-00" / "0.jpg", index=place, k=1)[0].identical
    gone = collection(place, 1)
    drop_generation(place, 1)
    assert gone not in collections(milvus) and [g.number for g in Index.open(place).manifest.generations] == [2]
    lookalike.purge(index=place)


def test_a_backup_goes_to_the_server_whole_or_not_at_all(
    folder: Path, fakes: Path, tmp_path: Path, milvus: str
) -> None:
    place = tmp_path / "index"
    index(folder=folder, model=fakes / "first", index=place, progress=False)
    lookalike.backup(index=place, out=tmp_path / "kept.tar", progress=False)
    restored = lookalike.restore(file=tmp_path / "kept.tar", index=tmp_path / "there", store=milvus, progress=False)
    assert restored.images == 24
    query = folder / "class-02" / "1.jpg"
    here, there = (search(query=query, index=where, k=6) for where in (place, tmp_path / "there"))
    assert [hit.id for hit in here] == [hit.id for hit in there]
    again = lookalike.restore(file=tmp_path / "kept.tar", index=tmp_path / "twice", store=milvus, progress=False)
    assert again.images == 24 and collection(tmp_path / "twice") != collection(tmp_path / "there")
    before = collections(milvus)
    data = (tmp_path / "kept.tar").read_bytes()
    rows = data.index(b"vectors-1.f32") // 512 * 512 + 700
    (tmp_path / "broken.tar").write_bytes(data[:rows] + bytes([data[rows] ^ 1]) + data[rows + 1 :])
    with pytest.raises(LookalikeError, match="not a complete backup"):
        lookalike.restore(file=tmp_path / "broken.tar", index=tmp_path / "b", store=milvus, progress=False)
    assert collections(milvus) <= before, "nothing of it is left on the server"
    for name in ("there", "twice"):
        lookalike.purge(index=tmp_path / name)


def test_an_index_of_nothing_leaves_nothing_there(tmp_path: Path, fakes: Path, milvus: str) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(b"no image")
    made: list[str] = []
    real = lookalike.searching.writer.create_store

    def create(name: str, place: Path, dim: int) -> Any:
        store = real(name, place, dim)
        made.append(json.loads((place / "store.json").read_text())["collection"])
        return store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lookalike.searching.writer.create_store", create)
        with pytest.raises(LookalikeError, match="None of the 1 images could be read"):
            index(folder=tmp_path / "images", model=fakes / "first", index=tmp_path / "i", store=milvus, progress=False)
    assert len(made) == 1 and made[0] not in collections(milvus) and not (tmp_path / "i").exists()


def test_a_server_that_goes_away_while_indexing(
    folder: Path, fakes: Path, tmp_path: Path, gate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged before is kept, nothing is there twice, and the next run goes on."""
    from lookalike.searching.ingest import IndexUpdate

    monkeypatch.setattr(ingest, "BATCH", 6)
    real, place = IndexUpdate._store, tmp_path / "index"

    def going(self: Any, *batch: Any) -> Any:
        if self.writer.store.count() == 12:
            gate.shut()
        return real(self, *batch)

    monkeypatch.setattr(IndexUpdate, "_store", going)
    with pytest.raises(Unavailable, match="No Milvus server answers"):
        index(folder=folder, model=fakes / "first", index=place, store=gate.address, progress=False)
    with pytest.raises(Unavailable):
        search(query=folder / "class-00" / "0.jpg", index=place)
    with pytest.raises(Unavailable):
        lookalike.purge(index=place)
    assert Index(place).generation.complete is False
    gate.open()
    monkeypatch.setattr(IndexUpdate, "_store", real)
    done = index(folder=folder, index=place, progress=False)
    assert (done.unchanged, done.new, done.images) == (12, 12, 24)
    with Index.open(place) as opened:
        ids = [record.id for page in opened.store.scan() for record in page]
    assert len(ids) == len(set(ids)) == 24


def test_the_service_says_503_while_the_server_is_away(
    folder: Path, fakes: Path, tmp_path: Path, gate: Any, home: Path
) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.state import Service

    index(folder=folder, model=fakes / "first", index=tmp_path / "index", store=gate.address, progress=False)
    service = Service(Index.open(tmp_path / "index"), [tmp_path / "runs"])
    client = TestClient(create_app(service), base_url="http://127.0.0.1", raise_server_exceptions=False)
    assert client.get("/health").json() == {"status": "ok", "images": 24}
    assert client.get("/api/v1/info").json()["index"]["store"] == "milvus"
    gate.shut()
    away = client.get("/health")
    assert away.status_code == 503 and int(away.headers["Retry-After"]) > 0
    assert "No Milvus server answers" in away.json()["error"]["message"]
    gate.open()
    assert client.get("/health").status_code == 200
    service.close()
