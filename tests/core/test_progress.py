from __future__ import annotations

import io
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from lookalike.core import progress


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _level() -> Iterator[None]:
    yield
    progress.set_level(1)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))  # pytest puts its own stderr back
    monkeypatch.setenv("TERM", "xterm")
    return stream


def test_a_bar_on_a_terminal_that_is_gone_at_the_end(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    with progress.Progress("Embedding", 200) as bar:
        bar.last = -1.0
        bar.advance(50)
        assert "Embedding ━━━━━━────" in terminal.getvalue()
        assert "50/200" in terminal.getvalue() and "left" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_plain_signs_where_the_terminal_is_not_utf8(terminal: Terminal) -> None:
    terminal.encoding = "ascii"  # type: ignore[misc]
    bar = progress.Progress("Embedding", 4)
    bar.advance(2)
    assert "############------------" in bar.text()
    bar.text().encode("ascii")


def test_silence_when_not_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress.track(range(5), "Counting")) == list(range(5))
    out = capsys.readouterr()
    assert (out.out, out.err) == ("", "")


def test_dumb_terminals_get_no_bar(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    list(progress.track(range(5), "Counting"))
    assert terminal.getvalue() == ""


def test_verbose_gives_lines_not_bars(capsys: pytest.CaptureFixture[str]) -> None:
    progress.set_level(2)
    list(progress.track(range(5), "Counting"))
    assert capsys.readouterr().err.startswith("Counting 5/5")


def test_levels_of_saying(capsys: pytest.CaptureFixture[str]) -> None:
    for level in (0, 1, 2):
        progress.set_level(level)
        progress.say(f"said {level}")
        progress.say(f"detail {level}", verbose=True)
        progress.warn(f"careful {level}")
    err = capsys.readouterr().err.splitlines()
    assert err == ["said 1", "Warning: careful 1", "said 2", "detail 2", "Warning: careful 2"]


def test_unknown_totals_and_long_waits() -> None:
    bar = progress.Progress("Scanning")
    bar.advance(12_345)
    assert bar.text().startswith("Scanning 12,345  ")
    assert progress._span(3725) == "1:02:05"
    assert progress._span(65) == "1:05"
