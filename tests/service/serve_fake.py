"""A service over an index of a `FakeEmbedder`, in a process of its own: prints its port, and serves until it is killed.

Usage: python -m tests.service.serve_fake INDEX [--handles N] [--blas]
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def main() -> None:
    from lookalike.searching import Index
    from lookalike.service import create_app
    from lookalike.service.app import Server
    from lookalike.service.middleware import LOOPBACK, install_logging
    from lookalike.service.server import _listen
    from lookalike.service.state import Service
    from tests.searching import fake

    parser = argparse.ArgumentParser()
    parser.add_argument("index", type=Path)
    parser.add_argument("--handles", type=int)
    parsed = parser.parse_args()
    fake.install(pytest.MonkeyPatch())
    if parsed.handles:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (parsed.handles, parsed.handles))
    install_logging(logging.WARNING)
    listener = _listen("127.0.0.1", 0)
    app = create_app(Service(Index.open(parsed.index), []), hosts=LOOPBACK)
    print(listener.getsockname()[1], flush=True)
    Server(app).run(sockets=[listener])


@contextmanager
def process(index: Path, *options: str, log: Path | None = None, **environment: str) -> Iterator[tuple[Any, int]]:
    """The process of a running service, and its port."""
    with (log or Path(os.devnull)).open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", __name__, str(index), *options],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **environment},
            cwd=Path(__file__).parents[2],
        )
        try:
            assert server.stdout is not None
            yield server, int(server.stdout.readline())
        finally:
            server.terminate()
            server.wait(30)


if __name__ == "__main__":
    main()
