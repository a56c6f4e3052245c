"""`python -m benchmarks.papers PAPER`: test the claims of a paper."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookalike.cli import show
from lookalike.cli.options import Data
from lookalike.cli.verb import Answer, verb

if TYPE_CHECKING:
    from benchmarks.papers import ClaimResult


@verb
def reproduce(
    paper: Annotated[str | None, typer.Argument(metavar="PAPER", help="Whose claims; --list shows them.")] = None,
    data: Data = None,
    scale: Annotated[str, typer.Option("--scale", help="small, or paper: at the paper's own scale.")] = "small",
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this claim; may be given again.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder of the stored results.")] = Path("results"),
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget the finished jobs of earlier runs.")] = False,
    finished: Annotated[bool, typer.Option("--finished", help="Judge by the runs that are finished.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the claims and what is known of them.")] = False,
    document: Annotated[
        Path | None, typer.Option("--document", help="Write this page from the stored results (docs/results.md).")
    ] = None,
) -> Answer:
    """Try the papers' claims, small or at scale.

    A killed run goes on where it stopped. Results are kept in --out.
    """
    from benchmarks.papers import PAPERS, results_of
    from benchmarks.papers import reproduce as run_paper
    from benchmarks.papers.document import write_page
    from lookalike.core.errors import LookalikeError

    papers = [paper] if paper else list(PAPERS)
    if listed:
        return _answer([result for p in papers for result in results_of(p, out)])
    if paper is not None:
        results = run_paper(paper=paper, data=data, scale=scale, only=only, out=out, fresh=fresh, finished=finished)
        if document:
            write_page(document, out)
        return _answer(results)
    if document is None:
        raise LookalikeError(f"Say what to reproduce ({', '.join(PAPERS)}), or give --list or --document.")
    write_page(document, out)
    return Answer({"written": document}, [f"Written: {show.link(document)}"])


def _answer(results: list[ClaimResult]) -> Answer:
    body = [(r.paper, r.key, r.verdict, r.note or r.statement) for r in results]
    lines = show.table(("paper", "claim", "verdict", "what was found"), body)
    return Answer([result.to_json() for result in results], lines, asked=True)


if __name__ == "__main__":
    from lookalike.cli.start import run_function

    sys.exit(run_function(reproduce, "python -m benchmarks.papers"))
