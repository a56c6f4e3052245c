"""The ``verify`` command: check every file of an index, a run or a model."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lookalike.core.database import FILE, Database, read_document
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json
from lookalike.core.progress import Progress, plural
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.searching import image_map
from lookalike.searching.index_folder import file_checksums, generation_folder, load_model, open_store
from lookalike.searching.locate import find_index
from lookalike.searching.manifest import Generation, read
from lookalike.store import Store
from lookalike.store.local import LocalStore

SAMPLE, K, MIN_RECALL = 100, 10, 0.97


@dataclass
class Verification:
    """The result of checking an index, a run or a model.

    Args:
        name: Name of the index, run or model.
        problems: What is damaged, one sentence each; empty if nothing is.
        images: Number of images in the live generation.
        recall: Recall@10 of the live generation's search against exact search, on a sample of its own rows.
    """

    name: str
    problems: list[str] = field(default_factory=list)
    images: int = 0
    recall: float | None = None
    kind: str = "index"

    def __str__(self) -> str:
        recall = "" if self.recall is None else f", recall@{K} {self.recall:.3f}"
        images = f": {plural(self.images, 'image')}{recall}" if self.kind == "index" else ""
        return "\n".join(self.problems) or f"The {self.kind} {self.name} is whole{images}."


def verify(*, index: str | Path | None = None, progress: bool = True) -> Verification:
    """Check all files of an index, a run or a model against their checksums.

    Of an index: database, vectors, models, tables, map and graph; of a run: settings, models, checkpoints, tables,
    report, index, and the versions of an adaptation.

    Args:
        index: An index, a run or a model folder (default: the index updated last).
        progress: Show a progress bar.

    Returns:
        What was found.

    Raises:
        LookalikeError: If anything is damaged; the message lists it.

    Example:
        >>> print(la.verify(index="photos", progress=False))  # doctest: +SKIP
        The index photos is whole: 24 images, recall@10 1.000.
    """
    if index is not None and (Run.is_run(index) or (Path(index) / "config.json").is_file()):
        return _verify_run(Path(index)) if Run.is_run(index) else _verify_model(Path(index))
    path = find_index(index)
    with contextlib.closing(Database(path / FILE)) as database:
        lines = [line for (line,) in database.fetch("PRAGMA integrity_check(10)")]
        documents = [name for (name,) in database.fetch("SELECT name FROM document")]
    result = Verification(path.name, [] if lines == ["ok"] else [f"The database is damaged: {'; '.join(lines)}."])
    for name in documents:  # a damaged one raises
        read_document(path, name)
    manifest = read(path)
    with Progress("Checking", len(manifest.generations), shown=progress) as bar:
        for generation in manifest.generations:
            try:
                _check_generation(path, generation, result, live=generation.number == manifest.live)
            except (LookalikeError, sqlite3.Error) as error:
                result.problems.append(str(error))
            bar.advance()
    if result.problems:
        raise LookalikeError(f"The index `{path.name}` is damaged. {' '.join(result.problems)}")
    return result


def _verify_model(path: Path, fingerprint: str | None = None) -> Verification:
    saved = read_json(path / "config.json", "model's configuration")["fingerprint"]
    if load_model(path).fingerprint() != saved or fingerprint not in (None, saved):
        raise LookalikeError(f"The model `{path}` is damaged: its weights are not those that it was saved with.")
    return Verification(path.name, kind="model")


def _verify_run(path: Path) -> Verification:
    """Read everything a run holds, with the versions of an adaptation; the first damaged file raises."""
    from lookalike.adaptation.versions import LEDGER, Versions
    from lookalike.data.table import read_parquet
    from lookalike.training import checkpoint

    run = Run(path)
    _ = run.config, run.result
    indexes = [file.parent for file in path.rglob(FILE)]
    for place in indexes:
        verify(index=place, progress=False)
    for file in sorted(path.rglob("*")):
        if any(file.is_relative_to(place) for place in indexes):
            continue
        if file.name == "config.json":
            _verify_model(file.parent)
        elif file.suffix == ".json":
            read_json(file, "file")
        elif file.suffix == ".pt":
            checkpoint.read(file)
        elif file.suffix == ".parquet":
            read_parquet(file)
        elif file.parent.name == "images" and hash_bytes(file.read_bytes()) != file.stem:
            raise LookalikeError(f"The image `{file}` is damaged.")
    if (path / LEDGER).exists():
        versions = Versions(run)
        for row in versions.rows:
            if row["status"] != "forgotten":
                _verify_model(versions.folder(row["number"]) / "model", row["fingerprint"])
    return Verification(path.name, kind="run")


def _check_generation(path: Path, generation: Generation, result: Verification, *, live: bool) -> None:
    number, folder = generation.number, generation_folder(path, generation.number)
    files = file_checksums(folder)
    changed = [name for name, value in generation.checksums.items() if files.get(name) != value]
    if changed and read(path).generation(number) == generation and generation.complete:  # else it is being updated
        result.problems += [f"`{folder / name}` is damaged." for name in changed]
    if (folder / image_map.FILE).exists() and image_map.Map.load(folder) is None:
        result.problems.append(f"The map of generation {number} is damaged; it is drawn again when it is next shown.")
    whole = not any(name.startswith("model/") for name in changed)
    if whole and load_model(folder / "model").fingerprint() != generation.model.fingerprint:
        result.problems.append(f"The model of generation {number} is not the one that made its vectors.")
    with contextlib.closing(open_store(path, generation)) as store:
        if isinstance(store, LocalStore):
            result.problems += store.verify()
        if generation.complete and store.count() != generation.images:
            result.problems.append(f"Generation {number} holds {store.count():,} of {generation.images:,} images.")
        recall = sample_recall(store)
        if live:
            result.images, result.recall = store.count(), recall
        if recall is not None and recall < MIN_RECALL:
            result.problems.append(f"The graph of generation {number} has a recall of only {recall:.3f}.")


def sample_recall(store: Store) -> float | None:
    """Return the recall@10 of a store's search against exact search, on some of its own rows."""
    first = next(iter(store.scan(batch=10 * SAMPLE)), [])
    rng = numpy_rng(0, "verify")
    ids = [first[i].id for i in rng.choice(len(first), min(SAMPLE, len(first)), replace=False)]
    vectors = [record.vector for record in store.get(ids, vectors=True) if record is not None]
    if not vectors:
        return None
    queries = np.stack([vector for vector in vectors if vector is not None])
    truth, near = (store.search(queries, K, exact=exact).scores for exact in (True, False))
    # By scores: of equal copies either may be found.
    worst = np.where(np.isfinite(truth), truth, np.inf).min(axis=1)
    return float(np.mean((near >= worst[:, None] - 1e-5).sum(axis=1) / np.maximum(np.isfinite(truth).sum(axis=1), 1)))
