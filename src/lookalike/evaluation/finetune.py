"""A new classifier on a network, by the schedules of the CARP paper: SGD on random crops and flips, batches of 256.

Fine-tuning with few labels moves the network too, on 1 % or 10 % of the training images (section 4.2, after SimCLR);
the linear evaluation moves the classifier alone, on all of them (appendix C.1, with the falls of its source, MoCo).
"""

from __future__ import annotations

import copy
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng, torch_rng
from lookalike.evaluation.arrays import Ints

if TYPE_CHECKING:
    import torch

    from lookalike.data import Table
    from lookalike.models import Embedder

BATCH, MOMENTUM = 256, 0.9


@dataclass(frozen=True)
class Schedule:
    epochs: int
    encoder: float
    """Rate of the network; 0: it stays as it is."""
    classifier: float
    falls: tuple[int, int]
    """Epochs after which both rates are multiplied by `fall`."""
    fall: float


FEW_LABELS = Schedule(20, 0.002, 0.5, (12, 16), 0.2)
LINEAR = Schedule(100, 0.0, 0.3, (60, 80), 0.1)


@dataclass(frozen=True)
class FineTuned:
    linear: bool
    """The classifier alone was trained."""
    share: float
    labeled: int
    top1: float
    top5: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def few_labels(labels: Ints, share: float, seed: int) -> Ints:
    """Rows of a share of every class, at least one each."""
    rows = []
    for code in np.unique(labels[labels >= 0]):
        own = np.flatnonzero(labels == code)
        count = max(1, round(share * len(own)))
        rows.append(numpy_rng(seed, "few labels", share, int(code)).permutation(own)[:count])
    if len(rows) < 2:
        raise LookalikeError(f"Fine-tuning needs at least 2 classes to tell apart; there are {len(rows)}.")
    return np.sort(np.concatenate(rows))


def fine_tune(
    model: Embedder,
    known: Table,
    known_labels: Ints,
    asked: Table,
    asked_labels: Ints,
    *,
    share: float,
    schedule: Schedule = FEW_LABELS,
    seed: int = 0,
) -> FineTuned:
    """Accuracy on `asked` of a copy of the model that was trained on a share of `known`; the model stays as it is.

    Statistics of batch-norm stay as they are: with so few images they would be those of a handful (as in `train`).
    """
    import torch
    from torch import nn

    from lookalike.data import CenterView, PixelCache, RandomView

    rows = few_labels(known_labels, share, seed)
    names, codes = np.unique(known_labels[rows], return_inverse=True)
    network = copy.deepcopy(model).requires_grad_(schedule.encoder > 0).eval()  # eval: statistics frozen
    layer = nn.Linear(network.feature_dim, len(names)).to(network.device)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(layer.weight.shape, generator=torch_rng(seed, "classifier")))
        layer.bias.zero_()
    groups = [
        {"params": [*network.backbone.parameters(), *network.pooling.parameters()], "lr": schedule.encoder},
        {"params": layer.parameters(), "lr": schedule.classifier},
    ]
    solver = torch.optim.SGD(groups, momentum=MOMENTUM)
    pre = network.preprocess
    view, pixels = RandomView(pre, scale=(0.08, 1.0)), PixelCache(known.take(rows), round(pre.size / pre.crop))
    for epoch in range(schedule.epochs):
        if epoch in schedule.falls:
            for group in solver.param_groups:
                group["lr"] *= schedule.fall
        order = numpy_rng(seed, "order", epoch).permutation(len(rows))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            squares = np.stack([view(pixels.get(int(i)), numpy_rng(seed, "view", epoch, int(i))) for i in part])
            logits = layer(network.pooled(torch.from_numpy(squares).to(network.device)))
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(codes[part]).to(network.device))
            solver.zero_grad()
            loss.backward()
            solver.step()
    guesses = _guesses(network, layer, asked, CenterView(pre))
    truth = asked_labels[asked_labels >= 0]
    ranked = names[guesses[asked_labels >= 0]]
    right = ranked == truth[:, None]
    return FineTuned(schedule.encoder == 0, share, len(rows), float(right[:, 0].mean()), float(right.any(1).mean()))


def _guesses(network: Embedder, layer: Any, asked: Table, view: Any) -> Ints:
    """The five likeliest classes of every image, as places in the classifier."""
    import torch

    from lookalike.data import PixelCache

    pixels = PixelCache(asked, round(network.preprocess.size / network.preprocess.crop))
    out: list[torch.Tensor] = []
    with torch.inference_mode():
        for start in range(0, len(asked), 64):
            squares = np.stack([view(pixels.get(i)) for i in range(start, min(start + 64, len(asked)))])
            logits = layer(network.pooled(torch.from_numpy(squares).to(network.device)))
            out.append(logits.topk(min(5, logits.shape[1]), dim=1).indices.cpu())
    found: Ints = torch.cat(out).numpy()
    return found
