"""CARP's loss in two real processes of somebody else's trainer, which averages gradients: those of one process."""

from __future__ import annotations

import pytest
import torch

from lookalike.core import distributed
from lookalike.core.seeds import torch_rng
from lookalike.losses.carp import CARPLoss, CARPOptions, fused_carp

SHARES = {"even": [(0, 4), (4, 8)], "uneven": [(0, 5), (5, 8)]}


def work(share: str, form: str, *, joint: bool = False) -> dict:
    """One step of a linear layer and prototypes with its own images, or with all of them."""
    generator = torch_rng(0, "carp", "processes")
    images = torch.randn(2, 8, 10, generator=generator, dtype=torch.float64)
    layer = torch.randn(10, 6, generator=generator, dtype=torch.float64).requires_grad_()
    prototypes = torch.randn(24, 6, generator=generator, dtype=torch.float64).requires_grad_()
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    mine = slice(0, 8) if joint else slice(*SHARES[share][rank])
    z = images[:, mine] @ layer
    w = (images[:, mine] @ layer.detach()).roll(1, -1)
    loss = CARPLoss(4, seed=0 if joint else rank, weight=0.7)  # the first process's partition holds
    if form == "logits":
        actual = loss(z @ prototypes.t(), w @ prototypes.detach().t())
        messages = None
    else:
        order = torch.randperm(24, generator=torch_rng(1, "order"))
        actual = fused_carp(
            z, w, prototypes, prototypes.detach(), order, 4, options=CARPOptions(weight=0.7), diagnostics=True, chunk=8
        )
        messages = actual.diagnostics.information.item()
    gradients = torch.autograd.grad(actual.loss, (layer, prototypes))
    return {"loss": actual.loss.item(), "gradients": [g.tolist() for g in gradients], "information": messages}


def everything() -> dict:
    distributed._WORLD = 1  # the process group is another trainer's
    return {f"{share} {form}": work(share, form) for share in SHARES for form in ("logits", "fused")}


@pytest.fixture(scope="module")
def both() -> list[dict]:
    return distributed.launch(everything, 2)


@pytest.mark.parametrize("form", ["logits", "fused"])
@pytest.mark.parametrize("share", SHARES)
def test_the_mean_of_both_is_the_joint_batchs(share: str, form: str, both: list[dict]) -> None:
    one = work(share, form, joint=True)
    sides = [side[f"{share} {form}"] for side in both]
    assert sum(side["loss"] for side in sides) / 2 == pytest.approx(one["loss"], rel=1e-10)
    for number, whole in enumerate(one["gradients"]):
        mean = sum(torch.tensor(side["gradients"][number], dtype=torch.float64) for side in sides) / 2
        assert torch.allclose(mean, torch.tensor(whole, dtype=torch.float64), atol=1e-12)
    if form == "fused":
        assert [side["information"] for side in sides] == pytest.approx([one["information"]] * 2, rel=1e-9)
