"""``Embedder``: images to unit vectors."""

from __future__ import annotations

import html
import json
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core.device import resolve
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.imports import import_timm
from lookalike.core.progress import Progress
from lookalike.data.decoding import Preprocess
from lookalike.models import backbones, factories, hub, open_clip, pretrained_folder, stages
from lookalike.models.fingerprint import Snapshot, tensor_bytes
from lookalike.models.heads import BlockLinear, norm_name, pca_head, random_head
from lookalike.models.pooling import Pooling, unit
from lookalike.models.prototypes import Prototypes

if TYPE_CHECKING:
    from lookalike.data import Table

    Images = str | Path | bytes | np.ndarray | Table | Any


class Embedder(nn.Module):
    """A model that turns images into unit vectors: backbone, pooling, head and an optional norm layer.

    Usually made by ``Embedder.from_pretrained``. Pooled features are scaled to unit length before the head, so that a
    head computed from cached features and one trained end to end receive the same input.

    Args:
        backbone: A network that gives a feature map, tokens or pooled features: any ``nn.Module``.
        preprocess: Size, crop and normalization of the images.
        factory: ``"package.module:function"``, a function without arguments that makes a network of your own; a model
            without one can be used and trained, but not saved.
        name: Name of the model, for people.
        architecture: Name under which ``backbones.create_backbone`` makes such a backbone.
        architecture_config: What it needs besides the name.
        pooling: A pooling of :mod:`lookalike.models.pooling`; ``"own"`` leaves it to the backbone.
        card: Entries of the model card.
        parent: Fingerprint of the model that this one was made from.

    Shape:
        - images: ``(N, S, S, 3)`` uint8 pixels, or ``(N, 3, S, S)`` normalized floats.
        - output: ``(N, dim)``, each row of unit length.

    Example:
        >>> model = la.Embedder.from_pretrained("efficientnet_lite0", size=64)
        >>> files = la.read_table("photos")
        >>> vectors = model.encode(files)
        >>> vectors.shape
        (24, 1280)
        >>> model.similarity(vectors[:2], vectors).shape
        (2, 24)
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
        factory: str | None = None,
        name: str | None = None,
        architecture: str | None = None,
        architecture_config: dict[str, Any] | None = None,
        pooling: str = "own",
        card: dict[str, Any] | None = None,
        parent: str | None = None,
    ) -> None:
        super().__init__()
        name = name or type(backbone).__name__
        if factory is not None:
            factories.trust(factory)
            architecture = factories.PREFIX + factory
        architecture = architecture or f"{backbones.OWN}{type(backbone).__module__}.{type(backbone).__qualname__}"
        self.architecture_config = architecture_config
        if pooling != "own":
            backbones.remove_pooling(backbone, pooling)
        self.backbone = backbone
        prefix, channels_last = int(getattr(backbone, "num_prefix_tokens", 0)), getattr(backbone, "output_fmt", "NCHW")
        self.pooling = Pooling(pooling, prefix=prefix, channels_last=channels_last == "NHWC")
        self.head, self.norm, self.classifier = nn.Identity(), nn.Identity(), None
        self.preprocess, self.name, self.architecture = preprocess, name, architecture
        self.card, self.parent = dict(card or {}), parent
        self.register_buffer("mean", torch.tensor(preprocess.mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocess.std).view(1, 3, 1, 1), persistent=False)
        self.prototypes = None
        self._fingerprints: dict[str, tuple[Snapshot, str]] = {}
        with torch.inference_mode():
            was_training = backbone.training
            example = torch.zeros(1, 3, preprocess.size, preprocess.size)
            self.feature_dim = _feature_dim(self.pooling, backbone.eval(), example, name)
            backbone.train(was_training)

    # --- loading and saving ---

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path,
        *,
        device: str | torch.device = "auto",
        pooling: str | None = None,
        size: int | None = None,
        weights: str | Path | None = None,
        factory: str | None = None,
    ) -> Embedder:
        """Load a model.

        Args:
            name_or_path: A model folder, a run folder, ``efficientnet_lite0``, ``efficientnet_lite2``, a timm name, an
                open_clip name (``open_clip:NAME:WEIGHTS``), or a model of lookalike, timm, open_clip, transformers or
                sentence-transformers: its id on the Hub (``owner/name``, ``hf-hub:owner/name@revision``) or its folder
                (``local-dir:PATH`` for one that would be taken for an id).
            device: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"mps"``, ``"xpu"``.
            pooling: A pooling in place of the model's default.
            size: An input size in pixels in place of the model's default.
            weights: A local weight file for a timm or open_clip name, or ``"random"`` for an untrained model.
            factory: The function that makes the network of a saved model of your own, as permission to import it.

        Returns:
            The model in evaluation mode.

        Raises:
            LookalikeError: If there is no such model, or its weights are missing or do not fit.

        Example:
            >>> la.Embedder.from_pretrained("resnet10_small", weights="random").dim
            256
        """
        from lookalike.models import model_folder

        target = resolve(device)
        if factory is not None:
            factories.trust(factory)
        path, name = model_folder.find(name_or_path), str(name_or_path)
        if path is not None and weights is not None:
            raise LookalikeError(f"`{path}` is a model folder with weights of its own; leave `weights` out.")
        if path is not None and pretrained_folder.kind(path) in (None, "lookalike"):
            return model_folder.load(cls, path, pooling=pooling, size=size).to(target).eval()
        if path is None:
            loaded = backbones.load_backbone(name, weights=weights, size=size)
        else:
            loaded = pretrained_folder.load(path, name, size=size, prefer_open_clip=name.startswith(open_clip.PREFIX))
        card: dict[str, Any] = {"backbone": loaded.source, "license": loaded.license}
        if path is not None and hub.is_id(plain := name.removeprefix(open_clip.PREFIX)):
            card["base_model"] = plain.removeprefix(hub.PREFIX).partition("@")[0]
        about: dict[str, Any] = {
            "architecture": loaded.architecture,
            "architecture_config": loaded.config,
            "card": card,
        }
        model = cls(loaded.backbone, loaded.preprocess, name=name, pooling=pooling or loaded.pooling, **about)
        return model.to(target).eval()

    def save_pretrained(self, path: str | Path, *, card: dict[str, Any] | None = None) -> None:
        """Write a model folder: ``config.json``, ``model.safetensors`` and the model card ``README.md``.

        Args:
            path: The folder; an existing model folder is replaced as a whole.
            card: Further entries of the model card (``description``, ``data``, ``method``, ``results``, ``limits``).
        """
        from lookalike.models import model_folder

        model_folder.save(self, Path(path), card)

    def push_to_hub(
        self,
        repository: str,
        *,
        private: bool = False,
        message: str = "Upload model",
        card: dict[str, Any] | None = None,
    ) -> str:
        """Upload the model folder to the Hugging Face Hub.

        Args:
            repository: ``owner/name``; it is created if it does not exist.
            private: Whether a new repository is private.
            message: The commit message.
            card: Further entries of the model card.

        Returns:
            The address of the commit.

        Raises:
            LookalikeError: If the Hub refuses it or cannot be reached.
        """
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(Path(folder) / "model", card=card)
            return hub.push(Path(folder) / "model", repository, private=private, message=message)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fingerprints": {}}  # they hold weak references

    def __reduce__(self) -> Any:
        return _blank, (type(self),), self.__getstate__()

    # --- properties ---

    @property
    def dim(self) -> int:
        """Embedding dimension."""
        return self.head.out_features if isinstance(self.head, nn.Linear) else self.feature_dim

    @property
    def weight_bytes(self) -> int:
        """Size of the weights in memory."""
        return sum(value.numel() * value.element_size() for value in self.state_dict().values())

    @property
    def device(self) -> torch.device:
        return self.mean.device

    @property
    def layers(self) -> list[str]:
        """The layers that ``features`` can compute and ``from_layer`` can continue from."""
        return [*stages.stage_names(self.backbone), *stages.FINAL_LAYERS]

    def lower(self, layer: str) -> nn.Module:
        """The backbone up to and including a stage; it shares the weights."""
        return stages.lower_part(self.backbone, layer)

    def upper(self, layer: str) -> nn.Module:
        """The backbone after a stage; it shares the weights."""
        return stages.upper_part(self.backbone, layer)

    def snapshot(self, layer: str = "embedding") -> tuple[Snapshot, list[Tensor]]:
        """The state of everything that decides what the model computes up to a layer, and the tensors among it."""
        stages.check_layer(self.backbone, layer)
        parts: list[nn.Module] = [self.backbone if layer in stages.FINAL_LAYERS else self.lower(layer)]
        if layer == "embedding":
            parts += [self.head, self.norm]
        tensors = [value for part in parts for value in part.state_dict(keep_vars=True).values()]
        words = [self.architecture, self.pooling.name if layer in stages.FINAL_LAYERS else layer, str(self.preprocess)]
        words += ["squash"] * self.preprocess.squash
        words += [json.dumps(self.architecture_config, sort_keys=True)] if self.architecture_config else []
        if layer == "embedding":
            words += [f"{self.head.blocks} blocks"] if isinstance(self.head, BlockLinear) else []
            words += [norm_name(self.norm)] if norm_name(self.norm) != "none" else []
        return Snapshot(" ".join(words), tensors), tensors

    def fingerprint(self, layer: str = "embedding") -> str:
        """A hash of what the model computes up to a layer: weights, architecture, pooling and preprocessing.

        It is computed again only if a tensor was written to or replaced since the last call.
        """
        state, tensors = self.snapshot(layer)
        cached = self._fingerprints.get(layer)
        if cached is None or not cached[0].same(state):
            digest = hash_bytes(state.description, *map(tensor_bytes, tensors))
            cached = self._fingerprints[layer] = (state, digest)
        return cached[1]

    def _repr_html_(self) -> str:
        rows = {"backbone": self.architecture, "pooling": self.pooling.name, "dimension": f"{self.dim}"}
        rows |= {"images": f"{self.preprocess.size} px", "fingerprint": self.fingerprint()}
        cells = "".join(f"<tr><th style='text-align:left'>{k}</th><td>{value}</td></tr>" for k, value in rows.items())
        return f"<table><caption>Embedder {html.escape(self.name)}</caption>{cells}</table>"

    # --- tensors ---

    def normalize(self, images: Tensor) -> Tensor:
        """Convert uint8 pixels ``(N, S, S, 3)`` to what the backbone expects; float tensors pass unchanged."""
        if images.dtype != torch.uint8:
            return images
        return (images.permute(0, 3, 1, 2).to(self.mean.dtype) / 255 - self.mean) / self.std

    def pooled(self, images: Tensor) -> Tensor:
        """Pooled features ``(N, feature_dim)``, not normalized."""
        return self.pooling(self.backbone(self.normalize(images)))

    def stage(self, layer: str, images: Tensor) -> Tensor:
        """Output of a stage of the backbone."""
        lower: Any = self.lower(layer)
        return lower.forward_features(self.normalize(images))

    def layer_output(self, layer: str, images: Tensor) -> Tensor:
        """Output of ``"embedding"``, ``"pooled"`` or a stage."""
        if layer == "embedding":
            return self(images)
        return self.pooled(images) if layer == "pooled" else self.stage(layer, images)

    def from_layer(self, layer: str, x: Tensor) -> Tensor:
        """Embeddings from the output of a layer."""
        return x if layer == "embedding" else self.from_features(self.pooled_from(layer, x))

    def pooled_from(self, layer: str, x: Tensor) -> Tensor:
        """Pooled features from the output of a stage (or of ``"pooled"`` itself)."""
        return x if layer == "pooled" else self.pooling(self.upper(layer)(x.to(self.mean.dtype)))

    def from_features(self, features: Tensor) -> Tensor:
        """Embeddings from pooled features."""
        features = unit(features)
        embeddings = features if isinstance(self.head, nn.Identity) else unit(self.head(features))
        # In training the norm layer needs the joint batch: the loop applies it (Method.joint_loss).
        return embeddings if self.training else self.apply_norm(embeddings)

    def apply_norm(self, embeddings: Tensor) -> Tensor:
        """Embeddings after the norm layer, if there is one."""
        return embeddings if isinstance(self.norm, nn.Identity) else unit(self.norm(embeddings))

    def forward(self, images: Tensor) -> Tensor:
        return self.from_features(self.pooled(images))

    # --- heads ---

    def set_pca_head(self, features: np.ndarray, dim: int) -> None:
        """Replace the head by the leading principal directions of features; see ``heads.pca_head``.

        Args:
            features: Pooled features, ``(N, feature_dim)``.
            dim: Embedding dimension, at most ``feature_dim``.

        Raises:
            LookalikeError: If the shape does not fit, or values are not finite.
        """
        rows = torch.from_numpy(np.array(features, dtype=np.float64))
        if rows.ndim != 2 or rows.shape[1] != self.feature_dim:
            raise LookalikeError(
                f"Features of shape {tuple(rows.shape)} do not fit: {self.feature_dim} columns are needed."
            )
        self._check_dim(dim)
        if not torch.isfinite(rows).all():
            raise LookalikeError("The features contain values that are not finite; no head can be made from them.")
        self.head = pca_head(rows, dim).to(self.device)

    def set_random_head(self, dim: int, seed: int = 0) -> None:
        """Replace the head by a randomly initialized linear layer of ``dim`` outputs."""
        self._check_dim(dim)
        self.head = random_head(self.feature_dim, dim, seed).to(self.device)

    def _check_dim(self, dim: int) -> None:
        if not 1 <= dim <= self.feature_dim:
            raise LookalikeError(f"A head of {dim} dimensions cannot be made from {self.feature_dim} features.")

    # --- images ---

    def encode(
        self,
        images: Images,
        *,
        batch_size: int = 32,
        runtime: str = "auto",
        precision: str = "f32",
        on_error: str = "raise",
        progress: bool | Progress = False,
        normalized: bool = False,
    ) -> Any:
        """Compute the unit vectors of images.

        Args:
            images: One image (path, bytes, PIL image, array or tensor), an array ``(N, H, W, 3)``, a tensor ``(N, 3, H,
                W)`` of uint8 or of floats from 0 to 1, a ``Table``, or any iterable of images or batches, such as a
                ``DataLoader``, whose labels are ignored.
            batch_size: Images decoded and run together.
            runtime: ``"auto"``, ``"torch"``, ``"openvino"`` or ``"onnx"``.
            precision: ``"f32"``, or ``"bf16"``: about twice as fast where the CPU supports it, but similarities change
                by up to 0.005; do not mix such vectors with f32 ones.
            on_error: ``"raise"`` at the first unreadable image, or ``"skip"`` unreadable images.
            progress: Whether to show a progress bar, or a bar of the caller's to advance.
            normalized: Whether tensors are the network's input already: of its size and normalized.

        Returns:
            float32 vectors ``(N, dim)`` in the order of the images, or ``(dim,)`` for a single image. With
            ``on_error="skip"`` a pair of the vectors of the readable images and a list of ``Failure``.

        Raises:
            UnreadableImage: If an image cannot be read and ``on_error`` is ``"raise"``.

        Example:
            >>> model = la.Embedder.from_pretrained("resnet10_small", weights="random")
            >>> model.encode([np.zeros((80, 60, 3), np.uint8)]).shape
            (1, 256)
        """
        from lookalike.models.inference import pipeline

        options: dict[str, Any] = {"batch_size": batch_size, "runtime": runtime, "precision": precision}
        return pipeline.encode(self, images, on_error=on_error, progress=progress, normalized=normalized, **options)

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
        progress: bool | Progress = False,
    ) -> Any:
        """Compute features below the head: pooled features (not normalized), or the output of a stage (float16).

        The layer is one of ``layers``. A view of :mod:`lookalike.data` is applied in place of the center crop; the
        same seed gives the same views. The other arguments and the result are those of ``encode``.
        """
        from lookalike.models.inference import pipeline

        stages.check_layer(self.backbone, layer)
        options: dict[str, Any] = {"batch_size": batch_size, "runtime": runtime, "precision": precision}
        options |= {"view": view, "seed": seed, "on_error": on_error, "progress": progress}
        return pipeline.encode(self, images, layer=layer, **options)

    def crop(self, image: Any) -> np.ndarray:
        """Decode an image into the model's input, ``(size, size, 3)`` uint8; the first half of ``encode``."""
        from lookalike.models.inference.pipeline import load_crop

        return np.asarray(load_crop(image, self.preprocess))

    def encode_crops(
        self, crops: Iterable[np.ndarray], count: int, *, layer: str = "embedding"
    ) -> Iterator[np.ndarray]:
        """Yield the vectors of at most ``count`` crops in order, a few at a time; the second half of ``encode``."""
        from lookalike.models.inference.pipeline import CropEncoder

        return CropEncoder(self, layer=layer).stream(crops, count)

    @property
    def supports_text(self) -> bool:
        """Whether texts can be embedded into the same space as images."""
        return hasattr(self.backbone, "encode_text") and isinstance(self.head, nn.Identity)

    def encode_text(self, texts: Sequence[str]) -> np.ndarray:
        """Compute the unit vectors of texts ``(N, dim)``, comparable with those of images; see ``supports_text``."""
        if not self.supports_text:
            raise LookalikeError(
                f"The model {self.name} has no text encoder: use an open_clip model (`open_clip:NAME`)."
            )
        with torch.inference_mode():
            embeddings = unit(self.backbone.encode_text(list(texts)))
        return np.asarray(embeddings.float().cpu())

    @staticmethod
    def similarity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Cosine similarity of every row of ``a`` with every row of ``b``.

        Args:
            a: Vectors ``(N, D)`` or one vector ``(D,)``.
            b: Vectors ``(M, D)`` or one vector ``(D,)``.

        Returns:
            Similarities ``(N, M)``.

        Example:
            >>> la.Embedder.similarity(np.eye(2), np.array([1.0, 0.0]))
            array([[1.],
                   [0.]], dtype=float32)
        """
        left, right = (np.atleast_2d(np.asarray(x, np.float32)) for x in (a, b))
        return _unit_rows(left) @ _unit_rows(right).T


def _blank(kind: type[Embedder]) -> Embedder:
    """A model to be filled with pickled parts, whose libraries can be imported from here on."""
    import_timm()
    return kind.__new__(kind)


def _feature_dim(pooling: Pooling, backbone: nn.Module, example: Tensor, name: str) -> int:
    """The number of pooled features, from one image of zeros."""
    try:
        output = pooling(backbone(example))
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LookalikeError(f"`{name}` does not run on images of {example.shape[-1]} px ({first}).") from error
    if not isinstance(output, Tensor) or output.ndim != 2:
        what = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"type {type(output).__name__}"
        raise LookalikeError(
            f"`{name}` returns an output of {what} for one image: a vector is needed, or a map or tokens and a pooling "
            "such as `gem`."
        )
    return int(output.shape[1])


def _unit_rows(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
