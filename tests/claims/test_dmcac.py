"""The claims of DMCAC: the list of runs, the rules of the verdicts, and what is kept of a run."""

from __future__ import annotations

import pytest
import torch
from tests import helpers

from lookalike import methods
from lookalike.claims import ClaimContext, dmcac, dmcac_contest, dmcac_new, dmcac_runs
from lookalike.claims.dmcac_runs import MEASURES, Arm, Runs
from lookalike.claims.paired import Difference
from lookalike.core.jobs import Jobs
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


@pytest.fixture
def context(home, monkeypatch):
    """A context whose runs are made up: figures from an arm's settings, without a picture."""
    asked = []

    def run_arms(context, arms, seeds):
        found = Runs(seeds)
        for arm in {arm.key: arm for arm in arms}.values():
            asked.append(arm)
            method = arm.settings["method"]
            weights = method.get("weights", {"divergence": 1.0, "classes": 1.0, "attention": 1.0})
            alone = method["name"] == "dmcac" and not weights["classes"] and not weights["attention"]
            for seed in seeds:
                noise = ((sum(map(ord, arm.key)) + 7 * seed) % 11 - 5) / 40
                recall = 20.0 + 2 * weights["attention"] + 1.5 * weights["divergence"] + noise
                lift = 0.0 if arm.name == "letter" else 0.2
                found.results[arm.key, seed] = {
                    **dict.fromkeys(MEASURES, 0.1 + noise / 100),
                    "recall": recall if method["name"] == "dmcac" else 21.0 + noise,
                    "cosine": 0.99 if alone else 0.4,
                    "share": 0.3,
                    "attention": 0.3 + lift + noise / 1000,
                }
        return found

    for module in (dmcac, dmcac_contest, dmcac_new):
        monkeypatch.setattr(module, "run_arms", run_arms)
    made = ClaimContext(Jobs(home / "jobs"))
    made.asked = asked
    return made


def test_every_claim_of_the_paper_is_there():
    assert [key.split("-")[0] for key in KEYS] == [*"1234567", "8", "8", "8"]


@pytest.mark.parametrize("key", KEYS)
def test_every_claim_ends_in_a_verdict_with_figures_and_a_note(key, context):
    outcome = KEYS[key].judge(context)
    assert outcome.note and outcome.figures["runs"]
    expected = {
        "2-dropping-terms": "reproduced",
        "5-diagonal-attention": "no difference found",  # by the letter; heads that learn are told beside it
        "6-collapse": "reproduced",
        "7-against-others": "reproduced",
    }
    assert outcome.verdict == expected.get(key, outcome.verdict)
    for arm in [arm for arm in context.asked if arm.key not in CHECKED]:
        CHECKED.add(arm.key)
        settings = resolve(arm.laid("small"))
        assert settings.views.mode == ("end_to_end" if arm.end_to_end else "cached")
        if arm.data != "grocery":
            large = resolve(arm.laid("paper"))
            assert large.model.name.startswith("vit_small") and large.steps in (250, 600)
            if large.method.name == "dmcac":
                assert large.sampler.batch * large.method.own()["views"] >= 1024 // 2


def test_arms_with_one_name_are_one_thing(context):
    """Claims share runs by name: the same name must mean the same settings everywhere."""
    known: dict[str, Arm] = {}
    for claim in KEYS.values():
        context.asked.clear()
        claim.judge(context)
        for arm in context.asked:
            assert known.setdefault(arm.key, arm).laid("small") == arm.laid("small"), arm.key
    assert 40 < len(known) < 60


def test_all_methods_see_as_many_pictures(context):
    KEYS["7-against-others"].judge(context)
    for arm in context.asked:
        settings = resolve(arm.laid("small"))
        own = settings.method.own()
        pictures = settings.sampler.batch * own["views"] if settings.method.name == "dmcac" else 0
        assert (pictures or settings.sampler.classes * settings.sampler.images) == 64
        assert settings.steps == (150 if settings.method.name == "dmcac" else 162)
    names = {arm.name for arm in context.asked}
    assert names == {"dmcac", "classes-alone", "proxy_anchor", "supcon", "hyp", "sph"}


def test_a_rise_below_the_margin_is_none():
    assert dmcac.beyond(Difference(0.1, 0.05, 0.2, []), 0.02) == "reproduced"
    assert dmcac.beyond(Difference(0.001, 0.0005, 0.002, []), 0.02) == "no difference found"
    assert dmcac.beyond(Difference(-0.1, -0.2, -0.05, []), 0.02) == "contradicted"
    assert dmcac.beyond(Difference(0.05, -0.1, 0.2, []), 0.02) == "not testable at this scale"
    assert dmcac._unchanged(Difference(0.5, 0.1, 0.9, [])) == "contradicted"
    assert dmcac._unchanged(Difference(0.0, -0.5, 0.5, [])) == "no difference found"
    assert dmcac._unchanged(Difference(0.0, -5, 0.5, [])) == "not testable at this scale"


def test_unfinished_runs_are_not_judged(home):
    context = ClaimContext(Jobs(home / "jobs"), data=home, finished=True)
    for name in ("cars", "cub", "grocery"):
        (home / name).mkdir()
    assert KEYS["6-collapse"].judge(context).verdict == "not run"


def test_what_is_kept_of_a_run(tmp_path, home):
    """A real one, of a few steps: cosine, attention of trained and of unseen classes, gradients."""
    folder = helpers.pictures(tmp_path / "shelf", classes=8, images=6, width=40, height=40)
    given = {
        "data": {"near": False, "validation": 0},
        "model": {"name": "test_efficientnet", "weights": "random", "size": 32},
        "head": {"dim": 16},
        "method": {"name": "dmcac", "views": 2, "k": 3, "maps": [1, 2]},
        "sampler": {"kind": "shuffle", "batch": 8},
        "views": {"count": 2},
        "steps": 2,
        "keep": "trained",
        "logs": {"every": 1, "tensorboard": False},
    }
    threads = torch.get_num_threads()
    found = dmcac_runs.trial(data=str(folder), settings=given, seed=0)
    torch.set_num_threads(threads)
    assert set(MEASURES) == set(found)
    assert 0 < found["share"] <= 1 and 0 < found["unseen attention"] <= 1 and -1 <= found["cosine"] <= 1
    assert found["gradient classes"] > 0 and found["gradient divergence"] > 0
