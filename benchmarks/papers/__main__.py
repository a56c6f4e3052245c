"""`python -m benchmarks.papers PAPER`: test the claims of a paper."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lookalike.cli.output import Answer, link, table

if TYPE_CHECKING:
    from benchmarks.papers import ClaimResult


def papers(
    *,
    paper: str | None = None,
    data: str | None = None,
    scale: str = "small",
    only: Sequence[str] = (),
    out: str = "results",
    fresh: bool = False,
    finished: bool = False,
    list: bool = False,  # noqa: A002 (the option's name)
    document: str | None = None,
) -> Answer:
    """Test the claims of a paper, small or at the paper's scale.

    A killed run continues where it stopped. Results are stored in --out.

    Args:
        paper: Whose claims; --list names them.
        data: Folder of the data sets; LOOKALIKE_DATA by default.
        scale: small, or paper: at the paper's own scale.
        only: Only this claim.
        out: Folder of the stored results.
        fresh: Discard the finished jobs of earlier runs.
        finished: Judge by the runs that are finished, and start none.
        list: Show the claims and their stored verdicts.
        document: Write this page from the stored results (docs/results.md).
    """
    from benchmarks.papers import PAPERS, reproduce, results_of
    from benchmarks.papers.document import write_page
    from lookalike.core.errors import LookalikeError

    if list:
        return _answer([result for p in ([paper] if paper else PAPERS) for result in results_of(p, out)])
    if paper is not None:
        results = reproduce(
            paper=paper, data=data, scale=scale, only=only or None, out=out, fresh=fresh, finished=finished
        )
        if document:
            write_page(Path(document), Path(out))
        return _answer(results)
    if document is None:
        raise LookalikeError(f"Name a paper ({', '.join(PAPERS)}), or give --list or --document.")
    write_page(Path(document), Path(out))
    return Answer({"written": document}, [f"Written: {link(document)}"])


def _answer(results: Sequence[ClaimResult]) -> Answer:
    body = [(r.paper, r.key, r.verdict, r.note or r.statement) for r in results]
    lines = table(("paper", "claim", "verdict", "note"), body)
    return Answer([result.to_json() for result in results], lines, always=True)


if __name__ == "__main__":
    from lookalike.cli.app import run_command

    sys.exit(run_command("benchmarks.papers.__main__:papers", {"paper": "PAPER"}, "python -m benchmarks.papers"))
