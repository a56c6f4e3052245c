"""Feature drift and staleness of a memory: measured during training, shown in the report.

Feature drift (eq. 5 of "Adaptive Cross Batch Normalization for Metric Learning") is the distance between the embeddings
of the same pixels before and after an optimizer step, in evaluation mode. Staleness is the distance between a stored
embedding and the embedding of the same image now. A stored embedding comes from a random view and is compared with the
center crop, so the distance of these two under one model, the floor, is reported as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lookalike.core import report_blocks as s
from lookalike.memory.queue import WatchedRows

NUM_ROWS = 64  # stored rows that are looked at in one reading
DRIFT_ORDER = s.CURVES + 5
COLLAPSED = 0.95  # mean cosine of a batch's embeddings


def feature_drift(before: Tensor, after: Tensor) -> dict[str, float]:
    """Mean and largest distance that the embeddings (n, d) of the same pixels moved in one step.

    Example:
        >>> from lookalike.training.drift import feature_drift
        >>> feature_drift(torch.zeros(2, 3), torch.tensor([[3.0, 4, 0], [0, 0, 1]]))
        {'drift/mean': 3.0, 'drift/max': 5.0}
    """
    moved = torch.linalg.vector_norm(after - before, dim=1)
    return {"drift/mean": moved.mean().item(), "drift/max": moved.max().item()}


def staleness(stored: WatchedRows, now: Tensor, views: Tensor, centers: Tensor) -> dict[str, float]:
    """Mean distance of stored embeddings to the present ones, and its floor.

    `now` (rows, d) are the stored images under the present model; `views` and `centers` (n, d) are random views and
    center crops of a batch, all of unit length.
    """
    normalize = torch.nn.functional.normalize

    def distance(a: Tensor, b: Tensor) -> float:
        return torch.linalg.vector_norm(normalize(a.float(), dim=1) - b, dim=1).mean().item()

    return {
        "memory/stale": distance(stored.adapted, now),
        "memory/stale_original": distance(stored.enqueued, now),
        "memory/floor": distance(views, centers),
    }


def drift_section(log: Sequence[Mapping[str, Any]], every: int) -> s.Section | None:
    """The report section on drift, from the rows of the log; None if drift was not measured."""
    if not any("drift/mean" in row for row in log):
        return None
    names = {"drift/mean": "mean", "drift/max": "largest"}
    note = f"The same pixels before and after a step, in evaluation mode, every {every} steps (eq. 5)."
    blocks: list[s.Block] = [s.log_lines(log, "distance moved by one step", names, title="Feature drift", note=note)]
    if any("memory/stale" in row for row in log):
        keys = {
            "memory/stale": "as it is read (adapted)",
            "memory/stale_original": "as it was stored",
            "memory/floor": "floor: two views, one model",
        }
        note = "Stored rows against the same images embedded now; what lies on the floor is up to date."
        blocks.append(s.log_lines(log, "distance to the present embedding", keys, title="Age of the memory", note=note))
    cosine = s.log_lines(log, "mean cosine", {"drift/cosine": "pairs of a batch"}, title="Collapse")
    last = [row["drift/cosine"] for row in log if "drift/cosine" in row][-1]
    collapsed = f" This run has collapsed: {last:.3f}." if last > COLLAPSED else ""
    cosine.note = f"Near 1 all embeddings lie on one point.{collapsed}"
    blocks.append(cosine)
    if filter_text := describe_filter(log):
        blocks.append(s.Text(title="The filter", text=filter_text))
    return s.Section(title="Drift", order=DRIFT_ORDER, blocks=blocks)


def describe_filter(log: Sequence[Mapping[str, Any]]) -> str:
    """Describe the Kalman filter of the memory's target moments, from the logged gains; empty without one."""
    rows = [row for row in log if "memory/gain" in row]
    if not rows:
        return ""
    gains, window = [row["memory/gain"] for row in rows], rows[-1]["memory/window"]
    text = (
        f"The gain ended at {_gain(gains[-1])} (from {_gain(min(gains))} to {_gain(max(gains))}): the moments the "
        f"memory is matched to are an average over an effective window of {window:.3g} batches."
    )
    if gains[-1] > 0.99:
        text += " That is the present batch alone: in effect XBN."
    if "memory/r" in rows[-1]:
        text += f" Noise estimated from the run: r {rows[-1]['memory/r']:.3g}, q {rows[-1]['memory/q']:.3g}."
    return text


def _gain(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".")
