"""The table "which method when", and the choices that follow from it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.helpers import ROOT

from benchmarks.papers import results_of, which_method
from benchmarks.papers.paired import difference
from benchmarks.papers.which_method import Row, chosen
from lookalike import methods
from lookalike.adaptation.settings import METHODS


def row(name: str, *by_seed: float) -> Row:
    gain = difference([0.0] * len(by_seed), by_seed) if by_seed else None
    return Row("data", f"`{name}`", gain, "recall@1", "images", 3.0, name)


def test_another_method_must_be_surely_better_than_the_first() -> None:
    first = row("a", 1.0, 1.2, 1.1)
    assert chosen([]) is None and chosen([row("a"), row("b", 5.0, 5.0)]) is None
    assert chosen([first, row("b"), row("c", 1.4, 1.0, 1.5)]) is first, "within the spread"
    assert chosen([first, row("b", 9.0)]) is first, "one seed"
    better, best = row("b", 2.0, 2.2, 2.1), row("c", 3.0, 3.2, 3.1)
    assert chosen([first, better, best]) is best
    assert chosen([first, row("d", 3.0, 3.3)]) is not first, "on the seeds that both have"


def test_what_is_chosen_is_bold_and_what_was_not_measured_says_so() -> None:
    rows = [replace(row("a", 1.0, 1.2), data=which_method.FEW), replace(row("b"), data=which_method.FEW)]
    lines = which_method.table(rows).splitlines()
    assert "**`a`**" in lines[2] and "+1.1 (" in lines[2] and "| 3 s |" in lines[2]
    assert lines[3].count("not measured") == 2 and "**" not in lines[3]
    assert "| +5.6 (one seed) of recall@1 |" in which_method.table([row("a", 5.6)]), "an interval needs more"
    choice = which_method.choices([*rows, *(replace(row(n), data=d) for n, d in DATA)])
    assert choice["train"]["few images"]["why"].endswith("on images; the only one measured")
    assert choice["train"]["many images"] == {"method": "ms", "why": "the default; nothing is measured so far"}


DATA = (("ms", which_method.MANY), ("shot", which_method.CLASSIFIER), ("t3ar", which_method.EMBEDDER))


def test_every_figure_comes_from_stored_results() -> None:
    """Rows have a figure exactly where a claim is finished and passes its gate."""
    rows = which_method.rows(ROOT / "results")
    assert {r.data for r in rows} >= {*which_method.CHOICES["train"], *which_method.CHOICES["adapt"]}
    stored = json.loads((ROOT / "src/lookalike/configs/measured.json").read_text())
    assert stored == which_method.choices(rows)
    winner = next(c for c in results_of("defaults", ROOT / "results") if c.key == "default-recipe").figures["winner"]
    ours = next(r for r in rows if r.data == which_method.MANY and r.name == winner["method"])
    assert ours.gain is not None and ours.gain.mean == pytest.approx(winner["gain"], abs=1e-3)


def test_every_choice_is_a_method_of_its_command() -> None:
    """A row that is compared but no method of its own, as contrast alone, must not be chosen unnoticed."""
    stored = json.loads((ROOT / "src/lookalike/configs/measured.json").read_text())
    known = {"train": methods.names(), "adapt": METHODS}
    assert all(choice["method"] in known[command] for command, part in stored.items() for choice in part.values())


def test_contrast_alone_is_compared_for_embedders_and_one_seed_decides_nothing() -> None:
    compared = [row for row in which_method.rows(ROOT / "results") if row.data == which_method.EMBEDDER and row.name]
    assert [row.name for row in compared] == ["t3ar", "shot", "contrast"]
    rows = [replace(row(name, 5.0), data=which_method.EMBEDDER) for name in ("t3ar", "shot", "contrast")]
    rest = [replace(row(name), data=data) for name, data in (("ms", which_method.FEW), *DATA[:2])]
    why = which_method.choices([*rows, *rest])["adapt"]["clusters"]["why"]
    assert why.endswith("the default; one seed does not show whether another of the 3 methods compared is better")


def test_nothing_stored_leaves_every_row_empty(tmp_path: Any) -> None:
    rows = which_method.rows(tmp_path)
    assert rows and all(r.gain is None for r in rows)
    assert which_method.choices(rows)["adapt"]["classifier"]["method"] == "shot"
