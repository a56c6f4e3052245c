"""The command `export`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from lookalike import LookalikeError, export
from lookalike.models import Embedder, exporting
from lookalike.models.inference import onnx_runtime, pipeline
from tests.helpers import make_image


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Embedder, Path, exporting.ExportResult]:
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=48, pooling="gem")
    model.set_random_head(16)
    out = tmp_path_factory.mktemp("export") / "model.onnx"
    return model, out, export(model=model, out=out)


def test_the_file_stands_alone(exported: tuple[Embedder, Path, exporting.ExportResult]) -> None:
    model, out, done = exported
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for count in (1, 7):
        crops = np.stack([pipeline.load_crop(make_image(seed), model.preprocess) for seed in range(count)])
        rows = session.run(None, {"pixels": crops})[0]
        np.testing.assert_allclose(
            rows, model.encode([make_image(s) for s in range(count)], runtime="torch"), atol=1e-5
        )
    assert done.difference <= 1e-4
    assert done.to_json()["fingerprint"] == model.fingerprint()


def test_what_it_says_about_itself(exported: tuple[Embedder, Path, exporting.ExportResult]) -> None:
    model, out, _ = exported
    graph = onnx.load(out)
    about = {prop.key: prop.value for prop in graph.metadata_props}
    assert about["fingerprint"] == model.fingerprint()
    assert json.loads(about["preprocess"])["size"] == 48
    assert {entry.domain: entry.version for entry in graph.opset_import}[""] == onnx_runtime.OPSET
    (inputs,) = graph.graph.input
    dims = inputs.type.tensor_type.shape.dim
    assert dims[0].dim_param
    assert [dim.dim_value for dim in dims[1:]] == [48, 48, 3]
    assert str(out.parent) not in str(about)  # nothing of the machine it was made on


def test_a_file_that_differs_is_removed(
    exported: tuple[Embedder, Path, exporting.ExportResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = exported
    other = Embedder.from_pretrained("test_efficientnet", weights="random", size=48, pooling="avg")
    other.set_random_head(16)
    monkeypatch.setattr(
        onnx_runtime, "write_onnx", lambda model, layer, file, metadata: file.write_bytes(out.read_bytes())
    )
    with pytest.raises(LookalikeError, match="differs from torch"):
        export(model=other, out=tmp_path / "m.onnx")
    assert not list(tmp_path.glob("*.onnx"))


def test_the_suffix_is_checked_first(model: Embedder, tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match=r"\.onnx"):
        export(model=model, out=tmp_path / "m.pb")
