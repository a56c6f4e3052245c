"""The verbs `adapt` and `forget`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.adapting import retrieving
from lookalike.adapting.sections import report_sections
from lookalike.adapting.settings import resolve
from lookalike.adapting.trial import Asked, Trial, run_trial
from lookalike.adapting.versions import Versions
from lookalike.core import folders
from lookalike.core import progress as say
from lookalike.core.device import CPU, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.run import Run
from lookalike.data import Table, audit, content_id, read_table
from lookalike.models import Embedder


def adapt(
    *,
    model: str | Path,
    target: str | Path | Table,
    pool: Sequence[str | Path] = (),
    labelled: bool = False,
    gallery: str | Path | None = None,
    clusters: int | None = None,
    judge: str | Path | None = None,
    source: str | Path | None = None,
    retriever: str | Path | None = None,
    method: str | None = None,
    stream: bool = False,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int = 0,
    layout: str = "auto",
    out: str | Path | None = None,
) -> Run:
    """Adapt a model to new pictures, using the nearest pictures of any number of pool folders, and keep the better.

    `target` needs no labels; with `labelled` its labels are learnt from (train-time adaptation). A model without a
    classifier gets classes from `gallery` (labelled pictures), from the labels, or from clusters of the target. The
    model before stays in use unless the adapted one is better: by labels (`labelled`, or the pictures of `judge`), or
    by the label-free gate. `source` are the pictures the model was trained on, which only `mcc` asks for. `model` may
    be an adapted run: it gets a new version, which starts from the base again.
    """
    over: dict[str, Any] = dict(settings or {})
    over |= {k: v for k, v in {"method": method, "steps": steps}.items() if v is not None}
    chosen = resolve(config, over, {"stream": True} if stream else {})
    if chosen.method == "mcc" and source is None:
        raise LookalikeError("`mcc` needs the labelled pictures the model was trained on: give them with --source.")
    torch.set_num_threads(threads())
    table = target if isinstance(target, Table) else read_table(target, layout=layout, progress=True)
    found = audit(table, near=False, progress=True).table
    first = np.sort(np.unique(found.column("content_id").astype(str), return_index=True)[1])
    if len(first) < len(found):
        say.say(f"{len(found) - len(first)} copies of other pictures are left out.")
    asked = Asked(
        labelled=labelled,
        gallery=_text(gallery),
        clusters=clusters,
        judge=_text(judge),
        source=_text(source),
        retriever=_text(retriever),
        pool=[str(Path(folder).absolute()) for folder in pool],
        allow=list(allow),
        deny=list(deny),
        settings=chosen,
        seed=seed,
    )
    versions = Versions.of(model)
    if versions is None:
        base = Embedder.from_pretrained(model, device=CPU)
        run = Run.create("adapt", {"model": str(model), "target": table.name, **asked.to_json()}, path=out)
        with run.or_nothing(), run.locked():
            versions = Versions.create(run, base)
            _version(versions, found.take(first), asked)
            run.checkpoints.mkdir()  # from here on the run is worth keeping
        return run
    if out is not None:
        raise LookalikeError(f"`{model}` is an adapted model and gets a new version where it is; leave --out out.")
    with versions.run.locked():
        _version(versions, found.take(first), asked)
    return versions.run


def _text(path: str | Path | None) -> str | None:
    """A folder as it can be found again from elsewhere; a name stays a name."""
    if path is None:
        return None
    found = next((place for place in (Path(path), folders.runs() / path) if place.exists()), None)
    return str(path) if found is None else str(found.absolute())


def _version(versions: Versions, target: Table, asked: Asked, only: set[str] | None = None) -> int:
    """Adapt the base once more and let the gate decide; `only`: the pool as it was then."""
    base = Embedder.from_pretrained(versions.folder(0) / "model", device=CPU)
    now = base if versions.current == 0 else Embedder.from_pretrained(versions.run.model, device=CPU)
    pool = retrieving.read_pool(asked.pool, allow=asked.allow, deny=[*asked.deny, *versions.denied], progress=True)
    if only is not None:
        pool = pool.only(only)
    trial = run_trial(base, now, target, pool, asked)
    about = {"asked": asked.to_json(), "weights": trial.weights, "classes": trial.classes, "counts": trial.counts}
    number = versions.add(
        trial.candidate,
        trial.decision,
        receipts=trial.receipts,
        target=target,
        pool={"folders": asked.pool, "ids": pool.ids, "left_out": pool.left_out},
        about=about,
    )
    _report(versions, trial, number)
    say.say(trial.decision.sentence)
    return number


def _report(versions: Versions, trial: Trial, number: int) -> None:
    run = versions.run
    for name, section in report_sections(trial).items():
        run.write_section(name, section)
    run.write_result(
        finished=True,
        version=number,
        in_use=versions.current,
        promoted=trial.decision.promoted,
        verdict=trial.decision.sentence,
        decision=trial.decision.to_json(),
        classes=trial.classes,
        counts=trial.counts,
    )


def forget(*, model: str | Path, pictures: Sequence[str | Path]) -> dict[str, Any]:
    """Take pool pictures out for good: out of the pool, its vectors and caches, and every version that used them.

    Pictures are files, content ids, or patterns of `folder/path` as receipts have them. If the model in use was made
    with any of them, it is made again from the base model, to the bit as if they had never been there. What stays is
    their content ids, so that they are never used again. Base model and retriever are not covered.
    """
    versions = Versions.need(model)
    torch.set_num_threads(threads())
    with versions.run.locked():
        gone = _meant(versions, pictures)
        affected = [row["number"] for row in versions.rows if versions.used(row["number"]) & gone]
        again = versions.row(versions.current) if versions.current in affected else None
        kept = None
        if again is not None:
            folder = versions.folder(versions.current)
            kept = Table.load(folder / "target.parquet"), set(_pool(folder)["ids"]) - gone
        versions.denied = sorted({*versions.denied, *gone})
        versions.drop(affected)
        for row in versions.rows:
            _strike(versions.folder(row["number"]), gone)
        if affected:  # a report may name them
            for name in ("sections/adapt-receipts.json", "report.html"):
                (versions.run.path / name).unlink(missing_ok=True)
        vectors = retrieving.purge(sorted(gone))
        number = None
        if again is not None and kept is not None:
            number = _version(versions, kept[0], Asked.from_json(again["asked"]), kept[1])
        else:
            say.say("The model in use never saw them, as its receipts show; it stays as it is.")
    return {
        "model": versions.run.path,
        "forgotten": sorted(gone),
        "versions_gone": affected,
        "vectors_gone": vectors,
        "made_again": number,
        "in_use": versions.current,
    }


def _pool(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / "pool.json", "pool"))


def _strike(folder: Path, gone: set[str]) -> None:
    """Take ids out of a version's list of the pool."""
    if (folder / "pool.json").is_file():
        found = _pool(folder)
        write_json(folder / "pool.json", {**found, "ids": [id_ for id_ in found["ids"] if id_ not in gone]})


def _meant(versions: Versions, pictures: Sequence[str | Path]) -> set[str]:
    """Content ids of what a user names."""
    gone: set[str] = set()
    known: dict[str, str] = {}
    pools: set[str] = set()
    for row in versions.rows:
        folder = versions.folder(row["number"])
        if (folder / "receipts.json").is_file():
            known |= {r["id"]: r["path"] for r in read_json(folder / "receipts.json", "receipts")}
            pools |= set(_pool(folder)["ids"])
    for picture in pictures:
        text = str(picture)
        if text in pools:
            gone.add(text)
        elif Path(picture).is_file():
            gone.add(content_id(Path(picture)))
        elif matched := {id_ for id_, path in known.items() if retrieving.listed(id_, path, [text])}:
            gone |= matched
        else:
            raise LookalikeError(
                f"`{text}` is no picture that was used: give a file, a content id of the receipts, or a pattern "
                "of folder/path as they have it."
            )
    return gone
