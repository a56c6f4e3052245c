"""Ray: shards on a real cluster of two raylets, and `Embed` in Ray Data's own words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.helpers import ROOT

import lookalike as la
from lookalike.core.errors import Exit, LookalikeError
from lookalike.integrations.ray import Embed


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number in range(60):
        Image.fromarray(rng.integers(0, 255, (96, 96, 3), np.uint8)).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "m"
    la.Embedder.from_pretrained("resnet10_small", weights="random").save_pretrained(folder)
    return folder


def cluster(scenario: str, folder: Path, images: Path, model: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.cluster", scenario, folder, images, model]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), "MY_SECRET": "sesame-9"}
    done = subprocess.run(command, cwd=ROOT, env=around, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))  # Ray may write after it
    return dict(json.loads(line))


@pytest.mark.needs("cluster")
def test_a_killed_raylet_and_a_killed_driver_change_no_byte(photos: Path, model: Path, tmp_path: Path) -> None:
    (photos / "07.png").write_bytes(b"poison")
    done = cluster("kills", tmp_path, photos, model)
    assert done["code"] == 0, done["text"]
    assert done["kept"] and done["before"] >= 4, "finished shards are not embedded again"
    la.embed(source=photos, out=tmp_path / "local", model=model, block=4, runtime="torch", progress=False)
    ours, theirs = (
        {path.name: path.read_bytes() for path in (tmp_path / name).glob("*.*") if path.name != ".lock"}
        for name in ("local", "vectors")
    )
    assert ours.keys() == theirs.keys() and len(ours) == 17
    assert all(ours[name] == theirs[name] for name in ours if name != "plan.parquet")
    assert la.embed(source=photos, out=tmp_path / "vectors", verify=True).count == 59
    shards = done["shards"]
    assert " failed: its shards run elsewhere." in shards["messages"], "the node that died is named"
    assert shards["sums"] == {f"part {number}": 30_000_000 * number for number in (0, 3, 4, 5, 6, 7)}, shards
    assert shards["errors"].keys() == {"part 1", "part 2"} and shards["errors"]["part 1"] == "shard 1"
    assert "workers that ran it died" in shards["errors"]["part 2"]
    assert "sesame-9" not in done["text"]
    assert done["files"] and not done["leaks"], "nothing of the environment is in Ray's logs"


def test_a_clock_that_is_wrong_changes_no_name_and_no_byte_of_a_part(
    photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a node whose clock is a month ahead, or behind."""
    now, parts = time.time, []
    for shift in (0.0, 3e6, -3e6):
        out = tmp_path / f"vectors{int(shift)}"
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda shift=shift: now() + shift)
            patch.setattr(time, "time_ns", lambda shift=shift: int(1e9 * (now() + shift)))
            la.embed(source=photos, out=f"{out}/", model=model, block=20, runtime="torch", progress=False)
        parts.append({path.name: path.read_bytes() for path in out.glob("part-*")})
    assert len(parts[0]) == 3 and parts[0] == parts[1] == parts[2]


@pytest.mark.needs("cluster")
@pytest.mark.slow
def test_ray_data_writes_the_vectors_of_every_image(photos: Path, model: Path, tmp_path: Path) -> None:
    (photos / "07.png").write_bytes(b"poison")
    assert cluster("pipeline", tmp_path, photos, model) == {"images": 60}
    table = pq.read_table(tmp_path / "vectors").sort_by("id")
    assert table.column_names == ["id", "vector"]
    assert table["id"].to_pylist() == [f"{number:02d}.png" for number in range(60)]
    assert np.flatnonzero(table["vector"].is_null()).tolist() == [7], "what cannot be read has no vector"
    files = [photos / name for name in table["id"].to_pylist() if name != "07.png"]
    expected = la.Embedder.from_pretrained(model, device="cpu").encode(files, runtime="torch")
    rows = np.stack(table["vector"].drop_null().to_pylist())
    np.testing.assert_allclose(rows, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.needs("cluster")
def test_a_node_with_another_version_is_refused(photos: Path, model: Path, tmp_path: Path) -> None:
    done = cluster("versions", tmp_path, photos, model)
    assert done["code"] == Exit.USER
    assert "is refused: it has torch 9.9 instead of" in done["text"]


@pytest.mark.needs("ray")
def test_without_a_cluster_the_message_says_how_to_start_one(
    photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(LookalikeError, match="start one with `ray start --head`"):
        la.embed(source=photos, out=tmp_path / "v", model=model, engine="ray")


@pytest.mark.parametrize("kind", ["arrow", "struct", "pandas", "numpy"])
def test_embed_adds_a_column_of_vectors_to_batches(kind: str, photos: Path, model: Path) -> None:
    embed = Embed(model, runtime="torch")
    files = sorted(photos.glob("1*.png"))[:3]
    expected = embed.model.encode(files, runtime="torch")
    contents = [file.read_bytes() for file in files]
    if kind == "numpy":
        images = np.stack([np.asarray(Image.open(file)) for file in files])
        rows = embed({"image": images, "id": np.arange(3)})["vector"]
    elif kind == "pandas":
        rows = np.stack(embed(pd.DataFrame({"image": list(map(str, files))}))["vector"].tolist())
    else:
        values = [{"bytes": c, "path": None} for c in contents] if kind == "struct" else contents
        batch = pa.table({"image": [*values, None], "id": range(4)})
        table = embed(batch)
        assert table.column_names == ["image", "id", "vector"] and table["vector"].null_count == 1
        rows = np.stack(table["vector"].to_pylist()[:3])
        with pytest.raises(LookalikeError, match="Image 3 of a batch cannot be read"):
            Embed(model, runtime="torch", on_error="raise")(batch)
        assert len(embed(batch.slice(0, 0))) == 0
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    with pytest.raises(LookalikeError, match="no column `image`"):
        embed({"photo": []})
