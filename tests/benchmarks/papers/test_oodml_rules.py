"""The rules of ooDML's verdicts, worked by hand."""

from __future__ import annotations

import pytest

from benchmarks.papers import oodml_rules as rules

# The spec's measured sequence of CUB, harder, two a step.
CUB = (
    "301 342 375 413 459 509 537 578 598 618 640 663 676 694 692 692 701 704 709 701 701 698 694 695 697 696 703 702 "
    "698 698 699"
)


def rows(values, removed=None, measure="recall@1"):
    """One method's runs; `removed` says what random removals of the same size as a split's give."""
    return [
        {
            "method": "ms",
            "split": k,
            "fid": 10.0 * k,
            "seed": 0,
            measure: value,
            "controls": (removed or {}) if k == 1 else {},
        }
        for k, value in enumerate(values, 1)
    ]


def test_fid_rises_then_stays():
    result = rules.judge_sequence([float(v) for v in CUB.split()])
    assert result["holds"] and result["maximum_at"] == 18 and result["rho"] > 0.98
    assert result["non_rises_before_80_percent"] == 0 and result["non_rises_before_maximum"] == 2
    assert result["plateau"] == 12 and result["plateau_non_rises"] == 8
    assert result["plateau_least_of_maximum"] == pytest.approx(694 / 709, abs=1e-4)
    assert not rules.judge_sequence([1.0, 3.0, 2.0, 2.5, 9.0, 9.5])["holds"]  # falls before 80 % of the gain
    assert not rules.judge_sequence([5.0, 4.0, 3.0])["holds"]


@pytest.mark.parametrize("last", [1 - 1e-13, 1.0, 1 + 1e-13])
def test_rounding_does_not_choose_the_maximum(last):
    up, down = [100.0, 200.0, 300.0, 400.0, 500.0], [450.0, 350.0, 250.0, 350.0, 450.0]
    result = rules.judge_sequence([*up, *down, 500.0 * last, *down])  # the swaps go in a circle
    assert result["maximum_at"] == 4 and result["rho"] == 1 and result["holds"]
    assert rules.judge_sequence([*up, *down, 500.001])["maximum_at"] == 10
    creeping = rules.judge_sequence([100.0, 200.0, 200.0 * last, 300.0, 400.0])
    assert creeping["non_rises_before_80_percent"] == 1 and not creeping["holds"]


def test_a_removal_is_judged_against_random_removal_and_no_part_of_the_trend():
    easier = [0.6, 0.5, 0.4, 0.55]  # raw, ρ is −0.4
    result = rules.judge_fall(rows(easier, {"4": [0.6, 0.7]}), "ms", "recall@1")
    assert result["holds"] and not result["raw_holds"]
    assert (result["rho"], result["raw_rho"], result["swap_splits"], result["below_random"]) == (-1, -0.4, 3, "1 of 1")
    assert not rules.judge_fall(rows(easier, {"4": [0.5, 0.56]}), "ms", "recall@1")["holds"]  # random is harder
    assert not rules.judge_fall(rows([0.5, 0.6, 0.4, 0.3], {"4": [0.6]}), "ms", "recall@1")["holds"]  # ρ is −0.5
    assert not rules.judge_fall(rows(easier), "ms", "recall@1")["holds"]  # nothing removed: all splits count


def test_every_removal_counts():
    result = rules.judge_fall(rows([0.6, 0.5, 0.4, 0.3, 0.2], {"4": [0.4], "5": [0.1]}), "ms", "recall@1")
    assert result["raw_holds"] and not result["holds"] and result["below_random"] == "1 of 2"


def test_map_has_no_control_and_is_judged_without_removals():
    result = rules.judge_fall(rows([0.6, 0.5, 0.4, 0.7], {"4": [0.1]}, "map@1000"), "ms", "map@1000")
    assert result["holds"] and not result["raw_holds"] and "below_random" not in result


def test_two_splits_without_removal_show_no_trend():
    result = rules.judge_fall(rows([0.6, 0.5, 0.3], {"3": [0.6]}), "ms", "recall@1")
    assert result["raw_holds"] and not result["holds"] and "rho" not in result
    note = rules.fall_note([{"set": "cub", **result}], [], rules.paper_falls())
    assert "no trend for want of splits without removal: cub" in note


def test_the_bound_itself_falls():
    result = rules.judge_fall(rows([0.9, 0.7, 0.8, 0.6]), "ms", "recall@1")  # computed: −0.7999999999999999
    assert result["raw_rho"] == -0.8 and result["holds"] and result["raw_holds"]


def test_the_papers_own_curves():
    result = {(row["set"], row["measure"]): row for row in rules.paper_falls()}
    assert sum(row["legible"] for row in result.values()) == 46
    assert all(row["fall"] == row["fall_without_removal"] == row["legible"] for row in result.values())
    every = {key: row["fall_at_every_split"] for key, row in result.items()}
    assert every["cub", "recall@1"] == 1  # ArcFace alone does not rise from split 8 to 9
    assert every["cars", "map@1000"] == 1  # seven of eight rise at split 2
    assert every["sop", "recall@1"] == every["sop", "map@1000"] == 8


def test_what_correlates_everywhere():
    up, down, none = ({"low": low, "high": high} for low, high in ((0.1, 0.9), (-0.9, -0.1), (-0.1, 0.9)))
    sets = {
        "a": {"up": up, "down": down, "turns": up, "none": none, "here": up},
        "b": {"up": up, "down": down, "turns": down, "none": up},
    }
    assert rules.everywhere(sets) == ["down", "up"]
