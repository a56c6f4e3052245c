"""Write the generated parts of the documents: what the code knows is not typed by hand.

    python tools/docs.py            rewrite them
    python tools/docs.py --check    exit 1 if one is out of date

A part stands between `<!-- made: NAME WORDS -->` and `<!-- end -->` in README.md, CONTRIBUTING.md or a page under
docs/. NAME is one of the functions in `PARTS`; docs/results.md is made as a whole.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parent.parent
REGION = re.compile(r"(<!-- made: ([^\n]*?) -->\n)(.*?)(<!-- end -->)", re.S)


def table(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in cells) + " |\n"

    return line(head) + "|" + "---|" * len(head) + "\n" + "".join(map(line, body))


def exit_codes() -> str:
    """The table of exit codes; the remarks are the comments in `core/errors.py`."""
    from lookalike.core.errors import Exit

    remarks = dict(re.findall(r"^    (\w+) = \d+(?:  # (.*))?$", inspect.getsource(Exit), re.M))
    return table(("code", "meaning"), [(int(e), remarks[e.name] or "it went well") for e in Exit])


def _command(words: Sequence[str]) -> Any:
    from lookalike.cli.commands import COMMANDS
    from lookalike.cli.generate import build

    name = " ".join(words)
    return build(name, COMMANDS[name])


def commands() -> str:
    """Every command, in the order of the help."""
    from lookalike.cli.app import summary
    from lookalike.cli.commands import PANELS

    rows = [(f"`{name}`", summary(name)) for names in PANELS.values() for name in names]
    return table(("command", "what it does"), rows)


def options(*words: str) -> str:
    """The arguments and options of a command (`options train`, `options cache clear`)."""
    rows = []
    for param in _command(words).params:
        if param.name in ("help", "json", "quiet", "verbose"):
            continue
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts) if name.startswith("-"))
        default = param.default() if callable(param.default) else param.default
        shown = "" if default in (None, (), [], False) else f"`{str(default).lower() if default is True else default}`"
        rows.append((names or f"`{param.metavar or param.name.upper()}`", shown, param.help or ""))
    return table(("option", "default", "what it is"), rows)


def settings(*words: str) -> str:
    """The settings of a training run, of `adapt`, or those of one method (`settings supcon`)."""
    if not words:
        from lookalike.training import TrainSettings

        return table(("setting", "default", "what it is"), _fields(TrainSettings))
    if words == ("adapt",):
        from lookalike.adaptation import AdaptSettings

        return table(("setting", "default", "what it is"), _fields(AdaptSettings))
    from lookalike import methods

    return table(("setting", "default", "what it is"), _fields(methods.find(words[0]).Settings, "method."))


def _fields(model: Any, before: str = "") -> list[tuple[str, str, str]]:
    rows: list[tuple[str, str, str]] = []
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if hasattr(type(default), "model_fields"):
            rows += _fields(type(default), f"{before}{name}.")
        else:
            shown = "null" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
            rows.append((f"`{before}{name}`", f"`{shown}`" if shown else "", field.description or ""))
    return rows


def bars(*words: str) -> str:
    """What the benchmarks of these names measured, as it is kept under results/."""
    import json

    rows = []
    for name in words:
        document = json.loads((TOP / "results" / f"bench-{name}.json").read_text(encoding="utf-8"))
        for bar in document["bars"]:
            sign = "≥" if bar["better"] == "higher" else "≤"
            rows.append((document["name"], bar["name"], f"{bar['value']:.4g}", f"{sign} {bar['bound']:.4g}"))
    return table(("benchmark", "what", "measured", "bar"), rows)


def claims() -> str:
    """Every claim with its verdict."""
    from benchmarks.papers import PAPERS, results_of

    found = [result for paper in PAPERS for result in results_of(paper, TOP / "results")]
    return table(("claim", "found", "verdict"), [(r.statement, r.note, r.verdict) for r in found])


PARTS: dict[str, Callable[..., str]] = {
    "exit-codes": exit_codes,
    "commands": commands,
    "options": options,
    "settings": settings,
    "bars": bars,
    "claims": claims,
}


def made(text: str) -> str:
    """A page with its generated parts made anew."""

    def fill(match: re.Match[str]) -> str:
        name, *words = match[2].split()
        if name not in PARTS:
            raise SystemExit(f"tools/docs.py: there is no part `{name}`; there are {', '.join(PARTS)}.")
        return match[1] + PARTS[name](*words) + match[4]

    return REGION.sub(fill, text)


def stale() -> dict[Path, str]:
    """The pages that are out of date, with what they should be."""
    from benchmarks.papers.document import page

    wanted = {TOP / "docs" / "results.md": page(TOP / "results")}
    for path in (TOP / "README.md", TOP / "CONTRIBUTING.md", *sorted((TOP / "docs").rglob("*.md"))):
        if path not in wanted and path.exists():
            wanted[path] = made(path.read_text(encoding="utf-8"))
    return {p: text for p, text in wanted.items() if not p.exists() or p.read_text(encoding="utf-8") != text}


def main() -> int:
    found = stale()
    if "--check" in sys.argv:
        names = ", ".join(str(path.relative_to(TOP)) for path in found)
        print(f"out of date: {names}; run python tools/docs.py" if found else "docs: up to date")
        return bool(found)
    for path, text in found.items():
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(TOP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
