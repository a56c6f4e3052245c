"""Write the license of every pinned package into docs/dependencies.md, as its own metadata states it.

    .venv/bin/python tools/licenses.py            rewrite the table
    .venv/bin/python tools/licenses.py --check    exit 1 if a pinned package is missing from it

Packages that are pinned but not installed keep the row they have.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
PAGE = TOP / "docs" / "dependencies.md"
START, END = "<!-- licenses: start -->", "<!-- licenses: end -->"


def pinned() -> dict[str, str]:
    pairs = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;]+)", (TOP / "constraints.txt").read_text(), re.M)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def license(name: str) -> str | None:
    """SPDX expression, else classifiers, else the free text's first line; None where it is not installed."""
    try:
        data = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    if data.get("License-Expression"):
        return str(data["License-Expression"])
    stated = [c.split("::")[-1].strip() for c in data.get_all("Classifier") or [] if c.startswith("License")]
    stated = [s for s in stated if s != "OSI Approved"]
    text = (data.get("License") or "").strip().splitlines()
    return ", ".join(stated) or (text[0][:60] if text and text[0] != "UNKNOWN" else "not stated")


def main() -> int:
    page = PAGE.read_text()
    before, rest = page.split(START)
    table, after = rest.split(END)
    rows = dict(re.findall(r"^\| (\S+) \| (.*) \|$", table, re.M))
    names = pinned()
    if "--check" in sys.argv:
        missing = sorted(set(names) - set(rows))
        print(f"docs/dependencies.md lacks {', '.join(missing)}" if missing else "licenses: complete")
        return bool(missing)
    rows = {name: license(name) or rows.get(name, "not stated") for name in sorted(names)}
    lines = "".join(f"| {name} | {text} |\n" for name, text in rows.items())
    PAGE.write_text(f"{before}{START}\n| package | license |\n|---|---|\n{lines}{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
