from __future__ import annotations

from pathlib import Path

import pytest

from lookalike.core.run import Run
from tests.reporting.factory import make_run


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run with every section; do not write into it."""
    return make_run(tmp_path_factory.mktemp("whole") / "cub-proxy-anchor")


@pytest.fixture(scope="session")
def whole_report(whole_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lookalike.reporting import report

    return report(run=whole_run, out=tmp_path_factory.mktemp("out") / "report.html")


HOSTILE = [
    "<script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "</script><script>window.pwned = 1</script>",
    "</style><svg onload=window.pwned=1>",
    "نورس غربي ‮evil‬",
    "🐦‍⬛ blackbird 👩🏽‍🔬",
    "A" * 3000,
    "very long name " * 60,
    "bell \x07 and\x1bescape",
    "<!-- --> ]]> {{ 7*7 }} ${1} %s &amp; &#x3c;b>",
    "javascript:window.pwned=1",
    "' onmouseover='window.pwned=1",
    "",
    "   ",
]


@pytest.fixture(scope="session")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every label is an attack, or at least a nuisance."""
    from lookalike.reporting import report

    folder = tmp_path_factory.mktemp("hostile")
    return report(run=make_run(folder / "run <b>'\"& ‮", names=HOSTILE, points=600), out=folder / "report.html")
