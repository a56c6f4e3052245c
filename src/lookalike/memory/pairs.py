"""Index tuples of pytorch-metric-learning, and which of its losses and miners the fast path computes itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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
    reducer = loss.reducer
    if type(reducer) is not AvgNonZeroReducer or not _bare(reducer) or (reducer.low, reducer.high) != (0, None):
        return None
    if loss.embedding_regularizer is not None or not isinstance(loss.temperature, int | float):
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


def without_own(found: Tuple, slots: Tensor | None) -> Tuple:
    """Without the positives that are the anchor's own row; a row of the same image can be no negative."""
    if slots is None:
        return found
    keep = slots[found[0]] != found[1]
    if len(found) == 3:
        return tuple(part[keep] for part in found)
    return found[0][keep], found[1][keep], found[2], found[3]


def without_same(found: Tuple, ids: Tensor, row_ids: Tensor) -> Tuple:
    """Without pairs of one and the same image, whatever their labels."""
    near = ids[found[0]] != row_ids[found[1]]
    if len(found) == 3:
        near &= ids[found[0]] != row_ids[found[2]]
        return tuple(part[near] for part in found)
    far = ids[found[2]] != row_ids[found[3]]
    return found[0][near], found[1][near], found[2][far], found[3][far]


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
    """Images that found no place in the memory drop out."""
    if len(given) == 3:
        anchors, positives, negatives = given[0], slots[given[1]], slots[given[2]]
        keep = (positives >= 0) & (negatives >= 0)
        return anchors[keep], positives[keep], negatives[keep]
    first, positives, second, negatives = given[0], slots[given[1]], given[2], slots[given[3]]
    return first[positives >= 0], positives[positives >= 0], second[negatives >= 0], negatives[negatives >= 0]
