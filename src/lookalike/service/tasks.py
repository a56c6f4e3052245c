"""Background jobs of the service: the job queue, and what update, switch, map and duplicates do."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress, progress_listener
from lookalike.searching import Index, generations, image_map
from lookalike.searching.indexing import update_index
from lookalike.service.http_errors import Problem, without_folders

if TYPE_CHECKING:
    from lookalike.service.state import Service

MAX_JOBS = 20  # remembered
UPDATED_FIELDS = ("images", "new", "changed", "moved", "deleted", "unchanged", "seconds")
log = logging.getLogger("lookalike.service")


@dataclass
class Job:
    """A background job and its progress.

    Args:
        id: Its id.
        kind: `index`, `switch`, `map` or `duplicates`.
        title: What it does, for people.
        phase: The current step.
        done: Finished items of the step.
        total: All items of the step, if known.
        state: `running`, `finished`, `stopped` or `failed`.
        message: How it ended, in one sentence.
        result: Figures of a finished job.
        stop_requested: Set to stop the job at its next step.
    """

    id: str
    kind: str
    title: str
    phase: str = ""
    done: int = 0
    total: int | None = None
    state: str = "running"
    message: str = ""
    result: dict[str, Any] | None = None
    stop_requested: threading.Event = field(default_factory=threading.Event)
    _phase_start: float = 0.0

    def on_progress(self, progress: Progress) -> None:
        """Record progress; raises `KeyboardInterrupt` once a stop was requested."""
        if progress.what != self.phase:
            self.phase, self._phase_start = progress.what, time.monotonic()
        self.done, self.total = progress.done, progress.total
        if self.stop_requested.is_set():
            raise KeyboardInterrupt

    @property
    def seconds_left(self) -> int | None:
        """Estimated seconds until the step is finished."""
        if self.state != "running" or not self.total or not self.done:
            return None
        return round((time.monotonic() - self._phase_start) * (self.total - self.done) / self.done)

    def to_json(self) -> dict[str, Any]:
        """The job as the API shows it."""
        names = ("id", "kind", "title", "phase", "done", "total", "seconds_left", "state", "message", "result")
        return {name: getattr(self, name) for name in names}


Task = Callable[..., dict[str, Any] | None]  # gets the job first


class Jobs:
    """A queue of background jobs; one runs at a time in a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lookalike-job")
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque(maxlen=MAX_JOBS)
        self._number = 0

    def start(self, kind: str, title: str, task: Task, *args: Any) -> Job:
        """Queue `task(job, *args)`; `Problem` 409 if another job of this kind is queued or running."""
        with self._lock:
            if self.running(kind):
                raise Problem(409, f"Already running: {title[:1].lower()}{title[1:]}.", retry_after=5)
            self._number += 1
            job = Job(f"j{self._number}", kind, title)
            self._jobs.appendleft(job)
        self._pool.submit(self._run, job, task, args)
        return job

    def _run(self, job: Job, task: Task, args: tuple[Any, ...]) -> None:
        try:
            with progress_listener(job.on_progress):
                if job.stop_requested.is_set():
                    raise KeyboardInterrupt
                job.result = task(job, *args)
            job.state = "finished"
        except KeyboardInterrupt:
            job.state, job.message = "stopped", "Stopped. Finished work is kept."
        except LookalikeError as error:
            job.state, job.message = "failed", without_folders(str(error))
        except Exception:
            log.exception("a job failed", extra={"job": job.id, "kind": job.kind})
            job.state, job.message = "failed", "Something went wrong in the server; its log says more."

    def running(self, kind: str | None = None) -> Job | None:
        """The oldest unfinished job, optionally of a kind."""
        return next((j for j in reversed(self._jobs) if j.state == "running" and kind in (None, j.kind)), None)

    def last(self, kind: str) -> Job | None:
        """The newest job of a kind."""
        return next((job for job in self._jobs if job.kind == kind), None)

    def list(self) -> list[Job]:
        """The remembered jobs, newest first."""
        return list(self._jobs)

    def stop(self, name: str) -> Job:
        """Request a job to stop at its next step; `Problem` 404 if there is no such job."""
        job = next((job for job in self._jobs if job.id == name), None)
        if job is None:
            raise Problem(404, f"There is no job `{name}`.")
        job.stop_requested.set()
        return job

    def close(self) -> None:
        """Stop running jobs and end the queue."""
        for job in self.list():
            job.stop_requested.set()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _options(index: Index) -> dict[str, Any]:
    layout, split = index.manifest.layout, index.manifest.split
    return {"layout": layout, "split": split, "device": index.device, "progress": False}


def update(job: Job, service: Service) -> dict[str, Any]:
    """Update the live generation from its image folder."""
    with service.switcher.lease() as live:
        index = live.index
        done = update_index(index.source, index.path, model=index.embedder, **_options(index))
        service.follower.refresh()
    job.message = f"{done.counts}."
    return {name: getattr(done, name) for name in UPDATED_FIELDS} | {"unreadable": len(done.unreadable)}


def start_update(service: Service) -> None:
    """Update the live generation in the background, unless that is being done already."""
    with contextlib.suppress(Problem):
        service.jobs.start("index", "Updating the index", update, service)


def switch(job: Job, service: Service, model: str) -> dict[str, Any]:
    """Embed the index with another model, compare the two generations, and make the new one live."""
    with service.switcher.lease() as live:
        index = live.index
        options = _options(index) | {"model": model, "store": index.generation.store, "live": False}
        done = update_index(index.source, index.path, **options)
        if done.generation == index.generation.number:
            job.message = f"{done.model} is already live."
            return {"generation": done.generation, "before": done.generation}
        with Index.open(index.path, generation=done.generation) as new:
            comparison = generations.compare_generations(index, new)
        generations.switch(index=index.path, to=done.generation)
        is_live = service.follower.wait_until_live()
    switched = f"Switched to {done.model}. The old index is kept."
    later = f"{done.model} becomes live as soon as its index, which is still in use, is free."
    job.message = switched if is_live else later
    return {"generation": done.generation, "before": index.generation.number, **comparison}


def draw_map(job: Job, service: Service, again: bool) -> dict[str, Any]:
    """Draw the map of the live generation, or update it unless `again` is set."""
    with service.switcher.lease() as live:
        drawn = image_map.draw_map(live.index, again=again, progress=False, sketch=live.show_sketch)
    return {"n": len(drawn), "neighbor_recall": list(drawn.neighbor_recall), "number": drawn.number}


def find_duplicates(job: Job, service: Service) -> dict[str, Any]:
    """Search the live generation for duplicates."""
    with service.switcher.lease() as live:
        return service.duplicates.find(live.index)
