from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.settings import Settings, merge, parse_set, read_yaml, write_yaml


class Inner(Settings):
    rate: float = 0.1
    kind: Literal["sgd", "adam"] = "sgd"


class Outer(Settings):
    steps: int = 10
    optimizer: Inner = Inner()
    other: Inner | None = None


def test_a_misspelt_name_is_answered_with_the_nearest_at_any_depth() -> None:
    with pytest.raises(LookalikeError, match=r"^`stesp` is not one of the settings; did you mean `steps`\?$"):
        Outer.parse({"stesp": 3})
    with pytest.raises(LookalikeError, match=r"^`optimizer\.rat` is not one of the recipe; did you mean `rate`\?$"):
        Outer.parse({"optimizer": {"rat": 3}}, "recipe")
    with pytest.raises(LookalikeError, match=r"`other\.kidn` is not .* did you mean `kind`"):
        Outer.parse({"other": {"kidn": 3}})
    with pytest.raises(LookalikeError, match=r"^`zzz` is not one of the settings: there are steps, optimizer, "):
        Outer.parse({"zzz": 1})


def test_a_wrong_value_is_named_with_its_place() -> None:
    with pytest.raises(LookalikeError, match=r"^`optimizer\.rate` in the settings is 'fast': input should be"):
        Outer.parse({"optimizer": {"rate": "fast"}})
    with pytest.raises(LookalikeError, match="'sgd' or 'adam'"):
        Outer.parse({"optimizer": {"kind": "lion"}})


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        (["a=1", "b=x"], {"a": 1, "b": "x"}),
        (["a.b=1", "a.c=2.5"], {"a": {"b": 1, "c": 2.5}}),
        (["rate=3e-4"], {"rate": 3e-4}),
        (["a=[1, 2]", "b=true", "c=null", "d="], {"a": [1, 2], "b": True, "c": None, "d": ""}),
        (["name=resnet18.a1"], {"name": "resnet18.a1"}),
        (["a=x=y"], {"a": "x=y"}),
        (["a=[broken"], {"a": "[broken"}),
    ],
)
def test_set_pairs_are_read_as_yaml(pairs: list[str], expected: dict[str, Any]) -> None:
    assert parse_set(pairs) == expected


@pytest.mark.parametrize("pairs", [["steps"], ["=3"], ["a=1", "a.b=2"]])
def test_set_pairs_that_are_none(pairs: list[str]) -> None:
    with pytest.raises(LookalikeError, match=r"`--set "):
        parse_set(pairs)


def test_layers_lie_over_each_other() -> None:
    base = {"a": 1, "b": {"x": 1, "y": 1}}
    assert merge(base, {"b": {"y": 2}}, {"b": {"z": 3}, "a": {"deep": 1}}) == {
        "a": {"deep": 1},
        "b": {"x": 1, "y": 2, "z": 3},
    }
    assert base == {"a": 1, "b": {"x": 1, "y": 1}}


def test_yaml_files(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_yaml(path, {"b": 1, "a": {"ü": [1, 2]}})
    assert read_yaml(path) == {"b": 1, "a": {"ü": [1, 2]}}
    assert path.read_text().index("b:") < path.read_text().index("a:"), "the order is the author's"
    path.write_text("")
    assert read_yaml(path) == {}
    for text in ("a: [1", "- 1\n- 2"):
        path.write_text(text)
        with pytest.raises(LookalikeError, match="recipe `"):
            read_yaml(path, "recipe")
    with pytest.raises(LookalikeError, match="There is no recipe at"):
        read_yaml(tmp_path / "none.yaml", "recipe")
    shared = [1, 2]
    write_yaml(path, {"a": shared, "b": shared})
    assert read_yaml(path) == {"a": [1, 2], "b": [1, 2]}
    os.truncate(path, 6_000_000_000)
    os.mkfifo(tmp_path / "pipe.yaml")
    for hostile in (path, tmp_path / "pipe.yaml", tmp_path):
        with pytest.raises(LookalikeError, match="cannot be read"):
            read_yaml(hostile)
    path.write_text("!!python/object/apply:os.system ['true']")
    with pytest.raises(LookalikeError, match="is not YAML"):
        read_yaml(path)


@pytest.mark.parametrize("bomb", ["aliases", "depth", "length"])
def test_a_bomb_is_one_short_line(bomb: str, tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    text = {"aliases": "\n".join([*levels, "steps: *a8"]), "depth": "steps: " + "[" * 20_000}.get(bomb, "")
    path = tmp_path / "bomb.yaml"
    path.write_text(text or "steps: [" + "1, " * 5_000 + "1]")
    with pytest.raises(LookalikeError) as caught:
        Outer.parse(read_yaml(path))
    assert len(str(caught.value)) < 400
