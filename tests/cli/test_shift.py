"""`lookalike shift` on generated images."""

from __future__ import annotations

import json
import re

import pytest
from tests.helpers import make_images

import lookalike
from lookalike.cli.output import significant

SETTINGS = ("head.embedding_dim=8", "sampler.classes_per_batch=2", "sampler.images_per_class=2", "views.num_cached=1")
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory):
    return make_images(tmp_path_factory.mktemp("data") / "birds", classes=9, images=5)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory):
    """A backbone of another kind than the default."""
    import torch

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "tiny"
    lookalike.Embedder.from_pretrained("test_resnet", weights="random", size=32).save_pretrained(path)
    return path


def test_splits(cli, birds, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli("shift", "splits", birds, "--model", tiny, "--count", 5)
    assert answer.code == 0, answer.err
    assert "the usual split" in answer.out and "birds-splits.json" in answer.out
    document = json.loads((tmp_path / "birds-splits.json").read_text())
    fids = [float(line.split()[2]) for line in answer.out.splitlines()[1:-2]]
    assert fids == pytest.approx([split["fid"] for split in document["splits"]], rel=6e-4)
    assert document["format"] == 1
    assert document["reference_model"]["name"] and document["reference_model"]["weights"]
    result = lookalike.shift.SplitSet.load(tmp_path / "birds-splits.json")
    table = lookalike.read_table(birds)
    for split in result.splits:
        assert len(split.train) == len(split.test)
        assert sum(split.images) == len(table)
    assert len(result.split(result.default).removed) == 1  # nine classes: one is on neither side
    again = cli("shift", "splits", birds, "--model", tiny, "--count", 5, "--json", "--out", tmp_path / "b.json")
    assert {**again.json, "path": 0} == {**document, "path": 0}
    means = cli("shift", "splits", birds, "--model", tiny, "--measure", "means", "--json").json
    assert means["measure"] == "means" and means["splits"][0]["fid"] != document["splits"][0]["fid"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--measure", "sample"], "did you mean `samples`"),
        (["--count", "1"], "at least 2 splits"),
        (["--model", "resnet51"], "resnet51"),
    ],
)
def test_mistakes(cli, birds, words, message):
    answer = cli("shift", "splits", birds, *words)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_too_few_classes(cli, tmp_path):
    few = make_images(tmp_path / "few", classes=4, images=3)
    answer = cli("shift", "splits", few)
    assert answer.code == 2
    assert "at least 6" in answer.err


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.00012344, "0.0001234"),
        (0.5, "0.5000"),
        (301.44, "301.4"),
        (999.96, "1000"),
        (9999.7, "10000"),
        (12345.6, "12346"),
        (0.0, "0.000"),
    ],
)
def test_four_digits_count(value, shown):
    assert significant(value) == shown


def test_fewer_splits_than_requested_are_explained(cli, birds, tiny):
    answer = cli("shift", "splits", birds, "--model", tiny, "--count", 50)
    assert answer.code == 0
    made = len(answer.out.splitlines()) - 3
    assert f"{made} splits instead of 50: swapping and removing 9 classes has no more steps" in answer.err
    assert "instead of" not in cli("shift", "splits", birds, "--model", tiny, "--count", 2).err


def test_transfer_without_the_usual_split_is_reported_to_measure_nothing(cli, birds, tiny, tmp_path):
    result = cli("shift", "splits", birds, "--model", tiny, "--count", 4, "--json", "--out", tmp_path / "s.json").json
    usual = result["default"]
    others = [split["id"] for split in result["splits"] if split["id"] != usual]
    words = ["shift", "run", birds, "--models", tiny, "--methods", "ms", "--seeds", 1, "--steps", 2, "--processes", 1]
    words += [*SMALL, "--no-report", "--transfer", birds]
    message = f"Nothing is measured on `birds`: transfer uses the models of the usual split, number {usual}"
    inputs = ["--splits", tmp_path / "s.json", "--only"]
    left_out = cli(*words, *inputs, ",".join(map(str, others)), "--out", tmp_path / "a")
    assert left_out.code == 0, left_out.err
    assert left_out.err.count(message) == 1
    stored = cli(*words, *inputs, f"{usual},{others[0]}", "--out", tmp_path / "b", "--json")
    assert "Nothing is measured" not in stored.err and stored.json["transfer"]
    made = cli(*words, "--count", 4, "--only", ",".join(map(str, others)), "--out", tmp_path / "c", "--json")
    assert made.err.count(message) == 1 and not made.json["transfer"]


def test_a_dry_run_prints_the_time_of_every_stage_and_writes_nothing(cli, birds, tiny, tmp_path):
    words = ["shift", "run", birds, "--models", tiny, "--methods", "ms", "--seeds", 1, "--steps", 2, "--processes", 1]
    answer = cli(*words, *SMALL, "--dry-run", "--out", tmp_path / "run")
    assert answer.code == 0, answer.err
    assert re.search(r"time +about \d+ s: splits \d+ s, features \d+ s, runs \d+ s, report \d+ s\n", answer.out)
    assert not (tmp_path / "run").exists()
    assert set(cli(*words, *SMALL, "--dry-run", "--json").json["seconds"]) == {"splits", "features", "runs", "report"}
