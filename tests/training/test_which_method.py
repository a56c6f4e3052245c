"""`train --method auto`: the method measured best on images like these, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import helpers

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


def test_auto_is_never_another_method_than_the_default_without_evidence() -> None:
    """On data the table was not made from it can lose nothing while it chooses the default recipe's method."""
    default = resolve(recipe.load("default")).method.name
    for kind in ("few images", "many images"):
        method, why = which_method.measured_choice("train", kind)
        assert method == default or "points of recall@1" in why
