"""Finished cells of the papers' experiments: one small JSON file each under ``results/cells/PAPER/``, to be committed.

A cell is one run of one arm on one seed, at most `LIMIT` seconds of one thread. Its file is named after it and holds
its settings and revisions; a file with other settings or revisions is not the cell, which is then run again. To run a
cell again for another reason, delete its file. Processes that run side by side share a grid: each cell is locked by
the one that runs it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lookalike.core import folders
from lookalike.core.engine import Engine, Jobs, LocalEngine
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json, to_json, write_json
from lookalike.core.imports import package_versions
from lookalike.core.locks import Locked, hold, wait_for_lock

LIMIT = 20 * 60
"""Seconds of processor time that a cell at small scale may take."""
POLL = 5.0  # seconds between two checks of cells that other processes are running
TOP = Path(__file__).resolve().parents[2]


class Cells(Jobs):
    """Results of cells in a folder, by name; a cell counts only if settings and revisions are the same.

    Args:
        folder: Where the files are.
        places: Folders of this machine by the name that stands for them in stored settings, as ``{"DATA": path}``.

    Example:
        >>> cells = Cells("cells")
        >>> cells.run("sum-s1", lambda number, seed: number + seed, number=1, seed=1, revision={"experiment": 1})
        2
        >>> cells.stored("sum-s1", {"number": 1, "seed": 1, "revision": {"experiment": 2}}) is None
        True
    """

    def __init__(self, folder: str | Path, places: Mapping[str, str | Path] | None = None) -> None:
        super().__init__(folder)
        self.places = {str(path): name for name, path in (places or {}).items()}

    def path(self, key: str, arguments: Mapping[str, Any] | None = None) -> Path:
        """The file of a cell: its name, with what does not belong into a file name replaced."""
        plain = "".join(c if c.isalnum() or c in "-_.=," else "-" for c in key.replace("*", "star"))
        if len(plain) > 120:
            plain = f"{plain[:108]}-{hash_bytes(plain)[:11]}"
        return self.folder / f"{plain}.json"

    def identity(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Settings, seed and revisions of a cell as they are stored, without the folders of this machine."""
        revision = arguments.get("revision", {"experiment": 1})
        text = json.dumps({k: v for k, v in arguments.items() if k != "revision"}, sort_keys=True, default=to_json)
        for path in sorted(self.places, key=len, reverse=True):
            text = text.replace(json.dumps(path)[:-1], json.dumps(self.places[path])[:-1])
        return {"settings": json.loads(text), "revision": dict(revision)}

    def stored(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record of a finished cell with these settings and revisions, or None."""
        try:
            record = read_json(self.path(key), "cell")
        except LookalikeError:  # not there, or damaged: run it
            return None
        if not isinstance(record, dict) or "figures" not in record:
            return None
        identity, revision = self.identity(arguments), record.get("revision", {})
        # Revisions begin at 1, which an older file need not state.
        same = all(identity["revision"].get(k, 1) == revision.get(k, 1) for k in {*revision, *identity["revision"]})
        return {"result": record["figures"]} if same and record.get("settings") == identity["settings"] else None

    def run(self, key: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return `function(**arguments)` without `revision`, from its stored figures if there are any."""
        with wait_for_lock(self._lock(key)):
            return self._run(key, function, arguments)

    def run_many(
        self, jobs: Mapping[str, Mapping[str, Any]], function: Callable[..., Any], *, engine: Engine | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield name and figures of every cell; those that another process is running come last."""
        if engine is not None and not (isinstance(engine, LocalEngine) and engine.processes <= 1):
            shards = {
                key: {"cells": self, "key": key, "function": function, "arguments": dict(arguments)}
                for key, arguments in jobs.items()
            }
            for outcome in engine.run(run_cell, shards):
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.key, outcome.result
            return
        pending = dict(jobs)
        while pending:
            before = len(pending)
            for key, arguments in list(pending.items()):
                try:
                    with hold(self._lock(key), f"The cell {key}"):
                        result = self._run(key, function, arguments)
                except Locked:
                    continue
                del pending[key]
                yield key, result
            if len(pending) == before:
                time.sleep(POLL)

    def _lock(self, key: str) -> Path:
        return folders.cache("cells") / f"{hash_bytes(str(self.path(key).absolute()))[:20]}.lock"

    def _run(self, key: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
        if (record := self.stored(key, arguments)) is None:
            own = {name: value for name, value in arguments.items() if name != "revision"}
            start, processor = time.monotonic(), time.process_time()
            figures = function(**own)
            document = {
                "name": key,
                **self.identity(arguments),
                "figures": figures,
                "seconds": round(time.monotonic() - start, 1),
                "processor_seconds": round(time.process_time() - processor, 1),
                "when": time.strftime("%Y-%m-%d"),
                "commit": commit(),
                "torch": package_versions().get("torch"),
            }
            write_json(self.path(key), document)
            record = self.stored(key, arguments)
            assert record is not None, f"the settings of {key} are not JSON"
        return record["result"]


def run_cell(cells: Cells, key: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run one cell in a process of an engine."""
    return cells.run(key, function, **arguments)


def commit() -> str | None:
    """The commit of the source that runs, with `+` if it was changed since; None outside a repository."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=TOP,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
