"""Duplicates: three kinds, a suggestion with its reason, moved away and back, nothing ever lost."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike.core.errors import LookalikeError
from lookalike.data import read_table
from lookalike.searching import duplicate_groups, file_moves
from lookalike.searching.duplicate_groups import group_duplicates
from lookalike.searching.find_duplicates import dismiss
from lookalike.searching.image_facts import read_image_facts
from tests import helpers


def scene(seed: int, width: int = 400, height: int = 300) -> Image.Image:
    """An image with enough in it to be told from others."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(helpers.make_image(seed, width=width, height=height))
    for _ in range(12):
        x, y = rng.integers(0, width - 60), rng.integers(0, height - 60)
        patch = Image.new(
            "RGB", (int(rng.integers(20, 120)), int(rng.integers(20, 90))), tuple(rng.integers(0, 255, 3))
        )
        image.paste(patch, (int(x), int(y)))
    return image


@pytest.fixture
def photos(tmp_path: Path, home: Path) -> Path:
    """Ten different images, of which some are there again in other forms."""
    folder = tmp_path / "photos"
    (folder / "a").mkdir(parents=True)
    (folder / "b").mkdir()
    for number in range(10):
        scene(number).save(folder / "a" / f"{number}.jpg", quality=92)
    shutil.copy(folder / "a" / "0.jpg", folder / "b" / "copy.jpg")  # identical
    os.utime(folder / "b" / "copy.jpg", (2_000_000_000, 2_000_000_000))
    scene(1).save(folder / "b" / "worse.jpg", quality=60)  # the same, compressed harder
    scene(2).resize((200, 150)).save(folder / "b" / "small.png")  # the same, smaller
    exif = Image.Exif()
    exif[0x0132] = "2019:07:21 10:11:12"
    scene(3).save(folder / "b" / "dated.jpg", quality=92, exif=exif)  # equal pixels, with a date
    scene(4).crop((10, 8, 396, 294)).save(folder / "b" / "cropped.jpg", quality=92)  # near
    return folder


def names(answer: Any, kind: str) -> list[list[str]]:
    return [[image.path for image in one.files] for one in answer.of(kind)]


def test_three_kinds_with_reasons(photos: Path) -> None:
    result = lookalike.duplicates(source=photos, progress=False)
    assert result.images == 15
    assert names(result, "identical") == [["a/0.jpg", "b/copy.jpg"]]
    same = {tuple(files) for files in names(result, "same")}
    assert same == {("a/1.jpg", "b/worse.jpg"), ("a/2.jpg", "b/small.png"), ("a/3.jpg", "b/dated.jpg")}
    assert names(result, "near") == [["a/4.jpg", "b/cropped.jpg"]]
    reasons = {one.files[one.keep].path: one.reason for one in result.groups}
    assert reasons["a/0.jpg"] == "older"
    assert reasons["a/1.jpg"].startswith("less compressed")
    assert reasons["a/2.jpg"].startswith("more pixels")
    assert reasons["b/dated.jpg"].startswith("has a date")
    assert "4" in recommended_path(result, "near") and "cropped" not in recommended_path(result, "near")
    text = str(result)
    assert "Identical files  1 group, 2 files" in text and "No files were moved" in text and "kept: older" in text
    document = json.loads(json.dumps(result.to_json()))
    assert document["counts"]["same"]["groups"] == 3 and document["groups"][0]["files"][0]["width"] == 400
    # The second scan reads nothing again, and finds the same.
    for file in photos.rglob("*.*"):
        file.chmod(0o000)
    if os.geteuid() != 0:
        again = lookalike.duplicates(source=photos, progress=False)
        assert [one.id for one in again.groups] == [one.id for one in result.groups]


def test_a_date_that_is_none_is_no_date(photos: Path) -> None:
    """Programs write the year 1 where they know none, and that has no four digits."""
    from lookalike.data.exif import iso_date

    exif = Image.Exif()
    exif[0x0132] = "0001:01:01 00:00:00"
    scene(3).save(photos / "b" / "zero.jpg", quality=92, exif=exif)
    result = lookalike.duplicates(source=photos, progress=False)
    (group,) = [one for one in result.of("same") if any(image.path == "b/zero.jpg" for image in one.files)]
    image = next(image for image in group.files if image.path == "b/zero.jpg")
    assert image.date is None and group.files[group.keep].path == "b/dated.jpg"
    assert iso_date("2019:07:21 10:11:12") == "2019-07-21T10:11:12"


def recommended_path(answer: Any, kind: str) -> str:
    one = answer.of(kind)[0]
    return str(one.files[one.keep].path)


def test_the_preferred_folder_overrules(photos: Path) -> None:
    result = lookalike.duplicates(source=photos, prefer="b", progress=False)
    assert all(one.files[one.keep].path.startswith("b/") for one in result.groups)
    assert result.of("identical")[0].reason == "in b/"


def test_file_moves_and_moving_back(photos: Path, tmp_path: Path) -> None:
    before = {p.relative_to(photos): p.read_bytes() for p in photos.rglob("*") if p.is_file()}
    done = lookalike.duplicates(source=photos, kinds=["identical", "same"], move=True, progress=False)
    assert done.moved is not None and done.moved.files == 4 and not done.moved.left
    target = Path(done.moved.folder)
    assert target.is_relative_to(tmp_path / "_lookalike_moved") and not target.is_relative_to(photos)
    assert (
        not (photos / "b" / "copy.jpg").exists()
        and (target / "b" / "copy.jpg").read_bytes() == before[Path("b/copy.jpg")]
    )
    lines = [json.loads(line) for line in (target / "moved.jsonl").read_text().splitlines()]
    assert {line["path"] for line in lines} == {"b/copy.jpg", "b/worse.jpg", "b/small.png", "a/3.jpg"}
    assert [batch.state for batch in file_moves.history(photos)] == ["moved"]
    (photos / "b" / "worse.jpg").write_bytes(b"another file")
    back = lookalike.duplicates(source=photos, back="last", progress=False).moved
    assert (
        back is not None
        and back.files == 3
        and back.left == [{"path": "b/worse.jpg", "why": "another file has its name now"}]
    )
    assert file_moves.history(photos)[0].state == "partly"
    (photos / "b" / "worse.jpg").unlink()
    assert lookalike.duplicates(source=photos, back=done.moved.id, progress=False).moved.files == 1  # type: ignore[union-attr]
    after = {p.relative_to(photos): p.read_bytes() for p in photos.rglob("*") if p.is_file()}
    assert after == before and file_moves.history(photos)[0].state == "back"
    with pytest.raises(LookalikeError, match="No files are moved away"):
        lookalike.duplicates(source=photos, back="last", progress=False)


def test_a_file_that_is_listed_twice_is_no_copy_of_itself(photos: Path) -> None:
    """Else the only copy would be moved away."""
    (photos / "link.jpg").symlink_to("a/0.jpg")
    os.link(photos / "a" / "0.jpg", photos / "a" / "hard.jpg")
    names = ["a/0.jpg", "a/0.jpg", "./a/0.jpg", "b/../a/0.jpg", "link.jpg", "a/hard.jpg"]
    (photos / "list.csv").write_text("path\n" + "".join(f"{name}\n" for name in names))
    before = {path: path.read_bytes() for path in photos.rglob("*.jpg")}
    result = lookalike.duplicates(source=photos / "list.csv", move=True, progress=False)
    assert result.moved is not None and result.moved.files == 0 and result.images == 1
    assert before == {path: path.read_bytes() for path in photos.rglob("*.jpg")}


def test_nothing_is_moved_that_changed_or_lies_outside(photos: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jpg"
    outside.write_bytes(b"mine")
    (photos / "link.jpg").symlink_to(outside)
    (photos / "linked").symlink_to(tmp_path)
    stat = (photos / "a" / "0.jpg").stat()
    expected = [
        file_moves.FileToMove("a/0.jpg", stat.st_size + 1, stat.st_mtime),
        file_moves.FileToMove("link.jpg", 4, outside.stat().st_mtime),
        file_moves.FileToMove("linked/outside.jpg", 4, outside.stat().st_mtime),
        file_moves.FileToMove("../outside.jpg", 4, outside.stat().st_mtime),
        file_moves.FileToMove("gone.jpg", 4, 0),
    ]
    batch = file_moves.move(photos, expected)
    assert batch.files == 0 and len(batch.left) == 5 and outside.exists() and not file_moves.history(photos)
    with pytest.raises(LookalikeError, match="inside the image folder"):
        file_moves.move(photos, [], photos / "away")
    (tmp_path / "full" / "a").mkdir(parents=True)
    (tmp_path / "full" / "a" / "0.jpg").write_bytes(b"there first")
    batch = file_moves.move(photos, [file_moves.FileToMove("a/0.jpg", stat.st_size, stat.st_mtime)], tmp_path / "full")
    assert (tmp_path / "full" / "a" / "0.jpg").read_bytes() == b"there first"
    assert (tmp_path / "full" / "a" / "0 (2).jpg").stat().st_size == stat.st_size


def test_dismissed_groups_stay_away(photos: Path) -> None:
    result = lookalike.duplicates(source=photos, progress=False)
    name = result.of("near")[0].id
    dismiss(photos, name)
    again = lookalike.duplicates(source=photos, progress=False)
    assert not again.of("near") and again.dismissed == 1
    dismiss(photos, name, undo=True)
    assert lookalike.duplicates(source=photos, progress=False).of("near")


def test_close_pairs_are_those_of_the_slow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against all N² products; pairs that are nearly the same are all found, with far fewer of them."""
    rng = np.random.default_rng(3)
    base = rng.normal(size=(3000, 32)).astype(np.float32)
    twins = base[:200] + 0.05 * rng.normal(size=(200, 32)).astype(np.float32)
    rows = np.concatenate([base, twins])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    scores = rows @ rows.T
    expected = {(i, j) for i in range(len(rows)) for j in np.flatnonzero(scores[i] >= 0.95) if i < j}
    compared = 0
    real = duplicate_groups._pairs_within

    def counted(vectors: Any, members: Any, least: float) -> Any:
        nonlocal compared
        compared += len(members) ** 2 // 2
        return real(vectors, members, least)

    monkeypatch.setattr(duplicate_groups, "_pairs_within", counted)
    result = {(i, j) for i, j, _ in duplicate_groups.close_pairs(rows, 0.95)}
    assert result <= expected and len(result) >= 0.97 * len(expected) and len(expected) >= 200
    assert compared < 0.25 * len(rows) ** 2 / 2


def test_embeddings_find_what_small_images_do_not(photos: Path) -> None:
    """A crop that the small image alone misses is found when the vectors lie close; another class is not."""
    scene(5).crop((30, 20, 390, 290)).save(photos / "b" / "part.jpg", quality=92)
    images, _ = read_image_facts(read_table(photos), progress=False)
    vectors = {image.id: np.eye(20, dtype=np.float32)[n] for n, image in enumerate(images)}
    ids = {image.path: image.id for image in images}
    assert not [one for one in group_duplicates(images, vectors) if "b/part.jpg" in {f.path for f in one.files}]
    vectors[ids["b/part.jpg"]] = vectors[ids["a/5.jpg"]]
    vectors[ids["a/7.jpg"]] = vectors[ids["a/6.jpg"]]  # alike to the model, yet other images
    result = [{f.path for f in one.files} for one in group_duplicates(images, vectors) if one.kind == "near"]
    assert {"a/7.jpg", "a/6.jpg"} not in result
    from lookalike.data import near_duplicates

    thumbs = np.stack([image.thumb for image in images if image.path in ("a/5.jpg", "b/part.jpg")])
    alike = float(near_duplicates.alike(thumbs, np.array([0]), np.array([1]))[0])
    assert ({"a/5.jpg", "b/part.jpg"} in result) == (alike >= duplicate_groups.CONFIRM_CORRELATION)


def test_a_chain_of_small_steps_is_not_one_group() -> None:
    assert duplicate_groups.star_groups({(0, 1), (1, 2), (2, 3), (3, 4)}) == [[0, 1, 2], [3, 4]]


def test_the_command_line(photos: Path, tmp_path: Path, home: Path, cli: Any) -> None:
    listed = cli("duplicates", photos, "--json")
    assert listed.code == 0 and listed.json["counts"]["identical"]["groups"] == 1
    refused = cli("duplicates", photos, "--move")
    assert refused.code == 2 and "--yes" in refused.err
    moved = cli("duplicates", photos, "--move-to", tmp_path / "away", "--yes")
    assert moved.code == 0 and "Moved 1 file (" in moved.out and (tmp_path / "away" / "b" / "copy.jpg").exists()
    back = cli("duplicates", photos, "--back", "last")
    assert back.code == 0 and "Moved back 1 file (" in back.out and (photos / "b" / "copy.jpg").exists()


def test_an_enlarged_copy_never_beats_its_original(photos: Path) -> None:
    for number, scale, resampling in ((5, 2.0, Image.Resampling.BICUBIC), (6, 1.5, Image.Resampling.LANCZOS)):
        with Image.open(photos / "a" / f"{number}.jpg") as image:
            size = round(image.width * scale), round(image.height * scale)
            image.resize(size, resampling).save(photos / "b" / f"large{number}.jpg", quality=95)
    result = lookalike.duplicates(source=photos, kinds=["same"], progress=False)
    saved = {one.files[one.keep].path: one.reason for one in result.groups}
    assert saved["a/5.jpg"].startswith("not scaled up") and saved["a/6.jpg"].startswith("not scaled up")
    assert saved["a/2.jpg"].startswith("more pixels"), "a true larger original still wins"


def test_an_animation_is_no_copy_of_its_first_frame(photos: Path) -> None:
    frames = [scene(number).quantize() for number in (20, 21, 22)]
    frames[0].save(photos / "still.gif")
    frames[0].save(photos / "moving.gif", save_all=True, append_images=frames[1:], duration=100)
    frames[0].convert("RGB").save(photos / "still.png")
    result = lookalike.duplicates(source=photos, kinds=["same"], progress=False)
    assert ["still.gif", "still.png"] in names(result, "same")
    assert not any("moving.gif" in files for files in names(result, "same"))


def test_only_what_was_requested_is_printed_and_all_of_it(photos: Path, tmp_path: Path) -> None:
    text = str(lookalike.duplicates(source=photos, kinds=["same"], progress=False))
    assert "Same image" in text and "Identical" not in text and "Near" not in text
    for number in range(12):
        shutil.copy(photos / "a" / "7.jpg", photos / "b" / f"more{number}.jpg")
        shutil.copy(photos / "a" / f"{number % 10}.jpg", photos / "b" / f"again{number}.jpg")
    result = lookalike.duplicates(source=photos, progress=False)
    text = str(result)
    assert len(result.groups) > 10 and all(file.path in text for one in result.groups for file in one.files)


def test_a_dry_run_says_what_would_go_where(photos: Path, tmp_path: Path) -> None:
    result = lookalike.duplicates(source=photos, move=True, move_to=tmp_path / "away", dry_run=True, progress=False)
    text = str(result)
    assert "Would move 1 file (" in text and f"  b/copy.jpg → {tmp_path / 'away' / 'b' / 'copy.jpg'}" in text
    assert text.endswith("No files were moved.") and not (tmp_path / "away").exists()
    assert (photos / "b" / "copy.jpg").exists()
    default = str(lookalike.duplicates(source=photos, move=True, dry_run=True, progress=False))
    assert "_lookalike_moved" in default


def test_what_a_table_lists_is_moved_and_back(photos: Path, tmp_path: Path, home: Path, cli: Any) -> None:
    """After the move the table lists files that are not there; the printed command must undo it all the same."""
    table = tmp_path / "table.csv"
    (photos / "broken.jpg").write_bytes(b"no image")
    names = ["a/0.jpg", "b/copy.jpg", "broken.jpg"]
    table.write_text("\n".join(["path", *(f"{photos.name}/{name}" for name in names)]))
    moved = cli("duplicates", table, "--kind", "identical", "--move", "--yes")
    assert moved.code == 0 and "1 file could not be read." in moved.out, moved.err
    assert sum((photos / name).exists() for name in names) == 2
    undo = moved.out.split("To undo: lookalike ")[1].split()
    back = cli(*undo)
    assert back.code == 0 and "Moved back 1 file" in back.out, back.err
    assert all((photos / name).exists() for name in names)
