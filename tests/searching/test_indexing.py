"""An index follows its folder: new, changed, moved, relabeled and deleted images, each once."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core import files
from lookalike.core.database import read_document, write_document
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.searching import Index, index, search
from lookalike.searching import manifest as manifests
from lookalike.searching.ingest import IndexUpdate
from lookalike.store.local import LocalStore
from tests import helpers
from tests.searching.fake import FakeEmbedder


def rows(where: Path) -> dict[str, dict[str, Any]]:
    with Index.open(where) as opened:
        result = [record for part in opened.store.scan() for record in part]
    assert len(result) == len({record.id for record in result})
    return {record.payload["path"]: record.payload for record in result}


def paths(folder: Path) -> set[str]:
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.suffix.lower() == ".jpg"}


def draw(path: Path, seed: int) -> None:
    from PIL import Image

    Image.fromarray(helpers.make_image(seed)).save(path)


def test_an_index_follows_its_folder(folder: Path, model: Path, tmp_path: Path, any_store: str) -> None:
    place = tmp_path / "index"
    first = index(folder=folder, model=model, index=place, store=any_store, progress=False)
    assert (first.new, first.images, first.unreadable) == (24, 24, [])
    assert set(rows(place)) == paths(folder)

    again = index(folder=folder, index=place, progress=False)
    assert (again.new, again.changed, again.unchanged, again.images) == (0, 0, 24, 24)

    from PIL import Image

    Image.fromarray(helpers.make_image(77)).save(folder / "class-00" / "new.jpg")  # new
    Image.fromarray(helpers.make_image(78)).save(folder / "class-00" / "0.jpg")  # changed
    (folder / "class-01" / "1.jpg").unlink()  # deleted
    (folder / "class-02" / "2.jpg").rename(folder / "class-03" / "moved.jpg")  # moved
    os.utime(folder / "class-03" / "3.jpg")  # touched, the same bytes
    before = rows(place)
    third = index(folder=folder, index=place, progress=False)
    assert (third.new, third.changed, third.deleted, third.moved) == (1, 1, 1, 1)
    assert third.unchanged == 21 and third.images == 24
    after = rows(place)
    assert set(after) == paths(folder)
    assert after["class-03/moved.jpg"]["_hash"] == before["class-02/2.jpg"]["_hash"]
    assert after["class-03/moved.jpg"]["label"] == "class-03"
    assert after["class-00/0.jpg"]["content_id"] != before["class-00/0.jpg"]["content_id"]
    hits = search(query=folder / "class-00" / "0.jpg", index=place, k=3)
    assert hits[0].path == "class-00/0.jpg" and hits[0].identical
    assert len(Index.open(place).table) == 24


def test_moved_and_touched_images_are_not_embedded_again(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    (folder / "class-02").rename(folder / "class-09")
    for file in (folder / "class-00").iterdir():
        os.utime(file)

    def forbidden(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing had to be embedded")

    monkeypatch.setattr("lookalike.models.Embedder.encode", forbidden)
    done = index(folder=folder, index=tmp_path / "index", progress=False)
    assert (done.moved, done.unchanged, done.deleted, done.new) == (6, 18, 0, 0)


def test_an_image_that_is_replaced_while_it_is_indexed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the scan and the reading, and while it is read: the next run has the right vector."""
    from lookalike.data import Table

    real, model = Table.open_bytes, FakeEmbedder()
    replaced = {"class-00/0.jpg": 40, "class-01/1.jpg": 41}

    def open_bytes(self: Table, row: int) -> bytes:
        path = str(self.column("path")[row])
        if path == "class-00/0.jpg":
            draw(folder / path, replaced[path])
        data = real(self, row)
        if path == "class-01/1.jpg":
            draw(folder / path, replaced[path])
        return data

    from tests.searching import fake as fakes

    fakes.install(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Table, "open_bytes", open_bytes)
        index(folder=folder, model=model, index=tmp_path / "index", progress=False)  # type: ignore[arg-type]
    done = index(folder=folder, index=tmp_path / "index", progress=False)
    assert done.images == 24 and done.changed >= 1
    with Index(tmp_path / "index") as opened:
        for path in replaced:
            vector = model.encode([folder / path])[0]
            assert opened.store.query(vector, 1)[0].payload["path"] == path, path


def fake(folder: Path, place: Path, store: str = "local") -> Any:
    """Bring an index up to date; every row then shows what its file holds."""
    target = paths(folder)
    done = index(folder=folder, model=FakeEmbedder(), index=place, store=store, calibrate=False, progress=False)  # type: ignore[arg-type]
    assert set(rows(place)) == target, "in the store"
    with Index.open(place) as opened:
        assert set(opened.table.column("path")) == target, "in the table"
        for record in (record for part in opened.store.scan(vectors=True) for record in part):
            [expected] = FakeEmbedder().encode([folder / record.payload["path"]])
            np.testing.assert_allclose(record.vector, expected, atol=1e-6)
    return done


def test_renamed_and_changed_at_once(folder: Path, tmp_path: Path, any_store: str) -> None:
    """Whatever happens to names and contents together, every row shows what its file holds."""
    place, first = tmp_path / "index", folder / "class-00"
    fake(folder, place, any_store)
    (first / "0.jpg").rename(first / "0.JPG")  # only the case
    (folder / "class-03").rename(folder / "Class-03")
    done = fake(folder, place, any_store)
    assert (done.moved, done.new, done.deleted, done.unchanged) == (7, 0, 0, 17)

    (first / "1.jpg").rename(first / "elsewhere.jpg")
    draw(first / "elsewhere.jpg", 91)  # moved, and another image now
    (first / "2.jpg").rename(first / "second.jpg")
    draw(first / "2.jpg", 92)  # moved, and another took its place
    (first / "3.jpg").rename(first / "x")  # two that changed their names with each other
    (first / "4.jpg").rename(first / "3.jpg")
    (first / "x").rename(first / "4.jpg")
    done = fake(folder, place, any_store)
    assert (done.new, done.changed, done.deleted, done.images) == (2, 3, 1, 25)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_that_cannot_be_read_for_a_moment_is_not_deleted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, capsys: pytest.CaptureFixture[str]
) -> None:
    place, real = tmp_path / "index", os.scandir
    (folder / "class-02" / "inner").mkdir()
    draw(folder / "class-02" / "inner" / "x.jpg", 50)
    fake(folder, place)
    (folder / "class-01" / "0.jpg").unlink()
    draw(folder / "class-03" / "new.jpg", 51)

    def guarded(path: Any) -> Any:  # rights do not bind the user that tests may run as
        if isinstance(path, str) and path.endswith("class-02"):
            raise OSError(error, os.strerror(error))
        return real(path)

    def forbidden(self: Any, squares: Any) -> Any:
        raise AssertionError("nothing had to be embedded again")

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", guarded)
        plan = index(folder=folder, index=place, dry_run=True, progress=False)
        assert (plan.deleted, plan.new, plan.images) == (1, 1, 25)
        done = fake(folder, place)
        assert (done.deleted, done.new, done.unchanged, done.images) == (1, 1, 24, 25)
        assert "7 images of folders that cannot be read now kept in the index" in capsys.readouterr().err
        patch.setattr(FakeEmbedder, "vectors", forbidden)
        assert index(folder=folder, index=place, calibrate=False, progress=False).unchanged == 25
    assert fake(folder, place).unchanged == 25
    shutil.rmtree(folder / "class-02")
    assert fake(folder, place).deleted == 7


def test_new_labels_in_a_table_need_no_embedding(folder: Path, model: Path, tmp_path: Path) -> None:
    lines = ["path,label,year"] + [f"{p},{p[:8]},2020" for p in sorted(paths(folder))]
    table = folder / "table.csv"
    table.write_text("\n".join(lines))
    place = tmp_path / "index"
    index(folder=table, model=model, index=place, progress=False)
    table.write_text("\n".join(lines).replace("class-01", "kestrel", 0).replace(",class-01,2020", ",kestrel,1999"))
    done = index(folder=table, index=place, progress=False)
    assert done.relabeled == 6 and done.new == done.changed == 0
    with Index.open(place) as opened:
        assert opened.columns == ["label", "path", "year"]
        assert dict(opened.store.facets("year")) == {"2020": 18, "1999": 6}
        assert dict(opened.store.facets("label"))["kestrel"] == 6
        record = next(r for part in opened.store.scan() for r in part if r.payload["label"] == "kestrel")
        assert record.payload["content_id"] and record.payload["_hash"]


def test_unreadable_images_are_named_and_the_rest_is_indexed(folder: Path, model: Path, tmp_path: Path) -> None:
    for number in range(5):
        (folder / "class-00" / f"bad{number}.jpg").write_bytes(b"\xff\xd8 not an image" * number)
    place = tmp_path / "index"
    done = index(folder=folder, model=model, index=place, progress=False)
    assert done.images == 24 and len(done.unreadable) == 5
    text = str(done)
    assert text.count("Unreadable ") == 3 and "and 2 more" in text
    assert done.unreadable_file is not None and len(done.unreadable_file.read_text().splitlines()) == 5
    assert json.loads(json.dumps(done.to_json(), default=files.to_json))["unreadable"][0]["reason"]
    # An image that went bad after it was indexed is taken out.
    (folder / "class-03" / "0.jpg").write_bytes(b"gone")
    assert index(folder=folder, index=place, progress=False).images == 23
    for bad in [*folder.glob("class-00/bad*.jpg"), folder / "class-03" / "0.jpg"]:
        bad.unlink()
    assert index(folder=folder, index=place, progress=False).unreadable == []
    assert not (place / "unreadable.txt").exists()


@pytest.mark.parametrize("bad", [(0, 1, 2, 3), (2, 3), (20, 21, 22, 23), (3, 8, 9, 10, 11, 23)])
def test_every_vector_belongs_to_its_image(
    folder: Path, tmp_path: Path, bad: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images go through the model in one stream, whatever part of a batch, or all of it, cannot be read."""
    monkeypatch.setattr("lookalike.searching.ingest.BATCH", 2)
    files = sorted(folder.rglob("*.jpg"))
    for number in bad:
        files[number].write_bytes(b"no image")
    model = FakeEmbedder()
    done = index(folder=folder, model=model, index=tmp_path / "index", progress=False)  # type: ignore[arg-type]
    assert done.new == 24 - len(bad) and len(done.unreadable) == len(bad)
    with Index.open(tmp_path / "index") as opened:
        for record in (record for part in opened.store.scan(vectors=True) for record in part):
            [expected] = model.encode([folder / record.payload["path"]])
            np.testing.assert_allclose(record.vector, expected, atol=1e-6)


def test_nothing_is_written_into_the_image_folder(folder: Path, model: Path, tmp_path: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]}
    for file in [*folder.rglob("*"), folder]:
        file.chmod(0o555 if file.is_dir() else 0o444)
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    assert {p: p.stat().st_mtime_ns for p in [folder, *folder.rglob("*")]} == before
    for file in [folder, *folder.rglob("*")]:
        file.chmod(0o755)
    with pytest.raises(LookalikeError, match="inside the image folder"):
        index(folder=folder, model=model, index=folder / "index", progress=False)


def test_an_index_knows_its_model(
    folder: Path, models: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "index"
    index(folder=folder, model=models / "first", index=place, progress=False)
    message = r"This index was made with model \w{4} \(first\), not \w{4} \(second\): run `lookalike index FOLDER"
    with pytest.raises(LookalikeError, match=message):
        index(folder=folder, model=models / "second", index=place, progress=False)
    with pytest.raises(LookalikeError, match=message):
        search(query=folder / "class-00" / "0.jpg", index=place, model=models / "second")
    assert len(search(query=folder / "class-00" / "0.jpg", index=place, model=models / "first", k=3)) == 3

    # Without a name, another model's vectors go beside the old ones, and answer when they are complete.
    one = index(folder=folder, model=models / "first", progress=False)
    two = index(folder=folder, model=models / "second", progress=False)
    assert one.path == two.path and two.new == 24
    with Index.open(folder) as opened:
        assert opened.generation.number == 2 and opened.generation.dim == 32
        assert opened.manifest.of_model(Index.open(place).generation.model.fingerprint).number == 1
    back = index(folder=folder, model=models / "first", progress=False)
    assert back.unchanged == 24
    with Index.open(folder) as opened:
        assert opened.generation.number == 1


def test_another_decoder_makes_all_vectors_anew(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from lookalike.data.decoding import DECODER

    place, query = tmp_path / "index", folder / "class-00" / "0.jpg"
    index(folder=folder, model=model, index=place, progress=False)
    number, _, libraries = DECODER.partition("/")
    monkeypatch.setattr("lookalike.data.decoding.DECODER", f"{number}/pillow-99")
    assert len(search(query=query, index=place, k=3)) == 3, "other libraries: a warning"
    assert "scores may differ" in capfd.readouterr().err
    monkeypatch.setattr("lookalike.data.decoding.DECODER", f"99/{libraries}")
    with pytest.raises(LookalikeError, match=r"decoded differently .* `lookalike index .*` embeds"):
        search(query=query, index=place)

    # Stopped half way, the old vectors still stand; the next run goes on and takes their place.
    with monkeypatch.context() as patch:
        patch.setattr("lookalike.searching.ingest.IndexUpdate.run", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            index(folder=folder, index=place, progress=False)
    assert generations(place) == [(1, True), (2, False)]
    done = index(folder=folder, index=place, progress=False)
    assert done.new == 24 and done.model.endswith("(first)")
    assert generations(place) == [(2, True)] and [p.name for p in (place / "generations").iterdir()] == ["2"]
    assert search(query=query, index=place, k=3)[0].identical
    assert index(folder=folder, index=place, progress=False).unchanged == 24


def generations(place: Path) -> list[tuple[int, bool]]:
    return [(g.number, g.complete) for g in manifests.read(place).generations]


def test_a_dry_run_changes_nothing(folder: Path, model: Path, tmp_path: Path) -> None:
    place = tmp_path / "index"
    plan = index(folder=folder, model=model, index=place, dry_run=True, progress=False)
    assert plan.new == 24 and not place.exists()
    assert str(plan).splitlines() == ["Images     24 new", "Nothing was indexed; leave out --dry-run to do it."]
    index(folder=folder, model=model, index=place, progress=False)
    (folder / "class-00" / "0.jpg").unlink()
    plan = index(folder=folder, index=place, dry_run=True, progress=False)
    assert (plan.deleted, plan.unchanged) == (1, 23)
    assert len(rows(place)) == 24


def test_bad_input_gives_a_one_line_error_and_leaves_nothing(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(match: str, **options: Any) -> None:
        with pytest.raises(LookalikeError, match=match):
            index(**{"folder": folder, "model": model, "index": tmp_path / "index", "progress": False, **options})
        assert not (tmp_path / "index").exists()

    refuse("does not exist: give a folder", folder=tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    refuse("images", folder=tmp_path / "empty")
    refuse("did you mean `local`", store="locale")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.jpg").write_bytes(b"nothing")
    with pytest.raises(LookalikeError, match="None of the 1 images could be read"):
        index(folder=tmp_path / "bad", model=model, index=tmp_path / "other", progress=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")
    with pytest.raises(LookalikeError, match="neither an index nor empty"):
        index(folder=folder, model=model, index=tmp_path / "full", progress=False)
    monkeypatch.setattr("lookalike.core.folders.network_drive", lambda path: "nfs4")
    refuse("network drive")


def test_a_full_disk_is_reported_and_what_was_stored_stays(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "index"
    monkeypatch.setattr(files, "free_bytes", lambda path: 1000)
    with pytest.raises(LookalikeError, match=r"only 1\.0 kB are free"):
        index(folder=folder, model=model, index=place, progress=False)
    monkeypatch.undo()
    monkeypatch.setattr("lookalike.searching.ingest.BATCH", 8)
    real, calls = LocalStore._write_vectors, []

    def full(self: Any, path: Path, position: int, vectors: np.ndarray) -> None:
        calls.append(1)
        with files.disk_errors(path):
            real(self, path, position, vectors[: len(vectors) // 2] if len(calls) == 3 else vectors)
            if len(calls) == 3:  # half of the third batch fits
                raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(LocalStore, "_write_vectors", full)
    with pytest.raises(LookalikeError, match="is full"):
        index(folder=folder, model=model, index=place, progress=False)
    monkeypatch.setattr(LocalStore, "_write_vectors", real)
    assert len(rows(place)) == 16
    done = index(folder=folder, index=place, progress=False)
    assert (done.unchanged, done.new, done.images) == (16, 8, 24)
    assert set(rows(place)) == paths(folder)


def test_two_writers_at_once(folder: Path, model: Path, tmp_path: Path) -> None:
    place = tmp_path / "index"
    index(folder=folder, model=model, index=place, progress=False)
    with hold(place / ".lock", "x"), pytest.raises(LookalikeError, match="in use by another process"):
        index(folder=folder, index=place, progress=False)
    helpers.make_images(folder / "more", classes=1, images=2)
    with Index.open(place) as reader:
        assert reader.store.count() == 24
        index(folder=folder, index=place, progress=False)
        assert reader.store.count() == 26, "a reader follows"


@pytest.mark.parametrize("what", ["lookalike.db", "generations/1/vectors-1.f32", "generations/1/model/config.json"])
def test_a_truncated_index_is_reported_in_one_line(made: Any, tmp_path: Path, what: str) -> None:
    images, place = made
    shutil.copytree(place, tmp_path / "broken")
    file = tmp_path / "broken" / what
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(LookalikeError) as error:
        search(query=images / "class-00" / "0.jpg", index=tmp_path / "broken")
    assert "\n" not in str(error.value) and "broken" in str(error.value)


def test_an_index_that_lost_rows_says_so_and_is_repaired(made: Any, tmp_path: Path, model: Path) -> None:
    images, place = made
    shutil.copytree(place, tmp_path / "lost")
    (tmp_path / "lost" / "generations" / "1" / "vectors-1.f32").write_bytes(b"")
    with pytest.raises(LookalikeError, match="damaged"):
        search(query=images / "class-00" / "0.jpg", index=tmp_path / "lost")
    assert index(folder=images, index=tmp_path / "lost", progress=False).new == 61
    assert len(search(query=images / "class-00" / "0.jpg", index=tmp_path / "lost", k=5)) == 5


def test_an_index_of_a_newer_version_is_refused(made: Any, tmp_path: Path) -> None:
    shutil.copytree(made[1], tmp_path / "newer")
    document = read_document(tmp_path / "newer", "manifest")
    write_document(tmp_path / "newer", "manifest", {**document, "format": 99})
    with pytest.raises(LookalikeError, match="update lookalike"):
        Index.open(tmp_path / "newer")


def test_names_that_are_not_utf8_boxes_and_shards(tmp_path: Path, model: Path) -> None:
    """Whatever the table says of where an image is, its row finds it again."""
    import tarfile

    from lookalike.data import decode

    folder = helpers.make_images(tmp_path / "images", classes=1, images=2)
    odd = os.fsencode(folder / "class-00") + b"/caf\xe9.jpg"
    (folder / "class-00" / "0.jpg").rename(os.fsdecode(odd))
    index(folder=folder, model=model, index=tmp_path / "one", progress=False)
    with Index.open(tmp_path / "one") as opened:
        records = [record for part in opened.store.scan() for record in part]
        assert len(records) == 2
        assert Path(os.fsdecode(odd)).read_bytes() in [opened.open_bytes(record) for record in records]

    (folder / "boxes.csv").write_text(
        "path,label,x_1,y_1,x_2,y_2\nclass-00/1.jpg,left,0,0,32,48\nclass-00/1.jpg,right,32,0,64,48\n"
    )
    done = index(folder=folder / "boxes.csv", model=model, index=tmp_path / "two", progress=False)
    assert done.images == 2
    right = decode(folder / "class-00" / "1.jpg", box=(32, 0, 64, 48))
    hits = search(query=right, index=tmp_path / "two", k=2)
    assert (
        hits[0].label == "right" and hits[0].score > 0.99 and hits[0].payload["_ratio"] == pytest.approx(32 / 48, 0.01)
    )

    with tarfile.open(tmp_path / "shard-000.tar", "w") as tar:
        tar.add(folder / "class-00" / "1.jpg", "a/1.jpg")
    index(folder=tmp_path / "shard-000.tar", model=model, index=tmp_path / "three", progress=False)
    with Index.open(tmp_path / "three") as opened:
        record = next(iter(opened.store.scan()))[0]
        assert opened.open_bytes(record) == (folder / "class-00" / "1.jpg").read_bytes()


KILLED = """
import sys
import time
from lookalike.searching import index, ingest
from lookalike.searching import manifest as manifests
from lookalike.searching.ingest import IndexUpdate
from lookalike.store.local import LocalStore
from tests.searching.fake import FakeEmbedder
ingest.BATCH = 4
real = IndexUpdate._store
def told(self, *batch):
    out = real(self, *batch)
    print(self.writer.store.count(), flush=True)
    time.sleep(0.02)
    return out
IndexUpdate._store = told
index(folder=sys.argv[1], model=FakeEmbedder(), index=sys.argv[2], store=sys.argv[3], progress=False)
"""


def test_kill_9_while_indexing(tmp_path: Path, any_store: str) -> None:
    """Killed in the middle, three times: nothing acknowledged is lost, nothing is there twice, the next run goes on."""
    folder = helpers.make_images(tmp_path / "images", classes=6, images=8)
    place = tmp_path / "index"
    acknowledged = 0
    for kill_after in (1, 3, 2):
        command = [sys.executable, "-c", KILLED, str(folder), str(place), any_store]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=helpers.ROOT)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(kill_after)]
        time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        lines += process.stdout.read().split()
        process.wait()
        counts = [int(line) for line in lines if line.strip().isdigit()]
        assert counts and min(counts) > acknowledged, "a run goes on where the one before stopped"
        acknowledged = max(counts)
        result = rows(place)
        assert acknowledged <= len(result) < 48
        assert not Index.open(place).generation.complete
    done = index(folder=folder, model=FakeEmbedder(), index=place, progress=False)  # type: ignore[arg-type]
    assert done.unchanged >= acknowledged and done.new + done.unchanged == 48
    assert set(rows(place)) == paths(folder) and Index.open(place).generation.complete


def test_ctrl_c_reports_what_is_stored(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lookalike.searching.ingest.BATCH", 10)
    real = IndexUpdate._store

    def stopped(self: Any, *batch: Any) -> Any:
        if self.writer.store.count() >= 10:
            raise KeyboardInterrupt
        return real(self, *batch)

    monkeypatch.setattr(IndexUpdate, "_store", stopped)
    with pytest.raises(
        KeyboardInterrupt, match=r"Stopped\. Indexed so far: 10 images; run the same command to continue\."
    ):
        index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    assert "Stopped" not in capsys.readouterr().err, "the command line prints it, once"
