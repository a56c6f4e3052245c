"""The command line, generated from the Python functions of the package."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run `lookalike` with the arguments of this process.

    Example:
        >>> sys.argv = ["lookalike", "--version"]
        >>> main()
        Traceback (most recent call last):
        SystemExit: 0
    """
    from lookalike.core.errors import Exit

    try:
        from lookalike.cli.app import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:  # while the command line itself was loaded
        print("Stopped.", file=sys.stderr)
        code = Exit.STOPPED
    if code in (Exit.STOPPED, Exit.TERMINATED):  # everything is closed; no thread that still reads is waited for
        sys.stdout.flush()
        os._exit(code)
    sys.exit(code)


def __dir__() -> list[str]:
    return __all__
