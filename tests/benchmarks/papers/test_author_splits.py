"""The authors' split files: read in full, and nothing in them is ever run."""

from __future__ import annotations

import pickle
import pickletools

import numpy as np
import pytest

from benchmarks.papers import author_splits
from lookalike.core.errors import LookalikeError
from lookalike.shift.split_set import SplitSet


def document(names):
    """As the authors write it: names are NumPy texts, file names plain ones."""
    half = len(names) // 2
    train, test = [np.str_(n) for n in names[:half]], [np.str_(n) for n in names[half:]]
    episodes = {k: {e: {n: [f"{n}/{i}.jpg" for i in range(k)] for n in test} for e in range(2)} for k in (2, 5)}
    row = {"train": train, "test": test, "fid": np.float64(8.5), "test_episodes": episodes}
    row |= {"split_train": train[:-1], "split_val": train[-1:]}
    easy = {**row, "train": train[1:], "test": test[:-1], "fid": 3.25, "test_episodes": {}}
    return {1: easy, 2: row}


def write(path, value):
    raw = pickle.dumps(value, protocol=3)
    path.write_bytes(raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    return path


@pytest.fixture
def table(classes):
    table, _ = classes(6)
    folders = [f"{int(name.split()[1]) + 1:03}.{name.replace(' ', '_').title()}" for name in table.column("label")]
    return table.with_column("path", [f"images/{folder}/{i}.jpg" for i, folder in enumerate(folders)])


def test_read_in_full(table, tmp_path):
    names = [f"{i + 1:03}.Kind_{i}" for i in range(6)]
    result = author_splits.read_splits(write(tmp_path / "cub.pkl", document(names)), table)
    assert b"numpy.core.multiarray" in (tmp_path / "cub.pkl").read_bytes()
    assert [split.fid for split in result.splits] == [3.25, 8.5]
    assert result.split(2).train == ("kind 0", "kind 1", "kind 2")
    assert result.split(1).removed == ("kind 0", "kind 5")
    assert result.split(2).validation == ("kind 2",)
    assert result.split(2).episodes["5"]["1"]["kind 4"] == [f"005.Kind_4/{i}.jpg" for i in range(5)]
    assert result.default == 2
    assert result.measure == "authors"
    assert sum(result.split(1).images) == len(table)
    result.save(tmp_path / "splits.json")
    assert SplitSet.load(tmp_path / "splits.json") == result


def test_online_products_are_named_by_their_files(classes, tmp_path):
    table, _ = classes(6)
    items = [f"1110{label.split()[1]}" for label in table.column("label")]
    table = table.with_column("path", [f"sofa_final/{item}_{i}.JPG" for i, item in enumerate(items)])
    table.notes["layout"] = "sop"
    result = author_splits.read_splits(write(tmp_path / "sop.pkl", document([f"1110{i}" for i in range(6)])), table)
    assert result.split(2).test == ("kind 3", "kind 4", "kind 5")


@pytest.mark.parametrize("protocol", [4, 5])
def test_files_written_anew_are_read_too(protocol, table, tmp_path):
    result = document([f"{i + 1:03}.Kind_{i}" for i in range(6)])
    (tmp_path / "new.pkl").write_bytes(pickle.dumps(result, protocol=protocol))
    old = author_splits.read_splits(write(tmp_path / "old.pkl", result), table)
    assert author_splits.read_splits(tmp_path / "new.pkl", table).splits == old.splits


class Evil:
    def __reduce__(self):
        return print, ("run",)


class Other:
    pass


@pytest.mark.parametrize(
    "content",
    [{1: Evil()}, Evil(), {1: {"train": Other()}}, {1: np.zeros(3)}, {1: {"fid": np.float32(1)}}, {1: {2, 3}}],
)
def test_any_other_global_is_refused_before_any_call(content, tmp_path, capsys):
    path = write(tmp_path / "evil.pkl", content)
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_other_protocols_run_nothing_either(protocol, tmp_path, capsys):
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({1: Evil()}, protocol=protocol))
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(tmp_path / "evil.pkl")
    assert capsys.readouterr().out == ""


def test_global_named_by_the_stack_is_refused(tmp_path):
    raw = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    assert any(op.name == "STACK_GLOBAL" for op, _, _ in pickletools.genops(raw))
    (tmp_path / "evil.pkl").write_bytes(raw)
    with pytest.raises(LookalikeError, match=r"posix\.system"):
        author_splits.read_pickle(tmp_path / "evil.pkl")


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        {"1": {}},
        {1: {"train": ["a"], "test": ["b"]}},
        {1: {"train": "ab", "test": ["b"], "fid": 1.0}},
        {1: {"train": [1], "test": ["b"], "fid": 1.0}},
        {1: {"train": ["a"], "test": ["b"], "fid": 1.0, "test_episodes": {2: ["a"]}}},
    ],
)
def test_another_shape_is_refused(content, tmp_path):
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(write(tmp_path / "odd.pkl", content))


def test_what_cannot_be_read_is_reported(table, tmp_path, monkeypatch):
    with pytest.raises(LookalikeError, match="no split file"):
        author_splits.read_pickle(tmp_path / "none.pkl")
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps(document(["a", "b", "c", "d"]), protocol=3)[:-40])
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(tmp_path / "cut.pkl")
    good = write(tmp_path / "good.pkl", document([f"{i + 1:03}.Kind_{i}" for i in range(8)]))
    with pytest.raises(LookalikeError, match="names the class"):
        author_splits.read_splits(good, table)
    monkeypatch.setattr(author_splits, "MAX_BYTES", 10)
    with pytest.raises(LookalikeError, match="bytes"):
        author_splits.read_pickle(good)


def test_a_list_named_a_million_times_is_no_way_in(tmp_path, monkeypatch):
    monkeypatch.setattr(author_splits, "MAX_TEXTS", 1000)
    names = ["a"] * 100
    result = {i: {"train": names, "test": names, "fid": 1.0} for i in range(1, 20)}
    with pytest.raises(LookalikeError, match="too many"):
        author_splits.read_pickle(write(tmp_path / "many.pkl", result))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fid": np.float64("nan")}, "has the FID nan"),
        ({"fid": float("inf")}, "has the FID inf"),
        ({"train": ["001.Kind_0", "002.Kind_1", "002.Kind_1"]}, "has the class `kind 1` twice in `train`"),
        ({"test": ["004.Kind_3", "Kind 3", "006.Kind_5"]}, "has the class `kind 3` twice in `test`"),
        ({"test": ["001.Kind_0", "005.Kind_4", "006.Kind_5"]}, "has the class `kind 0` on both sides"),
        ({"test": ["005.Kind_4", "006.Kind_5"]}, "has 3 classes to train on and 2 to test on"),
        ({"train": [], "test": []}, "has 0 classes to train on"),
    ],
)
def test_what_no_split_may_be_is_refused(change, message, table, tmp_path):
    result = document([f"{i + 1:03}.Kind_{i}" for i in range(6)])
    result[2] |= {"test_episodes": {}, "split_val": [], **change}
    with pytest.raises(LookalikeError, match=rf"Split 2 of .*{message}"):
        author_splits.read_splits(write(tmp_path / "wrong.pkl", result), table)


def test_the_official_halves_of_online_products_differ_by_two_classes(table, tmp_path):
    row = {"train": [f"kind {i}" for i in range(4)], "test": ["kind 4", "kind 5"], "fid": 3.4}
    path = write(tmp_path / "sop.pkl", {1: row})
    with pytest.raises(LookalikeError, match="not equally many"):
        author_splits.read_splits(path, table)
    sop = table.with_column("path", [f"sofa_final/{i}_{i}.JPG" for i in range(len(table))])
    sop.notes["layout"] = "sop"
    assert len(author_splits.read_splits(path, sop).split(1).train) == 4


@pytest.mark.parametrize(
    "steps",
    [
        b"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\nX\x02\x00\x00\x00f8K\x00K\x01\x87RC\x04abcd\x86R",  # too short
        b"cnumpy\ndtype\nX\x02\x00\x00\x00O8K\x00K\x01\x87R",  # a type of objects
        b"ibuiltins\nprint\n",
        b"P1\n",
        b"\x82\x01",
        b"NN\x93",
        b"h\x05",
        b"c\xff\nprint\n",
    ],
)
def test_other_steps_are_refused(steps, tmp_path, capsys):
    (tmp_path / "odd.pkl").write_bytes(b"\x80\x03" + steps + b".")
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(tmp_path / "odd.pkl")
    assert capsys.readouterr().out == ""


def test_a_state_changes_nothing_outside_the_file(table, tmp_path):
    """BUILD sets attributes: of stand-ins made for this file alone."""
    state = b"}X\x0c\x00\x00\x00__defaults__Nsb"
    (tmp_path / "build.pkl").write_bytes(b"\x80\x03cnumpy\ndtype\n" + state + b".")
    with pytest.raises(LookalikeError, match="not a split file"):
        author_splits.read_pickle(tmp_path / "build.pkl")
    good = write(tmp_path / "good.pkl", document([f"{i + 1:03}.Kind_{i}" for i in range(6)]))
    assert author_splits.read_splits(good, table).splits


def test_repeated_parts_are_counted(tmp_path, monkeypatch):
    empty = {i: {} for i in range(400)}
    result = {1: {"train": ["a"], "test": ["b"], "fid": 1.0, "test_episodes": dict.fromkeys(range(400), empty)}}
    monkeypatch.setattr(author_splits, "MAX_TEXTS", 100_000)
    with pytest.raises(LookalikeError, match="too many"):
        author_splits.read_pickle(write(tmp_path / "many.pkl", result))
