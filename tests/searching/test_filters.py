"""Filters as people write them: every column and every value can be named."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.searching import Hits, Index, index, search
from lookalike.searching.filters import describe, parse, to_rule
from lookalike.searching.payload import column_names, to_payload
from lookalike.store import Condition
from tests import helpers
from tests.searching.fake import FakeEmbedder, install

VALUES = ["gull ", " gull", "gull", "5*", "50 mm", "a=b", "=", "*", "\\", "\\*", "a\\*", "a\\\\*", "**", "!", "", "x:y"]
COLUMNS = ["label", "x=y", "x", "x!", "a\\b", 'a"b', "a.b", "with space", "e:f", "area"]


def test_filters_in_words() -> None:
    assert parse(["a=1", "b!=2", "a=3", "c=x*"]) == [
        Condition("a", ("1", "3")),
        Condition("b", ("2",), negate=True),
        Condition("c", ("x",), prefix=True),
    ]
    assert describe(parse("label=gull")) == "label: gull"
    assert parse(None) == []
    with pytest.raises(LookalikeError, match="mixes"):
        parse(["a=1", "a=2*"])


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("column", COLUMNS)
def test_a_stored_filter_is_read_as_it_was_written(column: str, value: str) -> None:
    for prefix, negate in ((False, False), (False, True), (True, False)):
        if prefix and value.endswith("\\"):
            continue  # no path below a folder begins with that alone
        meant = [Condition(column, (value,), prefix=prefix, negate=negate)]
        if column == "x" and negate:
            continue  # `x!` is another column here
        assert parse(to_rule(meant), COLUMNS) == meant


def test_values_are_taken_as_they_are() -> None:
    assert parse("label=gull ") == [Condition("label", ("gull ",))]
    assert parse(r"label=5\*") == [Condition("label", ("5*",))]
    assert parse("label=5*") == [Condition("label", ("5",), prefix=True)]
    assert parse("exif=a=b=c") == [Condition("exif", ("a=b=c",))]
    assert parse("x=y=5", ["x", "x=y"]) == [Condition("x=y", ("5",))]
    assert parse("x!=5", ["x", "y"]) == [Condition("x", ("5",), negate=True)]
    assert parse("x!=5", ["x", "x!"]) == [Condition("x!", ("5",))]
    assert parse({"x!": "5", "y": ["1", "2*"][:1]}, ["x", "y"]) == [
        Condition("x", ("5",), negate=True),
        Condition("y", ("1",)),
    ]
    assert parse({"x!": "5"}, ["x", "x!"]) == [Condition("x!", ("5",))]
    assert parse("e:f:g", ["e", "e:f"], sign=":") == [Condition("e:f", ("g",))]
    assert parse("path=caf\udce9/*") == [Condition("path", ("caf%E9/",), prefix=True)]
    assert describe(parse([r"label=5\*"])) == r"label: 5\*" and describe(parse("label=5*")) == "label: 5*"
    for bad in ("label", "=x", "!=x", ""):
        with pytest.raises(LookalikeError, match="COLUMN=VALUE"):
            parse(bad, ["label"])


def test_no_two_columns_become_one() -> None:
    names = column_names(("row_id", "path", "_label", "label", "_", "__", "_content_id", "size", 'a"b', "a'b"))
    assert names == {
        "path": "path", "label": "label", 'a"b': 'a"b', "a'b": "a'b",
        "_label": "label_", "_": "column", "__": "column_", "_content_id": "content_id_",
    }  # fmt: skip
    line = to_payload({"row_id": "r", "path": "p", "_label": "mine", "label": None, "size": 3})
    assert (line["label_"], line["_size"]) == ("mine", 3) and "label" not in line


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    """A table whose columns and values are as bad as can be."""
    folder = helpers.make_images(tmp_path / "photos", classes=1, images=len(VALUES))
    with (folder / "list.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", *COLUMNS, "_label"])
        for number in range(len(VALUES)):
            row_values = [VALUES[(number + k) % len(VALUES)] for k in range(len(COLUMNS))]
            writer.writerow([f"class-00/{number}.jpg", *row_values, "own"])
    return folder / "list.csv"


def hit_paths(place: Path, image: Path, **options: Any) -> set[str]:
    hits = search(query=image, index=place, k=100, all=True, **options)
    assert isinstance(hits, Hits)
    return {hit.path for hit in hits} | {path for hit in hits for path in hit.copies}


def test_every_column_and_value_can_be_filtered_by(
    shelf: Path, tmp_path: Path, any_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch)
    place, image = tmp_path / "i", shelf.parent / "class-00" / "0.jpg"
    model: Any = FakeEmbedder()
    index(folder=shelf, model=model, index=place, store=any_store, calibrate=False, progress=False)
    with Index.open(place) as opened:
        assert set(opened.columns) == {*COLUMNS, "label_", "path"}
        rows = {r.payload["path"]: r.payload for part in opened.store.scan() for r in part}
        for column in COLUMNS:
            for value, _ in opened.store.facets(column, limit=100)[:: 1 if column == "label" else 4]:
                expected = {path for path, line in rows.items() if line.get(column) == value}
                rule = to_rule([Condition(column, (value,))])
                assert hit_paths(opened, image, filters=rule) == expected and len(expected) == 1, rule  # type: ignore[arg-type]
    before = len(rows)
    done = index(folder=shelf, index=place, remove=[r"label=5\*"], progress=False)
    assert done.deleted == 1, "not the 50 mm"
    done = index(folder=shelf, index=place, remove=["x=y=a=b"], progress=False)
    assert done.deleted == 1
    again = index(folder=shelf, index=place, calibrate=False, progress=False)
    assert (again.images, again.new, again.deleted) == (before - 2, 0, 0), "the rules are remembered as they were meant"
