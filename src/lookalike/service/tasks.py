"""Work in the background, one piece at a time: whoever asks for it polls, and can stop it."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress, listening
from lookalike.searching import Index, generations, image_map
from lookalike.searching.indexing import update_index
from lookalike.service.http_errors import Problem

if TYPE_CHECKING:
    from lookalike.service.state import Service

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
    message: str = ""
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
        names = ("id", "kind", "title", "phase", "done", "total", "seconds_left", "state", "message", "result")
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
            job.state, job.message = "stopped", "Stopped. What was finished is kept."
        except LookalikeError as error:
            job.state, job.message = "failed", str(error)
        except Exception:
            log.exception("a job failed", extra={"job": job.id, "kind": job.kind})
            job.state, job.message = "failed", "Something went wrong in the server; its log says more."

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


Work = Callable[[Job], dict[str, Any]]


def update(service: Service) -> Work:
    """Bring the live generation up to date with its folder."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            index = live.index
            done = update_index(
                index.source,
                index.path,
                layout=index.manifest.layout,
                split=index.manifest.split,
                model=index.embedder,
                opened=index.store,
                device=index.device,
                progress=False,
            )
            service.follower.look()
        job.message = f"{done.counts}."
        names = ("images", "new", "changed", "moved", "deleted", "unchanged", "seconds")
        return {name: getattr(done, name) for name in names} | {"unreadable": len(done.unreadable)}

    return work


def switch(service: Service, model: str) -> Work:
    """Embed beside the old generation, compare the two, then let the new one answer."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            index = live.index
            done = update_index(
                index.source,
                index.path,
                model=model,
                store=index.generation.store,
                layout=index.manifest.layout,
                split=index.manifest.split,
                live=False,
                opened=index.store,
                device=index.device,
                progress=False,
            )
            if done.generation == index.generation.number:
                job.message = f"{done.model} answers already."
                return {"generation": done.generation, "before": done.generation}
            with Index.open(index.path, generation=done.generation) as new:
                found = generations.compare_generations(index, new)
            generations.switch(index=index.path, to=done.generation)
            answers = service.follower.follow()
        job.message = f"Switched to {done.model}. The old index is kept."
        if not answers:
            job.message = f"{done.model} answers as soon as its index, which is still in use, is free."
        return {"generation": done.generation, "before": index.generation.number, **found}

    return work


def draw(service: Service, *, again: bool = False) -> Work:
    """Draw the map of the live generation, or bring it up to date."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            made = image_map.draw_map(live.index, again=again, progress=False, sketch=live.show_sketch)
        return {"n": len(made), "kept": list(made.kept), "number": made.number}

    return work


def duplicates(service: Service) -> Work:
    """Look for duplicates among the images of the live generation."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            return service.desk.look(live.index)

    return work
