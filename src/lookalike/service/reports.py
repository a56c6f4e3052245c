"""Reports of runs: a list, newest first, and the files themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.service.problems import Problem


class Reports:
    """Runs directly under a few folders; nothing else is ever read."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = list(dict.fromkeys(folder.absolute() for folder in folders))

    def _runs(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    if Run.is_run(path) and (path / "report.html").is_file():
                        found.setdefault(path.name, path)
        return found

    def list(self) -> list[dict[str, Any]]:
        rows = []
        for name, path in self._runs().items():
            row: dict[str, Any] = {"name": name, "method": "", "created": "", "verdict": ""}
            try:
                run = Run(path)
                row |= {"method": run.info.get("method", ""), "created": run.info.get("created", "")}
                row["verdict"] = _verdict(run)
            except LookalikeError as error:
                row["verdict"] = str(error)
            rows.append((path.joinpath("report.html").stat().st_mtime, row))
        return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]

    def html(self, name: str) -> bytes:
        path = self._runs().get(name)
        if path is None:
            raise Problem(404, f"There is no report `{name}`.")
        return (path / "report.html").read_bytes()


def _verdict(run: Run) -> str:
    """The sentence of the first verdict block among the run's sections."""
    for section in sorted(run.read_sections().values(), key=lambda section: section.get("order", 1000)):
        for block in section.get("blocks", []):
            if block.get("kind") == "verdict" and block.get("sentence"):
                return str(block["sentence"])
    return ""
