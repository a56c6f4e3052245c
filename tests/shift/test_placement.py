"""Placing: evidence against loops, distances at matched size, the curve on disk, and the sentences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tests import helpers
from tests.naive import placing as naive

from lookalike import shift
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.seeds import numpy_rng
from lookalike.data import read_table
from lookalike.data.styles import STRENGTHS, STYLES, StyleView, median
from lookalike.shift import graded_folders, neighbor_features, placement
from lookalike.shift.graded_folders import LabeledFeatures, TrainingReference, draw_folder, grade_folders
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


def recall_of(vectors, labels):
    return np.mean([labels[naive.neighbors(vectors, k, 1)[0]] == labels[k] for k in range(len(labels))])


STYLE = 0.3 * numpy_rng(2, "style").standard_normal(40)


def labeled(classes=44, images=24, styles=True):
    features, labels = world(classes, images)
    train, held = np.flatnonzero(labels < 14), np.flatnonzero(labels >= 14)
    noise = 0.1 * numpy_rng(1, "n").standard_normal(features[held].shape)
    styled = {"gray 3": unit(features[held] + STYLE), "noise 3": unit(features[held] + noise)} if styles else {}
    return LabeledFeatures(features, labels, train, held, styled, held)


@pytest.fixture(scope="module")
def curve():
    return ShiftCurve.fit("abc", labeled(), encode, {"images": 1056})


# ---- features ------------------------------------------------------------------------------------


def test_features_are_what_the_loops_say():
    features, labels = world(classes=8, images=9)
    vectors = encode(features)
    class_centers = neighbor_features.class_means(vectors[labels < 4], labels[labels < 4])
    images = labels >= 3
    result, nearest = neighbor_features.folder_features(vectors[images], features[images], class_centers)
    each = [naive.evidence(vectors[images], features[images], class_centers, row) for row in range(images.sum())]
    reported = dict(zip(neighbor_features.FEATURES, result.tolist(), strict=True))
    expected = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    assert {name: reported[name] for name in expected} == pytest.approx(expected, abs=2e-4)
    assert nearest[5] == naive.neighbors(vectors[images], 5, 1)[0]


def test_first_neighbors_form_clusters():
    angles = np.array([0.0, 0.1, 2.0, 2.1, 4.0, 4.1])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    nearest = neighbor_features.nearest(vectors @ vectors.T, 1)[1][:, 0]
    assert neighbor_features.cluster_counts(vectors, nearest)[0] == 3


# ---- distance ------------------------------------------------------------------------------------


def test_a_farther_shift_lies_farther_whatever_the_number_of_images():
    rng = numpy_rng(0, "gaussian")
    reference = TrainingReference.fit(rng.standard_normal((4000, 30)))

    def distance(shift, images=300):
        return reference.distance(reference.project(rng.standard_normal((images, 30)) + shift))

    result = [distance(shift) for shift in (0, 0.3, 0.6, 1.2)]
    assert result == sorted(result)
    assert distance(0.6, 150) == pytest.approx(distance(0.6, 1500), rel=0.2)


# ---- folders -------------------------------------------------------------------------------------


def test_folders_have_few_and_many_classes_and_images():
    features, labels = world(classes=60, images=40)
    groups = [np.flatnonzero(labels == code) for code in range(60)]
    means = np.stack([features[group].mean(axis=0) for group in groups])
    rng = numpy_rng(0, "draws")
    drawn = [draw_folder(groups, means, np.linalg.norm(means, axis=1), rng) for _ in range(150)]
    counts = np.array([len(np.unique(labels[rows])) for rows in drawn])
    per_class = np.array([len(rows) for rows in drawn]) / counts
    assert min(map(len, drawn)) >= 50 and max(map(len, drawn)) <= 1000
    assert counts.min() <= 3 and counts.max() >= 50
    assert (per_class < 3.5).sum() >= 10 and (per_class > 20).sum() >= 10
    assert draw_folder([np.arange(20), np.arange(20, 40)], means[:2], np.zeros(2), rng) is None


def test_folders_of_a_half_are_judged_without_their_classes():
    graded, _, _ = grade_folders(labeled(styles=False), encode)
    assert len(graded) > 300
    for folder in graded:
        assert set(folder.classes) <= set(range(14, 44)) and folder.count == len(folder.classes)
        assert folder.excluded == folder.classes or len(folder.excluded) == 15
    with pytest.raises(LookalikeError, match="too few to learn"):
        replace(labeled(), held=np.arange(14 * 24, 14 * 24 + 60)).split_classes(0)


@pytest.mark.parametrize("style", STYLES)
def test_styles_change_an_image_more_and_more(style):
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


def folder_of(classes=8, images=24, shift=0.0):
    rows, labels = world(44, 24)
    chosen = np.isin(labels, 20 + np.arange(classes)) & (np.arange(len(labels)) % 24 < images)
    return unit(rows[chosen] + shift), labels[chosen]


def test_a_folder_is_placed_with_an_interval(curve):
    features, labels = folder_of()
    result = curve.place(encode(features), features)
    assert result.verdict == "placed" and result.message.startswith("Expect recall@1 ")
    assert result.recall.low <= result.recall.value <= result.recall.high
    assert result.recall.low <= recall_of(encode(features), labels) <= result.recall.high
    wide = curve.place(encode(features), features, level=0.95).recall
    assert wide.low <= result.recall.low and wide.high >= result.recall.high


def test_the_number_of_classes_narrows_the_interval(curve):
    widths = {True: [], False: []}
    for classes, images in ((5, 24), (8, 20), (12, 10), (20, 5), (24, 3)):
        features, _ = folder_of(classes, images)
        for known in (False, True):
            interval = curve.place(encode(features), features, classes=classes if known else None).recall
            widths[known].append(interval.high - interval.low)
    assert np.mean(widths[True]) < np.mean(widths[False])
    features, _ = folder_of()
    many = curve.place(encode(features), features, classes=90)
    assert many.verdict == "cannot_say" and "90 classes are outside" in many.message
    few = curve.place(encode(features[:50]), features[:50], classes=35)
    assert few.recall is None and "too few per class" in few.reason


def test_what_was_not_calibrated_gets_a_reason_and_what_would_help(curve):
    features, _ = folder_of(classes=2, images=20)
    small = curve.place(encode(features), features)
    assert small.verdict == "cannot_say" and small.recall is None and "40 images are too few" in small.message
    assert small.message.endswith("Label some images and run `lookalike evaluate`.")
    far = unit(numpy_rng(0, "far").standard_normal((150, 40)) - 3)
    assert "farther from training" in curve.place(encode(far), far).reason
    gray, _ = folder_of(shift=STYLE)
    assert "look different" in replace(curve, far=100.0).place(encode(gray), gray).reason
    one = unit(np.ones((60, 40)) + 1e-3 * numpy_rng(0, "copies").standard_normal((60, 40)))
    alike = replace(curve, far=100.0, style=None).place(encode(one), one)
    assert "unlike those of every calibration folder" in alike.reason


def test_held_out_images_of_trained_classes_cannot_calibrate():
    images = labeled(styles=False)
    with pytest.raises(LookalikeError, match="classes the model was trained on"):
        ShiftCurve.fit("abc", replace(images, train=images.held[::2], held=images.held[1::2]), encode, {})


def test_the_curve_comes_back_from_disk_as_it_was(curve, tmp_path):
    curve.save(tmp_path / "model.curve")
    again = ShiftCurve.load(tmp_path / "model.curve")
    features, _ = folder_of()
    for classes in (None, 8):
        place = {"vectors": encode(features), "features": features, "classes": classes}
        assert again.place(**place) == curve.place(**place)
    document = read_json(tmp_path / "model.curve" / "curve.json")
    assert document["kind"] == "curve"
    write_json(tmp_path / "model.curve" / "curve.json", {**document, "format": 99})
    with pytest.raises(LookalikeError, match="format 99"):
        ShiftCurve.load(tmp_path / "model.curve")
    write_json(tmp_path / "model.curve" / "curve.json", document)
    (file,) = (tmp_path / "model.curve").glob("*.npz")
    whole = file.read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"x" * 100):
        file.write_bytes(damage)
        with pytest.raises(LookalikeError, match="damaged"):
            ShiftCurve.load(tmp_path / "model.curve")
    file.write_bytes(whole)
    del document["folders"]
    write_json(tmp_path / "model.curve" / "curve.json", document)
    with pytest.raises(LookalikeError, match="damaged"):
        ShiftCurve.load(tmp_path / "model.curve")


# ---- the command ------------------------------------------------------------------------------------


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


@pytest.fixture
def few_folders(monkeypatch):
    """A calibration on half of the folders, where it is not what is tested."""
    monkeypatch.setattr(graded_folders, "PER_HALF", 32)
    monkeypatch.setattr(graded_folders, "PER_WHOLE", 12)


def test_place_learns_once_and_keeps_the_curve_beside_the_model(trained, tmp_path, monkeypatch, few_folders):
    monkeypatch.setattr(placement, "STYLES", placement.STYLES[-3:])
    folder = helpers.make_images(tmp_path / "new", classes=5, images=24, width=40, height=40, seed=7)
    result = shift.place(model=trained.path, folder=folder, out=tmp_path / "placed")
    path = trained.path / "model.curve" / "curve.json"
    assert result.images == 120 and path.is_file()
    before = path.stat().st_mtime_ns
    again = shift.place(model=trained.path, folder=folder)
    assert path.stat().st_mtime_ns == before
    assert again == result
    if result.recall is not None:
        assert result.recall.high - result.recall.low <= 1
    from lookalike.reporting import report

    assert result.message in report(run=tmp_path / "placed").read_text()
    document = read_json(path)
    assert document["about"]["trained_on"] + document["about"]["held_out"] == 480
    assert document["about"]["styles"][-1] == "poster 2 and gray 3"


def test_a_curve_of_an_older_version_is_learnt_again(tmp_path, capsys):
    write_json(tmp_path / "curve.json", {"format": 1, "kind": "curve", "points": []})
    assert placement._stored_curve(tmp_path, None, None, None) is None
    assert "older version; it will be learned again" in capsys.readouterr().err


def test_another_data_or_seed_is_learnt_from(trained, tmp_path, monkeypatch, capsys, few_folders):
    monkeypatch.setattr(placement, "STYLES", placement.STYLES[-1:])
    folder = helpers.make_images(tmp_path / "new", classes=5, images=24, width=40, height=40, seed=7)
    one, two = (
        helpers.make_images(tmp_path / name, classes=12, images=20, width=40, height=40, seed=seed)
        for name, seed in (("one", 3), ("two", 4))
    )
    curve = tmp_path / "curve"

    def place_message(**options):
        shift.place(model=trained.path, folder=folder, curve=curve, **options)
        return capsys.readouterr().err

    assert "once, on 240 held-out images of `one`" in place_message(data=one)
    first = ShiftCurve.load(curve)
    assert first.about["seed"] == 0

    def learn(model, embedder, data, *, seed):
        about = {"data": placement._identity(data)} if data is not None else {}
        return replace(first, about={**about, "seed": seed})

    monkeypatch.setattr(placement, "learn", learn)
    for options in ({}, {"data": one}, {"data": one, "seed": 0}, {"seed": 0}, {"data": read_table(one)}):
        assert "learned" not in place_message(**options)
    assert "was learned with seed 0; it will be learned again" in place_message(data=one, seed=1)
    assert "learned" not in place_message(data=one) + place_message(seed=1)
    assert "was learned from other images or labels; it will be learned again" in place_message(data=two)
    assert ShiftCurve.load(curve).about["seed"] == 0
    other = read_table(two)
    other = other.with_column("label", other.column("label")[::-1])
    assert "other images or labels" in place_message(data=other)
    assert "was learned with seed 0" in place_message(
        seed=2
    )  # such a curve does not say which images it was learned from
    assert "learned" not in place_message()
    assert "does not say which images it was learned from; it will be learned again" in place_message(data=two)
    assert "without `data` it has no effect" in place_message(layout="folder")


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


def test_images_without_a_split_are_not_their_own_nearest_training_images(few_folders):
    """Else every other folder would lie farther from training than all of them."""
    images = labeled(styles=False)
    every = np.arange(len(images.labels))
    own = ShiftCurve.fit("abc", replace(images, train=every, held=every), encode, {})
    rows, labels = world(44, 48, seed=0)
    new = np.isin(labels, np.arange(20, 32)) & (np.arange(len(labels)) % 48 >= 24)
    assert own.place(encode(rows[new]), rows[new]).verdict == "placed"


def test_a_style_that_was_not_rendered_gets_the_reason_too(trained, tmp_path, monkeypatch, few_folders):
    """Hatchings in two inks on paper: none of the rendered styles, which the score of style is learned from."""
    monkeypatch.setattr(placement, "STYLES", placement.STYLES[::3])
    plain = helpers.make_images(tmp_path / "plain", classes=5, images=24, width=40, height=40, seed=7)
    for file in sorted(plain.rglob("*.*")):
        pixels = np.asarray(Image.open(file).convert("RGB"))
        dark = np.asarray(Image.open(file).convert("L")) / 255
        lines = np.add.outer(np.arange(pixels.shape[0]), np.arange(pixels.shape[1])) % 6 / 6
        inks = np.where((lines < dark)[..., None], (250, 240, 200), (30, 60, 120))
        hatched = tmp_path / "hatched" / file.relative_to(plain)
        hatched.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(inks.astype(np.uint8)).save(hatched)
    curve = tmp_path / "curve"
    assert shift.place(model=trained.path, folder=plain, curve=curve).verdict == "placed"
    result = shift.place(model=trained.path, folder=tmp_path / "hatched", curve=curve)
    assert result.verdict == "cannot_say" and result.recall is None and result.reason
