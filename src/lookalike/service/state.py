"""What the service holds while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookalike.core.locks import Locked
from lookalike.searching import Index
from lookalike.searching.folder_watcher import FolderWatcher
from lookalike.searching.payload import public_columns
from lookalike.searching.removal import remove_rows
from lookalike.service.auth import KeyStore
from lookalike.service.duplicate_review import Desk
from lookalike.service.encoder import Encoder
from lookalike.service.limits import Limits, WorkerPool
from lookalike.service.open_index import Changing, Follower, Live
from lookalike.service.reports import Reports
from lookalike.service.tasks import Jobs
from lookalike.store import Record


@dataclass
class Service:
    """An index with all that answers need; one for each running app."""

    first: Index
    runs: list[Path]
    keep_days: float = 7.0
    limits: Limits = field(default_factory=Limits)
    keys: KeyStore = field(default_factory=KeyStore)
    originals: bool = False  # read keys may have originals too
    keep_metadata: bool = False
    watch: float = 0.0  # seconds between two looks at the folder; 0: never

    def __post_init__(self) -> None:
        self.changing = Changing(Live(self.first, self.keep_days))
        self.reports = Reports(self.runs)
        self.jobs = Jobs()
        self.desk = Desk()
        self.watched = FolderWatcher(self.first.source, self.first.manifest.layout, self.first.manifest.split)
        self.follower = Follower(self)
        # Uploads hold a thread until the model has answered: as many as fill its batches while others are decoded.
        self.asking = WorkerPool(threads=32, capacity=64)
        self.showing = WorkerPool(threads=4, capacity=64)  # thumbnails, tiles, originals
        self.health = WorkerPool(threads=1, capacity=16)

    @property
    def live(self) -> Live:
        return self.changing.now

    @property
    def index(self) -> Index:
        return self.live.index

    @property
    def encoder(self) -> Encoder:
        return self.live.encoder

    def start(self) -> None:
        """Load map and model beside the first requests, so that the first search does not wait; follow the index."""
        threading.Thread(target=self.live.warm, name="lookalike-warm", daemon=True).start()
        self.follower.start()

    def leave(self, rows: list[str]) -> None:
        """Take rows out of the index at once: their files were moved away. The next update finds nothing left to do."""
        if rows:
            try:
                remove_rows(self.index, rows)
            except Locked:
                return  # an update is at work; the next one finds them gone
            self.follower.look()

    def close(self) -> None:
        self.keys.save_usage()
        self.follower.stop()
        self.jobs.close()
        for pool in (self.asking, self.showing, self.health):
            pool.close()
        self.live.close()


def card(record: Record) -> dict[str, Any]:
    """What the page needs to show an image."""
    return {"id": record.id, "columns": public_columns(record.payload), **shape(record.payload)}


def shape(payload: dict[str, Any]) -> dict[str, Any]:
    """Where its thumbnail is, and what stands in its place until it is there."""
    return {
        "thumb": payload.get("content_id", ""),
        "ratio": payload.get("_ratio", 1.0),
        "color": payload.get("_color", "#888888"),
    }
