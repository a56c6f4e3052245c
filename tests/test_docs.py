"""The documents: generated parts are current, links lead somewhere, and commands tagged `run` work.

A block that starts with ```sh run or ```python run is run here, in the order of its page and in one folder, which
holds generated images: `birds/class-00/000.jpg` …, `photos/` (no classes) and `query.jpg`. In `sh` blocks
only `lookalike …` lines are allowed; they run in this process, because importing torch takes seconds each time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lookalike.cli.app import run
from lookalike.core.locks import wait_for_lock
from tests.helpers import ROOT, make_images
from tests.hub_server import serve_hub

SITE = [p for p in sorted((ROOT / "docs").rglob("*.md")) if not p.relative_to(ROOT / "docs").parts[0].startswith("_")]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *SITE]
BLOCK = re.compile(r"^ *```(sh|python) run\n(.*?)^ *```", re.M | re.S)


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(path.read_text(encoding="utf-8"))


def test_pages_made_from_results_are_current() -> None:
    spec = importlib.util.spec_from_file_location("docs_tool", ROOT / "tools" / "docs.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert [name(path) for path in module.stale()] == [], "run: python tools/docs.py"


def test_links_lead_somewhere_and_no_machine_is_named() -> None:
    missing, places = [], []
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        places += [f"{name(path)}: {result}" for result in re.findall(r"/(?:root|home|work|Users|tmp)/\S*", text)]
        for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            if not re.match(r"[a-z]+:|#", target) and not (path.parent / target.partition("#")[0]).exists():
                missing.append(f"{name(path)}: {target}")
    assert missing == [] and places == []


def test_modules_that_the_documents_name_exist() -> None:
    missing = []
    for path in PAGES:
        for module in re.findall(r"`([\w/]+\.py)`", path.read_text(encoding="utf-8")):
            places = (ROOT, ROOT / "src" / "lookalike", *(ROOT / "src" / "lookalike").iterdir(), ROOT / "examples")
            if not any((place / module).is_file() for place in places):
                missing.append(f"{name(path)}: {module}")
    assert missing == []


def test_generated_reference_pages_name_options_and_settings() -> None:
    spec = importlib.util.spec_from_file_location("generate_docs", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "| `--steps` |" in module.command_reference() and "| 130 | Ctrl-C |" in module.exit_codes()
    assert "| `steps` |" in module.train_settings() and "## `ms`" in module.method_settings()


@pytest.fixture(scope="module")
def shared(session_folder: Path) -> Path:
    """Images and caches of all pages: what one page computed of an image or a model is not computed for the next."""
    folder = session_folder / "documents"
    with wait_for_lock(session_folder / ".documents"):
        if not folder.is_dir():
            make_images(folder / "birds", classes=8, images=4)
            for file in folder.rglob("*.jpg"):
                file.rename(file.with_name(f"{int(file.stem):03d}.jpg"))
            shutil.copytree(folder / "birds" / "class-03", folder / "photos")
            shutil.copy(folder / "birds" / "class-00" / "000.jpg", folder / "query.jpg")
            (folder / "cache").mkdir()
    return folder


LONG = ("docs/how-to/evaluate.md", "docs/how-to/export.md", "docs/how-to/train.md")


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (name(path) in LONG)) for path in PAGES if blocks(path)],
    ids=[name(path) for path in PAGES if blocks(path)],
)
def test_commands_in_the_documents_work(
    path: Path, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LOOKALIKE_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "cache").symlink_to(shared / "cache")
    for one in ("birds", "photos", "query.jpg"):
        (tmp_path / one).symlink_to(shared / one)
    space: dict[str, Any] = {"__name__": "__main__"}
    with _hub(tmp_path) if "hub" in path.name else contextlib.nullcontext():
        _run_blocks(path, space, monkeypatch, capfd)


def _hub(folder: Path) -> contextlib.AbstractContextManager[Any]:
    """The Hub as the tutorials have it: the images of `birds/` as the data set `birdlab/birds`."""
    rows = [(file, file.parent.name) for file in sorted((folder / "birds").rglob("*.jpg"))]
    data = folder / "hub" / "datasets" / "birdlab" / "birds" / "data"
    data.mkdir(parents=True)
    images = [{"bytes": file.read_bytes(), "path": file.name} for file, _ in rows]
    table = pa.table({"image": images, "label": [label for _, label in rows]})
    pq.write_table(table, data / "train-00000-of-00001.parquet", compression="none", use_dictionary=False)
    return serve_hub(folder / "hub")


def _run_blocks(
    path: Path, space: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for kind, text in blocks(path):
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
