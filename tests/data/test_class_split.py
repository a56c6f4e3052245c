from __future__ import annotations

from pathlib import Path

import pytest
from tests.data.places import touch

from lookalike.core.errors import LookalikeError
from lookalike.data import Table, check_classes, read_table, retrieval_split


def table(labels: list[str | None], **more: object) -> Table:
    return Table.from_columns({"path": [f"{i}.jpg" for i in range(len(labels))], "label": labels, **more}, name="t")


def test_one_class_is_answered_as_the_terminal_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "birds/gull/1.jpg", "birds/gull/2.jpg", "flat/1.jpg")
    monkeypatch.chdir(tmp_path)
    expected = "`birds/` holds 1 class; training needs at least 2: give a folder with one subfolder a class."
    for source in ("birds", "birds/"):
        with pytest.raises(LookalikeError) as caught:
            check_classes(read_table(source))
        assert str(caught.value) == expected
    with pytest.raises(LookalikeError, match="`flat/` has no labels; training needs at least 2 classes"):
        check_classes(read_table("flat"))


def test_small_classes_are_named_and_only_too_few_others_are_an_error() -> None:
    assert check_classes(table(["a", "a", "b", "b", "c", None])) == ["c"]
    assert check_classes(table(["a", "a", "b", "b"])) == []
    with pytest.raises(LookalikeError, match=r"holds 3 classes, but only 1 with at least 2 images.*first: `b`"):
        check_classes(table(["a", "a", "b", "c"]))
    with pytest.raises(LookalikeError, match="needs at least 5"):
        check_classes(table(["a", "a", "b", "b"]), minimum_classes=5)


def test_classes_are_halved_in_natural_order() -> None:
    own = ["train", "test", "train", "train", "test"]
    parted = retrieval_split(table(["c10", "c2", "c1", None, "c1"], split=own))
    assert parted.column("split").tolist() == ["test", "train", "train", None, "train"]
    assert parted.column("official_split").tolist() == own
    assert not retrieval_split(table(["a", "b"])).has("official_split")


def test_splits_that_part_the_classes_are_unchanged() -> None:
    own = ["train", "train", "test", "val"]
    assert retrieval_split(table(["a", "b", "c", "d"], split=own)).column("split").tolist() == own
    assert retrieval_split(table(["z", "b"], split=["train", "val"])).column("split").tolist() == ["train", "test"]
    mixed = retrieval_split(table(["a", "b", "a"], split=["train", "train", "test"]))
    assert mixed.column("split").tolist() == ["train", "test", "train"]


def test_one_class_cannot_be_parted() -> None:
    with pytest.raises(LookalikeError, match="needs at least 2"):
        retrieval_split(table(["a", "a"]))
