"""Which of several duplicates to keep, and why: a suggestion with its reason, never an act."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lookalike.searching.image_facts import Look


def suggest(files: Sequence[Look], *, prefer: str = "") -> tuple[int, str]:
    """The place of the file to keep, and the reason in words.

    In this order: the preferred folder, more pixels, lower compression, has a date or a place, older, first by name.
    Bytes are no measure: a larger file may only be badly packed.
    """
    marks = [_marks(look, prefer) for look in files]
    keep = min(range(len(files)), key=lambda i: (*marks[i].values(), files[i].path))
    reasons = [words for words, value in marks[keep].items() if any(value < other[words] for other in marks)]
    words = {"a date and a place": _has(files[keep])}
    reason = ", ".join(words.get(name, name) for name in reasons) or "first by name"
    return keep, reason


def _marks(look: Look, prefer: str) -> dict[str, float]:
    """Smaller is better, the most important first; the names are the reasons."""
    folder = prefer.strip("/")
    inside = bool(folder) and look.path.startswith(f"{folder}/")
    compression = 1000.0 if look.compression is None else round(look.compression, 1)
    return {
        f"in {folder}/": 0.0 if inside else 1.0,
        "more pixels": -float(look.width * look.height),
        "less compressed": compression,
        "a date and a place": -float(look.date is not None) - float(look.place),
        "older": _when(look),
    }


def _when(look: Look) -> float:
    """When it was taken, else when the file was written."""
    try:
        return time.mktime(time.strptime(look.date or "", "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):  # none, or one that older versions kept (`1-01-01`)
        return look.mtime


def _has(look: Look) -> str:
    if look.date and look.place:
        return "has a date and a place"
    return "has a date" if look.date else "has a place"
