"""The benches of adaptation on a small scale: the same answers as the plain algorithm's parts, and counting."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import helpers
from tests.adaptation.conftest import small

from benchmarks.papers import simulated_adaptations
from benchmarks.speed import gate, gate_embedders, gate_rules, gate_simulations, t3ar
from lookalike.adaptation.adapter import Adapter
from lookalike.adaptation.gate import Thresholds
from lookalike.adaptation.gate_retrieval import FindingThresholds
from lookalike.adaptation.network import Network
from lookalike.adaptation.settings import AdaptSettings, resolve
from lookalike.models.heads import make_norm


def test_a_step_is_measured_against_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(t3ar, "BATCH", 8)
    mixed = t3ar.Kind(2, 3)
    figures, bars = t3ar.measure(5, mixed, "small", size=900, rounds=1)
    assert set(figures["milliseconds"]) == {"bare", "ours", "plain"}
    assert [bar.bound for bar in bars] == [t3ar.BARE, t3ar.FASTER]
    bank, batch = t3ar.material(5, mixed, 900)
    assert len(bank) == 900 and int(bank.counts.max()) == 3
    for job in (t3ar.ours, t3ar.plain):
        assert torch.isfinite(job(bank, batch)()).all()


def test_a_pool_is_embedded_and_searched_once(tmp_path: Path) -> None:
    small(None).save_pretrained(tmp_path / "model")
    figures, bars = t3ar.pool_twice(20, str(tmp_path / "model"))
    assert figures["first"]["embedded"] == 20 and figures["first"]["searches"] == 1
    assert [bar.value for bar in bars] == [0, 0] and all(bar.ok for bar in bars)


def test_halves_share_no_shift_and_no_recipe_of_harm() -> None:
    for own in (gate.SIMULATIONS, gate_embedders.SIMULATIONS):
        one, two = own.shifts()
        assert len(one) == len(two) == 6 and not set(one) & set(two)
        assert {a for a, _ in one} == {a for a, _ in two} == set(gate_simulations.DOMAINS)
        assert not set(own.harm[0]) & set(own.harm[1]) and not set(own.seeds[0]) & set(own.seeds[1])
        assert {*own.harm[0], *own.harm[1], *gate_simulations.HELP} - {"bn"} <= set(simulated_adaptations.RECIPES)
        assert not {*own.harm[0], *own.harm[1]} & set(gate_simulations.HELP)
        for half, shifts, harm in zip(own.planned(), (one, two), own.harm, strict=True):
            assert {(row["source"], row["target"]) for row in half} == set(shifts)
            assert {row["recipe"] for row in half} == {*gate_simulations.HELP, *harm}


def row(gain: float, agreement: float, **more: Any) -> dict[str, Any]:
    plain = {"worst_class": 1.0, "information": 0.1, "neighbors": 0.1, "lost": 0.0, "images": 500, "alarm": None}
    plain |= {"asked_by_class": 1.0, "beyond_anchor": 0.1, "anchor_information": 0.1, "anchor_neighbors": 0.1}
    named = {"source": "photo", "target": "sketch", "recipe": "x", "seed": 0}
    return {**plain, **named, "gain": gain, "agreement": agreement, **more}


def test_thresholds_are_chosen_on_one_half_and_judged_on_the_other() -> None:
    good, bad = [row(0.1, a) for a in np.linspace(0.8, 1, 40)], [row(-0.1, a) for a in np.linspace(0.3, 0.76, 40)]
    limits = gate.RULE.choose([*good, *bad])
    assert limits.agreement == 0.8
    sly = [row(-0.1, 0.99), row(0.0, 0.9)]
    figures, bars = gate.RULE.evaluate([*good, *bad], [*good, *bad, *sly])
    found = figures["judged on"]
    assert found["helpful"] == {"count": 40, "promoted": 1.0, "low": pytest.approx(0.9124, abs=1e-3), "high": 1.0}
    assert found["harmful"]["count"] == 41 and found["harmful"]["promoted"] == pytest.approx(1 / 41, abs=1e-4)
    assert [bar.ok for bar in bars] == [True, True, False, False], "60 of each are asked for"
    assert gate.RULE.counted([row(-0.1, 0.99, alarm="sorted")], limits)["harmful"]["promoted"] == 0


def test_the_bench_judges_the_gate_that_is_used() -> None:
    """The same signals, the same answer: also where a candidate is no better than the statistics alone."""
    limits = Thresholds()
    weak = row(0.1, 0.99, beyond_anchor=-0.1)
    assert gate.RULE.counted([{**weak, "neighbors": 0.2}], limits)["helpful"]["promoted"] == 1, (
        "better by the retriever"
    )
    assert gate.RULE.counted([weak], limits)["helpful"]["promoted"] == 0
    assert gate.RULE.counted([{**weak, "recipe": "bn"}], limits)["helpful"]["promoted"] == 1, "it was asked for"
    harmed = {**weak, "anchor_neighbors": limits.neighbors - 0.1, "neighbors": 0.0}
    assert gate.RULE.counted([harmed], limits)["helpful"]["promoted"] == 1, "the statistics alone would not pass"
    for name in ("agreement", "worst_class", "neighbors"):
        under = {**row(0.1, 0.99), name: getattr(limits, name) - 0.01}
        assert gate.RULE.counted([under], limits)["helpful"]["promoted"] == 0, name


def test_recipes_are_what_their_names_say() -> None:
    assert simulated_adaptations.settings_of("rate x 30").lr == pytest.approx(
        30 * simulated_adaptations.settings_of("shot").lr
    )
    assert (
        4 <= simulated_adaptations.settings_of("sorted batches").batch_size <= 8
        and simulated_adaptations.settings_of("sorted batches").stream
    )
    rates = [simulated_adaptations.settings_of("pool of noise", seed).lr for seed in range(5)]
    assert rates[0] == rates[4] and sorted(rates[:4], reverse=True) == rates[:4], "from ruin to what is hard to see"
    for recipe in ("swapped", "merged"):
        assert simulated_adaptations.settings_of(recipe) == simulated_adaptations.settings_of("shot"), (
            "good but for classes"
        )
    assert {simulated_adaptations.settings_of(recipe).batch_norm for recipe in simulated_adaptations.RECIPES} == {
        AdaptSettings().batch_norm
    }
    assert simulated_adaptations.settings_of("t3ar").contrast == AdaptSettings().contrast
    p = np.array([[0.6, 0.3, 0.1], [0.5, 0.1, 0.4]])
    assert simulated_adaptations.CHANGES["swapped"](p, 0).tolist() == p[:, [2, 1, 0]].tolist()
    assert simulated_adaptations.CHANGES["swapped"](p, 1).tolist() == p[:, [0, 2, 1]].tolist()
    assert simulated_adaptations.CHANGES["merged"](p, 2)[:, 2].tolist() == [0.0, 0.0]


def test_the_gate_has_the_thresholds_that_its_bench_chose() -> None:
    stored = Path(__file__).parents[3] / "results" / "bench-gate.json"
    assert json.loads(stored.read_text())["figures"]["chosen"] == Thresholds().model_dump()


def test_the_gate_of_embedders_uses_what_its_bench_chose() -> None:
    stored = Path(__file__).parents[3] / "results" / "bench-gate-embedders.json"
    figures, limits = json.loads(stored.read_text())["figures"], FindingThresholds()
    assert limits.model_dump() == figures["chosen"]
    assert figures["judged on"]["harmful"]["promoted"] <= gate_rules.HARMFUL


def test_a_trade_off_has_only_what_nothing_beats() -> None:
    pairs = [(0.05, 0.6), (0.0, 0.2), (0.0, 0.3), (0.02, 0.3), (0.1, 0.6), (0.2, 0.9)]
    rows = [{"harmful": harmful, "helpful": helpful} for harmful, helpful in pairs]
    assert [tuple(row.values()) for row in gate_rules.undominated(rows)] == [(0.0, 0.3), (0.05, 0.6), (0.2, 0.9)]


def test_each_shift_is_judged_by_the_thresholds_of_the_others() -> None:
    """Two shifts whose harm is seen by agreement alone; a third whose harm only the worst class shows."""
    rows = [
        row(gain, agreement, target=target, worst_class=worst)
        for target, gain, agreement, worst in (
            *[("cartoon", 0.1, 0.9, 0.9), ("cartoon", -0.1, 0.72, 0.9)] * 20,
            *[("photo", 0.1, 0.9, 0.9), ("photo", -0.1, 0.72, 0.9)] * 20,
            *[("sketch", 0.1, 0.9, 0.9), ("sketch", -0.1, 0.9, 0.1)] * 20,
        )
    ]
    found = gate.RULE.without_one(rows)
    assert found["helpful"] == {"promoted": 60, "count": 60}
    assert found["harmful"] == {"promoted": 0, "count": 60}, "among equal thresholds the strictest are taken"
    assert gate.RULE.choose(rows) == Thresholds(agreement=0.9, worst_class=0.9, neighbors=0.03)


def test_the_whole_bench_runs_and_goes_on_after_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four small domains, one seed, two steps each, some of the recipes."""
    for number, name in enumerate(gate_simulations.DOMAINS):
        helpers.make_images(tmp_path / "pacs" / name, classes=3, images=5, width=40, height=32, seed=number)
    helpers.make_images(tmp_path / "pool", classes=2, images=5, width=40, height=32, seed=9)
    small(None).save_pretrained(tmp_path / "model")
    quick = {"layer": "stage1", "steps": 2, "batch_size": 6, "num_views": 1}
    scale = {"model": str(tmp_path / "model"), "size": 32, "head": 8, "source": quick, "adapt": quick}
    monkeypatch.setattr(simulated_adaptations, "SCALE", scale)
    monkeypatch.setattr(gate_simulations, "HELP", ("bn", "tent", "t3ar"))
    few = gate_simulations.Simulations("gate", harm=(("pool of noise",), ("sorted batches",)), seeds=((4,), (5,)))
    monkeypatch.setattr(gate, "SIMULATIONS", few)
    for recipe, over in simulated_adaptations.RECIPES.items():
        monkeypatch.setitem(simulated_adaptations.RECIPES, recipe, {**over, "steps": 2} if "steps" in over else over)
    for made in (
        simulated_adaptations.backbone,
        simulated_adaptations.domain_features,
        simulated_adaptations.pool_features,
        gate_simulations.source_of,
    ):
        made.cache_clear()
    said: list[str] = []
    context: Any = SimpleNamespace(folder=lambda name: tmp_path / name, say=said.append, threads=1)
    figures, bars = gate.run(context)
    for made in (
        simulated_adaptations.backbone,
        simulated_adaptations.domain_features,
        simulated_adaptations.pool_features,
        gate_simulations.source_of,
    ):
        made.cache_clear()
    counted = figures["judged on"]
    assert sum(counted[kind]["count"] for kind in ("harmful", "helpful", "neutral")) == 6 * (3 + 1)
    assert len(figures["shifts"]) == 6 and {name.split(" to ")[0] for name in figures["shifts"]} == set(
        gate_simulations.DOMAINS
    )
    assert {bar.bound for bar in bars} == {gate_rules.HARMFUL, gate_rules.HELPFUL, gate_rules.MIN_COUNT}
    assert any("min left" in line for line in said)
    monkeypatch.setattr(gate, "trial", lambda **_: 1 / 0)
    assert gate.run(context)[0] == figures, "what is finished is not done again"
    next(few._held("x").parent.glob("*.npz")).unlink()
    with pytest.raises(ZeroDivisionError):  # a job without its file is done again
        gate.run(context)


def made_up(
    count: int = 240, far: float = 2.0
) -> tuple[Any, simulated_adaptations.Features, simulated_adaptations.Features, simulated_adaptations.PoolFeatures]:
    """Arrays in place of images: a model, a domain, the same moved by a constant, and a pool."""
    rng = np.random.default_rng(0)
    model = small(3)
    model.norm = make_norm("bn", model.dim)
    centers = far * rng.normal(size=(3, model.feature_dim))

    def domain(name: str, away: float) -> simulated_adaptations.Features:
        labels = rng.integers(0, 3, count)
        rows = (centers[labels] + rng.normal(size=(count, model.feature_dim)) + away * np.sign(centers[0])).astype(
            np.float32
        )
        noisy = (rows + 0.1 * rng.normal(size=(2, *rows.shape))).astype(np.float32)
        return simulated_adaptations.Features([f"{name}{i}" for i in range(count)], noisy, noisy, rows, labels)

    source, target = domain("s", 0.0), domain("t", 1.0)
    learn = resolve(
        None, {"method": "finetune", "steps": 60, "lr": 0.02, "head_lr_factor": 1, "batch_norm": "target-train"}
    )
    Adapter(Network(model.eval(), "pooled"), source.supply(), source.ids, learn, labels=source.labels).run()
    pool = simulated_adaptations.PoolFeatures(
        [f"p{i}" for i in range(30)], rng.normal(size=(30, model.feature_dim)).astype(np.float32)
    )
    return model, source, target, pool


def test_the_bed_harms_and_helps_on_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a constant moved, batch statistics take back."""
    monkeypatch.setattr(simulated_adaptations, "SCALE", {"adapt": {"layer": "pooled", "steps": 20, "batch_size": 64}})
    monkeypatch.setitem(simulated_adaptations.RECIPES, "shot", {"method": "shot", "lr": 1e-3})
    model, _, target, pool = made_up()
    made = {
        r: simulated_adaptations.adapted(model, target, pool, r, 0, simulated_adaptations.settings_of(r))
        for r in simulated_adaptations.RECIPES
    }
    found = {recipe: simulated_adaptations.signals(arrays) for recipe, (arrays, _) in made.items()}
    assert found["bn"]["gain"] > 0.05 and found["bn"]["agreement"] == 1.0
    assert found["t3ar"]["anchor"] == found["t3ar"]["before"] != found["bn"]["anchor"], "the base is its anchor"
    for recipe in ("swapped", "merged"):
        assert found[recipe]["gain"] < found["shot"]["gain"] - 0.1 and found[recipe]["worst_class"] == 0
    assert made["sorted batches"][1] and made["t3ar"][1] is None
    for recipe, values in found.items():
        assert np.isfinite(list(values.values())).all(), recipe


def test_the_bed_of_embedders_is_judged_by_what_they_find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simulated_adaptations, "SCALE", {"adapt": {"layer": "pooled", "steps": 20, "batch_size": 64}})
    monkeypatch.setattr(simulated_adaptations, "LAYER", "pooled")
    monkeypatch.setattr(simulated_adaptations, "CLUSTERS", 3)
    monkeypatch.setattr(gate_simulations.Simulations, "_held", lambda self, name: tmp_path / name)
    model, source, target, pool = made_up(400, far=0.15)
    monkeypatch.setattr(simulated_adaptations, "pool_features", lambda data: pool)
    for seed in (1, 2):  # classes of a gallery, and of clusters
        start = simulated_adaptations.EmbedderStart(model, source, target, seed)
        monkeypatch.setattr(gate_embedders, "_start", lambda *given, start=start: start)
        found = {}
        for recipe in ("bn", "shot", "rate x 30", "sorted batches"):
            settings = simulated_adaptations.settings_of(recipe, seed).model_dump(mode="json")
            job = {"source": "s", "target": "t", "recipe": recipe, "seed": seed}
            found[recipe] = gate_embedders.measured(gate_embedders.trial(data="", scale={}, settings=settings, **job))
        assert model.classifier is not None, "the classifier is taken off a copy"
        assert {row["naming"] for row in found.values()} == {["clusters", "gallery"][seed % 2]}
        assert found["bn"]["gain"] > 0.05, "what a constant moved, batch statistics take back"
        assert found["rate x 30"]["overlap"] < found["shot"]["overlap"] < 1, "the higher rate learns more"
    judge, rows = gate_embedders.RULE, list(found.values())
    lax = judge.counted(rows, FindingThresholds(overlap=0, names=-1, stable=-1, images=100))
    strict = judge.counted(rows, FindingThresholds(overlap=1, images=100))
    assert lax["helpful"]["count"] == strict["helpful"]["count"] > 0
    assert (lax["helpful"]["promoted"], strict["helpful"]["promoted"]) == (1.0, 0.0)
    before = {"recall": 0.8, "map": 0.5}
    gains = [
        gate_embedders.gain(before, {"recall": 0.8 + r, "map": 0.5 + m}) for r, m in ((0.1, -0.01), (0.01, -0.001))
    ]
    assert gains == pytest.approx([-0.01, 0.01]), "a fall counts, however much the other rose"


def test_embedders_are_judged_two_steps_stricter_than_their_first_half_asks_for() -> None:
    def found(gain: float, names: float) -> dict[str, Any]:
        return {
            "gain": gain,
            "images": 500,
            "overlap": 0.9,
            "names": names,
            "stable": 0.05,
            "alarm": None,
            "recipe": "x",
        }

    rows = [found(0.1, 0.03)] * 5 + [found(0.1, 0.004)] * 5 + [found(-0.1, -0.003)] * 5
    chosen = gate_embedders.RULE.choose(rows)
    assert chosen.names == 0.01, "0 parts them, and it is two steps stricter"
    assert gate_embedders.RULE.counted(rows, chosen)["helpful"]["promoted"] == 0.5
    shifts = [("art", "photo"), ("photo", "art"), ("photo", "sketch")]
    alike = [{**r, "source": a, "target": b, "seed": 1} for r, (a, b) in zip(rows, [*shifts] * 5, strict=True)]
    apart = [{**r, "source": r["names"], "target": "t", "seed": 1} for r in rows]
    widths = [
        found["high"] - found["low"]
        for found in (gate_embedders.RULE.by_start(each, chosen)["helpful"] for each in (alike, apart))
    ]
    assert widths[1] == 1 > widths[0] > 0, "runs of one start that do alike say little more than one of them"
