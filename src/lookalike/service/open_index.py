"""`Live`: a generation that answers, and the change from one to the next without a failed request."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.searching import Index, image_map
from lookalike.searching import manifest as manifests
from lookalike.searching.locate import path_key
from lookalike.service.encoder import Encoder
from lookalike.service.http_errors import Problem
from lookalike.service.image_files import Thumbs
from lookalike.service.map_data import CORNERS, Before, Plane
from lookalike.service.uploads import SavedQueries
from lookalike.store import Condition, Record

if TYPE_CHECKING:
    from lookalike.service.state import Service
    from lookalike.service.tasks import Job

AREA = re.compile(r"area:\d+\.([0-9a-fA-F]{6}){3,}")
log = logging.getLogger("lookalike.service")


class Live:
    """An opened generation with what answers need of it."""

    def __init__(self, index: Index, keep_days: float, shown: Before | None = None) -> None:
        self.index = index
        self.encoder = Encoder(index)
        self.thumbs = Thumbs(index)
        kept = folders.home() / "queries" / path_key(index.path)
        self.queries = SavedQueries(
            kept, days=keep_days, model=index.generation.model.fingerprint, encoder=self.encoder
        )
        self.users = 0
        self.shown = shown  # the last map on people's screens, of another state or model
        self._plane: Plane | None = None
        self._mark: tuple[int, ...] | None = None
        self._drawing = threading.Lock()

    @property
    def side(self) -> float:
        """The short side that the model needs of an image."""
        wanted = self.index.generation.preprocess
        return float(wanted["size"]) / float(wanted["crop"])

    def record(self, name: str) -> Record:
        found = self.index.store.get([name], vectors=True)[0]
        if found is None:
            raise Problem(404, f"There is no image `{name}` in the index `{self.index.name}`.")
        return found

    def records(self, names: list[str]) -> list[Record]:
        """Those that are still there, without their vectors."""
        return [record for record in self.index.store.get(names) if record is not None]

    def where(self, filters: list[str]) -> list[Condition]:
        """`label:gull`, `label!:gull`, `path:sea/*` as the page writes them."""
        from lookalike.searching.filters import parse

        drawn = [self._drawn(text) for text in filters]
        areas = [text.removeprefix("area:") for text, it in zip(filters, drawn, strict=True) if it]
        others = [text for text, it in zip(filters, drawn, strict=True) if not it]
        conditions = parse(others, self.index.columns, sign=":")
        self.index.check_columns(condition.column for condition in conditions)
        if not areas:
            return conditions
        plane = self.plane
        if plane is None:
            raise Problem(410, "There is no map of this index yet.")
        if sum(map(len, areas)) > 6 * CORNERS + 11 * len(areas):  # six digits a corner, after the number and a dot
            raise Problem(422, f"Parts of the map have at most {CORNERS} corners in all; choose a simpler one.")
        return conditions + [plane.area(text) for text in areas]

    def _drawn(self, text: str) -> bool:
        """Whether a filter is a part of the map: a column may be called `area`, too."""
        return text.startswith("area:") and ("area" not in self.index.columns or bool(AREA.fullmatch(text)))

    @property
    def plane(self) -> Plane | None:
        """The map as it is stored now, or what stands in until it is drawn."""
        with self._drawing:
            mark = image_map.file_version(self.index.folder)
            if mark is not None and mark != self._mark:
                stored = image_map.Map.load(self.index.folder)
                self._mark = mark
                if stored is not None:
                    self._show(stored)
            return self._plane

    @property
    def map_is_fresh(self) -> bool:
        plane = self.plane
        return image_map.is_current(self.index, plane.map if plane else None)

    def show_sketch(self, sketch: image_map.Map) -> None:
        with self._drawing:
            self._show(sketch)

    def _show(self, map_: image_map.Map) -> None:
        self._plane = Plane(map_, self, self.shown)
        self.shown = (self._plane.number, map_)

    def warm(self) -> None:
        """What the first answers need: the map as it travels, and the model."""
        try:
            plane = self.plane
            if plane is not None:
                plane.records  # noqa: B018
        except Exception:  # the map alone is missing then, and whoever asks for it is told
            log.exception("the map could not be read")
        self.encoder.warm()

    def close(self) -> None:
        self.encoder.close()
        self.index.close()


class Changing:
    """Which generation answers now. A request keeps the one it began with; the last one out closes the door."""

    def __init__(self, first: Live) -> None:
        self.now = first
        self._guard = threading.Lock()

    @contextlib.contextmanager
    def lease(self) -> Iterator[Live]:
        with self._guard:
            live = self.now
            live.users += 1
        try:
            yield live
        finally:
            with self._guard:
                live.users -= 1
                last = live.users == 0 and live is not self.now
            if last:
                _close(live)

    def change(self, new: Live) -> None:
        with self._guard:
            old, self.now = self.now, new
            unused = old.users == 0
        if unused:
            _close(old)


def _close(live: Live) -> None:
    """Beside the requests: it waits for the encoder's last batch."""
    threading.Thread(target=live.close, name="lookalike-close", daemon=True).start()


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
                new = index.reopen()
            except Locked:
                return False  # whoever made it has not closed it yet
            live = Live(new, self.service.keep_days, self.service.live.shown)
            try:
                live.warm()
            except BaseException:  # nothing of it stays: its store could not be opened a second time
                index.reclaim_store(new)
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
            service.watched.end_update(success=self._job.state != "failed")
            self._job = None
        if service.watched.changed():
            self._job = service.jobs.start("index", "Bringing the index up to date", update(service))
        # A large folder is not looked through all the time.
        self._looked = time.monotonic() + 9 * (time.monotonic() - begin)
