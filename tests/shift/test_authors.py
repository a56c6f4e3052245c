"""The authors' split files: read in full, and nothing in them is ever run."""

from __future__ import annotations

import pickle
import pickletools

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.shift import authors
from lookalike.shift.splitset import SplitSet


def document(names):
    """As the authors write it: names are NumPy texts, file names plain ones."""
    half = len(names) // 2
    train, test = [np.str_(n) for n in names[:half]], [np.str_(n) for n in names[half:]]
    episodes = {k: {e: {n: [f"{n}/{i}.jpg" for i in range(k)] for n in test} for e in range(2)} for k in (2, 5)}
    row = {"train": train, "test": test, "fid": np.float64(8.5), "test_episodes": episodes}
    row |= {"split_train": train[:-1], "split_val": train[-1:]}
    easy = {**row, "train": train[1:], "test": test[:-1], "fid": 3.25, "test_episodes": {}}
    return {1: easy, 2: row}


def write(path, found):
    raw = pickle.dumps(found, protocol=3)
    path.write_bytes(raw.replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"))
    return path


@pytest.fixture
def table(classes):
    table, _ = classes(6)
    folders = [f"{int(name.split()[1]) + 1:03}.{name.replace(' ', '_').title()}" for name in table.column("label")]
    return table.with_column("path", [f"images/{folder}/{i}.jpg" for i, folder in enumerate(folders)])


def test_read_in_full(table, tmp_path):
    names = [f"{i + 1:03}.Kind_{i}" for i in range(6)]
    found = authors.read_splits(write(tmp_path / "cub.pkl", document(names)), table)
    assert b"numpy.core.multiarray" in (tmp_path / "cub.pkl").read_bytes()
    assert [split.fid for split in found.splits] == [3.25, 8.5]
    assert found.split(2).train == ("kind 0", "kind 1", "kind 2")
    assert found.split(1).removed == ("kind 0", "kind 5")
    assert found.split(2).validation == ("kind 2",)
    assert found.split(2).episodes["5"]["1"]["kind 4"] == [f"005.Kind_4/{i}.jpg" for i in range(5)]
    assert found.default == 2
    assert found.measure == "authors"
    assert sum(found.split(1).pictures) == len(table)
    found.save(tmp_path / "splits.json")
    assert SplitSet.load(tmp_path / "splits.json") == found


def test_online_products_are_named_by_their_files(classes, tmp_path):
    table, _ = classes(6)
    items = [f"1110{label.split()[1]}" for label in table.column("label")]
    table = table.with_column("path", [f"sofa_final/{item}_{i}.JPG" for i, item in enumerate(items)])
    table.notes["layout"] = "sop"
    found = authors.read_splits(write(tmp_path / "sop.pkl", document([f"1110{i}" for i in range(6)])), table)
    assert found.split(2).test == ("kind 3", "kind 4", "kind 5")


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
        authors.read_pickle(path)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_other_protocols_run_nothing_either(protocol, tmp_path, capsys):
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({1: Evil()}, protocol=protocol))
    with pytest.raises(LookalikeError, match="not a split file"):
        authors.read_pickle(tmp_path / "evil.pkl")
    assert capsys.readouterr().out == ""


def test_global_named_by_the_stack_is_refused(tmp_path):
    raw = b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    assert any(op.name == "STACK_GLOBAL" for op, _, _ in pickletools.genops(raw))
    (tmp_path / "evil.pkl").write_bytes(raw)
    with pytest.raises(LookalikeError, match=r"posix\.system"):
        authors.read_pickle(tmp_path / "evil.pkl")


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
        authors.read_pickle(write(tmp_path / "odd.pkl", content))


def test_what_cannot_be_read_is_said(table, tmp_path, monkeypatch):
    with pytest.raises(LookalikeError, match="no split file"):
        authors.read_pickle(tmp_path / "none.pkl")
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps(document(["a", "b", "c", "d"]), protocol=3)[:-40])
    with pytest.raises(LookalikeError, match="not a split file"):
        authors.read_pickle(tmp_path / "cut.pkl")
    good = write(tmp_path / "good.pkl", document([f"{i + 1:03}.Kind_{i}" for i in range(8)]))
    with pytest.raises(LookalikeError, match="names the class"):
        authors.read_splits(good, table)
    both = document([f"{i + 1:03}.Kind_{i}" for i in range(6)])
    both[1]["test"][0] = both[1]["train"][0]
    with pytest.raises(LookalikeError, match="both sides"):
        authors.read_splits(write(tmp_path / "both.pkl", both), table)
    monkeypatch.setattr(authors, "MAX_BYTES", 10)
    with pytest.raises(LookalikeError, match="bytes"):
        authors.read_pickle(good)


def test_a_list_named_a_million_times_is_no_way_in(tmp_path, monkeypatch):
    monkeypatch.setattr(authors, "MAX_TEXTS", 1000)
    names = ["a"] * 100
    found = {i: {"train": names, "test": names, "fid": 1.0} for i in range(1, 20)}
    with pytest.raises(LookalikeError, match="too many"):
        authors.read_pickle(write(tmp_path / "many.pkl", found))
