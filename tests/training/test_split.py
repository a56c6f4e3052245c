"""Who trains, who chooses, who is tested."""

from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.data import Table
from lookalike.training.settings import DataSettings
from lookalike.training.split import divide


def table_of(counts, split=None, layout=None):
    labels = [f"c{c:02d}" for c, n in enumerate(counts) for _ in range(n)]
    columns = {"path": [f"{i}.jpg" for i in range(len(labels))], "label": labels}
    if split is not None:
        columns["split"] = split
    return Table.from_columns(columns, name="test", notes={"layout": layout} if layout else {})


def classes(table, rows):
    return set(table.labels()[0][rows].tolist())


def check_whole(actual, table):
    rows = np.concatenate([actual.train, actual.validation, actual.test])
    assert len(rows) == len(set(rows.tolist()))
    assert rows.max() < len(table)


def test_classes_are_parted_without_overlap():
    table = table_of([5] * 20)
    actual = divide(table, DataSettings())
    check_whole(actual, table)
    sides = [classes(table, rows) for rows in (actual.train, actual.validation, actual.test)]
    assert [len(s) for s in sides] == [12, 2, 6]
    assert not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    assert actual.rule == "classes"
    again = divide(table, DataSettings())
    assert np.array_equal(actual.test, again.test) and np.array_equal(actual.validation, again.validation)
    other = divide(table, DataSettings(split_seed=1))
    assert not np.array_equal(actual.test, other.test)


def test_single_images_are_dealt_out_and_no_side_lives_of_them():
    table = table_of([1] * 10 + [4] * 8)
    actual = divide(table, DataSettings())
    check_whole(actual, table)
    for rows in (actual.train, actual.validation, actual.test):
        pairs = [c for c in classes(table, rows) if c >= 10]
        assert len(pairs) >= 2


def test_few_classes_are_parted_by_image():
    table = table_of([10, 10, 10])
    actual = divide(table, DataSettings())
    check_whole(actual, table)
    assert actual.rule == "images"
    assert classes(table, actual.train) == classes(table, actual.test) == {0, 1, 2}
    assert any("also trained on" in note for note in actual.notes)
    assert len(actual.validation)


def test_the_tables_own_split_is_taken():
    split = ["train"] * 8 + ["val"] * 8 + ["test"] * 8
    table = table_of([4] * 6, split)
    actual = divide(table, DataSettings())
    assert actual.rule == "table"
    assert (actual.train.tolist(), actual.validation.tolist(), actual.test.tolist()) == (
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 24)),
    )


def test_validation_classes_come_out_of_the_training_side():
    split = (["train"] * 5 * 10) + (["test"] * 5 * 10)
    table = table_of([5] * 20, split)
    actual = divide(table, DataSettings())
    assert classes(table, actual.test) == set(range(10, 20))
    assert classes(table, actual.train) | classes(table, actual.validation) == set(range(10))
    assert not classes(table, actual.train) & classes(table, actual.validation)
    none = divide(table, DataSettings(validation_fraction=0))
    assert not len(none.validation)
    assert classes(table, none.train) == set(range(10))


def test_cub_and_cars_are_halved():
    actual = divide(table_of([3] * 10, ["train", "test", "train"] * 10, layout="cub"), DataSettings())
    assert actual.rule == "halves"
    assert max(actual.train) < min(actual.test)


def test_marks_survive_lost_rows():
    table = table_of([5] * 20)
    actual = divide(table, DataSettings())
    marked = actual.mark(table)
    selected = np.delete(np.arange(len(table)), [0, 17, 60])
    again = actual.follow(marked.take(selected))
    ids = table.column("row_id")
    for side in ("train", "validation", "test"):
        expected = set(ids[getattr(actual, side)]) & set(ids[selected])
        assert set(ids[selected][getattr(again, side)]) == expected


def test_a_missing_split_gives_a_one_line_error():
    with pytest.raises(LookalikeError, match="no split of its own"):
        divide(table_of([4] * 8), DataSettings(split="table"))
    with pytest.raises(LookalikeError, match="has no `train`: there is a, b"):
        divide(table_of([4] * 2, ["a"] * 4 + ["b"] * 4), DataSettings(split="table"))
    with pytest.raises(LookalikeError, match="to images"):
        divide(table_of([4] * 3), DataSettings(split="classes"))


def test_no_labels_all_train():
    table = Table.from_columns({"path": ["a.jpg", "b.jpg"]}, name="test")
    actual = divide(table, DataSettings())
    assert (len(actual.train), len(actual.test), actual.rule) == (2, 0, "none")


def test_images_without_a_label_are_no_class():
    labels = [f"c{c}" for c in range(8) for _ in range(5)] + [None] * 20
    columns = {
        "path": [f"{i}.jpg" for i in range(60)],
        "label": labels,
        "split": ["train"] * 40 + ["train", "test"] * 10,
    }
    columns["split"][:10] = ["test"] * 10
    table = Table.from_columns(columns, name="test")
    free = np.flatnonzero(table.labels()[0] < 0)
    for seed in range(20):
        actual = divide(table, DataSettings(split_seed=seed))
        assert actual.rule == "table"
        assert not np.isin(actual.train, free).any() and not np.isin(actual.validation, free).any()
        assert not any("also trained on" in note for note in actual.notes), "no class is on both sides"
    assert np.isin(free, actual.with_unlabeled(table).train).all(), "methods without labels train on them"
