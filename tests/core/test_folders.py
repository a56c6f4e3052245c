from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from lookalike.core import folders
from lookalike.core.errors import LookalikeError


def fill(kind: str, name: str, size: int, *, age: float = 0) -> Path:
    path = folders.cache(kind) / name
    path.mkdir()
    (path / "data").write_bytes(b"x" * size)
    os.utime(path, (time.time() - age,) * 2)
    return path


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


def test_the_cache_is_trimmed_oldest_first_and_never_what_is_in_use(home: Path) -> None:
    oldest, old = fill("pixels", "a", 1000, age=9000), fill("features", "b", 1000, age=5000)
    fresh = fill("pixels", "c", 1000, age=10)
    assert folders.trim_cache(10_000) == 0
    assert folders.trim_cache(2_500) == 1000
    assert (oldest.exists(), old.exists(), fresh.exists()) == (False, True, True)
    assert folders.trim_cache(0) == 1000, "what was used in the last minutes may be open elsewhere"
    assert fresh.exists()


def test_touch_saves_an_entry_from_trimming(home: Path) -> None:
    a, b = fill("pixels", "a", 1000, age=9000), fill("pixels", "b", 1000, age=5000)
    folders.touch(a)
    folders.trim_cache(1_500)
    assert a.exists() and not b.exists()


def test_clear_frees_one_kind_or_all(home: Path) -> None:
    fill("pixels", "a", 1000), fill("features", "b", 500)
    assert folders.clear_cache("pixels") == 1000
    assert [row[0] for row in folders.cache_entries()] == ["features"]
    assert folders.clear_cache() == 500
    assert folders.describe_cache().startswith("0 B")


def test_the_cap_can_be_set_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", "123")
    assert folders.cache_limit() == 123
    monkeypatch.setenv("LOOKALIKE_CACHE_BYTES", "much")
    with pytest.raises(LookalikeError, match="LOOKALIKE_CACHE_BYTES is `much`"):
        folders.cache_limit()


def test_network_drives_are_told_by_their_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
