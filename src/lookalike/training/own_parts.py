"""Objects of the user's own in a run: loss, miner, sampler, transform and callbacks."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from PIL import Image

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess

HOOKS = ("on_step", "on_evaluate", "on_checkpoint", "on_end")


class Callback:
    """Base class of callbacks; a callback overrides what it needs.

    Every hook receives the same object, whose attributes follow the run.

    Example:
        >>> class Stopper(Callback):
        ...     def on_evaluate(self, state):
        ...         state.stop = state.score > 0.9
    """

    def on_step(self, state: CallbackState) -> None:
        """Called after every optimizer step."""

    def on_evaluate(self, state: CallbackState) -> None:
        """Called after every evaluation on the validation classes, also before the first step."""

    def on_checkpoint(self, state: CallbackState) -> None:
        """Called when a checkpoint was written."""

    def on_end(self, state: CallbackState) -> None:
        """Called after the last step, also if the run was stopped early."""


@dataclass
class CallbackState:
    """What callbacks see of a run; `stop` ends it after an evaluation.

    Args:
        run: The run folder.
        model: The model in training.
        method: The training method.
        steps: Number of steps of the run.
        step: Steps taken.
        loss: Loss of the last step.
        logs: Further numbers of the last step.
        score: Metric of the last evaluation.
        best_step: Step of the best evaluation.
        best_score: Its metric.
        stop: Set it to end the run.

    Example:
        >>> class UntilGoodEnough:
        ...     def on_evaluate(self, state):
        ...         state.stop = state.score > 0.9
        >>> la.train(data="birds", callbacks=[UntilGoodEnough()])  # doctest: +SKIP
    """

    run: Any
    model: Any
    method: Any
    steps: int
    step: int = 0
    loss: float = float("nan")
    logs: dict[str, float] | None = None
    score: float | None = None
    best_step: int = 0
    best_score: float | None = None
    stop: bool = False


@dataclass(frozen=True)
class OwnParts:
    """The objects that `train` was given.

    Args:
        loss: A loss of embeddings and labels, also with what a miner returned as third argument.
        miner: A miner of pytorch-metric-learning.
        sampler: A torch sampler over the training images, or a function from their class numbers to one.
        transform: A transform of torchvision or albumentations, or any function of an image.
        callbacks: Objects with some of the hooks of `Callback`, or one such object.

    Raises:
        LookalikeError: An object cannot be what it is passed as.
    """

    loss: Any = None
    miner: Any = None
    sampler: Any = None
    transform: Any = None
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        callbacks = tuple(self.callbacks) if isinstance(self.callbacks, Iterable) else (self.callbacks,)
        object.__setattr__(self, "callbacks", callbacks)
        for name in ("loss", "miner", "sampler", "transform"):
            value = getattr(self, name)
            if isinstance(value, type):
                raise LookalikeError(f"`{name}` is the class {value.__name__}: pass an object, as {value.__name__}(…).")
            if value is not None and name != "sampler" and not callable(value):
                raise LookalikeError(f"`{name}` is {value!r}, which cannot be called: pass a function or a module.")
        for one in callbacks:
            if isinstance(one, type) or not any(callable(getattr(one, hook, None)) for hook in HOOKS):
                raise LookalikeError(f"The callback {one!r} is no object with one of the hooks {', '.join(HOOKS)}.")

    def names(self) -> dict[str, str]:
        """Return the class of every object that is there, by argument."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: value if name == "callbacks" else [value] for name, value in values.items() if value is not None}
        return {name: ", ".join(map(_class_name, some)) for name, some in lists.items() if some}

    def overrides(self, method: Any) -> dict[str, Any]:
        """Return the settings that the objects call for, below those of the user."""
        if self.loss is not None and method is not None:
            raise LookalikeError("`loss` and `method` are both given; a loss of your own is the method.")
        out: dict[str, Any] = {"objects": names} if (names := self.names()) else {}
        out |= {"method": {"name": "own_loss"}} if self.loss is not None else {}
        return out | ({"views": {"mode": "end_to_end"}} if self.transform is not None else {})


def _class_name(value: Any) -> str:
    kind = value if hasattr(value, "__qualname__") else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def check_resumed(names: dict[str, str], own: OwnParts) -> None:
    """Raise if the objects that a run was started with are not there when it is resumed."""
    missing = [name for name in names if name not in own.names()]
    if missing:
        listed, again = (", ".join(template.format(n, names[n]) for n in missing) for template in ("{}: {}", "{}=…"))
        raise LookalikeError(
            f"The run was started with objects of your own ({listed}): resume it from Python with the same ones, as "
            f"train(resume=…, {again})."
        )


def describe_repeat(own: OwnParts, sampler: Any) -> str:
    """Return what a resume cannot repeat by itself, as a sentence; empty without objects of the user's own."""
    names = own.names()
    if not names:
        return ""
    listed = ", ".join(f"{name} ({kind})" for name, kind in names.items())
    parts = [f"The run uses objects of yours: {listed}. To resume it, pass the same ones again"]
    if isinstance(sampler, EpochSampler) and not sampler.repeatable:
        parts.append("the sampler draws from a generator of its own, so that a resumed run sees other batches")
    if own.miner is not None or (own.loss is not None and not hasattr(own.loss, "state_dict")):
        parts.append("what a miner or a plain function remembers is not in the checkpoint")
    return "; ".join(parts) + "."


class EpochSampler:
    """The batches of a torch sampler, one pass after the other, each drawn from random streams of its own.

    The sampler is an iterable of row numbers, `size` of which make a batch, or of lists of them.
    """

    def __init__(self, sampler: Any, count: int, *, size: int, seed: int) -> None:
        self.sampler, self.count, self.seed = sampler, count, seed
        self.size = int(getattr(sampler, "batch_size", None) or size)
        first = self._draw(0)
        self._pass = 0, first
        self.repeatable = all(map(np.array_equal, first, self._draw(0)))
        self.size, self.steps_per_epoch = len(first[0]), len(first)

    def _draw(self, number: int) -> list[np.ndarray]:
        before = seeds.global_state()
        seeds.seed_everything(seeds.derive(self.seed, "sampler", number))
        try:
            if hasattr(self.sampler, "set_epoch"):
                self.sampler.set_epoch(number)
            limit = len(self.sampler) if hasattr(self.sampler, "__len__") else 1_000_000
            rows = list(itertools.islice(iter(self.sampler), limit))
        finally:
            seeds.set_global_state(before)
        if rows and np.ndim(rows[0]):
            batches = [np.asarray(batch, np.int64) for batch in rows]
        else:
            flat, size = np.asarray(rows, np.int64), min(self.size, max(len(rows), 1))
            batches = [flat[start : start + size] for start in range(0, len(flat) - size + 1, size)]
        if not batches or not all(len(batch) for batch in batches):
            raise LookalikeError("The sampler gives no batches.")
        least, largest = np.concatenate(batches).min(), np.concatenate(batches).max()
        if least < 0 or largest >= self.count:
            raise LookalikeError(
                f"The sampler gives row {largest if largest >= self.count else least}, but there are {self.count:,} "
                "training images: pass a function of their labels, as "
                "sampler=lambda labels: MPerClassSampler(labels, 4)."
            )
        return batches

    def batch(self, step: int) -> np.ndarray:
        """Return the rows of the batch of a step."""
        number, place = divmod(step - 1, self.steps_per_epoch)
        if self._pass[0] != number:
            self._pass = number, self._draw(number)
        return self._pass[1][place % len(self._pass[1])]


def make_own_sampler(sampler: Any, labels: np.ndarray, *, size: int, seed: int) -> Any:
    """Return the user's sampler as the loop takes it; see `OwnParts`."""
    if hasattr(sampler, "batch") and hasattr(sampler, "steps_per_epoch"):
        return sampler  # one of ours
    if not hasattr(sampler, "__iter__"):
        if not callable(sampler):
            raise LookalikeError(f"The sampler is of type {type(sampler).__name__}: it must be iterable.")
        return make_own_sampler(sampler(labels), labels, size=size, seed=seed)
    return EpochSampler(sampler, len(labels), size=size, seed=seed)


def _takes_image_by_name(transform: Any) -> bool:
    """Whether a transform is called as those of albumentations are: ``transform(image=pixels)["image"]``."""
    if any(base.__module__.split(".")[0] in ("albumentations", "albucore") for base in type(transform).__mro__):
        return True
    try:
        image = inspect.signature(transform).parameters.get("image")
    except (TypeError, ValueError):  # a callable that tells nothing of its arguments
        return False
    return image is not None and image.kind is image.KEYWORD_ONLY


class OwnView:
    """The view of a transform of the user's own; its random numbers depend on the seed and the step only.

    Drawn on the training thread, one image after another: global random streams are shared among threads.
    """

    kind, serial = "own", True

    def __init__(self, transform: Any, pre: Preprocess) -> None:
        self.transform, self.pre = transform, pre
        self.by_name = _takes_image_by_name(transform)

    def __call__(self, pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        before, seed = seeds.global_state(), int(rng.integers(2**31))
        seeds.seed_everything(seed)
        try:
            if self.by_name:
                if hasattr(self.transform, "set_random_seed"):
                    self.transform.set_random_seed(seed)
                out = self.transform(image=np.ascontiguousarray(pixels))["image"]
            else:
                out = self.transform(Image.fromarray(np.ascontiguousarray(pixels)))
        finally:
            seeds.set_global_state(before)
        return self._square(out)

    def _square(self, out: Any) -> np.ndarray:
        """The result as the pixels (S, S, 3) that the model takes."""
        if isinstance(out, Image.Image):
            out = out.convert("RGB")
        array = np.asarray(out)
        if hasattr(out, "detach") and array.ndim == 3:
            array = array.transpose(1, 2, 0)
        if array.dtype.kind == "f":
            if array.min() < -1e-3 or array.max() > 1 + 1e-3:
                raise LookalikeError("The transform normalizes its images: leave that out, the model does it itself.")
            array = np.round(array * 255).clip(0, 255)
        if array.shape != (self.pre.size, self.pre.size, 3):
            what = f"images of shape {array.shape}" if array.ndim else f"a {type(out).__name__}"
            raise LookalikeError(
                f"The transform returns {what}; the model takes {self.pre.size} × "
                f"{self.pre.size} pixels in RGB: end it with a resize or crop to that size."
            )
        return np.ascontiguousarray(array.astype(np.uint8))

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "transform": _class_name(self.transform)}
