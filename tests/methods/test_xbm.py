"""XBM in the loop's clothes: sizes, warm-up, filling, what is logged."""

from __future__ import annotations

import pytest
import torch
from tests.methods.test_common import DIM, batch, context

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.methods import Batch
from lookalike.methods.xbm import XBM, MemorySettings, XBMSettings


def make(around=None, **settings) -> XBM:
    return XBM(XBMSettings.parse({"miner": {"kind": "none"}, **settings}), around or context())


def step(method: XBM, number: int) -> float:
    method.context.step, method.context.logs = number, {}
    z = torch.nn.functional.normalize(torch.randn(12, DIM, generator=torch_rng(number, "z")), dim=1)
    rows = batch()
    method.before_step()
    return method.loss({"z": z}, Batch((), "pooled", rows.labels, (rows.ids + 12 * number) % 36)).item()


@pytest.mark.parametrize(
    ("size", "images", "rows"),
    [
        (0.5, 59_551, 29_775),
        (1, 4_000, 4_000),
        (1.0, 25_882, 25_882),
        (0.001, 4_000, 64),
        (4096, 100, 4096),
        (2, 9, 64),
    ],
)
def test_a_memory_is_a_share_or_a_number_and_at_least_a_batch(size, images, rows):
    assert MemorySettings(size=size).num_rows(images, 64) == rows


def test_without_a_memory_only_the_batch_is_compared():
    from lookalike.losses.pml import SupConLoss

    method = make(memory={"size": 0})
    for number in (1, 2, 3):
        z = torch.nn.functional.normalize(torch.randn(12, DIM, generator=torch_rng(number, "z")), dim=1)
        assert step(method, number) == pytest.approx(SupConLoss(0.1)(z, batch().labels).item(), rel=1e-5)


def test_a_warm_up_is_the_batch_alone_and_leaves_the_memory_empty():
    method, without = make(memory={"size": 36, "warmup_steps": 2}), make(memory={"size": 0})
    for number in (1, 2):
        assert step(method, number) == pytest.approx(step(without, number), rel=1e-6)
        assert method.memory.count == 0
    step(method, 3)
    assert method.memory.count == 12


def test_filling_encodes_random_training_images_once():
    around = context()
    around.labels = torch.arange(36) % 3
    around.labels[5] = -1
    asked = []

    def encode(rows):
        asked.append(rows)
        out = torch.nn.functional.one_hot(torch.from_numpy(rows) % DIM, DIM).float()
        return out

    around.encode = encode
    method = make(around, memory={"size": 20, "warmup_steps": 1, "fill": True, "drift": "none"})
    step(method, 1)
    assert not asked
    step(method, 2)
    assert len(asked) == 1 and len(set(asked[0])) == 20 and 5 not in asked[0]
    assert method.memory.count == 20
    kept = method.memory.row_ids.tolist()[12:]  # the batch has overwritten the first ones
    assert kept == asked[0][12:].tolist()
    assert method.memory.row_labels.tolist()[12:] == [int(around.labels[row]) for row in kept]
    step(method, 3)
    assert len(asked) == 1


def test_the_batch_loss_is_added():
    plain, star, alone = make(memory={"size": 36}), make(memory={"size": 36, "batch_loss": True, "weight": 0.5}), None
    alone = make(memory={"size": 0})
    for number in (1, 2, 3):
        memory, both, inside = (step(method, number) for method in (plain, star, alone))
        assert both == pytest.approx(inside + 0.5 * memory, rel=1e-5)


@pytest.mark.parametrize(("drift", "logged"), [("none", False), ("xbn", False), ("axbn", True), ("ema", True)])
def test_what_the_filter_did_is_logged(drift, logged):
    method = make(memory={"size": 30, "drift": drift})
    for number in (1, 2, 3):
        step(method, number)
    logs = method.context.logs
    assert logs["memory/rows"] == 30
    assert ("memory/gain" in logs) == logged
    if drift == "ema":
        assert logs["memory/gain"] == pytest.approx(0.9)
    if drift == "axbn":
        assert 0.99 < logs["memory/gain"] < 1


def test_noise_estimated_from_the_run_is_logged():
    method = make(memory={"size": 30, "drift": "axbn", "r": "auto"})
    for number in range(1, 25):
        step(method, number)
    assert method.context.logs["memory/r"] > 0
    assert method.context.logs["memory/gain"] < 0.9  # random batches: nothing moves but noise


def test_watched_rows_are_given_to_the_meter():
    method = make(memory={"size": 36, "drift": "xbn"})
    assert method.memory_rows(8) is None
    step(method, 1)
    first = method.memory_rows(8)
    step(method, 2)
    found = method.memory_rows(8)
    assert found is not None and first is not None and len(found.ids) == 8
    assert torch.equal(found.original, first.original)
    assert not torch.allclose(found.adapted, found.original)


def test_wrong_settings_are_sentences():
    with pytest.raises(LookalikeError, match=r"drfit.*did you mean `drift`"):
        make(memory={"drfit": "xbn"})
    with pytest.raises(LookalikeError, match="drift"):
        make(memory={"drift": "kalman"})
