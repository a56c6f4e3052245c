"""sentence-transformers loads a model folder: with its own modules, or with lookalike's if it is allowed to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests import helpers
from tests.models.families import FAMILIES

from lookalike.models import Embedder
from lookalike.models.heads import BlockLinear, make_norm

pytestmark = [pytest.mark.needs("sentence_transformers"), pytest.mark.needs("transformers")]

# Without lookalike; torchvision cannot be imported beside a CPU build of torch unless two operators are declared.
SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np, torch
from PIL import Image

library = torch.library.Library("torchvision", "FRAGMENT")
try:
    import torchvision
except RuntimeError:
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
from sentence_transformers import SentenceTransformer

place = Path(sys.argv[1])
images = [Image.open(path) for path in sorted(place.glob("*.png"))]
for name in json.loads(sys.argv[2]):
    model = SentenceTransformer(str(place / name), device="cpu")
    rows = model.encode(images)
    assert model.get_embedding_dimension() == rows.shape[1], name
    np.save(place / f"{name}.npy", rows)
assert "lookalike" not in sys.modules
try:
    SentenceTransformer(str(place / "theirs"))
except ValueError as error:
    assert "trust_remote_code=True" in str(error)
else:
    raise AssertionError("loaded without being allowed to")
model = SentenceTransformer(str(place / "theirs"), trust_remote_code=True, device="cpu")
np.save(place / "theirs.npy", model.encode(images))
assert model.get_embedding_dimension() == 16
model.save_pretrained(str(place / "again"))
"""


def _family(name: str) -> Callable[[Path], Embedder]:
    def build(place: Path) -> Embedder:
        FAMILIES[name].build(place / f"{name}.source")
        return Embedder.from_pretrained(place / f"{name}.source")

    return build


def _timm(name: str, **options: object) -> Callable[[Path], Embedder]:
    return lambda _: Embedder.from_pretrained(name, weights="random", **options)  # type: ignore[arg-type]


NATIVE: dict[str, Callable[[Path], Embedder]] = {
    **{name: _family(name) for name in FAMILIES if FAMILIES[name].source == "transformers" and name != "metaclip2"},
    "convolutions": _timm("test_resnet", size=48),
    "other_size": _timm("test_vit2", size=96),
    "default_without_gem": _timm("efficientnet_lite0", pooling="own", size=64),
}


SHORT = ("dinov3", "clip", "swin", "convnext", "default_without_gem")


@pytest.mark.parametrize("names", [SHORT, pytest.param(tuple(NATIVE), marks=pytest.mark.slow)], ids=["short", "all"])
def test_its_own_modules_give_the_same_vectors(names: tuple[str, ...], tmp_path: Path) -> None:
    images = [helpers.make_image(n, width=w, height=h) for n, (w, h) in enumerate([(90, 70), (64, 64), (97, 211)])]
    for number, pixels in enumerate(images):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    models = {name: NATIVE[name](tmp_path) for name in names}
    for number, model in enumerate(models.values()):  # with and without a head, and a norm layer of each kind
        if number % 4:
            model.set_random_head(16)
            model.norm = make_norm(["", "none", "bn", "ln"][number % 4], 16).eval()
            for value in model.norm.state_dict().values():
                if value.is_floating_point():
                    torch.nn.init.uniform_(value, 0.5, 1.5)
    models["theirs"] = Embedder.from_pretrained("efficientnet_lite0", size=64)  # with GeM
    models["theirs"].set_random_head(16)
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
    run = [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(names)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, model in models.items():
        rows = np.load(tmp_path / f"{name}.npy")
        assert np.abs(rows - model.encode(images)).max() < 1e-4, name
    again = Embedder.from_pretrained(tmp_path / "again")
    assert again.fingerprint() == models["theirs"].fingerprint()


def test_what_it_has_no_module_for_names_the_class_of_lookalike(tmp_path: Path) -> None:
    own = Embedder.from_pretrained("resnet10_small", weights="random")
    blocks = Embedder.from_pretrained("resnet18", weights="random", size=64)
    blocks.set_random_head(16)
    blocks.head = BlockLinear.from_linear(blocks.head, 4)
    for number, model in enumerate((own, blocks)):
        model.save_pretrained(tmp_path / str(number))
        [module] = json.loads((tmp_path / str(number) / "modules.json").read_text())
        assert module["type"] == "lookalike.integrations.sentence_transformers.LookalikeModule"
