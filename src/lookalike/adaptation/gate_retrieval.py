"""The gate for a model without a classifier: judged by what it retrieves.

Without labels the adapted model must retrieve most of what the previous model retrieved; retrieve more images of the
classes that the previous model is surest of, which favors the previous model; and be no less stable under another view.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lookalike.adaptation import signals
from lookalike.adaptation.gate import Decision
from lookalike.core.settings import Settings


class FindingThresholds(Settings):
    """Thresholds of the label-free gate for a model without a classifier.

    They were chosen by `python -m benchmarks.speed gate-embedders` (docs/design/adaptation.md).
    """

    overlap: float = 0.75
    """Share of the ten nearest images that are still among the ten nearest, at least."""
    names: float = 0.005
    """Change of MAP@R by the classes that the old model names, on the half it is surest of, more than this."""
    stable: float = 0.01
    """Change of the share of the ten nearest that another view of the image finds too, more than this."""
    images: int = 500
    """Held-out images, at least: the fewest that the bench had. Among fewer the ten nearest are another measure."""


@dataclass(frozen=True)
class Seen:
    """Unit vectors of held-out images, and of another view of each."""

    rows: np.ndarray
    again: np.ndarray


def measure(before: Seen, candidate: Seen, told: np.ndarray) -> dict[str, float]:
    """The signals; `told` are the old model's probabilities for the images."""
    codes, sure = told.argmax(1), signals.surest_half(told)
    names = [signals.found_by_names(seen.rows[sure], codes[sure]) for seen in (before, candidate)]
    stable = [signals.stable(seen.rows, seen.again) for seen in (before, candidate)]
    return {
        "images": len(before.rows),
        "overlap": signals.overlap(before.rows, candidate.rows),
        "names": names[1] - names[0],
        "stable": stable[1] - stable[0],
    }


def reasons_to_keep(found: dict[str, float], limits: FindingThresholds, *, alarm: str | None = None) -> list[str]:
    """Why a candidate with these signals is not promoted; empty if it is."""
    asked = [
        (alarm is None, str(alarm)),
        (
            found["images"] >= limits.images,
            f"{found['images']:.0f} held-out images are too few ({limits.images} are needed)",
        ),
        (
            found["overlap"] >= limits.overlap,
            f"of the ten nearest images {found['overlap']:.0%} stay (least {limits.overlap:.0%})",
        ),
        (
            found["names"] > limits.names,
            f"it finds too few more images of the classes that the old model is surest of (MAP@R "
            f"{100 * found['names']:+.1f} points; more than {100 * limits.names:+g} is asked)",
        ),
        (
            found["stable"] > limits.stable,
            f"another view of an image finds too little more of the same ({100 * found['stable']:+.1f} points; "
            f"more than {100 * limits.stable:+g} is asked)",
        ),
    ]
    return [why for holds, why in asked if not holds]


def without_labels(
    before: Seen,
    candidate: Seen,
    told: np.ndarray,
    *,
    alarm: str | None = None,
    limits: FindingThresholds | None = None,
) -> Decision:
    """Decide without labels, by what both models retrieve among the same held-out images."""
    found = measure(before, candidate, told)
    reasons = reasons_to_keep(found, limits or FindingThresholds(), alarm=alarm)
    return Decision(not reasons, reasons, "without labels, by what it finds", found)
