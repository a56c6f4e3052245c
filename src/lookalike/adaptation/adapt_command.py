"""The commands `adapt`, `promote`, `rollback` and `forget`."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike.adaptation import gate
from lookalike.adaptation.candidate import device_of, estimate, held_out, make_candidate, tell_estimate
from lookalike.adaptation.pool import Listed, Pool, content_ids, read_pool
from lookalike.adaptation.pool_vectors import purge
from lookalike.adaptation.report import report_sections
from lookalike.adaptation.settings import AdaptRequest, default_method, resolve
from lookalike.adaptation.versions import Pending, Versions
from lookalike.core import distributed, folders
from lookalike.core import progress as say
from lookalike.core.device import threads
from lookalike.core.engine import open_engine
from lookalike.core.errors import LookalikeError
from lookalike.core.interrupts import Stopped
from lookalike.core.run import Run, find_run, in_every_process, started_by_torchrun
from lookalike.data import Table, audit, content_id, read_table, with_columns
from lookalike.models import Embedder
from lookalike.training.estimate import Plan, describe_stages, duration


@in_every_process
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
    expert: str | Path | None = None,
    method: str | None = None,
    stream: bool = False,
    allow: Sequence[str] = (),
    deny: Sequence[str] = (),
    config: str | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int = 0,
    processes: int | None = None,
    device: str | None = None,
    engine: str = "local",
    layout: str = "auto",
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    dry_run: bool = False,
) -> Run | Plan:
    """Adapt a model to new images and use it if it is better.

    Unless a method is named, the best one measured for the kind of model runs; with a gallery or labels, where none was
    measured, SHOT or T3AR. T3AR retrieves the pool images nearest to the target and uses them as negatives. The
    previous model stays in use unless the adapted one is better: by labels (`labeled`, or the images of `judge`), else
    by an independent frozen expert. A rejected candidate is kept as a version (`promote`). An adapted run gets a new
    version, which starts from the base model again.

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
        expert: Frozen model that judges without labels; one of another architecture by default.
        method: Adaptation method; by default the best one measured for classifiers or for clusters of the target, SHOT
            with a gallery, T3AR with labels (the last two unmeasured).
        stream: Process the target once, in order, as a stream.
        allow: Use only these pool images: content ids or patterns of folder/path.
        deny: Never use these pool images: content ids or patterns of folder/path.
        config: Recipe to use: a name or a YAML file.
        settings: Any setting, as `lr=1e-4`. In Python a nested mapping, as `{"bank": {"size": 4096}}`.
        steps: Total number of steps.
        seed: Random seed.
        processes: Number of processes that adapt together.
        device: Device to adapt on, as `cpu` or `cuda`; the best one by default.
        engine: What embeds the pool: local, ray or ray://HOST:PORT, whose nodes must reach the images.
        layout: Layout of the target; detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        out: Folder of the run; a new one under the runs folder by default.
        resume: Run to continue after it was stopped. All other arguments are those it was started with.
        dry_run: Only print the settings and what the adaptation would cost, timed on a few images and steps.

    Returns:
        The run with its versions; with `dry_run` a `Plan`.

    Raises:
        LookalikeError: If images or settings cannot be used, or the resumed run cannot be continued.

    Example:
        >>> run = la.adapt(model="test_efficientnet", target="photos", steps=2)  # doctest: +SKIP
        >>> run.result["promoted"]  # doctest: +SKIP
        False
    """
    layout = with_columns(layout, image_column, label_column, split_column)
    torch.set_num_threads(threads())
    if distributed.started_size() > 1:
        processes, resume = started_by_torchrun(processes, out, resume)
        model, target = (None, None) if resume is not None else (model, target)
    if resume is not None:
        if model is not None or target is not None:
            raise LookalikeError(
                "--resume continues with the arguments of the stopped run; leave the model and --target out."
            )
        return _resumed(find_run(resume))
    if model is None or target is None:
        raise LookalikeError("Give a model and --target, or an unfinished run with --resume.")
    versions = Versions.of(model)
    where = device_of(device or "auto")
    base = Embedder.from_pretrained(model if versions is None else versions.folder(0) / "model", device=where)
    options = {"method": method, "steps": steps, "processes": processes}
    over = {**(settings or {}), **{name: value for name, value in options.items() if value is not None}}
    if steps is not None:
        over["epochs"] = None
    kinds = {"labels": labeled, "classifier": base.classifier is not None, "prototypes": gallery is not None}
    kind, why = next((name for name, holds in kinds.items() if holds), "clusters"), ""
    if "method" not in over and config is None:
        over["method"], why = default_method(kind)
    if config is None and labeled and over["method"] == "t3ar":
        config = "labeled"
    chosen = resolve(config, over, {"stream": True} if stream else {})
    if chosen.method == "mcc" and source is None:
        raise LookalikeError("`mcc` needs the labeled images the model was trained on: give them with --source.")
    if clusters is not None and clusters < 2:
        raise LookalikeError(f"{clusters} clusters cannot be told apart: give --clusters 2 or more.")
    for folder in (gallery, judge, source):  # what cannot be read is said now, not after the work
        if folder is not None:
            read_table(folder)
    table = target if isinstance(target, Table) else read_table(target, layout=layout, progress=True)
    audited = audit(table, near=False, progress=True).table
    images = audited.take(np.sort(np.unique(audited.column("content_id").astype(str), return_index=True)[1]))
    if copies := len(audited) - len(images):
        say.say(f"Left out: {say.plural(copies, 'copy', 'copies')} of other images.")
    places = {"gallery": gallery, "judge": judge, "source": source, "retriever": retriever, "expert": expert}
    lists = {"pool": [str(Path(folder).absolute()) for folder in pool], "allow": list(allow), "deny": list(deny)}
    more: dict[str, Any] = {**{name: _text(place) for name, place in places.items()}, **lists, "why": why, "seed": seed}
    more |= {"labeled": labeled, "clusters": clusters, "device": device or "auto", "engine": engine}
    request = AdaptRequest(chosen, **more)
    open_engine(engine)  # what is missing is said before the work
    if why:
        say.say(f"Method: {chosen.method} ({why}).")
    if pool and not chosen.retrieves:
        say.say(f"`{chosen.method}` retrieves nothing: the pool is not used; `--method t3ar` uses it.")
    if dry_run:
        return _plan(base, images, request, versions)
    if versions is None:
        started_with = {"model": str(model), "target": table.name, **request.to_json()}

        def fill(run: Run) -> None:
            """From the first moment on the run can be resumed."""
            Versions.create(run, base)
            Pending(run).begin(request, images, 1)

        run = Run.create("adapt", started_with, path=out, fill=fill)
        with run.removed_if_failed(), run.locked(), run.continued_by("adapt"):
            new_version(Versions(run), images, request)
            run.checkpoints.mkdir(exist_ok=True)  # from here on the run is worth keeping
        return run
    if out is not None:
        raise LookalikeError(f"`{model}` is an adapted model and gets a new version where it is; leave --out out.")
    with versions.locked(), versions.run.continued_by("adapt"):
        new_version(versions, images, request)
    return versions.run


def _resumed(run: Run) -> Run:
    versions = Versions(run)
    with versions.locked(), run.continued_by("adapt"):
        pending = Pending(run)
        request, target, ids = pending.read()
        if pending.version < versions.next_number:  # killed when all but the report was done
            number, decision = pending.version, _write_result(versions, pending.version)
            pending.end()
            say.say(f"The adaptation was finished; it is version {number}. {decision.message}")
            return run
        say.say(f"Resuming {pending.where()}.")
        new_version(versions, target, request, ids, begun=ids is not None)
    return run


def _text(path: str | Path | None) -> str | None:
    """A folder as an absolute path, so that it is found again from elsewhere; a name stays a name."""
    if path is None:
        return None
    place = next((place for place in (Path(path), folders.runs() / path) if place.exists()), None)
    return str(path) if place is None else str(place.absolute())


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
    where = device_of(request.device)
    base = Embedder.from_pretrained(versions.folder(0) / "model", device=where)
    now = base if versions.current == 0 else Embedder.from_pretrained(versions.run.model, device=where)
    pending = Pending(versions.run)
    if not begun:
        pending.begin(request, target, versions.next_number, None if only is None else sorted(only))
    held, pool = _pool(request, target, versions, only)
    if begun and only is not None and len(pool) < len(only):
        raise LookalikeError(
            f"{say.plural(len(only) - len(pool), 'pool image')} gone since the adaptation in `{versions.run.path}` "
            "began; it cannot be resumed."
        )
    # What can be known beforehand is said beforehand: what stands against promotion, and the time.
    gate.warn_of_obstacles(gate.obstacles(now, base, request, held))
    if not begun:
        pending.begin(request, target, versions.next_number, pool.ids)
        tell_estimate(estimate(base, target, pool, request))
    made = make_candidate(base, now, target, pool, request, versions.run)
    about = {"request": request.to_json(), "weights": made.weights, "classes": made.prepared.classes.how}
    about |= {"counts": made.counts, "seconds": made.seconds}
    number = versions.add(
        made.model,
        made.decision,
        receipts=made.receipts,
        target=target,
        pool={"folders": request.pool, "ids": pool.ids, "names": pool.names, "left_out": pool.left_out},
        about=about,
    )
    for name, section in report_sections(made, pool, versions.run).items():
        versions.run.write_section(name, section)
    decision = _write_result(versions, number)
    pending.end()
    if not decision.promoted:
        say.say(
            f"The candidate is version {number}: lookalike promote {shlex.quote(str(versions.run.path))} --judge FOLDER"
        )
    return number


def _pool(
    request: AdaptRequest, target: Table, versions: Versions | None, only: set[str] | None = None
) -> tuple[int, Pool]:
    """The number of held-out images, and the pool without what must not be learned from."""
    denied = versions.denied if versions is not None else []
    pool = read_pool(request.pool, allow=request.allow, deny=[*request.deny, *denied], progress=True)
    if only is not None:
        pool = pool.only(only)
    elif idle := [pattern for pattern in pool.idle if pattern in (*request.allow, *request.deny)]:
        such = pool.names[0] if pool.names else "archive/2020/*"
        raise LookalikeError(
            f"No pool image is meant by {', '.join(f'`{pattern}`' for pattern in idle)}: --allow and --deny take "
            f"content ids, or patterns of folder/path such as `{such}`."
        )
    # What is kept aside to judge by must not be learned from by way of the pool.
    held = held_out(target, request.settings.held_out_fraction, request.seed)
    aside = set(content_ids(target.take(held)))
    if request.judge is not None:
        aside |= set(content_ids(audit(read_table(request.judge), near=False).table))
    pool = pool.without(aside, "kept aside to judge by")
    if pool.left_out:
        say.say("Of the pool, left out: " + ", ".join(f"{count:,} {why}" for why, count in pool.left_out.items()) + ".")
    return int(held.sum()), pool


def _plan(base: Embedder, target: Table, request: AdaptRequest, versions: Versions | None) -> Plan:
    """What an adaptation would do and cost."""
    held, pool = _pool(request, target, versions)
    seconds = {name: round(value, 2) for name, value in estimate(base, target, pool, request).items()}
    facts = {
        "learned from": say.plural(len(target) - held, "image"),
        "held out": f"{say.plural(held, 'image')} to judge by",
        "pool": say.plural(len(pool), "image"),
        "method": request.settings.method,
        "time": f"about {duration(sum(seconds.values()))} the first time: {describe_stages(seconds)}",
    }
    return Plan(request.settings, facts, seconds)


def _write_result(versions: Versions, number: int) -> gate.Decision:
    """Write what came of a version into the run's result; the gate's decision."""
    row = versions.row(number)
    decision, request = gate.Decision(**row["decision"]), row["request"]
    facts = {name: row[name] for name in ("decision", "classes", "counts", "seconds")}
    facts |= {"version": number, "method": request["settings"]["method"], "why": request["why"]}
    versions.run.write_result(finished=True, **facts, **_verdict(decision))
    return decision


def _verdict(decision: gate.Decision) -> dict[str, Any]:
    return {"promoted": decision.promoted, "verdict": decision.message, "evidence": decision.summary}


def promote(
    *, model: str | Path, version: int | None = None, judge: str | Path | None = None, seed: int = 0
) -> dict[str, Any]:
    """Use a version that the gate rejected, by your own decision or after judging it with labeled images.

    Args:
        model: The adapted run.
        version: Number of the version; the last rejected one by default.
        judge: Labeled images that decide; without them the version is promoted as it is.
        seed: Seed of the bootstrap.

    Returns:
        The run folder, the version, whether it was promoted, the verdict, and the figures behind it.

    Raises:
        LookalikeError: If there is no such version, or it was deleted.

    Example:
        >>> la.promote(model="runs/adapted", version=1)["promoted"]  # doctest: +SKIP
        True
    """
    versions = Versions.need(model)
    torch.set_num_threads(threads())
    with versions.locked():
        rejected = [row["number"] for row in versions.rows if row["status"] == "rejected"]
        if version is None and not rejected:
            raise LookalikeError(f"`{model}` has no rejected version to promote; `lookalike rollback` changes others.")
        number = rejected[-1] if version is None else version
        row = versions.row(number)
        if row["status"] != "rejected":
            forgotten = row["status"] == "forgotten"
            state = "was deleted with images that were forgotten" if forgotten else "was not rejected"
            raise LookalikeError(f"Version {number} {state}; it cannot be promoted.")
        decision = gate.Decision(True, [], "your decision")
        if judge is not None:
            request = AdaptRequest.from_json(row["request"])
            now, candidate = (
                Embedder.from_pretrained(folder, device=device_of(request.device))
                for folder in (versions.run.model, versions.folder(number) / "model")
            )
            target = Table.load(versions.folder(number) / "target.parquet")
            learned = ~held_out(target, request.settings.held_out_fraction, request.seed)
            seen = {*content_ids(target.take(learned)), *versions.used(number)}
            table = gate.unseen(audit(read_table(judge), near=False).table, seen)
            decision = gate.compare_by_labels(now, candidate, table, seed)
        row["decision"] = decision.to_json()
        if decision.promoted:
            row["status"], row["before"] = "promoted", versions.current
            versions.use(number)
        versions.save()
        versions.run.write_result(**_verdict(decision))
    return {"model": versions.run.path, "version": number, **_verdict(decision)}


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
        gone = _named(versions, images)
        affected = [row["number"] for row in versions.rows if versions.used(row["number"]) & gone]
        again: tuple[Table, AdaptRequest, set[str]] | None = None
        if (current := versions.current) in affected:
            request = AdaptRequest.from_json(versions.row(current)["request"])
            target = Table.load(versions.folder(current) / "target.parquet")
            again = target, request, set(versions.pool_of(current)) - gone
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
        if again is not None:
            pending.begin(again[1], again[0], versions.next_number, sorted(again[2]))
        versions.denied = sorted({*versions.denied, *gone})
        versions.drop(affected)
        for row in versions.rows:
            versions.strike(row["number"], gone)
        if again is not None:
            try:
                number = new_version(versions, *again)
            except Stopped:
                raise
            except LookalikeError as error:
                used = f"version {versions.current}" if versions.current else "the base model"
                raise LookalikeError(
                    f"The images are forgotten and {used} is in use, but it could not be adapted again: {error} "
                    f"When that is mended: {versions.run.resume_with('adapt')}"
                ) from error
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


def _named(versions: Versions, images: Sequence[str | Path]) -> set[str]:
    """Content ids of the images that a user names."""
    gone: set[str] = set()
    known = {id_: path for row in versions.rows for id_, path in versions.pool_of(row["number"]).items()}
    for image in images:
        named = Listed([str(image)])
        matched = {id_ for id_, path in known.items() if named.holds(id_, path)}
        if not matched and Path(image).is_file():
            matched = {content_id(Path(image))}
        gone |= matched
        if not matched:
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
    versions = Versions.need(model)
    with versions.locked():
        now = versions.row(versions.current)
        if to is None and versions.current == 0:
            raise LookalikeError(f"`{model}` already uses its base model: there is nothing to go back to.")
        number = versions.usable(int(now["before"])) if to is None else to
        row = versions.row(number)
        if row["status"] == "forgotten":
            raise LookalikeError(f"Version {number} used images that were forgotten; it is gone for good.")
        if row["status"] not in ("promoted", "base"):
            raise LookalikeError(f"Version {number} was rejected and never in use; `lookalike promote` uses it.")
        before = versions.current
        versions.use(number)
    return {"model": versions.run.path, "from": before, "to": number, "fingerprint": row["fingerprint"]}
