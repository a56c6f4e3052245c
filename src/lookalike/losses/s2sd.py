"""S2SD: similarities in a wider embedding space are distilled into the space that is used."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def distillation_loss(teacher: Tensor, student: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the loss that distills the teacher's cosine matrix of the batch into the student's.

    KL(softmax(Sₜ/T) ‖ softmax(S/T))·T² over the rows of the matrices, diagonal included, divided by the batch size.

    Args:
        teacher: Unit embeddings of the wider space; gets no gradient.
        student: Unit embeddings of the space that is used.
        temperature: Temperature T.

    Shape:
        - teacher: ``(n, D)``; student: ``(n, d)``.

    References:
        Roth et al., "S2SD: Simultaneous Similarity-based Self-Distillation for Deep Metric Learning", ICML 2021
        (arXiv 2009.08348), eq. 3.

    Example:
        >>> wide, narrow = (torch.nn.functional.normalize(torch.randn(4, d), dim=1) for d in (32, 8))
        >>> distillation_loss(wide, narrow).ndim
        0
    """
    teacher_sim, student_sim = (z @ z.T / temperature for z in (teacher.detach(), student))
    kl = functional.kl_div(student_sim.log_softmax(1), teacher_sim.log_softmax(1), log_target=True, reduction="sum")
    return kl * temperature**2 / len(student)
