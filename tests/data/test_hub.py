"""Data sets of the Hub by id, from a stand-in of its endpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.data.kinds import CLASSES, MAKERS, arrow_table, make_photos
from tests.hub_server import HubServer, serve_hub

import lookalike as la
from lookalike.core.errors import LookalikeError
from lookalike.data import read_table
from lookalike.models import Embedder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_photos(tmp_path_factory.mktemp("hub-photos") / "photos")


@pytest.fixture
def hub(tmp_path: Path, photos: Path) -> Iterator[HubServer]:
    place = tmp_path / "hub" / "datasets" / "birdlab"
    for name in ("parquet", "imagefolder", "webdataset"):
        (place / name).mkdir(parents=True)
        MAKERS[name](photos, place / name)
        (place / name / "README.md").write_text("# Birds\n")
    shutil.copytree(photos, place / "folder")
    (place / "gated").mkdir()
    (place / "gated" / ".gated").touch()
    (place / "empty").mkdir()
    (place / "empty" / "README.md").write_text("nothing\n")
    with serve_hub(tmp_path / "hub") as server:
        yield server


@pytest.mark.parametrize("name", ["parquet", "imagefolder", "webdataset", "folder"])
def test_every_layout_of_a_repository_is_read(hub: HubServer, name: str) -> None:
    table = read_table(f"birdlab/{name}")
    assert len(table) == 24 and table.labels()[1] == CLASSES and table.name == name
    asked = len(hub.requests)
    again = read_table(f"hf://datasets/birdlab/{name}")
    assert again.fingerprint() == table.fingerprint()
    assert len(hub.requests) == asked + 1  # whether there is a newer commit
    assert [table.open_bytes(i) for i in range(24)] == [again.open_bytes(i) for i in range(24)]


def test_a_new_commit_is_fetched_and_the_old_one_answers_without_a_network(
    hub: HubServer, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(read_table("birdlab/parquet")) == 24
    pq.write_table(arrow_table(photos).slice(0, 5), tmp_path / "hub/datasets/birdlab/parquet/data/test-0.parquet")
    table = read_table("birdlab/parquet")
    assert len(table) == 29 and set(table.column("split")) == {"train", "test"}
    (tmp_path / "hub/datasets/birdlab/parquet/data/train-00001-of-00002.parquet").unlink()
    assert len(read_table("birdlab/parquet")) == 17
    hub.shutdown()
    hub.server_close()
    assert len(read_table("birdlab/parquet", progress=True)) == 17
    assert "as it was fetched before" in capsys.readouterr().err


def test_a_folder_of_a_repository_and_a_revision(hub: HubServer) -> None:
    table = read_table("hf://datasets/birdlab/folder@main/gull")
    assert len(table) == 6
    assert not any("tern" in request for request in hub.requests)
    assert len(read_table("hf://datasets/birdlab/folder@main")) == 24


def test_an_id_is_indexed_and_searched(hub: HubServer, photos: Path, tmp_path: Path) -> None:
    model = Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    la.index(folder="birdlab/parquet", model=model, index=tmp_path / "index", calibrate=False, progress=False)
    query = photos / "stork" / "2.jpg"
    hit = la.search(query=query, index=tmp_path / "index", k=1).hits[0]
    assert hit.payload["label"] == "stork" and "row-" in hit.path
    with la.Index.open(tmp_path / "index") as index:
        assert index.open_bytes(index.store.get([hit.id])[0]) == query.read_bytes()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("birdlab/gated", "is gated: ask for access on its page"),
        ("birdlab/none", "neither a folder or table here nor a data set of the Hub"),
        ("birdlab/empty", "holds no images, tables of images or tar shards"),
        ("hf://datasets/birdlab", "write `hf://datasets/OWNER/NAME`"),
        ("hf://datasets/birdlab/folder/nothing", "holds no images"),
    ],
)
def test_what_cannot_be_had_is_one_message(hub: HubServer, name: str, message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        read_table(name)


def test_nothing_is_asked_for_what_is_here(hub: HubServer, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos.parent)
    read_table("photos/gull")
    with pytest.raises(LookalikeError, match="does not exist"):
        read_table("photos/gul")  # its parent is a folder here: no id
    assert hub.requests == []
