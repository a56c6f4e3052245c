"""Joint batches: what they hold, and that they do not depend on who asks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.data.samplers import PKSampler, ShuffleSampler


def labels_of(counts):
    rng = np.random.default_rng(0)
    return rng.permutation(np.repeat(np.arange(len(counts)), counts))


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(1, 9), min_size=3, max_size=12).filter(lambda c: sum(n > 1 for n in c) >= 2),
    classes=st.integers(2, 6),
    images=st.integers(1, 5),
    seed=st.integers(0, 3),
)
def test_every_joint_batch_is_p_classes_of_k_images(counts, classes, images, seed):
    labels = labels_of(counts)
    sampler = PKSampler(labels, classes=classes, images=images, seed=seed)
    usable = sum(n > 1 for n in counts)
    for step in range(1, 8):
        rows = sampler.batch(step)
        assert len(rows) == sampler.size == min(classes, usable) * images
        for label, count in Counter(labels[rows].tolist()).items():
            assert count == images
            drawn = Counter(r for r in rows.tolist() if labels[r] == label)
            assert len(drawn) == min(images, counts[label])  # no repetition while there are enough
            assert max(drawn.values()) - min(drawn.values()) <= 1
        assert all(counts[label] > 1 for label in labels[rows])


def test_classes_are_seen_equally_often():
    labels = labels_of([5] * 12)
    sampler = PKSampler(labels, classes=4, images=2, seed=3)
    seen = Counter(int(c) for step in range(1, 31) for c in set(labels[sampler.batch(step)].tolist()))
    assert set(seen.values()) == {10}


def test_a_step_gives_the_same_batch_in_any_order_and_another_seed_another():
    labels = labels_of([6] * 7)
    first, again = (PKSampler(labels, classes=3, images=2, seed=1) for _ in range(2))
    forward = [first.batch(s).tolist() for s in range(1, 20)]
    backward = [again.batch(s).tolist() for s in range(19, 0, -1)][::-1]
    assert forward == backward
    other = PKSampler(labels, classes=3, images=2, seed=2)
    assert forward != [other.batch(s).tolist() for s in range(1, 20)]
    assert len({tuple(b) for b in forward}) == len(forward)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_joint_batch_does_not_depend_on_the_number_of_processes(world):
    sampler = PKSampler(labels_of([6] * 7), classes=5, images=3, seed=1)
    joint = sampler.batch(4)
    parts = [joint[distributed.rank_slice(len(joint), rank, world)] for rank in range(world)]
    assert np.concatenate(parts).tolist() == joint.tolist()


def test_rows_without_a_label_are_never_drawn():
    labels = np.array([0, 0, 1, 1, -1, -1, -1])
    sampler = PKSampler(labels, classes=2, images=2)
    assert {int(r) for s in range(1, 20) for r in sampler.batch(s)} == {0, 1, 2, 3}


def test_too_few_classes_shrink_the_batch_with_a_note(capsys):
    sampler = PKSampler(labels_of([4, 4, 4]), classes=32, images=4)
    assert (sampler.classes, sampler.size) == (3, 12)
    assert "batches hold 3 classes, not 32" in capsys.readouterr().err
    PKSampler(labels_of([4, 4, 4]), classes=32, images=4, warn_if_fewer=False)  # a default that nobody chose
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("counts", [[5], [5, 1, 1], [1, 1, 1]])
def test_one_class_or_only_single_images_gives_a_one_line_error(counts):
    with pytest.raises(LookalikeError, match="training needs at least 2"):
        PKSampler(labels_of(counts), classes=2, images=2)


def test_shuffled_passes_hold_every_image_once():
    sampler = ShuffleSampler(12, size=4, seed=0)
    assert sampler.steps_per_epoch == 3
    passes = [np.concatenate([sampler.batch(3 * p + s) for s in (1, 2, 3)]).tolist() for p in range(3)]
    assert all(sorted(p) == list(range(12)) for p in passes)
    assert passes[0] != passes[1] != passes[2]
    assert len(ShuffleSampler(3, size=8).batch(1)) == 3


def test_with_replacement_classes_and_images_come_twice():
    labels = np.repeat(np.arange(6), 3)
    sampler = PKSampler(labels, classes=6, images=2, seed=1, replacement=True)
    batches = [sampler.batch(step).reshape(6, 2) for step in range(1, 40)]
    assert all((labels[rows[:, 0]] == labels[rows[:, 1]]).all() for rows in batches)
    assert any((rows[:, 0] == rows[:, 1]).any() for rows in batches)
    assert any(len(set(labels[rows[:, 0]])) < 6 for rows in batches)
    again = PKSampler(labels, classes=6, images=2, seed=1, replacement=True)
    assert all(np.array_equal(again.batch(step + 1).reshape(6, 2), rows) for step, rows in enumerate(batches))


def test_among_some_images_only() -> None:
    from lookalike.data.samplers import ShuffleSampler, SubsetSampler

    rows = np.array([3, 7, 8, 20, 21, 40])
    sampler = SubsetSampler(rows, ShuffleSampler(len(rows), size=2, seed=1))
    assert (sampler.size, sampler.steps_per_epoch) == (2, 3)
    drawn = np.concatenate([sampler.batch(step) for step in (1, 2, 3)])
    assert sorted(drawn) == rows.tolist()
