"""Triplet: an image nearer to its own class than to another, by a margin."""

from __future__ import annotations

from typing import Any

from lookalike.core.errors import choose
from lookalike.losses.base import PairLoss

MINERS = ("all", "semihard", "hard", "batch_hard")


class Triplet(PairLoss):
    """Schroff et al., "FaceNet", CVPR 2015 (arXiv 1503.03832), eq. 1; the miners after it and Hermans et al. 2017.

    mean over triplets of [d(a, p) − d(a, n) + m]₊, d the Euclidean distance of unit vectors, the mean
    over triplets above zero. `miner`: `all`, `semihard` and `hard` by FaceNet's rules, `batch_hard`
    (arXiv 1703.07737) one triplet an anchor.

        >>> Triplet(margin=0.2, miner="semihard")(embeddings, labels)   # (n, d), (n,) → scalar
    """

    def __init__(self, margin: float = 0.2, miner: str = "semihard") -> None:
        from pytorch_metric_learning.losses import TripletMarginLoss
        from pytorch_metric_learning.miners import BatchHardMiner, TripletMarginMiner

        choose(miner, MINERS, "a triplet miner")
        chosen: Any = None  # every triplet there is
        if miner == "batch_hard":
            chosen = BatchHardMiner()
        elif miner != "all":
            chosen = TripletMarginMiner(margin=margin, type_of_triplets=miner)
        super().__init__(TripletMarginLoss(margin=margin), chosen)
