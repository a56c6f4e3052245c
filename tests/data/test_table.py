from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookalike.core.errors import LookalikeError
from lookalike.data.table import Table, natural_key


def sample(**more: object) -> Table:
    columns = {"path": ["a/10.jpg", "a/2.jpg", "b/1.jpg"], "label": ["c10", "c2", None], "size": [5, 6, 7], **more}
    return Table.from_columns(columns, name="birds", root="/images")


def test_row_ids_name_the_data_set_and_the_path() -> None:
    assert sample().column("row_id").tolist() == ["birds/a/10.jpg", "birds/a/2.jpg", "birds/b/1.jpg"]


def test_row_ids_of_crops_carry_the_box() -> None:
    table = sample(x_1=[1, 1, None], y_1=[2, 2, None], x_2=[3, 30, None], y_2=[4, 40, None])
    assert table.column("row_id").tolist() == ["birds/a/10.jpg#1,2,3,4", "birds/a/2.jpg#1,2,30,40", "birds/b/1.jpg"]
    assert table.box(1) == (1, 2, 30, 40)
    assert table.box(2) is None
    assert table.without("x_1").box(1) is None


def test_two_spellings_of_a_letter_are_one_class() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert sample(label=[composed, decomposed, None]).labels()[1] == [composed]
    several = sample(label=[[decomposed], [composed, "b"], []])
    assert several.label_matrix()[1] == ["b", composed]
    assert sample(coarse=[composed, decomposed, decomposed]).labels("coarse")[1] == [composed]


def test_nan_is_no_label() -> None:
    codes, names = sample(label=[2.0, float("nan"), 10.0]).labels()
    assert codes.tolist() == [0, -1, 1] and names == ["2", "10"]
    assert sample(label=np.array([1.5, np.nan, np.nan])).labels()[1] == ["1.5"]


def test_labels_are_codes_into_naturally_sorted_names() -> None:
    codes, names = sample().labels()
    assert names == ["c2", "c10"]
    assert codes.tolist() == [1, 0, -1]
    assert codes.dtype == np.int64
    assert sample().take([2]).labels()[1] == []
    codes, names = sample().labels("domain")
    assert codes.tolist() == [-1, -1, -1] and names == []


def test_labels_of_other_columns_and_of_parts_of_a_table() -> None:
    table = sample(year=[2020, 2019, 2020]).take([0, 2])
    codes, names = table.labels("year")
    assert names == ["2020"] and codes.tolist() == [0, 0]


def test_several_labels_an_image() -> None:
    table = sample(label=[["dog", "cat"], [], ["cat"]])
    matrix, names = table.label_matrix()
    assert names == ["cat", "dog"]
    assert matrix.tolist() == [[True, True], [False, False], [True, False]]
    part, names = table.take([2, 0]).label_matrix()
    assert names == ["cat", "dog"] and part.tolist() == [[True, False], [True, True]]
    with pytest.raises(LookalikeError, match="several labels"):
        table.labels()
    single, names = sample().label_matrix()
    assert single.tolist() == [[False, True], [True, False], [False, False]]


@given(st.lists(st.text(max_size=6)))
def test_natural_order_is_a_total_order(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)


def test_natural_order() -> None:
    names = ["b", "A10", "a9", "a09x", "1.2", "1.10", "", "9" * 5000]
    assert sorted(names, key=natural_key) == ["", "1.2", "1.10", "9" * 5000, "a9", "a09x", "A10", "b"]


def test_take_by_index_and_mask_leaves_the_table_alone() -> None:
    table = sample()
    assert table.take([2, 0]).column("path").tolist() == ["b/1.jpg", "a/10.jpg"]
    assert table.take(np.array([False, True, False])).column("path").tolist() == ["a/2.jpg"]
    assert table.where("label", "c2").column("path").tolist() == ["a/2.jpg"]
    assert len(table.take([])) == 0
    assert len(table) == 3
    with pytest.raises(ValueError, match="mask"):
        table.take(np.array([True]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.name = "other"  # type: ignore[misc]


def test_with_column_adds_and_replaces() -> None:
    table = sample().with_column("domain", ["x", None, "y"])
    assert table.column("domain").tolist() == ["x", None, "y"]
    assert table.with_column("domain", np.array(["z"] * 3, object)).column("domain").tolist() == ["z"] * 3
    assert table.column("domain").tolist() == ["x", None, "y"]
    with pytest.raises(ValueError, match="2 values for 3 rows"):
        table.with_column("domain", ["x", "y"])


def test_a_misspelt_column_is_answered_with_the_nearest() -> None:
    with pytest.raises(LookalikeError, match="did you mean `label`"):
        sample().column("lable")


def test_columns_come_as_numpy() -> None:
    table = sample(is_query=[True, None, False], x_1=[1, None, 3])
    assert table.column("is_query").tolist() == [True, False, False]
    assert table.column("size").dtype == np.int64
    assert np.isnan(table.column("x_1")[1])
    assert table.has("x_1") and not table.has("y_1")
    assert not sample(domain=[None, None, None]).has("domain")


def test_saved_and_loaded_again(tmp_path: Path) -> None:
    table = sample(original=[None, b"a/\xff.jpg", None], x_1=[1, None, 3])
    table.notes["skipped"] = {"RAW": 2}
    table.save(tmp_path / "t.parquet")
    back = Table.load(tmp_path / "t.parquet")
    assert back.arrow.equals(table.arrow)
    assert (back.name, back.root, back.notes) == (table.name, table.root, table.notes)
    assert back.fingerprint() == table.fingerprint()
    assert pq.read_table(tmp_path / "t.parquet").num_rows == 3


def test_a_newer_format_is_refused_in_one_line(tmp_path: Path) -> None:
    arrow = sample().arrow.replace_schema_metadata(
        {b"lookalike": json.dumps({"format": 99, "kind": "table", "name": "x", "root": None, "notes": {}}).encode()}
    )
    pq.write_table(arrow, tmp_path / "t.parquet")
    with pytest.raises(LookalikeError, match="format 99; this version reads up to"):
        Table.load(tmp_path / "t.parquet")


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(LookalikeError, match="not a complete Parquet file"):
        Table.load(tmp_path / "t.parquet")
    with pytest.raises(LookalikeError, match="There is no table"):
        Table.load(tmp_path / "missing.parquet")
    pq.write_table(pa.table({"path": ["a"]}), tmp_path / "foreign.parquet")
    with pytest.raises(LookalikeError, match="not a lookalike table"):
        Table.load(tmp_path / "foreign.parquet")


def test_the_fingerprint_follows_what_the_images_are() -> None:
    table = sample(mtime_ns=[1, 2, 3])
    same = table.with_column("label", ["x", "y", "z"])
    assert same.fingerprint() == table.fingerprint() == sample(mtime_ns=[1, 2, 3]).fingerprint()
    others = [
        table.with_column("size", [5, 6, 8]),
        table.with_column("mtime_ns", [1, 2, 4]),
        table.take([0, 2, 1]),
        table.take([0, 1]),
        table.with_column("x_1", [0, 0, 1]),
        table.with_column("row_id", ["birds/a/10.jpgb", "irds/a/2.jpg", "birds/b/1.jpg"]),
    ]
    assert len({t.fingerprint() for t in (table, *others)}) == len(others) + 1
    # A part of a larger table has the fingerprint of a table that holds only that part.
    assert (
        table.take([1]).fingerprint()
        == Table.from_columns({"path": ["a/2.jpg"], "size": [6], "mtime_ns": [2]}, name="birds").fingerprint()
    )


def test_bytes_come_from_files_odd_names_and_shards(tmp_path: Path) -> None:
    (tmp_path / "plain.jpg").write_bytes(b"plain")
    odd = b"odd-\xff.jpg"
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + odd)).write_bytes(b"odd")
    (tmp_path / "s.tar").write_bytes(b"....inside....")
    table = Table.from_columns(
        {
            "path": ["plain.jpg", "odd-%FF.jpg", "s.tar/x.jpg"],
            "raw_path": [None, odd, None],
            "shard": [None, None, "s.tar"],
            "offset": [None, None, 4],
            "length": [None, None, 6],
        },
        name="t",
        root=tmp_path,
    )
    assert [table.open_bytes(i) for i in range(3)] == [b"plain", b"odd", b"inside"]
    assert table.file(0) == tmp_path / "plain.jpg"
    assert os.fsencode(table.file(1) or "").endswith(odd)
    assert table.file(2) is None
    cut = table.with_column("length", [None, None, 600])
    with pytest.raises(OSError, match="ends inside"):
        cut.open_bytes(2)


@pytest.mark.parametrize(
    "notes", [{"warnings": 5}, {"warnings": [5]}, {"layout": []}, {"unreadable": {"a": 1}, "layout": 3}]
)
def test_notes_of_odd_types_are_damage(tmp_path: Path, notes: dict[str, Any]) -> None:
    path = tmp_path / "t.parquet"
    Table.from_columns({"path": ["a.jpg"]}, name="t", root=tmp_path, notes=notes).save(path)
    with pytest.raises(LookalikeError, match="damaged"):
        Table.load(path)
