"""Index tuples of pytorch-metric-learning, and which of its losses and miners the fast path computes itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lookalike.losses.mined_supcon import Margins

Tuple = Sequence[Tensor]
"""(anchors, positives, negatives) or (anchors, positives, anchors, negatives)."""


class Fast(NamedTuple):
    temperature: float
    margins: Margins


def fast(loss: Any, miner: Any) -> Fast | None:
    """The settings of the fused kernel when it computes exactly this loss and miner, else None."""
    from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.miners import PairMarginMiner
    from pytorch_metric_learning.reducers import AvgNonZeroReducer

    def usual(distance: Any, kind: Any) -> bool:
        return (
            type(distance) is kind
            and _bare(distance)
            and (distance.p, distance.power, distance.normalize_embeddings) == (2, 1, True)
        )

    if type(loss) is not SupConLoss or not _bare(loss) or not usual(loss.distance, CosineSimilarity):
        return None
    if type(loss.reducer) is not AvgNonZeroReducer or not _bare(loss.reducer) or loss.embedding_regularizer is not None:
        return None
    margins = Margins()
    if miner is not None:
        if type(miner) is not PairMarginMiner or not _bare(miner):
            return None
        near, far = float(miner.pos_margin), float(miner.neg_margin)
        if usual(miner.distance, CosineSimilarity):
            margins = Margins(near, far)
        elif usual(miner.distance, LpDistance):
            # Distances of unit vectors as cosines: d = √(2 − 2cos) rises where the cosine falls.
            margins = Margins(math.inf if near < 0 else 1 - near**2 / 2, math.inf if far <= 0 else 1 - far**2 / 2)
        else:
            return None
    return Fast(float(loss.temperature), margins)


def _bare(module: Any) -> bool:
    """Nobody listens: no hooks and no statistics asked for."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and not module.collect_stats


def mine(miner: Any, embeddings: Tensor, labels: Tensor, rows: Tensor | None, row_labels: Tensor | None) -> Tuple:
    """What the miner picks, or all pairs."""
    from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices

    if miner is not None:
        found: Tuple = miner(embeddings, labels, rows, row_labels)
        return found
    return get_all_pairs_indices(labels, row_labels)


def without(found: Tuple, own: Tensor | None, ids: Tensor | None, row_ids: Tensor | None) -> Tuple:
    """Without the positives that are the anchor's own row, and without pairs of one and the same picture.

    `own` is the row of each anchor; `ids` and `row_ids` name pictures.
    """
    anchors, positives = found[0], found[1]
    keep = torch.ones_like(anchors, dtype=torch.bool)
    if own is not None:
        keep &= own[anchors] != positives
    known = ids is not None and row_ids is not None
    if ids is not None and row_ids is not None:
        keep &= ids[anchors] != row_ids[positives]
    if len(found) == 3:
        if ids is not None and row_ids is not None:
            keep &= ids[anchors] != row_ids[found[2]]
        return anchors[keep], positives[keep], found[2][keep]
    others, negatives = found[2], found[3]
    if ids is not None and row_ids is not None and known:
        keep_too = ids[others] != row_ids[negatives]
        others, negatives = others[keep_too], negatives[keep_too]
    return anchors[keep], positives[keep], others, negatives


def outer(found: Tuple, given: Tuple, labels: Tensor, slots: Tensor | None) -> Tuple:
    """`found` with the pairs the caller gave appended. Theirs are positions in the batch: `slots` takes them to
    rows of the memory; None leaves them as they are (docs/decisions/0090)."""
    from pytorch_metric_learning.utils.common_functions import concatenate_indices_tuples
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs, convert_to_triplets

    if len(given) == 3 and len(found) == 4:
        given = convert_to_pairs(given, labels)
    elif len(given) == 4 and len(found) == 3:
        given = convert_to_triplets(given, labels)
    if slots is not None:
        given = _placed(given, slots)
    joined: Tuple = concatenate_indices_tuples(tuple(found), tuple(given))
    return joined


def _placed(given: Tuple, slots: Tensor) -> Tuple:
    """Pictures that found no place in the memory drop out."""
    if len(given) == 3:
        anchors, positives, negatives = given[0], slots[given[1]], slots[given[2]]
        keep = (positives >= 0) & (negatives >= 0)
        return anchors[keep], positives[keep], negatives[keep]
    first, positives, second, negatives = given[0], slots[given[1]], given[2], slots[given[3]]
    return first[positives >= 0], positives[positives >= 0], second[negatives >= 0], negatives[negatives >= 0]
