"""From the words on the command line to an exit code: errors become sentences here, and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from lookalike.cli.interrupt import two_strikes
from lookalike.cli.sentences import UsageError, sentence
from lookalike.core.errors import Exit, LookalikeError

STOPPED = "Stopped. What was finished is kept; run the same command to go on."


def run(words: Sequence[str]) -> int:
    """Run one command; whatever a user can get wrong ends as one sentence on stderr."""
    from lookalike.cli.app import command

    return _run(command(), words, "lookalike")


def run_function(function: Callable[..., None], name: str) -> int:
    """Run a single command that is not part of the application, with the words of this process."""
    app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, add_completion=False)
    app.command()(function)
    return _run(typer.main.get_command(app), sys.argv[1:], name)


def _run(command: Any, words: Sequence[str], name: str) -> int:
    with two_strikes():
        try:
            code = command.main(list(words), prog_name=name, standalone_mode=False)
            sys.stdout.flush()
            if code == Exit.STOPPED:  # typer's way to tell of Ctrl-C
                raise KeyboardInterrupt
        except UsageError as error:
            return _say(sentence(error), Exit.USER)
        except LookalikeError as error:
            return _say(str(error), error.exit_code)
        except (KeyboardInterrupt, typer.Abort):
            return _say(STOPPED, Exit.STOPPED)
        except (BrokenPipeError, SystemExit) as error:
            if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
                raise  # shell completion ends so; a closed pipe too, in typer's hands
            # The reader has seen enough (`| head`); what is left in the buffer must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return Exit.OK
    return code if isinstance(code, int) else Exit.OK


def _say(text: str, code: int) -> int:
    print(" ".join(text.split()), file=sys.stderr)
    return code
