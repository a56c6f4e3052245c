"""Images are found, shown and moved where they lie, also where that is not the folder a user named."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

import lookalike
from lookalike.searching import Index, index
from lookalike.service import create_app
from lookalike.service.middleware import LOOPBACK
from lookalike.service.state import Service
from tests import helpers
from tests.searching import fake
from tests.service.test_open_index import API, OURS, wait

FILES = [f"class-{label:02d}/{number}.jpg" for label in range(2) for number in range(3)] + ["class-01/copy.jpg"]


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake.install(monkeypatch)


def shelf(folder: Path) -> Path:
    """Seven images, of which two are the same file."""
    helpers.make_images(folder, classes=2, images=3)
    shutil.copy(folder / "class-01" / "0.jpg", folder / "class-01" / "copy.jpg")
    return folder


def plain(base: Path) -> tuple[Path, Path]:
    return shelf(base / "shelf"), base / "shelf"


def listed(base: Path, names: list[str], table: str = "lists/of shelf.csv") -> Path:
    (base / table).parent.mkdir(parents=True, exist_ok=True)
    (base / table).write_text("\n".join(["path,label", *(f"{name},x" for name in names)]))
    return base / table


def absolute(base: Path) -> tuple[Path, Path]:
    root = shelf(base / "shelf")
    return listed(base, [str(root / name) for name in FILES]), root


def upwards(base: Path) -> tuple[Path, Path]:
    return listed(base, [f"../shelf/{name}" for name in FILES]), shelf(base / "shelf")


def nested(base: Path) -> tuple[Path, Path]:
    """A known layout inside the named folder."""
    root = base / "birds" / "CUB_200_2011"
    shelf(root / "images")
    rows = list(enumerate(FILES, 1))
    texts = {"images": [f"{i} {name}" for i, name in rows], "classes": ["1 class-00", "2 class-01"]}
    texts["image_class_labels"] = [f"{i} {1 + int(name[7])}" for i, name in rows]
    texts["train_test_split"] = [f"{i} 1" for i, _ in rows]
    for name, lines in texts.items():
        (root / f"{name}.txt").write_text("\n".join(lines))
    return base / "birds", root


def saved(base: Path) -> tuple[Path, Path]:
    from lookalike.data import read_table

    root = shelf(base / "shelf")
    (base / "tables").mkdir()
    read_table(root).save(base / "tables" / "kept.parquet")
    return base / "tables" / "kept.parquet", root


def odd(base: Path) -> tuple[Path, Path]:
    """A folder whose own name is not UTF-8."""
    root = base / os.fsdecode(b"caf\xe9")
    try:
        root.mkdir(parents=True)
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    return shelf(root), root


SOURCES = (plain, absolute, upwards, nested, saved, odd)


@contextlib.contextmanager
def served(place: Path) -> Iterator[TestClient]:
    service = Service(Index.open(place), [])
    app = create_app(service, hosts=LOOPBACK)
    try:
        yield TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    finally:
        service.close()


def make(source: Path, place: Path | str, root: Path | None = None) -> Path:
    model: Any = fake.FakeEmbedder()
    return index(folder=source, model=model, index=place, root=root, progress=False).path


def there(folder: Path) -> int:
    return len(list(folder.rglob("*.jpg")))


def goes_through(place: Path, root: Path) -> None:
    """Every image is shown, and the copy can be moved away from its folder and back."""
    with served(place) as client:
        items = client.get(f"{API}/items", params={"sample": 20}).json()["items"]
        assert len(items) == 6, "of two that show the same, one"
        for item in items:
            assert client.get(f"/thumb/{item['thumb']}/96.jpg").status_code == 200, item
            assert client.get(f"/original/{quote(quote(item['id']))}").status_code == 200, item  # it unquotes twice
        wait(client, client.post(f"{API}/duplicates/find", headers=OURS).json())
        assert client.get(f"{API}/duplicates").json()["counts"]["identical"]["groups"] == 1
        moved = client.post(f"{API}/duplicates/move", json={"kind": "identical"}, headers=OURS).json()
        assert moved["files"] == 1 and moved["left"] == [] and there(root) == 6
        with Index.open(place) as opened:
            assert opened.store.count() == 6
        batches = client.get(f"{API}/duplicates/history").json()["batches"]
        assert [batch["id"] for batch in batches] == [moved["id"]]
        back = client.post(f"{API}/duplicates/history/{moved['id']}/undo", headers=OURS).json()
        assert back["moved"] == 1 and there(root) == 7
        job = next(job for job in client.get(f"{API}/state").json()["jobs"] if job["kind"] == "index")
        assert wait(client, job)["state"] == "finished" and Index.open(place).store.count() == 7


@pytest.mark.parametrize("source", SOURCES, ids=lambda made: made.__name__)
def test_what_is_indexed_is_shown_and_moved(source: Callable[[Path], tuple[Path, Path]], tmp_path: Path) -> None:
    inputs, root = source(tmp_path / "here")
    place = make(inputs, tmp_path / "index", root if inputs.is_file() else None)
    goes_through(place, root)
    with Index.open(place) as opened:
        assert opened.root == root == opened.table.root
    hits: Any = lookalike.search(query=root.rglob("0.jpg").__next__(), index=place, k=3)
    assert hits._repr_html_().count("<img") == 3


@pytest.mark.parametrize("source", SOURCES, ids=lambda made: made.__name__)
def test_a_restored_index_moves_files_of_its_new_folder(
    source: Callable[[Path], tuple[Path, Path]], tmp_path: Path
) -> None:
    inputs, root = source(tmp_path / "here")
    place = make(inputs, tmp_path / "index", root if inputs.is_file() else None)
    lookalike.backup(index=place, out=tmp_path / "kept.tar", progress=False)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    # A table that names files by where they were is of no use elsewhere: the folder of the images is given.
    new = tmp_path / "there" / (root if source in (absolute, upwards, saved) else inputs).relative_to(tmp_path / "here")
    lookalike.restore(file=tmp_path / "kept.tar", index=tmp_path / "again", folder=new, progress=False)
    there_root = tmp_path / "there" / root.relative_to(tmp_path / "here")
    with Index.open(tmp_path / "again") as opened:
        assert opened.root == there_root == opened.table.root
    goes_through(tmp_path / "again", there_root)
    assert there(root) == 7
    shutil.rmtree(tmp_path / "here")
    with served(tmp_path / "again") as client:
        item = client.get(f"{API}/items?sample=1").json()["items"][0]
        assert client.get(f"/thumb/{item['thumb']}/256.jpg").status_code == 200


@pytest.mark.parametrize("line", ["/etc/passwd.jpg", "../outside.jpg"])
def test_a_row_outside_does_not_widen_what_is_served(tmp_path: Path, line: str) -> None:
    root = shelf(tmp_path / "here" / "shelf")
    outside = tmp_path / "here" / "outside.jpg"
    shutil.copy(root / FILES[0], outside)
    line = line if line.startswith("..") else str(outside)
    table = listed(root, [*FILES, line], "list.csv")
    with pytest.raises(lookalike.LookalikeError, match=r"outside.*`--root`"):
        make(table, tmp_path / "index")
    assert not (tmp_path / "index").exists()
    place = make(table, tmp_path / "index", tmp_path / "here")
    done = index(folder=table, index=place, progress=False)
    assert done.images == 8 and done.unchanged == 8, "an update remembers the root"
    (root.parent / "secret.jpg").write_bytes(outside.read_bytes())
    outside.unlink()
    outside.symlink_to(tmp_path / "elsewhere.jpg")
    shutil.copy(root / FILES[0], tmp_path / "elsewhere.jpg")
    with served(place) as client:
        assert client.get("/original/outside.jpg").status_code == 404, "a link out of the root"


def test_where_a_root_is_after_its_source_moved(tmp_path: Path) -> None:
    from lookalike.searching.archive import moved_root

    old, new = tmp_path / "birds", tmp_path / "new"
    (new / "CUB_200_2011").mkdir(parents=True)
    assert moved_root(old / "CUB_200_2011", old, new) == new / "CUB_200_2011"
    assert moved_root(old / "CUB_200_2011", old, new / "CUB_200_2011") == new / "CUB_200_2011"
    assert moved_root(old / "CUB_200_2011", old, tmp_path / "later") == tmp_path / "later" / "CUB_200_2011"
    (new / "list.csv").write_text("path\n")
    assert moved_root(tmp_path, tmp_path / "list.csv", new / "list.csv") == new
    assert moved_root(Path("/elsewhere"), old, new) == new


def test_a_folder_keeps_the_index_that_was_made_of_it(tmp_path: Path, home: Path) -> None:
    """`index FOLDER` goes on with the only index of that folder, whatever its name; errors name one elsewhere."""
    images = shelf(tmp_path / "shelf")
    named = make(images, "by name")
    assert index(folder=images, progress=False).path == named
    lookalike.backup(index=named, out=tmp_path / "kept.tar", progress=False)
    lookalike.purge(index=named)
    moved = shutil.copytree(images, tmp_path / "moved" / "shelf")
    restored = lookalike.restore(file=tmp_path / "kept.tar", folder=moved, progress=False)
    done = index(folder=moved, progress=False)
    assert done.path == restored.path and done.unchanged == 7 and done.images == 7
    (restored.path / "lookalike.db").write_text("{")  # a damaged one is no reason to refuse another folder
    other = index(folder=images, model=fake.FakeEmbedder(), progress=False)  # type: ignore[arg-type]
    assert other.new == 7 and index(folder=images, progress=False).path == other.path

    place = make(images, tmp_path / "outside")
    os.truncate(place / "generations" / "1" / "vectors-1.f32", 0)
    with pytest.raises(lookalike.LookalikeError, match=rf"`lookalike index {images} --index {place}` repairs it"):
        lookalike.search(query=images / FILES[0], index=place)
    os.truncate(other.path / "generations" / "1" / "vectors-1.f32", 0)
    with pytest.raises(lookalike.LookalikeError, match=rf"`lookalike index {images}` repairs it"):
        lookalike.search(query=images / FILES[0], index=images)
