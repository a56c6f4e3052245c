"""`Embedder`: images to unit vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.device import resolve
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.data.decoding import Preprocess
from lookalike.models import backbones, layers
from lookalike.models.fingerprint import Snapshot, raw_bytes
from lookalike.models.heads import BlockLinear
from lookalike.models.inference.inputs import Failure
from lookalike.models.norms import name_of
from lookalike.models.pooling import Pooling, unit
from lookalike.models.prototypes import Prototypes

if TYPE_CHECKING:
    from lookalike.data import Table

    Images = str | Path | bytes | np.ndarray | Table | Any


class Embedder(nn.Module):
    """Backbone, pooling and head: `encode` turns images into float32 rows of length one.

    Pooled features are brought to length one before the head, so a head that was made from cached
    features and one trained end to end see the same input.
    """

    head: nn.Linear | nn.Identity
    norm: nn.Module
    classifier: nn.Linear | None
    mean: Tensor
    std: Tensor
    prototypes: Prototypes | None

    def __init__(
        self,
        backbone: Any,
        preprocess: Preprocess,
        *,
        name: str,
        architecture: str,
        pooling: str = "own",
        card: dict[str, Any] | None = None,
        parent: str | None = None,
    ) -> None:
        super().__init__()
        if pooling != "own":
            backbones.remove_pooling(backbone, pooling)
        self.backbone = backbone
        self.pooling = Pooling(
            pooling,
            prefix=int(getattr(backbone, "num_prefix_tokens", 0)),
            channels_last=getattr(backbone, "output_fmt", "NCHW") == "NHWC",
        )
        self.head = nn.Identity()
        self.norm = nn.Identity()
        self.classifier = None
        self.preprocess, self.name, self.architecture = preprocess, name, architecture
        self.card, self.parent = dict(card or {}), parent
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocess.std).view(1, 3, 1, 1), persistent=False)
        self.prototypes = None
        self._fingerprints: dict[str, tuple[Snapshot, str]] = {}
        with torch.inference_mode():
            was = backbone.training
            probe = torch.zeros(1, 3, preprocess.size, preprocess.size)
            self.feature_dim = int(self.pooling(backbone.eval()(probe)).shape[1])
            backbone.train(was)

    # --- from and to disk ---

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        pooling: str | None = None,
        size: int | None = None,
        weights: str | Path | None = None,
    ) -> Embedder:
        """A model folder, a run folder, `efficientnet_lite0`, `efficientnet_lite2`, or any timm name.

        `pooling` and `size` change what the model comes with; `weights` is a local file for a timm name,
        or `random` to ask for an untrained one.
        """
        from lookalike.models import folder

        target = resolve(device)
        found = folder.find(name_or_path)
        if found is None:
            model = cls.from_name(str(name_or_path), pooling=pooling, size=size, weights=weights)
        elif weights is not None:
            raise LookalikeError(f"`{found}` is a model folder with weights of its own; leave `weights` out.")
        else:
            model = folder.load(cls, found, pooling=pooling, size=size)
        return model.to(target).eval()

    @classmethod
    def from_name(
        cls, name: str, *, pooling: str | None = None, size: int | None = None, weights: str | Path | None = None
    ) -> Embedder:
        built = backbones.build(name, weights=weights, size=size)
        # GeM is never far from the best for the Lite models, and 2 points above the average at 224 px.
        default = "gem" if built.architecture in {b.architecture for b in backbones.BUILTIN.values()} else "own"
        card = {"backbone": built.source, "license": built.license}
        return cls(
            built.backbone,
            built.preprocess,
            name=name,
            architecture=built.architecture,
            pooling=pooling or default,
            card=card,
        )

    def save_pretrained(self, path: str | Path, *, card: dict[str, Any] | None = None) -> None:
        """Write the model folder: `config.json`, `model.safetensors`, and the card as `README.md`."""
        from lookalike.models import folder

        folder.save(self, Path(path), card)

    # --- what it is ---

    @property
    def dim(self) -> int:
        return self.head.out_features if isinstance(self.head, nn.Linear) else self.feature_dim

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def layers(self) -> list[str]:
        """The layers that `features` can give and `from_layer` can go on from."""
        return [*layers.stage_names(self.backbone), *layers.ENDS]

    def lower(self, layer: str) -> nn.Module:
        """The backbone up to a stage (shares its weights)."""
        return layers.lower(self.backbone, layer)

    def upper(self, layer: str) -> nn.Module:
        """The backbone after a stage (shares its weights)."""
        return layers.upper(self.backbone, layer)

    def snapshot(self, layer: str = "embedding") -> tuple[Snapshot, list[Tensor]]:
        """What decides what the model computes up to `layer`: weights, architecture, pooling, preprocessing."""
        layers.check_layer(self.backbone, layer)
        parts: list[nn.Module] = [self.backbone if layer in layers.ENDS else self.lower(layer)]
        if layer == "embedding":
            parts += [self.head, self.norm]
        tensors = [value for part in parts for value in part.state_dict(keep_vars=True).values()]
        words = f"{self.architecture} {self.pooling.name if layer in layers.ENDS else layer} {self.preprocess}"
        if layer == "embedding" and isinstance(self.head, BlockLinear):
            words += f" {self.head.blocks} blocks"
        if layer == "embedding" and name_of(self.norm) != "none":
            words += f" {name_of(self.norm)}"
        return Snapshot(words, tensors), tensors

    def fingerprint(self, layer: str = "embedding") -> str:
        """A name for what the model computes up to `layer`.

        Hashing is repeated only when a tensor was written to or exchanged since the last call.
        """
        state, tensors = self.snapshot(layer)
        known = self._fingerprints.get(layer)
        if known is None or not known[0].same(state):
            known = self._fingerprints[layer] = (state, hash_bytes(state.words, *map(raw_bytes, tensors)))
        return known[1]

    def _repr_html_(self) -> str:
        rows = {
            "backbone": self.architecture,
            "pooling": self.pooling.name,
            "vector": f"{self.dim} numbers",
            "images": f"{self.preprocess.size} px",
            "fingerprint": self.fingerprint(),
        }
        cells = "".join(
            f"<tr><th style='text-align:left'>{key}</th><td>{value}</td></tr>" for key, value in rows.items()
        )
        return f"<table><caption>Embedder {_escape(self.name)}</caption>{cells}</table>"

    # --- computing ---

    def normalize(self, images: Tensor) -> Tensor:
        """uint8 N×S×S×3 pixels to what the backbone expects; float tensors N×3×S×S pass as they are."""
        if images.dtype != torch.uint8:
            return images
        return (images.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean) / self.std

    def pooled(self, images: Tensor) -> Tensor:
        return self.pooling(self.backbone(self.normalize(images)))

    def stage(self, layer: str, images: Tensor) -> Tensor:
        lower: Any = self.lower(layer)
        return lower.forward_features(self.normalize(images))

    def from_features(self, features: Tensor) -> Tensor:
        features = unit(features)
        rows = features if isinstance(self.head, nn.Identity) else unit(self.head(features))
        # In training the norm layer needs the joint batch: the loop applies it (Method.joint_loss).
        return rows if self.training else self.normed(rows)

    def normed(self, rows: Tensor) -> Tensor:
        """Unit rows behind the norm layer, where there is one."""
        return rows if isinstance(self.norm, nn.Identity) else unit(self.norm(rows))

    def from_layer(self, layer: str, x: Tensor) -> Tensor:
        """Unit embeddings from what `features(layer=...)` gave."""
        return x if layer == "embedding" else self.from_features(self.pooled_from(layer, x))

    def pooled_from(self, layer: str, x: Tensor) -> Tensor:
        """Pooled features from what `features(layer=...)` gave."""
        return x if layer == "pooled" else self.pooling(self.upper(layer)(x.to(self.mean.dtype)))

    def at_layer(self, layer: str, images: Tensor) -> Tensor:
        """What the network holds at `layer` for these images."""
        if layer == "embedding":
            return self(images)
        return self.pooled(images) if layer == "pooled" else self.stage(layer, images)

    def forward(self, images: Tensor) -> Tensor:
        return self.from_features(self.pooled(images))

    # --- heads ---

    def set_pca_head(self, features: np.ndarray, dim: int) -> None:
        """The head as the top-`dim` eigenvectors of XᵀX of the unit features: not centered, not whitened, bias 0."""
        rows = torch.from_numpy(np.array(features, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != self.feature_dim:
            raise LookalikeError(
                f"Features of shape {tuple(rows.shape)} do not fit: {self.feature_dim} columns are wanted."
            )
        self._check_dim(dim)
        if not torch.isfinite(rows).all():
            raise LookalikeError("The features hold values that are not finite; no head can be made from them.")
        rows = unit(rows)
        _, vectors = torch.linalg.eigh(rows.T @ rows)
        basis = vectors.flip(1)[:, :dim]
        # The sign of an eigenvector is free; fix it, so that the same features give the same head.
        peak = basis.gather(0, basis.abs().argmax(0, keepdim=True))
        self._set_head((basis * peak.sign()).T)

    def set_random_head(self, dim: int, seed: int = 0) -> None:
        """Start the head as `nn.Linear` does by default: what the papers' recipes ask for."""
        self._check_dim(dim)
        bound = self.feature_dim**-0.5
        generator = seeds.torch_rng(seed, "head")
        weight = (torch.rand(dim, self.feature_dim, generator=generator) * 2 - 1) * bound
        self._set_head(weight, (torch.rand(dim, generator=generator) * 2 - 1) * bound)

    def _check_dim(self, dim: int) -> None:
        if not 1 <= dim <= self.feature_dim:
            raise LookalikeError(f"A head of {dim} dimensions cannot be made from {self.feature_dim} features.")

    def _set_head(self, weight: Tensor, bias: Tensor | None = None) -> None:
        head = nn.Linear(weight.shape[1], weight.shape[0], device=self.device)
        with torch.no_grad():
            head.weight.copy_(weight)
            head.bias.zero_() if bias is None else head.bias.copy_(bias)
        self.head = head

    # --- images ---

    def encode(
        self,
        images: Images,
        *,
        batch_size: int = 32,
        runtime: str = "auto",
        precision: str = "f32",
        on_error: str = "raise",
        progress: bool = False,
    ) -> Any:
        """float32 rows of length one, in the order of the images; one image alone gives one vector.

        Images are paths, bytes, PIL images, arrays, a `Table` or a generator of them. With
        `on_error="skip"` the answer is `(rows, failures)`, the rows of unreadable images left out.
        `precision="bf16"` is about twice as fast where the processor supports it, and moves scores by
        up to 0.005: do not mix its vectors with f32 ones.
        """
        return self._encode(images, "embedding", batch_size, runtime, precision, on_error, progress, view=None, seed=0)

    def square(self, image: Any) -> np.ndarray:
        """What the model is fed with: uint8 size×size×3; with `encode_squares` the two halves of `encode`."""
        from lookalike.models.inference.pixels import center

        return np.asarray(center(image, self.preprocess))

    def encode_squares(
        self, squares: Iterable[np.ndarray], count: int, *, layer: str = "embedding"
    ) -> Iterator[np.ndarray]:
        """float32 rows of length one for at most `count` squares of pixels that were made before; features with
        `layer="pooled"`. In order, a few at a time, while further squares are drawn."""
        from lookalike.models.inference.squares import Squares

        return Squares(self, layer=layer).stream(squares, count)

    @property
    def reads_words(self) -> bool:
        """Whether words land in the same space as images."""
        return hasattr(self.backbone, "read") and isinstance(self.head, nn.Identity)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """float32 rows of length one for words, to be compared with those of images."""
        if not self.reads_words:
            raise LookalikeError(f"The model {self.name} reads no words: take an open_clip model (`open_clip:NAME`).")
        with torch.inference_mode():
            rows = unit(self.backbone.read(list(texts)))
        return np.asarray(rows.float().cpu())

    def features(
        self,
        images: Images,
        *,
        layer: str = "pooled",
        view: Any = None,
        seed: int = 0,
        batch_size: int = 32,
        runtime: str = "auto",
        precision: str = "f32",
        on_error: str = "raise",
        progress: bool = False,
    ) -> Any:
        """Features before the head (`pooled`, not normalized), or the output of a lower stage (float16).

        `view` (`data/views.py`) is applied to the decoded pixels; the same seed gives the same views.
        """
        layers.check_layer(self.backbone, layer)
        return self._encode(images, layer, batch_size, runtime, precision, on_error, progress, view=view, seed=seed)

    def _encode(self, images: Any, layer: str, batch_size: int, *options: Any, view: Any, seed: int) -> Any:
        from lookalike.models.inference import encoding

        return encoding.encode(self, images, layer, batch_size, *options, view=view, seed=seed)

    @staticmethod
    def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine similarity of every row of `a` with every row of `b`."""
        left, right = (np.atleast_2d(np.asarray(x, np.float32)) for x in (a, b))
        return _unit_rows(left) @ _unit_rows(right).T


def _unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _escape(text: str) -> str:
    import html

    return html.escape(os.fspath(text))


__all__ = ["Embedder", "Failure"]
