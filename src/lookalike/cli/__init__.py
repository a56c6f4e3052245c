"""The command line, generated from the Python functions of the package."""

from __future__ import annotations

import sys


def main() -> None:
    """Run `lookalike` with the arguments of this process."""
    from lookalike.cli.app import run

    sys.exit(run(sys.argv[1:]))
