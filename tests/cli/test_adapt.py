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
    words = ["m", "--target", "t", "--pool", "a", "--pool", "b", "--deny", "a/*", "--set", "neighbors=5", "--stream"]
    answer = cli("adapt", *words)
    assert answer.code == 0 and answer.out.splitlines()[0] == RESULT["verdict"]
    assert "12 of 40 pool images" in answer.out and "lookalike rollback runs/x" in answer.out
    assert (asked["pool"], asked["deny"], asked["stream"]) == ([Path("a"), Path("b")], ["a/*"], True)
    assert asked["settings"] == {"neighbors": 5} and asked["labeled"] is False
    assert cli("adapt", *words, "--json").json["version"] == 2
    assert cli("adapt", "--resume", "runs/x", "--processes", "2").code == 0
    assert (asked["resume"], asked["processes"], asked["model"], asked["target"]) == (Path("runs/x"), 2, None, None)


def test_adapt_needs_a_model_and_a_target_or_a_run(cli: Any) -> None:
    assert "Give a model and --target, or an unfinished run with --resume." in cli("adapt", "m").err


def test_protocol(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    row = {
        "source": "synthetic",
        "target": "real/val",
        "method": "t3ar",
        "fraction": 0.1,
        "seed": 0,
        "class_mean": 51.0,
    }
    result = {"measure": "class_mean", "rows": [row, {**row, "neighbors": 5}]}

    def stand_in(**options: Any) -> Any:
        asked.update(options)
        return SimpleNamespace(path=Path("runs/p").absolute(), result=result)

    monkeypatch.setitem(vars(lookalike), "protocol", stand_in)
    answer = cli(
        "protocol", "visda", "data", "--pool", "a", "--fraction", "0.1", "--neighbors", "5", "--set", "rate=0.1"
    )
    assert answer.code == 0 and "t3ar, 5 neighbors" in answer.out and "51.0" in answer.out
    assert (asked["fraction"], asked["neighbors"], asked["settings"]) == ([0.1], [5], {"rate": 0.1})
    assert cli("protocol", "visda", "data", "--json").json["rows"][0]["method"] == "t3ar"


def test_rollback_and_forget(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    back = {"model": Path("runs/x"), "from": 2, "to": 0, "fingerprint": "f"}
    monkeypatch.setitem(vars(lookalike), "rollback", lambda **options: {**back, "to": options["to"] or 0})
    assert cli("rollback", "runs/x").out == "x uses the base model again, in place of version 2.\n"
    assert "version 1 again" in cli("rollback", "runs/x", "--to", "1").out
    gone = {"forgotten": ["a", "b"], "versions_gone": [1], "made_again": 3, "in_use": 3}
    monkeypatch.setitem(vars(lookalike), "forget", lambda **options: {**gone, "asked": options["images"]})
    answer = cli("forget", "runs/x", "a.jpg", "pool/b*")
    assert answer.out.splitlines() == [
        "Forgot 2 images; versions gone for good: 1.",
        "Version 3 was made again from the base model.",
        "In use: version 3.",
    ]
    assert cli("forget", "runs/x", "a.jpg", "pool/b*", "--json").json["asked"] == ["a.jpg", "pool/b*"]
