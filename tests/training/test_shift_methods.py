"""The methods of the shift curve in the loop: cached and end to end, resumed to the bit, cut into micro-batches."""

from __future__ import annotations

import pytest
import torch
from tests.training.conftest import SMALL
from tests.training.test_train_command import same

from lookalike.core.settings import merge
from lookalike.data import read_table
from lookalike.models import Embedder
from lookalike.models.heads import BlockLinear
from lookalike.training import checkpoint, train
from lookalike.training.loop import Loop

METHODS = {
    "margin": {},
    "r_margin": {},
    "arcface": {},
    "uniform_prior": {"chunk_dim": 8, "hidden_dim": 6, "update_every": 2},
    "diva": {"queue_size": 30, "hidden_dim": 6},
    "s2sd": {"target_dims": [20, 24]},
}
MODES = {
    "cached": {"views": {"mode": "cached", "num_cached": 2}},
    "end_to_end": {"views": {"mode": "end_to_end"}, "model": {"freeze": "stage1"}},
}


def run(folder, tiny, out, method, mode="cached", **more):
    own = {"method": {"name": method, **METHODS[method]}}
    settings = merge(
        merge(merge(SMALL, MODES[mode]), own), {"steps": 6, "evaluate_every": 3, "keep": "trained", **more}
    )
    return train(data=folder, model=tiny, out=out, settings=settings, report=False)


class Struck(Exception):
    pass


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", ["cached", pytest.param("end_to_end", marks=pytest.mark.slow)])
def test_a_broken_run_ends_with_the_same_bits(method, mode, folder, tiny, tmp_path, monkeypatch):
    whole = run(folder, tiny, tmp_path / "whole", method, mode)
    own = Loop.take_step

    def strike(self, step):
        if step == 5:
            raise Struck
        return own(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "take_step", strike)
        with pytest.raises(Struck):
            run(folder, tiny, tmp_path / "broken", method, mode)
    broken = train(resume=tmp_path / "broken", report=False)
    for name in ("last.pt", "best.pt"):
        assert same(checkpoint.read(broken.checkpoints / name), checkpoint.read(whole.checkpoints / name)), name
    assert (broken.model / "model.safetensors").read_bytes() == (whole.model / "model.safetensors").read_bytes()
    moved = checkpoint.read(whole.checkpoints / "last.pt")["method"]
    start = checkpoint.read(whole.checkpoints / "start.pt")["head"]["weight"]
    assert not torch.equal(checkpoint.read(whole.checkpoints / "last.pt")["model"]["head.weight"], start)
    if method == "uniform_prior":
        assert moved["updates"] == 3 and moved["scale"] > 0
    if method == "diva":
        assert moved["filled"] == 6 * 12 and moved["queue"].abs().sum() > 0


@pytest.mark.parametrize("method", METHODS)
def test_micro_batches_give_the_joint_gradient(method, folder, tiny, tmp_path):
    whole, cut = (
        run(folder, tiny, tmp_path / str(n), method, "end_to_end", accumulation_steps=n, steps=2, max_grad_norm=None)
        for n in (1, 3)
    )
    states = [checkpoint.read(r.checkpoints / "last.pt")["model"] for r in (whole, cut)]
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=1e-3, atol=2e-4), name


def test_a_model_of_four_heads_stands_for_itself(folder, tiny, tmp_path):
    done = run(folder, tiny, tmp_path / "run", "diva")
    model = Embedder.from_pretrained(done.model)
    assert isinstance(model.head, BlockLinear) and model.head.blocks == 4
    table = read_table(folder)
    vectors = {name: model.encode(table.take(range(40)), runtime=name) for name in ("torch", "openvino")}
    for rows in vectors.values():
        lengths = (rows.reshape(40, 4, 4) ** 2).sum(2)
        assert lengths == pytest.approx(0.25, abs=1e-4)  # equal weights of the four
    assert abs(vectors["torch"] - vectors["openvino"]).max() < 1e-3
    again = Embedder.from_pretrained(done.model)
    assert again.fingerprint() == model.fingerprint()
    plain = torch.nn.Linear(model.head.in_features, 16)
    plain.load_state_dict(model.head.state_dict())
    again.head = plain
    assert again.fingerprint() != model.fingerprint()
