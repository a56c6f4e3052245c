"""The verb `pretrain`: from images without labels to a backbone. The job and the loop are those of `train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike import methods
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.training import recipe as cookbook
from lookalike.training.job import STARTS, Plan, given_settings, start
from lookalike.training.settings import expand_shorthand

if TYPE_CHECKING:
    from lookalike.data.table import Table


SCRATCH = {"model": {"weights": "random", "batch_norm": "train"}}  # random weights have no statistics to keep


def pretrain(
    *,
    data: str | Path | Table | None = None,
    method: str | None = None,
    model: str | Path | None = None,
    recipe: str | Path | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    settings: Mapping[str, Any] | None = None,
    processes: int | None = None,
    from_scratch: bool = False,
    dry_run: bool = False,
    report: bool = True,
) -> Run | Plan:
    """Learn from images without labels; the result is a backbone that `train` and `index` take like any other.

    `from_scratch` starts from random weights instead of the model's own, with settings that suit that. Where there are
    labels, a fifth of the images is held out; k-NN accuracy on it is followed during the run and decides whether the
    trained model or the starting one is kept. Without labels both are, and the starting one stays the default.
    Everything else is as in `train`.
    """
    given = given_settings(data, method, model, seed, device, steps, learning_rate, processes)
    asked = merge(expand_shorthand(settings or {}), expand_shorthand(given))
    if from_scratch:
        asked = merge(SCRATCH, methods.find(_method_of(asked, recipe)).from_scratch_overrides, asked)
    return start("pretrain", data, recipe, asked, out=out, resume=resume, dry_run=dry_run, report=report)


def _method_of(asked: Mapping[str, Any], recipe: str | Path | None) -> str:
    """The method that will be taken: what was asked for, or the recipe's."""
    named = asked.get("method", {}).get("name")
    return str(named or expand_shorthand(cookbook.load(recipe or STARTS["pretrain"]))["method"]["name"])
