"""An index from vectors that `embed` computed: as the index of the images, with no image read, and idempotent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike import backup, embed, restore
from lookalike.core.errors import LookalikeError
from lookalike.core.storage import location
from lookalike.data.table import Table
from lookalike.searching import Index, index, search
from tests import helpers


def rows(where: Path) -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    with Index.open(where) as opened:
        records = [record for part in opened.store.scan(vectors=True) for record in part]
    return {record.id: (record.payload, np.asarray(record.vector)) for record in records}


def test_an_index_from_vectors_equals_that_of_the_images(
    folder: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_equal(folder, model, tmp_path, "local", monkeypatch)


@pytest.mark.slow
def test_it_does_in_every_store(
    folder: Path, model: Path, tmp_path: Path, any_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_equal(folder, model, tmp_path, any_store, monkeypatch)


def check_equal(folder: Path, model: Path, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "class-01" / "2.jpg").write_bytes(b"broken")
    own = index(folder=folder, model=model, index=tmp_path / "own", store="local", progress=False)
    embed(source=folder, out=tmp_path / "v", model=model, block=7, progress=False)

    def read(self: Table, row: int) -> bytes:
        raise AssertionError("an image is read")

    with monkeypatch.context() as patch:
        patch.setattr(Table, "open_bytes", read)
        done = index(vectors=tmp_path / "v", index=tmp_path / "index", store=store, calibrate=False, progress=False)
        again = index(vectors=tmp_path / "v", index=tmp_path / "index", calibrate=False, progress=False)
    assert (done.new, done.images) == (own.new, own.images) == (23, 23)
    assert [path for path, _ in done.unreadable] == ["class-01/2.jpg"]
    assert (again.new, again.changed, again.unchanged, again.images) == (0, 0, 23, 23)
    ours, theirs = rows(tmp_path / "index"), rows(tmp_path / "own")
    assert ours.keys() == theirs.keys()
    for name, (payload, vector) in ours.items():
        assert payload == theirs[name][0]
        np.testing.assert_allclose(vector, theirs[name][1], atol=1e-5)
    after = index(folder=folder, index=tmp_path / "index", calibrate=False, progress=False)
    assert after.unchanged == 23 and not after.new, "the folder itself updates it afterwards"


def test_an_engine_embeds_and_indexes(folder: Path, model: Path, tmp_path: Path, cli: Any) -> None:
    words = ["index", folder, "--engine", "local", "--vectors", tmp_path / "v", "--index", tmp_path / "index"]
    assert cli(*words, "--model", model).code == 0
    assert (tmp_path / "v" / "manifest.json").exists()
    (hit,) = search(query=folder / "class-00" / "0.jpg", index=tmp_path / "index", k=1)
    assert hit.path == "class-00/0.jpg"
    (folder / "class-00" / "0.jpg").write_bytes((folder / "class-02" / "1.jpg").read_bytes())
    assert cli(*words).code == 0
    (hit, *_) = search(query=folder / "class-02" / "1.jpg", index=tmp_path / "index", k=2)
    assert hit.score > 0.99


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, "Name the folder"),
        ({"vectors": "nothing"}, "no manifest"),
        ({"engine": "local"}, "Name the folder"),
        ({"vectors": "nothing", "model": "efficientnet_lite0"}, "a model of their own"),
        ({"vectors": "nothing", "watch": True}, "reads no images"),
    ],
)
def test_mistakes_are_one_sentence(options: Any, message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        index(**options, progress=False)


@pytest.mark.needs("s3")
def test_vectors_backups_and_images_in_a_bucket(bucket: Any, model: Path, tmp_path: Path) -> None:
    images = helpers.make_images(tmp_path / "birds", classes=2, images=4)
    for path in images.rglob("*.jpg"):
        location(f"s3://data/index/birds/{path.relative_to(images).as_posix()}").write_bytes(path.read_bytes())
    embed(source="s3://data/index/birds", out="s3://data/index/vectors", model=model, progress=False)
    done = index(vectors="s3://data/index/vectors", index=tmp_path / "index", progress=False)
    assert done.images == 8
    assert index(folder="s3://data/index/birds", index=tmp_path / "index", progress=False).unchanged == 8
    (hit,) = search(query=images / "class-00" / "1.jpg", index=tmp_path / "index", k=1)
    assert hit.path == "class-00/1.jpg"
    kept = backup(index=tmp_path / "index", out="s3://data/index/kept.tar", progress=False)
    assert kept.bytes == location("s3://data/index/kept.tar").stat().st_size
    with pytest.raises(LookalikeError, match="exists already"):
        backup(index=tmp_path / "index", out="s3://data/index/kept.tar", progress=False)
    assert restore(file="s3://data/index/kept.tar", index=tmp_path / "again", progress=False).images == 8
    assert rows(tmp_path / "again").keys() == rows(tmp_path / "index").keys()
