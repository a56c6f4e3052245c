"""The commands by name: the Python function behind each, and how its result is printed."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lookalike.cli.generate import Command
from lookalike.cli.output import Answer, confirm, interval, link, rows, significant, table
from lookalike.core.errors import Exit
from lookalike.core.files import format_bytes, typed_path
from lookalike.core.progress import plural, say, speed, warn

Options = dict[str, Any]
DRY_RUN = "dry_run"
YES = {"yes": "Do not ask for confirmation."}


def _lines(result: Any, options: Options) -> Answer:
    """The result's own lines, and where the report can be drawn from."""
    report = [f"Report: lookalike report {typed_path(options['out'])}"] if options.get("out") else []
    return Answer(result, [*str(result).splitlines(), *report], always=True)


# ---- start ---------------------------------------------------------------------------------------


def _demo(done: Any, options: Options) -> Answer:
    from lookalike.demo import command

    search = f"{command()} search {typed_path(done.hits.query)} --index {typed_path(done.index)}"
    return Answer(done, [f"$ {search}", *[f"  {line}" for line in str(done.hits).splitlines()[:4]], *rows(*done.lines)])


def _doctor(report: Any, options: Options) -> Answer:
    width = max(len(check.name) for check in report.checks)
    lines = [
        f"{check.status:<8}{check.name:<{width}}  "
        + " · ".join(text for text in (check.detail, check.impact, check.fix) if text)
        for check in report.checks
    ]
    lines += ["", *textwrap.wrap(report.license, 110), "", "Next: lookalike demo"]
    return Answer(report, lines, always=True, code=Exit.OK if report.ok else Exit.FAILED)


# ---- search --------------------------------------------------------------------------------------


def _index(done: Any, options: Options) -> Answer:
    if options.get("remove"):
        word = "To remove" if options.get(DRY_RUN) else "Removed"
        return Answer(done, [f"{word} from the index: {plural(done.deleted, 'image')}; the files stay where they are."])
    return Answer(done, str(done).splitlines())


def _search(result: Any, options: Options) -> Answer:
    lines: list[str] = []
    note = ""
    for answer in result if isinstance(result, list) else [result]:
        own = [line for line in str(answer).splitlines() if line != note]  # a note on all answers stands once
        note = getattr(answer, "detail", "") or "\n"
        lines += [""] * bool(lines) + own
    return Answer(result, lines, always=True)


def _index_in_background(function: Callable[..., Any], options: Options) -> Any:
    """Let a server, and whoever works at the machine, go first: they wait for answers, indexing takes what is left."""
    if sys.argv[1:2] == ["index"] and hasattr(os, "nice"):  # not where the command line is called from Python
        os.nice(5)
    return function(**options)


def _duplicates(function: Callable[..., Any], options: Options) -> Any:
    """Ask before files are moved."""
    yes = options.pop("yes", False)
    if (options.get("move") or options.get("move_to")) and not (options.get(DRY_RUN) or yes or options.get("back")):
        plan = function(**{name: value for name, value in options.items() if name not in ("move", "move_to")})
        groups = [group for group in plan.groups if group.kind in options.get("kinds", ("identical",))]
        files, size = sum(len(group.moves) for group in groups), format_bytes(sum(group.bytes for group in groups))
        if not files:
            return plan
        confirm(f"Move {plural(files, 'file')} ({size}) away? Nothing is deleted.", yes=False)
    return function(**options)


def _switch(manifest: Any, options: Options) -> Answer:
    body = [
        (g.number, g.model.short, f"{g.images:,}", "answers" if g.number == manifest.live else "")
        for g in manifest.generations
    ]
    document = {"live": manifest.live, "generations": [g.model_dump(mode="json") for g in manifest.generations]}
    return Answer(document, table(("generation", "model", "images", ""), body))


def _backup(done: Any, options: Options) -> Answer:
    size = f"{plural(done.images, 'image')}, {format_bytes(done.bytes)}"
    return Answer(done, [f"Backup    {done.path}: {size}", f"Restore   lookalike restore {typed_path(done.path)}"])


def _restore(done: Any, options: Options) -> Answer:
    where = f"{plural(done.images, 'image')} in {done.path}"
    return Answer(done, [f"Index     {done.name}: {where}", f"Search    lookalike search IMAGE --index {done.name}"])


def _purge(function: Callable[..., Any], options: Options) -> Answer:
    index = options["index"]
    plan = function(index=index, dry_run=True)
    size = format_bytes(plan.bytes)
    if options.get(DRY_RUN):
        return Answer(plan, [f"{size} of `{plan.name}` would be deleted; the images would stay."])
    question = f"Delete the index `{plan.name}` ({plural(plan.images, 'image')}, {size})? The images stay."
    confirm(question, yes=options.get("yes", False))
    done = function(index=index)
    return Answer(done, [f"Deleted the index `{done.name}`: {size}, including {plural(done.thumbnails, 'thumbnail')}."])


# ---- train and measure ---------------------------------------------------------------------------


def _train(done: Any, options: Options) -> Answer:
    """What was trained on what, how good it became, and which model the run ends with."""
    from lookalike.core.run import Run
    from lookalike.training.estimate import describe_stages

    if not isinstance(done, Run):  # the plan of a dry run
        return Answer(done, str(done).splitlines(), always=True)
    result, path = done.result, done.path
    measured, changes = result.get("measured", {}), result.get("differences", {})
    values = [f"{name} {scores['recall@1']['value']:.3f}" for name, scores in measured.items()]
    change = next((scores["recall@1"] for scores in changes.values()), None)
    if change:
        values.append(interval(change["difference"], change["low"], change["high"], points=True))
    how = f"{result['method']}, {plural(result['steps'], 'step')}, best at {result['best_step']:,}"
    trained = path / "trained"  # saved beside a starting model that was kept
    lines = rows(
        ("Images", ", ".join(f"{count:,} {name}" for name, count in result["images"].items())),
        ("Model", f"{result['model']}, {how}"),
        ("Time", describe_stages(result["seconds"])),
        ("Recall@1", "  ".join(values)),
        ("Verdict", result["verdict"]),
        ("Saved", f"{result['selected']}, in {link(path / 'model')}"),
        ("Report", f"lookalike report {typed_path(path)}"),
        ("Next", f"lookalike index FOLDER --model {typed_path(trained if trained.exists() else path)}"),
    )
    return Answer({"run": path, **result}, lines)


def _adapt(done: Any, options: Options) -> Answer:
    from lookalike.training.estimate import describe_stages

    if options.get(DRY_RUN):
        return Answer(done, str(done).splitlines(), always=True)
    result, path = done.result, typed_path(done.path)
    counts, version = result["counts"], done.path / "versions" / str(result["version"])
    learned = f"{plural(counts['learned_from'], 'image')}, judged by {plural(counts['judged'], 'other')}"
    lines = rows(
        ("Method", f"{result['method']}: {result['why']}" if result.get("why") else result["method"]),
        ("Classes", result["classes"]),
        ("Learned from", learned),
        ("Evidence", result["evidence"]),
        ("Pool", _pool_used(result["method"], counts)),
        ("Time", describe_stages(result["seconds"])),
        ("Model", link(done.path)),
        ("Candidate", None if result["promoted"] else link(version / "model")),
        ("Receipts", link(version / "receipts.json")),
        ("Undo", f"lookalike rollback {path}" if result["promoted"] else None),
        ("Use it anyway", None if result["promoted"] else f"lookalike promote {path}"),
        ("Report", f"lookalike report {path}"),
    )
    return Answer({"run": done.path, **result}, [result["verdict"], *lines], always=True)


def _pool_used(method: str, counts: dict[str, int]) -> str | None:
    if not counts["pool"]:
        return None
    unused = f"{plural(counts['pool'], 'image')}, of which {method} uses none"
    return f"{counts['used']:,} of {counts['pool']:,} images used" if counts["used"] else unused


def _promote(done: Any, options: Options) -> Answer:
    undo = f"lookalike rollback {typed_path(done['model'])}" if done["promoted"] else None
    lines = rows(("Version", done["version"]), ("Evidence", done["evidence"]), ("Undo", undo))
    return Answer(done, [done["verdict"], *lines], always=True)


def _rollback(done: Any, options: Options) -> Answer:
    name = "the base model" if done["to"] == 0 else f"version {done['to']}"
    return Answer(done, [f"{done['model'].name} uses {name} again, in place of version {done['from']}."])


def _forget(done: Any, options: Options) -> Answer:
    gone = ", ".join(map(str, done["versions_gone"])) or "none"
    lines = [f"Forgot {plural(len(done['forgotten']), 'image')}; versions deleted: {gone}."]
    if done["made_again"] is not None:
        lines.append(f"Version {done['made_again']} was trained again from the base model.")
    name = "the base model" if done["in_use"] == 0 else f"version {done['in_use']}"
    return Answer(done, [*lines, f"In use: {name}."])


def _report(path: Any, options: Options) -> Answer:
    size = Path(path).stat().st_size
    lines = rows(("Report", f"{link(path)}, {format_bytes(size)}"), ("Open", Path(path).as_uri()))
    return Answer({"report": path, "bytes": size}, lines)


def _embed(done: Any, options: Options) -> Answer:
    about = "about " * bool(options.get(DRY_RUN))
    took = f" ({about}{done.seconds:.0f} s, {speed(done.count / done.seconds)})" if done.seconds else ""
    failures = [("" if i else "Unreadable", f"{f.name}: {f.reason}") for i, f in enumerate(done.failures[:3])]
    failures += [("", f"and {len(done.failures) - 3:,} more; --json names them all")] * (len(done.failures) > 3)
    size = f"would be about {format_bytes(done.bytes)}" if options.get(DRY_RUN) else format_bytes(done.bytes)
    model = f" --model {typed_path(options['model'])}" if "model" in options else ""
    then = f"{typed_path(options['source'])}{model}"
    parts = ""
    if done.parts:
        parts, then = f"{done.parts:,} ({done.embedded:,} of them now), ", f"--vectors {typed_path(options['out'])}"
    lines = rows(
        ("Images", f"{done.count:,}{took}"),
        *failures,
        ("Vectors", f"{done.dim} dimensions, by {done.model} ({done.fingerprint[:4]})"),
        ("Parts" if done.parts else "File", f"{link(done.out)}, {parts}{size}"),
        ("Next", f"lookalike index {then}"),
    )
    return Answer(done, lines)


def _export(done: Any, options: Options) -> Answer:
    lines = rows(
        ("File", f"{link(done.out)}, {format_bytes(done.bytes)}, ONNX opset {done.opset}"),
        ("Input", f"pixels: uint8, any batch × {done.size} × {done.size} × 3, RGB"),
        ("Output", f"unit vectors of {done.dim} dimensions"),
        ("Parity", f"differs from torch by at most {done.difference:.1e} (tolerance {done.tolerance:.0e})"),
    )
    return Answer(done, lines)


# ---- shift ---------------------------------------------------------------------------------------


def _splits(function: Callable[..., Any], options: Options) -> Answer:
    made = function(**{name: value for name, value in options.items() if name != "out"}, progress=True)
    _warn_of_fewer(made, options.get("count", 9))
    path = Path(options.get("out") or f"{made.data['name']}-splits.json")
    made.save(path)
    body = []
    for split in made.splits:
        note = "the usual split" if split.id == made.default else ""
        control = next((step.random for step in made.sequence if step.name == split.step and step.random), ())
        random = significant(sum(control) / len(control)) if control else "–"
        body.append((split.id, split.step, significant(split.fid), random, len(split.train), *split.images, note))
    head = ("split", "step", "FID", "at random", "classes a side", "train", "test", "neither", "")
    following = f"lookalike shift run {typed_path(options['data'])} --splits {typed_path(path)}"
    lines = [*table(head, body), *rows(("Written", link(path)), ("Next", following))]
    return Answer({**made.to_json(), "path": path}, lines, always=True)


def _warn_of_fewer(splits: Any, count: int) -> None:
    if len(splits.splits) < count:
        classes = len(splits.data["classes"])
        say(
            f"{len(splits.splits)} splits instead of {count}: "
            f"swapping and removing {classes} classes has no more steps."
        )


def _warn_of_transfer(splits: Any, only: Sequence[int], others: Sequence[object]) -> None:
    if others and only and splits.default not in only:
        names = ", ".join(f"`{Path(str(other)).name}`" for other in others)
        warn(
            f"Nothing is measured on {names}: transfer uses the models of the usual split, number {splits.default}, "
            "which --only leaves out; add it."
        )


def _shift_run(function: Callable[..., Any], options: Options) -> Answer:
    from lookalike.shift import SplitSet

    if options.get("splits") and options.get("transfer"):  # before the hours it takes
        _warn_of_transfer(SplitSet.load(options["splits"]), options.get("only", ()), options["transfer"])
    done = function(**options)
    if options.get(DRY_RUN):
        return Answer(done, str(done).splitlines(), always=True)
    made = SplitSet.load(done.path / "splits.json")
    if done.config["splits"] is None:
        _warn_of_fewer(made, done.config["count"])
        _warn_of_transfer(made, done.config["only"], done.config["transfer"])
    scores = done.result["ags"]
    body = []
    for name, score in scores["recall@1"].items():
        second = scores["map@1000"][name]
        body.append((name, interval(score["value"], score["low"], score["high"]), f"{second['value']:.3f}"))
    return _runs(done, table(("method", "AGS, recall@1", "AGS, mAP@1000"), body))


def _fewshot(done: Any, options: Options) -> Answer:
    from lookalike.shift import SplitSet

    if done.config["splits"] is None:
        _warn_of_fewer(SplitSet.load(done.path / "splits.json"), done.config["count"])
    body = []
    for row in done.result["summary"]:
        score = row["recall@1"]
        gain = interval(score["gain"]["value"], score["gain"]["low"], score["gain"]["high"], points=True)
        body.append((row["split"], row["method"], row["shots"], f"{score['zero']:.3f}", f"{score['few']:.3f}", gain))
    return _runs(done, table(("split", "method", "shots", "zero-shot", "few-shot", "gain"), body))


def _runs(done: Any, lines: list[str]) -> Answer:
    lines += rows(("Runs", link(done.path)), ("Report", f"lookalike report {typed_path(done.path)}"))
    return Answer({"run": done.path, **done.result}, lines, always=True)


def _place(placed: Any, options: Options) -> Answer:
    blind, out = placed.baseline, options.get("out")
    lines = rows(
        ("Images", f"{placed.images:,}"),
        ("Measure", f"images, of {placed.used:,}, whose nearest neighbor in the folder shows the same class"),
        ("Interval", f"{100 * placed.level:.0f} %, calibrated on folders of known classes"),
        ("Without data", f"between {blind.low:.2f} and {blind.high:.2f}"),
        ("Report", f"lookalike report {typed_path(out)}" if out else None),
    )
    return Answer(placed, [placed.message, *lines], always=True)


COMMANDS: dict[str, Command] = {
    "demo": Command("lookalike.demo:demo", show=_demo),
    "doctor": Command("lookalike.doctor:doctor", show=_doctor),
    "plan": Command("lookalike.planning:plan", show=_lines),
    "index": Command(
        "lookalike.searching.indexing:index", {"folder": "FOLDER"}, show=_index, call=_index_in_background
    ),
    "search": Command("lookalike.searching.query:search", {"query": "IMAGE"}, show=_search, short={"k": "-k"}),
    "duplicates": Command(
        "lookalike.searching.find_duplicates:duplicates", {"source": "FOLDER|INDEX"}, _search, _duplicates, extra=YES
    ),
    "serve": Command("lookalike.service.server:serve", {"index": "INDEX"}),
    "train": Command("lookalike.training.train_command:train", {"data": "DATA"}, show=_train),
    "pretrain": Command("lookalike.training.train_command:pretrain", {"data": "FOLDER"}, show=_train),
    "evaluate": Command("lookalike.evaluation.evaluate_models:evaluate", {"data": "DATA"}, show=_lines),
    "compare": Command("lookalike.evaluation.evaluate_models:compare", {"data": "DATA"}, show=_lines),
    "models": Command("lookalike.models.model_list:list_models", show=_lines),
    "adapt": Command("lookalike.adaptation.adapt_command:adapt", {"model": "MODEL"}, show=_adapt),
    "promote": Command("lookalike.adaptation.adapt_command:promote", {"model": "MODEL"}, show=_promote),
    "rollback": Command("lookalike.adaptation.adapt_command:rollback", {"model": "MODEL"}, show=_rollback),
    "forget": Command(
        "lookalike.adaptation.adapt_command:forget", {"model": "MODEL", "images": "IMAGE…"}, show=_forget
    ),
    "report": Command("lookalike.reporting.html_report:report", {"run": "RUN"}, show=_report),
    "embed": Command("lookalike.models.embedding:embed", {"source": "FOLDER"}, show=_embed),
    "export": Command("lookalike.models.exporting:export", show=_export),
    "shift splits": Command("lookalike.shift.make_splits:splits", {"data": "DATA"}, show=_lines, call=_splits),
    "shift run": Command("lookalike.shift.experiment:run", {"data": "DATA"}, show=_lines, call=_shift_run),
    "shift fewshot": Command("lookalike.shift.few_shot:fewshot", {"data": "DATA"}, show=_fewshot),
    "shift place": Command("lookalike.shift.placement:place", {"model": "MODEL", "folder": "FOLDER"}, show=_place),
    "switch": Command("lookalike.searching.generations:switch", {"index": "INDEX"}, show=_switch),
    "backup": Command("lookalike.searching.archive:backup", {"index": "INDEX"}, show=_backup),
    "restore": Command("lookalike.searching.archive:restore", {"file": "FILE"}, show=_restore),
    "verify": Command("lookalike.searching.verify_index:verify", {"index": "INDEX|RUN|MODEL"}, show=_index),
    "purge": Command("lookalike.searching.removal:purge", {"index": "INDEX"}, show=_lines, call=_purge, extra=YES),
    "recipes list": Command("lookalike.cli.housekeeping:list_recipes", show=_lines),
    "recipes show": Command("lookalike.cli.housekeeping:show_recipe", {"name": "NAME"}, show=_lines),
    "recipes copy": Command("lookalike.cli.housekeeping:copy_recipe", {"name": "NAME", "to": "FILE"}, show=_lines),
    "cache ls": Command("lookalike.cli.housekeeping:list_cache", show=_lines),
    "cache clear": Command("lookalike.cli.housekeeping:clear_cache", show=_lines),
    "keys new": Command("lookalike.cli.housekeeping:new_key", {"name": "NAME"}, show=_lines),
    "keys ls": Command("lookalike.cli.housekeeping:list_keys", show=_lines),
    "keys revoke": Command("lookalike.cli.housekeeping:revoke_key", {"key": "KEY"}, show=_lines),
}

GROUPS = {
    "shift": "Measure how retrieval falls as data shift away from training.",
    "recipes": "List, show and copy recipes: settings by name.",
    "cache": "List or clear cached data.",
    "keys": "Create, list and revoke API keys of the service.",
}

PANELS = {
    "Start": ("demo", "doctor", "plan"),
    "Search": ("index", "search", "duplicates", "serve"),
    "Train and measure": ("train", "pretrain", "recipes", "evaluate", "compare", "shift", "report"),
    "Models": ("models", "adapt", "promote", "rollback", "forget", "embed", "export"),
    "Housekeeping": ("switch", "backup", "restore", "verify", "purge", "keys", "cache"),
}
