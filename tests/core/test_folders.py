from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lookalike.core import folders
from lookalike.core.errors import LookalikeError


def test_everything_lives_under_the_chosen_home(home: Path) -> None:
    assert folders.home() == home
    assert folders.indexes() == home / "indexes"
    assert folders.cache("pixels") == home / "cache" / "pixels"


def test_without_a_choice_the_platforms_folders_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOKALIKE_HOME")
    assert "lookalike" in str(folders.home()) and "lookalike" in str(folders.cache_home())
    assert folders.home() != folders.cache_home()


def test_runs_lie_where_the_user_stands(tmp_path: Path) -> None:
    assert folders.runs() == tmp_path / "runs"


@pytest.mark.skipif(os.name == "nt", reason="modes are a Unix matter")
def test_caches_and_indexes_are_for_their_owner_only(home: Path) -> None:
    (home / "indexes").mkdir(mode=0o755)
    for folder in (folders.indexes(), folders.cache("features"), folders.cache_home()):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_network_drives_are_recognized_by_their_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"x / ext4 rw 0 0\ny {tmp_path}/share nfs4 rw 0 0\nz {tmp_path}/share/local ext4 rw 0 0\n"
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: mounts if str(self) == "/proc/mounts" else real(self, *a, **k)
    )
    monkeypatch.setattr("sys.platform", "linux")
    assert folders.network_drive(tmp_path / "share" / "a") == "nfs4"
    assert folders.network_drive(tmp_path / "share" / "local" / "a") is None
    assert folders.network_drive(tmp_path / "shared") is None
    with pytest.raises(LookalikeError, match=r"network drive \(nfs4\), where an index could be damaged"):
        folders.refuse_network_drive(tmp_path / "share", "an index")
    monkeypatch.setenv("LOOKALIKE_ALLOW_NETWORK_DRIVE", "1")
    folders.refuse_network_drive(tmp_path / "share", "an index")


@pytest.mark.skipif(not hasattr(os.stat_result, "st_blocks"), reason="no sparse files")
def test_holes_of_a_file_take_no_space(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "full").write_bytes(b"x" * 5000)
    assert folders.disk_usage(tmp_path / "sparse") < 1 << 20
    assert folders.disk_usage(tmp_path / "full") == 5000
