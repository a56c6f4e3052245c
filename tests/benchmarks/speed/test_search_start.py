"""The arithmetic of the benchmark of a search's start; no command is run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.speed import BenchContext, search_start
from lookalike.data import synthetic


@pytest.mark.parametrize("torch", [0, 1])
def test_the_median_is_held_and_torch_is_counted(torch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []

    def start(words: list[str], **options: object) -> SimpleNamespace:
        commands.append(words)
        return SimpleNamespace(returncode=torch if len(commands) == 3 else 0)

    def images(folder: Path, **options: object) -> None:
        folder.mkdir()
        (folder / "0.jpg").touch()

    monkeypatch.setattr(synthetic, "make_demo_images", images)
    monkeypatch.setattr(search_start.subprocess, "run", start)
    figures, bars = search_start.run(BenchContext())
    assert "index" in commands[0] and len(commands) == 1 + search_start.ROUNDS == 1 + len(figures["seconds"]["rounds"])
    assert figures["rounds_with_torch"] == torch and [bar.ok for bar in bars] == [True, not torch]
