"""Many small jobs whose results are stored as they finish, so that a killed series continues where it stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from lookalike._version import __version__
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json, to_json, write_json


class Jobs:
    """Results of jobs in a folder, by name and arguments.

    Args:
        folder: Where the results are stored, one JSON file per job.

    Example:
        >>> jobs = Jobs("jobs")
        >>> jobs.run("sum", lambda a, b: a + b, a=1, b=2)
        3
        >>> jobs.stored("sum", {"a": 1, "b": 2})["result"]
        3
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, key: str, arguments: Mapping[str, Any]) -> Path:
        known = json.dumps(arguments, sort_keys=True, default=to_json)
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in key)[:80]
        return self.folder / f"{plain}-{hash_bytes(__version__, key, known)[:12]}.json"

    def stored(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record of a finished job, or None."""
        try:
            record = read_json(self.path(key, arguments), "job")
        except LookalikeError:  # not there, or damaged: run it
            return None
        return record if isinstance(record, dict) and "result" in record else None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, key: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return `function(**arguments)`, from its stored result if there is one. The result must be JSON."""
        path = self.path(key, arguments)
        if self.stored(key, arguments) is None:
            write_json(path, {"key": key, "result": function(**arguments)})
        return read_json(path, "job")["result"]  # read back: fresh and stored results are alike to the last digit

    def run_many(
        self, jobs: Mapping[str, Mapping[str, Any]], function: Callable[..., Any], *, processes: int = 1
    ) -> Iterator[tuple[str, Any]]:
        """Yield key and result of `function(**arguments)` for every job as it finishes.

        Args:
            jobs: The arguments of each job by its key.
            function: Must be importable by name if there are several processes.
            processes: Number of processes. They are spawned, never forked: a fork of a process with threads may hang.
        """
        if processes <= 1:
            for key, arguments in jobs.items():
                yield key, self.run(key, function, **arguments)
            return
        waiting = {}
        for key, arguments in jobs.items():
            if (record := self.stored(key, arguments)) is not None:
                yield key, record["result"]
            else:
                waiting[key] = arguments
        before = set(multiprocessing.active_children())
        count = min(processes, max(len(waiting), 1))
        with ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin) as pool:
            futures = {pool.submit(self.run, k, function, **a): k for k, a in waiting.items()}
            try:
                for future in as_completed(futures):
                    yield futures[future], future.result()
            except BaseException:  # also Ctrl-C, and a caller who wants no more: nobody waits for what is running
                for worker in set(multiprocessing.active_children()) - before:
                    worker.kill()
                raise
            finally:
                pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """Initialize a worker: one thread, no Ctrl-C of its own, and an end when its parent ends."""
    os.environ["LOOKALIKE_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()  # returns however the parent ended; a kill tells nobody
            os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()
