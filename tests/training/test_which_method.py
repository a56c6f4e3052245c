"""`train --method auto`: the method measured best on images like these, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests import helpers
from tests.helpers import ROOT

from benchmarks.papers import results_of
from benchmarks.papers import which_method as which
from benchmarks.papers.paired import Difference, difference
from lookalike.core.errors import LookalikeError
from lookalike.data import read_table
from lookalike.training import recipe, train, which_method
from lookalike.training.settings import resolve

TINY = {"model": {"name": "test_efficientnet", "weights": "random", "size": 32}, "log": {"tensorboard": False}}


@pytest.mark.parametrize(("images", "kind"), [(3, "few images"), (20, "many images")])
def test_the_kind_follows_from_the_images_of_a_class(images: int, kind: str, tmp_path: Path) -> None:
    table = read_table(helpers.make_images(tmp_path / "images", classes=5, images=images, width=8, height=8))
    method, why = which_method.choose_method(table)
    assert method == which_method.measured_choice("train", kind)[0]
    assert why.startswith(f"5 classes of {images} images, which is {kind} a class: ")


def test_train_follows_the_choice_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = helpers.make_images(tmp_path / "images", classes=8, images=3, width=32, height=32)
    monkeypatch.setattr(which_method, "measured_choice", lambda command, kind: ("supcon", f"{command}, {kind}"))
    plan = train(data=data, method="auto", settings=TINY, dry_run=True, steps=1)
    assert plan.settings.method.name == "supcon"
    assert (
        "Method: supcon (8 classes of 3 images, which is few images a class: train, few images)."
        in capsys.readouterr().err
    )
    monkeypatch.undo()
    run = train(data=data, method="auto", settings=TINY, steps=1, out=tmp_path / "run", report=False)
    assert run.config["method"]["name"] == which_method.measured_choice("train", "few images")[0]
    assert run.config["data"]["source"] == str(data)


def test_what_auto_cannot_choose_for(tmp_path: Path) -> None:
    flat = helpers.make_images(tmp_path / "images", classes=1, images=3, width=8, height=8) / "class-0"
    flat = flat if flat.is_dir() else next(path for path in (tmp_path / "images").iterdir() if path.is_dir())
    with pytest.raises(LookalikeError, match="lookalike pretrain"):
        train(data=flat, method="auto", settings=TINY)
    with pytest.raises(LookalikeError, match="nothing to train on"):
        train(method="auto", settings=TINY)


DEFAULT = resolve(recipe.load("default")).method.name


def test_auto_is_another_method_than_the_default_only_where_it_was_surely_better() -> None:
    rows = which.rows(ROOT / "results")
    for data, kind in which.CHOICES["train"].items():
        method, why = which_method.measured_choice("train", kind)
        gains = {row.name: row.gain for row in rows if row.data == data and row.name}
        assert next(iter(gains)) == DEFAULT and gains[method] is not None, (
            "the default is what others are compared with"
        )
        count = min(len(gains[DEFAULT].by_seed), len(gains[method].by_seed))
        better = count > 1 and difference(gains[DEFAULT].by_seed[:count], gains[method].by_seed[:count]).low > 0
        assert method == DEFAULT or better, f"{kind}: {method}"
        assert why.startswith(f"{gains[method].mean:+.1f} (")


@pytest.mark.parametrize("left_out", range(3))
def test_auto_is_at_most_a_point_below_the_default_on_a_data_set_it_was_not_made_from(left_out: int) -> None:
    sets = ("cub", "cars", "grocery")
    figures = next(c for c in results_of("defaults", ROOT / "results") if c.key == "default-recipe").figures
    by_method = {row["method"]: row for row in [*figures["best_of_each"], *figures["finalists"]] if not row["views"]}
    assert len(by_method) > 3 and DEFAULT in by_method

    def gain(row: dict[str, Any], chosen: list[str]) -> Difference:
        values = [sum(part) / len(chosen) for part in zip(*(row[name] for name in chosen), strict=True)]
        return difference([0.0] * len(values), values)

    others = [name for n, name in enumerate(sets) if n != left_out]
    order = sorted(by_method, key=lambda name: name != DEFAULT)
    candidates = [which.Row("data", name, gain(by_method[name], others), name=name) for name in order]
    choice = which.chosen(candidates)
    assert choice is not None
    here, default = (gain(by_method[name], [sets[left_out]]).mean for name in (choice.name, DEFAULT))
    assert here >= default - 1, f"{choice.name} on {sets[left_out]}"
