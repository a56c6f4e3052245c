"""Watch a folder: scan it again and again, and update the index once a change has settled (``index --watch``)."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.progress import no_warnings, say, warn

EVERY = 5.0  # seconds between two scans
REST = 60  # scans, at most, between two attempts of an update that keeps failing
SCAN_FRACTION = 10  # a scan may take a tenth of the time between scans: a million files are not scanned all day


class FolderWatcher:
    """Detect changes of a folder by names, sizes, times and lists; no image is opened.

    Args:
        source: The folder, or a table file.
        layout: Its layout, see :func:`lookalike.data.read_table`.
        split: The split to read.
    """

    def __init__(self, source: Path, layout: str = "auto", split: str | None = None) -> None:
        self.source, self.layout, self.split = source, layout, split
        self._last = self._updated = ""
        self._failures = self._rest = 0

    def begin_update(self) -> None:
        """Note the current state as the one that is being indexed."""
        self._last = self._updated = self._scan()

    def changed(self) -> bool:
        """Scan, and return whether to update: once two scans match, as files may still be arriving."""
        before, self._last = self._last, self._scan()
        self._rest -= 1
        if self._last == self._updated or self._last != before or self._rest > 0:
            return False
        self._updated = self._last
        return True

    def end_update(self, success: bool) -> None:
        """Note the outcome of an update; a failed one is tried again, less and less often."""
        self._failures = 0 if success else self._failures + 1
        self._rest = 0 if success else min(2**self._failures, REST)
        self._updated = self._updated if success else ""

    def _scan(self) -> str:
        from lookalike.data import read_table

        try:
            with no_warnings():  # the update warns
                table = read_table(self.source, layout=self.layout, split=self.split)
        except (LookalikeError, OSError) as error:
            return f"cannot be read: {error}"  # an unplugged drive neither ends watching nor deletes images
        columns = [name for name in table.names if name not in ("row_id", "path", "size", "mtime_ns")]
        return hash_bytes(table.fingerprint(), *(f"{name} {table.arrow[name].to_pylist()}" for name in columns))


def watch(
    update: Callable[[], object],
    watcher: FolderWatcher,
    *,
    every: float = EVERY,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call a function whenever a folder has changed, until Ctrl-C."""
    say(f"Watching  {watcher.source} (Ctrl-C to stop)")
    last_error = ""
    try:
        while True:
            begin = time.monotonic()
            if watcher.changed():
                try:
                    say(str(update()))
                    last_error = ""
                except (LookalikeError, OSError) as error:  # an empty folder, a busy index, a full disk: warn once
                    if repr(error) != last_error:
                        warn(f"The index was not updated; the next attempt follows later: {error}")
                    last_error = repr(error)
                watcher.end_update(success=not last_error)
            sleep(max(every, SCAN_FRACTION * (time.monotonic() - begin)))
    except KeyboardInterrupt:
        say("Stopped watching.")
