"""S2SD: the similarities seen in a wider space teach those in the space that is used."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def distillation(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Roth et al., "S2SD: Simultaneous Similarity-based Self-Distillation", ICML 2021 (arXiv 2009.08348), eq. 3.

    KL(softmax(Sₜ/T) ‖ softmax(S/T))·T² over the rows of the batch's cosine matrices, the diagonal among them, divided
    by the batch size. Rows of unit length; the teacher gets no gradient.
    """
    wide, narrow = (rows @ rows.T / temperature for rows in (teacher.detach(), student))
    kl = functional.kl_div(narrow.log_softmax(1), wide.log_softmax(1), log_target=True, reduction="sum")
    return kl * temperature**2 / len(student)
