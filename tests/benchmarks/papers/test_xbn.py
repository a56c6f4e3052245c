"""The claims of AXBN's paper: verdict rules, gates, and the settings of the runs."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from benchmarks.papers import ClaimContext, products, xbn, xbn_runs
from benchmarks.papers.gates import all_of, flattened, late, learned
from benchmarks.papers.grid import GridResults, revisions
from benchmarks.papers.paired import Difference, difference, more, none_of_note, spread_ratio
from benchmarks.papers.xbn_runs import RULES, Cell, readings
from lookalike.core.engine import Jobs
from lookalike.core.seeds import numpy_rng
from lookalike.data import synthetic
from lookalike.training.recipe import load
from lookalike.training.settings import resolve

KEYS = {claim.key: claim for claim in xbn.CLAIMS}


def test_the_users_questions_come_first_and_every_claim_has_a_gate():
    numbers = [int(claim.key.split("-")[0]) for claim in xbn.CLAIMS]
    assert numbers == [0, 0, 0, *range(13)]
    assert [claim.question for claim in xbn.CLAIMS] == [number == 0 for number in numbers]


def test_a_paired_difference_is_students_interval():
    result = difference([1.0, 2.0, 3.0], [2.0, 4.0, 3.5])
    values = [1.0, 2.0, 0.5]
    reach = 4.302653 * statistics.stdev(values) / 3**0.5
    assert result.by_seed == values
    assert result.mean == pytest.approx(statistics.fmean(values), abs=1e-4)
    assert (result.low, result.high) == pytest.approx((result.mean - reach, result.mean + reach), abs=2e-4)
    wider = difference([1.0, 2.0, 3.0], [2.0, 4.0, 3.5], level=0.99)
    assert wider.low < result.low and wider.high > result.high
    single = difference([1.0], [9.0])
    assert single.low == float("-inf") and single.to_json()["low"] is None and str(single) == "+8.00 (one seed)"


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
    result = spread_ratio([1.0, 5.0, 9.0], [2.0, 2.5, 3.0])
    assert result["ratio"] == pytest.approx(8.0)
    assert result["least_ratio_seen"] == pytest.approx(4.36, abs=0.01)  # three seeds settle little
    assert spread_ratio(range(5), range(5))["least_ratio_seen"] == pytest.approx(2.53, abs=0.01)
    assert result["p"] < 0.05


@pytest.mark.parametrize("data", xbn_runs.REGIMES)
@pytest.mark.parametrize("rule", RULES)
def test_every_run_has_valid_settings_and_one_thing_varied(data, rule):
    for batch in (32, 64, 256):
        chosen = resolve(load(xbn_runs.RECIPE), Cell(rule, batch, data).settings())
        assert chosen.sampler.classes_per_batch * chosen.sampler.images_per_class == batch
        assert chosen.views.layer == "stage2" and chosen.keep == "trained"
        memory = chosen.method.own()["memory"]
        assert (memory["size"] == 0) == (rule == "none") and memory["drift"] == RULES[rule]["drift"]
        assert (memory["warmup_steps"], memory["fill"]) == ((0, False) if rule == "none" else (chosen.steps // 2, True))
    early = resolve(load(xbn_runs.RECIPE), Cell(rule, data=data, wait=False).settings()).method.own()["memory"]
    assert early["warmup_steps"] == 0 and not early["fill"]
    auto = resolve(load(xbn_runs.RECIPE), Cell(rule, data=data, wait="auto").settings()).method.own()["memory"]
    assert (auto["warmup_steps"], auto["fill"]) == ((0, False) if rule == "none" else ("auto", True))


def test_names_of_cells_tell_them_apart():
    assert Cell("xbn").name == "products-b32-xbn"
    assert Cell("xbm*", 64, "cars", wait=False).name == "cars-b64-xbm*-nowait"
    assert Cell("none", wait=False).name == Cell("none").name, "without a memory there is nothing to wait for"
    assert Cell("xbn", wait="auto").name == "products-b32-xbn-auto"
    assert Cell("none", 256, steps=113).name == "products-b256-none-113steps"


RECALL = {"none": 20.0, "xbm": 20.5, "xbm*": 21.5, "xbn": 23.0, "xbn*": 23.0, "axbn": 23.0, "ema": 23.0, "ema0.9": 22.0}
RECALL["shrink"] = 23.5


def made_up(cell, seed):
    """Recall and drift from a rule, without an image."""
    noise = ((sum(map(ord, cell.name)) + 7 * seed) % 11 - 5) / 20
    collapsed = cell.rule == "xbm" and not cell.wait
    norm = {"ln": 3.0, "bn": -15.0, "mbn": -15.0}.get(cell.norm, 0.0)
    recall = (1.0 if collapsed else RECALL[cell.rule] + norm) + noise
    return {
        **dict.fromkeys(xbn_runs.MEANS, 0.1),
        "recall": recall,
        "step 0": 10.0,
        "frozen": 11.0,
        "curve": [10.0, 18.0, 19.0, 19.5],
        "drift": 0.05 if cell.rule == "xbm" else 0.08,
        "cosine": 0.99 if collapsed else 0.3,
        "gain": 0.9,
    }


@pytest.fixture
def context(home, monkeypatch):
    calls = []

    def run_cells(context, cells, seeds):
        results = GridResults(seeds)
        for cell in cells:
            for seed in seeds:
                calls.append((cell.name, seed))
                results.results[cell.name, seed] = made_up(cell, seed)
        return results

    monkeypatch.setattr(xbn, "run_cells", run_cells)
    made = ClaimContext(Jobs(home / "jobs"))
    made.requests = calls
    return made


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith("8")])
def test_every_claim_ends_in_a_verdict_with_figures_and_a_note(key, context):
    outcome = KEYS[key].judge(context)
    assert outcome.note and outcome.figures["runs"]
    assert len({seed for _, seed in context.requests}) >= 5
    assert KEYS[key].gate(outcome.figures) == []
    expected = {
        "0-xbn-over-none": "reproduced",
        "0-default": "reproduced",
        "0-shrinkage": "reproduced",
        "1-xbn-over-xbm": "reproduced",
        "2-xbm-below-none": "reproduced",
        "4-xbm-xbmstar-xbn": "reproduced",
        "9-lower-drift": "contradicted",
    }
    if key in expected:
        assert outcome.verdict == expected[key]
    if key.startswith("10"):
        assert outcome.verdict in ("no difference found", "not testable at this scale")


def test_effects_are_relative_to_what_is_learned(context):
    figures = KEYS["0-xbn-over-none"].judge(context).figures
    least = min(np.mean([made_up(Cell("none", b), s)["recall"] for s in xbn.SEEDS]) - 10.0 for b in xbn.BATCHES)
    assert figures["expected"] == pytest.approx((80.62 - 75.94) / (75.94 - 48.96) * least, abs=1e-3)


def test_most_claims_share_their_runs(context):
    runs = []
    for key in ("0-xbn-over-none", "1-xbn-over-xbm", "3-xbm-spread", "6-axbn-over-xbn", "9-lower-drift"):
        context.requests.clear()
        KEYS[key].judge(context)
        runs.append(set(context.requests))
    assert all(each == runs[0] for each in runs) and len(runs[0]) == 5 * 2 * 10


ROW = {"rule": "xbn", "memory from": "half of the steps", "recall@1": 15.0, "step 0": 1.1, "frozen": 1.0}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"recall@1": 1.05}, "1 of 1 arms end below step 0"),
        ({"frozen": 16.0}, "1 of 1 arms end below frozen"),
        ({"curve": [1.0, 5.0, 8.0, 15.0]}, "still learning"),
    ],
)
def test_a_claim_is_judged_only_if_the_runs_can_test_it(change, reason):
    reasons = xbn.LEARNS({"runs": [{**ROW, "curve": [1.0, 13.0, 14.5, 15.0], **change}]})
    assert (reason is None and not reasons) or (len(reasons) == 1 and reason in reasons[0])


def test_an_arm_that_should_collapse_does_not_close_the_gate():
    bad = {**ROW, "recall@1": 0.5, "curve": [1.0, 0.5, 0.5, 0.5]}
    assert (
        xbn.LEARNS({"runs": [{**bad, "rule": "xbm", "memory from": "the start"}, {**ROW, "curve": [1, 5, 15, 15]}]})
        == []
    )
    assert xbn.LEARNS({"runs": [{**bad, "rule": "xbm"}]})


def test_gates_of_figures():
    assert learned("k-NN", "untrained", least=3)({"runs": [{"k-NN": 5.5, "untrained": 3.0}]})
    assert not learned("k-NN", "untrained", least=3)({"runs": [{"k-NN": 9.5, "untrained": 3.0}]})
    assert learned("k-NN", "untrained")({}) == ["no run was stored with the verdict"]
    assert late([1.0, 2.0, 3.0]) == 0.5 and late([3.0, 2.0, 1.0]) == 0.0
    short = {"runs": [{"curve": [0.0, 1.0]}, {}, {"curve": [0.0, 1.0, 1.1]}]}
    assert flattened()(short) == ["2 of 3 arms were stored without a learning curve: run them again"]
    assert len(all_of(lambda f: ["a"], flattened(), lambda f: ["b"])({"runs": [{"curve": [0.0, 1.0, 1.1]}]})) == 2


def test_finished_runs_can_be_judged_before_the_others(home):
    """Only seeds on which every cell is stored count."""
    (home / "cars").mkdir()
    context = ClaimContext(Jobs(home / "jobs"), data=home, finished=True)
    assert KEYS["0-cars"].judge(context).verdict == "not run"
    for rule in xbn.ARMS:
        cell = Cell(rule, 64, "cars")
        for seed in (0, 1, 2) if rule != "axbn" else (0, 2):
            options = {"data": str(home / "cars"), "settings": cell.settings(), "seed": seed}
            options["revision"] = revisions(xbn_runs.REVISION, "xbm")
            context.cells.run(f"{cell.name}-s{seed}", lambda cell=cell, seed=seed, **_: made_up(cell, seed), **options)
    outcome = KEYS["0-cars"].judge(context)
    assert outcome.note.startswith("2 of 5 seeds so far") and len(outcome.figures["runs"]) == 5
    assert outcome.verdict == "not finished", "two seeds are too few for a verdict"
    assert KEYS["1-xbn-over-xbm"].judge(context).verdict == "not run"


def test_what_is_stored_of_a_run():
    result = {
        "measured": {
            name: {"recall@1": {"value": v}}
            for name, v in (("trained", 0.5), ("step 0", 0.25), ("starting model", 0.3))
        },
        "seconds": {"train": 9.0},
    }
    log = [{"step": 1, "drift/mean": 0.1, "drift/max": 0.4, "drift/cosine": 0.2}, {"step": 2, "drift/mean": 0.3}]
    log += [{"step": 2, "test/recall@1": 0.125}]
    stored = readings(result, log)
    assert (stored["recall"], stored["step 0"], stored["drift"], stored["cosine"]) == (50.0, 25.0, 0.2, 0.2)
    assert stored["stale"] == 0.0 and stored["curve"] == [12.5]


def test_products_are_the_same_images_on_every_machine(home):
    table = products.products(classes=4)
    assert len(table) == 20 and sorted(set(table.column("split"))) == ["test", "train"]
    assert len(set(table.column("label")[table.column("split") == "train"])) == 2
    assert "domain" not in table.arrow.column_names and table.column("row_id")[0].startswith("products/")
    design = synthetic.make_design(products.SEED, 7)
    assert design.name == "scaled-urn-07"
    for style, mean in {"studio": 184.2676, "night": 52.8839}.items():  # stored cells were measured on these images
        image = np.asarray(synthetic.draw(design, style, 80, [design], numpy_rng(0, "synthetic", 7, 0)))
        assert image.shape == (80, 80, 3) and image.mean() == pytest.approx(mean, abs=0.05)


def test_a_real_run_measures_its_learning_curve(home, monkeypatch):
    """Two arms of a few steps on a few products, with the memory used in the second half."""
    monkeypatch.setattr(products.products, "__defaults__", (12,))
    cell = Cell("xbn", 8, steps=6)
    figures = xbn_runs.trial(data="products", settings=cell.settings(), seed=0)
    assert len(figures["curve"]) == 4 and figures["curve"][0] == pytest.approx(figures["step 0"], abs=0.01)
    assert figures["curve"][-1] == pytest.approx(figures["recall"], abs=0.01), "all six test classes"
