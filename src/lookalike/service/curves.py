"""A run as a page draws it: its state, its best step, and the curves it has logged so far."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked, hold
from lookalike.core.run import Run

SPARK = 40  # points of a small curve
MOST = 1_000  # points of a large one
PREFIX = "validation/"


class Curves:
    """What can be said of a run from its files, while it runs and after."""

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, path.name
        files = [path / name for name in ("log.jsonl", "result.json", "run.json")]
        self.changed = max((file.stat().st_mtime for file in files if file.exists()), default=0.0)

    def _read(self) -> tuple[Run, dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        run = Run(self.path)
        return run, run.config, run.read_log(), run.result

    def summary(self) -> dict[str, Any]:
        """One line of the list; a run that cannot be read says why."""
        row: dict[str, Any] = {"name": self.name, "report": (self.path / "report.html").is_file()}
        try:
            run, config, log, result = self._read()
        except LookalikeError as error:
            empty = ("created", "step", "steps", "metric", "best", "best_step", "last", "first", "frozen", "resume")
            return (
                row
                | dict.fromkeys(empty)
                | {"method": "", "state": "damaged", "verdict": str(error), "curve": [], "measured": []}
            )
        metric = str(config.get("metric") or "recall@1")
        points = _series(log, PREFIX + metric)
        state = "finished" if result.get("finished") else "running" if self._locked() else "stopped"
        best = max(points, key=lambda point: point[1], default=(None, None))
        if result.get("best_step") is not None and points:  # between equals the run has decided by more than this
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
            "curve": [value for _, value in _thin(points, SPARK)],
            "resume": f"lookalike train --resume {self.name}" if state == "stopped" and log else None,
        }

    def document(self) -> dict[str, Any]:
        """Everything for the run's own page."""
        log = Run(self.path).read_log()
        names = dict.fromkeys(name for row in log for name in row if name != "step")
        series = []
        for name in names:
            points = _thin(_series(log, name), MOST)
            series.append({"name": name, "x": [x for x, _ in points], "y": [y for _, y in points]})
        return self.summary() | {"series": series}

    def _locked(self) -> bool:
        """Whether a process works on it: only then its lock is held."""
        if not (self.path / ".lock").exists():
            return False
        try:
            with hold(self.path / ".lock", "the run"):
                return False
        except (Locked, LookalikeError):
            return True


def _series(log: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(int(row["step"]), row[name]) for row in log if isinstance(row.get(name), (int, float)) and "step" in row]


def _thin(points: list[tuple[int, float]], most: int) -> list[tuple[int, float]]:
    """At most so many points, evenly spread, the first and the last among them."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]
