"""Fine-tuning with few labels: the whole network and a new classifier on 1 % or 10 % of the training pictures.

The schedule is the paper's (CARP, section 4.2, after SimCLR): 20 epochs, batches of 256, SGD, encoder 0.002 and
classifier 0.5, both × 0.2 after epochs 12 and 16, random crops and flips.
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

EPOCHS, BATCH, FALLS, FALL = 20, 256, (12, 16), 0.2
ENCODER, CLASSIFIER, MOMENTUM = 0.002, 0.5, 0.9


@dataclass(frozen=True)
class FineTuned:
    share: float
    labelled: int
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
    epochs: int = EPOCHS,
    seed: int = 0,
) -> FineTuned:
    """Accuracy on `asked` of a copy of the model that was fine-tuned on a share of `known`; the model stays as it is.

    Statistics of batch-norm stay as they are: with so few pictures they would be those of a handful (as in `train`).
    """
    import torch
    from torch import nn

    from lookalike.data import CentreView, PixelCache, RandomView

    rows = few_labels(known_labels, share, seed)
    names, codes = np.unique(known_labels[rows], return_inverse=True)
    network = copy.deepcopy(model).requires_grad_(True).eval()  # eval: statistics frozen, gradients as ever
    layer = nn.Linear(network.feature_dim, len(names)).to(network.device)
    with torch.no_grad():
        layer.weight.copy_(0.01 * torch.randn(layer.weight.shape, generator=torch_rng(seed, "classifier")))
        layer.bias.zero_()
    groups = [
        {"params": [*network.backbone.parameters(), *network.pooling.parameters()], "lr": ENCODER},
        {"params": layer.parameters(), "lr": CLASSIFIER},
    ]
    solver = torch.optim.SGD(groups, momentum=MOMENTUM)
    pre = network.preprocess
    view, pixels = RandomView(pre, scale=(0.08, 1.0)), PixelCache(known.take(rows), round(pre.size / pre.crop))
    for epoch in range(epochs):
        if epoch in FALLS:
            for group in solver.param_groups:
                group["lr"] *= FALL
        order = numpy_rng(seed, "order", epoch).permutation(len(rows))
        for start in range(0, len(order), BATCH):
            part = order[start : start + BATCH]
            squares = np.stack([view(pixels.get(int(i)), numpy_rng(seed, "view", epoch, int(i))) for i in part])
            logits = layer(network.pooled(torch.from_numpy(squares).to(network.device)))
            loss = nn.functional.cross_entropy(logits, torch.from_numpy(codes[part]).to(network.device))
            solver.zero_grad()
            loss.backward()
            solver.step()
    guesses = _guesses(network, layer, asked, CentreView(pre))
    truth = asked_labels[asked_labels >= 0]
    ranked = names[guesses[asked_labels >= 0]]
    right = ranked == truth[:, None]
    return FineTuned(share, len(rows), float(right[:, 0].mean()), float(right.any(1).mean()))


def _guesses(network: Embedder, layer: Any, asked: Table, view: Any) -> Ints:
    """The five likeliest classes of every picture, as places in the classifier."""
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
