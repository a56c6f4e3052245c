"""What all verbs share: `-q`, `-v`, `--json`, and how an answer is printed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from lookalike.cli.completing import offer

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Errors only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more on the way.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document instead of words.")]


@dataclass
class Answer:
    """What a verb prints: a document for programs, lines for people.

    `asked` answers are what the user came for and are printed even with `-q`; the others only tell
    what was done.
    """

    document: Any
    lines: list[str] = field(default_factory=list)
    asked: bool = False
    code: int = 0
    """What the process ends with: `Exit.FAILED` when something that was checked does not hold."""


def verb(function: Callable[..., Answer | None]) -> Callable[..., None]:
    """Turn a function that returns an `Answer` into a command; one that returns nothing has no `--json`."""
    signature = inspect.signature(function, eval_str=True)
    shared = {"as_json": Json, "quiet": Quiet, "verbose": Verbose}
    if signature.return_annotation is None:
        del shared["as_json"]

    @functools.wraps(function)
    def command(*, as_json: bool = False, quiet: bool = False, verbose: bool = False, **options: Any) -> None:
        from lookalike.core import progress

        progress.set_level(0 if quiet else 2 if verbose else 1)
        if not verbose:
            warnings.simplefilter("ignore")  # libraries talk to their developers; ours go through progress.warn
        with _clean_stdout() if as_json else contextlib.nullcontext():
            answer = function(**options)
        if answer is not None:
            _print(answer, as_json=as_json, quiet=quiet)
            if answer.code:
                raise typer.Exit(answer.code)

    for name, parameter in signature.parameters.items():
        offer(function.__name__, name, parameter.annotation)
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
        for name, kind in shared.items()
    ]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def _print(answer: Answer, *, as_json: bool, quiet: bool) -> None:
    from lookalike.core.files import plain, printable

    if as_json:
        print(printable(json.dumps(plain(answer.document), ensure_ascii=False, indent=1)))
    elif answer.asked or not quiet:
        print(printable("\n".join(answer.lines)))


@contextlib.contextmanager
def _clean_stdout() -> Iterator[None]:
    """Whatever a library prints while we work goes to stderr: stdout holds the document and nothing else."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        if os.name == "posix":
            ctypes.CDLL(None).fflush(None)  # what C code printed waits in a buffer of its own
        os.dup2(kept, 1)
        os.close(kept)
