from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.helpers import make_image

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.data import audit, read_table


def save(path: Path, pixels: np.ndarray, **options: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def textured(seed: int) -> np.ndarray:
    """An image that resembles no other: discs over gradients, with some noise."""
    rng = np.random.default_rng(seed)
    noise = np.kron(rng.normal(0, 40, (9, 12, 3)), np.ones((10, 10, 1)))
    return np.clip(make_image(seed, width=120, height=90) + noise, 0, 255).astype(np.uint8)


@pytest.fixture
def birds(tmp_path: Path, home: Path) -> Path:
    root = tmp_path / "birds"
    for seed in range(20):
        save(root / ("train" if seed < 12 else "test") / f"class{seed % 4}" / f"{seed:02d}.png", textured(seed))
    return root


def names(table: object, rows: list[int]) -> list[str]:
    return [str(table.column("path")[i]).rpartition("/")[2] for i in rows]  # type: ignore[attr-defined]


def test_clean_images_pass(birds: Path) -> None:
    result = audit(read_table(birds))
    assert len(result.table) == 20
    assert len(set(result.table.column("content_id"))) == 20
    facts = result.facts()
    assert facts.pop("images") == 20
    assert set(facts.values()) == {0}


def test_unreadable_files_are_named_and_skipped(birds: Path) -> None:
    (birds / "train/class0/bad.jpg").write_bytes(b"not an image")
    result = audit(read_table(birds))
    assert [row for row, _ in result.unreadable] == ["birds/train/class0/bad.jpg"]
    assert result.unreadable[0][1]
    assert len(audit(read_table(birds), max_bad=0.01).unreadable) == 1  # a single one is never too many
    with pytest.raises(LookalikeError, match="1 of 21 images cannot be read"):
        audit(read_table(birds), max_bad=0)
    assert len(result.table) == 20 and "bad.jpg" not in names(result.table, list(range(20)))
    (birds / "train/class0/worse.jpg").write_bytes(b"")
    with pytest.raises(LookalikeError, match=r"2 of 22 images cannot be read, more than 5% \(`birds/train/class0/bad"):
        audit(read_table(birds))
    assert len(audit(read_table(birds), max_bad=0.2).unreadable) == 2


def test_equal_pixels_are_detected_whatever_the_file(birds: Path) -> None:
    pixels = textured(0)
    save(birds / "train/class0/copy.png", pixels)
    save(birds / "train/class2/copy.bmp", pixels)  # another format, another class
    result = audit(read_table(birds))
    assert [names(result.table, group) for group in result.exact] == [["00.png", "copy.png", "copy.bmp"]]
    assert result.conflicts == result.exact
    facts = result.facts()
    assert (facts["exact_groups"], facts["exact_copies"], facts["label_conflicts"]) == (1, 2, 1)
    assert facts["near_pairs"] == 0 and facts["across_exact"] == 0


def test_near_and_exact_images_across_a_split(birds: Path) -> None:
    save(birds / "test/class0/same.png", textured(1))
    save(birds / "test/class0/smaller.png", np.asarray(Image.fromarray(textured(2)).resize((60, 45))))
    save(birds / "test/class0/again.jpg", textured(13), quality=60)  # near, but on its own side
    result = audit(read_table(birds))
    near = [sorted(names(result.table, [i, j])) for i, j, _ in result.near]
    assert sorted(near) == [["02.png", "smaller.png"], ["13.png", "again.jpg"]]
    assert all(score >= 0.985 for _, _, score in result.near)
    across = sorted(sorted(names(result.table, group)) for group in result.across)
    assert across == [["01.png", "same.png"], ["02.png", "smaller.png"]]
    facts = result.facts()
    assert (facts["across_exact"], facts["across_near"], facts["near_groups"]) == (1, 1, 2)
    without = audit(read_table(birds), near=False)
    assert without.near == [] and len(without.across) == 1


def test_flat_images_are_equal_only_if_their_pixels_are(tmp_path: Path, home: Path) -> None:
    for level in range(40):
        save(tmp_path / f"{level}.png", np.full((20, 20, 3), 100 + level, np.uint8))
    save(tmp_path / "twin.png", np.full((20, 20, 3), 100, np.uint8))
    result = audit(read_table(tmp_path))
    assert result.near == [] and len(result.exact) == 1
    assert result.facts()["flat"] == 41


def test_boxes_are_images_of_their_own(tmp_path: Path, home: Path) -> None:
    save(tmp_path / "a.png", np.hstack([textured(1), textured(2)]))
    save(tmp_path / "b.png", np.hstack([textured(3), textured(2)]))
    rows = ["a.png,0,120,0,90", "a.png,120,240,0,90", "b.png,120,240,0,90"]
    (tmp_path / "t.csv").write_text("\n".join(["path,x_1,x_2,y_1,y_2", *rows]))
    assert audit(read_table(tmp_path / "t.csv")).exact == [[1, 2]]


def test_a_second_scan_decodes_nothing_and_a_changed_file_everything(
    birds: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = audit(read_table(birds))
    entries = list(folders.cache("audits").iterdir())
    assert len(entries) == 1
    if os.name != "nt":
        assert entries[0].stat().st_mode & 0o077 == 0
    opened = []
    real = type(first.table).open_bytes
    monkeypatch.setattr(type(first.table), "open_bytes", lambda self, i: opened.append(i) or real(self, i))
    again = audit(read_table(birds))
    assert opened == []
    assert again.table.arrow.equals(first.table.arrow)
    entries[0].write_bytes(b"damaged")
    assert audit(read_table(birds)).table.arrow.equals(first.table.arrow)
    assert len(opened) == 20
    save(birds / "train/class0/00.png", textured(1))
    changed = audit(read_table(birds))
    assert len(changed.exact) == 1


def test_a_file_that_cannot_be_opened_is_looked_at_again_next_time(birds: Path, home: Path) -> None:
    table = read_table(birds)
    lost = birds / "train/class0/00.png"
    lost.rename(birds / "elsewhere")
    assert audit(table).unreadable == [("birds/train/class0/00.png", "no such file or directory")]
    (birds / "elsewhere").rename(lost)
    assert audit(table).unreadable == []


def test_an_empty_table(birds: Path) -> None:
    empty = audit(read_table(birds).take([]))
    assert len(empty.table) == 0 and set(empty.facts().values()) == {0}
