from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lookalike.core import formats
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.tour import migrate


@pytest.fixture
def second_format(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(formats.CURRENT, "run", 2)
    monkeypatch.setattr(formats, "_MIGRATIONS", {})

    @formats.migration("run", 1)
    def first(document: dict[str, Any]) -> dict[str, Any]:
        return {**document, "new": True}


def test_old_documents_are_rewritten_and_others_left_alone(
    tmp_path: Path, second_format: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(formats.CURRENT, "run", 1)
    run = Run.create("x", {}, path="runs/a")
    run.write_result(format="not ours")
    monkeypatch.setitem(formats.CURRENT, "run", 2)
    before = (run.path / "result.json").read_bytes()
    planned = migrate(folder=tmp_path, dry_run=True)
    assert [(c.path, c.kind, c.before, c.after) for c in planned.changes] == [(run.path / "run.json", "run", 1, 2)]
    assert json.loads((run.path / "run.json").read_text())["format"] == 1, "a dry run changes nothing"
    migrate(folder=tmp_path)
    assert json.loads((run.path / "run.json").read_text())["new"] is True
    assert (run.path / "result.json").read_bytes() == before
    again = migrate(folder=run.path)
    assert (again.changes, again.current) == ([], 1)
    assert Run(run.path).info["new"] is True


def test_one_that_is_too_new_stops_it_before_anything_is_changed(tmp_path: Path, second_format: None) -> None:
    for name, number in (("a", 1), ("b", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(json.dumps({"format": number, "kind": "run"}))
    with pytest.raises(LookalikeError, match="of format 9; this version reads up to 2"):
        migrate(folder=tmp_path)
    assert json.loads((tmp_path / "a" / "run.json").read_text())["format"] == 1


def test_tables_carry_their_format_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.data import Table

    table = Table.from_columns({"path": ["a.jpg", "b.jpg"]}, name="t")
    table.save(tmp_path / "t.parquet")
    assert migrate(folder=tmp_path).current == 1
    monkeypatch.setitem(formats.CURRENT, "table", 2)
    monkeypatch.setattr(formats, "_MIGRATIONS", {("table", 1): lambda d: {**d, "notes": {"migrated": 1}}})
    assert len(migrate(folder=tmp_path / "t.parquet").changes) == 1
    assert Table.load(tmp_path / "t.parquet").notes == {"migrated": 1}
    assert Table.load(tmp_path / "t.parquet").column("path").tolist() == ["a.jpg", "b.jpg"]


def test_checkpoints_are_rewritten_with_their_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from lookalike.training import checkpoint

    checkpoint.write(tmp_path / "last.pt", {"step": 3, "model": {"w": torch.arange(4.0)}})
    torch.save({"weights": torch.ones(2)}, tmp_path / "other.pt")
    monkeypatch.setitem(formats.CURRENT, "checkpoint", 2)
    monkeypatch.setattr(formats, "_MIGRATIONS", {("checkpoint", 1): lambda d: {**d, "step": d["step"] + 100}})
    assert [c.path.name for c in migrate(folder=tmp_path).changes] == ["last.pt"]
    found = torch.load(tmp_path / "last.pt", weights_only=True)
    assert (found["format"], found["step"], found["model"]["w"].tolist()) == (2, 103, [0.0, 1.0, 2.0, 3.0])
    assert migrate(folder=tmp_path).changes == []


def test_a_folder_without_anything_of_ours(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.parquet").write_text("not Parquet")
    with pytest.raises(LookalikeError, match="holds no model, run, index or table"):
        migrate(folder=tmp_path)
    with pytest.raises(LookalikeError, match="There is no folder"):
        migrate(folder=tmp_path / "none")
