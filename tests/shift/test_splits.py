"""Splits: equal sides, nothing on both, nothing lost, the rule of the paper, and the file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.naive import shift as naive

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import progress_listener
from lookalike.core.seeds import numpy_rng
from lookalike.shift import class_swaps, fid
from lookalike.shift.class_swaps import plateau, swap_sequence
from lookalike.shift.fid import ClassFID
from lookalike.shift.make_splits import default_sides, split_features
from lookalike.shift.split_set import SplitSet

REFERENCE = {"name": "made up", "weights": "0"}


@pytest.mark.parametrize(("harder", "history", "per_step"), [(True, 5, 2), (False, 7, 2), (True, 0, 1), (True, 3, 3)])
def test_swaps_as_the_naive_twin(harder, history, per_step):
    means = numpy_rng(1, "means").standard_normal((20, 5))
    train, test = tuple(range(10)), tuple(range(10, 20))
    result = class_swaps.swaps(means, train, test, per_step=per_step, steps=8, history=history, harder=harder)
    expected = naive.swap_sequence(means, train, test, per_step, 8, history, harder)
    assert [(s.train, s.test) for s in result] == expected
    assert all(len(s.swapped) == per_step for s in result)


def test_swapping_drives_the_sides_apart_and_together(classes):
    table, features = classes(40)
    codes, names = table.labels()
    whole = swap_sequence(ClassFID(features, codes), names, default_sides(table))
    fids = [step.fid for step in whole.steps]
    assert fids[whole.end] > 1.5 * fids[whole.start] > 1.5 * min(fids[: whole.start])
    assert fids[-1] > fids[whole.end]  # removal goes on where swapping stopped
    last = whole.steps[-1]
    assert last.fid > np.mean(last.random)  # more than fewer classes do by themselves


@pytest.mark.parametrize("classes_there", [6, 7, 21, 40])
@pytest.mark.parametrize("measure", ["samples", "means"])
def test_every_class_and_image_is_accounted_for(classes, classes_there, measure):
    table, features = classes(classes_there)
    result = split_features(table, features, REFERENCE, measure=measure)
    codes, names = table.labels()
    for split in result.splits:
        assert len(split.train) == len(split.test) >= 2
        assert not set(split.train) & set(split.test)
        assert sorted((*split.train, *split.test, *split.removed)) == sorted(names)
        rows = result.rows(table, split)
        assert sorted(np.concatenate(list(rows.values()))) == list(range(len(table)))
        assert split.images == tuple(len(own) for own in rows.values())
        if not result.is_removal(split):
            assert len(split.removed) == classes_there % 2  # the odd one
        assert {names[c] for c in codes[rows["train"]]} == set(split.train)
    fids = [split.fid for split in result.splits]
    assert fids == sorted(fids)
    assert result.split(result.default).step == "0"


def test_fids_are_those_of_the_sides(classes):
    """Carried along or not, on samples or means, also of random removals."""
    table, features = classes(40)
    rows = features.astype(float)
    for measure in ("samples", "means"):
        result = split_features(table, features, REFERENCE, measure=measure)
        labels = table.column("label")

        def side(names, measure=measure, labels=labels):
            own = [rows[labels == name] for name in names]
            return np.concatenate(own) if measure == "samples" else np.stack([o.mean(0) for o in own])

        for split in result.splits:
            assert split.fid == pytest.approx(naive.fid(side(split.train), side(split.test)), rel=1e-6)


def test_the_whole_sequence_is_stored(classes):
    table, features = classes(40)
    result = split_features(table, features, REFERENCE, count=5)
    kinds = [step.kind for step in result.sequence]
    assert kinds == sorted(kinds, key=["easier", "start", "harder", "removal"].index)
    assert len(result.splits) == 5
    assert len(result.sequence) == 15 + 1 + 20 + 7
    assert {split.step for split in result.splits} <= {step.name for step in result.sequence}
    assert all(len(step.random) == 5 for step in result.sequence if step.kind == "removal")
    end = plateau([s.fid for s in result.sequence if s.kind in ("start", "harder")], 5)
    assert str(end) in {split.step for split in result.splits}
    sides = dict.fromkeys(result.split(result.default).train, "train")
    sides |= dict.fromkeys(result.split(result.default).test, "test")
    for step in result.sequence:  # replay the swaps: the written pairs lead to the written splits
        if step.kind == "harder":
            for out_of_train, out_of_test in step.swapped:
                assert (sides[out_of_train], sides[out_of_test]) == ("train", "test")
                sides[out_of_train], sides[out_of_test] = "test", "train"
            for split in result.splits:
                if split.step == step.name:
                    assert set(split.train) == {name for name, side in sides.items() if side == "train"}
    assert result.positions()[result.default] == 0
    assert set(result.progression()) == {"swapping", "removal", "random removal"}


def test_same_file_for_the_same_seed_and_shuffled_rows(classes, tmp_path, monkeypatch):
    table, features = classes(21)
    order = numpy_rng(0, "shuffle").permutation(len(table))
    by_id = dict(zip(table.column("row_id"), features, strict=True))

    class ReferenceModel:
        name, preprocess, pooling = "made up", None, type("P", (), {"name": "avg"})

        def fingerprint(self, layer):
            return "0"

    from lookalike.data import Preprocess
    from lookalike.shift import make_splits

    ReferenceModel.preprocess = Preprocess(size=32, mean=(0, 0, 0), std=(1, 1, 1))
    monkeypatch.setattr(
        "lookalike.models.features_for",
        lambda model, rows, **_: np.stack([by_id[row] for row in rows.column("row_id")])[None],
    )
    first = make_splits.make_splits(table, ReferenceModel(), seed=3)
    second = make_splits.make_splits(table.take(order), ReferenceModel(), seed=3)
    first.save(tmp_path / "a.json")
    second.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    other = make_splits.make_splits(table, ReferenceModel(), seed=4)
    assert other.random != first.random
    assert [s.fid for s in other.splits] == [s.fid for s in first.splits]


def test_file_there_and_back(classes, tmp_path):
    table, features = classes(21)
    result = split_features(table, features, REFERENCE)
    result.save(tmp_path / "splits.json")
    assert SplitSet.load(tmp_path / "splits.json") == result
    document = json.loads((tmp_path / "splits.json").read_text())
    assert document["format"] == 1
    assert document["kind"] == "splits"
    assert document["measure"] == "samples"
    assert sum(document["data"]["classes"].values()) == len(table)
    document["splits"][0]["test"][0] = document["splits"][0]["train"][0]
    (tmp_path / "both.json").write_text(json.dumps(document))
    with pytest.raises(LookalikeError, match="both sides"):
        SplitSet.load(tmp_path / "both.json")
    del document["reference_model"]
    (tmp_path / "half.json").write_text(json.dumps(document))
    with pytest.raises(LookalikeError, match="damaged"):
        SplitSet.load(tmp_path / "half.json")


def test_splits_of_other_images_are_refused(classes):
    table, features = classes(12)
    result = split_features(table, features, REFERENCE)
    with pytest.raises(LookalikeError, match="does not have"):
        result.rows(classes(8)[0], result.split(1))
    with pytest.raises(LookalikeError, match="no split 99"):
        result.split(99)


def test_images_without_a_label_are_in_neither(classes):
    table, features = classes(12)
    labels = table.column("label").copy()
    labels[:3] = None
    table = table.with_column("label", labels)
    result = split_features(table, features, REFERENCE)
    assert result.data["unlabeled"] == 3
    rows = result.rows(table, result.split(1))
    assert {0, 1, 2} <= set(rows["removed"])
    assert sum(len(own) for own in rows.values()) == len(table) == sum(result.split(1).images)


def test_start_takes_a_split_that_parts_the_classes(classes):
    table, _ = classes(12)
    codes, _ = table.labels()
    even = table.with_column("split", np.where(codes % 2 == 0, "train", "test").astype(object))
    assert default_sides(even) == (tuple(range(0, 12, 2)), tuple(range(1, 12, 2)))
    uneven = table.with_column("split", np.where(codes < 9, "train", "test").astype(object))
    assert default_sides(uneven) == (tuple(range(6)), tuple(range(6, 12)))
    with pytest.raises(LookalikeError, match="at least 6"):
        default_sides(classes(5)[0])


def test_removal_takes_what_is_nearest_to_the_other_side():
    means = np.array([[0.0], [1], [6], [9], [4], [10]])
    result = class_swaps.removals(means, (0, 1, 2), (3, 4, 5), per_step=1, steps=1)
    assert (result[0].train, result[0].test, result[0].removed) == ((0, 1), (3, 5), (2, 4))


def test_removal_of_several_at_once_takes_the_first_of_the_same_order():
    means = numpy_rng(3, "means").standard_normal((40, 4))
    train, test = tuple(range(20)), tuple(range(20, 40))
    result = class_swaps.removals(means, train, test, per_step=3, steps=4)
    scores = class_swaps.separation(means, train, test)
    for side, own, chosen in zip((train, test), scores, (result[0].train, result[0].test), strict=True):
        gone = {side[i] for i in np.argsort(own)[:3]}
        assert set(side) - set(chosen) == gone
    assert [len(state.train) for state in result] == [len(state.test) for state in result] == [17, 14, 11, 8]


def test_large_data_sets_go_in_larger_steps(classes):
    """As many steps as for a few classes: a sequence of thousands could not be paid for."""
    table, features = classes(600, images=4, dim=3)
    result = split_features(table, features, REFERENCE, draws=1)
    assert result.settings["per_step"] == 6
    removed = [step for step in result.sequence if step.kind == "removal"]
    assert [step.number for step in removed] == list(range(3, 100, 3))
    assert len(result.splits[-1].train) == 300 - removed[-1].number


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"measure": "mean"}, "did you mean `means`"),
        ({"removal": "random"}, "rule of removal"),
        ({"count": 1}, "at least 2 splits"),
        ({"draws": 0}, "at least 1 random"),
    ],
)
def test_options_that_make_no_splits(classes, wrong, words):
    with pytest.raises(LookalikeError, match=words):
        split_features(*classes(8), REFERENCE, **wrong)


def test_the_authors_removal_swaps_or_removes(classes):
    table, features = classes(60)
    codes, _ = table.labels()
    distances = ClassFID(features, codes)
    train, test = default_sides(table)
    result = class_swaps.author_removals(
        distances.means, train, test, distances.between, per_step=2, steps=10, history=5
    )
    current, left = distances.between(train, test), set(range(60))
    for state in result:
        value = distances.between(state.train, state.test)
        if state.removed:
            assert len(state.removed) == 4
            left -= set(state.removed)
        else:
            assert value < current
        assert set(state.train) | set(state.test) == left
        assert len(state.train) == len(state.test)
        current = value
    assert any(state.removed for state in result)
    whole = split_features(table, features, REFERENCE, removal="authors")
    assert whole.settings["removal"] == "authors"


def test_the_authors_removal_keeps_its_history(classes):
    """Also after the first removal, whose classes' positions other classes take."""
    table, features = classes(60)
    codes, _ = table.labels()
    distances = ClassFID(features, codes)
    sides, options = default_sides(table), {"per_step": 2, "steps": 9, "history": 5}
    result = class_swaps.author_removals(distances.means, *sides, distances.between, **options)
    expected = naive.author_removals(distances.means, *sides, distances.between, **options)
    assert sum(bool(state.removed) for state in result) > 1
    assert [(state.train, state.test) for state in result] == expected[1:]


def test_easier_splits_can_be_left_out(classes):
    table, features = classes(40)
    whole, harder = (split_features(table, features, REFERENCE, easier=easier) for easier in (True, False))
    assert any(step.kind == "easier" for step in whole.sequence)
    assert harder.sequence[0].kind == "start" and harder.default == 1


def test_carried_moments_are_those_computed_anew(classes):
    table, features = classes(40, images=12)
    codes, _ = table.labels()
    distances = ClassFID(features, codes)
    rng = numpy_rng(0, "walk")
    sides, steps = [list(range(20)), list(range(20, 40))], []
    for _ in range(100):
        a, b = rng.integers(20, size=2)
        sides[0][a], sides[1][b] = sides[1][b], sides[0][a]
        steps.append((tuple(sides[0]), tuple(sides[1])))
    fresh = [fid.frechet_distance(distances.rows(a), distances.rows(b)) for a, b in steps]
    assert np.allclose(distances.along(steps), fresh, rtol=1e-11, atol=0)


def test_turning_point():
    assert plateau([1, 2, 3, 2, 2, 2, 9], 3) == 2
    assert plateau([1, 2, 3, 2, 2, 4, 3], 3) == 5
    assert plateau([5, 4], 3) == 0


@pytest.mark.parametrize("removal", ["pure", "authors"])
def test_every_long_stage_is_shown(classes, removal, monkeypatch):
    """Also off a terminal: FID of a large data set takes minutes."""
    monkeypatch.setenv("LOOKALIKE_PROGRESS_SECONDS", "15")
    monkeypatch.setattr("lookalike.core.progress._LEVEL", 1)
    table, features = classes(40)
    shown = {}

    def note(bar):
        if bar.bar or bar.seconds:  # it is shown
            shown[bar.what] = bar.done, bar.total

    with progress_listener(note):
        quiet = split_features(table, features, REFERENCE, removal=removal)
        assert not shown
        result = split_features(table, features, REFERENCE, removal=removal, progress=True)
    assert result == quiet
    stages = ["FID along the swaps", "FID of removals, targeted and random"]
    assert set(shown) == {*stages, *(["Removals by the authors' rule"] if removal == "authors" else [])}
    assert all(shown[name][0] == shown[name][1] > 0 for name in stages)
