"""`Live`: a generation that answers, and the change from one to the next without a failed request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from lookalike.core import folders
from lookalike.core.files import hash_bytes
from lookalike.searching import Index, mapping
from lookalike.service.encoder import Encoder
from lookalike.service.plane import Plane
from lookalike.service.problems import Problem
from lookalike.service.queries import Queries
from lookalike.service.thumbs import Thumbs
from lookalike.store import Condition, Record


class Live:
    """An opened generation with what answers need of it."""

    def __init__(self, index: Index, keep_days: float) -> None:
        self.index = index
        self.encoder = Encoder(index)
        self.thumbs = Thumbs(index)
        kept = folders.home() / "queries" / hash_bytes(str(index.path))[:12]
        self.queries = Queries(kept, days=keep_days, model=index.generation.model.fingerprint, encoder=self.encoder)
        self.users = 0
        self._plane: Plane | None = None

    @property
    def side(self) -> float:
        """The short side that the model needs of a picture."""
        wanted = self.index.generation.preprocess
        return float(wanted["size"]) / float(wanted["crop"])

    def record(self, name: str) -> Record:
        found = self.index.store.get([name], vectors=True)[0]
        if found is None:
            raise Problem(404, f"There is no picture `{name}` in the index `{self.index.name}`.")
        return found

    def records(self, names: list[str]) -> list[Record]:
        """Those that are still there, without their vectors."""
        return [record for record in self.index.store.get(names) if record is not None]

    def where(self, filters: list[str]) -> list[Condition]:
        """`label:gull`, `label!:gull`, `path:sea/*` as the page writes them."""
        from lookalike.searching.filters import parse

        areas = [text.removeprefix("area:") for text in filters if text.startswith("area:")]
        conditions = parse([text.replace(":", "=", 1) for text in filters if not text.startswith("area:")])
        self.index.check_columns(condition.column for condition in conditions)
        if areas and self.plane is None:
            raise Problem(410, "There is no map of this index yet.")
        return conditions + [self.plane.area(text) for text in areas if self.plane is not None]

    @property
    def plane(self) -> Plane | None:
        """The map as it is stored now, or what stands in until it is drawn."""
        number = mapping.number_of(self.index.folder)
        if number is not None and (self._plane is None or self._plane.number != number):
            stored = mapping.Map.load(self.index.folder)
            self._plane = Plane(stored, self, self._plane) if stored is not None else None
        return self._plane

    @property
    def map_is_fresh(self) -> bool:
        return mapping.fresh(self.index, self.plane.map if self.plane else None)

    def show_sketch(self, sketch: mapping.Map) -> None:
        self._plane = Plane(sketch, self)

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
