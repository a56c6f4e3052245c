"""`Writer`: the one process that changes an index."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import write_json
from lookalike.core.locks import Locked
from lookalike.core.progress import say
from lookalike.evaluation import training_overlap
from lookalike.searching import manifest as manifests
from lookalike.searching.changes import Known, known_row
from lookalike.searching.index_folder import (
    as_embedder,
    generation_folder,
    load_model,
    model_name,
    open_store,
    remove_generation,
    store_folder,
    wrong_model,
)
from lookalike.searching.locate import is_index
from lookalike.searching.manifest import Generation, Manifest, ModelInfo
from lookalike.searching.payload import PROTOTYPE
from lookalike.store import Record, Store, create_store, store_name

if TYPE_CHECKING:
    from lookalike.models import Embedder

DEFAULT_STORE = "qdrant"


class Writer:
    """A generation opened for writing; the caller holds the index's lock."""

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        generation: Generation,
        store: Store,
        embedder: Embedder | None = None,
        device: str = "auto",
    ) -> None:
        self.path, self.manifest, self.generation, self.store = path, manifest, generation, store
        self._given, self._device = embedder, device

    @property
    def folder(self) -> Path:
        return generation_folder(self.path, self.generation.number)

    @cached_property
    def embedder(self) -> Embedder:
        """Loaded only when something must be embedded."""
        return self._given or load_model(self.folder / "model", self._device)

    def known(self) -> dict[str, Known]:
        return {record.id: known_row(record.payload) for part in self.store.scan() for record in part}

    def put(self, rows: Sequence[tuple[str, dict[str, Any], Record]]) -> None:
        """Rows that take over the vector, and what was read of the image, of a stored one."""
        if rows:
            facts = ("_hash", "content_id", "_ratio", "_color", PROTOTYPE)
            payloads = [{**{n: r.payload[n] for n in facts if n in r.payload}, **line} for _, line, r in rows]
            vectors = np.stack([record.vector for _, _, record in rows if record.vector is not None])
            self.store.upsert([name for name, _, _ in rows], vectors, payloads)

    def remember(self, model: str | os.PathLike[str] | Embedder | None) -> None:
        """Keep with the copy of the model what it was trained on: its run may not be there the next time."""
        mark = self.generation.model.fingerprint
        same = [g.number for g in self.manifest.generations if g.model.fingerprint == mark]
        sources = (model, *(generation_folder(self.path, number) / "model" for number in same))
        told = [training_overlap.training_images(source) for source in sources]
        found = next(filter(None, told), None if None in told else frozenset())
        document = {"images": None if found is None else sorted(found)}
        write_json(self.folder / "model" / training_overlap.FILE, document, private=True)

    def begin(self) -> None:
        """From here on a kill leaves an index that says it is not complete."""
        self.generation.complete = False
        self.manifest.write(self.path)

    def finish(self, *, live: bool = True) -> None:
        self.generation.images = self.store.count()
        self.generation.complete, self.generation.updated = True, manifests.now()
        self.generation.writes += 1
        if live:
            self.manifest.live = self.generation.number
        self.store.flush()
        mark = self.generation.model.fingerprint
        same = [g for g in self.manifest.generations if g.model.fingerprint == mark and g is not self.generation]
        gone = same if live else []
        self.manifest.generations = [g for g in self.manifest.generations if g not in gone]
        self.manifest.write(self.path)
        for old in gone:  # the same model's vectors of another decoder's pixels
            remove_generation(self.path, old.number)


@contextlib.contextmanager
def open_writer(
    path: Path,
    source: Path,
    model: str | os.PathLike[str] | Embedder | None,
    store: str | None,
    *,
    explicit: bool,
    device: str = "auto",
    dry_run: bool = False,
    opened: Store | None = None,
) -> Iterator[Writer]:
    """The generation that a model's vectors go to: the one it made before, or a new one.

    One whose images went through another decoder is not added to: a new one takes its place when it is whole.
    `explicit`: the user named this index, so another model's vectors are refused instead of put beside.
    `opened` is that generation's store if this process has it open already.
    """
    from lookalike.data.decoding import DECODER

    store = None if store is None else store_name(store)  # a misspelt name is told before anything is made
    manifest = _manifest(path, source)
    live = manifest.generation() if manifest.generations else None
    given: Embedder | None = None
    if live is not None and model is None:
        generation: Generation | None = live
        if live.decoder not in ("", DECODER):
            given = load_model(generation_folder(path, live.number) / "model", device)
            generation = manifest.of_model(live.model.fingerprint, DECODER)
    else:
        given = as_embedder(model, device)
        generation = manifest.of_model(given.fingerprint(), DECODER)
    if generation is None:
        embedder = given or as_embedder(model, device)
        before = manifest.of_model(embedder.fingerprint())
        name = before.model.name if before else model_name(model)
        if before is not None:
            say(f"The decoder is another than the index was made with ({before.decoder}): all images are read anew.")
        elif live is not None and explicit:
            raise wrong_model(live.model, ModelInfo(name=name, fingerprint=embedder.fingerprint()))
        beside = before or live
        generation = _new_generation(manifest, embedder, name, store or (beside.store if beside else DEFAULT_STORE))
        if dry_run:
            yield Writer(path, manifest, generation, _Nothing(generation.dim))  # type: ignore[arg-type]
            return
        _create(path, manifest, generation, embedder)
    elif store is not None and store != generation.store:
        raise LookalikeError(
            f"The index `{manifest.name}` keeps its vectors in the store `{generation.store}`, not in `{store}`: "
            "leave out --store, or choose another --index."
        )
    try:
        own = open_store(path, generation, write=True)
    except Locked:
        if opened is None or generation.number != manifest.live:
            raise
        yield Writer(path, manifest, generation, opened, given, device)
        return
    try:
        yield Writer(path, manifest, generation, own, given, device)
    finally:
        own.close()


def _manifest(path: Path, source: Path) -> Manifest:
    if not is_index(path):
        return Manifest(name=path.name, source=str(source))
    manifest = manifests.read(path)
    if Path(manifest.source) != source:
        if Path(manifest.source).exists():
            raise LookalikeError(
                f"The index `{manifest.name}` was made of `{manifest.source}`, not of `{source}`: "
                "choose another --index."
            )
        manifest.source = str(source)  # the folder was moved; its images are found again by what they are
    return manifest


def _new_generation(manifest: Manifest, embedder: Embedder, name: str, store: str) -> Generation:
    from lookalike.data.decoding import DECODER

    mark = ModelInfo(name=name, fingerprint=embedder.fingerprint(), parent=embedder.parent)
    return Generation(
        number=1 + max((g.number for g in manifest.generations), default=0),
        model=mark,
        preprocess=embedder.preprocess.to_json(),
        decoder=DECODER,
        dim=embedder.dim,
        supports_text=bool(getattr(embedder, "supports_text", False)),
        store=store,
        created=manifests.now(),
        updated=manifests.now(),
    )


def _create(path: Path, manifest: Manifest, generation: Generation, embedder: Embedder) -> None:
    """Model and empty store first, then the manifest that speaks of them."""
    folders.private_folder(path)
    folder = generation_folder(path, generation.number)
    remove_generation(path, generation.number)  # what a kill before the manifest's writing left
    embedder.save_pretrained(folder / "model")
    create_store(generation.store, store_folder(path, generation.number), generation.dim).close()
    manifest.generations.append(generation)
    if len(manifest.generations) == 1:
        manifest.live = generation.number
    manifest.write(path)


class _Nothing:
    """The store of an index that a dry run did not make."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def scan(self) -> Iterator[list[Record]]:
        return iter(())

    def count(self) -> int:
        return 0
