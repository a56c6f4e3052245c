"""``GraphLoader``: checks, loads and builds the graph of a local store in the background."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from typing import TYPE_CHECKING

from lookalike.core.database import Database
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_file
from lookalike.core.locks import Locked, hold
from lookalike.core.progress import warn
from lookalike.store.graph import Graph, GraphInfo, build_graph

if TYPE_CHECKING:
    from lookalike.store.local import LocalStore, State

GRAPH_ROWS = 50_000  # below, comparing with every row is fast enough
CHANGED = 0.2  # fraction of rows added or deleted after which the graph is built again, and deleted rows are dropped


class GraphLoader:
    """The graph of a store; until it is loaded, every row is compared.

    Args:
        store: The store.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._thread = threading.Thread()
        self._loaded: tuple[int, Graph] | None = None  # with the version of the vectors
        self._attempt: tuple[int, str, bool] | None = None  # the last one to load or build it
        self._seen: State | None = None  # the last state that it was loaded or built for

    def ready(self, state: State) -> Graph | None:
        """Return the graph if it is loaded; otherwise it is checked and loaded, or built, in the background."""
        if state is not self._seen:
            if state.graph is None and state.count < GRAPH_ROWS:
                return None
            attempt = (state.version, state.graph.file if state.graph else "", is_stale(state))
            with self._guard:
                if attempt == self._attempt:
                    self._seen = state
                elif not self._thread.is_alive():
                    self._attempt = attempt
                    self._thread = threading.Thread(target=self._load, daemon=True)
                    self._thread.start()
        return self._loaded[1] if self._loaded is not None and self._loaded[0] == state.version else None

    def wait(self) -> Graph | None:
        """Return the graph, waiting until it is checked; ``None`` if there is none."""
        for _ in range(2):  # the first attempt may only have built it
            self.ready(self._store.state())
            if self._thread.ident is not None:
                self._thread.join()
        return self.ready(self._store.state())

    def _load(self) -> None:
        """Check and load the graph, so that damage is never searched; a missing, damaged or old one is built again."""
        try:
            state = self._store.state()
            if not (state.graph is not None and self._open(state.version, state.graph)) or is_stale(state):
                with (
                    hold(self._store.place / ".graph", "graph"),
                    contextlib.closing(Database(self._store.database.path, write=True)) as own,
                ):
                    self._build(own, state)
        except (LookalikeError, OSError, ValueError, sqlite3.Error):
            return  # closed, read-only, or being built by another process: rows are compared instead

    def _open(self, version: int, info: GraphInfo) -> bool:
        path = self._store.place / info.file
        if path.exists() and hash_file(path) == info.hash:
            self._loaded = (version, Graph(path, info, self._store.dim))
            return True
        warn(f"the graph of `{self._store.place}` is damaged; every row is compared until it is built again.")
        return False

    def update(self) -> None:
        """Build the graph now if it is stale, and no other process is at it."""
        state = self._store.state()
        if is_stale(state):
            with contextlib.suppress(Locked), hold(self._store.place / ".graph", "graph"):
                self._build(self._store.database, state)

    def _build(self, database: Database, state: State) -> None:
        store = self._store
        number = 1 + max((int(file.name.split("-")[2]) for file in store.place.glob("graph-*-*")), default=0)
        path = store.place / f"graph-{state.version}-{number}"
        info = build_graph(path, state.vectors, state.positions(), state.removed)
        self._loaded = (state.version, Graph(path, info, store.dim))
        with database.transaction() as connection:
            connection.execute(
                "UPDATE store SET graph = ? WHERE number = ? AND version = ?",
                (info.to_text(), store.tables.number, state.version),
            )
        store.remove_files("graph-*")


def is_stale(state: State) -> bool:
    """Return whether there are enough rows for a graph, and it is missing or a fifth of the rows has changed."""
    if state.count < GRAPH_ROWS:
        return False
    info = state.graph
    return info is None or len(state.vectors) - info.rows + state.removed - info.removed > CHANGED * state.count
