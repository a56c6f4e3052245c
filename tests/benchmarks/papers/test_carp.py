"""CARP's claims: the list of runs, rules of verdicts on made-up figures, and one tiny real run."""

from __future__ import annotations

import pytest
import torch
from tests import helpers

from benchmarks.papers import ClaimContext, carp, carp_runs, domain_pretraining
from benchmarks.papers.carp_runs import Cell, ScratchCell
from benchmarks.papers.grid import GridResults
from lookalike.core.engine import Jobs
from lookalike.training.recipe import load
from lookalike.training.settings import resolve

KEYS = {claim.key: claim for claim in carp.CLAIMS}


def test_questions_come_before_eleven_claims_in_order():
    assert [int(key.split("-")[0]) for key in KEYS] == [0, 0, 0, *range(1, 12)]
    assert [claim.question for claim in KEYS.values()] == [True] * 3 + [False] * 11


def test_a_cell_varies_what_it_says():
    base = {"keep": "trained"}
    plain = resolve(load("carp_small"), Cell().settings(base, 5000))
    own = plain.method.own()
    assert (own["prototypes"], own["block_size"], own["teacher"], plain.sampler.batch_size) == (2048, 128, "ema", 64)
    assert (plain.steps, plain.evaluate_every) == (391, 98) and plain.optimizer.kind == "adamw"
    assert own["prototypes"] / plain.sampler.batch_size >= 16
    one = resolve(
        load("carp_small"), Cell(block=2048, teacher="stopgrad", more={"pair_reduction": "sum"}).settings(base, 5000)
    )
    assert (one.method.own()["block_size"], one.method.own()["pair_reduction"]) == (2048, "sum")
    assert one.model_dump()["optimizer"] == plain.model_dump()["optimizer"]
    for name, kind in (("moco", "sgd"), ("simsiam", "sgd"), ("dino", "adamw")):
        other = resolve(load("carp_small"), Cell(method=name).settings(base, 5000))
        assert other.method.name == name and other.optimizer.kind == kind and other.steps == plain.steps
    assert len({Cell().name, Cell(block=32).name, Cell(batch=32).name, Cell(more={"weight": 2}).name}) == 4


def _give(monkeypatch, run_cells):
    monkeypatch.setattr(carp, "run_cells", run_cells)


@pytest.fixture
def context(home, monkeypatch):
    """A context whose runs are made up: without momentum one block collapses, everything else learns."""
    calls = []

    def run_cells(context, cells, seeds):
        result = GridResults(seeds, measure="knn")
        for cell in cells:
            for seed in seeds:
                calls.append((cell, seed))
                whole = cell.block == cell.prototypes
                gone = whole and cell.teacher != "ema" and float(cell.more.get("weight", 1)) < 2
                gain = {"ema": 3.0, "previous": 1.0}.get(cell.teacher, 0.0) if cell.method == "carp" else -2.0
                result.results[cell.name, seed] = {
                    "knn": 12 + gain - 4 * gone + 0.1 * ((7 * seed + len(cell.name)) % 5),
                    "untrained": 6.0,
                    "curve": [6.0, 11.0, 12.0],
                    "ahead": 0.5 + 0.1 * seed,
                    "clusters": 1.2 if gone else 20.0,
                    "in_use": 200.0,
                    "spread": 0.9,
                }
        return result

    _give(monkeypatch, run_cells)
    made = ClaimContext(Jobs(home / "jobs"))
    made.requests = calls
    return made


@pytest.mark.parametrize("key", [key for key in KEYS if not key.startswith("0")])
def test_every_claim_ends_in_a_verdict_with_figures_and_a_note(key, context):
    outcome = KEYS[key].judge(context)
    assert "untrained 6.00" in outcome.note and outcome.figures["runs"]
    assert len({seed for _, seed in context.requests}) >= 3
    expected = {
        "1-one-block": "not reproduced",  # with momentum nothing collapsed
        "3-momentum": "reproduced",
        "8-teacher-ahead": "reproduced",
        "9-against-others": "reproduced",
        "10-weight": "reproduced",
    }
    if key in expected:
        assert outcome.verdict == expected[key], outcome.note


def test_runs_below_the_untrained_network_are_no_evidence(context, monkeypatch):
    usual = carp.run_cells

    def poor(*args):
        actual = usual(*args)
        for result in actual.results.values():
            result["untrained"] = 50.0
        return actual

    _give(monkeypatch, poor)
    for key in ("3-momentum", "4-redrawn", "9-against-others"):
        outcome = KEYS[key].judge(context)
        assert outcome.verdict == "not testable at this scale" and "no evidence" in outcome.note


def test_one_block_with_momentum_too(context, monkeypatch):
    usual = carp.run_cells

    def gone(*args):
        actual = usual(*args)
        for (name, _), result in actual.results.items():
            result["clusters"] = 1.1 if "B2048" in name else 20.0
        return actual

    _give(monkeypatch, gone)
    assert KEYS["1-one-block"].judge(context).verdict == "reproduced"


def test_what_is_missing_is_not_judged(home, tmp_path):
    (tmp_path / "tinyimagenet100").mkdir()
    context = ClaimContext(Jobs(home / "jobs"), data=tmp_path, finished=True)
    assert KEYS["3-momentum"].judge(context).verdict == "not run"


def test_a_real_trial(tmp_path, monkeypatch):
    helpers.make_images(tmp_path / "train", classes=4, images=8, width=64, height=64)
    helpers.make_images(tmp_path / "val", classes=4, images=4, width=64, height=64, seed=0)
    monkeypatch.setattr(carp_runs, "IMAGES", 6)
    monkeypatch.setattr(carp_runs, "HELD_OUT", 3)
    cell = Cell(block=8, prototypes=16, batch=8, epochs=1)
    settings = cell.settings({"keep": "trained", "data": {"near_duplicates": False}}, 24)
    result = carp_runs.trial(data=str(tmp_path), recipe="carp_small", settings=settings, seed=0, part=True)
    assert len(result["curve"]) == 5 and result["untrained"] == result["curve"][0]
    assert len(result["student"]) == 5 and result["clusters"] >= 1 and 1 <= result["in_use"] <= 16
    holder = GridResults([0], measure="knn")
    holder.results[cell.name, 0] = result
    assert carp_runs.row(holder, cell)["K"] == 16


# ---- the users' questions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["default", "one-block", "constant"])
def test_runs_from_scratch_vary_the_partition_only(arm):
    plain, other = (resolve(load("carp_small"), ScratchCell(name).settings()) for name in ("default", arm))
    own = other.method.own()
    assert (own["prototypes"], other.sampler.batch_size, own["block_size"]) == (
        4096, 128, 4096 if arm == "one-block" else 256,
    )  # fmt: skip
    assert own["partition"] == ("constant" if arm == "constant" else "random")
    assert other.optimizer == plain.optimizer and other.steps == plain.steps


@pytest.mark.parametrize(("trained", "verdict"), [(14.0, "reproduced"), (8.0, "not testable at this scale")])
def test_partitions_are_judged_on_the_better_network_if_it_learned(trained, verdict, home, monkeypatch):
    def run_scratch(context, cells, seeds):
        results = GridResults(seeds, measure="knn")
        for cell in cells:
            for seed in seeds:
                better = 1.0 if cell.network == "resnet18_cifar" else 0.0
                knn = trained + better + 0.01 * seed - (4.0 if cell.arm != "default" else 0.0)
                figures = {**dict.fromkeys(carp_runs.MEANS, 3.0), "knn": knn, "curve": [3.0, knn, knn]}
                results.results[cell.name, seed] = figures
        return results

    monkeypatch.setattr(carp, "run_scratch", run_scratch)
    claim = KEYS["0-partitions-from-scratch"]
    outcome = claim.judge(ClaimContext(Jobs(home / "jobs")))
    assert outcome.note.endswith("resnet18_cifar") and len(outcome.figures["runs"]) == 3
    gate = claim.gate(outcome.figures)
    assert ("not testable at this scale" if gate else outcome.verdict) == verdict


@pytest.mark.parametrize(
    ("gain", "verdict"), [(3.0, "reproduced"), (-3.0, "contradicted"), (0.0, "no difference found")]
)
def test_pretraining_must_beat_the_start_and_recalibration(gain, verdict, home, monkeypatch):
    def run_cells(context, cells):
        results = GridResults(domain_pretraining.SEEDS, measure="trained")
        for cell in cells:
            for seed in domain_pretraining.SEEDS:
                values = {"start": 40.0, "recalibrated": 40.5, "trained": 40.5 + gain + 0.1 * (seed - 1)}
                more = {f"{name} map@r": 10.0 for name in values}
                results.results[cell.name, seed] = {**values, **more, "images": 100, "curve": [50.0, 54.0, 55.0]}
        return results

    monkeypatch.setattr(domain_pretraining, "run_cells", run_cells)
    for key in ("0-carp-on-own-images", "0-moco-on-own-images"):
        outcome = KEYS[key].judge(ClaimContext(Jobs(home / "jobs")))
        assert outcome.verdict == verdict and len(outcome.figures["runs"]) == 4
        assert KEYS[key].gate(outcome.figures) == []


def test_recalibrated_statistics_are_those_of_the_images(tmp_path):
    from lookalike.data import read_table
    from lookalike.models import Embedder
    from lookalike.training.batchnorm import layers

    model = Embedder.from_pretrained(helpers.ROOT / "tests" / "compat" / "model-1")
    table = read_table(helpers.make_images(tmp_path / "images", classes=2, images=5, width=40, height=40))
    adapted = domain_pretraining.recalibrate(model, table, batch=4)
    before, after = (next(iter(layers(m.backbone))) for m in (model, adapted))
    assert not torch.allclose(before.running_mean, after.running_mean) and int(after.num_batches_tracked) == 3
    assert not adapted.training and torch.equal(before.weight, after.weight)
