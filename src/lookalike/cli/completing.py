"""What a shell offers for the value of an option, where only a few words are right."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, get_args

from typer.models import ParameterInfo

# Name of a parameter (or verb.parameter) -> the words, or where they are known; imported when the shell asks.
WORDS = {
    "device": "lookalike.core.device:KINDS",
    "layout": "lookalike.data.readers:layouts",
    "method": "lookalike.methods:names",
    "mode": "auto leave-one-out query-gallery",
    "on_error": "skip raise",
    "pooling": "avg max avgmax gem cls",
    "precision": "f32 bf16",
    "recipe": "lookalike.training.recipe:names",
    "runtime": "auto torch openvino onnx",
    "store": "lookalike.store:stores",
    "adapt.config": "lookalike.training.recipe:names_for_adapt",
    "adapt.method": "lookalike.adaptation.settings:METHODS",
    "show.name": "lookalike.training.recipe:every",
    "copy.name": "lookalike.training.recipe:every",
}


def words(source: str) -> list[str]:
    """The words of a row of `WORDS`."""
    if ":" not in source:
        return source.split()
    module, attribute = source.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return list(found() if callable(found) else found)


def _offer(source: str) -> Callable[[str], list[str]]:
    return lambda incomplete: [word for word in words(source) if word.startswith(incomplete)]


def offer(verb: str, parameter: str, annotation: Any) -> None:
    """Let the shell complete the values of a parameter of a verb, if its words are known."""
    source = WORDS.get(f"{verb}.{parameter}", WORDS.get(parameter))
    for info in get_args(annotation)[1:]:
        if source is not None and isinstance(info, ParameterInfo):
            info.autocompletion = _offer(source)
