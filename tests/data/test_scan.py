from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.data.places import touch

from lookalike.core.errors import LookalikeError
from lookalike.data import read_table
from lookalike.data import scan as scanning


def paths(root: Path, **options: bool) -> list[str]:
    return scanning.scan(root, **options).columns["path"].to_pylist()


def test_images_are_listed_and_the_rest_is_counted(tmp_path: Path) -> None:
    touch(
        tmp_path,
        *("b.JPG", "a.png", "sub/c.webp", "sub/d.avif", ".hidden.jpg", ".git/e.jpg", ".DS_Store", "Thumbs.db"),
        *("@eaDir/f.jpg", "g.nef", "h.CR2", "i.mp4", "a.xmp", "a.json", "b.aae", "notes.txt", "LICENSE", "j.psd"),
    )
    result = scanning.scan(tmp_path)
    assert result.columns["path"].to_pylist() == ["a.png", "b.JPG", "sub/c.webp", "sub/d.avif"]
    assert result.skipped == {"hidden": 5, "RAW": 2, "video": 1, "sidecar": 4, "other": 2}
    assert result.columns["size"].tolist() == [1] * 4
    assert result.columns["mtime_ns"][0] == scanning.changed_ns((tmp_path / "a.png").stat())


def test_heic_is_an_image_only_where_it_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    touch(tmp_path, "a.jpg", "b.heic", "c.HEIF")
    monkeypatch.setattr(scanning, "heif_readable", lambda: True)
    assert paths(tmp_path) == ["a.jpg", "b.heic", "c.HEIF"]
    monkeypatch.setattr(scanning, "heif_readable", lambda: False)
    table = read_table(tmp_path)
    assert table.notes["skipped"] == {"HEIC": 2}
    printed = capsys.readouterr().err
    assert printed.count("2 HEIC images were skipped") == 1 and "lookalike[heif]" in printed


def test_folders_named_like_images_are_entered_and_pipes_passed_over(tmp_path: Path) -> None:
    touch(tmp_path, "odd.jpg/a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    result = scanning.scan(tmp_path)
    assert result.columns["path"].to_pylist() == ["odd.jpg/a.jpg"]
    assert result.skipped == {scanning.SPECIAL: 1}


def test_pipes_sockets_and_devices_behind_links_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.jpg")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.png")
        Path("b.jpg").symlink_to("pipe")
        Path("c.jpg").symlink_to("socket.png")
        result = scanning.scan(tmp_path)
    assert result.columns["path"].to_pylist() == ["a.jpg"]
    assert result.skipped == {"other": 1, scanning.SPECIAL: 3}
    Path("list.csv").write_text("path\na.jpg\na.jpg\nb.jpg\n" + 40 * "a.jpg\n")
    assert read_table("list.csv").notes["missing"]["first"] == ["b.jpg"]


def test_links_lead_to_every_image_once(tmp_path: Path) -> None:
    root = touch(tmp_path / "root", "real/a.jpg", ".store/b.jpg", ".store/deep/c.jpg", "z/d.jpg")
    touch(tmp_path, "outside/e.jpg")
    (root / "again").symlink_to("real")  # a folder that is there by itself
    (root / "copy.jpg").symlink_to("real/a.jpg")  # a file that is there by itself
    (root / "kept").symlink_to(".store")  # what only the link leads to
    (root / "kept2").symlink_to(".store")
    (root / "real/loop").symlink_to("..")
    (root / "out").symlink_to("../outside")
    (root / "out.jpg").symlink_to("../outside/e.jpg")
    (root / "broken.jpg").symlink_to("nowhere.jpg")
    result = scanning.scan(root)
    assert result.columns["path"].to_pylist() == ["kept/b.jpg", "kept/deep/c.jpg", "real/a.jpg", "z/d.jpg"]
    assert result.skipped == {
        "hidden": 1,
        "link to what is there": 4,
        "link out of the folder": 2,
        "broken link": 1,
    }
    unfollowed = scanning.scan(root, follow_links=False)
    assert unfollowed.columns["path"].to_pylist() == ["real/a.jpg", "z/d.jpg"]
    assert unfollowed.skipped["link"] == 8


def test_linked_files_whose_target_is_hidden_are_listed_once(tmp_path: Path) -> None:
    touch(tmp_path, ".annex/1.jpg", ".annex/2.bin")
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.jpg").symlink_to("../.annex/1.jpg")
    (tmp_path / "a/y.jpg").symlink_to("../.annex/2.bin")
    table = read_table(tmp_path)
    assert table.column("path").tolist() == ["a/x.jpg", "a/y.jpg"]
    assert table.open_bytes(1) == b"x"
    assert table.column("size").tolist() == [1, 1]


def test_links_that_lead_out_are_named_to_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    touch(tmp_path, "root/a.jpg", "b.jpg")
    (tmp_path / "root/b.jpg").symlink_to("../b.jpg")
    table = read_table(tmp_path / "root")
    assert table.notes["warnings"] == [f"1 link leads out of `{tmp_path}/root` and is not followed."]
    assert capsys.readouterr().err == f"Warning: {table.notes['warnings'][0]}\n"


def test_a_root_that_is_a_link_is_entered(tmp_path: Path) -> None:
    touch(tmp_path, "real/a.jpg")
    (tmp_path / "link").symlink_to("real")
    assert read_table(tmp_path / "link").column("row_id").tolist() == ["link/a.jpg"]


def test_names_are_stored_in_nfc_and_opened_as_on_disk(tmp_path: Path) -> None:
    apart = unicodedata.normalize("NFD", "Möwe")
    touch(tmp_path, f"{apart}/{apart}.jpg", "plain/a.jpg")
    table = read_table(tmp_path)
    assert table.column("path").tolist() == ["Möwe/Möwe.jpg", "plain/a.jpg"]
    assert table.labels()[1] == ["Möwe", "plain"]
    assert table.open_bytes(0) == b"x" and table.open_bytes(1) == b"x"


def test_equal_names_in_nfc_stay_two_images(tmp_path: Path) -> None:
    together, apart = unicodedata.normalize("NFC", "ö.jpg"), unicodedata.normalize("NFD", "ö.jpg")
    (tmp_path / together).write_bytes(b"1")
    (tmp_path / apart).write_bytes(b"22")
    table = read_table(tmp_path)
    assert table.column("path").tolist() == [together, f"{together}~2"]
    assert [table.open_bytes(i) for i in range(2)] == [b"1", b"22"]


def test_a_class_folder_in_two_spellings_is_one_class(tmp_path: Path) -> None:
    together, apart = unicodedata.normalize("NFC", "Möwe"), unicodedata.normalize("NFD", "Möwe")
    touch(tmp_path, f"train/{together}/a.jpg", f"train/{apart}/a.jpg", "train/Möwe~3/a.jpg", "train/plain~2/a.jpg")
    table = read_table(tmp_path)
    assert len(set(table.column("path"))) == 4
    assert table.labels()[1] == ["Möwe", "Möwe~3", "plain~2"]


def test_names_that_are_not_utf8_work(tmp_path: Path) -> None:
    base = os.fsencode(tmp_path)
    for name in (b"/Caf\xe9/\xe9t\xe9.jpg", b"/\xff.jpg"):
        path = Path(os.fsdecode(base + name))
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name)
    table = read_table(tmp_path, name="odd")
    assert table.column("path").tolist() == ["%FF.jpg", "Caf%E9/%E9t%E9.jpg"]
    assert [table.open_bytes(i) for i in range(2)] == [b"/\xff.jpg", b"/Caf\xe9/\xe9t\xe9.jpg"]
    table.save(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").open_bytes(1) == b"/Caf\xe9/\xe9t\xe9.jpg"


def test_a_folder_whose_own_name_is_not_utf8_works(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xe9t\xe9"))
    touch(folder, "a/1.jpg")
    table = read_table(folder)
    assert table.column("row_id").tolist() == ["%E9t%E9/a/1.jpg"]
    table.save(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet").open_bytes(0) == b"x"


def test_equal_names_in_two_folders_are_two_images(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/1.jpg")
    assert len(set(read_table(tmp_path).column("row_id"))) == 2


def test_nothing_is_written_and_read_only_folders_work(tmp_path: Path) -> None:
    touch(tmp_path, "a/1.jpg", "b/2.jpg")
    before = sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns
    for folder in (tmp_path / "a", tmp_path / "b", tmp_path):
        folder.chmod(0o555)
    try:
        assert len(read_table(tmp_path)) == 2
    finally:
        for folder in (tmp_path, tmp_path / "a", tmp_path / "b"):
            folder.chmod(0o755)
    assert (sorted(tmp_path.rglob("*")), (tmp_path / "a").stat().st_mtime_ns) == before


def test_folders_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg", "secret/2.jpg")
    real = os.scandir

    def guarded(path: str) -> object:  # permissions do not bind the user that tests may run as
        if str(path).rstrip("/").endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", guarded)
    table = read_table(tmp_path)
    assert table.column("path").tolist() == ["a/1.jpg"]
    assert table.notes["warnings"] == ["1 folder is not readable and left out: `secret`."]
    assert table.notes["unreadable"] == ["secret"]
    with pytest.raises(LookalikeError, match="cannot be read"):
        read_table(tmp_path / "secret", layout="folder")


def test_what_cannot_be_looked_at_is_not_what_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without the right to enter it still lists its names; a drive that is away fails in other ways again."""
    touch(tmp_path, *(f"a/{n}.jpg" for n in range(9)), "locked/1.jpg", "locked/2.jpg", "gone/3.jpg")
    real, stat = os.scandir, os.stat

    class Entry:
        def __init__(self, entry: os.DirEntry[str], error: int) -> None:
            self.entry, self.error = entry, error

        def __getattr__(self, name: str) -> object:
            return getattr(self.entry, name)

        def stat(self, **_: object) -> None:
            raise OSError(self.error, os.strerror(self.error))

    @contextlib.contextmanager
    def listed(path: str) -> Iterator[list[object]]:
        error = {"locked": errno.EACCES, "gone": errno.ENOENT}.get(Path(path).name)
        with real(path) as entries:
            yield [Entry(entry, error) if error else entry for entry in entries]

    monkeypatch.setattr(os, "scandir", listed)
    table = read_table(tmp_path, layout="folder")
    assert len(table) == 9 and table.notes["unreadable"] == ["locked"]
    assert table.notes["skipped"] == {"vanished": 3}
    monkeypatch.setattr(os, "scandir", real)

    def away(path: object, **options: object) -> os.stat_result:
        if str(path).endswith("locked/1.jpg"):
            raise OSError(errno.EIO, "Input/output error")
        return stat(path, **options)  # type: ignore[call-overload, no-any-return]

    (tmp_path / "gone" / "3.jpg").unlink()
    names = [f"a/{n}.jpg" for n in range(9)] * 6 + ["locked/1.jpg", "gone/3.jpg"]
    (tmp_path / "list.csv").write_text("path,label\n" + "".join(f"{name},x\n" for name in names))
    monkeypatch.setattr(os, "stat", away)
    table = read_table(tmp_path / "list.csv")
    assert table.notes["unreadable"] == ["locked/1.jpg"] and table.notes["missing"]["count"] == 2


def fill(root: Path, count: int, folders: int = 200) -> None:
    for number in range(folders):
        folder = root / f"class_{number:03d}"
        folder.mkdir()
        handle = os.open(folder, os.O_RDONLY)
        for i in range(count // folders):
            os.close(os.open(f"IMG_{i:06d}.jpg", os.O_CREAT | os.O_WRONLY, dir_fd=handle))
        os.close(handle)


SCAN = """
import json, resource, sys, time
import lookalike.data.readers, pyarrow.csv, pyarrow.parquet
out = {"before": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}
from lookalike.data import read_table
for name in ("first", "second"):
    start = time.process_time()
    table = read_table(sys.argv[1])
    out[name] = time.process_time() - start
out |= {"rows": len(table), "classes": len(table.labels()[1])}
out["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps(out))
"""


@pytest.mark.parametrize("count", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_a_million_files(tmp_path: Path, count: int) -> None:
    root = tmp_path / "images"
    root.mkdir()
    fill(root, count)
    done = subprocess.run([sys.executable, "-c", SCAN, str(root)], capture_output=True, text=True, check=True)
    shutil.rmtree(root)  # pytest would keep a million files for its next three sessions
    out = json.loads(done.stdout)
    share = count / 1_000_000
    assert (out["rows"], out["classes"]) == (count, 200)
    # Processor time: what the machine's other work leaves alone. A scan waits for nothing but the disk.
    assert out["first"] < max(60 * share, 1)
    assert out["second"] < max(20 * share, 1)
    unit = 1 if sys.platform == "darwin" else 1024
    assert (out["peak"] - out["before"]) * unit < 1e9 * share + 5e7
