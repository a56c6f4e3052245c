"""``Index``: a folder with a database and, for each generation, a model, a table and the files of its store.

This module reads; an index is written by :mod:`lookalike.searching.writer`, which is not imported here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import threading
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from lookalike.core.database import FILE, write_document
from lookalike.core.device import CPU
from lookalike.core.errors import DiskError, LookalikeError, suggest
from lookalike.core.files import MAX_BYTES, checksum
from lookalike.core.progress import warn
from lookalike.core.run import Run
from lookalike.core.storage import location
from lookalike.searching import manifest as manifests
from lookalike.searching import score_calibration
from lookalike.searching.filters import Filters, parse
from lookalike.searching.locate import find_index, index_for
from lookalike.searching.manifest import Generation, Manifest, ModelInfo
from lookalike.searching.payload import open_image
from lookalike.searching.score_calibration import Scores
from lookalike.searching.tags import Tags
from lookalike.store import Condition, Damaged, Neighbors, Record, Store, remove_store, store_class

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.models import Embedder
    from lookalike.models.inference.compiled_embedder import CompiledEmbedder


DEFAULT_MODEL = "efficientnet_lite0"
UNREADABLE = "unreadable.txt"
TABLE = "table.parquet"


class Index:
    """An index that is open for searching. Safe to use from several threads.

    The model, the store and the calibration are loaded when first needed.

    Args:
        path: Folder of the index.
        generation: Number of the generation (default: the live one).
        device: Device to run the model on.

    Example:
        >>> done = la.index(folder="photos", progress=False)  # doctest: +SKIP
        >>> with la.Index.open("photos") as index:  # doctest: +SKIP
        ...     print(index.store.count(), index.columns)
        24 ['label', 'path']
    """

    def __init__(self, path: Path, generation: int | None = None, *, device: str = "auto") -> None:
        self.path, self.device = path, device
        self.manifest: Manifest = manifests.read(path)
        self.generation = self.manifest.generation(generation)
        self._guard = threading.RLock()
        self._store: Store | None = None
        self._embedder: Embedder | None = None
        self._compiled: CompiledEmbedder | None = None
        self._scores: Scores | None = None

    @classmethod
    def open(
        cls, where: str | os.PathLike[str] | None = None, *, generation: int | None = None, device: str = "auto"
    ) -> Self:
        """Open an index for searching.

        Args:
            where: Folder or name of the index, image folder, or run (default: the index updated last).
            generation: Number of the generation (default: the live one).
            device: Device to run the model on.

        Returns:
            The index; use it in a ``with`` block or close it.

        Raises:
            LookalikeError: If there is no such index, or it was made with an incompatible image decoder.
        """
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
        """Name of the index."""
        return self.manifest.name

    @property
    def source(self) -> Path:
        """The image folder, or the table file."""
        return location(self.manifest.source)

    @cached_property
    def root(self) -> Path:
        """The folder that paths are relative to; not always the source, as a table may name files elsewhere."""
        if self.generation.root is not None:
            return Path(self.generation.root)
        return self.source if self.source.is_dir() else self.source.parent

    @property
    def folder(self) -> Path:
        """Folder of the open generation."""
        return generation_folder(self.path, self.generation.number)

    @property
    def store(self) -> Store:
        """The vectors and payloads."""
        with self._guard:
            if self._store is None:
                try:
                    store = open_store(self.path, self.generation)
                except Damaged as error:
                    raise LookalikeError(f"{error} {self._update_command} repairs it.") from error
                if self.generation.complete and store.count() != self.generation.images:
                    current = manifests.read(self.path).generation(self.generation.number)  # or a writer is at work
                    if current.complete and (count := store.count()) != current.images:
                        store.close()
                        raise LookalikeError(
                            f"The index `{self.name}` is damaged: it holds {count:,} of {current.images:,} images. "
                            f"{self._update_command} repairs it."
                        )
                self._store = store
            return self._store

    @property
    def _update_command(self) -> str:
        """The command that updates this index."""
        named = "" if index_for(self.source) == self.path else f" --index {shlex.quote(str(self.path))}"
        return f"`lookalike index {shlex.quote(str(self.source))}{named}`"

    def _check_decoder(self) -> None:
        """Queries are decoded by the installed decoder, which must give the same pixels as that of the images."""
        from lookalike.data.decoding import DECODER

        decoder = self.generation.decoder
        if decoder in ("", DECODER):
            return
        remedy = f"{self._update_command} embeds its images again."
        if decoder.partition("/")[0] != DECODER.partition("/")[0]:
            raise LookalikeError(
                f"The images of the index `{self.name}` were decoded differently ({decoder}) than queries are now "
                f"({DECODER}): {remedy}"
            )
        warn(f"the index `{self.name}` was made with {decoder}, not {DECODER}: scores may differ a little. {remedy}")

    @property
    def embedder(self) -> Embedder:
        """The model that made the vectors, loaded from the index's own copy."""
        with self._guard:
            if self._embedder is None:
                self._embedder = load_model(self.folder / "model", self.device)
            return self._embedder

    @property
    def query_encoder(self) -> Embedder | CompiledEmbedder:
        """What embeds a few images: the converted model, which needs no torch, or the model itself."""
        from lookalike.models.inference.compiled_embedder import CompiledEmbedder

        with self._guard:
            if self._embedder is None and self._compiled is None and self.device in ("auto", CPU):
                self._compiled = CompiledEmbedder.open(self.folder / "model")
            return self._compiled if self._embedder is None and self._compiled else self.embedder

    def convert_model(self) -> None:
        """Convert the model for this machine, unless that was done before: searches then start without torch."""
        from lookalike.models.inference.compiled_embedder import CompiledEmbedder

        if self.device not in ("auto", CPU) or isinstance(self.query_encoder, CompiledEmbedder):
            return
        from lookalike.models.inference import openvino_runtime  # imports torch
        from lookalike.models.inference.runtime_base import RuntimeUnavailable

        if self.embedder.device.type == CPU and openvino_runtime.installed():
            with contextlib.suppress(RuntimeUnavailable, DiskError, OSError):  # the disk may be full or read-only
                openvino_runtime.convert(self.embedder, "embedding")

    @property
    def supports_text(self) -> bool:
        """Whether the model embeds texts too, so that they can be used as queries."""
        return bool(self.generation.supports_text)

    def embed_text(self, text: str) -> np.ndarray:
        """Return the unit vector of a text.

        Args:
            text: The text.

        Returns:
            A vector of the index's dimension.

        Raises:
            LookalikeError: If the model does not support texts.
        """
        if not self.supports_text:
            raise LookalikeError(
                f"The model {self.generation.model.name} does not support text: make an index with an open_clip model "
                "(`lookalike index FOLDER --model open_clip:NAME`), or search by an image."
            )
        return np.asarray(self.embedder.encode_text([text])[0])

    @property
    def scores(self) -> Scores:
        """The calibration of scores."""
        with self._guard:
            if self._scores is None:
                self._scores = score_calibration.read(self.folder)
            return self._scores

    @property
    def table(self) -> Table:
        """The indexed images as of the last run, with their current root."""
        from lookalike.data import Table

        return dataclasses.replace(Table.load(self.folder / TABLE), root=self.root)

    @property
    def columns(self) -> list[str]:
        """Columns that can be filtered by."""
        return self.generation.columns + [self.tags.column] * bool(self.tags.names)

    @cached_property
    def tags(self) -> Tags:
        """The tags that users gave to images."""
        return Tags(self.path, self.generation.columns)

    def where(self, filters: Filters) -> list[Condition]:
        """Parse filters to conditions for the store, or raise if a column does not exist."""
        conditions = parse(filters, self.columns)
        self.check_columns(condition.column for condition in conditions)
        return self.tags.resolve(conditions)

    def check_columns(self, names: Iterable[str]) -> None:
        """Raise if a name is not a column that can be filtered by."""
        for name in names:
            if name not in self.columns:
                hint = suggest(name, self.columns) or f": its columns are {', '.join(self.columns) or 'none'}."
                raise LookalikeError(f"`{name}` is not a column of the index `{self.name}`{hint}")

    def check_model(self, model: str | os.PathLike[str] | Embedder | None) -> None:
        """Raise if the index was made with another model; ``None`` stands for any."""
        if model is not None:
            fingerprint = as_embedder(model).fingerprint()
            if fingerprint != self.generation.model.fingerprint:
                raise wrong_model(self.generation.model, ModelInfo(name=model_name(model), fingerprint=fingerprint))

    def open_bytes(self, record: Record | dict[str, Any], *, limit: int = MAX_BYTES) -> bytes:
        """Return the encoded image of a row; files outside the indexed folder are refused, whatever the path says."""
        payload = record.payload if isinstance(record, Record) else record
        return open_image(self.root, payload, limit=limit)

    def unreadable(self) -> list[tuple[str, str]]:
        """Return the files that the last run could not read, with the reasons."""
        path = self.path / UNREADABLE
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [(name, reason) for name, _, reason in (line.partition("\t") for line in lines)]

    def query_many(
        self, vectors: np.ndarray, k: int = 10, *, filters: Filters = None, exact: bool = False
    ) -> Neighbors:
        """Find the nearest images of many vectors; ``store.records`` gives their ids and payloads.

        Args:
            vectors: Vectors by the index's model.
            k: Number of neighbors.
            filters: Conditions that they must meet, as for :func:`lookalike.search`.
            exact: Compare with every vector instead of searching the store's graph.

        Returns:
            Row numbers and cosines.

        Shape:
            - vectors: ``(Q, D)``; output: ``(Q, k)`` each.

        Example:
            >>> near = index.query_many(vectors, k=5)  # doctest: +SKIP
            >>> [record.payload["path"] for record in index.store.records(near.rows[0])]  # doctest: +SKIP
        """
        return self.store.search(vectors, k, where=self.where(filters), exact=exact)

    def reopen(self) -> Index:
        """Return the index in its current state, opened beside this one; a model that stayed the same is shared."""
        new = Index(self.path, device=self.device)
        with self._guard:
            if new.generation.number == self.generation.number:
                new._embedder = self._embedder
        new.store  # noqa: B018 (fail now if it cannot be opened)
        return new

    def close(self) -> None:
        """Close the store."""
        with self._guard:
            if self._store is not None:
                self._store.close()
            self._store = None
            self.tags.close()


def generation_folder(path: Path, number: int) -> Path:
    """Return the folder of a generation."""
    return path / "generations" / str(number)


def file_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of the table of a generation and of the files of its model, by name."""
    files = [folder / TABLE, *sorted((folder / "model").rglob("*"))]
    return {file.relative_to(folder).as_posix(): checksum(file) for file in files if file.is_file()}


def remove_generation(path: Path, number: int) -> None:
    """Delete a generation, including its vectors on a server."""
    remove_store(generation_folder(path, number))
    if (path / FILE).exists():
        write_document(path, score_calibration.document_name(number), None)


def remove_generations(path: Path) -> None:
    """Delete all generations, including those that a kill left and the manifest does not name."""
    for folder in path.glob("generations/[0-9]*"):
        remove_generation(path, int(folder.name))


def open_store(path: Path, generation: Generation, *, write: bool = False) -> Store:
    """Open the store of a generation.

    Raises:
        Locked: If it is opened for writing and another process writes to it.
    """
    return store_class(generation.store).open(str(generation_folder(path, generation.number)), write=write)


def load_model(name: str | os.PathLike[str], device: str = "auto") -> Embedder:
    """Load a model by name or folder."""
    from lookalike.models import Embedder

    return Embedder.from_pretrained(name if isinstance(name, str) else Path(name), device=device)


def as_embedder(model: str | os.PathLike[str] | Embedder | None, device: str = "auto") -> Embedder:
    """Return a loaded model: the given one, the named one, or the default."""
    if model is None or isinstance(model, (str, os.PathLike)):
        return load_model(model or DEFAULT_MODEL, device)
    return model


def model_name(model: str | os.PathLike[str] | Embedder | None) -> str:
    """Return what people call a model: the name of the run, of the model folder, or the name they gave."""
    if model is None:
        return DEFAULT_MODEL
    if not isinstance(model, (str, os.PathLike)):
        return str(model.name)
    path = Path(model)
    if path.name == "model" and Run.is_run(path.absolute().parent):
        path = path.absolute().parent
    return path.name or str(model)


def wrong_model(index_model: ModelInfo, model: ModelInfo) -> LookalikeError:
    """Return the error for an index that was made with another model."""
    return LookalikeError(
        f"This index was made with model {index_model.short}, not {model.short}: run `lookalike index FOLDER --model "
        f"{model.name}` to embed with it too, or leave out `--model`."
    )
