"""The claims of AXBN's paper: verdict rules, the list of runs, and the set `mixed`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from tests.helpers import make_image

from benchmarks.papers import ClaimContext, xbn, xbn_runs
from benchmarks.papers.grid import GridResults, revisions
from benchmarks.papers.paired import Difference, difference, more, none_of_note, spread_ratio
from benchmarks.papers.xbn_runs import RULES, SMALL, STEPS, Cell, readings
from lookalike.core.job_cache import Jobs
from lookalike.training.settings import resolve

KEYS = {claim.key: claim for claim in xbn.CLAIMS}


def test_there_are_twelve_claims_in_order():
    assert [int(claim.key.split("-")[0]) for claim in xbn.CLAIMS] == list(range(1, 13))


def test_a_paired_difference_is_students_interval():
    found = difference([1.0, 2.0, 3.0], [2.0, 4.0, 3.5])
    values = [1.0, 2.0, 0.5]
    reach = 4.302653 * statistics.stdev(values) / 3**0.5
    assert found.by_seed == values
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-4)
    assert (found.low, found.high) == pytest.approx((found.mean - reach, found.mean + reach), abs=2e-4)
    wider = difference([1.0, 2.0, 3.0], [2.0, 4.0, 3.5], level=0.99)
    assert wider.low < found.low and wider.high > found.high
    assert difference([1.0], [9.0]).low == float("-inf")


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.1, 5.0, "reproduced"),
        (-5.0, -0.1, "contradicted"),
        (-0.5, 0.8, "no difference found"),
        (-3.0, 9.0, "not testable at this scale"),
        (0.0, 9.0, "not testable at this scale"),
    ],
)
def test_an_interval_across_zero_never_reproduces_a_gain(low, high, verdict):
    assert more(Difference((low + high) / 2, low, high, []), expected=1.0) == verdict


def test_that_nothing_is_gained_is_contradicted_by_a_gain():
    assert none_of_note(Difference(1, 0.5, 2, []), 1.0) == "contradicted"
    assert none_of_note(Difference(0, -0.5, 0.5, []), 1.0) == "no difference found"
    assert none_of_note(Difference(0, -3, 3, []), 1.0) == "not testable at this scale"


def test_spreads_state_their_power():
    found = spread_ratio([1.0, 5.0, 9.0], [2.0, 2.5, 3.0])
    assert found["ratio"] == pytest.approx(8.0)
    assert found["least_ratio_seen"] == pytest.approx(4.36, abs=0.01)  # three seeds settle little
    assert spread_ratio(range(5), range(5))["least_ratio_seen"] == pytest.approx(2.53, abs=0.01)
    assert found["p"] < 0.05


def test_every_run_has_valid_settings_and_one_thing_varied():
    for rule in RULES:
        for batch in STEPS:
            chosen = resolve(Cell(rule, batch).settings(SMALL))
            assert chosen.sampler.classes_per_batch * chosen.sampler.images_per_class == batch
            assert chosen.views.mode == "end_to_end" and chosen.model.freeze is None
            own = chosen.method.own()["memory"]
            assert (own["size"] == 0) == (rule == "none")
    assert resolve(Cell("xbn", cached=True).settings(SMALL)).views.layer == "stage3"
    assert resolve(Cell("axbn", memory={"r": "auto"}).settings(SMALL)).method.own()["memory"]["r"] == "auto"


@pytest.fixture
def context(home, monkeypatch):
    """A context whose runs are made up: recall and drift from a rule, without an image."""
    asked = []
    base = {"none": 20.0, "xbm": 6.0, "xbm*": 17.0, "xbn": 21.0, "xbn*": 21.0, "axbn": 21.0, "ema": 21.0}

    def run_cells(context, wanted, seeds):
        found = GridResults(seeds)
        for cell in wanted:
            for seed in seeds:
                asked.append((cell.name, seed))
                noise = ((hash_of(cell.name) + 7 * seed) % 11 - 5) / 20
                norm = {"ln": 3.0, "bn": -10.0, "mbn": -10.0}.get(cell.head.get("norm"), 0.0)
                found.results[cell.name, seed] = {
                    **dict.fromkeys(xbn_runs.MEANS, 0.1),
                    "recall": base[cell.rule] + norm + noise,
                    "step 0": 10.0,
                    "drift": 0.05 if cell.rule == "xbm" else 0.08,
                    "cosine": 0.99 if cell.rule == "xbm" else 0.3,
                    "gain": 0.9994,
                }
        return found

    monkeypatch.setattr(xbn, "run_cells", run_cells)
    made = ClaimContext(Jobs(home / "jobs"))
    made.asked = asked
    return made


def hash_of(text: str) -> int:
    return sum(map(ord, text))


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith("8")])
def test_every_claim_ends_in_a_verdict_with_figures_and_a_note(key, context):
    outcome = KEYS[key].judge(context)
    assert outcome.note and outcome.figures["runs"]
    assert len({seed for _, seed in context.asked}) >= 3
    expected = {
        "1-xbn-over-xbm": "reproduced",
        "2-xbm-below-none": "reproduced",
        "4-xbm-xbmstar-xbn": "reproduced",
        "9-lower-drift": "contradicted",
    }
    if key in expected:
        assert outcome.verdict == expected[key]
    if key.startswith(("6", "10", "12")):
        assert outcome.verdict in ("no difference found", "not testable at this scale")


def test_claims_1_2_and_9_share_their_runs(context):
    runs = []
    for key in ("1-xbn-over-xbm", "2-xbm-below-none", "9-lower-drift"):
        context.asked.clear()
        KEYS[key].judge(context)
        runs.append(set(context.asked))
    assert runs[0] == runs[1] == runs[2]


def test_finished_runs_can_be_judged_before_the_others(home):
    """Only what is stored counts; a setting or a filter with a seed missing is left out."""
    context = ClaimContext(Jobs(home / "jobs"), data=home, finished=True)
    for name in xbn_runs.SETS:
        (home / name).mkdir()
    assert KEYS["1-xbn-over-xbm"].judge(context).verdict == "not run"
    recall = {"none": 20.0, "xbm": 5.0, "xbn": 12.0}
    for place, setting in enumerate(xbn.SETTINGS[:2]):
        for rule, value in recall.items():
            cell = xbn._at(rule, setting)
            for seed in xbn.SEEDS[: len(xbn.SEEDS) - place]:  # the second setting lacks a seed
                given = {"data": str(home), "settings": cell.settings(SMALL), "seed": seed}
                result = {**dict.fromkeys([*xbn_runs.MEANS, "gain"], 0.1), "recall": value + seed / 10}
                given["revision"] = revisions(1, "xbm")
                context.cells.run(f"{cell.name}-s{seed}", lambda result=result, **_: result, **given)
    outcome = KEYS["1-xbn-over-xbm"].judge(context)
    assert outcome.verdict == "reproduced" and "1 of 4 settings" in outcome.note
    assert len(outcome.figures["runs"]) == 3
    assert KEYS["6-axbn-over-xbn"].judge(context).verdict == "not run"


def test_what_is_kept_of_a_run():
    result = {
        "measured": {
            name: {"recall@1": {"value": v}}
            for name, v in (("trained", 0.5), ("step 0", 0.25), ("starting model", 0.3))
        },
        "seconds": {"train": 9.0},
    }
    log = [{"step": 1, "drift/mean": 0.1, "drift/max": 0.4, "drift/cosine": 0.2}, {"step": 2, "drift/mean": 0.3}]
    found = readings(result, log)
    assert (found["recall"], found["step 0"], found["drift"], found["cosine"]) == (50.0, 25.0, 0.2, 0.2)
    assert found["stale"] == 0.0


def test_mixed_takes_five_of_every_class_and_keeps_a_third_of_the_classes_apart(tmp_path, monkeypatch):
    from PIL import Image

    for name, classes in (("first", 6), ("second", 9)):
        for label in range(classes):
            folder = tmp_path / name / f"class-{label}"
            folder.mkdir(parents=True)
            for number in range(4 if label == 0 else 7):
                Image.fromarray(make_image(label, width=12, height=10)).save(folder / f"{number}.jpg")
    pool = tmp_path / "pool" / "zoo"
    pool.mkdir(parents=True)
    lines = ["path,source,source_label,pacs_class"]
    for number in range(6):
        Image.fromarray(make_image(number, width=12, height=10)).save(pool / f"{number}.jpg")
        lines.append(f"zoo/{number}.jpg,zoo,cat,")
    (tmp_path / "pool" / "pool.csv").write_text("\n".join(lines))
    monkeypatch.setattr(xbn_runs, "SETS", ("first", "second", "pool"))
    table = xbn_runs.join(tmp_path)
    labels, split = table.column("label"), table.column("split")
    assert len(set(labels)) == 5 + 8 + 1 and len(table) == 5 * 14
    assert len(set(labels[split == "test"])) == round(14 / 3)
    assert not set(labels[split == "test"]) & set(labels[split == "train"])
    assert all(Path(tmp_path, path).is_file() for path in table.column("path"))
    assert "pool/zoo/cat" in labels
    assert list(xbn_runs.join(tmp_path).column("path")) == list(table.column("path"))
