"""`Index`: a folder with a manifest, and for each generation its model, store, table and calibration."""

from __future__ import annotations

import dataclasses
import os
import shutil
import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lookalike.core.errors import LookalikeError, nearest
from lookalike.core.locks import Locked
from lookalike.core.progress import warn
from lookalike.searching import manifest as manifests
from lookalike.searching import score_calibration
from lookalike.searching.locate import find_index, index_for
from lookalike.searching.manifest import Generation, Manifest
from lookalike.searching.payload import open_image
from lookalike.searching.score_calibration import Scores
from lookalike.store import Record, Store, remove_store, store_class

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models import Embedder


UNREADABLE = "unreadable.txt"
TABLE = "table.parquet"


class Index:
    """An index opened for asking; `with Index.open(...) as index`. Safe to ask from several threads.

    The model, the store and the calibration are opened when first needed.
    """

    def __init__(self, path: Path, generation: int | None = None, *, device: str = "auto") -> None:
        self.path, self.device = path, device
        self.manifest: Manifest = manifests.read(path)
        self.generation = self.manifest.generation(generation)
        self._guard = threading.RLock()
        self._store: Store | None = None
        self._embedder: Embedder | None = None
        self._scores: Scores | None = None
        self._lent = False  # the store is another's to close

    @classmethod
    def open(
        cls, where: str | os.PathLike[str] | None = None, *, generation: int | None = None, device: str = "auto"
    ) -> Self:
        """By its folder, its name, the image folder it was made of, or a run; else the one last updated."""
        opened = cls(find_index(where), generation, device=device)
        opened._check_decoder()
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Index({self.name!r}, {self.generation.images:,} images, model {self.generation.model.short})"

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def source(self) -> Path:
        return Path(self.manifest.source)

    @cached_property
    def root(self) -> Path:
        """The folder that all paths are relative to: not always the source (a table may name files elsewhere)."""
        if self.generation.root is not None:
            return Path(self.generation.root)
        if (self.folder / TABLE).exists():  # made by an earlier version
            kept = self._kept_table()
            if kept.root is not None and kept.notes.get("source") == self.manifest.source:
                return kept.root
        return self.source if self.source.is_dir() else self.source.parent

    @property
    def folder(self) -> Path:
        return generation_folder(self.path, self.generation.number)

    @property
    def store(self) -> Store:
        with self._guard:
            if self._store is None:
                self._store = self._whole(open_store(self.path, self.generation))
            return self._store

    def _whole(self, store: Store, *, ours: bool = True) -> Store:
        """A store that lost rows behind our back is told, not asked."""
        have, wanted = store.count(), self.generation.images
        if self.generation.complete and have != wanted:
            if ours:
                store.close()
            raise LookalikeError(
                f"The index `{self.name}` is damaged: it holds {have:,} of {wanted:,} images. "
                f"{self._command} repairs it."
            )
        return store

    @property
    def _command(self) -> str:
        """What a user types to bring this index up to date."""
        named = "" if index_for(self.source) == self.path else f" --index {self.path}"
        return f"`lookalike index {self.source}{named}`"

    def _check_decoder(self) -> None:
        """Queries are decoded by what is installed now: it must see what the images' decoder saw."""
        from lookalike.data.decoding import DECODER

        made = self.generation.decoder
        if made in ("", DECODER):
            return
        anew = f"{self._command} embeds its images anew."
        if made.partition("/")[0] != DECODER.partition("/")[0]:
            raise LookalikeError(
                f"The images of the index `{self.name}` were decoded in another way ({made}) than queries are now "
                f"({DECODER}): {anew}"
            )
        warn(f"the index `{self.name}` was made with {made}, here is {DECODER}: scores may differ a little. {anew}")

    @property
    def embedder(self) -> Embedder:
        """The model that made the vectors, from the copy the index keeps."""
        with self._guard:
            if self._embedder is None:
                self._embedder = load_model(self.folder / "model", self.device)
            return self._embedder

    @property
    def supports_text(self) -> bool:
        """Whether the model has a text side, so that words can ask."""
        return bool(self.generation.words)

    def embed_text(self, text: str) -> np.ndarray:
        """The unit vector of some words; `LookalikeError` where the model reads none."""
        if not self.supports_text:
            raise LookalikeError(
                f"The model {self.generation.model.name} reads no words: make an index with an open_clip model "
                "(`lookalike index FOLDER --model open_clip:NAME`), or search by an image."
            )
        return np.asarray(self.embedder.encode_text([text])[0])

    @property
    def scores(self) -> Scores:
        """What scores mean here."""
        with self._guard:
            if self._scores is None:
                self._scores = score_calibration.read(self.folder)
            return self._scores

    @property
    def table(self) -> Table:
        """What was indexed, as of the end of the last run, and where it lies now."""
        return dataclasses.replace(self._kept_table(), root=self.root)

    def _kept_table(self) -> Table:
        from lookalike.data import Table

        return Table.load(self.folder / TABLE)

    @property
    def columns(self) -> list[str]:
        """What can be filtered by."""
        return self.generation.columns

    def check_columns(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.columns:
                hint = nearest(name, self.columns) or f": there are {', '.join(self.columns) or 'none'}."
                raise LookalikeError(f"`{name}` is not a column of the index `{self.name}`{hint}")

    def open_bytes(self, record: Record | dict[str, Any]) -> bytes:
        """The file behind a row, if it lies inside the indexed folder, whatever its path says."""
        payload = record.payload if isinstance(record, Record) else record
        return open_image(self.root, payload)

    def unreadable(self) -> list[tuple[str, str]]:
        """Files that the last run could not read, with the reason."""
        path = self.path / UNREADABLE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [(name, reason) for name, _, reason in (line.partition("\t") for line in lines)]

    def reopen(self) -> Index:
        """The index as the manifest says it is now, opened beside this one; the model is shared if it is the same.

        A store that cannot be opened twice is handed over: closing this index then leaves it open.
        """
        new = Index(self.path, device=self.device)
        same = new.generation.number == self.generation.number
        with self._guard:
            if same:
                new._embedder = self._embedder
            try:
                new._store = new._whole(open_store(self.path, new.generation))
            except Locked:
                if not same or self._store is None:
                    raise
                new._store, self._lent = new._whole(self._store, ours=False), True
        return new

    def reclaim_store(self, new: Index) -> None:
        """A store that `again` handed over is this index's to close again."""
        with self._guard:
            if new._store is self._store:
                self._lent, new._lent = False, True

    def close(self) -> None:
        with self._guard:
            if self._store is not None and not self._lent:
                self._store.close()
            self._store = None


def generation_folder(path: Path, number: int) -> Path:
    return path / "generations" / str(number)


def store_place(path: Path, number: int) -> Path:
    """Where the store of a generation is, or on which server."""
    return generation_folder(path, number) / "store"


def remove_generation(path: Path, number: int) -> None:
    """Everything a generation has, on a server too."""
    remove_store(store_place(path, number))
    shutil.rmtree(generation_folder(path, number), ignore_errors=True)


def remove_generations(path: Path) -> None:
    """All that lie there: a kill, or a server that was away, may have left some that the manifest does not name."""
    for folder in path.glob("generations/[0-9]*"):
        remove_generation(path, int(folder.name))


def open_store(path: Path, generation: Generation, *, write: bool = False) -> Store:
    try:
        return store_class(generation.store).open(str(store_place(path, generation.number)), write=write)
    except Locked as error:
        raise Locked(
            f"Another process has the index `{path.name}` open (`lookalike serve`?): wait for it to end, or stop it."
        ) from error


def load_model(name: str | os.PathLike[str], device: str = "auto") -> Embedder:
    """The one door through which models come in."""
    from lookalike.models import Embedder

    return Embedder.from_pretrained(name if isinstance(name, str) else Path(name), device=device)
