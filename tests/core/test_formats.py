from __future__ import annotations

from typing import Any

import pytest

from lookalike.core import formats
from lookalike.core.errors import LookalikeError


@pytest.fixture
def third_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that is at format 3, with ways from 1 to 2 and from 2 to 3."""
    monkeypatch.setitem(formats.CURRENT, "run", 3)
    monkeypatch.setattr(formats, "_MIGRATIONS", {})

    @formats.migration("run", 1)
    def first(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "color": document["color"]}

    @formats.migration("run", 2)
    def second(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "colors": [document["color"]]}


def test_the_stamp_stands_first() -> None:
    assert list(formats.stamp("model", {"a": 1}))[:2] == ["format", "kind"]
    assert formats.check_format("model", formats.stamp("model", {"a": 1}), "x")["a"] == 1


def test_old_documents_walk_through_every_migration(third_format: None) -> None:
    document = formats.check_format("run", {"format": 1, "kind": "run", "color": "red"}, "x")
    assert document["format"] == 3
    assert document["colors"] == ["red"]
    assert formats.check_format("run", {"format": 2, "color": "red"}, "x")["colors"] == ["red"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"format": 99, "kind": "model"}, "of format 99; this version reads up to 1: update lookalike"),
        ({"format": 0, "kind": "model"}, "of format 0, which can no longer be read"),
        ({"format": 1, "kind": "run"}, "is a lookalike run, not a model"),
        ({"kind": "model"}, "has no format number"),
        ({"format": "1"}, "has no format number"),
        ([], "has no format number"),
        (None, "has no format number"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_sentence(document: Any, words: str) -> None:
    with pytest.raises(LookalikeError, match=words):
        formats.check_format("model", document, "folder")
