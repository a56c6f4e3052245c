"""A folder as people have them: copies, damaged files, files that are no images, and other scripts in the names."""

from __future__ import annotations

import shutil
from pathlib import Path

from PIL import Image

from tests.helpers import make_image, make_images
from tests.walks.terminal import Terminal


def make_messy_folder(folder: Path) -> None:
    make_images(folder, classes=6, images=8)
    copies = folder / "trip to 東京"
    copies.mkdir()
    for number in range(5):
        shutil.copy(folder / "class-00" / f"{number}.jpg", copies / f"IMG {number}.jpg")
    jpeg = (folder / "class-01" / "0.jpg").read_bytes()
    (folder / "cut.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (folder / "notes.jpg").write_text("no image", encoding="utf-8")
    (folder / "empty.png").touch()
    (folder / "clip.mp4").write_bytes(bytes(100))
    (folder / "scan.CR2").write_bytes(bytes(100))
    (folder / ".hidden.jpg").write_bytes(jpeg)
    Image.fromarray(make_image(77)).convert("RGBA").save(folder / "alpha.png")


def test_search_a_messy_folder(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "photos"
    make_messy_folder(folder)
    before = sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*"))
    index = """
        ! Warning: not read: 1 RAW, 1 video.
        Images     {} {}, 3 unreadable…
        Index      photos-…: {} images, model … (efficientnet_lite0)
        Unreadable cut.jpg: the file is cut short
        Unreadable empty.png: the file is empty
        Unreadable notes.jpg: it holds text, not pixels
        …
        Search     lookalike search IMAGE --index photos-…
    """
    terminal("lookalike index photos", index.replace("{} {},", "54 new,").replace("{} images", "54 images"))
    terminal("lookalike index photos", index.replace("{} {},", "54 unchanged,").replace("{} images", "54 images"))
    terminal(
        "lookalike search photos/class-03/2.jpg --index photos",
        """
        Very likely found: 1 match in 54 images ({} ms…)
        …
        identical  class-03/2.jpg  class-03
        …
        {} weaker hits not shown: lookalike search photos/class-03/2.jpg…--all…
        """,
    )
    terminal(
        "lookalike search photos/class-03/2.jpg --index photos --filter label=class-04 -k 2",
        """
        No good match in 8 images ({} ms…)
        The nearest one is …{} % likely to show the same thing.…
        …{} %  class-04/{}.jpg  class-04
        …{} %  class-04/{}.jpg  class-04
        """,
    )
    terminal(
        "lookalike search photos/class-03/2.jpg --index photos --filter color=red",
        "! `color` is not a column of the index `photos-…`: its columns are …label, path…",
        code=2,
    )
    terminal(
        "lookalike search photos/notes.jpg --index photos",
        "! `photos/notes.jpg` cannot be read: it holds text, not pixels.",
        code=2,
    )
    terminal("lookalike search photos/gone.jpg --index photos", "! There is no image `photos/gone.jpg`.", code=2)
    assert sorted((path, path.stat().st_mtime_ns) for path in folder.rglob("*")) == before, "nothing is written there"
    shutil.rmtree(folder / "class-05")
    terminal(
        "lookalike index photos",
        index.replace("{} {},", "8 deleted, 46 unchanged,").replace("{} images", "46 images"),
    )
