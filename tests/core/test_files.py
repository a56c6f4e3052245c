from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lookalike.core import files
from lookalike.core.errors import LookalikeError


def test_a_file_takes_its_place_only_when_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(RuntimeError), files.atomic_file(path) as part:
        part.write_text("new, but torn")
        raise RuntimeError
    assert path.read_text() == "old"
    with files.atomic_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_folder_takes_its_place_only_when_the_block_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with files.atomic_folder(path) as part:
        (part / "old.txt").write_text("old")
    with pytest.raises(RuntimeError), files.atomic_folder(path) as part:
        (part / "new.txt").write_text("torn")
        raise RuntimeError
    assert [p.name for p in path.iterdir()] == ["old.txt"]
    with files.atomic_folder(path) as part:
        (part / "new.txt").write_text("new")
    assert [p.name for p in path.iterdir()] == ["new.txt"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]


def test_a_kill_between_the_two_renames_of_a_folder_loses_nothing(tmp_path: Path) -> None:
    old = tmp_path / ".model.old"
    old.mkdir()
    (old / "a.txt").write_text("old")
    files.recover_folder(tmp_path / "model")
    assert (tmp_path / "model" / "a.txt").read_text() == "old"
    assert not old.exists()
    old.mkdir()  # now the new one is in place, and only the old one was not yet deleted
    files.recover_folder(tmp_path / "model")
    assert (tmp_path / "model" / "a.txt").exists()
    assert not old.exists()


@pytest.mark.skipif(os.name == "nt", reason="needs kill")
def test_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from lookalike.core.files import write_bytes
        number = 0
        while True:
            number += 1
            write_bytes(sys.argv[1], bytes([number % 256]) * 50_000)
            print(number, flush=True)
    """)
    path = tmp_path / "data.bin"
    for pause in (0.0, 0.013, 0.029):
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()  # at least one write was finished
        time.sleep(pause)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        data = path.read_bytes()
        assert len(data) == 50_000
        assert len(set(data)) == 1


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "is full"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "cannot be written"),
        (errno.EACCES, "cannot"),
    ],
)
def test_disk_errors_become_sentences(tmp_path: Path, number: int, words: str) -> None:
    with pytest.raises(LookalikeError, match=words), files.atomic_file(tmp_path / "a") as part:
        part.write_bytes(b"half")
        raise OSError(number, os.strerror(number))
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_under_somebody_elses_writer_gives_the_same_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """safetensors has an error of its own, torch only notices that its file is shorter than it thought."""
    for make in (files.atomic_file, files.atomic_folder):
        with pytest.raises(LookalikeError, match="is full"), make(tmp_path / "x"):
            raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
        with pytest.raises(ZeroDivisionError), make(tmp_path / "x"):
            1 / 0  # noqa: B018
        with monkeypatch.context() as patch:
            patch.setattr(files, "free_bytes", lambda path: 0)
            with pytest.raises(LookalikeError, match="is full"), make(tmp_path / "x"):
                raise RuntimeError("unexpected pos 5696 vs 5590")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_space_for_a_memory_map_is_taken_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1_000_000)
    files.reserve_space(path, 1_000_000)
    assert path.stat().st_blocks * 512 >= 1_000_000

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(LookalikeError, match="is full"):
        files.reserve_space(path, 1_000_000)


def test_other_disk_errors_keep_their_type(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output"), files.disk_errors(tmp_path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.skipif(os.name == "nt", reason="modes are a Unix matter")
def test_private_files_are_for_their_owner_only(tmp_path: Path) -> None:
    files.write_text(tmp_path / "key", "secret", private=True)
    files.write_text(tmp_path / "open", "text")
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o666 & ~mask
    for private in (True, False):
        with files.atomic_folder(tmp_path / "model", private=private) as part:
            (part / "weights").touch(mode=0o600)
        expected = (0o700, 0o600) if private else (0o777 & ~mask, 0o666 & ~mask)
        matches = [stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "model", tmp_path / "model" / "weights")]
        assert tuple(matches) == expected


def test_json_round_trip_and_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    files.write_json(path, {"n": np.float32(0.5), "a": np.arange(3), "p": Path("x/y"), "s": {2, 1}, "ü": "é"})
    assert files.read_json(path) == {"n": 0.5, "a": [0, 1, 2], "p": "x/y", "s": [1, 2], "ü": "é"}
    with pytest.raises(ValueError, match="JSON compliant"):
        files.write_json(path, {"n": float("nan")})
    assert files.read_json(path)["n"] == 0.5, "a document that cannot be written must leave the old one"
    path.write_text('{"n": 0.')
    with pytest.raises(LookalikeError, match=r"The run .* is damaged"):
        files.read_json(path, "run")
    with pytest.raises(LookalikeError, match="There is no run at"):
        files.read_json(tmp_path / "none.json", "run")
    with pytest.raises(TypeError):
        files.write_json(path, {"x": object()})


def test_numbers_that_are_not_finite_become_null() -> None:
    matches = files.to_plain({"a": [float("nan"), np.float32("inf"), 1.5], "p": Path("x"), "t": (1, 2)})
    assert matches == {"a": [None, None, 1.5], "p": "x", "t": [1, 2]}


def test_hashes_see_where_one_part_ends(tmp_path: Path) -> None:
    assert files.hash_bytes("ab", "c") != files.hash_bytes("a", "bc")
    assert files.hash_bytes("a") == files.hash_bytes(b"a")
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    first = files.hash_file(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"x" * 2_999_999 + b"y")
    assert files.hash_file(tmp_path / "a") != first


def test_space_is_checked_before_a_long_job(tmp_path: Path) -> None:
    files.require_space(tmp_path / "not" / "there" / "yet", 1, "The test")
    with pytest.raises(LookalikeError, match=r"^The test needs about 1\.0 TB|The test needs about 1\d*\.\d TB"):
        files.require_space(tmp_path, 10**18, "The test")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (123_456, "123 kB"), (5e12, "5.0 TB")]
)
def test_sizes_as_people_read_them(count: float, text: str) -> None:
    assert files.format_bytes(count) == text


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "a.jpg").write_bytes(b"inside")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    return root


def test_files_inside_a_folder_open_also_through_links_that_stay_inside(root: Path) -> None:
    links = {
        "absolute.jpg": root / "sub" / "a.jpg",
        "sub/deep/up.jpg": "../a.jpg",
        "folder": "sub",
        "sub/deep/again": "../../folder",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    names = ("sub/a.jpg", "./sub//deep/../a.jpg", "folder/a.jpg", "sub/deep/again/a.jpg", *list(links)[:2])
    for name in (*names, str(root / "sub" / "a.jpg")):
        with files.open_inside(root, name) as file:
            assert file.read() == b"inside", name


def test_what_leads_outside_a_folder_does_not_open(root: Path, tmp_path: Path) -> None:
    (root / "out.jpg").symlink_to(tmp_path / "secret.jpg")
    (root / "sub" / "out").symlink_to("../..")
    (root / "loop").symlink_to("loop")
    outside = ("../secret.jpg", str(tmp_path / "secret.jpg"), "out.jpg", "sub/out/secret.jpg", "sub/../../secret.jpg")
    for name in outside:
        with pytest.raises(LookalikeError, match="outside"):
            files.open_inside(root, name)
    for name in ("loop", ".", "sub", "missing.jpg", "sub/a.jpg/x", "loop/x"):
        with pytest.raises(OSError):
            files.open_inside(root, name)
    assert not [link for link in Path("/proc/self/fd").glob("*") if os.path.realpath(link).startswith(str(root))]


def test_exchanging_a_file_for_a_link_or_a_pipe_shows_nothing_of_outside(root: Path, tmp_path: Path) -> None:
    """A file is replaced by a link out of the folder, and by a FIFO, while others open it."""
    path, stopped = root / "sub" / "a.jpg", threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            for number, make in enumerate((lambda p: p.symlink_to(tmp_path / "secret.jpg"), os.mkfifo)):
                new = root / f"{number}.new"
                make(new)
                new.replace(path)
                new.write_bytes(b"inside")
                new.replace(path)

    thread = threading.Thread(target=exchange)
    thread.start()
    results: set[bytes] = set()
    try:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            try:
                with files.open_inside(root, "sub/a.jpg") as file:
                    results.add(files.read_part(file))
            except (LookalikeError, OSError) as error:
                results.add(type(error).__name__.encode())
    finally:
        stopped.set()
        thread.join()
    assert b"inside" in results and b"secret" not in results and len(results) > 1


@pytest.mark.parametrize("planted", ["link", "hard link", "pipe", "folder"])
def test_a_planted_temporary_file_harms_nobody(tmp_path: Path, planted: str) -> None:
    """In a folder that others can write to, its name is known beforehand."""
    victim, part = tmp_path / "victim", tmp_path / ".out.json.part"
    victim.write_text("precious")
    make = {"link": lambda: part.symlink_to(victim), "hard link": lambda: os.link(victim, part)}
    make |= {"pipe": lambda: os.mkfifo(part), "folder": part.mkdir}
    make[planted]()
    files.write_json(tmp_path / "out.json", {"a": 1})
    assert victim.read_text() == "precious" and files.read_json(tmp_path / "out.json") == {"a": 1}
    assert not (tmp_path / "out.json").is_symlink()


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "link.jpg").symlink_to("pipe.jpg")
    for name in ("pipe.jpg", "link.jpg", "/dev/zero"):
        with pytest.raises(OSError, match="not a regular file"):
            files.open_regular(tmp_path / name)
    with (tmp_path / "large.jpg").open("wb") as file:
        file.truncate(6_000_000_000)
    with files.open_regular(tmp_path / "large.jpg") as file:
        with pytest.raises(files.FileTooLarge, match="larger than 1"):
            files.read_part(file)
        assert files.read_part(file, offset=5_000_000_000, length=3) == bytes(3)
        with pytest.raises(OSError, match="ends inside"):
            files.read_part(file, offset=6_000_000_000 - 2, length=3)
    with (tmp_path / "holes.jpg").open("wb") as file:
        file.write(b"\xff\xd8\xff")
        file.truncate(900_000_000)
    with pytest.raises(files.FileTooLarge, match="has holes"):
        files.read_bytes(tmp_path / "holes.jpg")


LEAVES = """
import os, signal, sys
from lookalike.core import files
with getattr(files, sys.argv[1])(sys.argv[2]) as part:
    (part / "a.txt" if part.is_dir() else part).write_text("half")
    print(part, flush=True)
    if sys.argv[3] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


@pytest.mark.skipif(os.name == "nt", reason="needs kill")
@pytest.mark.parametrize("kind", ["atomic_file", "atomic_folder"])
def test_what_a_kill_leaves_is_cleaned_up_and_what_another_process_writes_is_not(kind: str, tmp_path: Path) -> None:
    def start(how: str) -> subprocess.Popen[str]:
        words = [sys.executable, "-c", LEAVES, kind, str(tmp_path / "goal"), how]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    start("kill").wait()
    (left,) = tmp_path.iterdir()
    os.utime(left, (time.time() - 60, time.time() - 60))
    writing = start("wait")
    assert writing.stdout is not None
    writing.stdout.readline()
    for part in tmp_path.iterdir():
        os.utime(part, (time.time() - 60, time.time() - 60))
    with getattr(files, kind)(tmp_path / "goal") as part:
        (part / "a.txt" if part.is_dir() else part).write_text("whole")
    assert len([path for path in tmp_path.iterdir() if path.suffix == ".part"]) == 1, "that of the living process"
    writing.communicate()
    assert [path.name for path in tmp_path.iterdir()] == ["goal"]
    goal = tmp_path / "goal"
    assert (goal / "a.txt" if goal.is_dir() else goal).read_text() == "half", "the last one to finish"


def test_a_checksum_sees_every_bit(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    data = os.urandom(600_000)
    path.write_bytes(data)
    whole = files.checksum(path)
    assert whole.startswith("600000-") and files.checksum(path, 599_999) != whole
    for place in (0, 7, 4_095, 521_215, 521_216, 599_000, 599_999):  # in a block, at its end, in the rest
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert files.checksum(path) != whole
