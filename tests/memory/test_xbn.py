"""The worked examples of the specification, and each rule against the loops."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from tests.naive import memory as naive

from lookalike.core.seeds import torch_rng
from lookalike.memory import CrossBatchMemory

BATCHES = [
    [(1, 0), (0, 1)],
    [(0.8, 0.6), (-0.6, 0.8)],
    [(0, -1), (0.6, -0.8)],
    [(0.6, 0.8), (1, 0)],
]
LABELS = [[0, 1], [0, 1], [1, 0], [0, 1]]

# settings, rows after step 2, 3, 4, losses
VECTORS = {
    "none": (
        {"drift": None},
        [(1, 0), (0, 1), (0.8, 0.6), (-0.6, 0.8)],
        [(0.6, -0.8), (0, 1), (0.8, 0.6), (-0.6, 0.8), (0, -1)],
        [(0.6, -0.8), (0.6, 0.8), (1, 0), (-0.6, 0.8), (0, -1)],
        [0, 0.063780, 12.500168, 9.267244],
    ),
    "xbn": (
        {"drift": "xbn"},
        [(0.8, 0.6), (-0.6, 0.8), (0.8, 0.6), (-0.6, 0.8)],
        [(0.6, -0.8), (0, -0.8), (0.6, -1), (0, -0.8), (0, -1)],
        [(1.044949, 0.726599), (0.6, 0.8), (1, 0), (0.636701, 0.726599), (0.636701, -0.089898)],
        [0, 0.000091, 0.610859, 1.423461],
    ),
    "axbn": (
        {"drift": "axbn", "r": 0.01},
        [(0.800990, 0.597030), (-0.597030, 0.800990), (0.8, 0.6), (-0.6, 0.8)],
        [(0.6, -0.8), (-0.002314, -0.791590), (0.600781, -0.990617), (-0.003596, -0.792570), (0, -1)],
        [(1.042820, 0.697306), (0.6, 0.8), (1, 0), (0.632705, 0.727409), (0.635148, -0.113049)],
        [0, 0.000091, 0.606710, 1.448632],
    ),
    "axbn r=4": (
        {"drift": "axbn", "r": 4},
        [(0.9, 0.3), (-0.3, 0.9), (0.8, 0.6), (-0.6, 0.8)],
        [(0.6, -0.8), (-0.041144, 0.068218), (0.709373, -0.193644), (-0.245831, -0.019069), (0, -1)],
        [(0.889623, -0.161535), (0.6, 0.8), (1, 0), (0.163330, 0.382770), (0.374419, -0.300934)],
        [0, 0.000972, 6.323642, 4.695248],
    ),
    "ema": (
        {"drift": "ema", "beta": 0.1},
        [(0.82, 0.54), (-0.54, 0.82), (0.8, 0.6), (-0.6, 0.8)],
        [(0.6, -0.8), (-0.039135, -0.631240), (0.616927, -0.818680), (-0.068511, -0.648280), (0, -1)],
        [(1.003876, 0.229520), (0.6, 0.8), (1, 0), (0.552226, 0.648912), (0.598512, -0.323331)],
        [0, 0.000101, 0.541668, 2.468229],
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_worked_examples(name):
    settings, *stored, losses = VECTORS[name]
    memory = CrossBatchMemory(SupConLoss(0.1), 2, 5, **settings)
    pointers = []
    for step, (rows, labels) in enumerate(zip(BATCHES, LABELS, strict=True)):
        loss = memory(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels))
        assert loss.item() == pytest.approx(losses[step], abs=2e-6, rel=2e-6)
        pointers.append(memory.queue_idx)
        if step:
            assert torch.allclose(memory.rows, torch.tensor(stored[step - 1], dtype=torch.float32), atol=1.5e-6)
    assert pointers == [2, 4, 1, 3]


def test_the_worked_example_with_n_minus_1():
    memory = CrossBatchMemory(SupConLoss(0.1), 2, 5, drift="xbn", correction=1)
    losses = []
    for step, (rows, labels) in enumerate(zip(BATCHES, LABELS, strict=True)):
        losses.append(memory(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels)).item())
        if step == 2:
            assert memory.rows[1].tolist() == pytest.approx([-0.067423, -0.777526], abs=1e-6)
    assert losses == pytest.approx([0, 0.000091, 0.556500, 1.630713], abs=1e-6)


def test_the_filter_of_the_worked_examples():
    memory = CrossBatchMemory(SupConLoss(0.1), 2, 5, drift="axbn", r=0.01)
    gains, ps, means, stds = [], [], [], []
    for rows, labels in zip(BATCHES, LABELS, strict=True):
        memory(torch.tensor(rows, dtype=torch.float32), torch.tensor(labels))
        gains.append(memory.drift.gain)
        ps.append(memory.drift.p)
        means.append(memory.drift.mean.tolist())
        stds.append(memory.drift.std.tolist())
    assert gains == pytest.approx([0.997506, 0.995049, 0.995049, 0.995049], abs=1e-6)
    assert ps == pytest.approx([0.004988, 0.004975, 0.004975, 0.004975], abs=1e-6)
    expected = [(0.5, 0.5), (0.101980, 0.699010), (0.299020, -0.892084), (0.797520, 0.393603)]
    assert torch.allclose(torch.tensor(means), torch.tensor(expected), atol=1e-6)
    expected = [(0.5, 0.5), (0.699010, 0.101980), (0.301975, 0.100010), (0.200505, 0.398515)]
    assert torch.allclose(torch.tensor(stds), torch.tensor(expected), atol=1e-6)


RULES = {
    "none": ({"drift": None}, None),
    "xbn": ({"drift": "xbn"}, "xbn"),
    "axbn": ({"drift": "axbn", "r": 4.0}, ("axbn", 1.0, 4.0, 1.0, 1, "gain")),
    "axbn every 3, gain": (
        {"drift": "axbn", "r": 40.0, "q": 0.5, "p0": 2.0, "interval": 3},
        ("axbn", 0.5, 40.0, 2.0, 3, "gain"),
    ),
    "axbn every 3, filter": (
        {"drift": "axbn", "r": 40.0, "interval": 3, "interval_mode": "filter"},
        ("axbn", 1.0, 40.0, 1.0, 3, "filter"),
    ),
    "axbn every 3, noise": (
        {"drift": "axbn", "r": 40.0, "interval": 3, "interval_mode": "noise"},
        ("axbn", 1.0, 40.0, 1.0, 3, "noise"),
    ),
    "ema": ({"drift": "ema", "beta": 0.5}, ("ema", 0.5)),
    "shrink": ({"drift": "shrink"}, "shrink"),
    "xbn stored unit": ({"drift": "xbn", "renorm": "store"}, "xbn"),
    "xbn n-1": ({"drift": "xbn", "correction": 1}, "xbn"),
}


def stream(steps, size, dim, seed=0, classes=4, sizes=None):
    """Unit batches whose distribution drifts."""
    generator = torch_rng(seed, "memory")
    centers = torch.randn(classes, dim, generator=generator)
    for step in range(steps):
        number = size if sizes is None else sizes[step % len(sizes)]
        labels = torch.randint(0, classes, (number,), generator=generator)
        rows = centers[labels] * (1 + 0.1 * step) + 0.05 * step + 0.5 * torch.randn(number, dim, generator=generator)
        yield torch.nn.functional.normalize(rows, dim=1), labels, torch.randint(0, 30, (number,), generator=generator)


@pytest.mark.parametrize("mined", [False, True])
@pytest.mark.parametrize("with_ids", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_each_rule_equals_its_loops(name, mined, with_ids):
    settings, rule = RULES[name]
    miner = PairMarginMiner() if mined else None
    memory = CrossBatchMemory(SupConLoss(0.1), 6, 17, miner=miner, **settings)
    twin = naive.Memory(17, rule, memory.settings.correction, memory.settings.renorm)
    margins = {"pos_margin": 0.2, "neg_margin": 0.8} if mined else {}
    for rows, labels, ids in stream(12, 5, 6, sizes=[5, 5, 4, 1, 5, 20]):
        ids = ids if with_ids else None
        loss = memory(rows, labels, ids=ids)
        plain = rows.double().tolist()
        names = None if ids is None else ids.tolist()
        slots = twin.step(plain, labels.tolist(), names)
        expected = naive.supcon(twin, plain, labels.tolist(), slots, names, **margins)
        stored = torch.tensor([twin.rows[i] for i in twin.filled()])
        assert torch.allclose(memory.rows.double(), stored.double(), atol=1e-6)
        assert memory.row_labels.tolist() == [twin.labels[i] for i in twin.filled()]
        assert memory.queue_idx == twin.pointer
        assert loss.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("per_class", [1, 4])
@pytest.mark.parametrize("batch", [16, 64])
def test_shrunk_moments_follow_drift_and_leave_rows_alone_without(per_class, batch):
    """How far stored rows are from where the moving model would put them now."""

    def error(rule, speed):
        generator = torch_rng(0, "shrink")
        centers = torch.randn(400, 32, generator=generator)
        direction = torch.randn(32, generator=generator)
        memory, moved, total = CrossBatchMemory(SupConLoss(0.1), 32, 1024, drift=rule, renorm="none"), {}, 0.0
        for step in range(100):
            labels = torch.randperm(400, generator=generator)[: batch // per_class].repeat_interleave(per_class)
            still = centers[labels] + 0.5 * torch.randn(batch, 32, generator=generator)
            memory(still + speed * step * direction, labels)
            moved |= dict(zip(memory.curr_batch_idx.tolist(), still, strict=True))
            if step >= 60:
                now = torch.stack([moved[slot] for slot in range(memory.count)]) + speed * step * direction
                total += (memory.rows - now).norm(dim=1).mean().item() / 40
        return total

    still = {rule: error(rule, 0.0) for rule in (None, "xbn", "shrink")}
    fast = {rule: error(rule, 0.5) for rule in (None, "xbn", "shrink")}
    assert still[None] < 1e-5 and still["shrink"] < 0.4 * still["xbn"]
    assert fast["xbn"] < 0.5 * fast[None] and fast["shrink"] < 0.5 * fast[None]
    assert fast["shrink"] < 1.1 * fast["xbn"]
