"""`adapt`, `promote`, `rollback` and `forget` pass their options on, and print the result."""

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
    "method": "shot",
    "why": "it gains most",
    "classes": "the model's classifier",
    "evidence": "accuracy 0.610 before, 0.670 after: +6.0 points (+2.1 to +9.8)",
    "counts": {"learned_from": 70, "held_out": 30, "judged": 190, "used": 12, "pool": 40},
    "seconds": {"prepare": 2.0, "pool": 31.0, "features": 12.0, "steps": 240.0, "judging": 3.0},
}


def test_adapt(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    received: dict[str, Any] = {}

    def stand_in(**options: Any) -> Any:
        received.update(options)
        return SimpleNamespace(path=Path("runs/x").absolute(), result=RESULT)

    monkeypatch.setitem(vars(lookalike), "adapt", stand_in)
    words = ["m", "--target", "t", "--pool", "a", "--pool", "b", "--deny", "a/*", "--set", "neighbors=5", "--stream"]
    answer = cli("adapt", *words)
    assert answer.code == 0 and answer.out.splitlines()[0] == RESULT["verdict"]
    assert (
        "shot: it gains most" in answer.out
        and "12 of 40 images used" in answer.out
        and "lookalike rollback runs/x" in answer.out
    )
    assert "70 images, judged by 190 others" in answer.out and "0.610 before, 0.670 after: +6.0 points" in answer.out
    assert "Time           prepare 2 s, pool 31 s, features 12 s, steps 4 min, judging 3 s" in answer.out
    assert "Candidate" not in answer.out, "it is the model in use"
    assert (received["pool"], received["deny"], received["stream"]) == (["a", "b"], ["a/*"], True)
    assert received["settings"] == {"neighbors": 5} and "labeled" not in received
    assert cli("adapt", *words, "--json").json["version"] == 2
    assert cli("adapt", "--resume", "runs/x", "--processes", "2").code == 0
    assert (received["resume"], received["processes"]) == ("runs/x", 2)


def test_a_rejected_candidate_and_an_unused_pool(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    result = {**RESULT, "promoted": False, "counts": {**RESULT["counts"], "used": 0, "pool": 500}}
    done = SimpleNamespace(path=Path("runs/x").absolute(), result=result)
    monkeypatch.setitem(vars(lookalike), "adapt", lambda **options: done)
    shown = cli("adapt", "m", "--target", "t").out
    assert "500 images, of which shot uses none" in shown and "lookalike promote runs/x" in shown
    assert "runs/x/versions/2/model" in shown, "the candidate can be inspected"
    result["counts"]["pool"] = 0
    assert "Pool" not in cli("adapt", "m", "--target", "t").out


def test_adapt_needs_a_model_and_a_target_or_a_run(cli: Any) -> None:
    assert "Give a model and --target, or an unfinished run with --resume." in cli("adapt", "m").err


def test_promote(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    done = {"model": Path("runs/x"), "version": 2, "promoted": True, "verdict": RESULT["verdict"], "evidence": ""}
    monkeypatch.setitem(vars(lookalike), "promote", lambda **options: {**done, "promoted": "judge" not in options})
    answer = cli("promote", "runs/x", "--version", "2")
    assert answer.out.startswith(done["verdict"]) and "lookalike rollback" in answer.out
    assert "rollback" not in cli("promote", "runs/x", "--judge", "labeled").out


def test_rollback_and_forget(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    back = {"model": Path("runs/x"), "from": 2, "to": 0, "fingerprint": "f"}
    monkeypatch.setitem(vars(lookalike), "rollback", lambda **options: {**back, "to": options.get("to", 0)})
    assert cli("rollback", "runs/x").out == "x uses the base model again, in place of version 2.\n"
    assert "version 1 again" in cli("rollback", "runs/x", "--to", "1").out
    gone = {"forgotten": ["a", "b"], "versions_gone": [1], "made_again": 3, "in_use": 3}
    monkeypatch.setitem(vars(lookalike), "forget", lambda **options: {**gone, "images": options["images"]})
    answer = cli("forget", "runs/x", "a.jpg", "pool/b*")
    assert answer.out.splitlines() == [
        "Forgot 2 images; versions deleted: 1.",
        "Version 3 was trained again from the base model.",
        "In use: version 3.",
    ]
    assert cli("forget", "runs/x", "a.jpg", "pool/b*", "--json").json["images"] == ["a.jpg", "pool/b*"]
