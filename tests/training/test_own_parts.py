"""Objects in a run: losses, miners, samplers, transforms and callbacks of other libraries and of the user."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import SMALL

from lookalike import Embedder, read_table
from lookalike.core.errors import LookalikeError
from lookalike.core.imports import prepare_torchvision
from lookalike.core.interrupts import Stopped
from lookalike.core.settings import merge
from lookalike.memory import CrossBatchMemory
from lookalike.methods.own_loss import OwnLoss
from lookalike.training import Callback, checkpoint, train
from lookalike.training.own_parts import OwnParts

KEEP = {"keep": "trained"}


def run_with(folder: Any, tiny: Path, out: Path, **options: Any) -> Any:
    settings = merge(SMALL, KEEP, options.pop("settings", {}))
    return train(data=folder, model=tiny, out=out, settings=settings, report=False, **options)


def weights(run: Any) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


class Proxies(torch.nn.Module):
    """A loss of the user's own, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.centers = torch.nn.Parameter(torch.randn(12, 16))

    def forward(self, embeddings: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(embeddings @ self.centers.T, labels)


def test_a_loss_of_pml_equals_the_method_of_the_same_loss(folder: Path, tiny: Path, tmp_path: Path) -> None:
    from pytorch_metric_learning.losses import SupConLoss

    own = run_with(folder, tiny, tmp_path / "own", loss=SupConLoss(temperature=0.1))
    named = run_with(folder, tiny, tmp_path / "named", method="supcon")
    assert weights(own) == weights(named)
    assert own.config["objects"] == {"loss": "pytorch_metric_learning.losses.supcon_loss.SupConLoss"}
    assert "pass the same ones again" in own.result["not_repeated"]


def test_miner_memory_and_own_modules(folder: Path, tiny: Path, tmp_path: Path) -> None:
    from pytorch_metric_learning import losses, miners

    class Watched(miners.MultiSimilarityMiner):
        calls = 0

        def forward(self, *arguments: Any) -> Any:
            Watched.calls += 1
            return super().forward(*arguments)

    class Shrinking(torch.nn.Module):
        """A drift module of the user's own: what is stored is scaled a little."""

        def forward(self, stored: Any, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.full((batch.shape[1],), 0.99), torch.zeros(batch.shape[1])

    run_with(folder, tiny, tmp_path / "a", loss=losses.MultiSimilarityLoss(), miner=Watched())
    run_with(folder, tiny, tmp_path / "b", method="ms", miner=Watched())
    assert Watched.calls == 24
    loss = Proxies()
    before = loss.centers.detach().clone()
    run_with(folder, tiny, tmp_path / "c", loss=loss)
    assert not torch.equal(before, loss.centers.detach().cpu())  # its parameters are trained
    memory = CrossBatchMemory(losses.SupConLoss(0.1), 16, 64, drift=Shrinking(), gather=False)
    run_with(folder, tiny, tmp_path / "d", loss=memory)
    assert memory.count == 64
    with pytest.raises(LookalikeError, match="takes no miner"):
        run_with(folder, tiny, tmp_path / "e", method="xbm", miner=Watched())
    with pytest.raises(LookalikeError, match="both given"):
        run_with(folder, tiny, tmp_path / "f", method="ms", loss=loss)
    with pytest.raises(LookalikeError, match="must be a tensor"):
        run_with(folder, tiny, tmp_path / "g", loss=lambda embeddings, labels: 1.0)
    with pytest.raises(LookalikeError, match="cannot be handed to 2 processes"):
        run_with(folder, tiny, tmp_path / "h", loss=loss, processes=2)


def test_samplers(folder: Path, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pytorch_metric_learning.samplers import MPerClassSampler
    from torch.utils.data import BatchSampler, RandomSampler

    seen: list[int] = []

    def sampler(labels: np.ndarray) -> Any:
        seen.append(len(labels))
        return MPerClassSampler(labels, 3, batch_size=12, length_before_new_iter=48)

    one = run_with(folder, tiny, tmp_path / "a", sampler=sampler)
    two = run_with(folder, tiny, tmp_path / "b", sampler=sampler)
    assert weights(one) == weights(two) and seen[0] > 12
    generator = torch.Generator().manual_seed(3)
    run_with(
        folder,
        tiny,
        tmp_path / "c",
        sampler=lambda labels: BatchSampler(RandomSampler(labels, generator=generator), 10, drop_last=True),
        method="norm_softmax",
    )
    assert "draws from a generator of its own" in capsys.readouterr().err
    with pytest.raises(LookalikeError, match="pass a function of their labels"):
        run_with(folder, tiny, tmp_path / "d", sampler=[0, 1, 10_000, 3])
    with pytest.raises(LookalikeError, match="no batches"):
        run_with(folder, tiny, tmp_path / "e", sampler=[])


def transform() -> Any:
    prepare_torchvision()
    from torchvision.transforms import v2

    steps = [v2.RandomResizedCrop(32, (0.5, 1.0)), v2.RandomHorizontalFlip(), v2.ColorJitter(0.3)]
    return v2.Compose([*steps, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class Interrupt(Callback):
    """Ctrl-C in a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, state: Any) -> None:
        if state.step == self.step:
            signal.raise_signal(signal.SIGINT)


def test_a_run_with_objects_is_resumed_with_the_same_bits(folder: Path, tiny: Path, tmp_path: Path) -> None:
    def objects() -> dict[str, Any]:
        return {"loss": Proxies(), "transform": transform()}

    short = {"settings": {"steps": 6, "evaluate_every": 3}}
    whole = run_with(folder, tiny, tmp_path / "whole", callbacks=[Interrupt(99)], **objects(), **short)
    with pytest.raises(Stopped):
        run_with(folder, tiny, tmp_path / "broken", callbacks=[Interrupt(4)], **objects(), **short)
    with pytest.raises(LookalikeError, match=r"resume it from Python with the same ones, as train\(resume=…, loss=…"):
        train(resume=tmp_path / "broken", report=False)
    with pytest.raises(LookalikeError, match=r"another `objects\.loss`"):
        again = {**objects(), "loss": torch.nn.Linear(1, 1)}
        train(resume=tmp_path / "broken", report=False, callbacks=[Interrupt(99)], **again)
    broken = train(resume=tmp_path / "broken", report=False, callbacks=[Interrupt(99)], **objects())
    assert weights(broken) == weights(whole) and broken.result["steps"] == 6
    state = checkpoint.read(broken.checkpoints / checkpoint.LAST)["method"]
    assert any("centers" in name for name in state)


def test_transforms_that_do_not_fit(folder: Path, tiny: Path, tmp_path: Path) -> None:
    class Compose:
        __module__ = "albumentations.core"

    class Named(Compose):
        """As albumentations has it: the image by name, a seed of its own."""

        seeds: tuple[int, ...] = ()

        def set_random_seed(self, seed: int) -> None:
            self.seeds = (*self.seeds, seed)

        def __call__(self, *images: object, **data: np.ndarray) -> dict[str, np.ndarray]:
            assert not images
            return {"image": data["image"][:32, :32]}

    named, short = Named(), {"steps": 1, "evaluate_every": 1}
    run_with(folder, tiny, tmp_path / "a", transform=named, settings=short)
    assert len(set(named.seeds)) == 12
    for number, (own, message) in enumerate(
        [
            (lambda image: image.resize((20, 20)), "end it with a resize"),
            (lambda *, image: {"image": image[:20, :20]}, r"images of shape \(20, 20, 3\)"),
            (lambda image: None, "returns a NoneType"),
            (lambda image: torch.randn(3, 32, 32) * 3, "the model does it itself"),
        ]
    ):
        with pytest.raises(LookalikeError, match=message):
            run_with(folder, tiny, tmp_path / f"b{number}", transform=own, settings=short)
    with pytest.raises(LookalikeError, match=r"`views.mode` is cached"):
        run_with(folder, tiny, tmp_path / "c", transform=named, settings={"views": {"mode": "cached"}})


def test_callbacks_see_the_run_and_stop_it(folder: Path, tiny: Path, tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Note(Callback):
        def on_step(self, state: Any) -> None:
            assert np.isfinite(state.loss) and state.model.dim == 16
            calls.append(("step", state.step))
            state.stop = state.step == 6

        def on_evaluate(self, state: Any) -> None:
            assert 0 <= state.score <= 1
            calls.append(("evaluate", state.step))

        def on_checkpoint(self, state: Any) -> None:
            assert (state.run.checkpoints / checkpoint.LAST).exists()
            calls.append(("checkpoint", state.step))

    class Last:  # any object with a hook will do
        def on_end(self, state: Any) -> None:
            calls.append(("end", state.step))

    run = run_with(folder, tiny, tmp_path / "run", method="supcon", callbacks=[Note(), Last()])
    assert [step for what, step in calls if what == "step"] == [1, 2, 3, 4, 5, 6]
    assert [step for what, step in calls if what == "evaluate"] == [0, 4, 6]
    assert [step for what, step in calls if what == "checkpoint"] == [0, 4, 6]
    assert calls[-1] == ("end", 6) and run.result["stopped_early"]


def test_images_in_memory_are_trained_on_and_resumed(folder: Path, tiny: Path, tmp_path: Path) -> None:
    table = read_table(folder)
    files = [table.file(row) for row in range(len(table))]
    data = {"image": [file.read_bytes() for file in files if file], "label": table.column("label").tolist()}
    with pytest.raises(Stopped):
        run_with(data, tiny, tmp_path / "run", method="supcon", callbacks=[Interrupt(5)])
    with pytest.raises(LookalikeError, match="were in memory: pass them again"):
        train(resume=tmp_path / "run", callbacks=[Interrupt(99)], report=False)
    run = train(resume=tmp_path / "run", data=data, callbacks=[Interrupt(99)], report=False)
    assert run.result["steps"] == 12
    # The same vectors as from files, whose rows come in another order only by their paths.
    assert (
        run.result["images"]["train"]
        == run_with(folder, tiny, tmp_path / "f", method="supcon").result["images"]["train"]
    )


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"loss": "triplet"}, "`loss` is 'triplet', which cannot be called"),
        ({"loss": torch.nn.MSELoss}, r"`loss` is the class MSELoss: pass an object, as MSELoss\(…\)"),
        ({"miner": 3}, "`miner` is 3, which cannot be called"),
        ({"callbacks": [print]}, "no object with one of the hooks on_step, on_evaluate, on_checkpoint, on_end"),
        ({"callbacks": Callback}, "no object with one of the hooks"),
    ],
)
def test_objects_that_cannot_be_used_are_refused_before_the_run(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        OwnParts(**parts)


def test_one_callback_needs_no_list() -> None:
    callback = Callback()
    assert OwnParts(callbacks=callback).callbacks == (callback,)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda z, labels: z.mean(1), r"returns a tensor of shape \(4,\); it must be a tensor with one number"),
        (lambda z, labels: 1.0, "returns a float"),
        (lambda z, labels: torch.tensor(1.0), "does not depend on the embeddings"),
    ],
)
def test_what_a_loss_may_return(loss: Any, message: str) -> None:
    method = OwnLoss.__new__(OwnLoss)
    torch.nn.Module.__init__(method)
    method.criterion, method.miner, method.takes_ids = loss, None, False
    batch: Any = type("Batch", (), {"labels": torch.arange(4), "ids": None})
    with pytest.raises(LookalikeError, match=message):
        method.loss({"z": torch.zeros(4, 2, requires_grad=True)}, batch)


def test_a_bare_network_is_refused_as_a_model(folder: Path) -> None:
    for use in (Embedder.from_pretrained, lambda model: train(data=folder, model=model)):
        with pytest.raises(LookalikeError, match=r"A Linear is no name .* Embedder\(module, preprocess, factory="):
            use(torch.nn.Linear(3, 4))
