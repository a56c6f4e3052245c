"""Recipes: what each resolves to, and how one extends another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lookalike import adaptation, methods
from lookalike.adaptation.settings import resolve as resolve_adapt
from lookalike.core.errors import LookalikeError
from lookalike.training import TrainSettings, resolve
from lookalike.training.recipe import load, names, recipes

SNAPSHOT = Path(__file__).with_name("recipes.json")
"""Resolved settings of every recipe that differ from the defaults, as they were before recipes extended each other."""


def without(settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Settings that differ from their defaults."""
    out = {}
    for name, value in settings.items():
        if isinstance(value, dict) and isinstance(defaults.get(name), dict):
            value = without(value, defaults[name])
            if value:
                out[name] = value
        elif value != defaults.get(name):
            out[name] = value
    return out


def differing(name: str, command: str) -> dict[str, Any]:
    if command == "adapt":
        plain = adaptation.AdaptSettings().model_dump(mode="json")
        return without(resolve_adapt(name).model_dump(mode="json"), plain)
    settings = resolve(load(name)).model_dump(mode="json")
    own = methods.find(settings["method"]["name"]).Settings().model_dump(mode="json")
    plain = TrainSettings().model_dump(mode="json") | {"method": own}
    return without(settings, plain)


def test_every_recipe_resolves_to_what_it_did_when_it_was_written_out() -> None:
    known = json.loads(SNAPSHOT.read_text())
    assert {command: {name: differing(name, command) for name in names(command)} for command in known} == known


def test_a_recipe_states_only_what_differs(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("extends: default\nmethod: {name: ms, alpha: 3}\nsteps: 7\n")
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nmethod: ms\nseed: 2\n")
    (tmp_path / "other.yaml").write_text("extends: base.yaml\nmethod: supcon\n")
    mine, other = (load(tmp_path / name) for name in ("mine.yaml", "other.yaml"))
    assert (mine["steps"], mine["seed"], mine["head"]["embedding_dim"]) == (7, 2, 512)
    assert mine["method"] == {"name": "ms", "alpha": 3}
    assert other["method"] == "supcon" and resolve(other).steps == 7, "settings of another method are dropped"


def test_wrong_extends_are_errors(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("extends: a.yaml\n")
    with pytest.raises(LookalikeError, match=r"extends itself .a → b → a."):
        load(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("extends: defualt\n")
    with pytest.raises(LookalikeError, match="did you mean `default`"):
        load(tmp_path / "a.yaml")
    (tmp_path / "a.yaml").write_text("extends: [default, cub]\n")
    with pytest.raises(LookalikeError, match="must be the name of one recipe"):
        load(tmp_path / "a.yaml")


@pytest.mark.parametrize("command", ["train", "adapt"])
def test_every_recipe_says_what_it_is(command: Any) -> None:
    listed = {row["name"]: row["about"] for row in recipes() if row["command"] == command}
    assert set(listed) == set(names(command)) and all(listed.values())


def test_recipes_are_listed_shown_and_copied(tmp_path: Path) -> None:
    assert recipes()[0]["name"] == "default"
    assert recipes(show="default").startswith("#")
    path = recipes(copy="default", to=tmp_path / "mine.yaml")
    assert load(path) == load("default")
    with pytest.raises(LookalikeError, match="already exists"):
        recipes(copy="default", to=path)
    with pytest.raises(LookalikeError, match="did you mean `default`"):
        recipes(show="defualt")
