"""The state of a running service."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.data import decoding
from lookalike.searching import Index
from lookalike.searching.folder_watcher import FolderWatcher
from lookalike.searching.payload import public_columns
from lookalike.searching.removal import remove_rows
from lookalike.service.auth import KeyStore
from lookalike.service.decode_child import isolate
from lookalike.service.duplicate_review import DuplicateReview
from lookalike.service.encoder import Encoder
from lookalike.service.limits import Limits, WorkerPool
from lookalike.service.open_index import IndexFollower, IndexSwitcher, OpenIndex
from lookalike.service.reports import Reports
from lookalike.service.tasks import Jobs
from lookalike.store import Record

log = logging.getLogger("lookalike.service")


@dataclass
class Service:
    """Everything that requests use; one for each app.

    Args:
        first: The index to serve.
        runs: Folders with runs, for reports and models.
        keep_days: Days for which uploaded queries are kept.
        limits: What one client may request.
        keys: The API keys.
        originals: Whether keys that can only read get originals.
        keep_metadata: Whether originals keep their metadata.
        watch: Seconds between two scans of the image folder; 0 means never.
        further: Further indexes that are served, each by a service of its own.
        primary: The service whose threads and keys this one shares.
    """

    first: Index
    runs: list[Path]
    keep_days: float = 7.0
    limits: Limits = field(default_factory=Limits)
    keys: KeyStore = field(default_factory=KeyStore)
    originals: bool = False
    keep_metadata: bool = False
    watch: float = 0.0
    further: Sequence[Index] = ()
    primary: Service | None = None

    def __post_init__(self) -> None:
        decoding.isolate = isolate  # also for jobs
        self.switcher = IndexSwitcher(OpenIndex(self.first, self.keep_days))
        self.jobs = Jobs()
        self.duplicates = DuplicateReview()
        self.watched = FolderWatcher(self.first.source, self.first.manifest.layout, self.first.manifest.split)
        self.follower = IndexFollower(self)
        self.services = {self.index.name: self}
        if self.primary is not None:
            for name in ("reports", "search_pool", "image_pool", "scan_pool", "health_pool"):
                setattr(self, name, getattr(self.primary, name))
            return
        self.reports = Reports(self.runs)
        # Uploads hold a thread until the model has answered: as many as fill its batches while others are decoded.
        self.search_pool = WorkerPool(threads=32, capacity=64)
        self.image_pool = WorkerPool(threads=4, capacity=64)  # thumbnails, tiles, originals
        self.scan_pool = WorkerPool(threads=4, capacity=32)  # filters over the whole index
        self.health_pool = WorkerPool(threads=1, capacity=16)
        for index in self.further:
            name, number = index.name, 2
            while name in self.services:
                name, number = f"{index.name}-{number}", number + 1
            self.services[name] = replace(self, first=index, further=(), primary=self)

    @property
    def live(self) -> OpenIndex:
        """The open index that answers now."""
        return self.switcher.now

    @property
    def index(self) -> Index:
        """The live index."""
        return self.live.index

    @property
    def encoder(self) -> Encoder:
        """The encoder of the live index."""
        return self.live.encoder

    def start(self) -> None:
        """Load map and model in the background, and start following the index."""
        threading.Thread(target=self.live.warm, name="lookalike-warm", daemon=True).start()
        self.follower.start()
        for service in self._others():
            service.start()

    def _others(self) -> list[Service]:
        return [service for service in self.services.values() if service is not self]

    def remove_rows(self, rows: list[str]) -> None:
        """Remove rows from the index at once, since their files were moved away."""
        if rows:
            try:
                remove_rows(self.index, rows)
            except Locked:
                return  # an update is running; the next one removes them
            self.follower.refresh()

    def stop_scans(self) -> None:
        """End the scans of running requests, since the server stops."""
        for service in self.services.values():
            service.live.closing = True

    def close(self) -> None:
        """Stop all threads and close the index."""
        try:
            self.keys.close()
        except LookalikeError as error:  # a full or read-only disk
            log.warning("the last use of keys was not stored", extra={"reason": str(error)})
        self.stop_scans()
        self.follower.stop()
        self.jobs.close()
        for service in self._others():
            service.close()
        for pool in (self.search_pool, self.scan_pool, self.image_pool, self.health_pool):
            pool.close()
        self.live.close()


def card(record: Record) -> dict[str, Any]:
    """An image as the API shows it: id, columns, and the fields of its thumbnail."""
    return {"id": record.id, "columns": public_columns(record.payload), **thumbnail_fields(record.payload)}


def thumbnail_fields(payload: dict[str, Any]) -> dict[str, Any]:
    """Thumbnail id of an image, with the aspect ratio and mean color of its placeholder."""
    return {
        "thumb": payload.get("content_id", ""),
        "ratio": payload.get("_ratio", 1.0),
        "color": payload.get("_color", "#888888"),
    }
