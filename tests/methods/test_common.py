"""What every method must do, whoever wrote it; and how methods are found."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from lookalike import methods
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.methods import Batch, Context, LearningRates, Method

WIDTH, DIM, CLASSES = 6, 8, 3


class Net(nn.Module):
    """What a method knows of an Embedder."""

    dim, feature_dim = DIM, WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head, self.norm = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, DIM), nn.Identity()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=torch_rng(0, parameter.shape)))

    def pooled_from(self, layer, x):
        return torch.relu(self.backbone(x))

    def from_layer(self, layer, x):
        return nn.functional.normalize(self.head(self.pooled_from(layer, x)), dim=1)

    def forward(self, x):
        return self.from_layer("", x)


def context(seed: int = 0) -> Context:
    model = Net()
    labels = torch.arange(12) % CLASSES
    images = torch.randn(12, WIDTH, generator=torch_rng(2, "pictures"))
    return Context(
        model=model,
        classes=CLASSES,
        seed=seed,
        device=torch.device("cpu"),
        steps=10,
        batch=12,
        table=None,
        labels=labels,
        encode=lambda rows: model(images if rows is None else images[rows]).detach(),
        encode_backward=lambda rows, gradient: model(images[rows]).backward(gradient),
        step=1,
    )


def batch() -> Batch:
    x = torch.randn(12, WIDTH, generator=torch_rng(1, "x"))
    return Batch((x, x.flip(1)), "pooled", torch.arange(12) % CLASSES, torch.arange(12))


def make(name: str, seed: int = 0) -> Method:
    kind = methods.find(name)
    return kind(kind.Settings.parse({}), context(seed))


def step(method: Method) -> torch.Tensor:
    actual = method.embed(batch())
    assert all(len(rows) == 12 for rows in actual.values())
    rows = batch()
    return method.loss(actual, Batch((), rows.layer, rows.labels, rows.ids))


NAMES = methods.names()


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_is_a_scalar_whose_gradient_reaches_everything(name):
    method = make(name)
    loss = step(method)
    assert loss.ndim == 0 and torch.isfinite(loss)
    loss.backward()
    model = method.context.model
    trained = model if method.command == "train" else model.backbone  # what is pretrained has no head
    for parameter in [*trained.parameters(), *method.parameters()]:
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_all_that_is_trained_is_in_one_group(name):
    method = make(name)
    groups = method.param_groups(LearningRates(0.1, 0.2, 0.3))
    listed = [id(p) for group in groups for p in group["params"]]
    expected = [id(p) for p in [*method.context.model.parameters(), *method.parameters()]]
    assert sorted(listed) == sorted(expected)
    if method.command == "train":
        assert {group["name"]: group["lr"] for group in groups} == {"backbone": 0.1, "head": 0.2, "loss": 0.3}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_its_seed_its_settings_and_its_state(name):
    first, again = make(name), make(name)
    assert step(first).item() == step(again).item()
    other = make(name, seed=1)
    other.load_state_dict(first.state_dict())
    assert step(other).item() == step(first).item()


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_batch_does_not_matter(name):
    method, other = make(name), make(name)  # two: a memory would know the batch already
    actual, rows = method.embed(batch()), batch()
    order = torch.randperm(12, generator=torch_rng(2, "order"))
    shuffled = {key: value[order] for key, value in actual.items()}
    there = method.loss(actual, Batch((), "pooled", rows.labels, rows.ids)).item()
    here = other.loss(shuffled, Batch((), "pooled", rows.labels[order], rows.ids[order])).item()
    assert here == pytest.approx(there, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_says_what_it_is_and_what_its_settings_mean(name):
    kind = methods.find(name)
    assert kind.name == name
    assert all(info.description for info in kind.Settings.model_fields.values())


def test_our_methods_are_entry_points():
    assert {"supcon", "ms", "contrastive", "triplet", "proxy_anchor", "norm_softmax"} <= set(NAMES)


def test_a_package_can_bring_a_method(tmp_path, monkeypatch):
    """A plug-in as pip would install it: a module, and metadata that names it."""
    (tmp_path / "plug_in_for_tests.py").write_text(
        "from lookalike.methods import Method\n\n\nclass Plugged(Method):\n    name = 'plugged'\n"
    )
    info = tmp_path / "plug_in_for_tests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in-for-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[lookalike.methods]\nplugged = plug_in_for_tests:Plugged\nbroken = plug_in_for_tests:Missing\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"plugged", "broken", "ms"} <= set(methods.names())
    assert methods.find("plugged").name == "plugged"
    with pytest.raises(LookalikeError, match=r"`broken` .* cannot be loaded"):
        methods.find("broken")
    with pytest.raises(LookalikeError, match="did you mean `plugged`"):
        methods.find("pluged")
    sys.modules.pop("plug_in_for_tests")


def test_a_misspelt_method_is_answered_with_the_nearest():
    with pytest.raises(LookalikeError, match="`proxy-anchor` is not a training method; did you mean `proxy_anchor`"):
        methods.find("proxy-anchor")


def test_random_numbers_of_a_context_depend_on_seed_step_and_name_only():
    first = context()
    drawn = torch.rand(3, generator=first.generator("noise"))
    assert torch.equal(drawn, torch.rand(3, generator=context().generator("noise")))
    first.step = 2
    assert not torch.equal(drawn, torch.rand(3, generator=first.generator("noise")))
    assert not torch.equal(drawn, torch.rand(3, generator=context(1).generator("noise")))
    assert not torch.equal(drawn, torch.rand(3, generator=context().generator("other")))
