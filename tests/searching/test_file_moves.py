"""Moving away and back: killed anywhere, between disks, and where something is refused, no file is lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import lookalike
from lookalike.core.errors import LookalikeError
from lookalike.searching import file_moves
from tests import helpers
from tests.kills import disk, killed


@pytest.fixture
def photos(tmp_path: Path, home: Path) -> Path:
    """Three images, two of them twice."""
    folder = helpers.make_images(tmp_path / "photos", classes=1, images=3)
    (folder / "b").mkdir()
    for number in range(2):
        shutil.copy(folder / "class-00" / f"{number}.jpg", folder / "b" / f"copy {number}.jpg")
        os.utime(folder / "b" / f"copy {number}.jpg", (2_000_000_000, 2_000_000_000))
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "away"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def to_move(root: Path, *paths: str) -> list[file_moves.FileToMove]:
    return [file_moves.FileToMove(path, (s := (root / path).stat()).st_size, s.st_mtime) for path in paths]


def all_back(root: Path) -> int:
    """Batch after batch until none is away; how many files came back."""
    count = 0
    for _ in range(5):
        try:
            done = file_moves.back(root)
        except LookalikeError as error:
            assert str(error) == "No files are moved away from this folder."
            return count
        assert not done.left
        count += done.files
    raise AssertionError("it never ends")


@pytest.mark.parametrize("between", [False, True], ids=["on one disk", "between disks"])
@pytest.mark.parametrize("back", [False, True], ids=["away", "back"])
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_anywhere_nothing_is_lost(photos: Path, target: Path, back: bool, between: bool, step: int) -> None:
    before, strike = contents(photos), 1

    def away() -> None:
        here = [path for path in ("b/copy 0.jpg", "b/copy 1.jpg") if (photos / path).exists()]
        file_moves.move(photos, to_move(photos, *here), target)

    def act() -> object:
        if back:
            away()
        return killed(strike, (lambda: file_moves.back(photos)) if back else away, photos if between else None)

    while act():
        left, gone = contents(photos), contents(target)
        assert all(data == before[name] for name, data in left.items() if not Path(name).name.startswith("."))
        assert all(name in left or data in gone.values() for name, data in before.items())
        if not back and strike % 2:
            away()  # the rest, in a batch of its own on the same journal
        all_back(photos)
        assert contents(photos) == before, strike
        visible = {name for name in contents(target) if not Path(name).name.startswith(".lookalike-")}
        assert visible <= {file_moves.JOURNAL}, strike
        assert {batch.state for batch in file_moves.history(photos)} <= {"back"}
        strike += step
    assert strike > 10
    all_back(photos)
    assert contents(photos) == before


def test_a_killed_move_is_in_the_history_with_what_it_moved(photos: Path, target: Path) -> None:
    files, strike = to_move(photos, "b/copy 0.jpg", "b/copy 1.jpg"), 1
    while True:
        assert killed(strike, lambda: file_moves.move(photos, files, target))
        if (target / "b" / "copy 1.jpg").exists():
            break
        all_back(photos)
        strike += 1
    batch = file_moves.history(photos)[0]
    assert (batch.files, batch.bytes, batch.state) == (2, sum(one.size for one in files), "moved")
    assert (photos / "b" / "copy 1.jpg").exists()  # it has arrived and not left
    assert file_moves.back(photos, batch.id).files == 2
    batch = file_moves.history(photos)[0]
    assert (batch.files, batch.state) == (2, "back")


def struck(words: list[str], strike: int) -> None:
    from lookalike.cli.app import run

    with disk(strike=strike, every=False):
        run(words)


def test_the_command_is_killed_and_repeated(photos: Path, home: Path, cli: Any) -> None:
    """As a user sees it: `--move`, killed in the middle; `--back last`, killed in the middle; and once more."""
    before = contents(photos)
    cli("duplicates", photos)  # what is remembered of the images is written
    away = helpers.apart(struck, ["duplicates", str(photos), "--move", "--yes"], 5)
    assert away.code == -signal.SIGKILL, away.err
    assert len(contents(photos)) == 4
    again = cli("duplicates", photos, "--move", "--yes")
    assert again.code == 0 and "Moved 1 file (" in again.out and len(contents(photos)) == 3
    back = helpers.apart(struck, ["duplicates", str(photos), "--back", "last"], 4)
    assert back.code == -signal.SIGKILL, back.err
    for _ in range(2):
        cli("duplicates", photos, "--back", "last")
    assert contents(photos) == before
    nothing = cli("duplicates", photos, "--back", "last")
    assert nothing.code == 2 and "No files are moved away" in nothing.err


def test_a_torn_line_does_not_swallow_the_next(photos: Path, target: Path) -> None:
    first = to_move(photos, "b/copy 0.jpg")
    file_moves.move(photos, first, target)
    with (target / file_moves.JOURNAL).open("a") as journal:
        journal.write('{"batch": "20260101-000000-abcd", "pa')
    file_moves.move(photos, to_move(photos, "b/copy 1.jpg"), target)
    lines = (target / file_moves.JOURNAL).read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[2])["path"] == "b/copy 1.jpg"
    assert all_back(photos) == 2 and len(contents(photos)) == 5


@pytest.mark.parametrize("kind", ["pipe", "sparse", "folder"])
def test_what_somebody_put_in_place_of_a_journal_is_not_read(
    photos: Path, target: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The history goes on about the other batches, and the moved files stay where they are."""
    other = target.with_name("other")
    file_moves.move(photos, to_move(photos, "class-00/1.jpg"), other)
    file_moves.move(photos, to_move(photos, "class-00/0.jpg"), target)
    journal = target / file_moves.JOURNAL
    journal.unlink()
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "sparse":
        with journal.open("wb") as file:
            file.truncate(6 << 30)
    else:
        journal.mkdir()
    assert [batch.state for batch in file_moves.history(photos)] == ["moved", "moved"]
    assert "cannot be read" in capfd.readouterr().err
    with pytest.raises(LookalikeError, match=r"The journal .*moved.jsonl` cannot be read"):
        file_moves.back(photos)
    older = file_moves.history(photos)[1].id
    assert file_moves.back(photos, older).files == 1 and (target / "class-00" / "0.jpg").exists()


def test_zeros_at_the_end_of_a_journal_hide_nothing(photos: Path, target: Path) -> None:
    """As power loss leaves them."""
    file_moves.move(photos, to_move(photos, "class-00/0.jpg"), target)
    with (target / file_moves.JOURNAL).open("ab") as file:
        file.write(bytes(64))
    assert [batch.state for batch in file_moves.history(photos)] == ["moved"]
    file_moves.move(photos, to_move(photos, "class-00/1.jpg"), target)
    assert [batch.files for batch in file_moves.history(photos)] == [1, 1]
    assert file_moves.back(photos).files == file_moves.back(photos).files == 1
    assert all((photos / "class-00" / f"{n}.jpg").exists() for n in (0, 1))


def test_a_batch_that_is_back_stays_back_when_its_files_move_again(photos: Path, target: Path) -> None:
    for _ in range(2):
        file_moves.move(photos, to_move(photos, "b/copy 0.jpg"), target)
        newest, *older = file_moves.history(photos)
        assert newest.state == "moved" and all(batch.state == "back" for batch in older)
        file_moves.back(photos)


def test_file_moves_back_an_older_batch_does_not_make_it_the_newest(photos: Path, target: Path) -> None:
    names = [file_moves.move(photos, to_move(photos, f"b/copy {n}.jpg"), target).id for n in range(2)]
    (photos / "b" / "copy 0.jpg").write_bytes(b"another")
    assert file_moves.back(photos, names[0]).left == [{"path": "b/copy 0.jpg", "why": "another file has its name now"}]
    assert [batch.id for batch in file_moves.history(photos)] == names[::-1]


def test_where_the_old_name_cannot_go_the_file_stays(
    photos: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be written to: a link can be made of its files, but they cannot leave it."""
    before, real = contents(photos), os.unlink

    def refuse(place: Any, **options: Any) -> None:
        if Path(place).parent == photos / "b":
            raise PermissionError(errno.EACCES, "Permission denied")
        real(place, **options)

    for between in (None, photos):
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            with disk(between):
                batch = file_moves.move(photos, to_move(photos, "b/copy 0.jpg"), target)
        assert batch.left == [{"path": "b/copy 0.jpg", "why": "Permission denied"}]
        assert contents(photos) == before and set(contents(target)) <= {file_moves.JOURNAL}
        assert not file_moves.history(photos)


def test_a_link_to_the_moved_file_is_not_taken_for_it(photos: Path, target: Path) -> None:
    """Somebody put a link where the file was: to take that for the file would be to delete it."""
    file_moves.move(photos, to_move(photos, "b/copy 0.jpg"), target)
    (photos / "b" / "copy 0.jpg").symlink_to(target / "b" / "copy 0.jpg")
    assert file_moves.back(photos).left[0]["why"] == "another file has its name now"
    assert (target / "b" / "copy 0.jpg").exists()


def test_without_links_a_file_is_renamed_and_never_over_another(photos: Path, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", refuse)
        (tmp_path / "there").mkdir()
        (tmp_path / "there" / "taken.jpg").write_bytes(b"first")
        source = photos / "b" / "copy 0.jpg"
        data = source.read_bytes()
        with pytest.raises(FileExistsError):
            file_moves.move_file(source, tmp_path / "there" / "taken.jpg")
        assert source.read_bytes() == data and (tmp_path / "there" / "taken.jpg").read_bytes() == b"first"
        file_moves.move_file(source, tmp_path / "there" / "free.jpg")
    assert not source.exists() and (tmp_path / "there" / "free.jpg").read_bytes() == data


def test_to_another_disk_a_file_is_copied_whole_and_never_over_another(photos: Path, tmp_path: Path) -> None:
    source, goal = photos / "b" / "copy 0.jpg", tmp_path / "there" / "0.jpg"
    data, when = source.read_bytes(), source.stat().st_mtime
    with disk(photos):
        file_moves.move_file(source, goal)
        assert goal.read_bytes() == data and goal.stat().st_mtime == when and not source.exists()
        with pytest.raises(FileExistsError):
            file_moves.move_file(photos / "b" / "copy 1.jpg", goal)
    assert goal.read_bytes() == data and (photos / "b" / "copy 1.jpg").exists()
    assert list(goal.parent.iterdir()) == [goal]


def test_between_two_real_disks_and_back(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or memory.stat().st_dev == photos.stat().st_dev:
        pytest.skip("there is no second disk here")
    before = contents(photos)
    times = {path: (photos / path).stat().st_mtime for path in before}
    target = memory / f"lookalike-{tmp_path_factory.getbasetemp().name}-{os.getpid()}"
    try:
        done = lookalike.duplicates(source=photos, move_to=target, progress=False).moved
        assert done is not None and done.files == 2 and not done.left and len(contents(photos)) == 3
        assert set(contents(target)) == {file_moves.JOURNAL, "b/copy 0.jpg", "b/copy 1.jpg"}
        (photos / "b" / "copy 1.jpg").write_bytes(before["b/copy 1.jpg"][:100])  # a copy that was cut off once
        back = lookalike.duplicates(source=photos, back="last", progress=False).moved
        assert back is not None and back.files == 1 and back.left[0]["path"] == "b/copy 1.jpg"
        (photos / "b" / "copy 1.jpg").unlink()
        assert file_moves.back(photos).files == 1
        assert contents(photos) == before and set(contents(target)) == {file_moves.JOURNAL}
        assert {path: (photos / path).stat().st_mtime for path in before} == times
    finally:
        shutil.rmtree(target, ignore_errors=True)


@pytest.mark.parametrize(
    ("to", "path"),
    [
        ("out/secret.txt", "got.txt"),
        ("a.jpg", "link/planted.jpg"),
        ("a.jpg", "../planted.jpg"),
        ("../x", "x"),
        ("", ""),
        ("x" * 5000, "x"),
        ("a\0b", "x"),
        ("x", "a\0b"),
    ],
)
def test_an_edited_line_of_the_journal_moves_nothing_across(tmp_path: Path, home: Path, to: str, path: str) -> None:
    """Neither out of another folder nor into one, also through links."""
    root, away, outside = tmp_path / "photos", tmp_path / "away", tmp_path / "outside"
    for folder in (root, outside):
        folder.mkdir()
    (root / "a.jpg").write_bytes(b"image")
    (outside / "secret.txt").write_text("secret")
    (root / "link").symlink_to(outside)
    status = (root / "a.jpg").stat()
    file_moves.move(root, [file_moves.FileToMove("a.jpg", status.st_size, status.st_mtime)], away)
    (away / "out").symlink_to(outside)
    journal = away / file_moves.JOURNAL
    line = json.loads(journal.read_text())
    journal.write_text("".join(json.dumps(line | change) + "\n" for change in ({}, {"to": to, "path": path})))
    before = sorted(outside.iterdir()), sorted(tmp_path.iterdir())
    file_moves.back(root)
    assert before == (sorted(outside.iterdir()), sorted(tmp_path.iterdir()))
    assert not (root / "got.txt").exists() and (outside / "secret.txt").read_text() == "secret"
