"""Work in the background, one piece at a time: whoever asks for it polls, and can stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress, listening
from lookalike.service.errors import Problem

KEPT = 20
log = logging.getLogger("lookalike.service")


@dataclass
class Job:
    id: str
    kind: str
    title: str
    phase: str = ""
    done: int = 0
    total: int | None = None
    state: str = "running"
    sentence: str = ""
    result: dict[str, Any] | None = None
    stopping: threading.Event = field(default_factory=threading.Event)
    _since: float = 0.0

    def hear(self, bar: Progress) -> None:
        """A step of the work; the place where a stop takes effect."""
        if bar.what != self.phase:
            self.phase, self._since = bar.what, time.monotonic()
        self.done, self.total = bar.done, bar.total
        if self.stopping.is_set():
            raise KeyboardInterrupt

    @property
    def seconds_left(self) -> int | None:
        if self.state != "running" or not self.total or not self.done:
            return None
        passed = time.monotonic() - self._since
        return round(passed * (self.total - self.done) / self.done)

    def to_json(self) -> dict[str, Any]:
        names = ("id", "kind", "title", "phase", "done", "total", "seconds_left", "state", "sentence", "result")
        return {name: getattr(self, name) for name in names}


class Jobs:
    """Jobs in the order they were asked for; a thread of their own does them."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lookalike-job")
        self._guard = threading.Lock()
        self._kept: deque[Job] = deque(maxlen=KEPT)
        self._number = 0

    def start(self, kind: str, title: str, work: Callable[[Job], dict[str, Any] | None]) -> Job:
        with self._guard:
            if self.running(kind):
                raise Problem(409, f"This is already being done: {title[:1].lower()}{title[1:]}.", retry_after=5)
            self._number += 1
            job = Job(f"j{self._number}", kind, title)
            self._kept.appendleft(job)
        self._pool.submit(self._do, job, work)
        return job

    def _do(self, job: Job, work: Callable[[Job], dict[str, Any] | None]) -> None:
        try:
            with listening(job.hear):
                if job.stopping.is_set():
                    raise KeyboardInterrupt
                job.result = work(job)
            job.state = "finished"
        except KeyboardInterrupt:
            job.state, job.sentence = "stopped", "Stopped. What was finished is kept."
        except LookalikeError as error:
            job.state, job.sentence = "failed", str(error)
        except Exception:
            log.exception("a job failed", extra={"job": job.id, "kind": job.kind})
            job.state, job.sentence = "failed", "Something went wrong in the server; its log says more."

    def running(self, kind: str | None = None) -> Job | None:
        """The oldest job (of a kind) that is not done."""
        return next((j for j in reversed(self._kept) if j.state == "running" and kind in (None, j.kind)), None)

    def last(self, kind: str) -> Job | None:
        return next((job for job in self._kept if job.kind == kind), None)

    def list(self) -> list[Job]:
        return list(self._kept)

    def stop(self, name: str) -> Job:
        job = next((job for job in self._kept if job.id == name), None)
        if job is None:
            raise Problem(404, f"There is no job `{name}`.")
        job.stopping.set()
        return job

    def close(self) -> None:
        for job in self.list():
            job.stopping.set()
        self._pool.shutdown(wait=True, cancel_futures=True)
