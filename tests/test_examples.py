"""Every script under examples/ runs as it stands."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.helpers import ROOT

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_example_runs(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(script.parent), *sys.path])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert script.name in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
