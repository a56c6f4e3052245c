"""Two real processes of somebody else's trainer, which averages gradients: memories and CARP's loss are those of one.

Memories have the same bits in both. One pair of processes does all the work: starting them takes longer.
"""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses, miners

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.losses.carp import CARPLoss, CARPOptions, fused_carp
from lookalike.memory import CrossBatchMemory

SHARES = [(0, 5), (5, 8)]  # uneven on purpose
CASES = {
    "fused, xbn": {"drift": "xbn"},
    "fused, axbn, ids": {"drift": "axbn", "r": 4.0, "ids": True},
    "fused, mask": {"mask": True},
    "fused, one process without negatives": {"drift": "xbn", "apart": True},
    "foreign loss": {"drift": "xbn", "loss": "ntxent"},
    "foreign loss, ids, mask": {"loss": "ntxent", "ids": True, "mask": True},
    "batch loss added": {"drift": "xbn", "batch_loss": True, "weight": 0.5, "ids": True},
    "pairs from outside": {"loss": "ntxent", "outer": True},
}


def setting(name: str):
    case = dict(CASES[name])
    flags = {flag: case.pop(flag, False) for flag in ("ids", "mask", "outer", "apart")}
    loss = losses.NTXentLoss(0.1) if case.pop("loss", "") == "ntxent" else losses.SupConLoss(0.1)
    return loss, case, flags


def work(name: str, gather: bool | None = True, foreign: bool = False, joint: bool = False) -> dict:
    """Five steps of a linear layer with its own rows of every batch, or with all of them."""
    if foreign:  # as if another trainer had started the process group
        distributed._WORLD = 1
    loss, settings, flags = setting(name)
    memory = CrossBatchMemory(loss, 6, 19, miner=miners.PairMarginMiner(0.2, 1.2), gather=gather, **settings)
    generator = torch_rng(0, "processes")
    layer = torch.randn(10, 6, generator=generator).requires_grad_()
    values, gradients = [], []
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    for _ in range(5):
        images = torch.randn(8, 10, generator=generator) + 1
        labels = torch.randint(0, 3, (8,), generator=generator)
        if flags["apart"]:
            labels[5:], images[5:] = 7, images[5:6]
        ids = torch.randint(0, 12, (8,), generator=generator)
        mask = torch.rand(8, generator=generator) < 0.6
        mask[[0, 6]], mask[[1, 7]] = True, False
        mine = slice(0, 8) if joint else slice(*SHARES[rank])
        # Each row by itself, so that it has the same bits in any batch.
        z = torch.nn.functional.normalize((images[mine][:, :, None] * layer).sum(1), dim=1)
        more = {"ids": ids[mine]} if flags["ids"] else {}
        if flags["mask"]:
            more["enqueue_mask"] = mask[mine]
        if flags["outer"]:  # pairs inside each process's part
            parts = [slice(0, 8)] if not joint else [slice(*share) for share in SHARES]
            actual = []
            for part in parts if joint else [slice(0, mine.stop - mine.start)]:
                near = miners.MultiSimilarityMiner(0.3)(z[part].detach(), labels[mine][part])
                actual.append([one + part.start for one in near])
            more["indices_tuple"] = tuple(torch.cat(list(one)) for one in zip(*actual, strict=True))
        value = memory(z, labels[mine], **more)
        (gradient,) = torch.autograd.grad(value, layer)
        values.append(value.item())
        gradients.append(gradient.double().tolist())
    return {"values": values, "gradients": gradients, "rows": memory.rows.double().tolist(), "at": memory.queue_idx}


CARP_SHARES = {"even": [(0, 4), (4, 8)], "uneven": [(0, 5), (5, 8)]}


def carp_work(share: str, form: str, *, joint: bool = False) -> dict:
    """One step of a linear layer and prototypes with its own images, or with all of them."""
    generator = torch_rng(0, "carp", "processes")
    images = torch.randn(2, 8, 10, generator=generator, dtype=torch.float64)
    layer = torch.randn(10, 6, generator=generator, dtype=torch.float64).requires_grad_()
    prototypes = torch.randn(24, 6, generator=generator, dtype=torch.float64).requires_grad_()
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    mine = slice(0, 8) if joint else slice(*CARP_SHARES[share][rank])
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
    out = {name: work(name) for name in CASES}
    out["joint already"] = work("fused, xbn", gather=None, joint=True)
    out["not a number"] = poison()
    out["another trainer's"] = work("fused, xbn", gather=None, foreign=True)  # from here on the group is not ours
    out |= {f"carp, {share} {form}": carp_work(share, form) for share in CARP_SHARES for form in ("logits", "fused")}
    return out


@pytest.fixture(scope="module")
def both() -> list[dict]:
    return distributed.launch(everything, 2)


@pytest.mark.parametrize("name", CASES)
def test_two_processes_are_one(name: str, both: list[dict]) -> None:
    one = work(name, joint=True)
    sides = [side[name] for side in both]
    assert sides[0]["rows"] == sides[1]["rows"] == one["rows"]
    assert sides[0]["at"] == sides[1]["at"] == one["at"]
    assert any(value > 0 for value in one["values"])
    for step in range(5):
        mean = (torch.tensor(sides[0]["gradients"][step]) + torch.tensor(sides[1]["gradients"][step])) / 2
        assert torch.allclose(mean, torch.tensor(one["gradients"][step]), rtol=1e-4, atol=2e-6)
        value = sum(side["values"][step] for side in sides) / 2
        assert value == pytest.approx(one["values"][step], rel=1e-5, abs=1e-6)


def test_it_gathers_by_itself_in_a_loop_that_is_not_ours(both: list[dict]) -> None:
    assert all(side["another trainer's"] == side["fused, xbn"] for side in both)


def test_in_our_loop_the_batch_is_joint_already(both: list[dict]) -> None:
    one = work("fused, xbn", joint=True)
    assert all(side["joint already"] == one for side in both)


def poison() -> str:
    memory = CrossBatchMemory(losses.SupConLoss(), 3, 5, gather=True)
    rows = torch.ones(2, 3)
    if distributed.rank() == 1:
        rows[0, 0] = float("nan")
    try:
        memory(rows, torch.tensor([0, 1]))
    except LookalikeError as error:
        return f"{error} {memory.count}"
    return "nothing"


def test_not_a_number_on_one_process_stops_all(both: list[dict]) -> None:
    answers = [side["not a number"] for side in both]
    assert answers[0] == answers[1]
    assert "1 of 4 embeddings are not finite" in answers[0]
    assert answers[0].endswith(" 0")


# ---- CARP ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["logits", "fused"])
@pytest.mark.parametrize("share", CARP_SHARES)
def test_the_mean_of_both_losses_of_carp_is_the_joint_batchs(share: str, form: str, both: list[dict]) -> None:
    one = carp_work(share, form, joint=True)
    sides = [side[f"carp, {share} {form}"] for side in both]
    assert sum(side["loss"] for side in sides) / 2 == pytest.approx(one["loss"], rel=1e-10)
    for number, whole in enumerate(one["gradients"]):
        mean = sum(torch.tensor(side["gradients"][number], dtype=torch.float64) for side in sides) / 2
        assert torch.allclose(mean, torch.tensor(whole, dtype=torch.float64), atol=1e-12)
    if form == "fused":
        assert [side["information"] for side in sides] == pytest.approx([one["information"]] * 2, rel=1e-9)
