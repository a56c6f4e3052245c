"""Following a folder: look again and again, and act when something changed and has come to rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.progress import say, silent, warn

EVERY = 5.0  # seconds between two looks
SHARE = 10  # a look may take a tenth of the time between looks: a million files are not scanned all day
REST = 60  # looks, at most, between two trials of what fails again and again


class FolderWatcher:
    """What a folder looked like when it was last looked at: names, sizes, times and lists; no image is opened."""

    def __init__(self, source: Path, layout: str = "auto", split: str | None = None) -> None:
        self.source, self.layout, self.split = source, layout, split
        self._seen = self._acted = ""
        self._failed = self._rest = 0

    def begin_update(self) -> None:
        """It is being acted on as it is now; what changes meanwhile is another change."""
        self._seen = self._acted = self._look()

    def changed(self) -> bool:
        """Whether it differs from what was acted on; not before two looks agree, as files may still be arriving."""
        before, self._seen = self._seen, self._look()
        self._rest -= 1
        if self._seen == self._acted or self._seen != before or self._rest > 0:
            return False
        self._acted = self._seen
        return True

    def end_update(self, success: bool) -> None:
        """Whether what was to be done is done. If not, it is tried again, less and less often."""
        self._failed = 0 if success else self._failed + 1
        self._rest = 0 if success else min(2**self._failed, REST)
        self._acted = self._acted if success else ""

    def _look(self) -> str:
        from lookalike.data import read_table

        try:
            with silent():  # the run that follows warns
                table = read_table(self.source, layout=self.layout, split=self.split)
        except (LookalikeError, OSError) as error:
            return f"cannot be read: {error}"  # an unplugged drive is no reason to end; nor is it a deletion
        listed = [name for name in table.names if name not in ("row_id", "path", "size", "mtime_ns")]
        return hash_bytes(table.fingerprint(), *(f"{name} {table.arrow[name].to_pylist()}" for name in listed))


def watch(
    update: Callable[[], object],
    watched: FolderWatcher,
    *,
    every: float = EVERY,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Call `update` whenever the folder has changed, until Ctrl-C."""
    say(f"Watching  {watched.source} (Ctrl-C ends it)")
    told = ""
    try:
        while True:
            begin = time.monotonic()
            if watched.changed():
                try:
                    say(str(update()))
                    told = ""
                except (LookalikeError, OSError) as error:  # an empty folder, a busy index, a full disk: told once
                    if repr(error) != told:
                        warn(f"Not brought up to date, and tried again later: {error}")
                    told = repr(error)
                watched.end_update(success=not told)
            sleep(max(every, SHARE * (time.monotonic() - begin)))
    except KeyboardInterrupt:
        say("Stopped watching.")
