"""`cli("search", "x.jpg")` runs a command in this process and gives what it answered."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.helpers import Answer

from lookalike.cli.start import run
from lookalike.core import progress


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Answer]]:
    def call(*words: object) -> Answer:
        capfd.readouterr()
        code = run([str(word) for word in words])
        found = capfd.readouterr()
        return Answer(int(code), found.out, found.err)

    yield call
    progress.set_level(1)
