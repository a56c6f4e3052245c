"""Folders, tables, lists and shards; the official layouts have a file of their own."""

from __future__ import annotations

import json
import tarfile
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.data.places import shard, touch

from lookalike.core.errors import LookalikeError
from lookalike.data import Table, layouts, read_table


def column(table: Table, name: str) -> list[object]:
    return table.arrow[name].to_pylist()


# --- folders ---


def test_the_first_subfolder_is_the_label(tmp_path: Path) -> None:
    touch(tmp_path, "gull/1.jpg", "gull/deep/2.jpg", "tern/3.jpg", "cover.jpg")
    table = read_table(tmp_path, name="birds")
    assert dict(zip(column(table, "path"), column(table, "label"), strict=True)) == {
        "cover.jpg": None,
        "gull/1.jpg": "gull",
        "gull/deep/2.jpg": "gull",
        "tern/3.jpg": "tern",
    }
    assert table.notes["layout"] == "folder"
    assert table.root == tmp_path


def test_images_at_the_top_only_have_no_labels(tmp_path: Path) -> None:
    table = read_table(touch(tmp_path, "1.jpg", "2.jpg"))
    assert not table.has("label") and not table.has("split")


def test_train_val_and_test_folders_are_the_split(tmp_path: Path) -> None:
    touch(tmp_path, "Train/gull/1.jpg", "validation/gull/2.jpg", "test/3.jpg")
    table = read_table(tmp_path)
    assert column(table, "split") == ["train", "test", "val"]
    assert column(table, "label") == ["gull", None, "gull"]
    assert column(read_table(tmp_path, split="val"), "path") == ["validation/gull/2.jpg"]


def test_one_class_among_split_names_makes_them_labels(tmp_path: Path) -> None:
    table = read_table(touch(tmp_path, "train/1.jpg", "bus/2.jpg"))
    assert table.labels()[1] == ["bus", "train"] and not table.has("split")


def test_a_folder_around_the_classes_is_no_class(tmp_path: Path) -> None:
    touch(tmp_path / "birds", "birds/images/gull/1.jpg", "birds/images/tern/2.jpg")
    assert read_table(tmp_path / "birds").labels()[1] == ["gull", "tern"]
    touch(tmp_path / "one", "gull/a/1.jpg", "gull/b/2.jpg")
    assert read_table(tmp_path / "one").labels()[1] == ["gull"]
    touch(tmp_path / "flat", "images/1.jpg", "images/2.jpg")
    assert read_table(tmp_path / "flat").labels()[1] == ["images"]


def test_domains_by_folder_where_the_layout_says_so(tmp_path: Path) -> None:
    touch(tmp_path, "studio/cup/1.jpg", "night/cup/2.jpg")
    table = read_table(tmp_path, layout="domains")
    assert column(table, "domain") == ["night", "studio"] and column(table, "label") == ["cup", "cup"]


def test_the_name_is_the_folders_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path / "birds", "a/1.jpg")
    assert read_table(tmp_path / "birds").name == "birds"
    assert read_table(tmp_path / "birds", name="mine").column("row_id").tolist() == ["mine/a/1.jpg"]
    monkeypatch.chdir(tmp_path / "birds")
    assert read_table(".").name == "birds"
    assert read_table("../birds").fingerprint() == read_table(tmp_path / "birds").fingerprint()


# --- mistakes ---


def test_mistakes_are_answered_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "films/a.mp4", "films/b.nef", "heic/a.heic", "pic.jpg", "model.bin", "birds/a/1.jpg")
    (tmp_path / "no-path.csv").write_text("name,label\na.jpg,x\n")
    (tmp_path / "rows.csv").write_text("path,label\n")
    (tmp_path / "hole.csv").write_text("path,label\n,x\n")
    (tmp_path / "latin.csv").write_bytes("path,label\nm\xf6we.jpg,x\n".encode("latin-1"))
    (tmp_path / "ragged.csv").write_text("path,label\na.jpg,x,y,z\n")
    (tmp_path / "prose.txt").write_text("Dear reader,\nthis is a letter.\n")
    (tmp_path / "blank.txt").write_text("\n")
    expected = {
        "missing": "does not exist: give a folder of images or a table",
        "empty": "holds no images: it is empty",
        "films": r"holds no images that can be read \(skipped: 1 RAW, 1 video\)",
        "pic.jpg": "is a single image; give the folder",
        "model.bin": "is not a table: give a folder",
        "no-path.csv": "has no column of images; its columns are name, label",
        "rows.csv": "table without rows",
        "hole.csv": "1 rows without a path",
        "latin.csv": "UTF-8",
        "ragged.csv": "is not a table",
        "prose.txt": "not a list of images: its first line reads `Dear reader",
        "blank.txt": "empty list",
    }
    for name, message in expected.items():
        with pytest.raises(LookalikeError, match=message) as caught:
            read_table(tmp_path / name)
        assert "\n" not in str(caught.value) and name in str(caught.value), name


def test_a_misspelt_layout_or_split_is_answered_with_the_nearest(tmp_path: Path) -> None:
    touch(tmp_path, "train/a/1.jpg", "test/a/1.jpg")
    with pytest.raises(LookalikeError, match="`imagnet` is not a layout; did you mean `imagenet`"):
        read_table(tmp_path, layout="imagnet")
    with pytest.raises(LookalikeError, match="did you mean `train`"):
        read_table(tmp_path, split="trian")
    with pytest.raises(LookalikeError, match=r"not laid out as CUB-200-2011: there is no `images.txt` in it"):
        read_table(tmp_path, layout="CUB-200-2011")
    with pytest.raises(LookalikeError, match="has no splits"):
        read_table(touch(tmp_path / "x", "a/1.jpg"), split="train")
    with pytest.raises(LookalikeError, match="no table lies in it"):
        read_table(tmp_path / "x", layout="table")
    assert {"auto", "folder", "cub", "voc07"} <= layouts().keys()


# --- tables ---

OML = """path,label,split,is_query,is_gallery,x_1,x_2,y_1,y_2,category,color,year
a/1.jpg,001,train,,,,,,,birds,red,2020
a/2.jpg,001,validation,True,False,1,11,2,12,birds,,2021
a/3.jpg,NA,validation,False,True,3.0,13.4,4,14,birds,blue,
"""


@pytest.fixture
def images_a(tmp_path: Path) -> Path:
    return touch(tmp_path, "a/1.jpg", "a/2.jpg", "a/3.jpg")


def check_oml(table: Table) -> None:
    assert column(table, "label") == ["001", "001", "NA"]
    assert column(table, "split") == ["train", "val", "val"]
    assert table.column("is_query").tolist() == [False, True, False]
    assert table.column("is_gallery").tolist() == [False, False, True]
    assert [table.box(i) for i in range(3)] == [None, (1, 2, 11, 12), (3, 4, 13, 14)]
    assert column(table, "coarse") == ["birds"] * 3
    assert column(table, "color") == ["red", None, "blue"]
    assert column(table, "year") == [2020, 2021, None]
    assert column(table, "row_id")[1] == f"{table.name}/a/2.jpg#1,2,11,12"
    assert column(table, "size") == [1, 1, 1]


def test_a_csv_in_the_columns_of_open_metric_learning(images_a: Path) -> None:
    (images_a / "set.csv").write_text(OML)
    check_oml(read_table(images_a / "set.csv"))


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_other_delimiters_and_a_byte_order_mark(images_a: Path, delimiter: str) -> None:
    (images_a / "set.csv").write_text("\ufeff" + OML.replace(",", delimiter), encoding="utf-8")
    check_oml(read_table(images_a / "set.csv"))


def test_a_parquet_table_with_other_types(images_a: Path) -> None:
    arrow = pa.table(
        {
            "path": pa.array(["a/1.jpg", "a/2.jpg"], pa.large_string()),
            "label": pa.array(["x", "y"]).dictionary_encode(),
            "is_query": pa.array([1, 0]),
            "size": ["XL", "S"],
        }
    )
    pq.write_table(arrow, images_a / "set.parquet")
    table = read_table(images_a / "set.parquet")
    assert table.labels()[1] == ["x", "y"]
    assert table.column("is_query").tolist() == [True, False]
    assert column(table, "input_size") == ["XL", "S"] and column(table, "size") == [1, 1]
    pq.write_table(pa.table({"path": ["a/1.jpg"], "label": pa.array([[7, 8]])}), images_a / "many.parquet")
    assert read_table(images_a / "many.parquet").label_matrix()[1] == ["7", "8"]


def test_a_table_speaks_for_its_folder(images_a: Path) -> None:
    (images_a / "table.csv").write_text("path,label,domain\na/2.jpg,x,night\n")
    by_folder, by_file = read_table(images_a), read_table(images_a / "table.csv")
    assert column(by_folder, "domain") == ["night"]
    assert by_folder.fingerprint() == by_file.fingerprint()
    (images_a / "table.csv").write_text("not,about,images\n1,2,3\n")
    assert len(read_table(images_a)) == 3


def test_other_names_for_the_column_of_paths(images_a: Path) -> None:
    (images_a / "metadata.csv").write_text("file_name,class\na/1.jpg,x\n")
    assert column(read_table(images_a), "label") == ["x"]


def test_files_outside_the_tables_folder(tmp_path: Path) -> None:
    touch(tmp_path, "images/1.jpg", "more/2.jpg")
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists/t.csv").write_text(f"path\n../images/1.jpg\n{tmp_path}/more/2.jpg\n")
    table = read_table(tmp_path / "lists/t.csv")
    assert table.root == tmp_path
    assert column(table, "row_id") == ["t/images/1.jpg", "t/more/2.jpg"]


def test_few_missing_files_are_left_out_and_named_many_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{i}.jpg" for i in range(40)]
    touch(tmp_path, *names)
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *(f"{n},l{n}" for n in names), "gone.jpg,x"]))
    table = read_table(tmp_path / "t.csv")
    assert len(table) == 40 and column(table, "label")[39] == "l39.jpg"
    assert table.notes["missing"] == {"count": 1, "first": ["gone.jpg"]}
    assert "1 of 41 images listed in" in capsys.readouterr().err
    for name in names[:3]:
        (tmp_path / name).unlink()
    (tmp_path / names[0]).mkdir()  # a folder is no image
    with pytest.raises(LookalikeError, match=r"lists 41 images, of which 4 are missing .*first: `0.jpg`"):
        read_table(tmp_path / "t.csv")


def test_listed_names_are_compared_in_nfc(tmp_path: Path) -> None:
    touch(tmp_path, unicodedata.normalize("NFD", "Möwe/ö.jpg"))
    (tmp_path / "t.csv").write_text(unicodedata.normalize("NFC", "path\nMöwe/ö.jpg\n"), encoding="utf-8")
    table = read_table(tmp_path / "t.csv")
    assert column(table, "path") == ["Möwe/ö.jpg"] and table.open_bytes(0) == b"x"


def test_an_image_listed_twice_has_two_row_ids(images_a: Path) -> None:
    (images_a / "t.csv").write_text("path,label\na/1.jpg,x\na/1.jpg,y\na/2.jpg,y\n")
    table = read_table(images_a / "t.csv")
    assert column(table, "row_id") == ["t/a/1.jpg", "t/a/1.jpg~2", "t/a/2.jpg"]
    assert table.notes["repeated"] == 1


def test_a_saved_table_is_read_back_and_misses_its_images(tmp_path: Path) -> None:
    touch(tmp_path / "birds", "a/1.jpg")
    read_table(tmp_path / "birds").save(tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert table.name == "birds" and table.open_bytes(0) == b"x"
    (tmp_path / "birds").rename(tmp_path / "moved")
    with pytest.raises(LookalikeError, match="no longer exists"):
        read_table(tmp_path / "t.parquet")


def test_a_table_passes_through(tmp_path: Path) -> None:
    table = read_table(touch(tmp_path, "train/a/1.jpg", "test/a/2.jpg"))
    assert read_table(table) is table
    assert len(read_table(table, split="test")) == 1


# --- lists ---


def test_path_label_lines(tmp_path: Path) -> None:
    touch(tmp_path, "a b/1.jpg", "2.png", "3.jpg", "4.jpg")
    (tmp_path / "t.txt").write_text("a b/1.jpg 7\n2.png\tred bird\n3.jpg, x\n\n4.jpg\n")
    table = read_table(tmp_path / "t.txt")
    assert column(table, "path") == ["a b/1.jpg", "2.png", "3.jpg", "4.jpg"]
    assert column(table, "label") == ["7", "red bird", "x", None]


# --- shards ---


def test_shards_are_indexed_and_read_by_seeking(tmp_path: Path) -> None:
    shard(
        tmp_path / "set-train-000.tar", ("k1.jpg", b"one"), ("k1.cls", b"3"), ("k2.png", b"two!"), ("k2.cls", b"10\n")
    )
    about = json.dumps({"label": "x", "year": 2020, "split": "validation", "size": "L", "nested": {}}).encode()
    shard(tmp_path / "set-val-000.tar", ("./d/k1.jpg", b"three"), ("./d/k1.json", about), ("d/._k1.jpg", b"mac"))
    table = read_table(tmp_path, name="w")
    assert column(table, "row_id") == [
        "w/set-train-000.tar/k1.jpg",
        "w/set-train-000.tar/k2.png",
        "w/set-val-000.tar/d/k1.jpg",
    ]
    assert [table.open_bytes(i) for i in range(3)] == [b"one", b"two!", b"three"]
    assert column(table, "label") == ["3", "10", "x"] and table.labels()[1] == ["3", "10", "x"]
    assert column(table, "split") == ["train", "train", "val"]
    assert column(table, "year") == [None, None, 2020] and column(table, "input_size")[2] == "L"
    assert table.file(0) is None
    alone = read_table(tmp_path / "set-train-000.tar")
    assert len(alone) == 2 and alone.root == tmp_path
    assert alone.take([1]).open_bytes(0) == b"two!"


def test_texts_beside_images_are_labels_if_they_recur(tmp_path: Path) -> None:
    rows = [
        (f"{i}.{end}", data) for i in range(4) for end, data in (("jpg", b"x"), ("txt", b"gull" if i % 2 else b"tern"))
    ]
    assert read_table(shard(tmp_path / "a.tar", *rows)).labels()[1] == ["gull", "tern"]
    rows = [(f"{i}.{end}", data) for i in range(4) for end, data in (("jpg", b"x"), ("txt", b"a gull %d" % i))]
    table = read_table(shard(tmp_path / "b.tar", *rows))
    assert not table.has("label") and column(table, "caption")[2] == "a gull 2"


def test_shards_that_cannot_be_used(tmp_path: Path) -> None:
    whole = shard(tmp_path / "a.tar", ("1.jpg", b"x" * 2000), ("2.jpg", b"y" * 2000)).read_bytes()
    with tarfile.open(tmp_path / "z.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a.tar", "1.jpg")
    with pytest.raises(LookalikeError, match=r"is compressed, so that no image .* unpack it"):
        read_table(tmp_path / "z.tar.gz")
    (tmp_path / "z.tar.gz").rename(tmp_path / "renamed.tar")
    with pytest.raises(LookalikeError, match=r"is compressed, so that no image .* unpack it"):
        read_table(tmp_path / "renamed.tar")
    (tmp_path / "text.tar").write_text("hello " * 200)
    with pytest.raises(LookalikeError, match="not a tar file"):
        read_table(tmp_path / "text.tar")
    (tmp_path / "cut.tar").write_bytes(whole[:1500])
    with pytest.raises(LookalikeError, match="cut off or damaged"):
        read_table(tmp_path / "cut.tar")
    with pytest.raises(LookalikeError, match="hold no images"):
        read_table(shard(tmp_path / "none.tar", ("1.txt", b"x")))
    with pytest.raises(LookalikeError, match="is not JSON"):
        read_table(shard(tmp_path / "json.tar", ("1.jpg", b"x"), ("1.json", b"{")))


def test_a_shard_cut_between_two_images_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = shard(tmp_path / "a.tar", ("1.jpg", b"x" * 2000), ("2.jpg", b"y" * 2000))
    assert len(read_table(path)) == 2 and capsys.readouterr().err == ""
    for cut in (2560, 2700):
        (tmp_path / "cut.tar").write_bytes(path.read_bytes()[:cut])
        assert len(read_table(tmp_path / "cut.tar")) == 1
        assert "without the mark of its end" in capsys.readouterr().err


def test_a_tar_beside_images_does_not_make_shards(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "backup.tar")
    assert column(read_table(tmp_path), "path") == ["a/1.jpg"]
