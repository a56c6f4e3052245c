"""Rules that hold for every line of the source, whoever writes it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from lookalike._version import __version__
from tests.helpers import ROOT

SOURCE = ROOT / "src" / "lookalike"
FILES = sorted(SOURCE.rglob("*.py"))
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))


def lines(pattern: str, files: list[Path]) -> list[str]:
    expected = re.compile(pattern)
    return [
        f"{path.relative_to(SOURCE)}: {line.strip()}"
        for path in files
        for line in path.read_text(encoding="utf-8").splitlines()
        if expected.search(line.split("  # ")[0])
    ]


def test_no_system_is_taken_for_granted() -> None:
    """No fork, no folder that only one system has, no module that only one has outside a guarded import."""
    assert lines(r"""os\.fork\(|["']fork["']|forkserver|["']/(tmp|dev|var|etc|usr)\b""", FILES) == []
    assert lines(r"^(import|from) (fcntl|msvcrt|resource|pwd|grp|termios)\b", FILES) == []
    assert lines(r"^(?!.*/proc/).*\.read_text\(\)", FILES) == [], "without an encoding Windows takes its own"


def test_nothing_is_unpickled_and_no_shell_is_called() -> None:
    own = SOURCE / "core" / "engine.py"  # messages between this process and those it started, over their pipes
    assert lines(r"pickle\.loads?\(", [file for file in FILES if file != own]) == []
    assert lines(r"allow_pickle=True|weights_only=False|shell=True|os\.system\(", FILES) == []
    assert [line for line in lines(r"torch\.load\(", FILES) if "weights_only=True" not in line] == []


def test_few_module_names_stand_in_two_packages() -> None:
    """Whoever looks for a file by its name finds one; a loss and its method may share theirs."""
    packages: dict[str, set[Path]] = {}
    for path in FILES:
        packages.setdefault(path.stem, set()).add(path.parent)
    shared = {name for name, folders in packages.items() if len(folders) > 1} - {"__init__"}
    assert len(shared) <= 20, sorted(shared)


@pytest.mark.parametrize("package", PACKAGES)
def test_public_names_exist_and_no_module_hides_one(package: str) -> None:
    """A module named like a public function would take its place as soon as anybody imports it."""
    module = importlib.import_module(f"lookalike.{package}")
    public = set(getattr(module, "__all__", []))
    for path in (SOURCE / package).glob("*.py"):
        if path.stem in public:
            importlib.import_module(f"lookalike.{package}.{path.stem}")
            assert callable(getattr(module, path.stem)), f"{package}.{path.stem} is a module"
    for name in public:
        assert getattr(module, name) is not None


def test_numbers_with_a_sign_have_a_real_minus() -> None:
    """`report_blocks.number` writes them; a format such as `:+.1f` mixes in ASCII hyphens."""
    assert lines(r"\{[^{}\d][^{}]*:[ ,]?\+[.,\d]", FILES) == []


def test_the_version_is_semantic_and_the_changelog_knows_it() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", __version__)
    assert f"\n## {__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_what_is_deprecated_says_when_it_goes_and_goes() -> None:
    """A deprecation lasts one minor version: its warning names the version it is gone in, and that is to come."""
    now = tuple(map(int, __version__.split(".")[:2]))
    for line in lines(r"DeprecationWarning|@deprecated", FILES):
        result = re.search(r"gone in (\d+)\.(\d+)", line)
        assert result, f"say `gone in X.Y`: {line}"
        assert (int(result[1]), int(result[2])) > now, f"its time is over: {line}"


def test_the_license_of_the_default_weights_is_stated() -> None:
    for page in ("README.md", "docs/how-to/models.md", "docs/dependencies.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "no license" in text and "Apache" in text, page


def test_every_pinned_package_has_its_license_listed() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    pins = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    listed = {plain(name) for name in re.findall(r"^\| `?([\w.-]+)`? \|", page, re.M)}
    assert len(pins) > 50
    assert [name for name in pins if plain(name) not in listed] == []


def test_design_pages_that_the_code_names_exist() -> None:
    named = {
        match for path in FILES for match in re.findall(r"docs/design/[\w-]+\.md", path.read_text(encoding="utf-8"))
    }
    assert named and [page for page in sorted(named) if not (ROOT / page).exists()] == []
