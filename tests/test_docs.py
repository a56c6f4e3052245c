"""The documents: generated parts are current, links lead somewhere, and commands tagged `run` work.

A block that starts with ```sh run or ```python run is run here, in the order of its page and in one folder, which
holds generated images: `birds/class-00/000.jpg` …, `photos/` (no classes) and `query.jpg`. In `sh` blocks
only `lookalike …` lines are allowed; they run in this process, because importing torch takes seconds each time.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from lookalike.cli.app import run
from tests.helpers import ROOT, make_images

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(sh|python) run\n(.*?)^```", re.M | re.S)


@pytest.fixture(scope="module")
def docs() -> Any:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_generated_parts_are_current(docs: Any) -> None:
    assert [name(path) for path in docs.stale()] == [], "run: python tools/docs.py"


def test_parts_are_made_from_the_code(docs: Any) -> None:
    text = docs.made("a\n<!-- made: exit-codes -->\nstale row\n<!-- end -->\nb\n")
    assert "| 130 | Ctrl-C |" in text and "stale row" not in text
    assert text == docs.made(text)
    assert "| `--steps` |" in docs.made("<!-- made: options train -->\n<!-- end -->")
    assert "| `optimizer.lr` | `" in docs.made("<!-- made: settings -->\n<!-- end -->")
    with pytest.raises(SystemExit, match="no part `nonsense`"):
        docs.made("<!-- made: nonsense -->\n<!-- end -->")


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    missing = [
        target
        for target in targets
        if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_nothing_of_one_machine_is_in_a_page(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"/(?:root|home|work|Users|tmp)/\S*", text) == []


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_in_the_documents_work(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    blocks = BLOCK.findall(path.read_text(encoding="utf-8"))
    if blocks:
        make_images(tmp_path / "birds", classes=8, images=6)
        for file in tmp_path.rglob("*.jpg"):
            file.rename(file.with_name(f"{int(file.stem):03d}.jpg"))
        shutil.copytree(tmp_path / "birds" / "class-03", tmp_path / "photos")
        shutil.copy(tmp_path / "birds" / "class-00" / "000.jpg", tmp_path / "query.jpg")
    space: dict[str, Any] = {"__name__": "__main__"}
    for kind, text in blocks:
        if kind == "python":
            exec(compile(text, name(path), "exec"), space)
            continue
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if not words:
                continue
            assert words[0] == "lookalike", f"`{line}` cannot be run by a test: take the tag away"
            monkeypatch.setattr(sys, "argv", words)
            code = run(words[1:])
            assert code == 0, f"`{line}` ended with {code}: {capfd.readouterr().err}"
