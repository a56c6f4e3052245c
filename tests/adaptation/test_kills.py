"""`promote`, `rollback` and `forget`, killed before every change of the disk."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests import kills
from tests.adaptation.test_adapt_command import QUICK, always, receipts

import lookalike as la
from lookalike.adaptation import adapt_command
from lookalike.adaptation.settings import AdaptRequest
from lookalike.adaptation.versions import Pending, Versions
from lookalike.core.errors import LookalikeError
from lookalike.data import Table

STRIDE = 5
"""Every fifth change is struck, beginning elsewhere in each test; `make soak` strikes them all."""


@pytest.fixture(scope="module")
def adapted(classifier: Path, target: Path, pool: Path, tmp_path_factory: pytest.TempPathFactory, expert: Path) -> Path:
    """A run with a rejected version 1, from a model in use that is the base."""
    out = tmp_path_factory.mktemp("adapted") / "run"
    la.adapt(model=classifier, target=target, pool=[pool], settings=QUICK, expert=expert, out=out)
    return out


def every_kill(run: Path, act: Callable[[Path], object], check: Callable[[Path], None], first: int = 1) -> int:
    """A copy of the run for each kill, which `check` must find in order."""
    strike = first
    while True:
        copy = run.with_name(f"killed-{strike}")
        shutil.copytree(run, copy)
        struck = kills.killed(strike, lambda copy=copy: act(copy))  # type: ignore[misc]
        check(copy)
        shutil.rmtree(copy)
        if not struck:
            return strike
        strike += STRIDE


def in_order(run: Path) -> Versions:
    """The list of versions, with the model in use the one it names."""
    versions = Versions(la.Run(run))
    with versions.locked():
        used = la.Embedder.from_pretrained(versions.run.model)
        assert used.fingerprint() == versions.row(versions.current)["fingerprint"]
        assert versions.run.result["in_use"] == versions.current
        assert versions.row(versions.current)["status"] in ("base", "promoted")
    return versions


def test_an_adaptation_that_is_recorded_again_is_always_pending(adapted: Path, tmp_path: Path) -> None:
    run = la.Run(shutil.copytree(adapted, tmp_path / "run"))
    folder, row = Versions(run).folder(1), Versions(run).row(1)
    table, request = Table.load(folder / "target.parquet"), AdaptRequest.from_json(row["request"])
    pending, strike = Pending(run), 1
    pending.begin(request, table, 2)
    while kills.killed(strike, lambda: pending.begin(request, table, 2, ["x"])):
        assert pending.read()[0] == request
        strike += 1
    assert strike > 3 and pending.read()[2] == {"x"}


def test_a_promotion_happens_or_not(adapted: Path) -> None:
    def check(run: Path) -> None:
        versions = in_order(run)
        if versions.current == 0:
            assert la.promote(model=run)["promoted"]
        assert in_order(run).current == 1
        assert la.rollback(model=run)["to"] == 0

    assert every_kill(adapted, lambda run: la.promote(model=run), check) > 5


def test_a_rollback_happens_or_not(adapted: Path, tmp_path: Path) -> None:
    promoted = shutil.copytree(adapted, tmp_path / "run")
    la.promote(model=promoted)

    def check(run: Path) -> None:
        if in_order(run).current == 1:
            la.rollback(model=run)
        assert in_order(run).current == 0

    assert every_kill(promoted, lambda run: la.rollback(model=run), check, first=2) > 5


def test_a_forgetting_can_always_be_finished(adapted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the training that follows, whose own kills are tested with `adapt`."""
    promoted = shutil.copytree(adapted, tmp_path / "run")
    la.promote(model=promoted)
    used = receipts(la.Run(promoted), 1)[0]

    def forget(run: Path) -> None:
        monkeypatch.setattr(adapt_command, "new_version", lambda *_, **__: os._exit(0))
        la.forget(model=run, images=[used["path"]])

    def check(run: Path) -> None:
        monkeypatch.setattr(adapt_command, "new_version", lambda *_, **__: 2)
        try:
            la.forget(model=run, images=[used["path"]])
        except LookalikeError as error:
            assert "names no image of the pool" in str(error), "all lists that had it are gone"
        versions = in_order(run)
        assert versions.current == 0 and versions.row(1)["status"] == "forgotten"
        assert versions.denied == [used["id"]] and not versions.folder(1).exists()
        assert used["id"] not in json.loads((run / "pending.json").read_text())["pool"]
        left = [path for path in run.rglob("*.json") if used["path"] in path.read_text()]
        assert left == []

    assert every_kill(promoted, forget, check, first=3) > 5


def test_what_a_killed_forgetting_left_is_adapted_again(
    adapted: Path, classifier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(adapted, tmp_path / "run")
    la.promote(model=run)
    used = receipts(la.Run(run), 1)[0]
    with monkeypatch.context() as patch:
        patch.setattr(adapt_command, "new_version", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            la.forget(model=run, images=[used["path"]])
    always(monkeypatch, True)
    la.adapt(resume=run)
    versions = in_order(run)
    assert versions.current == 2 and used["id"] not in versions.used(2)
    torch.testing.assert_close(
        la.Embedder.from_pretrained(versions.folder(0) / "model").state_dict(),
        la.Embedder.from_pretrained(classifier).state_dict(),
    )
