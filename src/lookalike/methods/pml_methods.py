"""Supervised methods that apply one loss of pytorch-metric-learning to one view of each image.

The formulas are in :mod:`lookalike.losses.pml`; the settings of a method are the arguments of its loss.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, ClassVar, Literal, get_type_hints

import pydantic
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.core.settings import Settings
from lookalike.losses import pml
from lookalike.methods.base import Batch, Context, Method

FROM_CONTEXT = ("self", "num_classes", "embedding_dim", "generator")  # arguments that are not settings


def settings_of(loss: type[nn.Module], **further: Any) -> Any:
    """Return a settings class with the arguments of a loss: names, types, defaults, and texts of its `Args:`."""
    texts = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", loss.__doc__ or "", re.M))
    types, parameters = get_type_hints(loss.__init__), inspect.signature(loss.__init__).parameters
    fields: Any = {
        name: (types[name], pydantic.Field(p.default, description=re.sub(r"\s+", " ", texts[name])))
        for name, p in parameters.items()
        if name not in FROM_CONTEXT
    }
    doc = f"Settings of {loss.__name__}."
    return pydantic.create_model(f"{loss.__name__}Settings", __base__=Settings, __doc__=doc, **fields, **further)


class LossMethod(Method):
    """Base of methods that are one loss on one view; a subclass has `name` and `loss_class`, which gives the settings.

    Args:
        settings: An instance of the class's `Settings`: the arguments of the loss.
        context: What the training loop provides.

    Example:
        >>> class Warm(LossMethod):
        ...     name, loss_class = "warm", la.losses.SupConLoss
        >>> Warm.Settings().temperature
        0.1
    """

    loss_class: ClassVar[type[nn.Module]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "Settings" not in vars(cls):
            cls.Settings = settings_of(cls.loss_class)

    def __init__(self, settings: Any, context: Context) -> None:
        super().__init__(settings, context)
        self.criterion = self.make_loss()

    def make_loss(self) -> nn.Module:
        """Create the loss; one with a vector per class draws them from a random stream of its own."""
        c, options = self.context, self.settings.model_dump()
        if "num_classes" in inspect.signature(self.loss_class.__init__).parameters:
            return self.loss_class(c.classes, c.dim, **options, generator=torch_rng(c.seed, "proxies"))
        return self.loss_class(**options)

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        return self.criterion(embeddings["z"], batch.labels)


class MultiSimilarity(LossMethod):
    """Multi-Similarity loss; the most robust choice for a head on fixed features.

    References:
        See :class:`~lookalike.losses.pml.MultiSimilarityLoss`.

    Example:
        >>> la.train(data="photos", method="ms", steps=1, out="run", report=False)  # doctest: +SKIP
    """

    name = "ms"
    average = (
        Literal["all", "active"],
        pydantic.Field("all", description="Average over all anchors, or over those with a mined pair of the kind."),
    )
    Settings = settings_of(pml.MultiSimilarityLoss, average=average)
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}

    def make_loss(self) -> nn.Module:
        s = self.settings
        if s.average == "active" and s.epsilon is None:
            raise LookalikeError(
                "`method.average` is active, which needs the miner: set `method.epsilon`, for example to 0.1."
            )
        kind = pml.ActiveMultiSimilarityLoss if s.average == "active" else pml.MultiSimilarityLoss
        return kind(s.alpha, s.beta, s.base, s.epsilon)


def loss_method(name: str, loss: type[nn.Module], about: str, **learning_rates: float) -> type[LossMethod]:
    """Create a method that is one loss, whose arguments are the settings; `learning_rates` suit it."""
    example = f'>>> la.train(data="photos", method="{name}", steps=1, out="run", report=False)  # doctest: +SKIP'
    members = {"name": name, "loss_class": loss, "default_overrides": {"optimizer": learning_rates}}
    paper = f"See :class:`~{loss.__module__}.{loss.__name__}`."
    doc = f"{about}\n\n    References:\n        {paper}\n\n    Example:\n        {example}\n    "
    members |= {"__doc__": doc, "__module__": __name__}
    return type(loss.__name__.removesuffix("Loss"), (LossMethod,), members)


SupCon = loss_method(
    "supcon",
    pml.SupConLoss,
    "Supervised contrastive loss; good when the backbone is trained, overfits early on fixed features.",
    lr=3e-4,
)
Contrastive = loss_method(
    "contrastive", pml.ContrastiveLoss, "Contrastive loss on cosine similarity, with or without a miner.", lr=3e-4
)
Triplet = loss_method("triplet", pml.TripletLoss, "Triplet margin loss with triplets mined in the batch.", lr=1e-4)
ProxyAnchor = loss_method(
    "proxy_anchor",
    pml.ProxyAnchorLoss,
    "Proxy-Anchor loss: the batch is compared with one learned proxy per class, which is dropped after training.",
    lr=1e-3,
)
NormSoftmax = loss_method("norm_softmax", pml.NormSoftmaxLoss, "Normalized softmax: classification by cosine.", lr=1e-3)
ArcFace = loss_method(
    "arcface", pml.ArcFaceLoss, "ArcFace: classification by angle with an additive margin.", lr=3e-4, loss_lr=5e-4
)
