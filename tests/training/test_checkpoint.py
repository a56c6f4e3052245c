"""Checkpoints: round trip, and one sentence for each way to be broken."""

from __future__ import annotations

import time

import pytest
import torch

from lookalike.core.errors import LookalikeError
from lookalike.training import checkpoint


def test_round_trip(tmp_path):
    document = {"step": 3, "model": {"a": torch.arange(4.0)}, "nested": [{"b": torch.ones(2, dtype=torch.int64)}, None]}
    checkpoint.write(tmp_path / "x.pt", document)
    actual = checkpoint.read(tmp_path / "x.pt")
    assert actual["step"] == 3 and actual["kind"] == "checkpoint"
    assert torch.equal(actual["model"]["a"], document["model"]["a"])


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.95, 0.999])
def test_a_truncated_file_gives_a_one_line_error(tmp_path, share):
    path = tmp_path / "x.pt"
    checkpoint.write(path, {"model": {"a": torch.randn(500)}})
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(LookalikeError, match="is damaged"):
        checkpoint.read(path)


def test_no_flipped_bit_is_read_as_something_else(tmp_path):
    path = tmp_path / "x.pt"
    document = {"step": 3, "model": {"a": torch.randn(500), "b": torch.randn(40, 30)}, "random": [1.5, "x"]}
    checkpoint.write(path, document)
    data, refused = path.read_bytes(), 0
    for place in range(0, len(data), 61):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        try:
            actual = checkpoint.read(path)
        except LookalikeError as error:
            assert "is damaged" in str(error)
            refused += 1
        else:  # between the records
            assert actual["step"] == 3 and actual["random"] == [1.5, "x"]
            assert all(torch.equal(actual["model"][name], value) for name, value in document["model"].items())
    assert refused > 0.8 * len(data) / 61


def test_code_is_never_run(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("code was run",))

    torch.save({"format": 1, "x": Trap()}, tmp_path / "x.pt")
    with pytest.raises(LookalikeError, match="is damaged"):
        checkpoint.read(tmp_path / "x.pt")


def test_a_newer_one_and_a_missing_one(tmp_path):
    torch.save({"format": 99, "kind": "checkpoint"}, tmp_path / "x.pt")
    with pytest.raises(LookalikeError, match="update lookalike"):
        checkpoint.read(tmp_path / "x.pt")
    with pytest.raises(LookalikeError, match="no checkpoint"):
        checkpoint.read(tmp_path / "y.pt")


def test_only_what_moves_is_stored():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2))
    model[0].bias.requires_grad_(False)
    model[2].eval()
    actual = checkpoint.trainable_state(model)
    assert set(actual) == {
        "0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
        "2.weight", "2.bias",
    }  # fmt: skip
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(1)
    checkpoint.load_trainable_state(model, actual)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(LookalikeError, match="does not fit"):
        checkpoint.load_trainable_state(model, {"9.weight": before})


def test_checking_costs_less_than_reading(tmp_path):
    """What was read to be checked is mapped, not read again, also beside a read into memory that is already there."""
    path = tmp_path / "last.pt"
    checkpoint.write(path, {"model": {f"w{i}": torch.zeros(256, 4096) for i in range(16)}})

    def seconds(work):
        times = []
        for _ in range(5):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        return min(times)

    assert seconds(lambda: checkpoint.read(path)) < 1.5 * seconds(lambda: torch.load(path, weights_only=True))
