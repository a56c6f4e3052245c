"""SupCon: every image against all others of the batch, all of its class being positives."""

from __future__ import annotations

from lookalike.losses.base import PairLoss


class SupCon(PairLoss):
    """Khosla et al., "Supervised Contrastive Learning", NeurIPS 2020 (arXiv 2004.11362), L_out.

    For an anchor with positives P and all others A: −mean over p in P of (s_p/τ − log Σ_{a∈A} exp(s_a/τ)),
    averaged over the anchors that have a positive.

        >>> SupCon(temperature=0.1)(embeddings, labels)   # (n, d), (n,) → scalar
    """

    def __init__(self, temperature: float = 0.1) -> None:
        from pytorch_metric_learning.losses import SupConLoss

        super().__init__(SupConLoss(temperature=temperature))
