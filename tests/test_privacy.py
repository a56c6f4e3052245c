"""What images tell beside their pixels stays in them, what is kept is the owner's, and nothing is sent anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, TiffImagePlugin

from tests import helpers

MODEL = helpers.ROOT / "tests" / "compat" / "model-1"  # tiny, with random weights
SECRETS = (b"SECRET", b"Exif\0\0", b"GPSInfo", b"GPSLatitude", b"xpacket")  # long enough not to occur by chance

# Every station a user's images pass, watched from within: whoever opens a connection or starts a program is named.
WALK = """
import json, sys
asked = []
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"):
        asked.append([event, repr(arguments[1:] if event.startswith("socket.c") else arguments)])
    elif event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "webbrowser.open"):
        asked.append([event, repr(arguments[:1])])
sys.addaudithook(watch)
import lookalike as la
model, birds = sys.argv[1:]
from lookalike.doctor import doctor; doctor()
la.train(data=birds, model=model, out="run", steps=2, settings={"head": {"embedding_dim": 8}})
la.evaluate(data=birds, model="run", out="measured")
la.embed(source=birds, model="run", out="vectors.parquet")
la.export(model="run", out="model.onnx")
la.index(folder=birds, model="run", index="./local")
la.search(query=f"{birds}/class-00/0.jpg", index="./local")
la.report(run="run")
print(json.dumps(asked))
"""


def talkative(folder: Path) -> Path:
    """Images with a camera, a place and a name in them."""
    helpers.make_images(folder, classes=6, images=5)
    for path in folder.rglob("*.jpg"):
        exif = Image.Exif()
        exif[0x010F], exif[0x9286] = "SECRET camera", "SECRET comment"
        exif.get_ifd(0x8825).update({1: "N", 2: (TiffImagePlugin.IFDRational(51), 30, 0), 3: "E", 4: (7, 0, 0)})
        xmp = b"<?xpacket begin=''?><x>SECRET</x>"
        Image.open(path).save(path, quality=90, exif=exif, xmp=xmp)
    return folder


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    place = tmp_path_factory.mktemp("walk")
    birds = talkative(place / "birds")
    assert b"SECRET" in (birds / "class-00" / "0.jpg").read_bytes()
    around = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")}
    around["LOOKALIKE_HOME"] = str(place / "home")
    command = [sys.executable, "-c", WALK, str(MODEL), str(birds)]
    done = subprocess.run(command, cwd=place, env=around, capture_output=True, text=True, check=False, umask=0o022)
    assert done.returncode == 0, done.stderr
    return place, json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_sent_and_no_program_is_started(walk: tuple[Path, list[Any]]) -> None:
    assert walk[1] == []


def test_no_place_or_camera_in_index_log_cache_or_report(walk: tuple[Path, list[Any]]) -> None:
    place, _ = walk
    made = [p for p in place.rglob("*") if p.is_file() and place / "birds" not in p.parents]
    kinds = {p.suffix for p in made}
    assert {".html", ".jsonl", ".parquet", ".npy", ".onnx", ".jpg"} <= kinds, "every kind of file is looked at"
    talk = [(str(p.relative_to(place)), secret) for p in made for secret in SECRETS if secret in p.read_bytes()]
    assert talk == []


def test_no_column_holds_metadata(walk: tuple[Path, list[Any]]) -> None:
    import lookalike as la

    with la.Index.open(walk[0] / "local") as opened:
        payload = next(iter(opened.store.scan()))[0].payload
        assert set(payload) == {
            *("path", "label", "content_id"),
            *("_size", "_mtime_ns", "_row", "_hash", "_ratio", "_color"),
        }
        assert opened.columns == ["label", "path"]


@pytest.mark.skipif(os.name == "nt", reason="needs Unix rights")
def test_caches_and_indexes_are_readable_by_their_owner_only(walk: tuple[Path, list[Any]]) -> None:
    """A folder that others cannot enter keeps everything in it, whatever rights the files themselves have."""
    place, _ = walk
    roots = [*(place / "home").iterdir(), place / "local"]
    assert {p.name for p in roots} >= {"cache", "local"}
    assert {p.name for p in (place / "home" / "cache").iterdir()} >= {"features", "audits"}
    assert [(p.name, oct(p.stat().st_mode & 0o077)) for p in roots if p.stat().st_mode & 0o077] == []
