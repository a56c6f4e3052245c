"""The default recipe is what the comparison says it is."""

from __future__ import annotations

import json

import pytest
from tests.helpers import ROOT

from benchmarks.papers import defaults
from lookalike import methods
from lookalike.training.recipe import load
from lookalike.training.settings import resolve

STORED = ROOT / "results" / "defaults.json"


def figures() -> dict:
    claims = {row["key"]: row for row in json.loads(STORED.read_text())["claims"]}
    return claims["default-recipe"]["figures"]


def test_the_default_recipe_is_the_winner_of_the_stored_comparison():
    winner = figures()["winner"]
    chosen = resolve(load("default"))
    assert (chosen.method.name, chosen.optimizer.lr, chosen.views.num_cached) == (
        winner["method"],
        winner["rate"],
        winner["views"],
    )
    assert winner == defaults.choose_winner(figures()["finalists"])
    finalists = [(row["method"], row["rate"], row["views"]) for row in figures()["finalists"]]
    assert set(finalists) == set(defaults.pick_finalists(figures()["grid"]))


def test_the_stored_comparison_is_of_the_grid_that_the_code_runs():
    cells = {(row["method"], row["rate"], row["views"]) for row in figures()["grid"]}
    assert cells == {(m, r, v) for m in defaults.METHODS for r in defaults.RATES for v in defaults.VIEWS}
    for row in figures()["grid"]:
        assert all(len(row[name]) == len(defaults.SEEDS) >= 2 for name in defaults.SETS)


@pytest.mark.parametrize("name", defaults.METHODS)
def test_each_method_suggests_the_rate_that_did_best_for_it(name):
    best = next(row for row in figures()["best_of_each"] if row["method"] == name)
    assert methods.find(name).default_overrides["optimizer"]["lr"] == best["rate"]


def test_the_best_with_and_without_views_are_run_again():
    rows = [
        {"method": m, "rate": 1.0, "views": v, "gain": g}
        for m, v, g in zip("abcdef", (2, 2, 2, 0, 0, 0), range(6, 0, -1), strict=True)
    ]
    assert defaults.pick_finalists(rows) == [("d", 1.0, 0), ("e", 1.0, 0), ("a", 1.0, 2), ("b", 1.0, 2)]


def test_views_must_be_worth_their_cost():
    rows = [{"views": 0, "gain": 4.0}, {"views": 2, "gain": 4.4}]
    assert defaults.choose_winner(rows)["views"] == 0
    rows[1]["gain"] = 4.6
    assert defaults.choose_winner(rows)["views"] == 2


def test_a_training_half_holds_no_test_class(tmp_path):
    """A few files laid out as Cars are: the last 98 classes must never be seen."""
    from PIL import Image

    names = [f"{number:03d}.Car" for number in (1, 50, 98, 99, 196)]
    lines, classes = ["path,class,official_split"], ["class,name,folder"]
    for name in names:
        (tmp_path / name).mkdir()
        classes.append(f"{int(name[:3])},{name},{name}")
        for n in range(2):
            Image.new("RGB", (8, 8), (n, 0, 0)).save(tmp_path / name / f"{n}.jpg")
            lines.append(f"{name}/{n}.jpg,{int(name[:3])},train")
    (tmp_path / "split.csv").write_text("\n".join(lines))
    (tmp_path / "classes.csv").write_text("\n".join(classes))
    table = defaults.training_half(str(tmp_path), "cars")
    assert {path.split("/")[0] for path in table.column("path")} == set(names[:3])
    assert not table.has("split")


def test_the_default_must_not_lose_where_classes_have_few_images(tmp_path, monkeypatch):
    from types import SimpleNamespace

    def grid(gains):
        class Results:
            def by_seed(self, run):
                return [gains.get(run.method, 1.0) + 0.1 * seed + run.lr for seed in range(3)]

            def values(self, run, measure):
                assert run.set == "products" and measure == "seconds"
                return [2.0, 3.0, 4.0]

        return lambda *arguments, **options: Results()

    for best, verdict in ((1.0, "no difference found"), (5.0, "contradicted")):
        monkeypatch.setattr(defaults, "run_grid", grid({"xbn": best}))
        outcome = defaults.few_images(SimpleNamespace(folder=None))
        assert outcome.verdict == verdict
        assert [row["rate"] for row in outcome.figures["best_of_each"]] == [max(defaults.FEW_RATES)] * 4
        assert outcome.figures["best_of_each"][0]["seconds"] == 3.0
