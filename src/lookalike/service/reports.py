"""Reports of runs: a list, newest first, and the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.service.curves import Curves
from lookalike.service.errors import Problem


class Reports:
    """Runs directly under a few folders; nothing else is ever read."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = list(dict.fromkeys(folder.absolute() for folder in folders))

    def _all(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for folder in self.folders:
            if folder.is_dir():
                for path in sorted(folder.iterdir()):
                    if Run.is_run(path):
                        found.setdefault(path.name, path)
        return found

    def _runs(self) -> dict[str, Path]:
        return {name: path for name, path in self._all().items() if (path / "report.html").is_file()}

    def runs(self) -> Sequence[Curves]:
        """All runs, newest first."""
        found = [Curves(path) for path in self._all().values()]
        return sorted(found, key=lambda run: run.changed, reverse=True)

    def run(self, name: str) -> Curves:
        path = self._all().get(name)
        if path is None:
            raise Problem(404, f"There is no run `{name}`.")
        return Curves(path)

    def models(self) -> Sequence[dict[str, Any]]:
        """What an index can be switched to: trained runs, and the models that come along."""
        trained = [run.summary() for run in self.runs() if (run.path / "model").is_dir()]
        rows = [{"name": r["name"], "kind": "run", "metric": r["metric"], "best": r["best"]} for r in trained]
        return rows + [{"name": name, "kind": "default", "metric": None, "best": None} for name in _builtin()]

    def model(self, name: str) -> str:
        """Where a model of the list is; nothing that is not in it can be named."""
        if name in _builtin():
            return name
        path = self._all().get(name)
        if path is None or not (path / "model").is_dir():
            raise Problem(404, f"There is no model `{name}` among the runs of this server.")
        return str(path)

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


def _builtin() -> Sequence[str]:
    from lookalike.models.backbones import BUILTIN

    return list(BUILTIN)


def _verdict(run: Run) -> str:
    """The sentence of the first verdict block among the run's sections."""
    for section in sorted(run.read_sections().values(), key=lambda section: section.get("order", 1000)):
        for block in section.get("blocks", []):
            if block.get("kind") == "verdict" and block.get("sentence"):
                return str(block["sentence"])
    return ""
