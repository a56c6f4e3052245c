"""`adapt`, `rollback` and `forget` hand over what they are given, and say what came of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lookalike

RESULT = {
    "verdict": "Promoted the adapted model (labels).",
    "promoted": True,
    "version": 2,
    "classes": "the model's classifier",
    "counts": {"learnt_from": 70, "held_out": 30, "used": 12, "pool": 40},
}


def test_adapt(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def stand_in(**options: Any) -> Any:
        asked.update(options)
        return SimpleNamespace(path=Path("runs/x").absolute(), result=RESULT)

    monkeypatch.setitem(vars(lookalike), "adapt", stand_in)
    words = ["m", "--target", "t", "--pool", "a", "--pool", "b", "--deny", "a/*", "--set", "neighbours=5", "--stream"]
    answer = cli("adapt", *words)
    assert answer.code == 0 and answer.out.splitlines()[0] == RESULT["verdict"]
    assert "12 of 40 pool pictures" in answer.out and "lookalike rollback runs/x" in answer.out
    assert (asked["pool"], asked["deny"], asked["stream"]) == ([Path("a"), Path("b")], ["a/*"], True)
    assert asked["settings"] == {"neighbours": 5} and asked["labelled"] is False
    assert cli("adapt", *words, "--json").json["version"] == 2
    assert "needs --target" in cli("adapt", "m").err


def test_rollback_and_forget(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    back = {"model": Path("runs/x"), "from": 2, "to": 0, "fingerprint": "f"}
    monkeypatch.setitem(vars(lookalike), "rollback", lambda **options: {**back, "to": options["to"] or 0})
    assert cli("rollback", "runs/x").out == "x uses the base model again, in place of version 2.\n"
    assert "version 1 again" in cli("rollback", "runs/x", "--to", "1").out
    gone = {"forgotten": ["a", "b"], "versions_gone": [1], "made_again": 3, "in_use": 3}
    monkeypatch.setitem(vars(lookalike), "forget", lambda **options: {**gone, "asked": options["pictures"]})
    answer = cli("forget", "runs/x", "a.jpg", "pool/b*")
    assert answer.out.splitlines() == [
        "Forgot 2 pictures; versions gone for good: 1.",
        "Version 3 was made again from the base model.",
        "In use: version 3.",
    ]
    assert cli("forget", "runs/x", "a.jpg", "pool/b*", "--json").json["asked"] == ["a.jpg", "pool/b*"]
