"""Tags and the columns from EXIF: filters, renamed files, and consent that is given and withdrawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from lookalike.core.errors import LookalikeError
from lookalike.data.exif import photo_facts
from lookalike.searching import Index, index
from lookalike.searching.removal import remove
from lookalike.store import ROW_ID, Condition
from tests import helpers


def write_exif(path: Path, *, date: str = "", model: str = "", gps: tuple[Any, ...] = ()) -> None:
    """Write EXIF into a JPEG; `gps` is latitude and longitude, each with its reference."""
    exif = Image.Exif()
    if model:
        exif[ExifTags.Base.Make], exif[ExifTags.Base.Model] = "Canon", model
    if date:
        exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = date
    if gps:
        place = exif.get_ifd(ExifTags.IFD.GPSInfo)
        for number, value in zip((2, 1, 4, 3), (gps[0], gps[1], gps[2], gps[3]), strict=True):
            place[number] = value
    with Image.open(path) as image:
        image.load()
    image.save(path, "JPEG", exif=exif)


def paths(opened: Index, *filters: str) -> list[str]:
    where = opened.where(filters)
    return sorted(record.id for part in opened.store.scan(where=where) for record in part)


def test_tags_are_a_column_and_follow_renamed_files(folder: Path, model: Path, home: Path) -> None:
    index(folder=folder, model=model, progress=False)
    with Index.open(folder) as opened:
        before = paths(opened)
        assert "tags" not in opened.columns
        opened.tags.change(before[:3], add=["beach", " two  words "])
        opened.tags.change(before[:1], remove=["beach"])
        assert opened.columns[-1] == "tags" and opened.tags.names == ["beach", "two words"]
        assert paths(opened, "tags=beach") == before[1:3] and paths(opened, "tags=two*") == before[:3]
        assert paths(opened, "tags!=beach") == [before[0], *before[3:]]
        assert paths(opened, "tags=beach", "label!=class-00") == [n for n in before[1:3] if "class-00" not in n]
        assert opened.store.search(opened.store.get(before[:1], vectors=True)[0].vector, 5,
                                   where=opened.where("tags=beach")).rows.max() >= 0  # fmt: skip
        with pytest.raises(LookalikeError, match="at its end"):
            opened.tags.change(before[:1], add=["x*"])
        file = folder / opened.store.get(before[1:2])[0].payload["path"]
    with pytest.raises(LookalikeError, match="Tags cannot keep images out"):
        remove(index=folder, filters="tags=beach")
    file.rename(file.with_name("renamed.jpg"))
    assert index(folder=folder, progress=False).moved == 1
    with Index.open(folder) as opened:
        assert len(paths(opened, "tags=beach")) == 2 and any("renamed" in n for n in paths(opened, "tags=beach"))


def test_every_store_selects_by_row_id(any_store: str, tmp_path: Path) -> None:
    import numpy as np

    from lookalike.store import create_store

    store = create_store(any_store, tmp_path / "rows", 2)
    store.upsert(["a", "b/ü"], np.eye(2, dtype=np.float32), [{"label": "x"}, {}])
    assert store.count([Condition(ROW_ID, ("b/ü", "none"))]) == 1 and store.count([Condition(ROW_ID)]) == 0
    assert store.count([Condition(ROW_ID, ("a",), negate=True)]) == 1
    store.close()


def test_exif_is_read_only_with_consent(folder: Path, model: Path, home: Path) -> None:
    first, second, broken = sorted(folder.rglob("*.jpg"))[:3]
    degrees = (48.0, 8.0, 15.0)
    write_exif(first, date="2024:08:03 10:00:00", model="Canon EOS 5D", gps=(degrees, "N", (11.0, 34.0, 30.0), "E"))
    write_exif(second, date="2021:01:01 00:00:00", gps=(degrees, "S", (0.0, 30.0, 0.0), "W"))
    with Image.open(broken) as image:
        image.save(broken, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert photo_facts(first.read_bytes()) == {
        "taken": "2024-08-03T10:00:00", "camera": "Canon EOS 5D", "place": "48.1, 11.6",
        "latitude": "48.13750", "longitude": "11.57500",
    }  # fmt: skip
    assert photo_facts(second.read_bytes())["place"] == "-48.1, -0.5" and photo_facts(broken.read_bytes()) == {}
    index(folder=folder, model=model, progress=False)
    with Index.open(folder) as opened:
        assert set(opened.columns) == {"label", "path"}
        count = opened.store.count()
    result = index(folder=folder, exif=True, progress=False)
    assert result.unchanged == count and result.changed == result.new == 0, "read again, not embedded"
    with Index.open(folder) as opened:
        assert set(opened.columns) == {"label", "path", "taken", "camera", "place", "latitude", "longitude"}
        assert len(paths(opened, "taken=2024")) == 0 and len(paths(opened, "taken=2024-08..2024-09")) == 1
        assert len(paths(opened, "latitude>=48", "latitude<=49")) == 1 and len(paths(opened, "camera=Canon*")) == 1
    with pytest.raises(LookalikeError, match="cannot keep images out"):
        remove(index=folder, filters="camera=Canon*")
    new = helpers.make_images(folder.parent / "more", classes=1, images=1)
    (new / "class-00" / "0.jpg").rename(folder / "class-00" / "new.jpg")
    assert index(folder=folder, progress=False).new == 1  # remembered
    with Index.open(folder) as opened:
        assert "taken" in opened.columns
    index(folder=folder, exif=False, progress=False)
    with Index.open(folder) as opened:
        assert set(opened.columns) == {"label", "path"} and not opened.store.facets("camera")
        record = opened.store.get(paths(opened)[:1])[0]
        assert record is not None and not {"taken", "_exif"} & set(record.payload)
