"""Uploaded questions, kept for a few days so that their links work: a small image and the vector."""

from __future__ import annotations

import re
import secrets
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_bytes, write_json
from lookalike.core.folders import last_used, private_folder
from lookalike.service.errors import Problem

if TYPE_CHECKING:
    from lookalike.service.encoder import Encoder

NAME = re.compile(r"u\.[0-9a-f]{16}")
MOST = 1_000  # kept at once, and as many more as come between two looks
EVERY, PAUSE = 20, 60.0  # uploads, or seconds, from one look at what is too old or too many to the next


@dataclass(frozen=True)
class Query:
    id: str
    vector: np.ndarray
    hash: str
    ratio: float
    model: str


class Queries:
    """A folder of kept questions; `days` 0 keeps none."""

    def __init__(self, folder: Path, *, days: float, model: str, encoder: Encoder) -> None:
        self.folder, self.days, self.model, self.encoder = folder, days, model, encoder
        self._guard, self._count, self._looked = threading.Lock(), 0, -PAUSE
        if days > 0:
            private_folder(folder)

    def keep(self, vector: np.ndarray, hash_: str, ratio: float, jpeg: bytes) -> str | None:
        if self.days <= 0:
            return None
        self._trim()
        name = f"u.{secrets.token_hex(8)}"
        write_bytes(self.folder / f"{name}.jpg", jpeg, private=True)
        document = {"vector": [float(x) for x in vector], "hash": hash_, "ratio": ratio, "model": self.model}
        write_json(self.folder / f"{name}.json", document, private=True)
        return name

    def get(self, name: str) -> Query:
        words = f"The image behind this link was kept for up to {self.days:g} days and is gone."
        if self.days <= 0:
            words = "This server keeps no images it is asked by."
        gone = Problem(410, f"{words} Drop it again to search.")
        path = self._path(name, ".json")
        if path is None or self._old(path):
            raise gone
        try:
            document: dict[str, Any] = read_json(path, "query")
        except LookalikeError:  # it went this very moment
            raise gone from None
        if document["model"] == self.model:
            vector = np.array(document["vector"], dtype=np.float32)
        else:  # another model answers now; the small image asks it
            vector = self.encoder.encode(self.image(name))
        return Query(name, vector, document["hash"], document["ratio"], document["model"])

    def image(self, name: str) -> bytes:
        path = self._path(name, ".jpg")
        try:
            if path is not None and not self._old(path):
                return path.read_bytes()
        except FileNotFoundError:
            pass  # it went this very moment
        raise Problem(404, "This image is no longer kept.")

    def forget(self, name: str) -> None:
        for ending in (".json", ".jpg"):
            path = self._path(name, ending)
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str, ending: str) -> Path | None:
        return self.folder / f"{name}{ending}" if NAME.fullmatch(name) else None

    def _old(self, path: Path) -> bool:
        return time.time() - last_used(path) > self.days * 86_400  # also what is not there

    def _trim(self) -> None:
        """Now and then, forget what is too old or too many; several threads, and servers, may do so at once."""
        with self._guard:
            self._count += 1
            if self._count < EVERY and time.monotonic() < self._looked + PAUSE:
                return
            self._count, self._looked = 0, time.monotonic()
        files = sorted(self.folder.glob("u.*.jpg"), key=last_used)
        for path in [p for p in files if self._old(p)] + files[: max(0, len(files) - MOST + 1)]:
            self.forget(path.stem)
