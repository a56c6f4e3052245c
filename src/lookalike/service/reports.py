"""Runs and their reports, as the page lists and draws them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import open_inside, read_part
from lookalike.core.locks import hold
from lookalike.core.run import Run
from lookalike.reporting.charts import thin
from lookalike.service.http_errors import Problem, without_folders

SPARKLINE_POINTS = 40
CURVE_POINTS = 1_000
MAX_REPORT = 200_000_000  # bytes
PREFIX = "validation/"


class Reports:
    """The runs directly below some folders; nothing else is read."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = list(dict.fromkeys(folder.absolute() for folder in folders))

    def _paths(self, *, with_report: bool = False) -> dict[str, Path]:
        folders = [folder for folder in reversed(self.folders) if folder.is_dir()]  # the first one wins
        runs = [path for folder in folders for path in sorted(folder.iterdir()) if Run.is_run(path)]
        paths = {path.name: path for path in runs}
        return {n: p for n, p in paths.items() if (p / "report.html").is_file()} if with_report else paths

    def runs(self) -> Sequence[RunCurves]:
        """All runs, newest first."""
        return sorted(map(RunCurves, self._paths().values()), key=lambda run: run.changed, reverse=True)

    def run(self, name: str) -> RunCurves:
        """A run by name; `Problem` 404 if there is none."""
        path = self._paths().get(name)
        if path is None:
            raise Problem(404, f"There is no run `{name}`.")
        return RunCurves(path)

    def models(self) -> Sequence[dict[str, Any]]:
        """Models that an index can be switched to: trained runs, and the built-in ones."""
        trained = [run.summary() for run in self.runs() if (run.path / "model").is_dir()]
        rows = [{"kind": "run"} | {name: row[name] for name in ("name", "metric", "best")} for row in trained]
        return rows + [{"name": name, "kind": "default", "metric": None, "best": None} for name in _builtin_models()]

    def model(self, name: str) -> str:
        """The path or name of a listed model; `Problem` 404 if it is not listed."""
        if name in _builtin_models():
            return name
        path = self._paths().get(name)
        if path is None or not (path / "model").is_dir():
            raise Problem(404, f"There is no model `{name}` among the runs of this server.")
        return str(path)

    def list(self) -> list[dict[str, Any]]:
        """Name, method, time and verdict of every report, newest first."""
        rows = []
        for name, path in self._paths(with_report=True).items():
            row: dict[str, Any] = {"name": name, "method": "", "created": "", "verdict": ""}
            try:
                run = Run(path)
                row |= {"method": run.info.get("method", ""), "created": run.info.get("created", "")}
                row["verdict"] = _verdict(run)
            except LookalikeError as error:
                row["verdict"] = without_folders(str(error))
            rows.append((path.joinpath("report.html").stat().st_mtime, row))
        return [row for _, row in sorted(rows, key=lambda pair: -pair[0])]

    def html(self, name: str) -> bytes:
        """The HTML file of a report; `Problem` 404 if there is none."""
        path = self._paths(with_report=True).get(name)
        if path is None:
            raise Problem(404, f"There is no report `{name}`.")
        try:
            with open_inside(path, "report.html") as file:
                return read_part(file, limit=MAX_REPORT)
        except (OSError, LookalikeError) as error:
            raise Problem(404, f"The report `{name}` cannot be opened.") from error


class RunCurves:
    """State, best step and logged curves of a run, read from its files while it runs or afterwards."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        files = [path / name for name in ("log.jsonl", "result.json", "run.json")]
        self.changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    def summary(self) -> dict[str, Any]:
        """One row of the list of runs; of a damaged run it contains the reason."""
        row: dict[str, Any] = {"name": self.name, "report": (self.path / "report.html").is_file()}
        try:
            run = Run(self.path)
            config, log, result = run.config, run.read_log(), run.result
        except LookalikeError as error:
            empty = ("created", "step", "steps", "metric", "best", "best_step", "last", "first", "frozen", "resume")
            damaged = {"state": "damaged", "verdict": without_folders(str(error)), "curve": [], "measured": []}
            return row | dict.fromkeys(empty) | dict.fromkeys(("method", "side"), "") | damaged
        metric = str(config.get("metric") or "recall@1")
        points = _series(log, PREFIX + metric)
        state = "finished" if result.get("finished") else "running" if self._locked() else "stopped"
        best = max(points, key=lambda point: point[1], default=(None, None))
        if result.get("best_step") is not None and points:  # the run breaks ties by more than this metric
            best = min(points, key=lambda point: abs(point[0] - result["best_step"]))
        measured = result.get("measured") or {}
        return row | {
            "method": str(run.info.get("method", "")),
            "created": run.info.get("created", ""),
            "state": state if log or result else "new",
            "step": max((row.get("step", 0) for row in log), default=0),
            "steps": config.get("steps"),
            "metric": metric,
            "best": best[1],
            "best_step": best[0],
            "last": points[-1][1] if points else None,
            "frozen": (measured.get("starting model") or {}).get(metric),
            "measured": [{"name": name, **values[metric]} for name, values in measured.items() if metric in values],
            "side": str(result.get("side", "")),
            "first": points[0][1] if points and points[0][0] == 0 else None,
            "verdict": str(result.get("verdict", "")),
            "curve": [value for _, value in _thin(points, SPARKLINE_POINTS)],
            "resume": f"lookalike train --resume {self.name}" if state == "stopped" and log else None,
        }

    def document(self) -> dict[str, Any]:
        """The summary with all logged series, for the run's own page."""
        log = Run(self.path).read_log()
        series = []
        for name in dict.fromkeys(name for row in log for name in row if name != "step"):
            points = _thin(_series(log, name), CURVE_POINTS)
            series.append({"name": name, "x": [x for x, _ in points], "y": [y for _, y in points]})
        return self.summary() | {"series": series}

    def _locked(self) -> bool:
        """Whether a process is working on the run: only then its lock is held."""
        if not (self.path / ".lock").exists():
            return False
        try:
            with hold(self.path / ".lock", "the run"):
                return False
        except LookalikeError:
            return True


def _builtin_models() -> Sequence[str]:
    from lookalike.models.backbones import BUILTIN

    return list(BUILTIN)


def _verdict(run: Run) -> str:
    """Text of the first verdict block among the run's sections."""
    sections = sorted(run.read_sections().values(), key=lambda section: section.get("order", 1000))
    blocks = (block for section in sections for block in section.get("blocks", []))
    return next((str(b["message"]) for b in blocks if b.get("kind") == "verdict" and b.get("message")), "")


def _series(log: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), row[name]) for row in log if isinstance(row.get(name), (int, float)) and "step" in row]


def _thin(points: list[tuple[int, float]], count: int) -> list[tuple[int, float]]:
    return [points[i] for i in thin(len(points), count)]
