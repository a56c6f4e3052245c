"""`verify` finds a flipped bit in every file of a run or a model that is read back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import lookalike as la
from lookalike.models import Embedder
from tests.helpers import make_images


def flip(file: Path, place: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if place is None else place] ^= 0x20
    file.write_bytes(data)


def test_a_model(tmp_path: Path, model: Path) -> None:
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    assert str(la.verify(index=copy)) == "The model model is whole."
    flip(copy / "model.safetensors")
    with pytest.raises(la.LookalikeError, match=r"model.safetensors` is incomplete or was changed"):
        la.verify(index=copy)


def test_a_model_with_the_weights_of_another(tmp_path: Path, models: Path) -> None:
    from lookalike.core.files import checksum, read_json, write_json
    from lookalike.models.inference.compiled_embedder import config_checksum

    copy = Path(shutil.copytree(models / "first", tmp_path / "model"))
    other = Embedder.from_pretrained(models / "first")
    next(other.backbone.parameters()).data.add_(1)
    other.save_pretrained(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "model.safetensors", copy)
    config = {**read_json(copy / "config.json"), "checksum": checksum(copy / "model.safetensors")}
    write_json(copy / "config.json", {**config, "config_checksum": config_checksum(config)})
    with pytest.raises(la.LookalikeError, match="not those that it was saved with"):
        la.verify(index=copy)


def test_a_run(tmp_path: Path, model: Path, home: Path) -> None:
    birds = make_images(tmp_path / "birds", classes=4, images=4)
    run = la.train(data=birds, model=model, out=tmp_path / "run", steps=2)
    assert str(la.verify(index=tmp_path / "run")) == "The run run is whole."
    files = [*run.checkpoints.glob("*.pt"), run.model / "model.safetensors"]  # type: ignore[union-attr]
    assert len(files) >= 2
    for file in files:
        whole = file.read_bytes()
        flip(file)
        with pytest.raises(la.LookalikeError, match="damaged"):
            la.verify(index=tmp_path / "run")
        file.write_bytes(whole)
    image = tmp_path / "run" / "sections" / "images" / run.store_image(b"a thumbnail")  # type: ignore[union-attr]
    image.write_bytes(b"another one")
    with pytest.raises(la.LookalikeError, match="is damaged"):
        la.verify(index=tmp_path / "run")
    image.unlink()
    (tmp_path / "run" / "result.json").write_text("{")
    with pytest.raises(la.LookalikeError, match=r"result.json` is damaged"):
        la.verify(index=tmp_path / "run")


def test_the_versions_of_an_adaptation(tmp_path: Path, models: Path) -> None:
    from lookalike.adaptation.gate import Decision
    from lookalike.adaptation.versions import Versions
    from lookalike.core.run import Run
    from lookalike.data import read_table

    first, second = (Embedder.from_pretrained(models / name) for name in ("first", "second"))
    versions = Versions.create(Run.create("t3ar", {}, path=tmp_path / "run"), first)
    target = read_table(make_images(tmp_path / "birds", classes=2, images=2))
    decision = Decision(False, ["too few images"], "none")
    versions.add(second, decision, receipts=[], target=target, pool={"ids": [], "names": []}, about={})
    assert str(la.verify(index=tmp_path / "run")) == "The run run is whole."
    folder = tmp_path / "run" / "versions"
    for name in ("0/model/model.safetensors", "1/model/model.safetensors", "1/target.parquet", "1/pool.json"):
        whole = (folder / name).read_bytes()
        if name.endswith("json"):
            (folder / name).write_text("{")
        else:
            flip(folder / name, 60 if name.endswith("parquet") else None)  # in the first page, whose checksum tells
        with pytest.raises(la.LookalikeError, match=r"damaged|not a complete Parquet file|changed"):
            la.verify(index=tmp_path / "run")
        (folder / name).write_bytes(whole)
    shutil.rmtree(folder / "1" / "model")
    shutil.copytree(folder / "0" / "model", folder / "1" / "model")
    with pytest.raises(la.LookalikeError, match="not those that it was saved with"):
        la.verify(index=tmp_path / "run")
