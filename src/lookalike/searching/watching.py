"""Following a folder: look again and again, and act when something changed and has come to rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import say, warn

EVERY = 5.0  # seconds between two looks
SHARE = 10  # a look may take a tenth of the time between looks: a million files are not scanned all day


class Watched:
    """What a folder looked like when it was last looked at: names, sizes and times, nothing is opened."""

    def __init__(self, source: Path, layout: str = "auto", split: str | None = None) -> None:
        self.source, self.layout, self.split = source, layout, split
        self._seen: str | None = None
        self._acted: str | None = None

    def changed(self) -> bool:
        """Whether it differs from what was acted on; not before two looks agree, as files may still be arriving."""
        now = self._look()
        settled = now == self._seen
        if self._acted is None:
            self._acted = now
        self._seen = now
        if settled and now != self._acted:
            self._acted = now
            return True
        return False

    def _look(self) -> str:
        from lookalike.data import read_table

        try:
            return read_table(self.source, layout=self.layout, split=self.split).fingerprint()
        except LookalikeError as error:
            return f"cannot be read: {error}"  # an unplugged drive is no reason to end; nor is it a deletion


def watch(
    update: Callable[[], object], watched: Watched, *, every: float = EVERY, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Call `update` whenever the folder has changed, until Ctrl-C."""
    say(f"Watching  {watched.source} (Ctrl-C ends it)")
    watched.changed()
    try:
        while True:
            begin = time.monotonic()
            if watched.changed():
                try:
                    say(str(update()))
                except LookalikeError as error:  # an empty folder, a busy index: told, and tried again later
                    warn(str(error))
            sleep(max(every, SHARE * (time.monotonic() - begin)))
    except KeyboardInterrupt:
        say("Stopped watching.")
