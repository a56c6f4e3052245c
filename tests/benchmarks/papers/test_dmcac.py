"""The claims of DMCAC: the list of runs, the rules of the verdicts, and what is kept of a run."""

from __future__ import annotations

import pytest
import torch
from tests import helpers

from benchmarks.papers import ClaimContext, dmcac, dmcac_contest, dmcac_runs
from benchmarks.papers.dmcac_runs import MEASURES, Arm
from benchmarks.papers.grid import GridResults, revisions
from benchmarks.papers.paired import Difference
from lookalike import methods
from lookalike.core.engine import Jobs
from lookalike.core.errors import LookalikeError
from lookalike.methods.dmcac import DMCAC
from lookalike.methods.hyp import Hyp
from lookalike.training.settings import resolve

KEYS = {claim.key: claim for claim in dmcac.CLAIMS}
CHECKED: set[str] = set()  # arms that claims share are looked at once


@pytest.fixture(autouse=True)
def _register():
    methods.register("dmcac", DMCAC)
    methods.register("hyp", Hyp)
    yield
    methods._REGISTERED.clear()


def method_of(arm: Arm) -> dict:
    return arm.settings["method"]


def made_up(arm: Arm, seed: int) -> dict[str, float]:
    """Figures from an arm's settings, without an image: terms help, the divergence alone collapses, heads that learn
    lift attention."""
    method = method_of(arm)
    weights = method.get("weights", {"divergence": 1.0, "classes": 1.0, "attention": 1.0})
    alone = method["name"] == "dmcac" and not weights["classes"] and not weights["attention"]
    noise = ((sum(map(ord, arm.name)) + seed) % 5 - 2) / 20  # 0 on the mean of five seeds
    ours = 20.0 + 2 * weights["attention"] + 1.5 * weights["divergence"]
    slow = arm.settings["optimizer"].get("loss_lr") == 3e-5
    return {
        **dict.fromkeys(MEASURES, 0.1 + noise / 100),
        "recall": (ours if method["name"] == "dmcac" else 21.0) + noise,
        "cosine": (0.99 if alone else 0.4) + noise / 100,
        "late share": 0.3,
        "late attention": 0.3 + (0.0 if slow else 0.2) + noise / 1000,
        "validation recall@1": 30.0 + (arm.settings["optimizer"]["lr"] == 3e-4 if "-held" in arm.name else 0),
        "validation map@r": 10.0,
        "images": 1000.0,
    }


@pytest.fixture
def context(home, monkeypatch):
    """A context whose runs are made up; `made.figures` may be replaced."""
    calls = []

    def run_arms(context, arms, seeds):
        result = GridResults(seeds)
        for arm in {arm.name: arm for arm in arms}.values():
            calls.append(arm)
            for seed in seeds:
                result.results[arm.name, seed] = {**made_up(arm, seed), **made.figures(arm, seed)}
        return result

    for module in (dmcac, dmcac_contest):
        monkeypatch.setattr(module, "run_arms", run_arms)
    made = ClaimContext(Jobs(home / "jobs"))
    made.requests, made.figures = calls, lambda arm, seed: {}
    return made


def test_every_claim_of_the_paper_is_there():
    assert [key.split("-")[0] for key in KEYS] == [*"01234567", "8", "8", "8"]
    assert [claim.question for claim in KEYS.values()] == [key.startswith("0") for key in KEYS]


EXPECTED = {
    "0-over-cross-entropy": "reproduced",
    "1-full-retrieval": "no difference found",  # where made-up runs differ by noise alone
    "2-dropping-terms": "reproduced",
    "3-classes-dispensable": "no difference found",
    "4-number-of-views": "no difference found",
    "5-diagonal-attention": "no difference found",  # by the letter; heads that learn are told beside it
    "6-collapse": "reproduced",
    "7-against-others": "reproduced",
    "8-stale": "no difference found",
    "8-points": "no difference found",
    "8-temperature": "no difference found",
}


@pytest.mark.parametrize("key", KEYS)
def test_every_claim_ends_in_a_verdict_with_figures_and_a_note(key, context):
    outcome = KEYS[key].judge(context)
    assert outcome.note and outcome.figures["runs"]
    assert outcome.verdict == EXPECTED[key]
    for arm in [arm for arm in context.requests if arm.name not in CHECKED]:
        CHECKED.add(arm.name)
        settings = resolve(arm.resolve())
        assert settings.views.mode == ("end_to_end" if arm.end_to_end else "cached")
        assert settings.data.split == ("classes" if arm.data == "grocery" else "auto")  # never trained classes


def test_the_users_question_is_answered_at_equal_images_and_at_own_schedules():
    ours, cross, supcon = (resolve(arm.resolve()) for arm in dmcac.fair_arms("equal images").values())
    assert ours.sampler.batch_size == 64 and ours.method.own()["views"] == 4 and ours.method.own()["head_scale"] == 16
    assert cross.method.own()["weights"] == {"divergence": 0.0, "classes": 1.0, "attention": 0.0}
    assert ours.optimizer == cross.optimizer and ours.steps == cross.steps
    database = 3 * round(0.2 * 0.8 * 4018)  # made anew every 50 of 120 steps, of the classes that are not held out
    batch = supcon.sampler.classes_per_batch * supcon.sampler.images_per_class
    assert supcon.steps * batch == pytest.approx(ours.steps * 64 * 4 + database, rel=0.01)
    assert {s.data.validation_fraction for s in (ours, cross, supcon)} == {0.2}, (
        "the step is selected on held-out classes"
    )
    assert resolve(dmcac.fair_arms("own schedules")["dmcac"].resolve()).steps > ours.steps


def test_gates_leave_out_arms_that_should_not_learn():
    bad = {"recall": 5.0, "step 0": 10.0, "frozen": 11.0, "curve": [3.0, 5.0, 5.0]}
    assert dmcac.LEARNS({"runs": [{**bad, "arm": "divergence-alone"}, {**bad, "recall": 12.0, "arm": "dmcac"}]}) == []
    assert len(dmcac.LEARNS({"runs": [{**bad, "arm": "dmcac"}]})) == 2


def test_a_claim_is_judged_only_if_its_learning_curves_have_flattened():
    good = {"recall": 12.0, "step 0": 10.0, "frozen": 11.0, "arm": "dmcac"}
    for key, claim in KEYS.items():
        arm = {**good, "arm": "dmcac-own-schedules"}
        assert claim.gate({"runs": [{**arm, "curve": [10.0, 12.0, 12.0]}]}) == []
        assert len(claim.gate({"runs": [{**arm, "curve": [10.0, 11.0, 12.0]}]})) == (key != "6-collapse")
        assert len(claim.gate({"runs": [arm]})) == (key != "6-collapse"), "it was stored without a curve"
    steps = [resolve(arm.resolve()) for arm in (dmcac_runs.dmcac(), *dmcac.fair_arms("own schedules").values())]
    assert all(settings.evaluate_every <= settings.steps / 5 and settings.log.test_classes for settings in steps)


def test_a_contest_at_unequal_cost_is_refused(context):
    context.figures = lambda arm, seed: {"images": 1000.0 if arm.label.startswith("dmcac") else 1005.0}
    assert KEYS["7-against-others"].judge(context).note
    context.figures = lambda arm, seed: {"images": 1000.0 + 50 * arm.label.startswith("supcon")}
    with pytest.raises(LookalikeError, match=r"supcon embedded 1,050 images and .* 1,000"):
        KEYS["7-against-others"].judge(context)


def test_an_arm_that_two_comparisons_share_is_one_row():
    arms = [dmcac_runs.dmcac("one"), dmcac_runs.dmcac("two"), dmcac_runs.dmcac("one")]
    result = GridResults([0])
    for arm in arms:
        result.results[arm.name, 0] = made_up(arm, 0)
    assert [row["arm"] for row in dmcac_runs.rows(result, arms)] == ["one", "two"]


@pytest.mark.parametrize(
    ("key", "arm", "points", "verdict"),
    [
        ("0-over-cross-entropy", "fair-cross-entropy-own-schedules", 9, "contradicted"),
        ("0-over-cross-entropy", "fair-supcon-own-schedules", 9, "reproduced"),  # told, not judged
        ("1-full-retrieval", "full-gradient-0.05", 1, "reproduced"),
        ("1-full-retrieval", "full-gradient-0.05", -1, "contradicted"),
        ("1-full-retrieval", "full-constants-0.05", 1, "no difference found"),  # not the reading that is judged
        ("2-dropping-terms", "ce0.5-no-divergence", 3, "contradicted"),
        ("2-dropping-terms", "ce0.5-cold-no-attention", 2, "no difference found"),
        ("2-dropping-terms", "ce1-no-divergence", 3, "reproduced"),  # told, not judged
        ("3-classes-dispensable", "no-classes-cold", -3, "contradicted"),
        ("3-classes-dispensable", "no-classes-cold", 3, "reproduced"),
        ("4-number-of-views", "views9", 2, "contradicted"),
        ("4-number-of-views", "views8-equal", -2, "contradicted"),
        ("8-stale", "refresh-every-step", 2, "contradicted"),
        ("8-stale", "refresh-never", 2, "reproduced"),
        ("8-points", "points", -2, "reproduced"),
        ("8-points", "points", 2, "contradicted"),
        ("8-temperature", "tau0.05", 2, "reproduced"),
        ("8-temperature", "ce1-cold", 2, "contradicted"),
    ],
)
def test_the_direction_of_each_claim(key, arm, points, verdict, context):
    """One arm better or worse than the made-up rest."""
    context.figures = lambda a, seed: {"recall": made_up(a, seed)["recall"] + points * (a.label == arm)}
    outcome = KEYS[key].judge(context)
    assert arm in {a.label for a in context.requests} and outcome.verdict == verdict


def test_arms_with_one_name_are_one_thing(context):
    """Claims share runs by name: the same name must mean the same settings everywhere."""
    known: dict[str, dict] = {}
    for claim in KEYS.values():
        context.requests.clear()
        claim.judge(context)
        for arm in context.requests:
            settings = arm.resolve()
            assert known.setdefault(arm.name, settings) == settings, arm.name
    assert 60 < len(known) < 100, len(known)


def test_all_methods_see_as_many_images(context):
    KEYS["7-against-others"].judge(context)
    contest = [arm for arm in context.requests if "held" not in arm.name]
    assert len(contest) == 3 * 6
    for arm in contest:
        settings = resolve(arm.resolve())
        ours = settings.method.name == "dmcac"
        batch = settings.sampler.batch_size * settings.method.own()["views"] if ours else 0
        assert (batch or settings.sampler.classes_per_batch * settings.sampler.images_per_class) == 64
        assert settings.steps == (120 if ours else {"cars": 157, "cub": 175, "grocery": 145}[arm.data])
        assert settings.views.rand_augment == ("rand-tv9" if ours else "")
        assert settings.optimizer.lr == 3e-4 and settings.data.validation_fraction == 0
    assert {arm.label.rpartition("-0")[0] for arm in contest} == {"dmcac", "cross-entropy", *dmcac_contest.OTHERS}
    cross = next(arm for arm in contest if arm.label.startswith("cross-entropy"))
    assert method_of(cross)["name"] == "norm_softmax"  # all images, and a scale of its own


def test_rates_are_chosen_on_classes_held_out_and_nothing_else(context):
    def figures(arm, seed):
        if "-held" not in arm.name:
            return {}
        high = arm.settings["optimizer"]["lr"] > 1e-4
        better = {"supcon": not high, "hyp": high}.get(arm.label.partition("-")[0])
        tied = {"validation recall@1": 30.0, "validation map@r": 12.0 if arm.label.startswith("sph") and high else 10.0}
        reported = {**tied} if better is None else {"validation recall@1": 31.0 if better else 30.0}
        return {**reported, "recall": 0.0 if high else 99.0}  # of the test images: must not matter

    context.figures = figures
    outcome = KEYS["7-against-others"].judge(context)
    expected = dict.fromkeys(dmcac_contest.METHODS, "3e-05") | {"hyp": "0.0003", "sph": "0.0003"}
    assert outcome.figures["rates"] == expected  # of equals the lower rate
    held = [arm for arm in context.requests if "-held" in arm.name]
    assert len(held) == 18 and {resolve(arm.resolve()).data.validation_fraction for arm in held} == {0.2}
    assert all(resolve(arm.resolve()).steps >= 120 for arm in held)


SHIFTS = {
    "reproduced": (2.0, 0.1),
    "contradicted": (-2.0, 0.1),
    "no difference found": (0.0, 0.1),
    "not testable at this scale": (0.0, 4.0),
}


@pytest.mark.parametrize("verdict", SHIFTS)
def test_claim_7_ends_in_every_verdict(verdict, context):
    """By its worst opponent: the others are as far behind as always."""
    shift, noise = SHIFTS[verdict]

    def figures(arm, seed):
        spread = noise * (seed - 2)
        if method_of(arm)["name"] == "dmcac":
            return {"recall": 24.0 + spread, "frozen": 10.0}
        return {"recall": 24.0 - shift if arm.label.startswith("hyp") else 10.0}

    context.figures = figures
    outcome = KEYS["7-against-others"].judge(context)
    assert outcome.verdict == verdict and outcome.figures["verdicts"]["cub"] == verdict


def test_one_bad_opponent_of_six_is_corrected_for_multiple_tests(context):
    """Below 0 at 95 %, not at 95 % of six."""
    gaps = [-0.5, -0.6, -0.4, -1.2, -0.05]

    def figures(arm, seed):
        if method_of(arm)["name"] == "dmcac":
            return {"recall": 24.0, "frozen": 10.0}
        return {"recall": 24.0 - gaps[seed] if arm.label.startswith("hyp") else 10.0}

    context.figures = figures
    outcome = KEYS["7-against-others"].judge(context)
    assert outcome.figures["differences"]["pooled"]["hyp"]["high"] < 0
    assert outcome.verdict == "no difference found"


@pytest.mark.parametrize(
    ("start", "end", "together", "verdict"),
    [
        (0.4, 0.99, 0.4, "reproduced"),
        (0.4, 0.9, 0.4, "not testable at this scale"),  # risen, and not there yet
        (0.4, 0.99, 0.99, "no difference found"),  # all terms collapse as well
        (0.4, 0.4, 0.4, "not reproduced"),
        (0.4, 0.2, 0.4, "contradicted"),
        (0.99, 0.99, 0.4, "not reproduced"),  # it was there from the start
    ],
)
def test_claim_6_ends_in_every_verdict(start, end, together, verdict, context):
    def figures(arm, seed):
        alone = not method_of(arm)["weights"]["classes"]
        noise = ((sum(map(ord, arm.name)) + 3 * seed) % 5 - 2) / 1000
        return {"cosine 0": start, "cosine": (end if alone else together) + noise}

    context.figures = figures
    outcome = KEYS["6-collapse"].judge(context)
    assert outcome.verdict == verdict
    assert set(outcome.figures["over step 0"]) == {"τ 0.1", "τ 1"}


def test_one_temperature_that_does_not_collapse_is_not_enough(context):
    def figures(arm, seed):
        alone = not method_of(arm)["weights"]["classes"]
        there = alone and not arm.label.endswith("cold")
        return {"cosine 0": 0.4, "cosine": (0.99 if there else 0.5 if alone else 0.4) + seed / 1000}

    context.figures = figures
    assert KEYS["6-collapse"].judge(context).verdict == "not testable at this scale"


def test_a_rise_below_the_margin_is_none():
    assert dmcac.beyond(Difference(0.1, 0.05, 0.2, []), 0.02) == "reproduced"
    assert dmcac.beyond(Difference(0.001, 0.0005, 0.002, []), 0.02) == "no difference found"
    assert dmcac.beyond(Difference(-0.0003, -0.0005, -0.0001, []), 0.02) == "no difference found"
    assert dmcac.beyond(Difference(-0.1, -0.2, -0.05, []), 0.02) == "contradicted"
    assert dmcac.beyond(Difference(-0.03, -0.05, -0.01, []), 0.02) == "not testable at this scale"
    assert dmcac.beyond(Difference(0.05, -0.1, 0.2, []), 0.02) == "not testable at this scale"
    assert dmcac._unchanged(Difference(0.5, 0.1, 0.9, [])) == "contradicted"
    assert dmcac._unchanged(Difference(0.0, -0.5, 0.5, [])) == "no difference found"
    assert dmcac._unchanged(Difference(0.0, -5, 0.5, [])) == "not testable at this scale"


def test_what_is_left_of_the_gradient_is_read_off_one_run(context):
    """At τ = 1: the divergence's beside the classes' of the same arm."""

    def figures(arm, seed):
        cold = arm.label == "ce1-cold"
        return {"gradient divergence": 0.002 if cold else 0.3, "gradient classes": 0.5 if cold else 0.9}

    context.figures = figures
    assert "at τ = 1 its gradient is 0.4% of the classes'" in KEYS["2-dropping-terms"].judge(context).note


def test_caches_are_filled_once_for_each_kind_of_views(home, monkeypatch):
    """Before several processes would: a run of one step for each set, of DMCAC's views and of the others'."""
    first = []
    monkeypatch.setattr(
        dmcac_runs, "trial", lambda **kwargs: first.append(kwargs["settings"]) or {"recall": 1, "seconds": 1}
    )
    context = ClaimContext(Jobs(home / "jobs"), data=home)
    context.workers = 1
    for name in ("cub", "grocery"):
        (home / name).mkdir()
    arms = [Arm(m, {"method": {"name": m}}, data=d) for d in ("cub", "grocery") for m in ("dmcac", "supcon", "hyp")]
    dmcac_runs.run_arms(context, arms, (0,))
    once, run = first[:4], first[4:]
    assert [(s["steps"], s["views"]["rand_augment"]) for s in once] == [(1, "rand-tv9"), (1, "")] * 2
    assert len(run) == 6 and all(s["steps"] >= 120 for s in run)


def test_unfinished_runs_are_not_judged(home):
    context = ClaimContext(Jobs(home / "jobs"), data=home, finished=True)
    for name in ("cars", "cub", "grocery"):
        (home / name).mkdir()
    assert KEYS["6-collapse"].judge(context).verdict == "not run"


def test_seeds_that_every_arm_has_finished_are_judged_and_counted(home):
    """Three of five; a fourth lacks its last arm."""
    (home / "cars").mkdir()
    context = ClaimContext(Jobs(home / "jobs"), data=home, finished=True)
    one, two = arms = [dmcac_runs.dmcac("one"), dmcac_runs.dmcac("two")]
    for seed, done in ((0, arms), (2, arms), (3, arms), (4, arms[:1])):
        for arm in done:
            options = {"data": str(home / "cars"), "settings": arm.resolve(), "seed": seed}
            options["revision"] = revisions(1, "dmcac")
            context.cells.run(f"{arm.name}-s{seed}", lambda arm=arm, **_: made_up(arm, 0), **options)
    result = dmcac_runs.run_arms(context, arms, range(5))
    assert result.seeds == [0, 2, 3] and len(result.gap(one, two).by_seed) == 3
    printed = dmcac_runs.outcome("reproduced", "so it is", result, arms)
    assert printed.note == "3 of 5 seeds so far; so it is" and len(printed.figures["runs"]) == 2
    assert GridResults([0, 1]).so_far == ""


def test_what_is_stored_of_a_run(tmp_path, home):
    """A real one, of a few steps: cosine, attention of trained and of unseen classes, gradients."""
    folder = helpers.make_images(tmp_path / "shelf", classes=8, images=6, width=40, height=40)
    options = {
        "data": {"near_duplicates": False, "validation_fraction": 0},
        "model": {"name": "test_efficientnet", "weights": "random", "size": 32},
        "head": {"embedding_dim": 16},
        "method": {"name": "dmcac", "views": 2, "k": 3, "map_steps": [1, 2]},
        "sampler": {"kind": "shuffle", "batch_size": 8},
        "views": {"num_cached": 2},
        "steps": 2,
        "keep": "trained",
        "log": {"every_n_steps": 1, "tensorboard": False, "test_classes": 2},
    }
    threads = torch.get_num_threads()
    result = dmcac_runs.trial(data=str(folder), settings=options, seed=0)
    options["data"]["validation_fraction"] = 0.4
    held = dmcac_runs.trial(data=str(folder), settings=options, seed=0)
    torch.set_num_threads(threads)
    assert {*MEASURES, "curve"} == set(result) and len(result["curve"]) >= 2
    assert set(held) - set(result) == {"validation recall@1", "validation map@r"}
    assert 0 < result["late share"] <= 1 and 0 < result["unseen attention"] <= 1 and -1 <= result["cosine"] <= 1
    assert -1 <= result["cosine 0"] <= 1 and result["cosine 0"] != result["cosine"]
    assert result["late attention other"] == pytest.approx((1 - result["late attention"]) / 5, abs=1e-4)  # 6 classes
    assert result["early whole"] > 0 and result["late near"] != 0
    assert result["gradient classes"] > 0 and result["gradient divergence"] > 0
    # Two batches of 8 queries in 2 views, and the database once: an image of six of each class.
    assert result["images"] == 2 * 8 * 2 + 6
