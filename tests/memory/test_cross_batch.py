"""What has to hold for the memory whatever the numbers: moments, gains, order, resume, awkward batches."""

from __future__ import annotations

import io
import math

import pytest
import torch
from pytorch_metric_learning import losses
from pytorch_metric_learning.losses import SupConLoss
from pytorch_metric_learning.miners import PairMarginMiner
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices as all_pairs
from tests.memory.test_xbn import stream
from tests.naive import memory as naive

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.losses import pml
from lookalike.memory import CrossBatchMemory, Moments
from lookalike.memory.cross_batch import gather_batch
from lookalike.memory.xbn import class_balance_factor, compute_moments

unit = torch.nn.functional.normalize
DRIFTS = {
    "none": {},
    "xbn": {"drift": "xbn"},
    "axbn": {"drift": "axbn", "r": 40.0},
    "auto": {"drift": "axbn", "r": "auto"},
    "noise": {"drift": "axbn", "r": 40.0, "interval": 4, "interval_mode": "noise"},
    "ema": {"drift": "ema", "beta": 0.7},
    "shrink": {"drift": "shrink"},
    "store": {"drift": "xbn", "renorm": "store"},
}


def make(dim=6, size=17, miner=None, **settings):
    return CrossBatchMemory(SupConLoss(0.1), dim, size, miner=miner, **settings)


def run(memory, steps=10, **kind):
    return [memory(rows, labels).item() for rows, labels, _ in stream(steps, 5, memory.embedding_size, **kind)]


# ---- adaptation ----------------------------------------------------------------------------------


def test_adapted_rows_have_the_moments_of_the_batch():
    memory = make(size=40, drift="xbn")
    for rows, labels, _ in stream(14, 5, 6):
        if memory.count:
            memory._correct_drift(rows, labels)
            now, batch = compute_moments(memory.rows), compute_moments(rows)
            assert torch.allclose(now.mean, batch.mean, atol=1e-6)
            assert torch.allclose(now.std, batch.std, atol=1e-6)
            before = memory.rows
            memory._correct_drift(rows, labels)  # twice with one target is once
            assert torch.allclose(memory.rows, before, atol=1e-7)
            assert memory.rows.square().sum(1).mean().item() == pytest.approx(1, abs=1e-6)
        memory(rows, labels)


def test_an_affine_drift_is_undone_and_a_rotation_is_not():
    generator = torch_rng(0, "affine")
    rows = torch.randn(40, 16, generator=generator)
    scale, shift = torch.rand(16, generator=generator) + 0.5, torch.randn(16, generator=generator)
    rotation = torch.linalg.qr(torch.randn(16, 16, generator=generator))[0]
    for moved, undone in ((rows * scale + shift, True), (rows @ rotation, False)):
        memory = CrossBatchMemory(SupConLoss(), 16, 40, drift="xbn")
        memory.fill(rows, torch.arange(40))
        memory._correct_drift(moved, torch.arange(40))
        assert torch.allclose(memory.rows, moved, atol=1e-5) == undone


def test_permuting_the_batch_permutes_slots_only():
    memories = [make(drift="xbn", size=20), make(drift="xbn", size=20)]
    order = torch.tensor([3, 0, 4, 2, 1])
    for rows, labels, _ in stream(7, 5, 6):
        first, second = memories[0](rows, labels), memories[1](rows[order], labels[order])
        assert first.item() == pytest.approx(second.item(), abs=1e-5)
    for start in range(0, 20, 5):
        ours, theirs = (memory.rows[start : start + 5] for memory in memories)
        assert torch.allclose(ours[order], theirs, atol=1e-6)


@pytest.mark.parametrize("other", [{"drift": "axbn", "r": 0.0}, {"drift": "axbn", "r": 0, "q": 0.0, "p0": 0.0}])
def test_no_noise_is_xbn_to_the_bit(other):
    same_bits(other)


def test_no_memory_of_moments_is_xbn_to_the_bit():
    same_bits({"drift": "ema", "beta": 0.0})


def same_bits(other):
    first, second = make(drift="xbn"), make(**other)
    assert run(first, 20) == run(second, 20)
    assert torch.equal(first.rows, second.rows)
    assert second.drift_report()["gain"] == 1.0


@pytest.mark.parametrize(
    ("batch", "first", "last"),
    [(16, 0.999688, 0.999376), (32, 0.999844, 0.999688), (64, 0.999922, 0.999844), (256, 0.999980, 0.999961)],
)
def test_the_gain_follows_the_closed_form(batch, first, last):
    memory = make(drift="axbn", r=0.01, size=8)
    gains = []
    for _ in range(6):
        memory.drift(Moments(torch.zeros(6).double(), torch.ones(6).double()), batch)
        gains.append(memory.drift.gain)
    ratio = 0.01 / batch
    assert gains[0] == pytest.approx(first, abs=1e-6)
    assert gains[-1] == pytest.approx(2 / (1 + math.sqrt(1 + 4 * ratio)), rel=1e-12)
    assert gains[-1] == pytest.approx(last, abs=1e-6)


def test_the_published_sweep_of_gains():
    for ratio, small, large in (
        (1, 0.9443, 0.9848),
        (20, 0.5798, 0.8),
        (100, 0.3279, 0.5416),
        (10_000, 0.0392, 0.0769),
    ):
        for batch, expected in ((16, small), (64, large)):
            memory = make(drift="axbn", r=float(ratio))
            for _ in range(400):
                memory.drift(Moments(torch.zeros(6).double(), torch.ones(6).double()), batch)
            assert memory.drift.gain == pytest.approx(expected, abs=6e-5)


def test_the_readings_of_the_interval():
    moments_of = [Moments(torch.full((6,), float(k)).double(), torch.ones(6).double()) for k in range(9)]

    def gains(mode, r=1e-6):
        memory = make(drift="axbn", r=r, interval=3, interval_mode=mode)
        out, means = [], []
        for one in moments_of:
            means.append(memory.drift(one, 4).mean[0].item())
            out.append(memory.drift.gain)
        return out, means

    selected, _ = gains("gain", r=40.0)
    assert selected[0] == selected[1] == selected[2] != selected[3] == selected[5]
    _, means = gains("filter")
    assert means == pytest.approx([0, 0, 0, 3, 3, 3, 6, 6, 6], abs=1e-4)
    window, means = gains("noise")  # a running mean since the last refresh
    assert window == pytest.approx([1, 1 / 2, 1 / 3] * 3, abs=1e-5)
    assert means == pytest.approx([0, 0.5, 1, 3, 3.5, 4, 6, 6.5, 7], abs=1e-4)


def test_noise_is_estimated_from_the_run():
    """A random walk with q = 1 seen through noise of variance 100, in many dimensions."""
    dim, steps = 400, 1500
    generator = torch_rng(0, "auto")
    memory = make(dim=dim, size=4, drift="axbn", r="auto")
    walk = torch.zeros(dim, dtype=torch.float64)
    means: list[list[float]] = []
    for _ in range(steps):
        walk += torch.randn(dim, generator=generator, dtype=torch.float64)
        seen = walk + 10 * torch.randn(dim, generator=generator, dtype=torch.float64)
        memory.drift(Moments(seen, torch.ones(dim).double()), 64)
        means.append(seen[:8].tolist())
    report = memory.drift_report()
    assert report["auto"]
    assert report["r"] == pytest.approx(100, rel=0.05)
    assert report["q"] == pytest.approx(1, rel=0.8)
    expected = 2 / (1 + math.sqrt(1 + 4 * report["r"] / report["q"]))
    assert report["gain"] == pytest.approx(expected, rel=0.1)
    error = (memory.drift.mean - walk).square().mean()
    assert error < 20  # a single batch is off by 100
    short = make(dim=8, size=4, drift="axbn", r="auto")
    for one in means[:200]:
        short.drift(Moments(torch.tensor(one, dtype=torch.float64), torch.ones(8).double()), 64)
    assert (short.drift.observation_noise, short.drift.process_noise) == pytest.approx(
        naive.noise_and_motion(means[:200]), rel=1e-9
    )
    assert 0 < short.drift.gain < 1


def test_the_report_says_what_the_filter_did():
    memory = make(drift="ema", beta=0.5)
    assert memory.drift_report()["steps"] == 0
    run(memory, 4)
    report = memory.drift_report()
    assert (report["gain"], report["mean_gain"], report["window"], report["steps"]) == (0.5, 0.5, 3.0, 4)
    assert make().drift_report() == {}
    memory = make(drift="axbn", r=8.0, interval=10)
    run(memory, 3)
    assert {"q", "r", "interval", "interval_mode"} <= set(memory.drift_report())


def test_the_spread_that_class_balanced_batches_understate():
    for size, expected in ((16, 0.86), (32, 0.93), (64, 0.965), (256, 0.99)):
        labels = torch.arange(size // 4).repeat_interleave(4)
        assert class_balance_factor(labels, 1.0) == pytest.approx(math.sqrt(1 - 4 / size))
        assert class_balance_factor(labels, 1.0) == pytest.approx(expected, abs=0.007)
    assert class_balance_factor(torch.arange(8), 1.0) == pytest.approx(math.sqrt(1 - 1 / 8))
    for labels in ([0, 0, 0, 1, 1, 2], [0, 1, 2, 3], [4, 4, 4, 4, 4, 1, 1]):
        for correlation in (0.0, 0.3, 1.0):
            expected = naive.understatement(labels, correlation)
            assert class_balance_factor(torch.tensor(labels), correlation) == pytest.approx(expected, rel=1e-12)
    plain, wide = make(drift="xbn", size=40), make(drift="xbn", size=40, debias=1.0)
    rows, labels, _ = next(iter(stream(1, 8, 6)))
    for memory in (plain, wide):
        memory.fill(unit(torch.randn(20, 6, generator=torch_rng(1, "x")), dim=1), torch.arange(20))
        memory._correct_drift(rows, labels)
    factor = class_balance_factor(labels, 1.0)
    assert torch.allclose(compute_moments(wide.rows).std * factor, compute_moments(plain.rows).std, atol=1e-6)


LONG = {
    "xbn": ({"drift": "xbn"}, "xbn", 30, 7),
    "gain 0.1": ({"drift": "ema", "beta": 0.9}, ("ema", 0.9), 23, 4),
    "axbn": ({"drift": "axbn", "r": 1280.0}, ("axbn", 1.0, 1280.0, 1.0, 1, "gain"), 23, 4),
}


@pytest.mark.parametrize("name", LONG)
def test_the_lazy_form_stays_with_the_loops(name):
    """With a small gain the base frame would grow without bound: re-basing keeps it."""
    settings, rule, size, batch = LONG[name]
    memory = make(dim=3, size=size, **settings)
    twin = naive.Memory(size, rule)
    rebased, real = [], memory.queue.rebase
    memory.queue.rebase = lambda: (rebased.append(1), real())[1]
    for step, (rows, labels, _) in enumerate(stream(3000, batch, 3)):
        if step % 200 > 150:  # and the distribution jumps now and then
            rows = unit(rows * torch.tensor([1.0, -2.0, 0.1]), dim=1)
        memory._update(gather_batch(rows, labels, None, None, gather=False))
        twin.step(rows.double().tolist(), labels.tolist())
    stored = torch.tensor([twin.rows[i] for i in twin.filled()], dtype=torch.float64)
    assert torch.allclose(memory.rows.double(), stored, atol=1e-6)
    assert rebased or name == "xbn"


def test_a_rule_of_ones_own():
    class Half(torch.nn.Module):
        """Half the way to the batch's mean."""

        def __init__(self):
            super().__init__()
            self.seen = []

        def forward(self, rows, batch):
            self.seen.append(None if rows is None else rows.mean.clone())
            if rows is None:
                return torch.ones(6), torch.zeros(6)
            return torch.ones(6), 0.5 * (batch.double().mean(0) - rows.mean)

    rule = Half()
    memory = make(drift=rule, size=40)
    expected = torch.zeros(0, 6)
    for rows, labels, _ in stream(6, 5, 6):
        if len(expected):
            expected = expected + 0.5 * (rows.mean(0) - expected.mean(0))
        expected = torch.cat([expected, rows])
        memory(rows, labels)
        assert torch.allclose(memory.rows, expected, atol=1e-6)
    assert rule.seen[0] is None and rule.seen[1] is not None


# ---- the loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.parametrize("mined", [False, True])
def test_the_gradient_is_that_of_the_rows_written_out(drift, mined):
    miner = PairMarginMiner(0.2, 0.9) if mined else None
    memory = make(miner=miner, **DRIFTS[drift])
    for rows, labels, _ in stream(9, 5, 6):
        mine, other = (rows.clone().requires_grad_() for _ in range(2))
        value = memory(mine, labels)
        value.backward()
        stored, stored_labels = memory.rows, memory.row_labels
        actual = miner(other, labels, stored, stored_labels) if mined else all_pairs(labels, stored_labels)
        keep = memory.curr_batch_idx[actual[0]] != actual[1]
        expected = SupConLoss(0.1)(
            other, labels, (actual[0][keep], actual[1][keep], *actual[2:]), stored, stored_labels
        )
        expected.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
        assert torch.allclose(mine.grad, other.grad, atol=2e-6)


def test_a_second_derivative_is_refused():
    rows, labels, _ = next(iter(stream(1, 8, 6)))
    rows.requires_grad_()
    with pytest.raises(LookalikeError, match="no second derivative"):
        torch.autograd.grad(make()(rows, labels), rows, create_graph=True)


def test_a_loss_of_ours_brings_its_miner_along():
    memory = CrossBatchMemory(pml.SupConLoss(0.2), 6, 17)
    assert memory._fused_settings() is not None
    mined = CrossBatchMemory(pml.MultiSimilarityLoss(epsilon=0.1), 6, 17)
    assert mined.miner is not None
    assert run(memory, 3) and run(mined, 3)


def test_batches_without_rows_and_whole_numbers_of_any_kind():
    memory, twin = make(drift="xbn"), make(drift="xbn")
    for rows, labels, ids in stream(4, 5, 6):
        assert memory(rows[:0], labels[:0]).item() == 0
        expected = twin(rows, labels, ids=ids).item()
        assert memory(rows, labels.to(torch.int32), ids=ids.to(torch.int16)).item() == expected
    with pytest.raises(LookalikeError, match="integer type"):
        memory(rows, labels.float())


def test_plain_dot_products():
    memory = make(drift="xbn", renorm="none")
    twin = naive.Memory(17, "xbn")
    for rows, labels, _ in stream(8, 5, 6):
        value = memory(rows, labels)
        slots = twin.step(rows.double().tolist(), labels.tolist())
        expected = naive.supcon(twin, rows.double().tolist(), labels.tolist(), slots, dot=True)
        assert value.item() == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("loss", [SupConLoss(0.1), losses.NTXentLoss(0.1)])
def test_an_image_is_not_compared_with_itself(loss):
    """Older copies of it, copies in the same batch, and copies under another label."""
    rows, labels, _ = next(iter(stream(1, 6, 6)))
    labels = torch.tensor([0, 0, 1, 1, 2, 0])
    old = unit(rows + 0.1, dim=1)
    ids = torch.tensor([10, 11, 12, 13, 14, 10])  # the last is the first once more
    wrong = torch.tensor([3, 0, 1, 1, 2, 0])  # and an older copy of it had another label
    memory = CrossBatchMemory(loss, 6, 20)
    memory.fill(old, wrong, ids)
    mine = rows.clone().requires_grad_()
    value = memory(mine, labels, ids=ids)
    value.backward()
    stored, stored_labels, stored_ids = memory.rows, memory.row_labels, memory.row_ids
    other = rows.clone().requires_grad_()
    a1, p, a2, n = all_pairs(labels, stored_labels)
    near, far = ids[a1] != stored_ids[p], ids[a2] != stored_ids[n]
    assert not near.all() and not far.all()
    expected = loss(other, labels, (a1[near], p[near], a2[far], n[far]), stored, stored_labels)
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(mine.grad, other.grad, atol=1e-6)


@pytest.mark.parametrize("loss", [SupConLoss(0.1), losses.MultiSimilarityLoss()])
@pytest.mark.parametrize("drift", [None, "xbn"])
def test_the_loss_of_the_batch_can_be_added(loss, drift):
    plain = CrossBatchMemory(loss, 6, 17, drift=drift)
    star = CrossBatchMemory(loss, 6, 17, drift=drift, batch_loss=True, weight=0.5)
    for rows, labels, _ in stream(5, 6, 6):
        mine, other = (rows.clone().requires_grad_() for _ in range(2))
        value = star(mine, labels)
        expected = loss(other, labels) + 0.5 * plain(other, labels)
        value.backward()
        expected.backward()
        assert value.item() == pytest.approx(expected.item(), rel=1e-6)
        assert torch.allclose(mine.grad, other.grad, atol=1e-6)


def test_one_pair_of_each_kind_is_nothing_to_compare():
    """pytorch-metric-learning's rule; with two negatives of one anchor there is something."""
    for number, expected in ((1, False), (2, True)):
        memory = make(dim=2, size=8, miner=PairMarginMiner(0.2, 0.8))
        far = [(0.0, 1.0), (-1.0, 0.0)]  # out of the anchor's reach
        near = [(0.95, math.sqrt(1 - 0.95**2)), (0.94, -math.sqrt(1 - 0.94**2))][:number]
        memory.fill(torch.tensor([(0.9, math.sqrt(1 - 0.81)), *near, *far]), torch.tensor([0] + [1] * (number + 2)))
        assert (memory(torch.tensor([[1.0, 0.0]]), torch.tensor([0])).item() > 0) == expected


def test_mixed_precision_leaves_rows_and_moments_alone():
    plain, mixed = make(drift="axbn"), make(drift="axbn")
    for rows, labels, _ in stream(8, 5, 6):
        expected = plain(rows, labels)
        with torch.autocast("cpu", torch.bfloat16):
            assert mixed(rows, labels).item() == expected.item()
    assert torch.equal(plain.rows, mixed.rows)
    assert mixed.drift.gain == plain.drift.gain < 1
    mixed.half()
    assert mixed.queue.base.dtype == torch.float32
    assert mixed.drift.mean.dtype == torch.float64
    assert torch.equal(plain.rows, mixed.rows)


# ---- awkward batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("drift", DRIFTS)
def test_a_batch_larger_than_the_memory(drift, capsys):
    memory = make(size=4, **DRIFTS[drift])
    for rows, labels, _ in stream(3, 7, 6):
        rows.requires_grad_()
        memory(rows, labels).backward()
        assert rows.grad.abs().sum(1).gt(0).any()
        slots = [(memory.queue_idx - 4 + i) % 4 for i in range(4)]
        assert torch.allclose(memory.rows[slots], rows.detach()[-4:], atol=1e-6)
    assert capsys.readouterr().err.count("only the last ones are stored") == 1


@pytest.mark.parametrize("drift", DRIFTS)
def test_an_empty_memory_gives_the_loss_of_the_batch(drift):
    memory = make(**DRIFTS[drift])
    rows, labels, _ = next(iter(stream(1, 8, 6)))
    assert memory(rows, labels).item() == pytest.approx(SupConLoss(0.1)(rows, labels).item(), rel=1e-5)
    memory.reset_queue()
    assert memory(rows, labels, enqueue_mask=torch.zeros(8, dtype=torch.bool)).item() == 0
    assert memory(rows, labels, enqueue_mask=torch.ones(8, dtype=torch.bool)).item() == 0
    assert memory.count == 8


@pytest.mark.parametrize("drift", ["xbn", "axbn", "ema"])
def test_a_dimension_that_does_not_spread(drift):
    """It is shifted, not scaled, whether the batch or the memory stands still there; and it comes alive again."""
    memory = make(drift=drift, r=4.0, size=20) if drift == "axbn" else make(drift=drift, size=20)
    twin = naive.Memory(20, {"xbn": "xbn", "axbn": ("axbn", 1.0, 4.0, 1.0, 1, "gain"), "ema": ("ema", 0.1)}[drift])
    generator = torch_rng(0, "flat")
    for step in range(14):
        rows = torch.randn(5, 6, generator=generator)
        if step in (0, 1, 5, 6):
            rows[:, 2] = 0.25 * step
        rows[:, 4] = 0.5 if step < 9 else rows[:, 4]
        memory(rows, torch.arange(5) % 2)
        twin.step(rows.double().tolist(), [0, 1, 0, 1, 0])
        stored = torch.tensor([twin.rows[i] for i in twin.filled()], dtype=torch.float64)
        assert torch.allclose(memory.rows.double(), stored, atol=2e-5)
        assert torch.isfinite(memory.rows).all()


@pytest.mark.parametrize("drift", DRIFTS)
def test_batches_of_one(drift):
    memory = make(**DRIFTS[drift])
    for rows, labels, _ in stream(30, 1, 6):
        value = memory(rows, labels)
        assert math.isfinite(value.item())
    assert torch.allclose(memory.rows[memory.queue_idx - 1], rows[0], atol=1e-6)
    if memory.drift is not None:
        assert memory.drift.count == 0  # a single row has no spread to learn from


def test_a_class_never_seen_again():
    """Its rows stay negatives until they are overwritten; an anchor without another member adds nothing."""
    memory = make(dim=2, size=6)
    memory.fill(unit(torch.tensor([(1.0, 0.1), (1.0, -0.1)]), dim=1), torch.tensor([7, 7]))
    rows = unit(torch.tensor([(1.0, 0.2), (1.0, -0.2), (0.0, 1.0)]), dim=1).requires_grad_()
    value = memory(rows, torch.tensor([0, 0, 5]))
    value.backward()
    logits = (rows.detach() @ memory.rows.t()) / 0.1
    expected = [math.log(sum(math.exp(logits[i, j]) for j in range(5) if j != own)) - logits[i, pos].item()
                for i, own, pos in ((0, 2, 3), (1, 3, 2))]  # fmt: skip
    assert value.item() == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert rows.grad[2].abs().sum() == 0
    for _ in range(2):
        memory(rows, torch.tensor([0, 0, 5]))
    assert 7 not in memory.row_labels


def test_wrong_arguments_give_a_one_line_error():
    rows, labels, _ = next(iter(stream(1, 4, 6)))
    for bad in (rows[:, :3], rows[0], torch.zeros(0)):
        with pytest.raises(LookalikeError, match="this memory takes"):
            make()(bad, labels)
    with pytest.raises(LookalikeError, match="labels"):
        make()(rows, labels[:2])
    with pytest.raises(LookalikeError, match=r"is 'axbnn': input should be .*'axbn'"):
        make(drift="axbnn")
    for settings in ({"r": "some"}, {"r": -1.0}, {"interval": 0}, {"interval_mode": "x"}):
        with pytest.raises(LookalikeError):
            make(drift="axbn", **settings)
    for settings in ({"renorm": "x"}, {"correction": 2}, {"size": 0}, {"drift": "ema", "beta": 1.0}, {"compat": "tf"}):
        with pytest.raises(LookalikeError):
            make(**settings)


# ---- keeping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("drift", DRIFTS)
def test_resumed_at_any_step_with_the_same_bits(drift):
    """Also in mid-fill and when the pointer wraps inside a batch."""
    settings = {**DRIFTS[drift], "watch": 3}
    batches = list(stream(12, 5, 6))
    whole = make(**settings)
    expected = [whole(rows, labels, ids=ids).item() for rows, labels, ids in batches]
    for stop in range(12):
        first = make(**settings)
        for rows, labels, ids in batches[:stop]:
            first(rows, labels, ids=ids)
        selected = io.BytesIO()
        torch.save(first.state_dict(), selected)
        selected.seek(0)
        second = make(**settings)
        second.load_state_dict(torch.load(selected, weights_only=True))
        assert second.count == first.count
        assert [second(rows, labels, ids=ids).item() for rows, labels, ids in batches[stop:]] == expected[stop:]
        for name, value in whole.state_dict().items():
            if torch.is_tensor(value):
                assert torch.equal(value, second.state_dict()[name]), name
            else:
                assert value == second.state_dict()[name]


def test_a_memory_of_other_settings_is_refused():
    state = make(drift="axbn", r=3.0).state_dict()
    with pytest.raises(LookalikeError, match=r"saved with r=3.0, this one has 4.0"):
        make(drift="axbn", r=4.0).load_state_dict(state)
    with pytest.raises(LookalikeError, match="update lookalike"):
        make(drift="axbn", r=3.0).load_state_dict({**state, "_extra_state": {"format": 99, "settings": {}}})


@pytest.mark.parametrize("drift", DRIFTS)
def test_emptied_it_is_as_new(drift):
    memory = make(watch=2, **DRIFTS[drift])
    expected = run(memory)
    memory.reset_queue()
    assert (memory.count, memory.queue_idx, memory.has_been_filled) == (0, 0, False)
    assert len(memory.rows) == 0
    assert run(memory) == expected


@pytest.mark.parametrize("drift", ["none", "xbn", "ema"])
def test_watched_rows_as_they_were_and_as_they_are(drift):
    memory = make(watch=6, **DRIFTS[drift])
    put: dict[int, torch.Tensor] = {}
    for rows, labels, ids in stream(9, 5, 6):
        memory(rows, labels, ids=ids)
        put |= dict(zip(memory.curr_batch_idx.tolist(), rows, strict=True))
        seen, slots = memory.watched_rows(), memory.queue.watched
        slots = slots[slots < memory.count]
        assert len(seen.ids) == len(slots) == sum(s < memory.count for s in (i * 17 // 6 for i in range(6)))
        assert torch.equal(seen.enqueued, torch.stack([put[s] for s in slots.tolist()]))
        assert torch.allclose(seen.adapted, memory.rows[slots])
        assert torch.equal(seen.ids, memory.row_ids[slots])
    assert torch.allclose(seen.enqueued, seen.adapted) == (drift == "none")
    assert len(make().watched_rows().ids) == 0


def test_filling_without_a_loss():
    memory = make(drift="xbn", size=8)
    rows, labels, ids = next(iter(stream(1, 11, 6)))
    memory.fill(rows, labels, ids)
    assert torch.allclose(memory.rows[[3, 4, 5, 6, 7, 0, 1, 2]], rows[3:], atol=1e-6)
    assert memory.drift.count == 0
    assert memory.queue_idx == 3


def test_embeddings_that_are_not_of_unit_length_are_reported_once(capsys):
    rows, labels, _ = next(iter(stream(1, 5, 6)))
    make(drift="xbn")(rows, labels)
    assert "unit length" not in capsys.readouterr().err
    memory = make(drift="xbn")
    for _ in range(3):
        memory(3 * rows, labels)
    assert capsys.readouterr().err.count("not of unit length") == 1
