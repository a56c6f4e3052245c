"""Reading an index."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def test_reading_an_index_does_not_import_its_writer(made: Any) -> None:
    """A service or a script that only searches loads no code that writes."""
    images, place = made
    code = f"""
import sys
import lookalike
hits = lookalike.search(query={str(images / "class-00" / "0.jpg")!r}, index={str(place)!r}, k=3)
assert hits[0].identical
print(sorted(name for name in sys.modules if name.startswith("lookalike.searching.")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "lookalike.searching.index_folder" in done.stdout and "lookalike.searching.query" in done.stdout
    for name in ("writer", "ingest", "indexing"):
        assert f"lookalike.searching.{name}" not in done.stdout
