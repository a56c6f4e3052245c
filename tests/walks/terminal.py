"""A terminal session whose every line of output is checked.

A walk states each command and what it prints. In an expected line `{}` is any number, `…` any text, and a line that
is only `…` any number of lines. Lines on stderr come first and begin with `! `.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from tests.helpers import Answer

NUMBER = r"[−+-]?\d[\d,.:]*"


def pattern(line: str) -> re.Pattern[str]:
    """Compile an expected line."""
    escaped = re.escape(line).replace(re.escape("{}"), NUMBER).replace("…", ".*")
    return re.compile(re.sub(r"(\\ ){2,}", r" +", escaped))  # columns are as wide as their longest cell


def first_difference(expected: list[str], printed: list[str]) -> tuple[int, str]:
    """Compare line by line; the number of lines left to compare, and the difference (empty if there is none)."""
    if not expected:
        return (0, f"unexpected: {printed[0]!r}") if printed else (-1, "")
    if expected[0] == "…":
        return min(first_difference(expected[1:], printed[n:]) for n in range(len(printed) + 1))
    if not printed:
        return len(expected), f"missing: {expected[0]!r}"
    if not pattern(expected[0]).fullmatch(printed[0]):
        return len(expected), f"expected: {expected[0]!r}\nprinted:  {printed[0]!r}"
    return first_difference(expected[1:], printed[1:])


def check(command: str, text: str, answer: Answer, code: int = 0) -> None:
    """Compare all that a command printed with the expected text."""
    shown = [f"! {line}" for line in answer.err.splitlines()] + answer.out.splitlines()
    shown = [line.rstrip() for line in shown if line.strip("! ")]
    expected = [line.strip() for line in text.strip().splitlines() if line.strip()]
    _, difference = first_difference(expected, [line.strip() for line in shown])
    assert not difference, f"$ {command}\n{difference}\n\nall of it:\n" + "\n".join(shown)
    assert answer.code == code, f"$ {command}\nended with {answer.code}, not {code}\n" + "\n".join(shown)


@dataclass
class Terminal:
    """Runs the commands of a walk."""

    run: Callable[..., Answer]

    def __call__(self, command: str, text: str, *, code: int = 0) -> Answer:
        """Run `lookalike …` and check what it prints."""
        answer = self.run(*shlex.split(command)[1:])
        check(command, text, answer, code)
        return answer
