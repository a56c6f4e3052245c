"""``Writer``: open a generation of an index for writing, creating it where needed."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import write_json
from lookalike.core.progress import say
from lookalike.core.storage import location
from lookalike.evaluation import training_overlap
from lookalike.searching import manifest as manifests
from lookalike.searching.index_folder import (
    as_embedder,
    file_checksums,
    generation_folder,
    load_model,
    model_name,
    open_store,
    remove_generation,
    wrong_model,
)
from lookalike.searching.ingest import StoredRow
from lookalike.searching.locate import is_index
from lookalike.searching.manifest import Generation, Manifest, ModelInfo
from lookalike.searching.payload import PROTOTYPE
from lookalike.store import Record, Store, create_store, store_name

if TYPE_CHECKING:
    from lookalike.models import Embedder

DEFAULT_STORE = "local"


class Writer:
    """A generation that is open for writing; the caller holds the index's lock.

    Args:
        path: Folder of the index.
        manifest: Its manifest.
        generation: The generation.
        store: Its store.
        embedder: The model, if it is loaded already.
        device: Device to load the model on otherwise.
    """

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
        self._loaded, self._device = embedder, device

    @property
    def folder(self) -> Path:
        """Folder of the generation."""
        return generation_folder(self.path, self.generation.number)

    @cached_property
    def embedder(self) -> Embedder:
        """The model, loaded only when something must be embedded."""
        return self._loaded or load_model(self.folder / "model", self._device)

    def stored_rows(self) -> dict[str, StoredRow]:
        """Return the rows of the store by id."""
        return {record.id: StoredRow.from_payload(record.payload) for part in self.store.scan() for record in part}

    def copy_rows(self, rows: Sequence[tuple[str, dict[str, Any], Record]]) -> None:
        """Store rows (id, payload, old record) with the vectors and image facts of stored records."""
        from lookalike.data import exif

        if rows:
            facts = ["_hash", "content_id", "_ratio", "_color", PROTOTYPE]
            facts += ["_exif", *exif.COLUMNS] if self.manifest.exif else []
            payloads = [{**{n: r.payload[n] for n in facts if n in r.payload}, **line} for _, line, r in rows]
            vectors = np.stack([record.vector for _, _, record in rows if record.vector is not None])
            self.store.upsert([name for name, _, _ in rows], vectors, payloads)

    def record_training_images(self, model: str | os.PathLike[str] | Embedder | None) -> None:
        """Store with the model's copy which images it was trained on: its run may be gone the next time."""
        fingerprint = self.generation.model.fingerprint
        same = [g.number for g in self.manifest.generations if g.model.fingerprint == fingerprint]
        sources = (model, *(generation_folder(self.path, number) / "model" for number in same))
        trained = [training_overlap.training_images(source) for source in sources]
        images = next(filter(None, trained), None if None in trained else frozenset())
        document = {"images": None if images is None else sorted(images)}
        write_json(self.folder / "model" / training_overlap.FILE, document, private=True)

    def begin(self, planned: int) -> None:
        """Mark the generation as incomplete until `finish`, which will leave this number of images."""
        self.generation.complete, self.generation.planned = False, planned
        self.manifest.write(self.path)

    def finish(self, *, live: bool = True) -> None:
        """Mark the generation as complete, and make it the live one unless told otherwise."""
        self.generation.images, self.generation.checksums = self.store.count(), file_checksums(self.folder)
        self.generation.complete, self.generation.updated = True, manifests.now()
        self.generation.writes += 1
        if live:
            self.manifest.live = self.generation.number
        # Vectors of the same model from another decoder's pixels are replaced by these.
        fingerprint = self.generation.model.fingerprint
        same = [g for g in self.manifest.generations if g.model.fingerprint == fingerprint and g is not self.generation]
        replaced = same if live else []
        self.manifest.generations = [g for g in self.manifest.generations if g not in replaced]
        self.manifest.write(self.path)
        for old in replaced:
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
) -> Iterator[Writer]:
    """Open the generation of a model for writing: the one it made before, or a new one.

    A generation whose images were decoded by another decoder is not extended; a new one replaces it when complete.
    """
    from lookalike.data.decoding import DECODER

    store = None if store is None else store_name(store)  # a misspelled name is reported before anything is created
    manifest = _manifest(path, source)
    live = manifest.generation() if manifest.generations else None
    loaded: Embedder | None = None
    if live is not None and model is None:
        generation: Generation | None = live
        if live.decoder not in ("", DECODER):
            loaded = load_model(generation_folder(path, live.number) / "model", device)
            generation = manifest.of_model(live.model.fingerprint, DECODER)
    else:
        loaded = as_embedder(model, device)
        generation = manifest.of_model(loaded.fingerprint(), DECODER)
    if generation is None:
        embedder = loaded or as_embedder(model, device)
        before = manifest.of_model(embedder.fingerprint())
        name = before.model.name if before else model_name(model)
        if before is not None:
            say(f"The index was made with another image decoder ({before.decoder}): all images are read again.")
        elif live is not None and explicit:
            raise wrong_model(live.model, ModelInfo(name=name, fingerprint=embedder.fingerprint()))
        sibling = before or live
        generation = Generation(
            number=1 + max((g.number for g in manifest.generations), default=0),
            model=ModelInfo(name=name, fingerprint=embedder.fingerprint(), parent=embedder.parent),
            preprocess=embedder.preprocess.to_json(), decoder=DECODER, dim=embedder.dim,
            supports_text=bool(getattr(embedder, "supports_text", False)),
            store=store or (sibling.store if sibling else DEFAULT_STORE),
            created=manifests.now(), updated=manifests.now(),
        )  # fmt: skip
        if dry_run:
            empty: Any = SimpleNamespace(dim=generation.dim, scan=tuple, count=int)
            yield Writer(path, manifest, generation, empty)
            return
        _create(path, manifest, generation, embedder)
    elif store is not None and store != generation.store:
        raise LookalikeError(
            f"The index `{manifest.name}` keeps its vectors in the store `{generation.store}`, not in `{store}`: "
            "leave out --store, or choose another --index."
        )
    with contextlib.closing(open_store(path, generation, write=True)) as own:
        yield Writer(path, manifest, generation, own, loaded, device)


def _manifest(path: Path, source: Path) -> Manifest:
    if not is_index(path):
        return Manifest(name=path.name, source=str(source))
    manifest = manifests.read(path)
    if location(manifest.source) != source:
        if location(manifest.source).exists():
            raise LookalikeError(
                f"The index `{manifest.name}` was made of `{manifest.source}`, not of `{source}`: "
                "choose another --index."
            )
        manifest.source = str(source)  # the folder was renamed; its images are recognized by their hashes
    return manifest


def _create(path: Path, manifest: Manifest, generation: Generation, embedder: Embedder) -> None:
    """Create the model's copy and an empty store, then the manifest that names them."""
    folders.private_folder(path)
    folder = generation_folder(path, generation.number)
    remove_generation(path, generation.number)  # left by a kill before the manifest was written
    embedder.save_pretrained(folder / "model")
    create_store(generation.store, generation_folder(path, generation.number), generation.dim).close()
    manifest.generations.append(generation)
    if len(manifest.generations) == 1:
        manifest.live = generation.number
    manifest.write(path)
