"""The wheel: everything is inside, it runs outside the checkout, and other packages can plug in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest

from lookalike._version import __version__
from tests.helpers import ROOT


def outside(command: list[str | Path], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command in another folder, with nothing that leads back to the checkout."""
    around = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=folder, env={**around, **env}, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an empty venv with the wheel; the dependencies are lent by the one that runs the tests."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    place = subprocess.run(
        [programs / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    Path(place, "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


def test_the_wheel_holds_the_product_alone(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lookalike"}, "no benchmarks, no tests"


def test_the_wheel_holds_everything_that_is_not_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "lookalike").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= names
    kinds = {Path(name).suffix for name in expected}
    assert "lookalike/py.typed" in names
    assert {".py", ".yaml", ".css", ".js"} <= kinds, "recipes, the report's and the page's files"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    strangers = [name for name in names if not name.startswith(("lookalike/", f"lookalike-{__version__}.dist-info/"))]
    assert strangers == []


def test_ranges_in_the_metadata_and_pins_only_in_constraints(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    metadata = archive.read(f"lookalike-{__version__}.dist-info/METADATA").decode()
    needs = [line.split(": ", 1)[1] for line in metadata.splitlines() if line.startswith("Requires-Dist: ")]
    assert needs and not any("==" in need.split(";")[0] for need in needs)
    pins = (ROOT / "constraints.txt").read_text()
    assert "\ntorch==" in pins
    assert "+cpu" not in pins.split("\ntorch==")[1].splitlines()[0], "GPU users must not be given another build"


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pins = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    named = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    plain = {re.split(r"[;<>\[]", need)[0].strip().lower().replace("_", "-") for need in named}
    assert plain - pins == set()
    assert "lookalike" not in pins


def test_it_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    done = outside([installed / "lookalike", "--version"], tmp_path)
    assert done.stdout == f"lookalike {__version__}\n", done.stderr
    place = outside([installed / "python", "-c", "import lookalike; print(lookalike.__file__)"], tmp_path).stdout
    assert place.startswith(str(installed.parent))
    assert "Usage: lookalike" in outside([installed / "lookalike", "--help"], tmp_path).stdout
    recipe = outside([installed / "lookalike", "recipes", "show", "default"], tmp_path)
    assert recipe.returncode == 0 and recipe.stdout.startswith("#")


@pytest.mark.slow
def test_the_demo_runs_and_is_served_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    done = outside([installed / "lookalike", "demo"], tmp_path, LOOKALIKE_HOME=home)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("report.html"))
    result = json.loads((tmp_path / "runs" / "demo" / "result.json").read_text())
    assert 0.5 <= result["measured"]["starting model"]["recall@1"]["value"] <= 0.8
    assert result["differences"]["starting model"]["recall@1"]["difference"] >= 0.05
    last = done.stdout.strip().splitlines()[-1]
    words = last[last.index("lookalike serve") :].split()
    server = subprocess.Popen(
        [installed / "lookalike", *words[1:], "--port", "0"],
        cwd=tmp_path,
        env={**os.environ, "LOOKALIKE_HOME": home},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stderr is not None
        address = next(word for line in server.stderr for word in line.split() if word.startswith("http://"))
        with urllib.request.urlopen(address) as page:
            assert b"<title>" in page.read()
    finally:
        server.terminate()
        server.wait()


PLUGIN = """
from lookalike.methods import Method
from lookalike.store.local import LocalStore

class Mine(Method):
    pass

class Shelf(LocalStore):
    pass
"""
POINTS = "[lookalike.methods]\nmine = lookalike_plugin:Mine\n[lookalike.stores]\nshelf = lookalike_plugin:Shelf\n"


def test_another_package_adds_a_method_and_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike import methods
    from lookalike.store import store_class, stores

    (tmp_path / "lookalike_plugin.py").write_text(PLUGIN)
    (tmp_path / "lookalike_plugin-1.0.dist-info").mkdir()
    (tmp_path / "lookalike_plugin-1.0.dist-info" / "METADATA").write_text("Name: lookalike-plugin\nVersion: 1.0\n")
    (tmp_path / "lookalike_plugin-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    assert "mine" not in methods.names()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert methods.find("mine").__name__ == "Mine"
    assert {"mine", "supcon"} <= set(methods.names())
    assert store_class("shelf").__name__ == "Shelf"
    assert {"shelf", "local", "milvus"} <= set(stores())


def test_our_own_methods_and_stores_load() -> None:
    from importlib.metadata import entry_points

    from lookalike import methods

    assert {methods.find(name).name for name in methods.BUILT_IN} == set(methods.BUILT_IN)
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    known = {point.name: point for point in entry_points(group="lookalike.stores")}
    assert set(project["lookalike.stores"]) <= set(known), "install the checkout again: make setup"
    for name in project["lookalike.stores"]:
        assert known[name].load().__name__
