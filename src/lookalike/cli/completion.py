"""Shell completion for the values of options that allow only a few words."""

from __future__ import annotations

import importlib
from collections.abc import Callable

# Name of a parameter (or command.parameter) -> the words, or where they are listed; imported when the shell asks.
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
    "recipes show.name": "lookalike.training.recipe:all_recipes",
    "recipes copy.name": "lookalike.training.recipe:all_recipes",
}


def words(source: str) -> list[str]:
    """List the words of an entry of `WORDS`."""
    if ":" not in source:
        return source.split()
    module, attribute = source.split(":")
    value = getattr(importlib.import_module(module), attribute)
    return list(value() if callable(value) else value)


def completer(command: str, parameter: str) -> Callable[[str], list[str]] | None:
    """Make the completion function of a parameter.

    Args:
        command: The command's name.
        parameter: The parameter's name in Python.

    Returns:
        A function from the beginning of a word to its completions, or None where any value is allowed.
    """
    source = WORDS.get(f"{command}.{parameter}", WORDS.get(parameter))
    if source is None:
        return None
    return lambda incomplete: [word for word in words(source) if word.startswith(incomplete)]
