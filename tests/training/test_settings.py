"""Settings laid over each other, and what is said about wrong ones."""

from __future__ import annotations

import itertools

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.methods import find
from lookalike.training.optim import lr_factor
from lookalike.training.settings import ScheduleSettings, TrainSettings, resolve


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"stesp": 3}, "did you mean `steps`"),
        ({"optimizer": {"momentun": 1}}, "`optimizer.momentun`.*did you mean `momentum`"),
        ({"method": {"name": "ms", "alfa": 1}}, "`alfa` is not one of the settings of the method ms.*`alpha`"),
        ({"method": "supcom"}, "did you mean `supcon`"),
        ({"method": {"name": "xbm", "drift": "xbn"}}, "`drift` is not one of .* xbm; did you mean `memory.drift`"),
        ({"method": {"drift": "xbn"}}, "`drift` is not one of .* ms; `memory.drift` is one of axbn, moco, xbm, xbn."),
        ({"lr": 0.1}, "did you mean `optimizer.lr`"),
        ({"steps": -1}, "`steps` in the training settings is -1"),
        ({"views": {"mode": "cache"}}, "should be 'cached' or 'end_to_end'"),
    ],
)
def test_a_wrong_setting_gives_an_error_that_names_the_right_one(wrong, message):
    with pytest.raises(LookalikeError, match=message):
        resolve(wrong)


def test_later_layers_win_and_nested_ones_are_joined():
    actual = resolve({"steps": 5, "optimizer": {"lr": 0.1, "weight_decay": 0.2}}, {"optimizer": {"lr": 0.3}})
    assert (actual.steps, actual.optimizer.lr, actual.optimizer.weight_decay) == (5, 0.3, 0.2)


def test_another_method_drops_the_settings_of_the_old_one_and_brings_what_suits_it():
    recipe = {"method": {"name": "ms", "alpha": 3.0}, "optimizer": {"lr": 0.5}}
    same = resolve(recipe, {"method": "ms"})
    assert (same.method.own()["alpha"], same.optimizer.lr) == (3.0, 0.5)
    other = resolve(recipe, {"method": "proxy_anchor"})
    assert other.method.own() == find("proxy_anchor").Settings().model_dump()  # nothing of the old alpha
    assert other.optimizer.lr != 0.5
    mine = resolve(recipe, {"method": "proxy_anchor", "optimizer": {"lr": 0.7}})
    assert mine.optimizer.lr == 0.7


def test_resolved_settings_are_a_fixed_point():
    first = resolve({"method": "triplet"})
    assert resolve(first.model_dump(mode="json")) == first


def test_every_setting_has_words_for_the_docs():
    def missing(model, prefix=""):
        for name, info in model.model_fields.items():
            kind = info.annotation
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                yield from missing(kind, f"{prefix}{name}.")
            elif not info.description:
                yield prefix + name

    plain: set[str] = set()
    assert set(missing(TrainSettings)) <= plain


def test_schedules():
    cosine = ScheduleSettings(kind="cosine", warmup_steps=4)
    values = [lr_factor(s, 20, cosine) for s in range(1, 21)]
    assert values[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert all(a > b for a, b in itertools.pairwise(values[4:]))
    assert 0 < values[-1] < 0.02
    assert {lr_factor(s, 9, ScheduleSettings(kind="constant")) for s in range(1, 10)} == {1.0}
    fall = ScheduleSettings(kind="step", step_size=3, gamma=0.5)
    assert [lr_factor(s, 9, fall) for s in range(1, 8)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]
    assert lr_factor(20, 20, ScheduleSettings(kind="cosine", min_lr_ratio=0.1)) == pytest.approx(0.1, abs=0.01)
