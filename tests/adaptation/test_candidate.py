"""What a candidate is prepared with and judged by: statistics, another retriever, nothing learned from; forgetting."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import helpers
from tests.adaptation.conftest import small
from tests.adaptation.test_adapt_command import QUICK, always, ledger, receipts
from torch import nn

import lookalike as la
from lookalike.adaptation import candidate
from lookalike.adaptation.candidate import prepare
from lookalike.adaptation.pool import read_pool
from lookalike.adaptation.settings import AdaptRequest, resolve
from lookalike.adaptation.task import crops, norm_layers
from lookalike.adaptation.versions import Versions
from lookalike.core.errors import LookalikeError
from lookalike.data import audit, read_table
from lookalike.data.table import BOX
from lookalike.models.inference.pipeline import load_crop

FAST = {**QUICK, "lr": 1e-3, "copy_threshold": 2.0}


def table_of(folder: Path) -> la.Table:
    return audit(read_table(folder), near=False).table


@pytest.mark.parametrize("how", ["source", "gallery"])
def test_what_was_learnt_from_in_any_way_does_not_judge(
    how: str, classifier: Path, embedder: Path, target: Path, tmp_path: Path
) -> None:
    known = helpers.make_images(tmp_path / "known", classes=4, images=10, width=40, height=32, seed=5)
    options = {"source": known, "method": "mcc", "model": classifier}
    if how == "gallery":
        options = {"gallery": known, "model": embedder}
    run = la.adapt(target=target, judge=known, settings=QUICK, out=tmp_path / "run", **options)
    assert "no labeled image is left to judge by" in run.result["verdict"]


def test_too_few_clusters_are_refused_before_the_work(embedder: Path, target: Path, tmp_path: Path) -> None:
    for clusters in (-3, 0, 1):
        with pytest.raises(LookalikeError, match="cannot be told apart"):
            la.adapt(model=embedder, target=target, clusters=clusters, out=tmp_path / "run")


def test_what_diverges_is_reported(embedder: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="not finite at step"):
        la.adapt(model=embedder, target=target, settings={**QUICK, "lr": 1e30, "epochs": 6}, out=tmp_path / "run")


def test_the_estimate_counts_how_often_shot_embeds_the_whole_target(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(candidate.time, "perf_counter", lambda: float(next(ticks)))
    table, settings = table_of(target), {**QUICK, "method": "shot", "epochs": None, "steps": 30, "batch_size": 8}
    few, all_of_them = (
        candidate.estimate(small(4), part, read_pool([]), AdaptRequest(resolve(None, settings)))["steps"]
        for part in (table.take(np.arange(20)), table)
    )
    # 240 images forward and backward, and 15 times 14 or 28 images forward, which takes a third of it.
    assert (all_of_them - 30) / (few - 30) == pytest.approx(140 / 70) and all_of_them == pytest.approx(380 / 8)


# ---- statistics --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["keep", "frozen", "target-train"])
def test_the_anchor_has_the_statistics_that_the_candidate_has(mode: str, target: Path) -> None:
    base = small(4).eval()
    request = AdaptRequest(
        settings=resolve(None, {"method": "shot", "batch_size": 16, "num_views": 1, "batch_norm": mode, "epochs": 1})
    )
    made = prepare(base, table_of(target), read_pool([]), request)
    assert made.task is not None and made.task.layer != "pixels"
    learning = {id(norm) for norm in norm_layers(made.task.model, made.task.layer)}
    mine, old = dict(made.task.model.named_modules()), dict(base.named_modules())
    moved = {"below": [], "above": []}
    for name, norm in made.anchor.named_modules():
        if isinstance(norm, nn.BatchNorm2d):
            place = "above" if id(mine[name]) in learning else "below"
            moved[place].append(not torch.equal(norm.running_mean, old[name].running_mean))
            if mode == "frozen" or place == "below":
                assert torch.equal(norm.running_mean, mine[name].running_mean), name
    assert moved["below"] and moved["above"]
    assert set(moved["below"]) == {mode == "frozen"} and set(moved["above"]) == {mode != "keep"}


def test_statistics_are_those_of_the_parts_that_rows_are_about(target: Path) -> None:
    """A box of a row is cut out, as when it is embedded; without boxes the pixels are those of `Embedder.crop`."""
    model, table = small(4).eval(), table_of(target)
    parts = np.array_split(np.arange(len(table)), 3)
    plain = torch.cat(list(crops(model, table, parts)))
    expected = np.stack([model.crop(table.open_bytes(row)) for row in range(len(table))])
    assert np.array_equal(plain.numpy(), expected)
    for name, corner in zip(BOX, (2, 3, 17, 20), strict=True):
        table = table.with_column(name, np.full(len(table), corner))
    cut = torch.cat(list(crops(model, table, parts)))
    expected = np.stack(
        [load_crop(table.open_bytes(row), model.preprocess, table.box(row)) for row in range(len(table))]
    )
    assert np.array_equal(cut.numpy(), expected) and not torch.equal(cut, plain)


# ---- the expert --------------------------------------------------------------------------------------


def test_another_embedder_retrieves(classifier: Path, target: Path, pool: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    expert = la.Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    expert.save_pretrained(tmp_path / "expert")
    run = la.adapt(
        model=classifier, target=target, pool=[pool], retriever=tmp_path / "expert", settings=FAST, out=tmp_path / "run"
    )
    rows = {
        str(id_): row
        for folder in (target, pool)
        for table in [table_of(folder)]
        for id_, row in zip(table.column("content_id"), expert.encode(table, runtime="torch"), strict=True)
    }
    entries = receipts(run, 1)
    assert entries and run.config["retriever"].endswith("expert")
    for entry in entries:
        for served in entry["served"]:
            assert served["score"] == pytest.approx(float(rows[entry["id"]] @ rows[served["target"]]), abs=1e-3)


# ---- forgetting --------------------------------------------------------------------------------------


def two_versions(classifier: Path, target: Path, where: Path) -> tuple[la.Run, list[Path]]:
    """Version 1 with one pool, version 2 with another."""
    pools = [helpers.make_images(where / name, classes=2, images=5, width=40, height=32, seed=7 + n) for n, name in
             enumerate("ab")]  # fmt: skip
    run = la.adapt(model=classifier, target=target, pool=[pools[0]], settings=FAST, out=where / "run")
    la.adapt(model=run.path, target=target, pool=[pools[1]], settings=FAST)
    return run, pools


def test_forgetting_goes_back_to_the_last_model_that_never_saw_them(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True, False, True)
    run, _ = two_versions(classifier, target, tmp_path)
    done = la.forget(model=run.path, images=[receipts(run, 2)[0]["id"]])
    assert done["versions_gone"] == [2] and done["made_again"] == 3 and done["in_use"] == 1
    assert ledger(run)[3]["before"] == 1, "it was compared with the version that stayed"
    assert la.Embedder.from_pretrained(run.path).fingerprint() == ledger(run)[1]["fingerprint"]
    # A kill between the files of a version and the list leaves a folder that the list does not know.
    shutil.copytree(run.path / "versions" / "1", run.path / "versions" / "9")
    done = la.forget(model=run.path, images=[receipts(run, 1)[0]["id"]])
    assert 1 in done["versions_gone"] and not (run.path / "versions" / "9").exists()


def test_a_run_that_is_made_again_later_has_the_pool_it_had(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True, True)
    run, (_, pool) = two_versions(classifier, target, tmp_path)
    listed = run.path / "versions" / "{}" / "pool.json"
    before = set(json.loads(Path(str(listed).format(2)).read_text())["ids"])
    pool.rename(tmp_path / "away")
    gone = receipts(run, 2)[0]["id"]
    with pytest.raises(LookalikeError, match=r"version 1 is in use.*--resume"):
        la.forget(model=run.path, images=[gone])
    (tmp_path / "away").rename(pool)
    helpers.make_images(pool / "added", classes=2, images=3, width=40, height=32, seed=20)
    la.adapt(resume=run.path)
    assert set(json.loads(Path(str(listed).format(3)).read_text())["ids"]) == before - {gone}
    assert Versions(run).current == 3


def test_what_was_left_unfinished_goes_on_unless_it_may_have_used_them(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    always(monkeypatch, True, True, True, True)
    run, _ = two_versions(classifier, target, tmp_path)
    ids = json.loads((run.path / "versions/1/pool.json").read_text())["ids"]
    pending = run.path / "pending.json"
    requested = ledger(run)[1]["request"]
    shutil.copy(run.path / "versions/1/target.parquet", run.path / "pending.parquet")
    pending.write_text(json.dumps({"request": requested, "pool": ids}))
    other = next(helpers.make_images(tmp_path / "other", classes=1, images=1, seed=30).rglob("*.*"))
    la.forget(model=run.path, images=[other])
    assert pending.is_file() and "given up" not in capsys.readouterr().err, "its pool never had it"
    la.forget(model=run.path, images=[ids[0]])
    assert not pending.is_file() and "given up" in capsys.readouterr().err
