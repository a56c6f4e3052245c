"""Linear probe: multinomial logistic regression on frozen features, its weight decay picked on held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Floats, Ints, as_common_codes, as_rows

if TYPE_CHECKING:
    import torch

DECAYS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True)
class Probe:
    accuracy: float
    decay: float
    tried: dict[float, float]  # weight decay → accuracy on the held-out part of the train rows
    correct: Bools  # per test row

    def to_json(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "decay": self.decay, "tried": {f"{k:g}": v for k, v in self.tried.items()}}


def linear_probe(
    train: Any,
    train_labels: Any,
    test: Any,
    test_labels: Any,
    *,
    held_out: Any = None,
    decays: Sequence[float] = DECAYS,
    iterations: int = 100,
    seed: int = 0,
) -> Probe:
    """Accuracy on the test rows of a classifier fitted to the train rows by L-BFGS.

    `held_out` masks the train rows that choose the weight decay (else a fifth of each class, drawn by the seed);
    the chosen one is then fitted to all train rows.
    """
    known, asked = as_rows(train, "train rows"), as_rows(test, "test rows")
    codes, truth = as_common_codes(train_labels, test_labels, (len(known), len(asked)))
    known, codes = known[codes >= 0], codes[codes >= 0]
    names, codes = np.unique(codes, return_inverse=True)
    if len(names) < 2:
        raise LookalikeError(f"A linear probe needs at least 2 classes to tell apart; there are {len(names)}.")
    center = known.mean(axis=0)
    scale = float(np.sqrt(np.square(known - center).mean())) or 1.0  # one number: directions keep their weight
    known, asked = (known - center) / scale, (asked - center) / scale
    aside = fifth(codes, seed) if held_out is None else np.asarray(held_out, dtype=bool)
    tried: dict[float, float] = {}
    if len(decays) > 1 and aside.any() and not aside.all():
        weights = None
        for decay in sorted(decays, reverse=True):  # from stiff to free, each starting where the last one ended
            weights = _fit(known[~aside], codes[~aside], len(names), decay, iterations, weights)
            tried[decay] = float((_predict(known[aside], weights) == codes[aside]).mean())
    best = max(tried, key=lambda d: (tried[d], d)) if tried else decays[0]
    guess = names[_predict(asked, _fit(known, codes, len(names), best, iterations, None))]
    correct = np.asarray(guess == truth)[truth >= 0]
    return Probe(float(correct.mean()) if len(correct) else float("nan"), best, tried, correct)


def fifth(codes: Ints, seed: int) -> Bools:
    """A fifth of each class's rows, rounded; classes of one or two rows stay whole."""
    order = numpy_rng(seed, "probe").permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    _, start, size = np.unique(codes[order], return_index=True, return_counts=True)
    place = np.arange(len(codes)) - np.repeat(start, size)
    out = np.zeros(len(codes), bool)
    out[order] = place < np.repeat(np.round(size / 5), size)
    return out


def _fit(
    rows: Floats, codes: Ints, classes: int, decay: float, iterations: int, start: torch.Tensor | None
) -> torch.Tensor:
    """Weights with the bias as last column; the bias is not decayed."""
    import torch

    x, y = torch.from_numpy(rows), torch.from_numpy(codes)
    weights = torch.zeros(classes, x.shape[1] + 1) if start is None else start.clone()
    weights.requires_grad_(True)
    solver = torch.optim.LBFGS(
        [weights], max_iter=iterations, history_size=10, line_search_fn="strong_wolfe", tolerance_change=1e-7
    )

    def closure() -> torch.Tensor:
        solver.zero_grad()
        logits = torch.addmm(weights[:, -1], x, weights[:, :-1].T)
        loss = torch.nn.functional.cross_entropy(logits, y) + decay / 2 * weights[:, :-1].square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return weights.detach()


def _predict(rows: Floats, weights: torch.Tensor) -> Ints:
    import torch

    with torch.inference_mode():
        logits = torch.addmm(weights[:, -1], torch.from_numpy(rows), weights[:, :-1].T)
        return logits.argmax(dim=1).numpy()
