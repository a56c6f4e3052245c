"""Uploaded questions, kept for a few days so that their links work: a small picture and the vector."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import read_json, write_bytes, write_json
from lookalike.core.folders import private_folder
from lookalike.service.problems import Problem

if TYPE_CHECKING:
    from lookalike.service.encoder import Encoder

NAME = re.compile(r"u\.[0-9a-f]{16}")
MOST = 1_000


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
        gone = f"The picture behind this link was kept for {self.days:g} days and is gone. Drop it again to search."
        path = self._path(name, ".json")
        if path is None or not path.exists() or self._old(path):
            raise Problem(410, gone)
        document: dict[str, Any] = read_json(path, "query")
        if document["model"] == self.model:
            vector = np.array(document["vector"], dtype=np.float32)
        else:  # another model answers now; the small picture asks it
            vector = self.encoder.encode(self.picture(name))
        return Query(name, vector, document["hash"], document["ratio"], document["model"])

    def picture(self, name: str) -> bytes:
        path = self._path(name, ".jpg")
        if path is None or not path.exists() or self._old(path):
            raise Problem(404, "This picture is no longer kept.")
        return path.read_bytes()

    def forget(self, name: str) -> None:
        for ending in (".json", ".jpg"):
            path = self._path(name, ending)
            if path is not None:
                path.unlink(missing_ok=True)

    def _path(self, name: str, ending: str) -> Path | None:
        return self.folder / f"{name}{ending}" if NAME.fullmatch(name) else None

    def _old(self, path: Path) -> bool:
        return time.time() - path.stat().st_mtime > self.days * 86_400

    def _trim(self) -> None:
        files = sorted(self.folder.glob("u.*.json"), key=lambda path: path.stat().st_mtime)
        for path in [p for p in files if self._old(p)] + files[: max(0, len(files) - MOST + 1)]:
            self.forget(path.stem)
