from __future__ import annotations

from typing import Any

import pytest

from lookalike.core import files as formats
from lookalike.core.errors import LookalikeError


def test_the_stamp_stands_first() -> None:
    assert list(formats.stamp("model", {"a": 1}))[:2] == ["format", "kind"]
    assert formats.check_format("model", formats.stamp("model", {"a": 1}), "x")["a"] == 1


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"format": 99, "kind": "model"}, "of format 99; this version reads up to 1: update lookalike"),
        ({"format": 0, "kind": "model"}, "of format 0, written before the first release: make it again"),
        ({"format": 1, "kind": "run"}, "is a lookalike run, not a model"),
        ({"kind": "model"}, "has no format number"),
        ({"format": "1"}, "has no format number"),
        ([], "has no format number"),
        (None, "has no format number"),
    ],
)
def test_what_cannot_be_read_is_reported_in_one_line(document: Any, words: str) -> None:
    with pytest.raises(LookalikeError, match=words):
        formats.check_format("model", document, "folder")
