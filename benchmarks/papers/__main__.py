"""``python -m benchmarks.papers PAPER``: test the claims of a paper."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.cli.output import Answer, link, rows, table
from lookalike.core.files import short_path

if TYPE_CHECKING:
    from benchmarks.papers import ClaimResult


def papers(
    *,
    paper: str | None = None,
    data: str | None = None,
    scale: str = "small",
    only: Sequence[str] = (),
    out: str | None = None,
    finished: bool = False,
    workers: int | None = None,
    smoke: bool = False,
    device: str = "auto",
    list: bool = False,  # noqa: A002 (the option's name)
    document: str | None = None,
    author_splits: str | None = None,
    protocol: str | None = None,
    pool: Sequence[str] = (),
    method: Sequence[str] = (),
    fraction: Sequence[float] = (),
    neighbors: Sequence[int] = (),
    retriever: str | None = None,
    seeds: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Answer:
    """Test the claims of a paper, small or at the paper's scale.

    A killed run continues where it stopped, and several runs side by side share the work: finished cells are stored in
    --out/cells. Verdicts are stored in --out. `t3ar --protocol` measures adaptation over the
    shifts of a data set instead, and `oodml --author-splits` converts a split file of the paper's authors.

    Args:
        paper: Whose claims; --list names them.
        data: Folder of the data sets; LOOKALIKE_DATA by default.
        scale: small: the claims, in minutes to hours. paper: the tables, at the paper's own scale on a GPU.
        only: Only this claim, or with --scale paper only this table (table-1).
        out: Folder of the stored results; with --protocol the run folder, with --author-splits the file.
        finished: Judge by the cells that are finished, and start none.
        workers: Cells that run side by side, one thread each; the number of threads by default.
        smoke: Run two steps of every row of the tables at tiny width, to test a device; of all papers if none is named.
        device: With --smoke: the device.
        list: Show the claims and their stored verdicts.
        document: Write this page from the stored results (docs/results.md).
        author_splits: oodml: convert this pickle of the authors, for the images in --data.
        protocol: t3ar: measure adaptation on pacs, domainnet126 or visda in --data.
        pool: With --protocol: images to retrieve from.
        method: With --protocol: source, bn, tent, shot, adacontrast, mcc, without, random or t3ar.
        fraction: With --protocol: fractions of the target.
        neighbors: With --protocol: also t3ar with these numbers of neighbors.
        retriever: With --protocol: model that retrieves; the source model by default.
        seeds: Only so many seeds of every cell, as for a pilot; with --protocol the number of seeds (1).
        settings: With --protocol: settings of adapt.
    """
    from benchmarks.papers import PAPERS, reproduce, results_of
    from benchmarks.papers.document import write_page
    from benchmarks.papers.tables import ROWS
    from lookalike.core.errors import LookalikeError

    results = out or "results"
    if list:
        return _answer([result for p in ([paper] if paper else PAPERS) for result in results_of(p, results)])
    for option, value, owner in (("--protocol", protocol, "t3ar"), ("--author-splits", author_splits, "oodml")):
        if value and (paper != owner or data is None):
            raise LookalikeError(f"{option} belongs to {owner} and needs --data, the folder of the data set.")
    if protocol:
        options = {"pool": pool, "method": method, "fraction": fraction, "neighbors": neighbors}
        chosen = {name: value for name, value in options.items() if value}
        return _protocol(
            name=protocol,
            data=data,
            retriever=retriever,
            seeds=seeds or 1,
            scale=scale,
            settings=settings,
            out=out,
            **chosen,
        )
    if author_splits:
        return _author_splits(Path(author_splits), str(data), out)
    if smoke:
        return _smoke([paper] if paper else [*ROWS, "t3ar"], device, only)
    if paper in ROWS and scale == "paper":
        return _tables(paper, data, only, results, finished)
    if paper is not None:
        judged = reproduce(
            paper=paper,
            data=data,
            scale=scale,
            only=only or None,
            out=results,
            finished=finished,
            workers=workers,
            seeds=seeds,
        )
        if document:
            write_page(Path(document), Path(results))
        return _answer(judged)
    if document is None:
        raise LookalikeError(f"Name a paper ({', '.join(PAPERS)}), or give --list or --document.")
    write_page(Path(document), Path(results))
    return Answer({"written": document}, [f"Written: {link(document)}"])


def _answer(results: Sequence[ClaimResult]) -> Answer:
    body = [(r.paper, r.key, r.verdict, r.note or r.statement) for r in results]
    lines = table(("paper", "claim", "verdict", "note"), body)
    return Answer([result.to_json() for result in results], lines, always=True)


def _smoke(papers: Iterable[str], device: str, only: Sequence[str]) -> Answer:
    import tempfile

    from benchmarks.papers.tables import smoke

    with tempfile.TemporaryDirectory(prefix="lookalike-smoke-") as folder:
        rows = [{"paper": p, **row} for p in papers for row in smoke(p, Path(folder, p), device=device, only=only)]
    body = [(row["paper"], row["table"], row["data"], row["arm"], f"{row['loss']:.4f}") for row in rows]
    return Answer(rows, table(("paper", "table", "data", "arm", "loss after 2 steps"), body), always=True)


def _tables(paper: str, data: str | None, only: Sequence[str], out: str, finished: bool) -> Answer:
    from benchmarks.papers.tables import run_tables
    from benchmarks.provenance import data_folder
    from lookalike.core.errors import LookalikeError

    folder = data_folder(data)
    if folder is None:
        raise LookalikeError("The tables need the data sets: give the folder that holds them with --data.")
    rows = run_tables(paper, folder, only=only, out=out, finished=finished)
    body = [tuple("–" if value is None else str(value) for value in row.values()) for row in rows]
    return Answer(rows, table(tuple(rows[0]), body), always=True)


def _protocol(**options: Any) -> Answer:
    from benchmarks.papers.t3ar_protocols import protocol

    run = protocol(**options)
    result = run.result
    body = [
        (
            f"{row['source']} to {row['target']}",
            row["method"] if "neighbors" not in row else f"t3ar, {row['neighbors']} neighbors",
            f"{row['fraction']:g}",
            str(row["seed"]),
            f"{row[result['measure']]:.1f}",
        )
        for row in result["rows"]
    ]
    lines = table(("shift", "method", "of the target", "seed", "accuracy, %"), body)
    lines += rows(("Report", f"lookalike report {short_path(run.path)}"))
    return Answer({"run": run.path, **result}, lines, always=True)


def _author_splits(file: Path, data: str, out: str | None) -> Answer:
    from benchmarks.papers.author_splits import read_splits
    from lookalike.data import read_table

    splits = read_splits(file, read_table(data, progress=True))
    path = Path(out or f"{splits.data['name']}-splits.json")
    splits.save(path)
    return Answer({**splits.to_json(), "path": path}, [f"Written: {link(path)}"])


if __name__ == "__main__":
    from lookalike.cli.app import run_command

    sys.exit(run_command("benchmarks.papers.__main__:papers", {"paper": "PAPER"}, "python -m benchmarks.papers"))
