from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import provenance
from lookalike.core.errors import LookalikeError


def test_data_comes_from_the_argument_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.data_folder(None) is None
    monkeypatch.setenv("LOOKALIKE_DATA", str(tmp_path))
    assert provenance.data_folder(None) == tmp_path
    assert provenance.data_folder("x") == tmp_path / "x"


def test_missing_data_gives_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match=r"^It needs the data set `cub`: give the folder .* with --data\.$"):
        provenance.data_set(None, "cub", "It")
    with pytest.raises(LookalikeError, match="there is no folder"):
        provenance.data_set(tmp_path, "cub", "It")
    (tmp_path / "cub").mkdir()
    assert provenance.data_set(tmp_path, "cub", "It") == tmp_path / "cub"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["/x/benchmarks/speed/__main__.py", "encode", "--data", "/secret"],
            "python -m benchmarks.speed encode --data DATA",
        ),
        (["/x/benchmarks/papers/__main__.py", "xbn", "--data=/secret"], "python -m benchmarks.papers xbn --data=DATA"),
        (["/x/bin/pytest", "-k", "x"], "python"),
    ],
)
def test_the_command_is_stored_without_this_machines_folders(
    words: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", words)
    assert provenance.command() == expected
