"""Find duplicates, see what would be moved, move it, and undo that."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.helpers import make_images
from tests.walks.terminal import Terminal


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.jpg")}


def test_find_and_undo_duplicates(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    folder = make_images(tmp_path / "photos", classes=5, images=1)
    for number, name in enumerate(("IMG 0.jpg", "IMG 1.jpg")):
        (folder / "trip to 東京").mkdir(exist_ok=True)
        shutil.copy(folder / f"class-{number:02d}" / "0.jpg", folder / "trip to 東京" / name)
    before = contents(folder)
    groups = """
        identical:
          keep  class-{}/0.jpg  64 × 48  {} kB
                trip to 東京/IMG {}.jpg  64 × 48  {} kB
                kept: older
        identical:
          keep  class-{}/0.jpg  64 × 48  {} kB
                trip to 東京/IMG {}.jpg  64 × 48  {} kB
                kept: older
    """
    terminal(
        "lookalike duplicates photos --kind identical",
        f"""
        Identical files  2 groups, 4 files, {{}} kB to free
        …
        {groups}
        No files were moved. To review them: lookalike serve photos
        """,
    )
    terminal("lookalike duplicates photos --kind identical --move --dry-run", "…\nNo files were moved.…")
    assert contents(folder) == before
    terminal(
        "lookalike duplicates photos --kind identical --move",
        "! Move 2 files ({} kB) away? Nothing is deleted. There is no terminal to ask on: … --yes.",
        code=2,
    )
    assert contents(folder) == before
    terminal(
        "lookalike duplicates photos --kind identical --move --yes",
        """
        …
        Moved 2 files ({} kB) to …_lookalike_moved/photos/….
        …
        """.replace("….\n", "… To undo: lookalike duplicates photos --back last\n"),
    )
    assert sorted(contents(folder)) == [f"class-{number:02d}/0.jpg" for number in range(5)]
    terminal("lookalike duplicates photos --kind identical", "No duplicates among 5 images.")
    terminal("lookalike duplicates photos --back last", "…\nMoved back 2 files ({} kB)")
    assert contents(folder) == before
