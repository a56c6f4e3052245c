"""Write the parts of committed pages that come from stored results.

    python tools/docs.py            rewrite them
    python tools/docs.py --check    exit 1 if one is out of date

README.md has a table of ten benchmark figures, docs/methods.md the table "which method when", and the package the
choices that follow from it and the growth curves that `plan` uses; docs/results.md is written as a whole. Option and
setting tables are generated when the site is built (docs/generate.py).
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
REGION = re.compile(r"(<!-- made: \w+ -->\n)(.*?)(<!-- end -->)", re.S)
# Benchmark -> the bars the README shows.
SHOWN = {
    "encode": ("96 px: ours / peer", "224 px: ours / peer", "224 px: ours / runtime alone"),
    "evaluate": ("leave-one-out, times faster than the peer (goal 3)", "largest difference of recall@1 from the peer"),
    "train": ("CUB seed 0: lower end of the gain over the starting model, points", "CUB seed 0: seconds"),
    "memory": (),
    "carp": (),
    "search": (),
}
ROWS = 10


def bars() -> str:
    """The table of the README."""
    lines = ["| benchmark | figure | measured | bar |\n", "|---|---|---|---|\n"]
    for name, shown in SHOWN.items():
        document = json.loads((TOP / "results" / f"bench-{name}.json").read_text(encoding="utf-8"))
        chosen = [bar for bar in document["bars"] if bar["name"] in shown] if shown else document["bars"][:1]
        for bar in chosen:
            sign = "≥" if bar["better"] == "higher" else "≤"
            lines.append(f"| {name} | {bar['name']} | {bar['value']:.4g} | {sign} {bar['bound']:.4g} |\n")
    return "".join(lines[: 2 + ROWS])


def stale() -> dict[Path, str]:
    """The pages that are out of date, with what they should be."""
    from benchmarks.papers import which_method
    from benchmarks.papers.document import page

    rows = which_method.rows(TOP / "results")
    choices = json.dumps(which_method.choices(rows), indent=1, ensure_ascii=False) + "\n"
    long, short = (TOP / "results" / f"bench-{name}.json" for name in ("growth", "growth-short"))
    growth = json.loads((long if long.exists() else short).read_text(encoding="utf-8"))["figures"]
    current = {
        TOP / "src" / "lookalike" / "configs" / "growth.json": json.dumps(growth, indent=1) + "\n",
        TOP / "docs" / "results.md": page(TOP / "results"),
        TOP / "src" / "lookalike" / "configs" / "measured.json": choices,
    }
    for path, table in ((TOP / "README.md", bars()), (TOP / "docs" / "methods.md", which_method.table(rows))):
        current[path] = REGION.sub(
            lambda match, table=table: match[1] + table + match[3], path.read_text(encoding="utf-8")
        )
    return {p: text for p, text in current.items() if not p.exists() or p.read_text(encoding="utf-8") != text}


def main() -> int:
    sys.path.insert(0, str(TOP))
    outdated = stale()
    if "--check" in sys.argv:
        names = ", ".join(str(path.relative_to(TOP)) for path in outdated)
        print(f"out of date: {names}; run python tools/docs.py" if outdated else "docs: current")
        return bool(outdated)
    for path, text in outdated.items():
        path.write_text(text, encoding="utf-8")
        print(f"written: {path.relative_to(TOP)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
