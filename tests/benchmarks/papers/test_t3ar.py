"""T3AR's claims: the rules of the verdicts on made-up results, and one small run of each kind."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests import helpers

from benchmarks.papers import Missing, t3ar, t3ar_measure, t3ar_protocols, t3ar_runs, tables
from benchmarks.papers.grid import GridResults
from lookalike import training
from lookalike.core.errors import LookalikeError

CONTEXT: Any = SimpleNamespace(scale="small", finished=False, folder=lambda name: Path(name))


def stub(monkeypatch: pytest.MonkeyPatch, accuracy: Any) -> None:
    """Made-up results: `accuracy(cell, seed)`."""

    def stand_in(context: Any, cells: list[t3ar_runs.Cell], seeds: tuple[int, ...]) -> GridResults:
        result = GridResults(seeds, measure="accuracy")
        for cell in cells:
            for seed in seeds:
                value = accuracy(cell, seed)
                if value is not None:
                    result.results[cell.name, seed] = {"accuracy": value + 0.1 * np.sin(seed), "recall": value}
        return result

    monkeypatch.setattr(t3ar, "run_cells", stand_in)


def is_t3ar(cell: t3ar_runs.Cell) -> bool:
    return cell.pool != "none"


def test_retrieval_must_help_on_every_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, lambda cell, seed: 50 + 3.0 * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.retrieval_helps(CONTEXT).verdict == "reproduced"
    stub(monkeypatch, lambda cell, seed: 50 + (3.0 if cell.target != "sketch" else -3.0) * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.retrieval_helps(CONTEXT).verdict == "contradicted"
    stub(monkeypatch, lambda cell, seed: None if cell.target == "sketch" else 50.0)
    with pytest.raises(Missing):
        t3ar.retrieval_helps(CONTEXT)


def test_the_users_questions_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(cell: t3ar_runs.Cell, seed: int) -> float:
        return {"source": 40.0, "shot": 50.0, "bn": 39.0}.get(cell.over.get("method", ""), 44.0) + 0.01 * seed

    stub(monkeypatch, by)
    assert [claim.key for claim in t3ar.CLAIMS[:2]] == ["1-better-than-source", "2-better-than-shot"]
    assert t3ar.better_than_source(CONTEXT).verdict == "reproduced"
    result = t3ar.better_than_shot(CONTEXT)
    assert result.verdict == "contradicted" and "T3AR − SHOT -6.00" in result.note


def test_banks_are_compared_by_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(cell: t3ar_runs.Cell, seed: int) -> float:
        return 50.0 - 8.0 * (cell.over.get("contrast", {}).get("keys") == "bank") + 0.1 * len(cell.target)

    stub(monkeypatch, by)
    result = t3ar.fresh_keys(CONTEXT)
    assert result.verdict == "reproduced" and set(result.figures["gains"]) == set(t3ar.BANKS)
    assert "bank before the batch -8.0 / -8.0 / -8.0" in result.note


def test_the_gain_must_shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, lambda cell, seed: 50 + (4.0 if cell.fraction == 0.01 else 0.5) * is_t3ar(cell) + 0.01 * seed)
    result = t3ar.gain_shrinks(CONTEXT)
    assert result.verdict == "reproduced"
    assert [row["fraction"] for row in result.figures["curve"]][::3] == [0.01, 0.1, 1.0]
    stub(monkeypatch, lambda cell, seed: 50 + (0.5 if cell.fraction == 0.01 else 4.0) * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.gain_shrinks(CONTEXT).verdict == "contradicted"
    stub(monkeypatch, lambda cell, seed: 50 + (0.5 if cell.fraction == 1.0 else 4.0) * is_t3ar(cell) + 0.01 * seed)
    assert t3ar.gain_shrinks(CONTEXT).verdict == "no difference found", "as large at 10 %: not largest at 1 %"

    def ahead(cell: t3ar_runs.Cell, seed: int) -> float:
        gain = (4.0 if cell.fraction == 0.01 else 0.5) * is_t3ar(cell)
        return 50 + gain + 9.0 * (cell.over.get("method") == "adacontrast") + 0.01 * seed

    stub(monkeypatch, ahead)
    assert t3ar.gain_shrinks(CONTEXT).verdict == "contradicted", "who was never behind cannot catch up"


def test_one_shift_of_several_below_zero_must_be_so_beyond_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that would contradict alone, but not as the worst of three."""
    off = {1: -0.7, 2: -1.3, 3: -1.0}

    def by(cell: t3ar_runs.Cell, seed: int) -> float:
        return 50 + (off[seed] if cell.target == "sketch" else 3.0) * is_t3ar(cell)

    stub(monkeypatch, by)
    result = t3ar.retrieval_helps(CONTEXT)
    assert result.figures["differences"]["with"]["photo to sketch"]["high"] < 0
    assert result.verdict == "no difference found"


def test_what_never_rises_does_not_saturate(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, lambda cell, seed: 50.0 - 5.0 * (cell.over.get("retrieval") == "random"))
    assert t3ar.nearest_beats_random(CONTEXT).verdict == "no difference found"


def test_the_shortcut_is_checked_against_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def gains(whole: float) -> Any:
        return lambda cell, seed: 50 + (whole if "layer" in cell.over else 3.0) * is_t3ar(cell) + 0.01 * seed

    for whole, verdict in ((2.0, "reproduced"), (-2.0, "contradicted"), (0.0, "not testable at this scale")):
        stub(monkeypatch, gains(whole))
        assert t3ar.shortcut(CONTEXT).verdict == verdict


def test_the_other_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def by(cell: t3ar_runs.Cell, seed: int) -> float:
        method = cell.over.get("method", "t3ar")
        value = {"source": 40.0, "bn": 41.0, "tent": 45.0, "shot": 55.0, "adacontrast": 60.0}.get(method, 50.0)
        value += 2.0 * (cell.retriever == "efficientnet_lite2") + 3.0 * (cell.pool == "without")
        value += 2.0 * (cell.set == "cub" and is_t3ar(cell))
        value -= 5.0 * (cell.over.get("retrieval") == "random") + 4.0 * (cell.source == "pretrained")
        return value + 0.01 * seed

    stub(monkeypatch, by)
    for claim in (t3ar.stronger_retriever, t3ar.order_of_methods, t3ar.pool_with_classes, t3ar.nearest_beats_random):
        assert claim(CONTEXT).verdict == "reproduced", claim.__name__
    assert t3ar.beats_pretraining(CONTEXT).figures["difference"]["mean"] == pytest.approx(4.0)


def test_subsets_have_every_class() -> None:
    labels = np.repeat([0, 1, 2], [200, 50, 3])
    rows = t3ar_measure.stratified(labels, 0.01, 0)
    assert np.bincount(labels[rows]).tolist() == [2, 1, 1]
    assert (rows != t3ar_measure.stratified(labels, 0.01, 1)).any()
    assert len(t3ar_measure.stratified(labels, 1.0, 0)) == 253


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for number, name in enumerate(("photo", "sketch", "cartoon", "art_painting")):
        helpers.make_images(tmp_path / "pacs" / name, classes=3, images=6, width=40, height=32, seed=number)
    folder = helpers.make_images(tmp_path / "pool", classes=2, images=4, width=40, height=32, seed=9)
    rows = [f"class-{c:02d}/{n}.jpg,x,y,{'dog' if c else ''}" for c in range(2) for n in range(4)]
    (folder / "pool.csv").write_text("\n".join(["path,source,source_label,pacs_class", *rows]) + "\n")
    return tmp_path


@pytest.fixture
def scale(tmp_path: Path) -> dict[str, Any]:
    import torch

    from lookalike.models import Embedder

    torch.manual_seed(0)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    model.save_pretrained(tmp_path / "model")
    # A network of random weights sees everything alike; nothing shall pass for a copy.
    quick = {"layer": "stage1", "batch_size": 6, "steps": 3, "num_views": 1, "copy_threshold": 2.0}
    return {
        "model": str(tmp_path / "model"),
        "size": 32,
        "head": 8,
        "source": quick,
        "adapt": {**quick, "bank": {"size": 64}},
    }


def test_a_run_of_each_kind(data: Path, scale: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    Cell = t3ar_runs.Cell
    cells = {
        "t3ar": Cell("photo", "sketch", retriever="own"),
        "again": Cell("photo", "sketch", retriever="own"),
        "expert": Cell("photo", "sketch", retriever=scale["model"]),
        "without": Cell("photo", "sketch", pool="without", retriever="own"),
        "styles": Cell("photo", "sketch", pool="styles", retriever="own"),
        "source": Cell("photo", "sketch", 0.5, over={"method": "source"}, pool="none", retriever="own"),
        "from the pixels": Cell("photo", "sketch", over={"layer": "pixels"}, retriever="own"),
    }
    result = {name: t3ar_runs.trial(data=str(data), **cell.arguments(0, scale)) for name, cell in cells.items()}
    assert result["t3ar"] == result["again"] and result["t3ar"]["used"] > result["without"]["used"] > 0
    assert result["source"]["images"] == 9 and result["source"]["unseen"] is not None
    assert result["styles"]["used"] > 0, "of art and cartoons"
    assert result["expert"]["used"] > 0 and len(result["t3ar"]["by_class"]) == 3

    sides = {
        "train": t3ar_runs.domain(str(data), "pacs", "photo"),
        "test": t3ar_runs.domain(str(data), "pacs", "sketch"),
    }
    monkeypatch.setattr(t3ar_runs, "domain", lambda data, name, part: sides[part])
    cell = Cell("imagenet", "cub", over={"method": "t3ar", "num_neighbors": 1}, pool="pool", retriever="own", set="cub")
    assert t3ar_runs.trial(data=str(data), **cell.arguments(0, scale))["used"] > 0


def test_pretraining_on_the_pool_gives_another_backbone(
    data: Path, scale: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without labels nothing decides for what was learned; the claim is about what was."""
    usual, at_once = (
        training.pretrain,
        {"schedule": {"freeze_backbone_steps": 0, "warmup_steps": 0}, "optimizer": {"lr": 0.1}},
    )
    monkeypatch.setattr(
        training, "pretrain", lambda **options: usual(**{**options, "settings": options["settings"] | at_once})
    )
    start = t3ar_runs.expert_of(scale["model"], scale)
    learned = t3ar_runs._pretrained(scale, t3ar_runs.pool_of(str(data), "all"), 2, 0)
    before, after = dict(start.named_parameters()), dict(learned.named_parameters())
    assert any((after[name] != value).any() for name, value in before.items() if name in after)


def test_an_embedder_must_gain_over_the_one_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def gain(size: float) -> Any:
        return lambda cell, seed: 20.0 if cell.embedder == "frozen" else 20.0 + size

    for size, verdict in ((2.0, "reproduced"), (-2.0, "contradicted"), (0.0, "no difference found")):
        stub(monkeypatch, gain(size))
        assert t3ar.pure_embedder(CONTEXT).verdict == verdict


def test_what_runs_share_is_made_before_them_and_a_stopped_series_goes_on(
    data: Path, scale: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.papers import ClaimContext
    from lookalike.core.engine import Jobs

    monkeypatch.setattr(t3ar_runs, "SMALL", scale)
    context = ClaimContext(Jobs(tmp_path / "jobs"), data=data)
    context.workers = 1
    messages: list[str] = []
    context.say = messages.append
    cells = [t3ar_runs.Cell("photo", "sketch", retriever="own")]
    cells.append(t3ar_runs.Cell("photo", "sketch", over={"method": "bn"}, pool="none", retriever="own"))
    first = t3ar_runs.run_cells(context, cells[:1], (0,))
    assert messages[0].startswith("1 cell to run, each up to 20 minutes")
    assert messages[1].startswith("1 run to do; preparing what they share")
    assert [line.split(":")[0].strip() for line in messages[2:-1]] == [
        "views pacs photo",
        "views pacs sketch",
        "pool all",
        "source pacs photo 0",
    ]
    assert messages[-1].endswith("about 0 min left")
    messages.clear()
    both = t3ar_runs.run_cells(context, cells, (0,))
    assert messages[0].startswith("1 cell to run"), "the other was finished"
    assert both.values(cells[0], "accuracy") == first.values(cells[0], "accuracy")
    context.finished = True
    some = t3ar_runs.run_cells(context, cells, (0, 1))
    assert some.seeds == [0] and some.so_far.startswith("1 of 2 seeds"), "the other seed was never run"


def test_claims_are_judged_only_where_the_run_can_test_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate: a source model that has learned, and arms above it where the paper's are."""

    def outcome(key: str, **accuracy: float) -> list[str]:
        stub(monkeypatch, lambda cell, seed: accuracy.get(cell.over.get("method", "t3ar"), 44.0) + 0.01 * seed)
        claim = next(claim for claim in t3ar.CLAIMS if claim.key == key)
        return claim.gate(claim.judge(CONTEXT).figures)

    assert all(claim.gate.__name__ in ("adapts", "fine_tuned", "moves") for claim in t3ar.CLAIMS)
    assert outcome("1-better-than-source", source=40.0) == outcome("1-better-than-source", source=60.0) == []
    assert "names 15.0 % of the target" in outcome("1-better-than-source", source=15.0)[0]
    assert outcome("2-better-than-shot", source=40.0, shot=50.0) == []
    assert "SHOT -5.0 points" in outcome("2-better-than-shot", source=40.0, shot=35.0)[0]
    for key in ("4-retrieval-helps", "8-most-with-few", "9-stronger-retriever", "11-classes-in-the-pool"):
        assert outcome(key, source=40.0) == [] and "does not here" in outcome(key, source=50.0)[0], key
    assert outcome("10-beats-pretraining", finetune=30.0) == []
    assert "fine-tuning reaches 3.1 %" in outcome("10-beats-pretraining", finetune=3.0)[0]
    assert "run it again" in t3ar.adapts({})[0]
    for frozen, adapted, why in ((5.0, 20.0, "MAP@R 5.0 %"), (20.0, 20.1, "more than 0.10"), (20.0, 18.0, "")):
        reasons = t3ar.moves({"means": {"frozen": {"map@r": frozen}, "clusters": {"map@r": adapted}}})
        assert bool(reasons) == bool(why) and why in "".join(reasons)
    assert t3ar.moves({}) == ["no run was stored with the verdict"]


def test_pretraining_that_costs_accuracy_is_no_rival(monkeypatch: pytest.MonkeyPatch) -> None:
    stub(monkeypatch, lambda cell, seed: 40.0 - 6.0 * (cell.source == "pretrained") + 2.0 * is_t3ar(cell) + 0.01 * seed)
    assert "costs 4.0 points" in t3ar.fine_tuned(t3ar.beats_pretraining(CONTEXT).figures)[0]


def test_small_cells_stay_on_the_processor_and_the_papers_scale_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.models import Embedder

    used: list[Any] = []
    monkeypatch.setattr(Embedder, "from_pretrained", lambda name, size, device: used.append(device))
    for scale in (t3ar_protocols.SMALL, t3ar_runs.TRAIN, t3ar_protocols.PAPER, t3ar_runs.PAPER_TRAIN):
        t3ar_runs.expert_of("efficientnet_lite0", scale)
    assert used == ["cpu", "cpu", "auto", "auto"]


def test_the_smoke_test_passes_its_device_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def adapt(**options: Any) -> None:
        raise LookalikeError(f"on {options['device']}")

    monkeypatch.setattr("lookalike.adaptation.adapt", adapt)
    with pytest.raises(LookalikeError, match="on cuda:1"):
        tables.smoke("t3ar", tmp_path / "images", device="cuda:1")
