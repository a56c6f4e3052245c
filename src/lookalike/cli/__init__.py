"""The command line: one file a verb, each parses, calls one Python function, and prints."""

from __future__ import annotations

import sys


def main() -> None:
    """`lookalike`: ends with the exit codes of `core.errors.Exit`."""
    from lookalike.cli.start import run

    sys.exit(run(sys.argv[1:]))
