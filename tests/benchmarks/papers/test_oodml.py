"""ooDML's claims: the rules of the verdicts on made-up results; the runs themselves are tested in tests/shift."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.papers import oodml, oodml_rules, oodml_runs
from lookalike.core.seeds import numpy_rng
from lookalike.shift import ags

CONTEXT = SimpleNamespace(finished=False)


def rows(
    name="cub",
    *,
    slope=-0.05,
    spread=0.002,
    order=oodml_runs.METHODS,
    widen=0.0,
    after=0.0,
    random_recall=0.7,
    noisy_map=False,
):
    """Runs of every method: recall falls by `slope` a split; the first of `order` is best.

    The fifth split has classes removed: recall is `after` higher there, and `chance` after random removal. With
    `noisy_map`, mAP goes with nothing.
    """
    rng = numpy_rng(0, "claims", name)
    out = []
    for split in range(1, 6):
        for place, method in enumerate(order):
            for run in range(3):
                value = 0.6 + slope * split - (0.01 + widen * split) * place + spread * rng.standard_normal()
                value += after * (split == 5)
                out.append(
                    {
                        "method": method,
                        "split": split,
                        "fid": 100.0 * split,
                        "seed": run,
                        "recall@1": value,
                        "map@1000": rng.standard_normal() if noisy_map else value / 2,
                        "structure": {
                            "density": -value + 0.001 * rng.standard_normal(),
                            "noise": rng.standard_normal(),
                        },
                        "controls": {"5": [random_recall, random_recall + 0.02]} if split == 4 else {},
                        "transfer": {"cars": {"recall@1": 0.2 + 0.01 * (method == "ms")}} if split == 3 else {},
                    }
                )
        out.append(
            {
                "method": "frozen",
                "split": split,
                "fid": 100.0 * split,
                "seed": 0,
                "recall@1": 0.4 + slope * split,
                "map@1000": 0.2 + slope * split / 2,
                "structure": {"density": 0.0, "noise": 0.0},
                "controls": {},
                "transfer": {"cars": {"recall@1": 0.2}} if split == 3 else {},
            }
        )
    return out


@pytest.fixture
def stored_rows(monkeypatch):
    """Put made-up results in the place of the runs."""

    def use(**options):
        monkeypatch.setattr(oodml, "rows_of", lambda context, name: rows(name, **options))
        monkeypatch.setattr(oodml_runs, "rows_of", lambda context, name: rows(name, **options))

    return use


def test_the_gain_over_frozen_along_the_stored_curve(stored_rows, monkeypatch):
    stored_rows()
    monkeypatch.setattr(oodml, "sets_of", lambda context, rows: [])
    outcome = oodml.gain_falls(CONTEXT)
    by = {row["method"]: row for row in outcome.figures["gains"]}
    assert by["ms"]["gain"][0] > 3 and by["ms"]["gain"][-1] < 0 and by["ms"]["rho"] < -0.95
    assert by["ms"]["learned"] and by["ms"]["holds"]
    curve = {"frozen": [0.5, 0.4, 0.3], "ms": [0.6, 0.45, 0.3], "diva": [0.4, 0.4, 0.4]}
    monkeypatch.setattr(oodml, "stored_curve", lambda: curve)
    outcome = oodml.gain_falls(CONTEXT)
    assert outcome.verdict == "reproduced" and outcome.note.startswith("the gain falls in 1 of 1 curves")
    curve["ms"] = [0.6, 0.5, 0.45]
    assert oodml.gain_falls(CONTEXT).verdict == "contradicted"


def test_the_gain_of_training_end_to_end(monkeypatch):
    def use(seeds, **recalls):
        made = [
            {"method": method, "split": split, "fid": split, "seed": seed, "recall@1": value}
            for method, values in {**recalls, "frozen": (0.3, 0.25, 0.2)}.items()
            for split, value in zip((1, 3, 5), values, strict=True)
            for seed in range(seeds)
        ]
        monkeypatch.setattr(oodml, "end_to_end_rows", lambda context: (made, seeds))
        return oodml.gain_end_to_end(CONTEXT)

    falling, flat = (0.4, 0.3, 0.2), (0.4, 0.35, 0.31)
    assert use(3, ms=falling, s2sd=falling).verdict == "reproduced"
    assert use(3, ms=falling, s2sd=flat).verdict == "not reproduced"
    outcome = use(1, ms=falling, s2sd=falling)
    assert outcome.verdict == "not finished" and "ms +10.0 +5.0 +0.0 points" in outcome.note
    low = use(3, ms=(0.2, 0.2, 0.2), s2sd=(0.2, 0.2, 0.2))
    assert "2 of 2 methods end below the frozen model" in oodml_rules.learned_over_frozen(low.figures)[0]
    settings = oodml_runs.settings_for("s2sd", 0, "cars", oodml_runs.END_TO_END, oodml_runs.END_TO_END_STEPS)
    assert settings.views.mode == "end_to_end" and (settings.steps, settings.model.size) == (450, 96)


def test_the_best_method_against_the_frozen_model(stored_rows):
    stored_rows()
    assert oodml.best_over_frozen(CONTEXT).verdict == "reproduced"


def test_claims_are_judged_only_where_training_gained():
    row = {"set": "cub", "method": "ms", "learned": False}
    assert "not stored" in oodml_rules.learned_over_frozen({})[0]
    assert "1 of 1 methods" in oodml_rules.learned_over_frozen({"gains": [row]})[0]
    assert oodml_rules.learned_over_frozen({"gains": [row, {**row, "learned": True}]}) == []


def test_recall_falls(stored_rows):
    stored_rows()
    outcome = oodml.recall_falls(CONTEXT)
    assert outcome.verdict == "reproduced" and outcome.note.startswith("48 of 48")
    assert "raw over all splits 48 of 48" in outcome.note
    assert len(outcome.figures["removal"]) == 3 * 8 and not outcome.figures["failed"]
    assert "26 at every split" in outcome.note
    stored_rows(slope=0.05)
    outcome = oodml.recall_falls(CONTEXT)
    assert outcome.verdict == "not reproduced" and len(outcome.figures["failed"]) == 48


def test_the_verdict_follows_the_control_and_the_raw_reading_stands_beside_it(stored_rows):
    stored_rows(after=0.16)  # fewer classes: the removal split is easier than those before it, yet below random removal
    outcome = oodml.recall_falls(CONTEXT)
    assert outcome.verdict == "reproduced" and len(outcome.figures["failed_raw"]) == 48
    assert outcome.note.startswith("48 of 48") and "raw over all splits 0 of 48" in outcome.note
    stored_rows(random_recall=0.2)  # a raw fall throughout, but random removal falls as far
    outcome = oodml.recall_falls(CONTEXT)
    assert outcome.verdict == "not reproduced" and not outcome.figures["failed_raw"]
    assert len(outcome.figures["failed"]) == 24 and all("recall@1" in name for name in outcome.figures["failed"])
    assert "below random removal in 0 of 24 cases" in outcome.note


def test_the_order_of_the_methods(stored_rows):
    table = oodml_rules.paper()["ags"]["recall@1"]["cars"]
    theirs = sorted(table, key=table.get, reverse=True)
    stored_rows(order=theirs)
    assert oodml.order_of_methods(CONTEXT).verdict == "reproduced"
    stored_rows(order=theirs[::-1])
    assert oodml.order_of_methods(CONTEXT).verdict == "contradicted"


def test_gaps_and_ranks(stored_rows):
    stored_rows(widen=0.01)
    assert oodml.gaps_grow(CONTEXT).verdict == "reproduced"
    stored_rows(widen=-0.0015)
    assert oodml.gaps_grow(CONTEXT).verdict == "contradicted"
    assert oodml.rankings_change(CONTEXT).verdict == "no difference found"
    crossing = [dict(row) for row in rows()]
    for row in crossing:
        if row["method"] == "s2sd" and row["split"] > 3:
            row["recall@1"] -= 0.2
    assert oodml_rules.sure_swaps(crossing)


def test_a_measure_that_correlates_everywhere(stored_rows):
    stored_rows()
    outcome = oodml.no_measure_everywhere(CONTEXT)
    assert outcome.verdict == "contradicted"
    assert outcome.note == "with recall@1 on every set: density; with map@1000 on every set: density"
    assert set(outcome.figures["map@1000"]["cars"]) == {"density", "noise"}
    stored_rows(noisy_map=True)  # one of the two is enough
    outcome = oodml.no_measure_everywhere(CONTEXT)
    assert outcome.verdict == "contradicted" and outcome.note.endswith("with map@1000 on every set: none")


def test_transfer(stored_rows):
    stored_rows()
    outcome = oodml.transfer_rarely_helps(CONTEXT)
    assert outcome.verdict == "reproduced"
    assert sum(row["low"] > 0 for row in outcome.figures["pairs"]) == 3  # ms alone, from each set


def test_few_shots(monkeypatch):
    def summary(context, name, gain=0.02):
        return [
            {
                "split": split,
                "fid": 100.0 * split,
                "method": "ms",
                "shots": shots,
                "episodes": 15,
                **{
                    key: {
                        "zero": 0.5,
                        "few": 0.5 + gain * split * shots,
                        "gain": {"value": gain * split * shots, "low": gain * split * shots - 0.01, "high": 0.5},
                    }
                    for key in ("recall@1", "map@1000")
                },
            }
            for split in (1, 3, 5)
            for shots in (2, 5)
        ]

    monkeypatch.setattr(oodml, "fewshot_rows", summary)
    assert oodml.few_shots_help(CONTEXT).verdict == "reproduced"
    monkeypatch.setattr(oodml, "fewshot_rows", lambda c, n: summary(c, n, gain=-0.02))
    assert oodml.few_shots_help(CONTEXT).verdict == "contradicted"


def test_every_claim_says_how_it_is_run():
    from benchmarks.papers import claims_of

    stored_rows = claims_of("oodml")
    assert len(stored_rows) == 12 and stored_rows[0].question
    assert all(claim.small and claim.at_scale and claim.figure for claim in stored_rows)


def test_score_is_the_area(stored_rows):
    score = ags.score(rows(), "ms", "recall@1")
    assert score["low"] <= score["value"] <= score["high"]
    assert score["t_low"] < score["t_high"]


def test_only_whole_seeds_are_judged_by(tmp_path):
    from benchmarks.papers import ClaimContext
    from benchmarks.papers.grid import run_grid
    from lookalike.core.engine import Jobs

    context = ClaimContext(Jobs(tmp_path), finished=True)
    cells = [oodml_runs.Cell("cub", "ms", SimpleNamespace(id=split, fid=float(split))) for split in (1, 2)]

    def arguments(cell, seed):
        return {"of": [cell.name, seed]}

    def work(of):
        return {"recall@1": 0.5}

    for cell, seed in ((cells[0], 0), (cells[1], 0), (cells[0], 1)):
        context.cells.run(f"{cell.name}-s{seed}", work, **arguments(cell, seed))
    stored_rows = run_grid(context, cells, (0, 1), arguments, work, whole_seeds=True)
    assert stored_rows.seeds == [0] and stored_rows.has(*cells) and stored_rows.so_far == "1 of 2 seeds so far; "
    context.cells.path(f"{cells[1].name}-s0", arguments(cells[1], 0)).unlink()
    assert run_grid(context, cells, (0, 1), arguments, work, whole_seeds=True).seeds == []


def test_the_revisions_of_all_methods_belong_to_a_cell(monkeypatch):
    """A mended loss makes its cells stale, also those of adapted heads."""
    split = SimpleNamespace(id=1, fid=1.0, train=(), test=())
    splits = SimpleNamespace(splits=(split,), default=1)
    monkeypatch.setattr(oodml_runs, "splits_of", lambda context, name: splits)
    grids = []

    def run_grid(context, cells, seeds, arguments, trial, **options):
        grids.append({cell.method: tuple(options["methods"](cell)) for cell in cells})
        assert options["revision"] == oodml_runs.REVISION
        return SimpleNamespace(seeds=[])

    monkeypatch.setattr(oodml_runs, "run_grid", run_grid)
    context = SimpleNamespace(finished=False)
    oodml_runs.rows_of(context, "cub")
    oodml_runs.end_to_end_rows(context)
    oodml_runs.fewshot_rows(context, "cub")
    trained, frozen, whole, frozen_again, few = grids
    assert trained == {method: (method,) for method in oodml_runs.METHODS}
    assert frozen == frozen_again == {"frozen": ()}
    assert whole == {method: (method,) for method in oodml_runs.FEW_METHODS}
    assert few == {method: (method, "margin") for method in oodml_runs.FEW_METHODS}


def test_claims_about_trained_heads_have_the_gate_of_what_was_learned(stored_rows, monkeypatch):
    """Also few-shot and transfer; the gate starts no run."""
    from benchmarks.papers import claims_of

    claims = {claim.key: claim for claim in claims_of("oodml")}
    for key in ("few-shot", "transfer"):
        assert claims[key].gate is oodml_rules.learned_over_frozen
        assert claims[key].gate({"pairs": []}) == [
            "the gain over the frozen model was not stored with the verdict: run it again"
        ]
    stored_rows()
    seen = []
    rows_of = oodml.rows_of
    monkeypatch.setattr(oodml, "rows_of", lambda context, name: seen.append(context.finished) or rows_of(context, name))
    judge = oodml._with_gains(lambda context: oodml.ClaimOutcome("reproduced"), ["s2sd"])
    outcome = judge(SimpleNamespace(finished=False))
    assert len(seen) == 2 * len(oodml_runs.SETS) and all(seen)
    assert {row["method"] for row in outcome.figures["gains"]} == {"s2sd"}
