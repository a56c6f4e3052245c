"""A drop-in for pytorch-metric-learning's class: the same inputs through both, and the bugs that ours has not."""

from __future__ import annotations

import pytest
import torch
from pytorch_metric_learning import losses, miners
from pytorch_metric_learning.distances import CosineSimilarity, DotProductSimilarity, LpDistance
from pytorch_metric_learning.losses import CrossBatchMemory as Theirs
from pytorch_metric_learning.reducers import MeanReducer
from pytorch_metric_learning.regularizers import LpRegularizer
from pytorch_metric_learning.utils import loss_and_miner_utils as lmu

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.memory import CrossBatchMemory, pml_compat
from lookalike.memory.cross_batch import CrossBatchMemory as Whole

DIM = 12


def batches(count, size=8, classes=4, dtype=torch.float32, seed=0):
    generator = torch_rng(seed, "drop-in")
    centers = torch.randn(classes, DIM, generator=generator)
    for _ in range(count):
        labels = torch.randint(0, classes, (size,), generator=generator)
        yield (centers[labels] + torch.randn(size, DIM, generator=generator)).to(dtype), labels


def both(loss, miner=None, size=21, **settings):
    return CrossBatchMemory(loss, DIM, size, miner=miner, **settings), Theirs(loss, DIM, size, miner=miner)


def same(ours, theirs, rows, labels, *rest, tolerance=1e-6, **named):
    mine, other = (rows.clone().requires_grad_() for _ in range(2))
    value, expected = ours(mine, labels, *rest, **named), theirs(other, labels, *rest, **named)
    assert value.dtype == expected.dtype
    assert value.item() == pytest.approx(expected.item(), rel=10 * tolerance, abs=tolerance)
    value.backward()
    expected.backward()
    assert torch.allclose(mine.grad, other.grad, rtol=1e-4, atol=tolerance)
    return value.item()


LOSSES = {
    "supcon": lambda: losses.SupConLoss(),
    "contrastive": lambda: losses.ContrastiveLoss(),
    "ms": lambda: losses.MultiSimilarityLoss(),
    "ntxent": lambda: losses.NTXentLoss(),
    "triplet": lambda: losses.TripletMarginLoss(),
    "circle": lambda: losses.CircleLoss(),
    "margin": lambda: losses.MarginLoss(),
    "nca": lambda: losses.NCALoss(),
    "lifted": lambda: losses.LiftedStructureLoss(),
    "tuplet": lambda: losses.TupletMarginLoss(),
    "variance": lambda: losses.IntraPairVarianceLoss(),
    "angular": lambda: losses.AngularLoss(),
    "snr": lambda: losses.SignalToNoiseRatioContrastiveLoss(),
}
MINERS = {
    "none": lambda: None,
    "pair margin": lambda: miners.PairMarginMiner(),
    "wide": lambda: miners.PairMarginMiner(0.3, 1.3),
    "cosine": lambda: miners.PairMarginMiner(0.9, 0.1, distance=CosineSimilarity()),
    "ms": lambda: miners.MultiSimilarityMiner(0.3),
    "triplet": lambda: miners.TripletMarginMiner(0.2),
}


@pytest.mark.parametrize("compat", [None, "pml"])
@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_with_every_miner(loss, miner, compat):
    """Fill, wrap inside a batch, and go round several times."""
    ours, theirs = both(LOSSES[loss](), MINERS[miner](), compat=compat)
    assert (ours._fused_settings() is not None) == (loss == "supcon" and miner not in ("ms", "triplet"))
    for rows, labels in batches(8):
        same(ours, theirs, rows, labels)
        assert ours.queue_idx == theirs.queue_idx
        assert ours.has_been_filled == theirs.has_been_filled
        assert torch.equal(ours.embedding_memory, theirs.embedding_memory)
        assert torch.equal(ours.label_memory, theirs.label_memory)
        assert torch.equal(ours.curr_batch_idx, theirs.curr_batch_idx)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("loss", ["ntxent", "contrastive", "supcon"])
def test_other_kinds_of_numbers_as_the_other_library_keeps_them(loss, dtype):
    ours, theirs = both(LOSSES[loss](), compat="pml")
    for rows, labels in batches(6, dtype=dtype):
        same(ours, theirs, rows, labels, tolerance=2e-3 if dtype == torch.float16 else 1e-6)
        assert ours.embedding_memory.dtype == dtype
        assert torch.equal(ours.embedding_memory, theirs.embedding_memory)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("loss", ["supcon", "ntxent"])
def test_rows_stay_float32_and_the_loss_has_the_kind_of_the_batch(loss, dtype):
    ours = CrossBatchMemory(LOSSES[loss](), DIM, 21)
    twin = CrossBatchMemory(LOSSES[loss](), DIM, 21)
    for rows, labels in batches(5, dtype=dtype):
        value = ours(rows, labels)
        assert value.dtype == dtype
        assert ours.embedding_memory.dtype == torch.float32
        assert value.item() == pytest.approx(twin(rows.float(), labels).item(), rel=3e-2, abs=1e-2)


@pytest.mark.parametrize("loss", ["supcon", "ntxent", "triplet"])
@pytest.mark.parametrize("miner", ["none", "wide", "triplet"])
def test_rows_to_enqueue_are_chosen_by_a_mask(loss, miner):
    ours, theirs = both(LOSSES[loss](), MINERS[miner]())
    generator = torch_rng(3, "mask")
    for rows, labels in batches(8):
        mask = torch.rand(len(rows), generator=generator) < 0.5
        mask[0], mask[1] = True, False
        same(ours, theirs, rows, labels, enqueue_mask=mask)
        assert torch.equal(ours.embedding_memory, theirs.embedding_memory)
        assert ours.queue_idx == theirs.queue_idx
    with pytest.raises(ValueError, match="mutually exclusive"):
        ours(rows, labels, (labels, labels, labels), mask)


def test_a_batch_as_large_as_the_memory_is_the_inner_loss():
    for miner in (None, miners.TripletMarginMiner(0.1)):
        inner = losses.NTXentLoss(temperature=0.1)
        memory = CrossBatchMemory(inner, DIM, 8, miner=miner, compat="pml")
        for rows, labels in batches(4):
            actual = None if miner is None else miner(rows, labels)
            assert memory(rows, labels).item() == pytest.approx(inner(rows, labels, actual).item(), abs=1e-6)


def test_a_random_miner_only_has_to_run():
    memory = CrossBatchMemory(losses.NTXentLoss(), DIM, 21, miner=miners.DistanceWeightedMiner(0.5, 1.4), compat="pml")
    for rows, labels in batches(6):
        rows.requires_grad_()
        memory(rows, labels).backward()
        assert torch.isfinite(rows.grad).all()


@pytest.mark.parametrize("outer", ["ms", "triplet"])
@pytest.mark.parametrize("inner", ["none", "ms", "triplet"])
def test_pairs_from_outside_to_the_letter(inner, outer):
    """With compat, also where the other library takes batch positions for rows of the memory."""
    loss = losses.ContrastiveLoss() if inner != "triplet" else losses.TripletMarginLoss()
    ours, theirs = both(loss, MINERS[inner](), compat="pml")
    for rows, labels in batches(5):
        tuples = MINERS[outer]()(rows, labels)
        same(ours, theirs, rows, labels, tuples)
        args = (rows, labels, ours.embedding_memory, ours.label_memory, tuples, True)
        for mine, other in zip(ours.create_indices_tuple(*args), theirs.create_indices_tuple(*args), strict=True):
            assert torch.equal(mine, other)


def test_own_rows_are_removed_from_positives_as_there():
    memory = CrossBatchMemory(losses.ContrastiveLoss(), DIM, 21, compat="pml")
    for rows, labels in batches(9):
        memory.add_to_memory(rows, labels, len(rows))
        all_pairs = lmu.get_all_pairs_indices(labels, memory.label_memory)
        expected = lmu.remove_self_comparisons(all_pairs, memory.curr_batch_idx, memory.memory_size)
        for mine, other in zip(pml_compat.remove_own_rows(all_pairs, memory.curr_batch_idx), expected, strict=True):
            assert torch.equal(mine, other)


def test_losses_that_the_other_library_refuses():
    assert CrossBatchMemory.supported_losses() == Theirs.supported_losses()
    with pytest.raises(Exception, match="ProxyAnchorLoss"):
        CrossBatchMemory(losses.ProxyAnchorLoss(4, DIM), DIM, compat="pml")
    with pytest.raises(LookalikeError, match="no drift rule"):
        CrossBatchMemory(losses.SupConLoss(), DIM, compat="pml", drift="xbn")

    class Mine(losses.ContrastiveLoss):
        pass

    memory = CrossBatchMemory(Mine(), DIM, 21)
    assert all(torch.isfinite(memory(rows, labels)) for rows, labels in batches(3))


def test_attributes_can_be_read_and_assigned():
    for drift in (None, "xbn"):
        memory = CrossBatchMemory(losses.SupConLoss(), DIM, 21, drift=drift)
        for rows, labels in batches(4):
            memory(rows, labels)
        stored, labels = memory.embedding_memory.clone(), memory.label_memory.clone()
        memory.embedding_memory = stored.flip(0)
        memory.label_memory = labels.flip(0)
        assert torch.allclose(memory.embedding_memory, stored.flip(0), atol=1e-6)
        memory.queue_idx = 3
        assert (memory.queue_idx, memory.count) == (3, 21)
        memory.has_been_filled = False
        assert (memory.has_been_filled, memory.count) == (False, 3)
        twin = CrossBatchMemory(losses.SupConLoss(), DIM, 21, drift=drift)
        twin.fill(stored.flip(0)[:3], labels.flip(0)[:3])
        if memory.drift is not None:
            twin.drift.load_state_dict(memory.drift.state_dict())
        rows, labels = next(batches(1, seed=5))
        assert memory(rows, labels).item() == pytest.approx(twin(rows, labels).item(), abs=1e-5)
        assert torch.allclose(memory.rows, twin.rows, atol=1e-5)


def test_rows_changed_in_place_are_seen():
    ours, theirs = both(losses.SupConLoss())
    for step, (rows, labels) in enumerate(batches(5)):
        same(ours, theirs, rows, labels)
        for memory in (ours, theirs):
            memory.embedding_memory[step] *= 3
            memory.embedding_memory[:3] += 0.5


# ---- the fast path is taken exactly when it computes the same ------------------------------------


def listened(module):
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize(
    ("loss", "miner"),
    [
        (losses.SupConLoss(distance=DotProductSimilarity(normalize_embeddings=False)), None),
        (losses.SupConLoss(distance=LpDistance()), None),
        (losses.SupConLoss(distance=CosineSimilarity(power=2)), None),
        (losses.SupConLoss(reducer=MeanReducer()), None),
        (losses.SupConLoss(embedding_regularizer=LpRegularizer()), None),
        (losses.SupConLoss(collect_stats=True), None),
        (listened(losses.SupConLoss()), None),
        (type("SupConLoss", (losses.SupConLoss,), {})(), None),
        (losses.SupConLoss(), miners.PairMarginMiner(distance=LpDistance(p=1))),
        (losses.SupConLoss(), miners.PairMarginMiner(distance=LpDistance(normalize_embeddings=False))),
        (losses.SupConLoss(), miners.PairMarginMiner(collect_stats=True)),
        (losses.SupConLoss(), type("Own", (miners.PairMarginMiner,), {})()),
    ],
)
def test_what_the_kernel_does_not_compute_goes_the_long_way(loss, miner):
    ours, theirs = both(loss, miner)
    assert ours._fused_settings() is None
    for rows, labels in batches(5):
        same(ours, theirs, rows, labels, tolerance=1e-5)


@pytest.mark.parametrize("temperature", [2.0, 0.1, 0.02, 0.01, 0.005])
def test_any_temperature(temperature):
    ours, theirs = both(losses.SupConLoss(temperature))
    for rows, labels in batches(6):
        same(ours, theirs, rows, labels, tolerance=1e-4 if temperature < 0.02 else 1e-5)


@pytest.mark.parametrize("margins", [(-0.1, 0.8), (0.2, 0.0), (0.2, -1.0), (0.2, 3.0), (1.9, 0.8), (0.5, 0.6)])
def test_any_margins(margins):
    for distance in (LpDistance(), CosineSimilarity()):
        ours, theirs = both(losses.SupConLoss(), miners.PairMarginMiner(*margins, distance=distance))
        for rows, labels in batches(6):
            same(ours, theirs, rows, labels, tolerance=2e-6)


def test_long_memories_go_through_many_blocks(monkeypatch):
    from lookalike.losses import mined_supcon

    monkeypatch.setattr(mined_supcon, "BLOCK", 5)
    for miner in MINERS.values():
        ours, theirs = both(losses.SupConLoss(), miner(), size=43)
        for rows, labels in batches(9):
            same(ours, theirs, rows, labels)


# ---- bugs that ours has not ----------------------------------------------------------------------


def test_a_resumed_memory_goes_on_where_it_stopped():
    """Theirs reads only the first batch after loading: neither pointer nor fill are in its state."""
    stream = list(batches(8))
    ours, theirs = both(losses.SupConLoss())
    for rows, labels in stream[:5]:
        ours(rows, labels)
        theirs(rows, labels)
    again, theirs_again = both(losses.SupConLoss())
    again.load_state_dict(ours.state_dict())
    theirs_again.load_state_dict(theirs.state_dict())
    assert again(*stream[5]).item() == ours(*stream[5]).item()
    assert theirs_again(*stream[5]).item() != pytest.approx(theirs(*stream[5]).item(), abs=1e-3)


def test_a_batch_of_one_is_not_its_own_positive():
    ours, theirs = both(losses.ContrastiveLoss(pos_margin=1, neg_margin=0, distance=CosineSimilarity()))
    for rows, labels in batches(3):
        for memory in (ours, theirs):
            memory(rows, labels)
    row, label = torch.randn(1, DIM), torch.tensor([9])
    actual = ours.create_indices_tuple(row, label, ours.embedding_memory, ours.label_memory, None, True)
    for memory in (ours, theirs):
        memory(row, label)
    args = (row, label, ours.embedding_memory, ours.label_memory, None, True)
    assert len(ours.create_indices_tuple(*args)[0]) == 0
    assert len(theirs.create_indices_tuple(*args)[0]) == 1
    assert len(actual[0]) == 0


def test_a_mask_without_rows_leaves_the_memory_as_it_is():
    """Theirs then counts as full, and rows of zeros become references of label 0."""
    ours, theirs = both(losses.SupConLoss())
    rows, labels = next(batches(1))
    for memory in (ours, theirs):
        memory(rows, labels)
        memory(rows, labels, enqueue_mask=torch.zeros(len(rows), dtype=torch.bool))
    assert (ours.count, ours.has_been_filled, theirs.has_been_filled) == (8, False, True)


def test_more_masked_rows_than_the_memory_holds():
    memory = CrossBatchMemory(losses.SupConLoss(), DIM, 5)
    rows, labels = next(batches(1, size=9))
    mask = torch.ones(9, dtype=torch.bool)
    mask[0] = False
    memory(rows, labels, enqueue_mask=mask)
    slots = [i % 5 for i in range(8)]
    for i in range(3, 8):
        assert torch.equal(memory.embedding_memory[slots[i]], rows[1:][i])


def test_pairs_from_outside_are_positions_in_the_batch():
    """Theirs reads them as rows of the memory: after the first batch they point at other images."""
    ours = CrossBatchMemory(losses.ContrastiveLoss(), DIM, 21, miner=miners.PairMarginMiner(9.0, -1.0))
    for rows, labels in batches(6):  # the inner miner finds nothing
        tuples = lmu.get_all_pairs_indices(labels)
        value = ours(rows, labels, tuples)
        assert value.item() == pytest.approx(ours.loss(rows, labels, tuples).item(), abs=1e-6)
        actual = ours.create_indices_tuple(rows, labels, ours.embedding_memory, ours.label_memory, tuples, True)
        assert (labels[actual[0]] == ours.label_memory[actual[1]]).all()
        assert (labels[actual[2]] != ours.label_memory[actual[3]]).all()


def test_triplets_from_outside_are_positions_in_the_batch():
    ours = CrossBatchMemory(losses.TripletMarginLoss(), DIM, 21, miner=miners.TripletMarginMiner(-9.0))
    for rows, labels in batches(6):
        tuples = lmu.get_all_triplets_indices(labels)
        assert ours(rows, labels, tuples).item() == pytest.approx(ours.loss(rows, labels, tuples).item(), abs=1e-6)


def test_not_a_number_stops_the_step_and_not_the_training():
    """Theirs keeps the row: the next clean batch then has the loss 0."""
    stream = list(batches(4))
    for drift in (None, "xbn", "axbn"):
        memory = CrossBatchMemory(losses.SupConLoss(), DIM, 21, drift=drift)
        for rows, labels in stream[:2]:
            memory(rows, labels)
        before = {k: v.clone() for k, v in memory.state_dict().items() if torch.is_tensor(v)}
        for poison in (float("nan"), float("inf")):
            bad = stream[2][0].clone()
            bad[3, 1] = bad[5, 0] = poison
            with pytest.raises(LookalikeError, match=r"Step 2: 2 of 8 embeddings are not finite"):
                memory(bad, stream[2][1])
        after = memory.state_dict()
        assert all(torch.equal(value, after[name]) for name, value in before.items())
        assert memory(*stream[3]).item() > 0


def test_a_checkpoint_of_the_other_library_is_taken(capsys):
    stream = list(batches(8))
    for steps, drift in ((2, None), (2, "xbn"), (5, "axbn")):
        theirs = Theirs(losses.MarginLoss(), DIM, 21)
        for rows, labels in stream[:steps]:
            theirs(rows, labels)
        ours = CrossBatchMemory(losses.MarginLoss(), DIM, 21, drift=drift)
        nested = torch.nn.ModuleDict({"inner": CrossBatchMemory(losses.MarginLoss(), DIM, 21, drift=drift)})
        nested.load_state_dict({f"inner.{k}": v for k, v in theirs.state_dict().items()})
        assert nested["inner"].count == min(8 * steps, 21)
        ours.load_state_dict(theirs.state_dict())
        assert "does not store how many rows are filled" in capsys.readouterr().err
        assert ours.count == min(8 * steps, 21)
        assert torch.allclose(ours.rows, theirs.embedding_memory[: ours.count], atol=1e-6)
        assert torch.equal(ours.row_labels, theirs.label_memory[: ours.count])
        assert ours.queue_idx == (16 if steps == 2 else 0)
        if drift is None and steps == 2:
            assert ours(*stream[2]).item() == pytest.approx(theirs(*stream[2]).item(), abs=1e-6)


def test_the_name_is_one():
    assert CrossBatchMemory is Whole
