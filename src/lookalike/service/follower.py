"""Keeps the service in step with its index: another generation made live, rows written by others, a watched folder."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.searching import manifest as manifests
from lookalike.service.open_index import Live

if TYPE_CHECKING:
    from lookalike.service.jobs import Job
    from lookalike.service.state import Service

EVERY = 1.0
log = logging.getLogger("lookalike.service")


class Follower:
    """A thread that looks at the manifest every second; the manifest says which generation answers."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._ended = threading.Event()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looked = time.monotonic()
        self._job: Job | None = None  # what the watched folder asked for

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lookalike-follower", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def _run(self) -> None:
        told = ""
        while not self._ended.wait(EVERY):
            try:
                self.look()
                self._watch()
                told = ""
            except (
                Exception
            ) as error:  # what answers goes on answering; the same trouble is told once, not every second
                if repr(error) != told:
                    ours = isinstance(error, LookalikeError)
                    facts = {"reason": str(error)}
                    log.warning("the index could not be looked at", extra=facts, exc_info=None if ours else error)
                told = repr(error)

    def look(self) -> bool:
        """Change to what the manifest calls live; whether something was changed."""
        with self._guard:
            index = self.service.index
            manifest = manifests.read(index.path)
            wanted, now = manifest.generation(), index.generation
            if (wanted.number, wanted.writes, wanted.complete) == (now.number, now.writes, now.complete):
                return False
            if wanted.number == now.number and not wanted.complete:
                return False  # it is being written to; what is stored so far can be found already
            try:
                new = index.again()
            except Locked:
                return False  # whoever made it has not closed it yet
            live = Live(new, self.service.keep_days, self.service.live.shown)
            try:
                live.warm()
            except BaseException:  # nothing of it stays: its store could not be opened a second time
                index.take_back(new)
                live.close()
                raise
            self.service.changing.change(live)
            log.info("another state of the index answers", extra={"generation": wanted.number})
            return True

    def follow(self, patience: float = 10.0) -> bool:
        """Look until the generation that the manifest names answers; whether it does."""
        deadline = time.monotonic() + patience
        while True:
            self.look()
            if self.service.index.generation.number == manifests.read(self.service.index.path).live:
                return True
            if time.monotonic() > deadline:
                return False  # whoever holds its store will let go of it; the thread goes on looking
            time.sleep(0.05)

    def _watch(self) -> None:
        from lookalike.service.tasks import update

        service = self.service
        if not service.watch or service.jobs.running() or time.monotonic() - self._looked < service.watch:
            return
        begin = time.monotonic()
        if self._job is not None:
            service.watched.acted(well=self._job.state != "failed")
            self._job = None
        if service.watched.changed():
            self._job = service.jobs.start("index", "Bringing the index up to date", update(service))
        # A large folder is not looked through all the time.
        self._looked = time.monotonic() + 9 * (time.monotonic() - begin)
