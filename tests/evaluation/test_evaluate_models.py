"""The verbs on generated images, with a stand-in for the model: mean colors instead of a network."""

from __future__ import annotations

import csv
import io
import itertools
import json

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import progress_listener
from lookalike.core.report_blocks import Section
from lookalike.core.run import Run
from lookalike.data import audit, read_table
from lookalike.evaluation import compare, evaluate, evaluate_models, training_overlap
from tests.helpers import make_images


class Colors:
    """Mean colors of a coarse grid as the vector, with noise to make the model worse."""

    weight_bytes, dim = 1, 27

    def __init__(self, name="colors", grid=3, noise=0.0):
        self.name, self.grid, self.noise = name, grid, noise

    def fingerprint(self):
        return f"{self.grid}{self.noise}"

    def encode(self, table, *, on_error, **_):
        rows, failures = [], []
        rng = np.random.default_rng(0)
        for i in range(len(table)):
            try:
                image = Image.open(io.BytesIO(table.open_bytes(i))).convert("RGB").resize((self.grid, self.grid))
            except OSError as error:
                assert on_error == "skip"
                failures.append(Unreadable(i, str(table.file(i)), str(error)))
                continue
            row = np.asarray(image, np.float32).ravel() - 128
            row = row + self.noise * rng.standard_normal(len(row)).astype(np.float32) * 60
            rows.append(row / np.linalg.norm(row))
        return np.array(rows, np.float32), failures


class Unreadable:
    def __init__(self, index, name, reason):
        self.index, self.name, self.reason = index, name, reason

    def to_json(self):
        return {"index": self.index, "name": self.name, "reason": self.reason}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "shop", classes=6, images=8)


GOOD, BAD = Colors("good", noise=0.5), Colors("bad", noise=3.0)


def test_evaluate_measures_and_says_so(folder):
    result = evaluate(data=folder, model=GOOD, nmi=True)
    document = json.loads(json.dumps(result.to_json()))
    assert document["queries"] == 48 and document["mode"] == "leave-one-out" and document["classes"] == 6
    assert 0.5 < document["metrics"]["recall@1"]["value"] <= 1 and 0 < document["nmi"] <= 1
    assert document["verification"]["equal_error"] < 0.5
    assert "mAP@1000" in str(result) and result.verdict in str(result) and result.verdict in result._repr_html_()
    assert "baseline" not in document


def test_compare_says_which_is_better(folder):
    result = compare(data=folder, a=BAD, b=GOOD)
    assert result.verdict.startswith("good is better than bad: recall@1") and "p = 0.0" in result.verdict
    assert result.to_json()["differences"]["recall@1"]["difference"] > 0
    back = compare(data=folder, a=GOOD, b=BAD)
    assert back.verdict.startswith("bad is worse than good")
    assert back.differences["map@r"].difference == pytest.approx(-result.differences["map@r"].difference)
    same = compare(data=folder, a=GOOD, b=GOOD)
    assert same.verdict.startswith("No difference was found") and same.differences["recall@1"].p == 1
    assert same.note == "Both are the same model."


@pytest.fixture
def trained(folder, tmp_path, monkeypatch):
    """A run that trained on 3 classes of the folder, chose its step by 1, and knows 2 as its test side."""
    table = read_table(folder)
    run = Run.create("ms", {"model": {"name": "efficientnet_lite0"}}, path=tmp_path / "trained")
    table.with_column("split", np.repeat(["train", "train", "train", "val", "test", "test"], 8)).save(
        run.path / "table.parquet"
    )
    monkeypatch.setattr(evaluate_models, "_embedder", lambda model, *_, **__: GOOD if model == run.path else model)
    return run.path


def test_images_that_trained_a_model_are_left_out(folder, trained, tmp_path):
    result = compare(data=folder, a=BAD, b=trained, out=tmp_path / "out")
    points = 100 * result.differences["recall@1"].difference
    message = f"32 of these 48 images trained good; on the other 16: {points:+.1f} points of recall@1."
    assert (
        message in str(result).splitlines() and result.to_json()["note"] == message and message in result._repr_html_()
    )
    assert set(result.table.column("label")) == {"class-04", "class-05"}
    document = Run(tmp_path / "out").result
    assert document["note"] == message and document["training_overlap"]["trained"] == 32
    assert Run(tmp_path / "out").read_sections()["verdict"]["blocks"][0]["line"] == message
    alone = evaluate(data=folder, model=trained)
    assert alone.note == "32 of these 48 images trained good; measured on the other 16." and len(alone.table) == 16
    assert len(evaluate(data=folder, model=BAD, baseline=trained).table) == 16, "the baseline's count too"
    every = compare(data=folder, a=BAD, b=trained, all=True)
    assert len(every.table) == 48 and "32 of these 48 images trained good, so its figures" in str(every)
    assert evaluate(data=folder, model=BAD).note == ""


def test_a_run_that_exports_its_starting_model_was_trained_on_nothing(folder, trained):
    Run(trained).write_result(selected="starting model")
    every = evaluate(data=folder, model=trained)
    assert every.note == "" and len(every.table) == 48
    assert len(evaluate(data=folder, model=trained, split="test").table) == 16, "its split is known all the same"
    assert training_overlap.training_images(trained) == frozenset()
    (trained / "trained").mkdir()
    beside = training_overlap.known_images(trained / "trained")
    assert beside is not None and set(beside.made.values()) == {"train", "val"}, "the trained model beside it"


@pytest.fixture
def same_names(tmp_path, monkeypatch):
    """A run on the folder `train` of a collection whose folder `test` has images of the same names and sizes."""
    rng = np.random.default_rng(0)
    for part, name, i in itertools.product(("train", "test"), "ab", range(2)):
        path = tmp_path / "shop" / part / name / f"{i}.bmp"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(path)
    run = Run.create("ms", {"model": {"name": "efficientnet_lite0"}}, path=tmp_path / "run")
    audit(read_table(tmp_path / "shop"), near=False).table.save(run.path / "table.parquet")
    monkeypatch.setattr(evaluate_models, "_embedder", lambda model, *_, **__: GOOD if model == run.path else model)
    return tmp_path / "shop", run.path


def test_images_of_equal_name_and_size_are_distinguished_by_their_pixels(same_names, tmp_path):
    folder, run = same_names
    alone = evaluate(data=folder / "test", model=run)
    assert alone.note == "" and len(alone.table) == 4, "another folder than the one that trained the model"
    moved = folder.rename(tmp_path / "elsewhere")
    every = evaluate(data=moved, model=run, all=True, split="all")
    assert "4 of these 8 images trained good, so" in every.note
    assert evaluate(data=moved, model=run).note == ""
    with pytest.raises(LookalikeError, match="trained on all 4 images"):
        evaluate(data=moved / "train", model=run)


def test_unreadable_images_are_not_counted_as_evaluated(folder, trained, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "shop")
    broken = tmp_path / "shop" / "class-05" / "0.jpg"
    broken.write_bytes(b"x" * broken.stat().st_size)
    result = evaluate(data=tmp_path / "shop", model=trained, leave_out_copies=True)
    assert result.note == "32 of these 47 images trained good; measured on the other 15." and len(result.table) == 15
    assert len(result.failures) == 1


def test_several_models_are_compared_on_images_that_trained_none(folder, trained, tmp_path):
    models = [Colors("other", noise=1.0), trained]
    result = compare(data=folder, models=models, out=tmp_path / "out", runtime="torch")
    note = "32 of these 48 images trained good; compared on the other 16."
    assert result.note == note and note in str(result).splitlines() and result.queries == 16
    document = Run(tmp_path / "out").result
    assert document["note"] == note and document["training_overlap"]["trained"] == 32
    assert Run(tmp_path / "out").read_sections()["verdict"]["blocks"][0]["line"] == note
    every = compare(data=folder, models=models, all=True, runtime="torch")
    assert every.queries == 48 and every.note == "32 of these 48 images trained good, so its figures are too high."


def test_every_long_stage_shows_its_progress(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LOOKALIKE_PROGRESS_SECONDS", "15")
    expected = {"Ranking", "Calibrating", "Verifying pairs", "Clustering", "Computing intervals", "Writing the report"}
    expected |= {"Classifying by neighbors", "Fitting the linear probe", "Classifying by majority", "Fitting SVMs"}
    stages = {}
    options = dict.fromkeys(("nmi", "knn", "probe", "retriever", "svm", "progress"), True)
    with progress_listener(lambda bar: stages.setdefault(bar.what, bar.seconds)):
        evaluate(data=folder, model=GOOD, out=tmp_path / "out", **options)
    assert {what for what, seconds in stages.items() if seconds == 15} >= expected


def test_the_split_of_the_run_is_known_for_a_folder(folder, trained, tmp_path):
    test = evaluate(data=folder, model=trained, split="test")
    assert len(test.table) == 16 and test.note == ""
    assert len(evaluate(data=folder, model=trained, split="train", all=True).table) == 24
    new = make_images(tmp_path / "shop", classes=8, images=8)  # two classes came later; the folder lies elsewhere
    assert len(evaluate(data=new, model=trained).table) == 32
    assert len(evaluate(data=new, model=trained, split="test").table) == 16
    with pytest.raises(LookalikeError, match="trained on all 24 images"):
        evaluate(data=folder, model=trained, split="train")
    with pytest.raises(LookalikeError, match="`shop` has no splits"):
        evaluate(data=folder, model=BAD, split="test")


def test_images_of_the_table_s_train_split_still_classify(folder, trained):
    table = read_table(folder)
    split = np.where(np.arange(len(table)) % 8 < 4, "train", "test")
    run = Run(trained)
    table.with_column("split", split).save(run.path / "table.parquet")
    result = evaluate(data=table.with_column("split", split), model=trained, knn=True)
    assert (result.classification.train, result.classification.test) == (24, 24) and len(result.table) == 24


def test_unknown_training_images_are_reported(folder):
    model = Colors("tuned", noise=0.5)
    model.parent = "a" * 32
    assert "It is not known which images trained tuned." in str(evaluate(data=folder, model=model))


def test_too_few_images_that_did_not_train(folder, trained):
    table = read_table(folder).take(np.arange(40))  # one class is left
    with pytest.raises(LookalikeError, match=r"1 class.*32 images that trained a model are left out; --all includes"):
        evaluate(data=table, model=trained)


def test_sections_are_stored_in_a_run(folder, tmp_path):
    evaluate(data=folder, model=GOOD, baseline=BAD, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    result = {name: Section.model_validate(document) for name, document in run.read_sections().items()}
    assert set(result) == {"verdict", "table", "worst", "calibration", "verification", "map", "changed", "classes"}
    assert [result[n].order for n in ("verdict", "table", "changed", "worst", "calibration", "classes", "map")] == [
        10, 20, 30, 40, 50, 70, 80,
    ]  # fmt: skip
    assert result["verdict"].blocks[0].tone == "better"
    stored = {p.name for p in (run.path / "sections" / "images").iterdir()}
    fixed = result["changed"].blocks[0]
    hits = [hit for row in fixed.rows for lists in row.lists for hit in lists.hits]
    assert hits and {h.image.file for h in hits} <= stored
    for row in fixed.rows:  # a fixed query: the first hit was wrong, and is right now
        assert [lists.name for lists in row.lists] == ["bad", "good"]
        assert not row.lists[0].hits[0].ok and row.lists[1].hits[0].ok
    worst, best = result["worst"].blocks
    assert "confused with class-" in worst.rows[0].note and len(worst.rows) == len(best.rows) == 12
    for block in (worst, best):
        labels = [row.query.label for row in block.rows]
        assert all(labels.count(label) <= 2 for label in labels), "at most two of a class"
    assert not {row.query.file for row in worst.rows} & {row.query.file for row in best.rows}
    assert len(result["map"].blocks[0].panels) == 2 and len(result["map"].blocks[0].codes) == 48
    arrows = result["classes"].blocks[0].rows
    assert len(arrows) == 6 and all(0 <= row.low <= row.after <= row.high <= 1 for row in arrows)
    assert all(row.high - row.low > 0.1 for row in arrows), "eight images are never certain"
    grid = result["table"].blocks[0]
    assert "mAP@1000 (ooDML)" in [row[0] for row in grid.rows] and "authors compute it" in grid.note
    assert run.result["differences"]["recall@1"]["low"] > 0


def test_an_unreadable_image_is_named_and_left_out(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "shop")
    (tmp_path / "shop" / "class-00" / "0.jpg").write_bytes(b"no image")
    result = evaluate(data=tmp_path / "shop", model=GOOD, baseline=BAD)
    assert len(result.table) == 47 and [f["index"] for f in result.to_json()["unreadable"]] == [0]


def test_query_gallery_split_and_copies(folder):
    table = read_table(folder)
    query = np.arange(len(table)) % 2 == 0
    parted = table.with_column("is_query", query).with_column("is_gallery", ~query)
    assert evaluate(data=parted, model=GOOD).mode == "query-gallery"
    assert evaluate(data=parted, model=GOOD, mode="leave-one-out").mode == "leave-one-out"
    split = table.with_column("split", np.where(query, "train", "test").astype(object))
    assert len(evaluate(data=split, model=GOOD, split="test").table) == 24
    copies = table.with_column("content_id", np.array([f"c{i // 2}" for i in range(len(table))], object))
    left_out = evaluate(data=copies, model=GOOD, leave_out_copies=True)
    assert (left_out.model.result.relevant == 6).all()


def test_a_wider_class_counts_apart(folder):
    table = read_table(folder)
    codes, _ = table.labels()
    wide = table.with_column("coarse", np.array([f"half {c // 3}" for c in codes], object))
    measures = evaluate(data=wide, model=BAD).model.result.mean()
    assert measures["coarse_recall@1"] > measures["recall@1"]


def test_several_labels_an_image(folder, tmp_path):
    table = read_table(folder)
    codes, _ = table.labels()
    several = table.with_column("label", [[f"a{c}", f"b{c % 2}"] for c in codes])
    result = evaluate(data=several, model=GOOD, out=tmp_path / "run")
    assert (result.model.result.relevant == 23).all() and result.model.calibration is None
    assert set(Run(tmp_path / "run").read_sections()) == {"verdict", "table"}


@pytest.mark.parametrize(
    "options, words",
    [
        ({"mode": "querygallery"}, "did you mean `query-gallery`"),
        ({"mode": "query-gallery"}, "does not say which images are queries"),
        ({"split": "tset"}, "tset"),
    ],
)
def test_mistakes_give_one_line_errors(folder, options, words):
    with pytest.raises(LookalikeError, match=words):
        evaluate(data=read_table(folder), model=GOOD, **options)


def test_classes_of_one_image_are_answered(folder):
    table = read_table(folder)
    lonely = table.with_column("label", np.array([f"c{i}" for i in range(len(table))], object))
    with pytest.raises(LookalikeError, match="at least 2 images"):
        evaluate(data=lonely, model=GOOD)


def test_neighbors_and_a_probe_name_images_they_have_not_seen(folder):
    result = evaluate(data=folder, model=GOOD, baseline=BAD, knn=True, probe=True)
    document = result.to_json()["classification"]
    assert (document["train"], document["test"]) == (36, 12)  # a fifth of each 8, rounded
    worse = result.baseline.classification
    assert document["knn"]["value"] > worse.knn.value and document["probe"]["low"] <= document["probe"]["value"] <= 1
    assert "k-NN accuracy" in str(result) and "Linear probe accuracy" in str(result)


def test_a_model_is_scored_as_a_retriever(folder, tmp_path):
    result = evaluate(data=folder, model=GOOD, retriever=True, out=tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text())["classification"]["retriever"]
    assert document["accuracy"]["value"] > 0.5 and str(document["k"]) in document["tried"]
    assert "As a retriever: k-NN by majority" in str(result)
    section = json.loads((tmp_path / "run" / "sections" / "retriever.json").read_text())
    assert [block["kind"] for block in section["blocks"]] == ["facts", "bars", "hits", "hits"]
    assert sum(row["value"] for row in section["blocks"][1]["rows"]) == 47, "one query against all others"
    (row,) = section["blocks"][2]["rows"]
    scores = [hit["score"] for hit in row["lists"][0]["hits"]]
    assert row["note"] == "Ranks 1, 7, 24, 47" and scores == sorted(scores, reverse=True)
    evaluate(data=folder, model=GOOD, baseline=BAD, retriever=True, out=tmp_path / "two")
    both = json.loads((tmp_path / "two" / "sections" / "retriever.json").read_text())["blocks"]
    assert [len(row["lists"]) for block in both[2:] for row in block["rows"]] == [2, 2, 2, 2]


def test_the_split_says_who_is_known(folder):
    table = read_table(folder)
    part = np.array(["train", "train", "train", "train", "val", "val", "test", "test"] * 6)
    parted = table.with_column("split", part)
    still = Colors("still")
    document = evaluate(data=parted, model=still, split="val", knn=True)
    assert (document.classification.train, document.classification.test) == (
        24,
        12,
    ) and document.classification.probe is None
    assert document.to_json()["queries"] == 12  # retrieval is among the images of the split alone
    alone = evaluate(data=parted, model=still, split="val")
    assert alone.to_json()["metrics"] == document.to_json()["metrics"]
    assert evaluate(data=parted, model=GOOD, probe=True).classification.test == 12  # the test images
    apart = table.with_column("split", np.repeat(["train", "train", "train", "test", "test", "test"], 8))
    with pytest.raises(LookalikeError, match="no class in both train and test"):
        evaluate(data=apart, model=GOOD, knn=True)


def test_figures_of_every_class_and_query_are_stored(folder, tmp_path):
    result = evaluate(data=folder, model=GOOD, recall_at=(5,), out=tmp_path / "run")
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    assert document["per_class"]["class-03"]["count"] == 8
    with (tmp_path / "run" / "queries.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 48 and lines[0]["row_id"] == "shop/class-00/0.jpg" and lines[0]["relevant"] == "7"
    mean = np.mean([float(line["recall@1"]) for line in lines])
    assert mean == pytest.approx(document["metrics"]["recall@1"]["value"])  # there though only 5 was asked for
    sections = Run(tmp_path / "run").read_sections()
    assert len(sections["classes"]["blocks"][0]["rows"]) == 6
    assert sections["verification"]["blocks"][0]["marks"][0]["x"] == result.verification.best_threshold
