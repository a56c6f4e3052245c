"""Placing: evidence against loops, distances at matched size, the curve on disk, and the sentences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests import helpers
from tests.naive import placing as naive

from lookalike import shift
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.seeds import numpy_rng
from lookalike.data import read_table
from lookalike.data.styles import STRENGTHS, STYLES, StyleView, median
from lookalike.shift import graded_folders, neighbor_features, placement
from lookalike.shift.graded_folders import (
    HeldOutModel,
    LabeledFeatures,
    SplitPoint,
    TrainingReference,
    class_halves,
    far_limit,
    grade_folders,
)
from lookalike.shift.shift_curve import ShiftCurve


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def world(classes=30, images=20, dim=40, seed=0, spread=0.6):
    """Unit features of classes, half of which a model would be trained on."""
    rng = numpy_rng(seed, "place world")
    centers = rng.standard_normal((classes, dim)) * np.linspace(2, 0.3, dim)
    labels = np.repeat(np.arange(classes), images)
    rows = unit(centers[labels] + spread * rng.standard_normal((len(labels), dim)) + 1.0)
    return rows, labels


def encode(rows):
    """A head: the first directions count more."""
    return unit(np.asarray(rows) * np.linspace(2, 0.5, rows.shape[1]))


@pytest.fixture(scope="module")
def curve():
    features, labels = world()
    train, held = np.flatnonzero(labels < 14), np.flatnonzero(labels >= 14)
    styles = {
        "gray": unit(features[held] + 0.05),
        "noise": unit(features[held] + 0.03 * numpy_rng(1, "n").standard_normal(features[held].shape)),
    }
    images = LabeledFeatures(features, labels, styles, held)
    model = HeldOutModel(encode, train, held)
    graded, reference, class_centers = grade_folders(images, model, class_halves(labels, held, 0), plain=4, styled=2)
    splits = [
        SplitPoint(k, 10.0 * k, 0.9 - 0.1 * k, reference, reference.project(unit(features[held] + 0.1 * k)))
        for k in range(1, 4)
    ]
    far = far_limit(images, held, reference)
    about = {"images": len(labels)}
    return ShiftCurve.fit(
        "abc", graded, splits=splits, reference=reference, class_centers=class_centers, far=far, about=about
    )


# ---- evidence ------------------------------------------------------------------------------------


def test_evidence_is_what_the_loops_say():
    features, labels = world(classes=8, images=9)
    vectors = encode(features)
    class_centers = neighbor_features.class_means(vectors[labels < 4], labels[labels < 4])
    images = labels >= 3
    found = neighbor_features.neighbor_features(vectors[images], features[images], class_centers)
    for row in (0, 7, 44):
        said = dict(zip(neighbor_features.FEATURES, found[row].tolist(), strict=True))
        expected = naive.evidence(vectors[images], features[images], class_centers, row)
        assert {name: said[name] for name in expected} == pytest.approx(expected, abs=2e-4)


def test_recall_is_what_the_loops_say():
    features, labels = world(classes=5, images=6, spread=2.0)
    labels = labels.copy()
    labels[0] = 9  # alone in its class: it does not ask
    assert graded_folders.folder_recall(features, labels) == pytest.approx(naive.recall(features, labels))


def test_evidence_follows_its_image():
    features, labels = world(classes=8, images=8)
    vectors, order = encode(features), numpy_rng(0, "order").permutation(len(features))
    class_centers = neighbor_features.class_means(vectors, labels)
    one = neighbor_features.neighbor_features(vectors, features, class_centers)
    two = neighbor_features.neighbor_features(vectors[order], features[order], class_centers)
    np.testing.assert_allclose(one[order], two, atol=1e-4)


def test_without_classes_of_training_nothing_is_said_of_them():
    features, _ = world(classes=6, images=8)
    found = dict(
        zip(
            neighbor_features.FEATURES,
            neighbor_features.neighbor_features(features, features, features[:0]).T,
            strict=True,
        )
    )
    assert not any(found[name].any() for name in ("classes sharp", "classes", "same class", "profile"))
    assert (found["features first"] == 1).all() and (found["features rank"] == 0).all()
    assert found["half 10"].mean() < 1.0


def test_images_that_were_trained_on_are_no_witnesses_for_their_classes():
    from lookalike.shift.graded_folders import training_class_means

    features, labels = world(classes=6, images=8)
    rows, images = np.arange(len(labels)), LabeledFeatures(features, labels)
    assert len(training_class_means(images, HeldOutModel(encode, rows, rows), features)) == 0
    assert len(training_class_means(images, HeldOutModel(encode, rows[labels < 4], rows[labels >= 4]), features)) == 4


# ---- distance ------------------------------------------------------------------------------------


def test_the_distance_does_not_depend_on_how_many_images_there_are():
    rng = numpy_rng(0, "gaussian")
    reference = TrainingReference.fit(rng.standard_normal((4000, 80)))
    near = [reference.distance(reference.project(rng.standard_normal((n, 80))))[0] for n in (120, 400, 1500)]
    moved = [reference.distance(reference.project(rng.standard_normal((n, 80)) + 0.5))[0] for n in (120, 400, 1500)]
    assert max(map(abs, near)) < 3.0
    assert min(moved) > 10.0
    assert max(moved) - min(moved) < 0.35 * np.mean(moved)


def test_a_farther_shift_lies_farther():
    rng = numpy_rng(0, "gaussian")
    reference = TrainingReference.fit(rng.standard_normal((2000, 30)))
    found = [reference.distance(reference.project(rng.standard_normal((300, 30)) + s))[0] for s in (0, 0.3, 0.6, 1.2)]
    assert found == sorted(found)


# ---- folders -------------------------------------------------------------------------------------


def test_folders_are_class_subsets_of_every_size():
    features, labels = world(classes=20, images=40)
    classes = graded_folders.Classes.of(features, labels, np.arange(len(labels)), features.mean(axis=0))
    rng = numpy_rng(0, "draws")
    drawn = [graded_folders.draw_folder(classes, rng) for _ in range(60)]
    sizes, counts = [len(rows) for rows in drawn], [len(np.unique(labels[rows])) for rows in drawn]
    assert min(sizes) >= 100 and max(sizes) <= 1000 and max(sizes) > 400
    assert min(counts) <= 4 and max(counts) >= 15
    assert all(len(np.unique(rows)) == len(rows) for rows in drawn)
    with pytest.raises(LookalikeError, match="too few"):
        graded_folders.draw_folder(
            graded_folders.Classes.of(features, labels, np.arange(60), features.mean(axis=0)), rng
        )


def test_points_of_a_half_hold_its_classes_only():
    features, labels = world()
    held = np.flatnonzero(labels >= 14)
    halves = class_halves(labels, held, 0)
    model = HeldOutModel(encode, np.flatnonzero(labels < 14), held)
    points = [folder.point for folder in grade_folders(LabeledFeatures(features, labels), model, halves, plain=2)[0]]
    sides = [set(half) for pair in halves for half in pair]
    assert len(points) == 24
    for number, point in enumerate(points):
        assert set(point.classes) <= sides[number // 2]
    with pytest.raises(LookalikeError, match="too few to learn"):
        class_halves(labels, held[:150], 0)


@pytest.mark.parametrize("style", STYLES)
def test_styles_change_a_image_more_and_more(style):
    from lookalike.data.decoding import Preprocess, prepare

    pre = Preprocess(size=96, mean=(0.5,) * 3, std=(0.5,) * 3)
    pixels = helpers.make_image(3, width=120, height=110).astype(float) + numpy_rng(0, "p").normal(0, 12, (110, 120, 3))
    pixels = pixels.clip(0, 255).astype(np.uint8)
    assert StyleView(pre, ((style, 1),)).to_json()["steps"] == [[style, 1]]
    base = prepare(pixels, pre).astype(float)
    moved = [np.abs(StyleView(pre, ((style, k),))(pixels, numpy_rng(0, "s")) - base).mean() for k in STRENGTHS]
    assert min(moved) > 1 and moved[0] < 1.2 * moved[2]
    again = StyleView(pre, ((style, 2),))(pixels, numpy_rng(0, "s"))
    assert (again == StyleView(pre, ((style, 2),))(pixels, numpy_rng(0, "s"))).all() and again.shape == (96, 96, 3)
    cropped = StyleView(pre, ((style, 2),), cropped=True)(prepare(pixels, pre), numpy_rng(0, "s"))
    assert (again == cropped).all()
    with pytest.raises(LookalikeError, match="style"):
        StyleView(pre, (("sepia", 2),))


@pytest.mark.parametrize("size", (3, 5, 7))
def test_the_median_is_the_one_of_pillow(size):
    from PIL import Image, ImageFilter

    for shape in ((40, 31, 3), (2, 5, 3), (1, 1, 3)):
        pixels = numpy_rng(size, "median").integers(0, 256, shape).astype(np.uint8)
        expected = np.asarray(Image.fromarray(pixels).filter(ImageFilter.MedianFilter(size)))
        assert (median(pixels, size) == expected).all()


# ---- the curve -----------------------------------------------------------------------------------


def folder_of(seed=5, classes=8, images=25, shift=0.0):
    rows, labels = world(classes=30, images=images, seed=0)
    chosen = np.isin(labels, 14 + np.arange(classes))
    return unit(rows[chosen] + shift), labels[chosen]


def test_a_folder_is_placed_with_an_interval(curve):
    features, _ = folder_of()
    found = curve.place(encode(features), features)
    assert found.verdict == "placed" and found.recall is not None
    assert found.recall.low <= found.recall.value <= found.recall.high
    assert found.position.split in (1, 2, 3)
    assert found.message.startswith(f"As far from training as split {found.position.split} of 3; expect recall@1 ")
    wide = curve.place(encode(features), features, level=0.95).recall
    assert wide.low <= found.recall.low and wide.high >= found.recall.high


def test_a_split_lands_on_itself(curve):
    features, labels = world()
    held = features[labels >= 14]
    for split in curve.splits:
        moved = unit(held + 0.1 * split.id)
        found = curve.place(encode(moved), moved)
        assert abs(found.position.split - split.id) <= 1


def test_twice_the_images_move_the_estimate_by_less_than_its_interval(curve):
    features, _ = folder_of(classes=8, images=40)
    half = features[::2]
    one, two = curve.place(encode(half), half).recall, curve.place(encode(features), features).recall
    assert abs(one.value - two.value) < min(one.high - one.low, two.high - two.low)


def test_small_and_far_folders_are_said_to_be(curve):
    features, _ = folder_of(classes=2, images=20)
    small = curve.place(encode(features), features)
    assert small.verdict == "too_few" and small.recall is None and "too few for an estimate" in small.message
    assert "near training" in small.message
    far = unit(numpy_rng(0, "far").standard_normal((150, 40)) - 3)
    found = curve.place(encode(far), far)
    assert found.verdict == "out_of_range" and found.message.startswith("Out of range: ")
    assert "no measurement supports it" in found.message
    assert "far from training" in curve.place(encode(far[:50]), far[:50]).message


def test_a_folder_nearer_than_the_curve_is_taken_for_its_near_end(curve):
    features, _ = folder_of()
    plain = curve.place(encode(features), features)
    best = plain.recall.low - 0.1
    points = [replace(point, distance=point.distance + 100, recall=min(point.recall, best)) for point in curve.points]
    far = replace(curve, points=points)
    found = far.place(encode(features), features)
    assert found.verdict == "placed" and "Nearer" not in plain.message
    assert found.recall.low <= found.recall.value == best < plain.recall.value
    assert found.recall.high == plain.recall.high
    start = "Nearer to training than every folder the curve was learned on, so its near end is used"
    assert found.message.startswith(
        f"{start} (split {found.position.split} of 3); expect recall@1 {best:.2f}, between "
    )
    bare = replace(far, splits=[]).place(encode(features), features)
    assert bare.message.startswith(f"{start}; expect recall@1 {best:.2f}, between ")


def test_the_curve_comes_back_from_disk_as_it_was(curve, tmp_path):
    curve.save(tmp_path / "model.curve")
    again = ShiftCurve.load(tmp_path / "model.curve")
    features, _ = folder_of()
    assert again.place(encode(features), features) == curve.place(encode(features), features)
    document = read_json(tmp_path / "model.curve" / "curve.json")
    assert document["format"] == 2 and document["kind"] == "curve"
    write_json(tmp_path / "model.curve" / "curve.json", {**document, "format": 99})
    with pytest.raises(LookalikeError, match="format 99"):
        ShiftCurve.load(tmp_path / "model.curve")
    del document["points"]
    write_json(tmp_path / "model.curve" / "curve.json", document)
    with pytest.raises(LookalikeError, match="damaged"):
        ShiftCurve.load(tmp_path / "model.curve")


# ---- the verb ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run on 20 classes of 24 images."""
    from lookalike.training import train

    folder = helpers.make_images(
        tmp_path_factory.mktemp("many") / "classes", classes=20, images=24, width=40, height=40
    )
    settings = {
        "head": {"embedding_dim": 8},
        "sampler": {"classes_per_batch": 4, "images_per_class": 2},
        "data": {"near_duplicates": False, "test_fraction": 0.5},
        "keep": "trained",
        "log": {"tensorboard": False},
    }
    out = tmp_path_factory.mktemp("runs") / "run"
    return train(data=folder, model=tiny, settings=settings, steps=4, out=out, report=False)


def test_place_learns_once_and_keeps_the_curve_beside_the_model(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(placement, "STYLES", placement.STYLES[-3:])
    folder = helpers.make_images(tmp_path / "new", classes=5, images=24, width=40, height=40, seed=7)
    found = shift.place(model=trained.path, folder=folder, out=tmp_path / "placed")
    path = trained.path / "model.curve" / "curve.json"
    assert found.position.images == 120 and path.is_file()
    before = path.stat().st_mtime_ns
    again = shift.place(model=trained.path, folder=folder)
    assert path.stat().st_mtime_ns == before
    assert again == found
    if found.recall is not None:
        assert found.recall.high - found.recall.low <= 1
    from lookalike.reporting import report

    assert found.message in report(run=tmp_path / "placed").read_text()
    document = read_json(path)
    assert document["about"]["trained_on"] + document["about"]["held_out"] == 480
    assert len(document["splits"]) >= 3
    assert document["about"]["styles"][-1] == "poster 2 and gray 3"


def test_a_curve_of_an_older_version_is_learnt_again(tmp_path, capsys):
    write_json(tmp_path / "curve.json", {"format": 1, "kind": "curve", "points": []})
    assert placement._stored_curve(tmp_path, None, None, None) is None
    assert "older version; it will be learned again" in capsys.readouterr().err


def test_another_data_or_seed_is_learnt_from(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(placement, "STYLES", placement.STYLES[-1:])
    folder = helpers.make_images(tmp_path / "new", classes=5, images=24, width=40, height=40, seed=7)
    one, two = (
        helpers.make_images(tmp_path / name, classes=6, images=40, width=40, height=40, seed=seed)
        for name, seed in (("one", 3), ("two", 4))
    )
    curve = tmp_path / "curve"

    def said(**asked):
        shift.place(model=trained.path, folder=folder, curve=curve, **asked)
        return capsys.readouterr().err

    assert "once, from 240 held-out images of `one`" in said(data=one)
    first = ShiftCurve.load(curve)
    assert first.about["seed"] == 0

    def learn(model, embedder, data, *, seed):
        about = {"data": placement._identity(data)} if data is not None else {}
        return replace(first, about={**about, "seed": seed})

    monkeypatch.setattr(placement, "learn", learn)
    for asked in ({}, {"data": one}, {"data": one, "seed": 0}, {"seed": 0}, {"data": read_table(one)}):
        assert "learned" not in said(**asked)
    assert "was learned with seed 0; it will be learned again" in said(data=one, seed=1)
    assert "learned" not in said(data=one) + said(seed=1)
    assert "was learned from other images or labels; it will be learned again" in said(data=two)
    assert ShiftCurve.load(curve).about["seed"] == 0
    other = read_table(two)
    other = other.with_column("label", other.column("label")[::-1])
    assert "other images or labels" in said(data=other)
    assert "was learned with seed 0" in said(seed=2)  # such a curve does not say which images it was learned from
    assert "learned" not in said()
    assert "does not say which images it was learned from; it will be learned again" in said(data=two)
    assert "without `data` it has no effect" in said(layout="folder")


def test_find_duplicates_are_one_image_and_a_bare_model_needs_data(trained, tiny, tmp_path):
    folder = helpers.make_images(tmp_path / "one", classes=1, images=1, width=40, height=40, seed=9)
    image = next(folder.rglob("*.jpg"))
    for number in range(20):
        (image.parent / f"copy-{number}.jpg").write_bytes(image.read_bytes())
    with pytest.raises(LookalikeError, match="1 different images"):
        shift.place(model=trained.path, folder=folder)
    with pytest.raises(LookalikeError, match="--data"):
        shift.place(model=tiny, folder=folder, fresh=True)
    with pytest.raises(LookalikeError, match="level"):
        shift.place(model=trained.path, folder=folder, level=1.5)
