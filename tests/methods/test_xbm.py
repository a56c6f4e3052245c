"""XBM in the loop's clothes: sizes, warm-up, filling, what is logged."""

from __future__ import annotations

import pytest
import torch
from tests.methods.test_common import DIM, batch, context

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.methods import Batch
from lookalike.methods.xbm import AXBN, XBM, XBN, XBMMemorySettings


def make(around=None, method=XBM, memory=None, **settings) -> XBM:
    memory = {"warmup_steps": 0, "fill": False, **(memory or {})}
    return method(method.Settings.parse({"miner": {"kind": "none"}, "memory": memory, **settings}), around or context())


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
    assert XBMMemorySettings(size=size).num_rows(images, 64) == rows


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
    requested = []

    def encode(rows):
        requested.append(rows)
        out = torch.nn.functional.one_hot(torch.from_numpy(rows) % DIM, DIM).float()
        return out

    around.encode = encode
    method = make(around, memory={"size": 20, "warmup_steps": 1, "fill": True, "drift": "none"})
    step(method, 1)
    assert not requested
    step(method, 2)
    assert len(requested) == 1 and len(set(requested[0])) == 20 and 5 not in requested[0]
    assert method.memory.count == 20
    selected = method.memory.row_ids.tolist()[12:]  # the batch has overwritten the first ones
    assert selected == requested[0][12:].tolist()
    assert method.memory.row_labels.tolist()[12:] == [int(around.labels[row]) for row in selected]
    step(method, 3)
    assert len(requested) == 1


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


def test_watched_rows_are_passed_to_the_meter():
    method = make(memory={"size": 36, "drift": "xbn"})
    assert method.memory_rows(8) is None
    step(method, 1)
    first = method.memory_rows(8)
    step(method, 2)
    actual = method.memory_rows(8)
    assert actual is not None and first is not None and len(actual.ids) == 8
    assert torch.equal(actual.enqueued, first.enqueued)
    assert not torch.allclose(actual.adapted, actual.enqueued)


def test_wrong_settings_are_sentences():
    with pytest.raises(LookalikeError, match=r"drfit.*did you mean `drift`"):
        make(memory={"drfit": "xbn"})
    with pytest.raises(LookalikeError, match="drift"):
        make(memory={"drift": "kalman"})


@pytest.mark.parametrize(("method", "drift"), [(XBM, "none"), (XBN, "xbn"), (AXBN, "axbn")])
def test_a_method_is_what_its_name_says(method, drift):
    made = make(method=method, memory={"size": 36})
    assert made.memory.settings.drift == drift and (made.memory.drift is None) == (drift == "none")
    assert make(method=method, memory={"drift": "shrink"}).memory.settings.drift == "shrink"
    stored = [(step(made, number), made.memory.rows)[1] for number in (1, 2, 3)]
    assert torch.equal(stored[2][:24], stored[1]) == (drift == "none")


def test_the_memory_waits_until_the_drift_is_small_for_its_age():
    around = context()
    around.steps = 100
    method = make(around, memory={"size": 48, "warmup_steps": "auto", "fill": True})  # rows of 2 steps' mean age
    assert int(method.start_step) == 51
    for number, drift in ((10, 0.01), (20, 1.1), (30, 0.9)):
        around.step = number
        assert method.needs_drift() == (number >= 20)
        if method.needs_drift():
            method.on_drift(drift)
    assert int(method.start_step) == 31
    saved = method.state_dict()
    again = make(around, memory={"size": 48, "warmup_steps": "auto", "fill": True})
    again.load_state_dict(saved)
    for made in (method, again):
        step(made, 30)
        assert made.memory.count == 0
        step(made, 31)
        assert made.memory.count > 12 and not made.needs_drift()  # filled
    slow = make(around, memory={"size": 48, "warmup_steps": "auto"})
    around.step = 40
    slow.on_drift(1.5)
    assert int(slow.start_step) == 51  # half of the training at most


def test_with_a_frozen_backbone_rows_are_corrected_only_if_they_age(capsys):
    def frozen(method):
        around = context()
        around.model.backbone.requires_grad_(False)
        return make(around, method=method, memory={"size": 120})

    assert not frozen(XBM).needs_drift() and make(method=XBN).memory.corrects
    method = frozen(XBN)
    for number in range(1, 11):
        step(method, number)
    rows = method.memory.rows
    assert torch.allclose(rows.norm(dim=1), torch.ones(len(rows)))  # not corrected before drift is known
    assert method.needs_drift()
    method.on_drift(1e-4)
    method.on_drift(1e-4)
    assert capsys.readouterr().err.count("Stored embeddings stay as they are: the backbone is frozen") == 1
    assert not method.memory.corrects and not method.memory.state_dict()["_extra_state"]["corrects"]
    method.on_drift(1.0)
    assert method.memory.corrects
    step(method, 11)
    assert not torch.allclose(method.memory.rows[:108].norm(dim=1), torch.ones(108))


def test_older_copies_of_an_image_are_positives_if_requested():
    from lookalike.losses.pml import SupConLoss

    without, with_copies = make(memory={"size": 36}), make(memory={"size": 36, "old_copies": True})
    labels, ids = torch.arange(12), torch.arange(12)  # every image is a class: its older copy is the only positive
    z = torch.nn.functional.normalize(torch.randn(2, 12, DIM, generator=torch_rng(0, "z")), dim=2)
    values = []
    for method in (without, with_copies):
        for number in (1, 2):
            method.context.step = number
            values.append(method.loss({"z": z[number - 1]}, Batch((), "pooled", labels, ids)).item())
    memory = torch.cat([z[0], z[1]])
    sim = z[1] @ memory.T / 0.1
    sim[torch.arange(12), 12 + torch.arange(12)] = -torch.inf  # the image itself
    expected = (sim.logsumexp(1) - sim[torch.arange(12), torch.arange(12)]).mean()
    assert values[:3] == [0, 0, 0] and values[3] == pytest.approx(expected.item(), rel=1e-5)
    foreign = with_copies.memory
    foreign.loss = SupConLoss(0.1).loss
    foreign.loss.register_forward_hook(lambda *_: None)  # takes the path of any other loss
    foreign.reset_queue()
    for number in (1, 2):
        value = foreign(z[number - 1], labels, ids=ids)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_all_of_the_training_images_are_those_with_a_label():
    around = context()
    around.labels = torch.arange(40) % 3
    around.labels[::4] = -1
    assert make(around, memory={"size": 1.0}).memory.memory_size == 30
