"""The commands `adapt`, `rollback` and `forget`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.adaptation.pool import Listed, Pool, read_pool
from lookalike.adaptation.pool_vectors import purge, uses_ivf
from lookalike.adaptation.report import report_sections
from lookalike.adaptation.request import AdaptRequest, Pending
from lookalike.adaptation.settings import resolve
from lookalike.adaptation.trial import Trial, held_out, run_trial
from lookalike.adaptation.versions import Versions
from lookalike.core import folders
from lookalike.core import progress as say
from lookalike.core.device import CPU, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.interrupts import Stopped
from lookalike.core.run import Run, find_run
from lookalike.data import Table, audit, content_id, read_table
from lookalike.models import Embedder


def adapt(
    *,
    model: str | Path | None = None,
    target: str | Path | Table | None = None,
    pool: Sequence[str | Path] = (),
    labeled: bool = False,
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
    processes: int | None = None,
    layout: str = "auto",
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Run:
    """Adapt a model to new images and use it if it is better.

    The images nearest to the target are retrieved from the pool folders and used as negatives. The previous model stays
    in use unless the adapted one is better: by labels (`labeled`, or the images of `judge`), else by a gate without
    labels. An adapted run gets a new version, which starts from the base model again.

    Args:
        model: Model to adapt: a model or run folder, or an adapted run.
        target: Images to adapt to; labels are not needed.
        pool: Folder of further images to retrieve from; may be repeated.
        labeled: Train on the labels of the target.
        gallery: Labeled images that define the classes of a model without a classifier.
        clusters: Number of clusters that define the classes, if there are no labels.
        judge: Labeled images that the adapted model is judged by.
        source: Labeled images the model was trained on; needed by `mcc` only.
        retriever: Model that retrieves pool images; the model itself by default.
        method: Adaptation method; `t3ar` by default.
        stream: Process the target once, in order, as a stream.
        allow: Use only these pool images: content ids or patterns of folder/path.
        deny: Never use these pool images: content ids or patterns of folder/path.
        config: Recipe to use: a name or a YAML file.
        settings: Any setting, as `lr=1e-4`. In Python a nested mapping, as `{"bank": {"size": 4096}}`.
        steps: Total number of steps.
        seed: Random seed.
        processes: Number of processes that adapt together.
        layout: Layout of the target; detected by default.
        out: Folder of the run; a new one under the runs folder by default.
        resume: Run to continue after it was stopped. All other arguments are those it was started with.

    Returns:
        The run with its versions.

    Raises:
        LookalikeError: If images or settings cannot be used, or the resumed run cannot be continued.

    Example:
        >>> run = la.adapt(model="test_efficientnet", target="photos", steps=2)  # doctest: +SKIP
        >>> run.result["promoted"]  # doctest: +SKIP
        False
    """
    torch.set_num_threads(threads())
    if resume is not None:
        return _resumed(find_run(resume), model, target)
    if model is None or target is None:
        raise LookalikeError("Give a model and --target, or an unfinished run with --resume.")
    over: dict[str, Any] = dict(settings or {})
    given = {"method": method, "steps": steps, "processes": processes}
    over |= {name: value for name, value in given.items() if value is not None}
    if config is None and over.get("method", "t3ar") == "t3ar":
        config = "labeled" if labeled else "unlabeled"
    chosen = resolve(config, over, {"stream": True} if stream else {})
    if chosen.method == "mcc" and source is None:
        raise LookalikeError("`mcc` needs the labeled images the model was trained on: give them with --source.")
    if chosen.method == "on_target" and chosen.processes > 1:
        raise LookalikeError("`on_target` trains several networks in a row; it works in one process only.")
    if clusters is not None and clusters < 2:
        raise LookalikeError(f"{clusters} clusters cannot be told apart: give --clusters 2 or more.")
    for given_too in (gallery, judge, source):  # what cannot be read is told now, not after the work
        if given_too is not None:
            read_table(given_too)
    table = target if isinstance(target, Table) else read_table(target, layout=layout, progress=True)
    found = audit(table, near=False, progress=True).table
    first = np.sort(np.unique(found.column("content_id").astype(str), return_index=True)[1])
    if len(first) < len(found):
        say.say(f"{len(found) - len(first)} copies of other images are left out.")
    request = AdaptRequest(
        labeled=labeled,
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
        run = Run.create("adapt", {"model": str(model), "target": table.name, **request.to_json()}, path=out)
        with run.removed_if_failed(), run.locked():
            versions = Versions.create(run, base)
            new_version(versions, found.take(first), request)
            run.checkpoints.mkdir(exist_ok=True)  # from here on the run is worth keeping
        return run
    if out is not None:
        raise LookalikeError(f"`{model}` is an adapted model and gets a new version where it is; leave --out out.")
    with versions.locked():
        new_version(versions, found.take(first), request)
    return versions.run


def _resumed(run: Run, *others: object) -> Run:
    if any(other is not None for other in others):
        raise LookalikeError(
            "--resume continues with the arguments of the stopped run; leave the model and --target out."
        )
    versions = Versions(run)
    with versions.locked():
        request, target, ids = Pending(run).read()
        new_version(versions, target, request, ids, begun=ids is not None)
    return run


def _text(path: str | Path | None) -> str | None:
    """A folder as an absolute path, so that it is found again from elsewhere; a name stays a name."""
    if path is None:
        return None
    found = next((place for place in (Path(path), folders.runs() / path) if place.exists()), None)
    return str(path) if found is None else str(found.absolute())


def new_version(
    versions: Versions, target: Table, request: AdaptRequest, only: set[str] | None = None, *, begun: bool = False
) -> int:
    """Adapt the base model once more and let the gate decide.

    Args:
        versions: The versions of the run.
        target: Images to adapt to.
        request: What was requested.
        only: Content ids of the pool as it was; None: all of it.
        begun: Continue the pending adaptation.

    Returns:
        Number of the new version.
    """
    base = Embedder.from_pretrained(versions.folder(0) / "model", device=CPU)
    now = base if versions.current == 0 else Embedder.from_pretrained(versions.run.model, device=CPU)
    pending = Pending(versions.run)
    if not begun:
        pending.begin(request, target, None if only is None else sorted(only))
    pool = read_pool(request.pool, allow=request.allow, deny=[*request.deny, *versions.denied], progress=True)
    if only is not None:
        pool = pool.only(only)
    elif idle := [pattern for pattern in pool.idle if pattern in (*request.allow, *request.deny)]:
        such = pool.names[0] if pool.names else "archive/2020/*"
        raise LookalikeError(
            f"No pool image is meant by {', '.join(f'`{pattern}`' for pattern in idle)}: --allow and --deny take "
            f"content ids, or patterns of folder/path such as `{such}`."
        )
    # What is kept aside to judge by must not be learned from by way of the pool.
    judges = [target.take(held_out(target, request.settings.held_out_fraction, request.seed))]
    judges += [] if request.judge is None else [audit(read_table(request.judge), near=False).table]
    aside = {str(id_) for table in judges for id_ in table.column("content_id")}
    pool = pool.without(aside, "kept aside to judge by")
    if pool.left_out:
        say.say("Of the pool, left out: " + ", ".join(f"{count:,} {why}" for why, count in pool.left_out.items()) + ".")
    if not begun:
        pending.begin(request, target, pool.ids)
    elif only is not None and len(pool) < len(only):
        raise LookalikeError(
            f"{len(only) - len(pool)} pool images are gone since the adaptation in `{versions.run.path}` began; "
            "it cannot be resumed."
        )
    trial = run_trial(base, now, target, pool, request, pending)
    about = {"request": request.to_json(), "weights": trial.weights, "classes": trial.classes, "counts": trial.counts}
    number = versions.add(
        trial.candidate,
        trial.decision,
        receipts=trial.receipts,
        target=target,
        pool={
            "folders": request.pool,
            "ids": pool.ids,
            "names": pool.names,
            "left_out": pool.left_out,
            "uses_ivf": uses_ivf(pool, request.settings),
        },
        about=about,
    )
    _report(versions, trial, pool, number)
    pending.end()
    say.say(trial.decision.sentence)
    return number


def _report(versions: Versions, trial: Trial, pool: Pool, number: int) -> None:
    run = versions.run
    for name, section in report_sections(trial, pool, run).items():
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


def forget(*, model: str | Path, images: Sequence[str | Path]) -> dict[str, Any]:
    """Remove pool images from an adapted model for good.

    The images are removed from the pool's vectors and caches and from every version that used them. If the model in use
    was adapted with any of them, it is adapted again from the base model, to the same bits as if they had never been in
    the pool. Their content ids are kept, so that they are never used again. Base model and retriever are not covered.

    Args:
        model: The adapted run.
        images: Images to forget: files, content ids, or patterns of folder/path as in the receipts.

    Returns:
        The content ids, the deleted versions and vectors, and the version in use.

    Raises:
        LookalikeError: If a name matches no image of the pool.

    Example:
        >>> la.forget(model="runs/adapted", images=["archive/2020/*"])["forgotten"]  # doctest: +SKIP
        []
    """
    versions = Versions.need(model)
    torch.set_num_threads(threads())
    with versions.locked():
        gone = _meant(versions, images)
        affected = [row["number"] for row in versions.rows if _touched(versions, row["number"], gone)]
        again = versions.row(versions.current) if versions.current in affected else None
        kept = None
        if again is not None:
            folder = versions.folder(versions.current)
            kept = Table.load(folder / "target.parquet"), set(_pool_record(folder)["ids"]) - gone
        # Versions and their lists go last: they are what a repeated command is understood by after a kill.
        vectors = purge(sorted(gone))
        if affected:  # a report may name them
            for name in ("sections/adapt-receipts.json", "report.html"):
                (versions.run.path / name).unlink(missing_ok=True)
            shutil.rmtree(versions.run.path / "sections" / "images", ignore_errors=True)
        number, pending = None, Pending(versions.run)
        if pending.owes(gone) or (again is not None and pending.file.is_file()):
            pending.end()
            say.say("The adaptation that was left unfinished is given up: it began before this.")
        if again is not None and kept is not None:
            request = AdaptRequest.from_json(again["request"])
            pending.begin(request, kept[0], sorted(kept[1]))
        versions.denied = sorted({*versions.denied, *gone})
        versions.drop(affected)
        for row in versions.rows:
            _strike(versions.folder(row["number"]), gone)
        if again is not None and kept is not None:
            number = _made_again(versions, kept[0], request, kept[1])
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


def _made_again(versions: Versions, target: Table, request: AdaptRequest, only: set[str]) -> int:
    try:
        return new_version(versions, target, request, only)
    except Stopped:
        raise
    except LookalikeError as error:
        used = f"version {versions.current}" if versions.current else "the base model"
        raise LookalikeError(
            f"The images are forgotten and {used} is in use, but it could not be adapted again: {error} "
            f"When that is mended: lookalike adapt --resume {versions.run.path}"
        ) from error


def _touched(versions: Versions, number: int, gone: set[str]) -> bool:
    """Whether a version depends on these images: it used them, or an index of its pool was fitted on them."""
    if versions.used(number) & gone:
        return True
    folder = versions.folder(number)
    found = _pool_record(folder) if (folder / "pool.json").is_file() else {}
    return bool(found.get("uses_ivf")) and bool(gone & set(found["ids"]))


def _pool_record(folder: Path) -> dict[str, Any]:
    return dict(read_json(folder / "pool.json", "pool"))


def _strike(folder: Path, gone: set[str]) -> None:
    """Remove images from the pool list of a version."""
    if (folder / "pool.json").is_file():
        found = _pool_record(folder)
        kept = [(id_, name) for id_, name in zip(found["ids"], found["names"], strict=True) if id_ not in gone]
        lists = {"ids": [id_ for id_, _ in kept], "names": [name for _, name in kept]}
        write_json(folder / "pool.json", {**found, **lists})


def _meant(versions: Versions, images: Sequence[str | Path]) -> set[str]:
    """Content ids of the images that a user names."""
    gone: set[str] = set()
    known: dict[str, str] = {}
    for row in versions.rows:
        folder = versions.folder(row["number"])
        if (folder / "pool.json").is_file():
            found = _pool_record(folder)
            known |= dict(zip(found["ids"], found["names"], strict=True))
    for image in images:
        named = Listed([str(image)])
        if matched := {id_ for id_, path in known.items() if named.holds(id_, path)}:
            gone |= matched
        elif Path(image).is_file():
            gone.add(content_id(Path(image)))
        else:
            raise LookalikeError(
                f"`{image}` names no image of the pool: give a file, a content id of the receipts, or a pattern "
                "of folder/path as they have it."
            )
    return gone


def rollback(*, model: str | Path, to: int | None = None) -> dict[str, Any]:
    """Go back to an earlier version of an adapted model.

    Args:
        model: The adapted run.
        to: Number of the version; 0 is the base model. The version before the one in use by default.

    Returns:
        The run folder, the versions before and after, and the fingerprint of the model in use.

    Raises:
        LookalikeError: If there is no such version, it was deleted, or the gate did not let it pass.

    Example:
        >>> la.rollback(model="runs/adapted", to=0)["to"]  # doctest: +SKIP
        0
    """
    found = Versions.need(model)
    with found.locked():
        now = found.row(found.current)
        if to is None and found.current == 0:
            raise LookalikeError(f"`{model}` already uses its base model: there is nothing to go back to.")
        number = found.usable(int(now["before"])) if to is None else to
        row = found.row(number)
        if row["status"] == "forgotten":
            raise LookalikeError(f"Version {number} used images that were forgotten; it is gone for good.")
        if row["status"] not in ("promoted", "base"):
            raise LookalikeError(f"Version {number} was never in use: the gate kept the old model.")
        before = found.current
        found.use(number)
    return {"model": found.run.path, "from": before, "to": number, "fingerprint": row["fingerprint"]}
