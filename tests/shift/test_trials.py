"""What the runs of a curve are given: constants, names, sides, controls and protocols."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from tests.shift.conftest import SMALL, make_classes

from lookalike import shift
from lookalike.core.errors import LookalikeError
from lookalike.data import Table
from lookalike.methods.diva import DiVA
from lookalike.shift import experiment, few_shot, running_time, trials
from lookalike.shift.make_splits import split_features
from lookalike.shift.split_set import Split, SplitSet
from lookalike.training import loop
from lookalike.training.loop import Loop
from lookalike.training.setup import CachedSource, Rows

REFERENCE = {"name": "made up", "weights": "0", "preprocess": {}}


def resolved(method, layout="", **settings):
    options = {"recipe": experiment.RECIPE, "model": "efficientnet_lite0", "seed": 0, "steps": 4}
    return experiment.trial_settings(method, layout=layout, settings=settings, **options)


@pytest.mark.parametrize(
    ("method", "layout", "expected"),
    [
        ("ms", "", {"alpha": 2.0, "beta": 40.0, "epsilon": 0.1}),
        ("proxy_anchor", "cars", {"margin": 0.1, "alpha": 32.0, "std": 0.125}),
        ("r_margin", "cub", {"beta": 0.6, "switch_probability": 0.4}),
        ("r_margin", "cars", {"beta": 0.6, "switch_probability": 0.35}),
        ("r_margin", "sop", {"beta": 0.9, "switch_probability": 0.15}),
        ("uniform_prior", "cars", {"weight": 0.2, "hidden_dim": 100, "update_every": 10}),
        ("uniform_prior", "sop", {"weight": 0.02, "hidden_dim": 50, "update_every": 200}),
        ("diva", "", {"alpha": 0.3, "decorrelation": 1500.0, "queue_size": 30 * 108}),
        ("diva", "cars", {"alpha": 0.15, "decorrelation": 100.0}),
        ("diva", "sop", {"alpha": 0.2, "decorrelation": 150.0, "queue_size": 70 * 108}),
        (
            "s2sd",
            "cub",
            {"beta": 0.6, "switch_probability": 0.4, "weight": 50.0, "feature_weight": 50.0, "feature_start_step": 0},
        ),
        ("s2sd", "cars", {"switch_probability": 0.3, "weight": 50.0}),
        ("s2sd", "sop", {"beta": 0.9, "switch_probability": 0.0, "weight": 5.0, "feature_start_step": 1000}),
    ],
)
def test_constants_are_those_of_the_authors_for_these_images(method, layout, expected):
    own = resolved(method, layout).method.own()
    assert {name: own[name] for name in expected} == expected


def test_proxies_turn_at_the_authors_rate_and_the_user_has_the_last_word():
    assert resolved("proxy_anchor").optimizer.loss_lr == 0.02
    assert resolved("proxy_anchor", optimizer={"loss_lr": 0.1}).optimizer.loss_lr == 0.1
    assert resolved("s2sd", "cars", s2sd={"switch_probability": 0.9}).method.own()["switch_probability"] == 0.9
    assert (
        resolved("r_margin", "cars", s2sd={"switch_probability": 0.9}).method.own()["switch_probability"] == 0.35
    )  # not meant


def test_both_views_of_diva_differ():
    assert DiVA.distinct_views
    random = np.arange(2 * 9, dtype=np.float32).reshape(2, 9, 1)
    source = CachedSource("pooled", Rows(random[0] - 100), Rows(random), views=2, distinct=True)
    first, second = source.views(np.arange(9), slice(None), 3)
    assert (first != second).all()


def test_models_and_data_sets_that_end_alike_are_distinguished(images, tiny, tmp_path):
    assert experiment.unique_names(["a/x", "b/y", "c/x"]) == ["x 1", "y", "x 3"]
    twin = tmp_path / "twin" / tiny.name
    twin.parent.mkdir()
    twin.symlink_to(tiny)
    chosen = {"methods": ["ms"], "seeds": 1, "steps": 2, "count": 3, "only": [1, 2], "processes": 1, "report": False}
    done = shift.run(data=images, models=[str(tiny), str(twin)], out=tmp_path / "run", settings=SMALL, **chosen)
    assert {row["model"] for row in done.result["rows"]} == {str(tiny), str(twin)}
    assert set(done.result["models"]) == {str(tiny), str(twin)}


def split_set(**options) -> SplitSet:
    table, features = make_classes(40)
    return split_features(table, features, REFERENCE, **options)


def test_controls_are_classes_of_the_split_they_are_measured_on():
    result = split_set(count=6)
    end, beside = result.end_of_swapping(), experiment.controls(result, result.splits)
    assert end is not None and beside and not result.is_removal(end)
    for number, draws in beside.items():
        removal = result.split(int(number))
        assert result.is_removal(removal) and len(draws) == 5
        for draw, test in enumerate(draws):
            assert set(test) < set(end.test) and len(test) == len(removal.test)
            assert len(test) == len(result.random[draw][1][-len(removal.test) :])


def test_a_removal_without_its_start_has_no_controls_and_that_is_reported(capfd, images, tiny, tmp_path):
    options = {"methods": ["ms"], "seeds": 1, "steps": 2, "processes": 1, "report": False, "settings": SMALL}
    done = shift.run(data=images, models=[str(tiny)], out=tmp_path / "run", count=2, **options)
    splits = SplitSet.load(done.path / "splits.json")
    assert splits.end_of_swapping() is None and any(map(splits.is_removal, splits.splits))
    assert not any(row["controls"] for row in done.result["rows"])
    assert "without random controls" in capfd.readouterr().err


def test_files_without_random_removals_get_them():
    """As the authors' have none."""
    whole = split_set(count=6)
    bare = SplitSet(whole.data, whole.reference_model, "authors", whole.splits, whole.default)
    assert not experiment.controls(bare, bare.splits)
    result = bare.with_random_removals()
    end = result.end_of_swapping()
    assert end is not None and len(end.test) == 20 and end.fid == max(s.fid for s in result.splits if len(s.test) == 20)
    assert set(experiment.controls(result, result.splits)) == {str(s.id) for s in result.splits if len(s.test) < 20}
    assert whole.with_random_removals() is whole


def test_sides_without_pairs_are_refused_before_training():
    splits = tuple(Split(number, "0", float(number), ("a", "b"), ("c", "d")) for number in (1, 2))
    splits = SplitSet({"classes": {"a": 2, "b": 3, "c": 1, "d": 4}}, {}, "samples", splits, 1)
    with pytest.raises(LookalikeError, match=r"Split 1 has fewer than two classes .* test side"):
        experiment.trainable_splits(splits)


def marked(query, gallery) -> Table:
    columns = {"path": [f"{i}.jpg" for i in range(len(query))], "is_query": query, "is_gallery": gallery}
    return Table.from_columns(columns, name="parted")


def test_queries_and_gallery_only_where_every_class_has_them():
    labels = np.array([0, 0, 1, 1])
    whole = marked([True, False, True, False], [False, True, False, True])
    assert trials.query_gallery(whole, labels)["query"].tolist() == [True, False, True, False]
    half = marked([True, False, False, False], [False, True, False, False])  # class 1 was for training
    assert trials.query_gallery(half, labels) == {}


def test_supports_come_from_the_gallery():
    labels = np.repeat(np.arange(4), 12)
    rows = np.arange(len(labels))
    gallery = rows % 12 < 7
    gallery[labels == 3] = rows[labels == 3] % 12 < 5  # none would be left
    result = few_shot.episode(labels, rows, (2, 5), 0, gallery)
    assert gallery[result["5"]].all() and set(result["2"]) < set(result["5"])
    assert set(labels[result["queries"]]) == {0, 1, 2}
    for code in range(3):
        left = result["queries"][labels[result["queries"]] == code]
        assert gallery[left].sum() == 2 and (~gallery[left]).sum() == 5


def test_an_authors_file_brings_its_episodes_and_validation_classes():
    labels = np.repeat(np.arange(2), 6)
    names = ["crow", "wren"]
    paths = [f"{names[code]}/{i}.jpg" for i, code in enumerate(labels)]
    material = SimpleNamespace(table=Table.from_columns({"path": paths}, name="birds"), labels=labels, names=names)
    supports = {
        "2": {"0": {"crow": ["crow/0.jpg", "crow/1.jpg"], "wren": ["7.jpg", "6.jpg"]}},
        "3": {"0": {"crow": ["1.jpg", "2.jpg", "3.jpg"], "wren": ["6.jpg", "8.jpg", "9.jpg"]}},
    }
    result = few_shot.stored_episode(material, np.arange(12), supports, [2, 3], 0)
    assert result["2"].tolist() == [0, 1, 6, 7] and result["3"].tolist() == [1, 2, 3, 6, 8, 9]
    assert result["queries"].tolist() == [4, 5, 10, 11]
    with pytest.raises(LookalikeError, match="Episode 1 with 2 shots"):
        few_shot.stored_episode(material, np.arange(12), supports, [2, 3], 1)
    split = Split(1, "", 1.0, ("a", "b"), ("crow", "wren"), validation=("a",), episodes=supports)
    config = {"shots": [2, 3], "episodes": 1, "adapt_steps": 3}
    inputs = few_shot.fewshot_job("table", split, "ms", resolved("ms"), config, "")
    assert inputs["validation"] == ("a",) and inputs["supports"] == supports


@pytest.mark.parametrize(
    ("method", "layout", "beta"),
    [("s2sd", "cub", 0.6), ("s2sd", "sop", 0.9), ("diva", "cub", 1.2), ("ms", "cub", 1.2), ("arcface", "cub", 1.2)],
)
def test_few_shot_adapts_with_the_boundary_of_the_run(method, layout, beta):
    split = Split(1, "", 1.0, ("a", "b"), ("crow", "wren"))
    config = {"shots": [2], "episodes": 1, "adapt_steps": 3}
    adapt = few_shot.fewshot_job("table", split, method, resolved(method, layout), config, "")["adapt"]
    assert adapt["method"]["name"] == "margin" and adapt["method"].get("beta", 1.2) == beta


def test_the_gain_is_judged_over_episodes_not_over_seeds():
    """Seeds share their episodes: copies of one seed must not make the interval narrower."""
    base = {"fid": 1.0, "split": 1, "method": "ms", "shots": 2}
    values = [0.1, 0.3, 0.2]
    row = [
        {
            **base,
            "episode": e,
            "zero": dict.fromkeys(few_shot.MEASURES, 0.0),
            "few": dict.fromkeys(few_shot.MEASURES, v),
        }
        for e, v in enumerate(values)
    ]
    assert few_shot.summarize(row)[0]["recall@1"] == few_shot.summarize([*row, *row])[0]["recall@1"]


def test_queries_are_answered_from_the_gallery_alone():
    """Grocery's protocol: a query's near-duplicate among the queries is no answer."""
    labels = np.array([0, 0, 0, 1, 1, 1])
    query = np.array([True, True, False, True, True, False])
    columns = {"path": [f"{i}.jpg" for i in range(6)], "is_query": query, "is_gallery": ~query}
    material = SimpleNamespace(table=Table.from_columns(columns, name="parted"), labels=labels)
    # Queries 0, 1 and 3, 4 are copies of each other; in the gallery the first class's image is nearest to all.
    vectors = np.array([[1, 0], [1, 0], [0.6, 0.8], [0, 1], [0, 1], [-1, 0]], np.float32)
    result = trials.retrieval_scores(material, np.arange(6), vectors)
    assert result["queries"] == 4 and result["recall@1"] == 0.5


def test_runs_end_to_end(images, tiny, tmp_path):
    settings = {**SMALL, "views": {"mode": "end_to_end"}}
    chosen = {"methods": ["ms"], "seeds": 1, "steps": 2, "count": 3, "only": [1, 2], "processes": 1, "report": False}
    done = shift.run(data=images, models=[str(tiny)], out=tmp_path / "run", settings=settings, **chosen)
    assert {row["steps"] for row in done.result["rows"] if row["method"] == "ms"} == {2}


def test_a_killed_training_goes_on_from_its_checkpoint(images, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0)
    chosen = {"methods": ["ms"], "seeds": 1, "steps": 6, "count": 3, "only": [1, 2], "processes": 1, "report": False}
    options = {"data": images, "models": [str(tiny)], "settings": SMALL, **chosen}
    whole = shift.run(**options, out=tmp_path / "whole")
    taken, own = [], Loop.take_step

    def strike(self, step):
        taken.append(step)
        if len(taken) == 5:
            raise ZeroDivisionError
        return own(self, step)

    monkeypatch.setattr(Loop, "take_step", strike)
    with pytest.raises(ZeroDivisionError):
        shift.run(**options, out=tmp_path / "run")
    assert list((tmp_path / "run" / "unfinished").iterdir())
    done = shift.run(resume=tmp_path / "run", processes=1, report=False)
    assert taken == [1, 2, 3, 4, 5, 5, 6, 1, 2, 3, 4, 5, 6]
    scores = [[{**row, "seconds": None} for row in run.result["rows"]] for run in (whole, done)]
    assert scores[0] == scores[1]
    assert not list((tmp_path / "run" / "unfinished").iterdir())


def test_a_file_of_splits_of_other_images_is_refused_before_anything_is_timed(images, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(running_time, "running_time", lambda *_, **__: pytest.fail("it was timed"))
    split_set().save(tmp_path / "splits.json")
    with pytest.raises(LookalikeError, match="which `kinds` does not have"):
        shift.run(data=images, models=[str(tiny)], splits=tmp_path / "splits.json", out=tmp_path / "run")
