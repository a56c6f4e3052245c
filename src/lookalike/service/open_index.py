"""The open index: the generation that answers, and following the index to its next state without failed requests."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import in_use
from lookalike.searching import Index, image_map
from lookalike.searching import manifest as manifests
from lookalike.searching.locate import path_key
from lookalike.service.encoder import Encoder
from lookalike.service.http_errors import Problem
from lookalike.service.image_files import Thumbnails
from lookalike.service.limits import PIXEL_BUDGET, check_deadline
from lookalike.service.map_data import MAX_CORNERS, MapData, PreviousMap
from lookalike.service.uploads import SavedQueries
from lookalike.store import Condition, Record

if TYPE_CHECKING:
    from lookalike.service.state import Service
    from lookalike.service.tasks import Job

AREA = re.compile(r"area:\d+\.([0-9a-fA-F]{6}){3,}")
FOLLOW_SECONDS = 1.0
log = logging.getLogger("lookalike.service")


class OpenIndex:
    """An open generation of an index with its encoder, thumbnails, saved queries and map.

    Args:
        index: The opened index.
        keep_days: Days for which uploaded queries are kept.
        shown_map: The map that pages show, of a previous state of the index.
    """

    def __init__(self, index: Index, keep_days: float, shown_map: PreviousMap | None = None) -> None:
        self.index = index
        self._in_use = contextlib.ExitStack()
        self._in_use.enter_context(in_use(index.path, f"The index `{index.name}` is being deleted."))
        self.encoder = Encoder(index)
        self.thumbnails = Thumbnails(index)
        model = index.generation.model.fingerprint
        self.queries = SavedQueries(path_key(index.path), days=keep_days, model=model, encoder=self.encoder)
        self.users, self.closing = 0, False
        self.shown_map = shown_map
        self.views: dict[Any, Any] = {}  # orders of Browse
        self.tag_changes = 0
        self._map: MapData | None = None
        self._map_version: tuple[int, ...] | None = None
        self._map_lock = threading.Lock()

    @property
    def min_side(self) -> float:
        """The short side in pixels that the model needs of an image."""
        preprocess = self.index.generation.preprocess
        return float(preprocess["size"]) / float(preprocess["crop"])

    def record(self, name: str) -> Record:
        """The record of a row with its vector; `Problem` 404 if there is none."""
        record = self.index.store.get([name], vectors=True)[0]
        if record is None:
            raise Problem(404, f"There is no image `{name}` in the index `{self.index.name}`.")
        return record

    def records(self, names: list[str]) -> list[Record]:
        """The records of rows, without vectors; missing ones are left out."""
        return [record for record in self.index.store.get(names) if record is not None]

    def scan(self, where: Sequence[Condition], **options: Any) -> Iterator[list[Record]]:
        """Batches of the records that meet conditions, until the request's deadline or the end of the server."""
        for batch in self.index.store.scan(where=where, **options):
            check_deadline()
            yield batch

    def where(self, filters: list[str]) -> list[Condition]:
        """Parse filters: those of the command line, also with a colon for the equals sign, and `area:…` of the map."""
        areas = [text for text in filters if self._is_area(text)]
        conditions = self.index.where([self._with_equals(text) for text in filters if text not in areas])
        if not areas:
            return conditions
        map_data = self.map_data
        if map_data is None:
            raise Problem(410, "There is no map of this index yet.")
        areas = [text.removeprefix("area:") for text in areas]
        if sum(map(len, areas)) > 6 * MAX_CORNERS + 11 * len(areas):  # six digits per corner, after number and dot
            raise Problem(422, f"Regions of the map have at most {MAX_CORNERS} corners in total; draw a simpler one.")
        return conditions + [map_data.area(text) for text in areas]

    def _with_equals(self, text: str) -> str:
        """A filter that the page writes with a colon, with an equals sign."""
        for name in sorted(self.index.columns, key=len, reverse=True):
            for sign in (":", "!:"):
                if text.startswith(f"{name}{sign}"):
                    return f"{name}{sign[:-1]}={text[len(name) + len(sign) :]}"
        return text

    def _is_area(self, text: str) -> bool:
        """Whether a filter is a region of the map: a column may be called `area`, too."""
        return text.startswith("area:") and ("area" not in self.index.columns or bool(AREA.fullmatch(text)))

    @property
    def map_data(self) -> MapData | None:
        """The stored map, or a sketch until it is drawn; None if there is neither."""
        with self._map_lock:
            version = image_map.file_version(self.index.folder)
            if version is not None and version != self._map_version:
                stored = image_map.Map.load(self.index.folder)
                self._map_version = version
                if stored is not None:
                    self._show(stored)
            return self._map

    @property
    def map_is_current(self) -> bool:
        """Whether the stored map contains all images of the index."""
        map_data = self.map_data
        return image_map.is_current(self.index, map_data.map if map_data else None)

    def show_sketch(self, sketch: image_map.Map) -> None:
        """Show a rough map while the final one is being drawn."""
        with self._map_lock:
            self._show(sketch)

    def _show(self, map_: image_map.Map) -> None:
        self._map = MapData(map_, self, self.shown_map)
        self.shown_map = (self._map.number, map_)

    def warm(self) -> None:
        """Load what the first requests need: the map and the model."""
        try:
            _ = self.map_data and self.map_data.records
        except Exception:  # only the map is missing then, and requests for it fail
            log.exception("the map could not be read")
        try:
            self.encoder.warm()
        except LookalikeError as error:  # requests that need the model say the same
            log.warning("the model could not be loaded", extra={"reason": str(error)})

    def close(self) -> None:
        """Close the encoder and the index."""
        self.closing = True
        self.queries.write_pending()
        self.encoder.close()
        self.index.close()
        self._in_use.close()


class IndexSwitcher:
    """Holds the live index; a request keeps the one it began with, and the last one closes an old index."""

    def __init__(self, first: OpenIndex) -> None:
        self.now = first
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lease(self) -> Iterator[OpenIndex]:
        """Use the live index until the block ends."""
        with self._lock:
            live = self.now
            live.users += 1
        try:
            yield live
        finally:
            with self._lock:
                live.users -= 1
                last = live.users == 0 and live is not self.now
            if last:
                _close(live)

    def change(self, new: OpenIndex) -> None:
        """Make another index live; the old one is closed when nothing uses it."""
        with self._lock:
            old, self.now = self.now, new
            unused = old.users == 0
        if unused:
            _close(old)


def _close(live: OpenIndex) -> None:
    """Close in a thread, since it waits for the encoder's last batch."""
    threading.Thread(target=live.close, name="lookalike-close", daemon=True).start()


class IndexFollower:
    """A thread that follows the index: a new live generation, rows written by others, a watched folder."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._next_scan = time.monotonic()
        self._job: Job | None = None  # the update that a change of the watched folder started

    def start(self) -> None:
        """Start the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lookalike-follower", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=60)

    def _run(self) -> None:
        logged = ""
        while not self._stopped.wait(FOLLOW_SECONDS):
            try:
                PIXEL_BUDGET.trim(if_idle=True)
                self.refresh()
                self._scan_folder()
                logged = ""
            except Exception as error:  # requests are still answered; the same error is logged once
                if repr(error) != logged:
                    trace = None if isinstance(error, LookalikeError) else error
                    log.warning("the index could not be read", extra={"reason": str(error)}, exc_info=trace)
                logged = repr(error)

    def refresh(self) -> bool:
        """Change to the state that the manifest names; whether there was a change."""
        with self._lock:
            index = self.service.index
            target, now = manifests.read(index.path).generation(), index.generation
            same = (target.number, target.writes, target.complete) == (now.number, now.writes, now.complete)
            if same or (target.number == now.number and not target.complete):
                return False  # one that is being written is open already, with the rows stored so far
            new = index.reopen()
            live = OpenIndex(new, self.service.keep_days, self.service.live.shown_map)
            try:
                live.warm()
            except BaseException:
                live.close()
                raise
            self.service.switcher.change(live)
            log.info("another state of the index is live", extra={"generation": target.number})
            return True

    def wait_until_live(self, timeout: float = 10.0) -> bool:
        """Refresh until the generation that the manifest names is live; whether it is after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self.refresh()
            live = self.service.index.generation.number == manifests.read(self.service.index.path).live
            if live or time.monotonic() > deadline:
                return live
            time.sleep(0.05)

    def _scan_folder(self) -> None:
        from lookalike.service.tasks import update

        service = self.service
        if not service.watch or service.jobs.running() or time.monotonic() - self._next_scan < service.watch:
            return
        start = time.monotonic()
        if self._job is not None:
            service.watched.end_update(success=self._job.state != "failed")
            self._job = None
        if service.watched.changed():
            self._job = service.jobs.start("index", "Updating the index", update, service)
        # Scanning takes at most a tenth of the time, also for a large folder.
        self._next_scan = time.monotonic() + 9 * (time.monotonic() - start)
