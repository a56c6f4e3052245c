"""Tables, lists and shards that are damaged, odd or made to harm: one clear line each, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.data import parquet_images
from lookalike.data.parquet_images import read_columns
from lookalike.data.readers import read_table

NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 1, [None, pa.py_buffer(np.array([0, 5], np.int32)), pa.py_buffer(b"a.jp\xff")]
)
ODD: dict[str, Any] = {
    "struct": pa.array([{"x": 1}]),
    "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "list": pa.array([["x", "y"]]),
    "fixed": pa.array([[1, 2]], pa.list_(pa.int64(), 2)),
    "not UTF-8": NOT_UTF8,
}


@pytest.fixture(autouse=True)
def _image(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.jpg")


def refused(path: Path, *words: str) -> None:
    start = time.process_time()
    with pytest.raises(LookalikeError) as caught:
        read_table(path)
    assert time.process_time() - start < 10
    message = str(caught.value)
    assert len(message) < 1000 and "\n" not in message
    for word in words:
        assert word in message


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("column", ["path", "split", "domain", "coarse", "official_split", "is_query", "x_1"])
def test_columns_of_an_odd_type_are_named(tmp_path: Path, column: str, kind: str) -> None:
    columns = {"path": pa.array(["a.jpg"]), column: ODD[kind]}
    if column == "x_1":
        columns |= {name: pa.array([5]) for name in ("y_1", "x_2", "y_2")}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "UTF8" if kind == "not UTF-8" else f"olumn `{column}`")


def test_a_column_that_is_there_twice(tmp_path: Path) -> None:
    columns = [pa.array([b"x"]), pa.array(["a.jpg"])]
    pq.write_table(pa.Table.from_arrays(columns, names=["path", "path"]), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "several columns `path`")


def test_a_box_at_infinity(tmp_path: Path) -> None:
    corners = {name: [float("inf")] for name in ("x_1", "y_1", "x_2", "y_2")}
    pq.write_table(pa.table({"path": ["a.jpg"], **corners}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "`x_1`", "numbers of pixels")


def test_texts_that_are_not_utf8_in_any_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"path": pa.array(["a.jpg"]), "artist": NOT_UTF8}), tmp_path / "t.parquet")
    refused(tmp_path / "t.parquet", "UTF8")
    (tmp_path / "list.txt").write_bytes(b"a.jpg \xff\xfe\n")
    refused(tmp_path / "list.txt", "`label`")


@pytest.mark.parametrize("kind", ["parquet", "csv", "tar"])
def test_twenty_thousand_columns(tmp_path: Path, kind: str) -> None:
    path, extra = tmp_path / f"wide.{kind}", {f"c{i}": 1 for i in range(20_000)}
    if kind == "parquet":
        arrays = [pa.array(["a.jpg"]), *[pa.array([1])] * len(extra)]
        whole = pa.Table.from_arrays(arrays, names=["path", *extra])
        pq.write_table(whole, path, use_dictionary=False, write_statistics=False, compression="none")
    elif kind == "csv":
        path.write_text(",".join(["path", *extra]) + "\n" + ",".join(["a.jpg", *["1"] * len(extra)]) + "\n")
    else:
        make_tar(path, {"a.jpg": (tmp_path / "a.jpg").read_bytes(), "a.json": json.dumps(extra).encode()})
    refused(path, "columns; at most 1,000")


def make_tar(path: Path, files: dict[str, bytes], change: Callable[[bytearray], None] | None = None) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    if change is not None:
        data = bytearray(path.read_bytes())
        change(data)
        total = sum(data[:148]) + sum(data[156:512]) + 8 * 32
        data[148:156] = b"%06o\0 " % total
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("size", [-512, -(2**40), 2**60, 2**63, 2**70])
@pytest.mark.parametrize("name", ["a.jpg", "a.json"])
def test_impossible_sizes_in_a_tar_header(tmp_path: Path, size: int, name: str) -> None:
    def change(data: bytearray) -> None:
        data[124:136] = (size % (1 << 96)).to_bytes(12, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")

    path = make_tar(tmp_path / "t.tar", {name: b"{}" * 300, "b.jpg": (tmp_path / "a.jpg").read_bytes()}, change)
    refused(path, "t.tar")


@pytest.mark.parametrize("content", [b"[" * 200_000, b'{"a":' * 100_000, b'{"a":' + b"9" * 100_000 + b"}", b"{"])
def test_depth_bombs_and_damaged_json_beside_an_image(tmp_path: Path, content: bytes) -> None:
    path = make_tar(tmp_path / "t.tar", {"a.jpg": (tmp_path / "a.jpg").read_bytes(), "a.json": content})
    refused(path, "a.json", "JSON")


@pytest.mark.parametrize("line", ['{"path":' + "[" * 100_000 + "]" * 100_000 + "}", '{"a":' * 20_000, "7", '{"path":'])
def test_depth_bombs_and_damaged_lines_of_json(tmp_path: Path, line: str) -> None:
    (tmp_path / "t.jsonl").write_text(f'{{"path": "a.jpg", "about": {{"a": [1]}}}}\n\n{line}\n')
    refused(tmp_path / "t.jsonl", "Line 3 of", "not a JSON object, or nested too deeply")
    (tmp_path / "metadata.jsonl").write_text(line)
    assert len(read_table(tmp_path)) == 1  # a folder of images beside what is no table


def test_a_huge_file_beside_an_image_is_not_read(tmp_path: Path) -> None:
    image = (tmp_path / "a.jpg").read_bytes()
    refused(make_tar(tmp_path / "t.tar", {"a.jpg": image, "a.txt": bytes(17_000_000)}), "larger than 16.0 MB")


def test_lists_that_are_pipes_or_endless_are_refused(tmp_path: Path) -> None:
    """Of a known data set, whose files are found by their names."""
    from tests.data.test_readers_official import cub

    root = cub(tmp_path / "cub")
    for name in ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt"):
        whole = (root / name).read_bytes()
        with (root / name).open("wb") as file:
            file.truncate(6_000_000_000)
        refused(root, "too large for a list")
        (root / name).unlink()
        os.mkfifo(root / name)
        refused(root, "not a regular file")
        (root / name).unlink()
        (root / name).write_bytes(whole)
    assert len(read_table(root))
    with (tmp_path / "t.csv").open("wb") as file:
        file.truncate(6_000_000_000)
    refused(tmp_path / "t.csv", "t.csv")


def test_odd_values_beside_an_image_are_stored_as_text(tmp_path: Path) -> None:
    image = (tmp_path / "a.jpg").read_bytes()
    facts = b'{"label":"\\ud800","number":' + b"9" * 30 + b"}"
    table = read_table(make_tar(tmp_path / "t.tar", {"a.jpg": image, "a.json": facts}))
    assert table.column("number").tolist() == ["9" * 30] and len(table.labels()[1]) == 1
    for nothing in (b'{"label": NaN}', b"null", b"NaN"):
        assert not read_table(make_tar(tmp_path / "t.tar", {"a.jpg": image, "a.json": nothing})).has("label")


@pytest.mark.skipif(os.name == "nt", reason="paths have other limits")
def test_paths_that_the_system_cannot_open_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = Path.cwd()
    try:
        os.chdir(tmp_path)
        for _ in range(20):  # 5,000 bytes, of which each part is short enough
            os.mkdir("d" * 250)  # noqa: PTH102
            os.chdir("d" * 250)
        Path("deep.jpg").write_bytes(b"x")
    finally:
        os.chdir(here)
    table = read_table(tmp_path)
    assert len(table) == 1 and table.notes["skipped"]["path too long"] == 1
    assert "1 file or folder was left out: the path is longer than the system can open." in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_raw_and_video_files_and_pipes_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a.cr2", "b.NEF", "c.mp4", "d.heic"):
        (tmp_path / name).write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert len(read_table(tmp_path)) >= 1
    written = capsys.readouterr().err
    assert "not read: 2 RAW, 1 video, 1 pipe/socket/device." in written
    assert "heif" not in written or "`pip install 'lookalike[heif]'`" in written


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "t.csv")
    refused(tmp_path / "t.csv", "pipe, socket or device")


def test_paths_that_are_numbers_or_missing(tmp_path: Path) -> None:
    for values in ([float("nan")], [None], [1.5, None]):
        pq.write_table(pa.table({"path": pa.array(values, pa.float64())}), tmp_path / "t.parquet")
        refused(tmp_path / "t.parquet", "without a path")


def test_endless_names_are_cut_in_the_message(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("x," * 20_000 + "1.jpg a\n")
    refused(tmp_path / "list.txt", "missing under")


@pytest.mark.parametrize("kind", ["text", "list", "struct", "numbers", "plain"])
def test_a_small_table_that_unpacks_to_gigabytes_is_refused_in_little_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundredth of the limit, so that the file is made in no time."""
    monkeypatch.setattr(parquet_images, "MAX_UNPACKED", 20_000_000)
    text, count = "x" * 100_000, 3_000_000 if kind == "numbers" else 300
    repeated = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 300), [text])
    columns: dict[str, Callable[[], Any]] = {
        "text": lambda: repeated,
        "list": lambda: pa.ListArray.from_arrays(pa.array(range(301), pa.int32()), repeated),
        "struct": lambda: pa.StructArray.from_arrays([repeated], ["title"]),
        "numbers": lambda: pa.repeat(pa.scalar(1, pa.int64()), count),
        "plain": lambda: [text] * count,
    }
    table = pa.table({"path": pa.repeat("a.jpg", count), "note": columns[kind]()})
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": kind != "plain", "store_schema": False}
    pq.write_table(table, tmp_path / "t.parquet", **options)
    assert (tmp_path / "t.parquet").stat().st_size < 200_000
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        refused(tmp_path / "t.parquet", "t.parquet", "unpack to more than")
        assert pool.max_memory() < 10_000_000
    finally:
        pa.set_memory_pool(before)


def test_images_in_rows_that_unpack_to_gigabytes_are_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_images, "MAX_UNPACKED", 20_000_000)
    image = (tmp_path / "a.jpg").read_bytes() + bytes(100_000)
    images = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 300), pa.array([image]))
    table = pa.table({"image": pa.StructArray.from_arrays([images], ["bytes"]), "label": ["a"] * 300})
    pq.write_table(table, tmp_path / "t.parquet", compression="zstd", store_schema=False)
    with pytest.raises(OSError, match="unpack to far more"):
        read_table(tmp_path / "t.parquet").open_bytes(0)


@pytest.mark.parametrize("group", [None, 1])
def test_columns_are_the_same_whether_they_are_counted_first_or_not(
    tmp_path: Path, group: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2_000
    table = pa.table({
        "path": [f"{i}.jpg" for i in range(count)], "label": ["cat", None] * (count // 2),
        "labels": [["a", "b"], None] * (count // 2), "code": pa.array(["a", "b"] * (count // 2)).dictionary_encode(),
        "image": [{"bytes": b"x" * (i % 7), "path": None} for i in range(count)], "number": np.arange(count),
        "view": pa.array(["v"] * count, pa.string_view()), "large": pa.array(["l"] * count, pa.large_string()),
        "json": pa.array(["{}"] * count, pa.json_()),
        "map": pa.array([[("a", "1")]] * count, pa.map_(pa.string(), pa.string())),
    })  # fmt: skip
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=700)
    with (tmp_path / "t.parquet").open("rb") as file:
        plain = read_columns(file, "t", group=group)
        monkeypatch.setattr(parquet_images, "MAX_UNPACKED", 2_000_000)
        counted = read_columns(file, "t", group=group)
    assert counted.schema.equals(plain.schema, check_metadata=True) and counted.equals(plain)
    assert plain.num_rows == (count if group is None else 700)


LISTS = {
    "large": pa.large_list(pa.large_string()), "fixed": pa.list_(pa.string(), 2), "views": pa.list_(pa.string_view()),
    "plain": pa.list_(pa.string()), "large texts": pa.list_(pa.large_string()),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize("embedded", [True, False])
def test_lists_of_labels_of_every_kind(tmp_path: Path, kind: str, embedded: bool) -> None:
    """Polars writes other kinds of lists and texts than pandas."""
    image = pa.array([{"bytes": (tmp_path / "a.jpg").read_bytes(), "path": "a.jpg"}]) if embedded else ["a.jpg"]
    extra = pa.array(["x"], pa.string_view())
    table = pa.table({"image": image, "label": pa.array([["a", "b"]], LISTS[kind]), "extra": extra})
    pq.write_table(table, tmp_path / "t.parquet")
    for read in (
        read_table(tmp_path / "t.parquet"),
        read_table(table) if embedded else read_table(tmp_path / "t.parquet"),
    ):
        assert read.label_matrix()[1] == ["a", "b"] and read.take([0]).row(0)["extra"] == "x"


@pytest.mark.parametrize("compression", ["none", "snappy"])
def test_images_in_a_column_with_a_dot_in_its_name_and_numbers_as_paths(tmp_path: Path, compression: str) -> None:
    image = (tmp_path / "a.jpg").read_bytes()
    table = pa.table({"my.image": [{"bytes": image, "path": 7}], "label": ["a"]})
    pq.write_table(table, tmp_path / "t.parquet", compression=compression)
    for source in (tmp_path / "t.parquet", table):
        read = read_table(source)
        assert read.open_bytes(0) == image and read.column("path")[0].endswith("row-0/7")


def test_a_list_beside_which_relative_and_whole_paths_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text(f"a.jpg x\n{tmp_path / 'a.jpg'} y\n")
    assert read_table("list.txt").labels()[1] == ["x", "y"]
