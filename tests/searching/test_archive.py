"""A restore that is killed leaves nothing that the next one, or `purge`, does not find."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike.core import database, files, folders
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.locks import Locked
from lookalike.searching import Index, archive, index
from lookalike.searching import manifest as manifests
from lookalike.searching.index_folder import open_store
from lookalike.searching.indexing import update_index
from lookalike.store import store_class
from lookalike.store.local import LocalStore
from tests import helpers
from tests.kills import killed as killed_at
from tests.searching import fake

READ_TABLES = archive.READ_TABLES
KILLED = """
import os, signal, sys
from lookalike.searching import archive
real = archive._check
def dying(*args):
    real(*args)
    os.kill(os.getpid(), signal.SIGKILL)
archive.copy_rows = archive._check = dying
archive.restore(file=sys.argv[1], index=sys.argv[2], store=sys.argv[3], progress=False)
"""


STEPS = [3, pytest.param(1, marks=pytest.mark.slow)]  # between the changes before which a process is killed


@pytest.fixture
def backup_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A backup of twelve images; tables are not read in a process of their own but where a test is about that."""
    fake.install(monkeypatch)
    monkeypatch.setattr(archive, "READ_TABLES", "")
    images = helpers.make_images(tmp_path / "images", classes=3, images=4)
    model: Any = fake.FakeEmbedder()
    index(folder=images, model=model, index=tmp_path / "index", progress=False)
    return lookalike.backup(index=tmp_path / "index", out=tmp_path / "kept.tar", progress=False).path


def killed(backup_file: Path, place: Path | str, store: str) -> None:
    command = [sys.executable, "-c", KILLED, str(backup_file), str(place), store]
    done = subprocess.run(command, cwd=helpers.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_restoring_after_a_kill_and_purging_what_it_left(
    backup_file: Path, tmp_path: Path, home: Path, any_store: str
) -> None:
    place = tmp_path / "again"
    killed(backup_file, place, any_store)
    [part] = archive.leftovers(place)
    stale = shutil.copytree(part / "generations" / "1", tmp_path / "stale")
    assert part.parent == tmp_path and not place.exists()
    assert archive.leftovers(tmp_path / "agai") == archive.leftovers(tmp_path / "again.b") == []
    plan = lookalike.purge(index=place, dry_run=True)
    assert plan.bytes > 5_000 and plan.images == 0 and part.exists()

    made = lookalike.restore(file=backup_file, index=place, store=any_store, progress=False)
    assert made.images == 12 and archive.leftovers(place) == [] and Index.open(place).store.count() == 12
    if any_store.startswith("milvus"):
        with pytest.raises(LookalikeError):
            store_class(any_store).open(str(stale)).count()

    shutil.copytree(place, tmp_path / ".again.abcdefgh.part") if any_store == "local" else killed(
        backup_file, "by name", any_store
    )
    lookalike.purge(index=place if any_store == "local" else "by name")
    assert archive.leftovers(place) == [] and not list(tmp_path.rglob(".*.part"))
    with pytest.raises(LookalikeError, match="There is no index"):
        lookalike.purge(index="by name")


def test_a_restore_killed_before_its_first_generation_is_purged_and_no_index(home: Path) -> None:
    part = folders.indexes() / ".copy.abcdefgh.part"
    part.mkdir()
    database.write_document(part, manifests.NAME, {"name": "copy"})
    assert lookalike.searching.indexes() == []
    lookalike.purge(index="copy")
    assert not part.exists()


def test_a_restore_that_is_still_at_work_is_not_swept(
    backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "again"
    real = archive._check

    def during(*args: Any) -> None:
        for other in (lookalike.purge, lambda index: lookalike.restore(file=backup_file, index=index, progress=False)):
            with pytest.raises(Locked, match="Restoring `again`"):
                other(index=place)
        real(*args)

    monkeypatch.setattr(archive, "_check", during)
    assert lookalike.restore(file=backup_file, index=place, progress=False).images == 12
    assert Index.open(place).store.count() == 12


def test_a_leftover_whose_server_is_away_is_reported(
    backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It does not stand in the way of a restore, but `purge` does not claim to have deleted it."""
    place, part = tmp_path / "again", tmp_path / ".again.abcdefgh.part"
    shutil.copytree(tmp_path / "index", part)

    def away(path: Path) -> None:
        raise Unavailable("No server answers.")

    with monkeypatch.context() as patch:
        patch.setattr(archive, "remove_generations", away)
        assert lookalike.restore(file=backup_file, index=place, progress=False).images == 12
        assert "cannot be deleted: No server answers." in capfd.readouterr().err
        with pytest.raises(Unavailable):
            lookalike.purge(index=place)
        assert part.exists() and Index.open(place).store.count() == 12
    lookalike.purge(index=place)
    assert not part.exists() and not place.exists()


def test_parts_are_distinguished_by_whole_names(tmp_path: Path) -> None:
    for name in (".a.xxxxxxxx.part", ".a.b.xxxxxxxx.part", ".aa.xxxxxxxx.part", ".a.part", ".A.xxxxxxxx.part"):
        (tmp_path / name).mkdir()
    (tmp_path / ".a.yyyyyyyy.part").write_bytes(b"a file's")
    assert [part.name for part in files.leftover_parts(tmp_path / "a")] == [".a.xxxxxxxx.part"]
    assert [part.name for part in files.leftover_parts(tmp_path / "a.b")] == [".a.b.xxxxxxxx.part"]
    assert files.leftover_parts(tmp_path / "none" / "a") == []


def test_the_space_of_a_leftover_is_used(backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = tmp_path / ".again.abcdefgh.part"
    shutil.copytree(tmp_path / "index", part)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_000 if part.exists() else 10**9)
    assert lookalike.restore(file=backup_file, index=tmp_path / "again", progress=False).images == 12
    assert Index(tmp_path / "again").generation.complete


def members(backup_file: Path) -> dict[str, bytes]:
    with tarfile.open(backup_file) as tar:
        return {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]


def write(path: Path, parts: dict[str, bytes], **odd: Any) -> Path:
    """A backup of these members, whose list of hashes is made to fit."""
    document = json.loads(parts["backup.json"])
    document["sums"] = {n: hashlib.sha256(data).hexdigest() for n, data in parts.items() if n != "backup.json"}
    with tarfile.open(path, "w") as tar:
        for name, data in (parts | {"backup.json": json.dumps(document | odd).encode()}).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "name",
    ["../evil", "/tmp/evil", "generations/1/model/../../evil", "generations/1/other", "generations/x/table.parquet"],
)
def test_a_planted_member_is_refused(backup_file: Path, tmp_path: Path, name: str) -> None:
    parts = members(backup_file)
    assert lookalike.restore(file=write(tmp_path / "good.tar", parts), index=tmp_path / "good", progress=False)
    bad = write(tmp_path / "bad.tar", parts | {name: b"x"})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LookalikeError, match="not a complete backup"):
        lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    assert sorted(tmp_path.rglob("*")) == before and not Path("/tmp/evil").exists()


@pytest.mark.parametrize("name", ["/{0}/evil", "../../evil", "..", ".hidden", "", "~/evil", "a/../../evil", "a\x1b[2J"])
def test_a_name_in_a_backup_leads_nowhere(backup_file: Path, tmp_path: Path, name: str) -> None:
    parts = members(backup_file)
    document = json.loads(parts["backup.json"])
    document["manifest"]["name"] = name.format(tmp_path)
    bad = write(tmp_path / "bad.tar", parts | {"backup.json": json.dumps(document).encode()})
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(LookalikeError, match="choose one with --index"):
        lookalike.restore(file=bad, progress=False)
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in before and path.name != "indexes"] == []
    assert lookalike.restore(file=bad, index=tmp_path / "good", progress=False).images == 12


@pytest.mark.parametrize("root", ["/", "~", "images"])
def test_a_backup_does_not_choose_what_is_served(backup_file: Path, tmp_path: Path, root: str) -> None:
    parts = members(backup_file)
    for key in ("source", "root"):
        document = json.loads(parts["backup.json"])
        place = document["manifest"] if key == "source" else document["manifest"]["generations"][0]
        place[key] = str(Path(root).expanduser())
        bad = write(tmp_path / "bad.tar", parts | {"backup.json": json.dumps(document).encode()})
        with pytest.raises(LookalikeError, match="name their folder with --folder"):
            lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
        lookalike.restore(file=bad, index=tmp_path / key, folder=tmp_path / "images", progress=False)
        with Index(tmp_path / key) as index:
            assert index.root == tmp_path / "images" and index.open_bytes({"path": "class-00/0.jpg"})


@pytest.mark.parametrize("kind", ["private", "empty", "missing", "source"])
def test_a_backup_does_not_choose_a_private_folder(backup_file: Path, tmp_path: Path, kind: str) -> None:
    """Of a folder with files of other bytes, whatever their names, nothing is served unless the user names it."""
    private, parts = tmp_path / "private", members(backup_file)
    if kind != "missing":
        (private / "class-00").mkdir(parents=True)
    if kind == "private":
        image = tmp_path / "images" / "class-00" / "0.jpg"
        (private / "class-00" / "0.jpg").write_bytes(image.read_bytes() + b"0")
        shutil.copy2(tmp_path / "images" / "class-00" / "1.jpg", private / "class-00")  # one is known to everybody
    document = json.loads(parts["backup.json"])
    document["manifest"]["source"] = str(private)
    if kind != "source":
        document["manifest"]["generations"][0]["root"] = str(private)
    bad = write(tmp_path / "bad.tar", parts | {"backup.json": json.dumps(document).encode()})
    with pytest.raises(LookalikeError, match=r"The backup says .* name their folder with --folder"):
        lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    assert not (tmp_path / "bad").exists()
    assert lookalike.restore(file=bad, index=tmp_path / "named", folder=private, progress=False).images == 12


def test_an_own_backup_needs_no_folder(backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that were deleted, or copied back with other times, are no hindrance; nor is a change that is known."""
    images = tmp_path / "images"
    (images / "class-00" / "0.jpg").unlink()
    (images / "class-01" / "0.jpg").write_bytes((images / "class-01" / "0.jpg").read_bytes())
    lookalike.purge(index=tmp_path / "index")
    assert lookalike.restore(file=backup_file, index=tmp_path / "again", progress=False).images == 12
    (images / "class-01" / "0.jpg").write_bytes(b"another")
    with pytest.raises(LookalikeError, match=r"`class-01/0.jpg` there is another file"):
        lookalike.restore(file=backup_file, index=tmp_path / "twice", progress=False)
    lookalike.restore(file=backup_file, index="by name", folder=images, progress=False)
    assert lookalike.restore(file=backup_file, index=tmp_path / "twice", progress=False).images == 12


@pytest.mark.skipif(sys.platform != "linux", reason="files with holes")
def test_a_backup_with_holes_does_not_fill_the_disk(backup_file: Path, tmp_path: Path) -> None:
    parts = members(backup_file)
    name, size = "generations/1/vectors-9.f32", 120_000 * 512
    document = json.loads(parts["backup.json"])
    document["sums"][name] = hashlib.sha256(bytes(size)).hexdigest()
    bad = tmp_path / "holes.tar"
    with tarfile.open(bad, "w") as tar:
        for member_name, data in (parts | {"backup.json": json.dumps(document).encode()}).items():
            member = tarfile.TarInfo(member_name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        header = tarfile.TarInfo(name)
        header.size = size
        tar.fileobj.write(header.tobuf())  # type: ignore[union-attr]
        tar.fileobj.seek(size, 1)  # type: ignore[union-attr]
        tar.offset += 512 + size
    assert bad.stat().st_size > size > 40 * bad.stat().st_blocks * 512
    with pytest.raises(LookalikeError, match="not a complete backup"):
        lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    assert archive._real_size(backup_file) == backup_file.stat().st_size


@pytest.mark.parametrize("change", ["DROP TABLE rows_1", "UPDATE store SET version = version + 1"])
def test_an_index_without_rows_or_vectors_is_called_damaged(backup_file: Path, tmp_path: Path, change: str) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "index" / "lookalike.db")) as database:
        database.execute(change)
        database.commit()
    with pytest.raises(LookalikeError, match="damaged"):
        lookalike.backup(index=tmp_path / "index", out=tmp_path / "b.lookalike", progress=False)
    assert not (tmp_path / "b.lookalike").exists()


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_headers_of_a_sparse_file_are_not_read(tmp_path: Path, home: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 3 << 30
    for name in ("sparse.tar", "sparse.lookalike"):
        with (tmp_path / name).open("wb") as file:
            file.write(header.tobuf(tarfile.GNU_FORMAT))
            file.truncate(header.size + 2048)
    tracemalloc.start()
    with pytest.raises(LookalikeError, match="not a complete backup"):
        lookalike.restore(file=tmp_path / "sparse.lookalike", index=tmp_path / "bad", progress=False)
    with pytest.raises(LookalikeError, match="damaged"):
        lookalike.read_table(tmp_path / "sparse.tar")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000


def test_no_module_of_the_current_folder_is_imported(
    backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is sent a folder with a backup in it may stand in that folder."""
    from lookalike.service.decode_child import decode_in_child

    here = tmp_path / "here"
    here.mkdir()
    for name in ("contextlib", "pyarrow", "numpy", "json", "PIL", "lookalike"):
        (here / f"{name}.py").write_text("open('imported', 'w')")
    monkeypatch.chdir(here)
    monkeypatch.setattr(archive, "READ_TABLES", READ_TABLES)
    assert lookalike.restore(file=backup_file, index=tmp_path / "copy", progress=False).images == 12
    image = io.BytesIO()
    Image.new("RGB", (64, 48)).save(image, "TIFF")
    assert decode_in_child(image.getvalue(), None, 32, 64)[0].shape == (48, 64, 3)
    assert not (here / "imported").exists()


def test_planted_tables_triggers_links_and_holes_are_refused(
    backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = members(backup_file)
    for number, statement in enumerate(
        (
            "CREATE VIEW v AS SELECT 1",
            "CREATE TRIGGER t AFTER DELETE ON rows_1 BEGIN SELECT 1; END",
            "DELETE FROM rows_1",
        )
    ):
        database = tmp_path / f"{number}.db"
        database.write_bytes(parts["lookalike.db"])
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
            connection.execute(statement)
            connection.commit()
        bad = write(tmp_path / f"{number}.tar", parts | {"lookalike.db": database.read_bytes()})
        with pytest.raises(LookalikeError, match="not a complete backup"):
            lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    monkeypatch.setattr(archive, "READ_TABLES", READ_TABLES)
    damaged = parts["generations/1/table.parquet"]
    bad = write(tmp_path / "table.tar", parts | {"generations/1/table.parquet": damaged[:100] + damaged[200:]})
    with pytest.raises(LookalikeError, match="not a complete backup"):
        lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    with tarfile.open(tmp_path / "link.tar", "w") as tar:
        link = tarfile.TarInfo("lookalike.db")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    header = tarfile.TarInfo("lookalike.db")
    header.size = 10**12
    (tmp_path / "huge.tar").write_bytes(header.tobuf() + bytes(1024))
    for bad in (tmp_path / "link.tar", tmp_path / "huge.tar"):
        with pytest.raises(LookalikeError, match="not a complete backup"):
            lookalike.restore(file=bad, index=tmp_path / "bad", progress=False)
    assert not (tmp_path / "bad").exists()


def test_a_table_that_fills_the_memory_and_a_deep_document_are_refused(
    backup_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts, bomb = members(backup_file), tmp_path / "bomb.parquet"
    smaller = READ_TABLES.replace("1 << 29", "1 << 28")  # to be quick
    assert smaller != READ_TABLES
    monkeypatch.setattr(archive, "READ_TABLES", smaller)
    value = pa.array(["x" * 100_000_000])
    with pq.ParquetWriter(bomb, pa.schema([("a", pa.string())]), compression="zstd", use_dictionary=False) as writer:
        for _ in range(5):
            writer.write_table(pa.table({"a": value}))
    assert bomb.stat().st_size < 5_000_000
    bad = write(tmp_path / "bomb.tar", parts | {"generations/1/table.parquet": bomb.read_bytes()})
    deep = tmp_path / "deep.tar"
    with tarfile.open(deep, "w") as tar:
        for name, data in (parts | {"backup.json": b"[" * 200_000}).items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    for file in (bad, deep):
        with pytest.raises(LookalikeError, match="not a complete backup"):
            lookalike.restore(file=file, index=tmp_path / "bad", progress=False)
    assert not (tmp_path / "bad").exists()


def test_a_restore_connects_to_no_server_unrequested(backup_file: Path, tmp_path: Path) -> None:
    parts = members(backup_file)
    document = json.loads(parts["backup.json"])
    document["manifest"]["generations"][0]["store"] = "milvus://203.0.113.1:19530"
    bad = write(tmp_path / "server.tar", parts | {"backup.json": json.dumps(document).encode()})
    assert lookalike.restore(file=bad, index=tmp_path / "here", progress=False).images == 12
    assert Index(tmp_path / "here").generation.store == "local"


def test_a_backup_is_one_state_while_rows_are_written(backup_file: Path, tmp_path: Path) -> None:
    """Rows come, go and are compacted all the while; every backup is whole."""
    place = tmp_path / "index"
    stop = threading.Event()

    def write_on() -> None:
        store = open_store(place, manifests.read(place).generation(), write=True)
        rng = np.random.default_rng(0)
        for number in itertools.count():
            ids = [f"more/{number}/{i}" for i in range(30)]
            store.upsert(ids, rng.normal(size=(30, 48)).astype(np.float32), [{"label": "more"}] * 30)
            store.delete(ids)
            store.build()
            if stop.is_set():
                store.close()
                return

    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        backups = [
            lookalike.backup(index=place, out=tmp_path / f"during{number}.tar", progress=False) for number in range(3)
        ]
    finally:
        stop.set()
        writer.join()
    for number, made in enumerate(backups):
        there = lookalike.restore(file=made.path, index=tmp_path / f"again{number}", progress=False)
        assert there.images == made.images and made.images in (12, 42)
        with Index(there.path) as opened:
            assert LocalStore.verify(opened.store) == []  # type: ignore[arg-type]


def test_killed_at_every_change_of_a_switch(backup_file: Path, tmp_path: Path) -> None:
    place, images = tmp_path / "index", tmp_path / "images"
    model: Any = fake.FakeEmbedder(1)
    update_index(images.resolve(), place, model=model, live=False, progress=False)
    strike = 1
    while killed_at(strike, lambda: lookalike.switch(index=place, to=2)):
        assert Index(place).generation.number in (1, 2) and Index(place).store.count() == 12
        lookalike.switch(index=place, to=1)
        strike += 1
    assert Index(place).generation.number == 2 and strike > 2


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_change_of_a_backup(backup_file: Path, tmp_path: Path, step: int) -> None:
    """Half a backup has another name, the next attempt clears it away, and the index is as it was."""
    place, out, strike = tmp_path / "index", tmp_path / "out" / "again.tar", 1
    out.parent.mkdir()
    while killed_at(strike, lambda: lookalike.backup(index=place, out=out, progress=False)):
        if out.exists():
            assert lookalike.restore(file=out, index=tmp_path / f"at {strike}", progress=False).images == 12
            out.unlink()
        strike += step
    assert strike > 4 and lookalike.verify(index=place, progress=False).images == 12
    out.unlink()
    time.sleep(1.1)  # a folder that was just made may not be locked yet
    lookalike.backup(index=place, out=out, progress=False)
    assert list(out.parent.iterdir()) == [out], "nothing is left of those that were killed"


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_change_of_a_purge(backup_file: Path, tmp_path: Path, step: int) -> None:
    for strike in itertools.count(1, step):
        place = shutil.copytree(tmp_path / "index", tmp_path / f"{strike}")
        if not killed_at(strike, lambda place=place: lookalike.purge(index=place)):  # type: ignore[misc]
            break
        if place.exists() and any(place.iterdir()):  # an empty folder may be anybody's
            lookalike.purge(index=place)
        assert not place.exists() or not any(place.iterdir()), strike
    assert strike > 3 and not place.exists()


def test_verify_finds_what_is_damaged(backup_file: Path, tmp_path: Path) -> None:
    place = tmp_path / "index"
    assert lookalike.verify(index=place, progress=False).recall == 1.0
    vectors = place / "generations" / "1" / "vectors-1.f32"
    raw = vectors.read_bytes()
    vectors.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    with pytest.raises(LookalikeError, match="Vectors 0 to 11 of"):
        lookalike.verify(index=place, progress=False)
    vectors.write_bytes(raw)
    fake.FakeEmbedder(3).save_pretrained(place / "generations" / "1" / "model")
    with pytest.raises(LookalikeError, match=r"model/config.json` is damaged"):
        lookalike.verify(index=place, progress=False)


def test_an_index_of_a_pre_release_is_made_again(backup_file: Path, tmp_path: Path) -> None:
    place = tmp_path / "old"
    (place / "generations" / "1" / "store").mkdir(parents=True)
    (place / "index.json").write_text('{"format": 1, "kind": "index"}')
    with pytest.raises(LookalikeError, match="made by a pre-release; run `lookalike index` again"):
        Index.open(place)
    model: Any = fake.FakeEmbedder()
    assert index(folder=tmp_path / "images", model=model, index=place, progress=False).images == 12
    assert not (place / "index.json").exists() and Index.open(place).store.count() == 12


@pytest.mark.parametrize("step", [15, pytest.param(7, marks=pytest.mark.slow)])
def test_what_a_killed_first_run_left_is_purged_or_overwritten(backup_file: Path, tmp_path: Path, step: int) -> None:
    model: Any = fake.FakeEmbedder()
    strike = 0
    while True:
        strike += step
        place = tmp_path / f"index{strike}"

        def make(place: Path = place) -> None:
            update_index((tmp_path / "images").resolve(), place, model=model, progress=False)

        ended = not killed_at(strike, make)
        if ended:
            break
        if place.exists() and any(place.iterdir()):
            copy = shutil.copytree(place, tmp_path / f"copy{strike}")
            lookalike.purge(index=copy)
            assert not copy.exists()
        make()
        assert Index.open(place).store.count() == 12
    assert strike > 20
