"""What is taken out of an index is out of every generation of it, and what `purge` deletes is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.database import FILE
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.searching import Index, index, removal, switch
from lookalike.searching import manifest as manifests
from tests import helpers
from tests.searching import fake


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    fake.install(monkeypatch)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return helpers.make_images(tmp_path / "images", classes=3, images=3)


def update(images: Path, *, seed: int | None = None, **options: Any) -> Any:
    model: Any = None if seed is None else fake.FakeEmbedder(seed)
    return index(folder=images, model=model, progress=False, **options)


def classes(place: Path, number: int | None = None) -> set[str]:
    """What a generation answers with; its table and its count say the same."""
    with Index(place, number) as opened:
        result = [record.payload["path"] for part in opened.store.scan() for record in part]
        assert len(result) == opened.generation.images
        assert sorted(result) == sorted(opened.table.column("path"))
    return {path.partition("/")[0] for path in result}


ALL = {"class-00", "class-01", "class-02"}


def test_what_is_removed_is_out_of_every_generation(images: Path, any_store: str) -> None:
    place = update(images, seed=0, store=any_store).path
    shutil.rmtree(images / "class-00")
    (images / "class-01" / "0.jpg").unlink()
    update(images, seed=1)
    assert classes(place) == ALL - {"class-00"} and classes(place, 1) == ALL
    assert update(images, remove=["path=class-01/*"]).deleted == 2
    assert classes(place) == {"class-02"}
    assert switch(index=place).live == 1 and classes(place) == ALL - {"class-01"}, "also what only the older one had"
    assert update(images, seed=0).images == 3, "the rule is remembered"
    assert switch(index=place, to=2).live == 2


@pytest.mark.parametrize("decoder", ["{number}/pillow-99", "99/{libraries}"])
def test_images_can_be_removed_after_the_decoder_changed(
    images: Path, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.data.decoding import DECODER

    place = update(images, seed=0).path
    number, _, libraries = DECODER.partition("/")
    monkeypatch.setattr("lookalike.data.decoding.DECODER", decoder.format(number=number, libraries=libraries))
    assert update(images, remove=["label=class-01"]).deleted == 3
    assert classes(place) == ALL - {"class-01"}
    assert [path.name for path in (place / "generations").iterdir()] == ["1"]
    with Index(place) as opened:
        assert removal.remove_rows(opened, ["images/class-02/0.jpg", "images/none.jpg"]) == 1
    assert Index(place).generation.images == 5
    with pytest.raises(LookalikeError, match="no other complete generation"):
        switch(index=place)
    assert update(images).images == 6 and classes(place) == ALL - {"class-01"}


def test_a_store_that_is_away_leaves_all_as_it_was(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = update(images, seed=0).path
    update(images, seed=1)
    before = manifests.read(place)
    real = removal.open_store

    def away(path: Path, generation: Any, **how: Any) -> Any:
        if generation.number == 1:
            raise Unavailable("No server answers.")
        return real(path, generation, **how)

    with monkeypatch.context() as patch:
        patch.setattr(removal, "open_store", away)
        with pytest.raises(Unavailable):
            update(images, remove=["label=class-01"])
    assert manifests.read(place) == before and classes(place) == ALL == classes(place, 1)


def test_a_removal_that_was_cut_is_ended_by_the_next_run(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = update(images, seed=0).path
    with monkeypatch.context() as patch:
        patch.setattr("lookalike.data.Table.take", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            update(images, remove=["label=class-01"])
    assert not Index(place).generation.complete
    done = update(images)
    assert done.new == 0 and done.images == 6 and classes(place) == ALL - {"class-01"}


def test_nobody_switches_to_a_generation_with_nothing_left(images: Path) -> None:
    saved = shutil.move(images / "class-00", images.parent)
    place = update(images, seed=0).path
    shutil.move(saved, images)
    update(images, seed=1)
    assert update(images, remove=["path!=class-00/*"]).deleted == 6
    assert classes(place) == {"class-00"} and Index(place, 1).generation.images == 0
    with pytest.raises(LookalikeError, match="no other complete generation"):
        switch(index=place)


def test_an_index_whose_images_are_all_removed_or_gone(images: Path) -> None:
    place = update(images, seed=0).path
    update(images, remove=["path=class-00/*"])
    for name in ("class-01", "class-02"):
        shutil.rmtree(images / name)
    for dry_run in (True, False):
        with pytest.raises(LookalikeError, match=r"were removed from .* `lookalike purge images-"):
            update(images, dry_run=dry_run)
    assert classes(place) == ALL - {"class-00"}, "nothing was deleted for it"
    helpers.make_images(images, classes=2, images=1)
    assert update(images).images == 1 and classes(place) == {"class-01"}


def test_a_prototype_keeps_nothing_out(images: Path) -> None:
    """Rules are held against rows before they are embedded, when nobody knows their prototype."""
    place = update(images, seed=0).path
    manifest = manifests.read(place)
    manifest.generations[0].columns.append("prototype")  # as a model with prototypes leaves it
    manifest.write(place)
    with pytest.raises(LookalikeError, match=r"`prototype` is assigned by the model"):
        update(images, remove=["prototype=5"])
    assert update(images).unchanged == 9
    names = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.jpg"))
    lines = [f"{name},{number % 2}" for number, name in enumerate(names)]
    (images / "own.csv").write_text("\n".join(["path,prototype", *lines]))
    update(images / "own.csv", seed=0, index="own")
    assert update(images / "own.csv", remove=["prototype=0"]).deleted == 5, "a column of the table is another matter"
    assert update(images / "own.csv").images == 4


def left(home: Path) -> list[Path]:
    return [
        p
        for p in home.rglob("*")
        if p.is_file() and not {"runtimes", "restores", FILE} & set(p.relative_to(home).parts)
    ]


def test_purge_finds_what_left_the_index_before(
    images: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thumbnails of images that were deleted, changed or removed since, looks by another decoder, and uploads kept
    by a service that was started under another name of the folder."""
    from lookalike.searching import duplicates, purge
    from lookalike.service.state import Service
    from lookalike.service.uploads import SavedQuery

    place = update(images, seed=0).path
    (tmp_path / "link").symlink_to(place)
    for where in (tmp_path / "link", place / ".." / place.name, place):
        service = Service(Index.open(where), [])
        contents = [r.payload["content_id"] for part in service.index.store.scan() for r in part]
        for content in contents:
            service.live.thumbnails.get(content, 96)
        service.live.queries.keep(SavedQuery(np.zeros(48), "hash", 1, 1), np.zeros((4, 4, 3), np.uint8))
        service.close()
    duplicates(source=images, progress=False)

    (images / "class-00" / "0.jpg").unlink()
    shutil.copy(images / "class-00" / "1.jpg", images / "class-01" / "0.jpg")
    update(images)
    update(images, remove=["path=class-02/*"])
    monkeypatch.setattr("lookalike.data.decoding.DECODER", "1/pillow-99")
    duplicates(source=images, progress=False)
    assert len(list((home / "cache" / "image_facts").iterdir())) == 2

    mine = helpers.make_images(tmp_path / "mine", classes=1, images=2)
    other = update(mine, seed=0).path
    service = Service(Index.open(other), [])
    service.live.thumbnails.get(service.index.table.column("content_id")[0], 96)
    service.close()
    duplicates(source=mine, progress=False)
    before = [file for file in left(home) if not file.is_relative_to(place)]
    plan = purge(index=tmp_path / "link", dry_run=True)
    assert (plan.thumbnails, plan.queries) == (9, 3) and sorted(before) == sorted(
        file for file in left(home) if not file.is_relative_to(place)
    )
    purge(index=tmp_path / "link")
    kinds = {file.parent.name for file in left(home) if not file.is_relative_to(other)}
    assert len(list((home / "cache" / "thumbs").iterdir())) == 1, "another index keeps its own"
    assert "image_facts" in kinds and len(list((home / "cache" / "image_facts").iterdir())) == 1
    purge(index=other)
    assert left(home) == []


def test_purge_deletes_generations_that_the_manifest_does_not_name(images: Path, any_store: str) -> None:
    from lookalike.searching import purge
    from lookalike.searching.index_folder import generation_folder
    from lookalike.store import create_store, store_class

    place = update(images, seed=0, store=any_store).path
    forgotten = generation_folder(place, 7)
    create_store(any_store, forgotten, 48).close()
    saved = shutil.copytree(forgotten, images.parent / "kept")
    purge(index=place)
    assert not place.exists()
    if any_store.startswith("milvus"):
        with pytest.raises(LookalikeError):
            store_class(any_store).open(str(saved)).count()


def test_holes_of_files_are_not_counted_as_space(images: Path) -> None:
    place = update(images, seed=0).path
    before = removal.purge(index=place, dry_run=True).bytes
    with (place / "hole").open("wb") as file:
        file.truncate(10**9)
    assert removal.purge(index=place, dry_run=True).bytes < before + 10**6


@pytest.mark.parametrize("name", ["lookalike.db", "generations/1/table.parquet"])
def test_a_damaged_index_can_be_purged_and_made_again(images: Path, name: str) -> None:
    place = update(images, seed=0).path
    data = (place / name).read_bytes()
    (place / name).write_bytes(data[: len(data) // 2])
    if name == "lookalike.db":
        with pytest.raises(LookalikeError, match=r"`lookalike purge .*` deletes it"):
            update(images, seed=0)
    assert removal.purge(index=place, dry_run=True).bytes > 1000
    removal.purge(index=place)
    assert not place.exists() and update(images, seed=0).images == 9
