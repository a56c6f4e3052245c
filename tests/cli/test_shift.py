"""`lookalike shift splits` on generated pictures."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from tests.helpers import pictures

import lookalike


@pytest.fixture(scope="module")
def birds(tmp_path_factory: pytest.TempPathFactory):
    return pictures(tmp_path_factory.mktemp("data") / "birds", classes=9, images=5)


@pytest.fixture(scope="module")
def eye(tmp_path_factory: pytest.TempPathFactory):
    """A backbone of another kind than the default."""
    import torch

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("models") / "eye"
    lookalike.Embedder.from_pretrained("test_resnet", weights="random", size=32).save_pretrained(path)
    return path


def test_splits(cli, birds, eye, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = cli("shift", "splits", birds, "--model", eye, "--count", 5)
    assert answer.code == 0, answer.err
    assert "the usual split" in answer.out and "birds-splits.json" in answer.out
    document = json.loads((tmp_path / "birds-splits.json").read_text())
    assert document["format"] == 1
    assert document["eye"]["name"] and document["eye"]["weights"]
    found = lookalike.shift.SplitSet.load(tmp_path / "birds-splits.json")
    table = lookalike.read_table(birds)
    for split in found.splits:
        assert len(split.train) == len(split.test)
        assert sum(split.pictures) == len(table)
    assert len(found.split(found.default).removed) == 1  # nine classes: one is on neither side
    again = cli("shift", "splits", birds, "--model", eye, "--count", 5, "--json", "--out", tmp_path / "b.json")
    assert {**again.json, "path": 0} == {**document, "path": 0}
    means = cli("shift", "splits", birds, "--model", eye, "--measure", "means", "--json").json
    assert means["measure"] == "means" and means["splits"][0]["fid"] != document["splits"][0]["fid"]


def test_the_authors_files(cli, birds, tmp_path):
    names = [np.str_(f"class-{i:02d}") for i in range(9)]
    row = {"train": names[:4], "test": names[4:8], "fid": np.float64(12.5)}
    (tmp_path / "cub.pkl").write_bytes(pickle.dumps({1: row}, protocol=3))
    found = cli(
        "shift", "splits", birds, "--authors", tmp_path / "cub.pkl", "--json", "--out", tmp_path / "s.json"
    ).json
    assert found["measure"] == "authors"
    assert found["splits"][0]["removed"] == ["class-08"]
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({1: print}, protocol=3))
    answer = cli("shift", "splits", birds, "--authors", tmp_path / "evil.pkl")
    assert answer.code == 2
    assert "builtins.print" in answer.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--measure", "sample"], "did you mean `samples`"),
        (["--count", "1"], "at least 2 splits"),
        (["--model", "resnet51"], "resnet51"),
    ],
)
def test_mistakes(cli, birds, words, said):
    answer = cli("shift", "splits", birds, *words)
    assert answer.code == 2
    assert said in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_too_few_classes(cli, tmp_path):
    few = pictures(tmp_path / "few", classes=4, images=3)
    answer = cli("shift", "splits", few)
    assert answer.code == 2
    assert "at least 6" in answer.err
