"""`adapt`, `promote`, `rollback` and `forget` on generated images."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import helpers, kills
from tests.adaptation.conftest import small
from tests.training.test_processes import run_on_two_nodes

import lookalike as la
from lookalike.adaptation import adapt_command, candidate, gate
from lookalike.adaptation.settings import AdaptRequest, default_method, resolve
from lookalike.adaptation.task import crops, mixed_parts, recalibrated
from lookalike.adaptation.versions import Pending, Versions
from lookalike.cli import app
from lookalike.core import folders
from lookalike.core.engine import Outcome
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.interrupts import Stopped, Terminated
from lookalike.core.run import Run
from lookalike.core.settings import flatten
from lookalike.data import content_id
from lookalike.models.fingerprint import tensor_bytes
from lookalike.training import Plan, loop

QUICK = {"method": "t3ar", "batch_size": 8, "epochs": 2, "num_views": 1, "layer": "pooled", "bank": {"size": 64}}


def ledger(run: Any) -> list[dict[str, Any]]:
    return Versions(run).rows


def always(monkeypatch: pytest.MonkeyPatch, *answers: bool) -> None:
    """The gate's answers, one after the other."""
    left = list(answers)
    monkeypatch.setattr(gate, "without_labels", lambda *_, **__: gate.Decision(left.pop(0), ["as told"], "a test"))


def receipts(run: Any, number: int) -> list[dict[str, Any]]:
    return json.loads((run.path / "versions" / str(number) / "receipts.json").read_text())


def test_adapt_keeps_receipts_and_a_model_that_loads(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True)
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "run")
    counts = run.result["counts"]
    assert counts["target"] == 40 == counts["learned_from"] + counts["held_out"]
    entries = receipts(run, 1)
    assert len(entries) == counts["used"] > 0
    assert sum(len(entry["served"]) for entry in entries) == 2 * counts["learned_from"]
    assert all(entry["path"].startswith("outside/") for entry in entries)
    assert max(entry["steps_loaded"] for entry in entries) >= 2
    assert {rank["rank"] for entry in entries for rank in entry["served"]} == {1, 2}
    adapted = la.Embedder.from_pretrained(run.path)
    assert adapted.classifier is not None and adapted.fingerprint() == ledger(run)[1]["fingerprint"]
    assert adapted.fingerprint() != la.Embedder.from_pretrained(classifier).fingerprint()
    assert la.report(run=run).stat().st_size > 1000


def test_the_gate_keeps_the_old_model_and_says_why(classifier: Path, target: Path, tmp_path: Path) -> None:
    run = la.adapt(model=classifier, target=target, settings={**QUICK, "lr": 0.5}, out=tmp_path / "run")
    assert not run.result["promoted"]
    assert (
        run.result["verdict"].startswith("Kept the old model: ")
        and "held-out images are too few" in run.result["verdict"]
    )
    assert la.Embedder.from_pretrained(run.path).fingerprint() == la.Embedder.from_pretrained(classifier).fingerprint()
    with pytest.raises(LookalikeError, match="already uses its base model"):
        la.rollback(model=run.path)
    with pytest.raises(LookalikeError, match="lookalike promote"):
        la.rollback(model=run.path, to=1)


def test_the_best_method_measured_runs_by_default(
    classifier: Path, embedder: Path, target: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = {name: value for name, value in QUICK.items() if name != "method"}
    for model, kind in ((classifier, "classifier"), (embedder, "clusters")):
        run = la.adapt(model=model, target=target, pool=[pool], settings=quick, out=tmp_path / kind)
        method, why = default_method(kind)
        assert (run.result["method"], run.result["why"]) == (method, why)
        stderr = capsys.readouterr().err
        assert f"Method: {method} ({why})." in stderr
        assert "This will take about" in stderr
        assert "Kept the old model" not in stderr, "the verdict is the result; the command prints it once"
        assert (
            "cannot be promoted without labels" in stderr and "are held out to judge by, and 100 are needed" in stderr
        )
        assert stderr.index("cannot be promoted") < stderr.index("This will take"), "before any work"
        uses_pool = "retrieves nothing: the pool is not used" not in stderr
        assert uses_pool == (method == "t3ar") == bool(run.result["counts"]["used"])


def test_a_rejected_candidate_is_stored_and_can_be_promoted(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = la.adapt(model=classifier, target=target, settings=QUICK, out=tmp_path / "run")
    rows = ledger(run)
    assert [row["status"] for row in rows] == ["base", "rejected"]
    candidate = la.Embedder.from_pretrained(run.path / "versions" / "1" / "model")
    assert candidate.fingerprint() == rows[1]["fingerprint"] != rows[0]["fingerprint"]
    many = helpers.make_images(tmp_path / "judge", classes=4, images=10, width=40, height=32, seed=3)
    judged = la.promote(model=run.path, judge=many)
    assert not judged["promoted"] and "not surely better" in judged["verdict"]
    assert ledger(run)[1]["decision"]["evidence"] == "labels" and Versions(run).current == 0
    assert la.promote(model=run.path, version=1)["promoted"]
    assert la.Embedder.from_pretrained(run.path).fingerprint() == rows[1]["fingerprint"]
    with pytest.raises(LookalikeError, match="no rejected version"):
        la.promote(model=run.path)
    with pytest.raises(LookalikeError, match="was not rejected"):
        la.promote(model=run.path, version=1)
    assert la.rollback(model=run.path)["to"] == 0


def test_the_report_shows_old_and_new_results_side_by_side(classifier: Path, target: Path, tmp_path: Path) -> None:
    run = la.adapt(model=classifier, target=target, settings={**QUICK, "lr": 0.1}, out=tmp_path / "run")
    (block,) = run.read_sections()["adapt-results"]["blocks"]
    assert len(block["rows"]) == 8
    for row in block["rows"]:
        assert [each["name"].split(":")[0] for each in row["lists"]] == ["old", "new"]
        assert all("class-" in each["name"] and len(each["hits"]) == 5 for each in row["lists"])


def test_a_stream_of_tiny_batches_of_one_class_ends_with_the_old_model(
    classifier: Path, target: Path, pool: Path, tmp_path: Path
) -> None:
    verdicts = {}
    for batch in (4, 8):
        settings = {**QUICK, "batch_size": batch, "lr": 0.5}
        run = la.adapt(
            model=classifier, target=target, pool=[pool], stream=True, settings=settings, out=tmp_path / f"{batch}"
        )
        assert not run.result["promoted"]
        verdicts[batch] = run.result["verdict"]
        assert run.result["counts"]["steps"] == -(-(run.result["counts"]["learned_from"] - 1) // batch), "each once"
    assert "batches of 4 are too small" in verdicts[4]


def test_versions_start_from_the_base_and_can_be_gone_back_to(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True)
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "run")
    la.adapt(model=run.path, target=target, pool=[pool], settings=QUICK)
    rows = ledger(run)
    assert [row["status"] for row in rows] == ["base", "promoted", "promoted"]
    assert rows[1]["weights"] == rows[2]["weights"], "the same again, since it starts from the base"
    assert la.rollback(model=run.path)["to"] == 1
    assert la.rollback(model=run.path)["to"] == 0
    assert la.Embedder.from_pretrained(run.path).fingerprint() == rows[0]["fingerprint"]
    assert la.rollback(model=run.path, to=2)["to"] == 2
    with pytest.raises(LookalikeError, match="no version 9"):
        la.rollback(model=run.path, to=9)
    with pytest.raises(LookalikeError, match="not an adapted model"):
        la.rollback(model=classifier)


@pytest.mark.parametrize("where", ["still in the folder", "deleted"])
def test_forgotten_images_leave_the_bits_of_a_run_that_never_had_them(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    always(monkeypatch, True, True, True, True)
    fast = {**QUICK, "lr": 1e-3}  # four gentle steps round one image away
    own, less = shutil.copytree(pool, tmp_path / "a" / "outside"), shutil.copytree(pool, tmp_path / "b" / "outside")
    run = la.adapt(model=classifier, target=target, pool=[own], settings=fast, out=tmp_path / "run")
    used = max(receipts(run, 1), key=lambda entry: len(entry["served"]))
    path = used["path"].removeprefix("outside/")
    la.report(run=run)
    if where == "deleted":
        (own / path).unlink()
    done = la.forget(model=run.path, images=[used["path"]])
    assert done["versions_gone"] == [1] and done["made_again"] == 2 == done["in_use"]
    (less / path).unlink()
    never = la.adapt(model=classifier, target=target, pool=[less], settings=fast, out=tmp_path / "never")
    mine, theirs = _tensors(run.path / "model"), _tensors(never.path / "model")
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    assert ledger(run)[2]["weights"] == ledger(never)[1]["weights"] != ledger(run)[1]["weights"]
    assert used["id"] not in {entry["id"] for entry in receipts(run, 2)}
    with pytest.raises(LookalikeError, match="gone for good"):
        la.rollback(model=run.path, to=1)
    assert not (run.path / "versions" / "1").exists()
    left = [p.name for p in run.path.rglob("*.*") if p.suffix in (".json", ".html") and path in p.read_text()]
    assert left == []
    la.adapt(model=run.path, target=target, pool=[pool], settings=fast)
    assert used["id"] not in {entry["id"] for entry in receipts(run, 3)}, "it stays out"


def test_a_pattern_means_images_nobody_used_too(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next version would use them, since the ones before are gone."""
    always(monkeypatch, True, True, True)
    fast = {**QUICK, "lr": 1e-3, "num_neighbors": 1}
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=fast, out=tmp_path / "run")
    kinds = {kind.name: {content_id(file) for file in kind.iterdir()} for kind in sorted(pool.iterdir())}
    used = {entry["id"] for entry in receipts(run, 1)}
    gone = next(name for name, ids in kinds.items() if ids & used and ids - used)
    done = la.forget(model=run.path, images=[f"outside/{gone}/*"])
    assert set(done["forgotten"]) == kinds[gone]
    assert not {entry["id"] for entry in receipts(run, 2)} & kinds[gone]
    less = shutil.copytree(pool, tmp_path / "outside", ignore=shutil.ignore_patterns(gone))
    never = la.adapt(model=classifier, target=target, pool=[less], settings=fast, out=tmp_path / "never")
    assert ledger(run)[2]["weights"] == ledger(never)[1]["weights"] != ledger(run)[1]["weights"]
    assert gone not in (run.path / "versions" / "2" / "pool.json").read_text()


def test_lists_say_who_may_serve_and_a_mistyped_one_is_refused(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kinds = sorted(kind.name for kind in pool.iterdir())
    one = content_id(min((pool / kinds[0]).iterdir()))
    run = la.adapt(
        model=classifier,
        target=target,
        pool=[pool],
        allow=[f"outside/{kinds[0]}/*", f"outside/{kinds[1]}/*"],
        deny=[one, f"outside/{kinds[1]}/*"],
        settings=QUICK,
        out=tmp_path / "run",
    )
    allowed = {content_id(file) for file in (pool / kinds[0]).iterdir()} - {one}
    assert {entry["id"] for entry in receipts(run, 1)} == allowed
    assert "Of the pool, left out: 5 not allowed, 6 denied." in capsys.readouterr().err
    for lists in ({"deny": ["outsid/*"]}, {"allow": ["outside/*", "0123"]}):
        with pytest.raises(LookalikeError, match=r"No pool image is meant by `(outsid/\*|0123)`.*such as `outside/"):
            la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "never", **lists)
    assert not (tmp_path / "never").exists()


def test_the_source_is_the_model_as_it_is(classifier: Path, target: Path, tmp_path: Path) -> None:
    run = la.adapt(model=classifier, target=target, method="source", settings=QUICK, out=tmp_path / "run")
    rows = ledger(run)
    base = la.Embedder.from_pretrained(classifier)
    assert rows[1]["weights"] == hash_bytes(*(tensor_bytes(value) for value in base.state_dict().values()))
    assert not run.result["promoted"]


def test_a_forgetting_that_is_killed_leaves_nothing_to_go_back_to(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True)
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "run")
    used = receipts(run, 1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(adapt_command, "purge", lambda ids: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            la.forget(model=run.path, images=[used["path"]])
    patched = Versions._mend
    with monkeypatch.context() as patch:
        calls: list[int] = []
        patch.setattr(Versions, "_mend", lambda self: 1 / 0 if calls else calls.append(1) or patched(self))
        with pytest.raises(ZeroDivisionError):
            la.forget(model=run.path, images=[used["path"]])  # the same words again are understood
    assert (run.path / "versions" / "1").exists(), "struck before the folder went"
    with pytest.raises(LookalikeError, match="gone for good"):
        la.rollback(model=run.path, to=1)
    assert not (run.path / "versions" / "1").exists()
    base = la.Embedder.from_pretrained(classifier).fingerprint()
    assert la.Embedder.from_pretrained(run.path).fingerprint() == base
    again = la.adapt(resume=run.path)
    assert used["id"] not in {entry["id"] for entry in receipts(again, 2)} and again.result["in_use"] == 2


def test_a_pool_that_moved_can_be_forgotten_from_and_the_rest_made_up_for(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True)
    own = shutil.copytree(pool, tmp_path / "outside")
    run = la.adapt(model=classifier, target=target, pool=[own], settings=QUICK, out=tmp_path / "run")
    used = receipts(run, 1)[0]
    own.rename(tmp_path / "elsewhere")
    with pytest.raises(LookalikeError, match=r"are forgotten and the base model is in use.*--resume"):
        la.forget(model=run.path, images=[used["id"]])
    assert ledger(run)[1]["status"] == "forgotten"
    (tmp_path / "elsewhere").rename(own)
    la.adapt(resume=run.path)
    assert ledger(run)[2]["status"] == "promoted" and used["id"] not in {entry["id"] for entry in receipts(run, 2)}


def test_a_pool_of_which_everything_is_forgotten_is_no_pool(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True, True)
    own = shutil.copytree(pool, tmp_path / "outside")
    run = la.adapt(model=classifier, target=target, pool=[own], settings=QUICK, out=tmp_path / "run")
    for file in own.rglob("*.jpg"):
        file.unlink()
    la.forget(model=run.path, images=["outside/*"])
    none = la.adapt(model=classifier, target=target, settings=QUICK, out=tmp_path / "none")
    assert ledger(run)[2]["weights"] == ledger(none)[1]["weights"] and receipts(run, 2) == []


def test_a_pool_that_contains_the_target(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are not used for their own image, and what is kept aside to judge by is not learned from."""
    always(monkeypatch, True)
    settings = {**QUICK, "copy_threshold": 2.0, "num_neighbors": 3}  # a network of random weights sees everything alike
    run = la.adapt(model=classifier, target=target, pool=[pool, target], settings=settings, out=tmp_path / "run")
    ids = {content_id(file) for file in target.rglob("*.jpg")}
    served = {entry["id"]: {s["target"] for s in entry["served"]} for entry in receipts(run, 1)}
    assert set(served) & ids, "images of the target serve others"
    assert all(id_ not in whom for id_, whom in served.items())
    learned = {whom for all_ in served.values() for whom in all_}
    assert set(served) & ids <= learned and len(learned) == run.result["counts"]["learned_from"]
    assert run.result["counts"]["copies_of_target"] == len(learned)


def test_images_that_were_learnt_from_do_not_judge(classifier: Path, target: Path, tmp_path: Path) -> None:
    run = la.adapt(model=classifier, target=target, judge=target, settings=QUICK, out=tmp_path / "run")
    counts = run.result["counts"]
    assert f"{counts['held_out']} labeled held-out images are too few" in run.result["verdict"]
    with pytest.raises(LookalikeError, match="does not exist"):
        la.adapt(model=classifier, target=target, judge=tmp_path / "nowhere", settings=QUICK, out=tmp_path / "never")
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("method", ["t3ar", "tent", "shot", "adacontrast", "bn"])
def test_a_stream_of_one_class_after_the_other_is_refused_with_the_reason(
    method: str, tmp_path: Path, many: tuple[Path, Path]
) -> None:
    """With images enough to judge by, so that the stream itself is what is said."""
    model, target = many
    settings = {**QUICK, "batch_size": 16, "layer": "stage1"}
    run = la.adapt(model=model, target=target, method=method, stream=True, settings=settings, out=tmp_path / "run")
    assert not run.result["promoted"] and run.result["counts"]["held_out"] >= 100
    assert run.result["verdict"].startswith("Kept the old model: classes come one at a time")


@pytest.mark.parametrize(("evidence", "harm"), [("without labels", 1.0), ("labels", 1.7)])
def test_a_better_model_comes_out(evidence: str, harm: float, tmp_path: Path, many: tuple[Path, Path]) -> None:
    """By the real gate: a classifier that was disturbed, mended by images without labels."""
    folder, target = many
    model, table = la.Embedder.from_pretrained(folder), la.read_table(target)
    rng, codes = np.random.default_rng(0), table.labels()[0]
    assert model.classifier is not None
    with torch.no_grad():
        weight = model.classifier.weight
        weight += harm * float(weight.abs().mean()) * torch.from_numpy(rng.normal(size=weight.shape)).float()
    model.save_pretrained(tmp_path / "worse")

    def right(embedder: la.Embedder) -> float:
        rows = torch.from_numpy(embedder.encode(table, runtime="torch"))
        assert embedder.classifier is not None
        return float((embedder.classifier(rows).argmax(1).numpy() == codes).mean())

    run = la.adapt(
        model=tmp_path / "worse",
        target=target,
        method="shot",
        judge=target if evidence == "labels" else None,
        settings={**QUICK, "batch_size": 32, "epochs": 5, "lr": 1e-4},
        out=tmp_path / "run",
    )
    assert run.result["promoted"] and run.result["decision"]["evidence"].startswith(evidence), run.result["decision"]
    assert right(la.Embedder.from_pretrained(run.path)) > right(model) + 0.05


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model that tells four kinds of images apart, and many of them."""
    where = tmp_path_factory.mktemp("many")
    target = helpers.make_images(where / "new", classes=4, images=95, width=40, height=32)
    table, plain = la.read_table(target), small(None, dim=32)
    ids = [str(number) for number in range(len(table))]
    model = recalibrated(plain, crops(plain, table, mixed_parts(ids)))  # statistics that will not move far
    codes, names = table.labels()
    best = np.linalg.lstsq(model.encode(table, runtime="torch"), 30 * np.eye(4)[codes], rcond=None)[0]
    model.classifier = torch.nn.Linear(model.dim, 4)
    with torch.no_grad():
        model.classifier.bias.zero_()
        model.classifier.weight.copy_(torch.from_numpy(best.T))
    model.card["classes"] = names
    model.save_pretrained(where / "model")
    return where / "model", target


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_an_image_nobody_used_needs_no_new_run(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True)
    run = la.adapt(
        model=classifier, target=target, pool=[pool], settings={**QUICK, "num_neighbors": 1}, out=tmp_path / "run"
    )
    used = {entry["id"] for entry in receipts(run, 1)}
    ids = json.loads((run.path / "versions" / "1" / "pool.json").read_text())["ids"]
    spare = [id_ for id_ in ids if id_ not in used]
    assert spare, "a pool of 15 for one neighbor each"
    before = _tensors(run.path / "model")
    done = la.forget(model=run.path, images=spare[:1])
    assert done["made_again"] is None and done["versions_gone"] == [] and done["vectors_gone"] >= 1
    after = _tensors(run.path / "model")
    assert all(torch.equal(before[k], after[k]) for k in before)
    assert spare[0] not in json.loads((run.path / "versions" / "1" / "pool.json").read_text())["ids"]
    with pytest.raises(LookalikeError, match="names no image of the pool"):
        la.forget(model=run.path, images=["nothing/*"])


def test_labels_judge_first(embedder: Path, pool: Path, tmp_path: Path) -> None:
    """A rate that ruins a model which names everything rightly: the held-out labels see it."""
    many = helpers.make_images(tmp_path / "many", classes=4, images=30, width=40, height=32)
    settings = {**QUICK, "epochs": 8, "lr": 0.05, "batch_size": 32}
    run = la.adapt(model=embedder, target=many, pool=[pool], labeled=True, settings=settings, out=tmp_path / "run")
    decision = run.result["decision"]
    assert run.result["classes"] == "labels of the target" and decision["evidence"] == "labels"
    assert decision["figures"]["after"] < decision["figures"]["before"] == 1.0
    assert not run.result["promoted"] and "not surely better" in run.result["verdict"]
    assert run.config["settings"]["lr"] == 0.05 and run.config["settings"]["weights"]["contrast"] == 0.1


def test_a_model_without_a_classifier_is_judged_by_what_it_finds(embedder: Path, target: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "lr": 1e-12}
    same = la.adapt(model=embedder, target=target, gallery=target, settings=settings, out=tmp_path / "same")
    figures = same.result["decision"]["figures"]
    assert figures.pop("images") < 100 and "held-out images are too few" in same.result["verdict"]
    assert figures == {"overlap": 1.0, "cluster_map": pytest.approx(0, abs=1e-6)}, "nothing was learned"
    assert not same.result["promoted"]


def test_a_classifier_earned_by_labels_is_not_lost_without(
    embedder: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "by_labels", lambda *_, **__: gate.Decision(True, [], "labels"))
    run = la.adapt(model=embedder, target=target, labeled=True, settings=QUICK, out=tmp_path / "run")
    assert la.Embedder.from_pretrained(run.path).classifier is not None
    again = la.adapt(model=run.path, target=target, gallery=target, settings=QUICK)
    assert not again.result["promoted"] and "names classes" in again.result["verdict"]
    assert la.Embedder.from_pretrained(run.path).classifier is not None


def test_a_pure_embedder_gets_classes_from_a_gallery_or_from_clusters(
    embedder: Path, target: Path, pool: Path, tmp_path: Path
) -> None:
    by = la.adapt(model=embedder, target=target, pool=[pool], gallery=target, settings=QUICK, out=tmp_path / "gallery")
    assert by.result["classes"] == "prototypes of 4 classes of the gallery"
    groups = la.adapt(model=embedder, target=target, clusters=3, settings=QUICK, out=tmp_path / "clusters")
    assert groups.result["classes"].startswith("3 clusters of the target")
    few = la.adapt(model=embedder, target=target, pool=[pool], settings=QUICK, out=tmp_path / "none")
    assert "too few to cluster" in few.result["classes"] and not few.result["promoted"]
    judged = la.adapt(model=embedder, target=target, judge=target, settings=QUICK, out=tmp_path / "judged")
    assert judged.result["decision"]["evidence"] == "labels"


def test_from_the_pixels_up_and_statistics_alone(classifier: Path, target: Path, pool: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "layer": "pixels"}
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=settings, steps=2, out=tmp_path / "pixels")
    assert run.result["counts"]["steps"] == 2 and np.isfinite(run.result["decision"]["figures"]["neighbors"])
    alone = la.adapt(model=classifier, target=target, method="bn", settings=QUICK, out=tmp_path / "bn")
    assert alone.result["counts"]["steps"] == 0
    assert ledger(alone)[1]["fingerprint"] != ledger(alone)[0]["fingerprint"]


def test_the_device_is_an_option_that_a_resumed_run_and_the_judge_use(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = "meta" if not torch.cuda.is_available() else "xpu"
    with pytest.raises(LookalikeError, match=f"`{missing}` is not a device|no device `{missing}`"):
        la.adapt(model=classifier, target=target, device=missing, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    used: list[str] = []
    load = la.Embedder.from_pretrained
    monkeypatch.setattr(
        la.Embedder,
        "from_pretrained",
        lambda name, **options: used.append(str(options["device"])) or load(name, **options),
    )
    run = la.adapt(model=classifier, target=target, steps=2, device="cpu", out=tmp_path / "run")
    assert run.config["device"] == "cpu" and set(used) == {"cpu"}
    assert ledger(run)[-1]["request"]["device"] == "cpu"


def test_the_pool_is_embedded_by_the_engine_that_is_named(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = helpers.make_images(tmp_path / "pool", classes=2, images=5, seed=977)  # seen by no other test
    functions: list[str] = []

    class AnotherEngine:
        def run(self, function: Any, shards: Any, *, attempts: int = 1) -> Any:
            for key, arguments in shards.items():
                work, values = pickle.loads(pickle.dumps((function, arguments)))
                functions.append(f"{work.__name__} of {len(values['images'])}")
                yield Outcome(key, work(**values))

    opened: list[str] = []
    for module in (adapt_command, candidate):
        monkeypatch.setattr(module, "open_engine", lambda name, **_: opened.append(name) or AnotherEngine())
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, engine="ray", out=tmp_path / "run")
    assert set(opened) == {"ray"} and functions and all(name.startswith("embedded_anew of") for name in functions)
    here = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "here")
    assert [row["weights"] for row in ledger(run)[1:]] == [row["weights"] for row in ledger(here)[1:]]


def test_a_default_that_was_not_measured_says_so() -> None:
    for kind in ("prototypes", "labels"):
        assert default_method(kind)[1].startswith("not measured")
    for kind in ("classifier", "clusters"):
        assert "not measured" not in default_method(kind)[1]


def test_mistakes_are_reported_in_one_line(classifier: Path, target: Path, tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="--source"):
        la.adapt(model=classifier, target=target, method="mcc", out=tmp_path / "a")
    with pytest.raises(LookalikeError, match="did you mean `num_neighbors`"):
        la.adapt(model=classifier, target=target, settings={"num_neighbor": 1}, out=tmp_path / "a")
    one = helpers.make_images(tmp_path / "one", classes=1, images=1, width=40, height=32)
    with pytest.raises(LookalikeError, match="1 different image: too few"):
        la.adapt(model=classifier, target=one, settings=QUICK, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def adapt_killed(model: Path, target: Path, pool: Path, expert: Path, settings: dict[str, Any], out: Path) -> None:
    """A run that is killed, in a process of its own."""
    usual, loop.CHECKPOINT_SECONDS = loop.Loop._save, 0.0

    def save(self: loop.Loop) -> None:
        usual(self)
        if self.done.step >= 21:
            os.kill(os.getpid(), signal.SIGKILL)

    loop.Loop._save = save  # type: ignore[method-assign]
    la.adapt(model=model, target=target, pool=[pool], expert=expert, settings=settings, out=out)


def test_a_killed_run_goes_on_to_the_same_bits(
    classifier: Path, target: Path, pool: Path, expert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A real kill, in the middle of the steps."""
    settings = {**QUICK, "epochs": None, "steps": 42}
    whole = la.adapt(model=classifier, target=target, pool=[pool], settings=settings, out=tmp_path / "whole")
    ended = helpers.apart(adapt_killed, classifier, target, pool, expert, settings, tmp_path / "killed")
    assert ended.code == -signal.SIGKILL, ended.err
    with pytest.raises(LookalikeError, match="leave the model and --target out"):
        la.adapt(model=classifier, resume=tmp_path / "killed")
    capsys.readouterr()
    run = la.adapt(resume=tmp_path / "killed")
    assert capsys.readouterr().err.startswith("Resuming after step 21.\n"), "said before anything is read"
    assert run.result["counts"] == whole.result["counts"] and run.result["counts"]["steps"] > 40
    assert ledger(run)[1]["weights"] == ledger(whole)[1]["weights"]
    assert receipts(run, 1) == receipts(whole, 1)
    assert not list(run.path.glob("pending*")) and not list(run.checkpoints.iterdir())
    with pytest.raises(LookalikeError, match="nothing to resume"):
        la.adapt(resume=run.path)


def test_stopped_before_the_first_step_it_can_be_resumed(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Ctrl-C while features are computed, say."""
    for signal_, code in ((KeyboardInterrupt, Exit.STOPPED), (Terminated, Exit.TERMINATED)):

        def stopped(*_: Any, signal_: type[BaseException] = signal_, **__: Any) -> None:
            raise signal_

        with monkeypatch.context() as patch:
            patch.setattr(candidate, "prepare", stopped)
            with pytest.raises(Stopped, match=f"lookalike adapt --resume {tmp_path}") as error:
                la.adapt(model=classifier, target=target, settings=QUICK, out=tmp_path / code.name)
        assert error.value.exit_code == code
    capsys.readouterr()
    run = la.adapt(resume=tmp_path / code.name)
    assert capsys.readouterr().err.startswith("Resuming before the first step") and run.result["finished"]


def test_killed_after_the_version_was_recorded_it_is_not_made_twice(
    classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the candidate would be compared with itself, and rejected."""
    always(monkeypatch, True)
    with monkeypatch.context() as patch:
        patch.setattr(adapt_command, "report_sections", lambda made, pool, run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            la.adapt(model=classifier, target=target, settings=QUICK, out=tmp_path / "run")
    run = la.adapt(resume=tmp_path / "run")
    assert "it is version 1. Promoted the adapted model" in capsys.readouterr().err
    assert run.result["counts"]["target"] == 40 and run.result["decision"]["evidence"] == "a test"
    assert [row["status"] for row in ledger(run)] == ["base", "promoted"] and Versions(run).current == 1
    assert run.result["promoted"] and run.result["finished"] and not list(run.path.glob("pending*"))


def test_what_changed_meanwhile_cannot_be_resumed(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, outside = shutil.copytree(target, tmp_path / "new"), shutil.copytree(pool, tmp_path / "outside")
    with monkeypatch.context() as patch:
        patch.setattr(candidate, "fit_task", lambda task, run: (run.checkpoints.mkdir(), 1 / 0))
        with pytest.raises(ZeroDivisionError):
            la.adapt(model=classifier, target=new, pool=[outside], settings=QUICK, out=tmp_path / "run")
    gone = next(outside.rglob("*.jpg"))
    content = gone.read_bytes()
    gone.unlink()
    with pytest.raises(LookalikeError, match="1 pool image gone"):
        la.adapt(resume=tmp_path / "run")
    gone.write_bytes(content)
    os.utime(next(new.rglob("*.jpg")), (1, 1))
    with pytest.raises(LookalikeError, match="has changed since"):
        la.adapt(resume=tmp_path / "run")


@pytest.mark.parametrize("mode", ["frozen", "target-train"])
def test_two_processes_adapt_as_one_does(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch, True, True)
    settings = {**QUICK, "layer": "pixels", "steps": 5, "batch_size": 7, "batch_norm": mode, "lr": 1e-4}
    runs = [
        la.adapt(model=classifier, target=target, pool=[pool], settings=settings, processes=n, out=tmp_path / f"{n}")
        for n in (1, 2)
    ]
    one, two = (_tensors(run.path / "model") for run in runs)
    base = _tensors(classifier)
    moved = max(float((one[k] - base[k]).abs().max()) for k in base if k.endswith("weight"))
    assert moved > 0
    apart = max(float((one[k] - two[k]).abs().max()) for k in base if k.endswith("weight"))
    assert apart < 0.01 * moved, "sums are taken in another order, no more"
    assert all(torch.allclose(one[k], two[k], rtol=1e-3, atol=1e-4) for k in one)
    mine, theirs = receipts(runs[0], 1), receipts(runs[1], 1)
    assert [entry["times_negative"] for entry in mine] == [entry["times_negative"] for entry in theirs]
    assert [entry["steps_loaded"] for entry in mine] == [entry["steps_loaded"] for entry in theirs]


@pytest.mark.slow
def test_two_nodes_adapt_the_bits_of_two_processes(
    classifier: Path, target: Path, pool: Path, expert: Path, tmp_path: Path
) -> None:
    settings = {**QUICK, "layer": "pixels", "steps": 5, "batch_size": 7, "lr": 1e-4}
    sets = [word for key, value in flatten(settings).items() for word in ("--set", f"{key}={value}")]
    words = ["adapt", classifier, "--target", target, "--pool", pool, "--expert", expert, *sets]
    done = run_on_two_nodes(tmp_path, *words, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    pair = la.adapt(
        model=classifier, target=target, pool=[pool], expert=expert, settings=settings, processes=2, out=tmp_path / "2"
    )
    first, second = (_tensors(Versions(Run(path)).folder(1) / "model") for path in (tmp_path / "run", pair.path))
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_what_the_pool_is_worth_is_reported(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, out=tmp_path / "run")
    stderr, counts = capsys.readouterr().err, run.result["counts"]
    start = f"Pool: {counts['used']} of 15 images retrieved for {counts['learned_from']}, similarity "
    assert start in stderr and "target images among themselves" in stderr and "hardly suits" not in stderr
    few = helpers.make_images(tmp_path / "few", classes=1, images=2, width=40, height=32, seed=9)
    la.adapt(model=classifier, target=target, pool=[few], settings=QUICK, out=tmp_path / "other")
    assert "The pool hardly suits the target" in capsys.readouterr().err


def test_the_command_shows_before_and_after_and_how_many_judged(
    classifier: Path, target: Path, pool: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = helpers.make_images(tmp_path / "judge", classes=4, images=12, width=40, height=32, seed=3)
    quick = [
        "--set",
        "lr=1e-12",
        "--set",
        "batch_size=8",
        "--set",
        "num_views=1",
        "--set",
        "layer=pooled",
        "--steps",
        "2",
    ]
    words = [str(classifier), "--target", str(target), "--pool", str(pool), "--judge", str(judge), *quick]
    assert app.run(["adapt", *words, "--method", "shot", "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "judged by 48 others" in shown, "the images of --judge, not those held out"
    assert re.search(r"Evidence +(accuracy|MAP@R) 0\.\d{3} before, 0\.\d{3} after: [+-]\d+\.\d points \(", shown)
    assert re.search(r"Pool +15 images, of which shot uses none", shown)
    assert app.run(["promote", str(tmp_path / "run"), "--judge", str(judge)]) == 0
    assert re.search(r"Evidence +(accuracy|MAP@R) 0\.\d{3} before", capsys.readouterr().out)


@pytest.mark.usefixtures("processor_time")
def test_a_dry_run_names_every_stage_and_its_estimate_holds_within_a_factor_of_two(tmp_path: Path) -> None:
    model = small(4)
    model.save_pretrained(tmp_path / "model")
    new = helpers.make_images(tmp_path / "new", classes=8, images=30, width=160, height=120)
    more = helpers.make_images(tmp_path / "more", classes=8, images=20, width=160, height=120, seed=7)
    settings = {**QUICK, "epochs": None, "steps": 60, "num_views": 4}
    ratios = []
    for attempt in range(3):  # another program may take the processor in between
        with folders.temporary_cache():
            plan = la.adapt(model=tmp_path / "model", target=new, pool=[more], settings=settings, dry_run=True)
        with folders.temporary_cache():
            run = la.adapt(
                model=tmp_path / "model", target=new, pool=[more], settings=settings, out=tmp_path / f"run-{attempt}"
            )
        assert isinstance(plan, Plan) and isinstance(run, la.Run)
        seconds = run.result["seconds"]
        assert list(seconds) == list(plan.seconds) == ["prepare", "pool", "features", "steps", "judging"]
        assert all(f"{name} " in plan.facts["time"] for name in seconds) and plan.facts["pool"] == "160 images"
        ratios.append(sum(plan.seconds.values()) / sum(seconds.values()))
        if 0.5 <= ratios[-1] <= 2:
            return
    pytest.fail(f"the estimate is off by {ratios}")


@pytest.mark.parametrize("place", ["new", pytest.param("an empty folder", marks=pytest.mark.slow)])
def test_an_early_kill_leaves_a_run_to_resume_or_nothing(
    place: str, classifier: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before every fourth change of the disk, until the work itself begins."""
    out = tmp_path / "run"
    table = la.read_table(target)
    base = la.Embedder.from_pretrained(classifier)
    request = AdaptRequest(resolve(None, QUICK))

    def fill(run: la.Run) -> None:
        Versions.create(run, base)
        Pending(run).begin(request, table, 1)

    strike, resumable = -1, 0
    while True:
        strike += 4
        shutil.rmtree(out, ignore_errors=True)
        if place != "new":
            out.mkdir()
        ended = not kills.killed(strike, lambda: la.Run.create("adapt", {}, path=out, fill=fill))
        if la.Run.is_run(out):
            resumable += 1
            assert Pending(la.Run(out)).read()[0] == request and Versions(la.Run(out)).current == 0
        else:
            la.Run.check_available(out)
            assert not ended and (not out.exists() or not any(out.iterdir()))
        if ended:
            break
    assert strike > 10 and resumable >= 1
    assert not list(tmp_path.glob(".run*.part")) or place == "new"
