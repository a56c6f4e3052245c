"""Vision models of the transformers library as backbones (extra ``transformers``).

A folder holds ``config.json``, ``preprocessor_config.json`` and the weights. Network and pooling are the library's own;
the preprocessing is read from the file, so that no image processor of the library is needed.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.imports import import_timm
from lookalike.data.decoding import Preprocess

PREFIX = "transformers:"
RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
# Mean and standard deviation of image processors, where the file states none.
NORMS = (
    (("CLIP", "Bit", "ChineseCLIP"), ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))),
    (("Levit", "PoolFormer", "Pvt", "Segformer"), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
)
IRRELEVANT = ("architectures", "_name_or_path", "transformers_version", "id2label", "label2id", "dtype", "torch_dtype")
NOT_ONE_SIZE = ("siglip2", "siglip2_vision_model")
# Models of images and texts, of which the image side is loaded; the classes that project into the common space.
TWO_SIDED = {
    "clip": "CLIPVisionModelWithProjection",
    "metaclip_2": "MetaClip2VisionModelWithProjection",
    "siglip": "SiglipVisionModel",
}


class TransformersBackbone(nn.Module):
    """A vision model of transformers; called on images it returns what the family pools itself, or all tokens.

    ``has_pooler`` says whether the checkpoint has weights for the family's pooler.
    """

    def __init__(self, network: Any, size: int, *, has_pooler: bool = True) -> None:
        super().__init__()
        self.network, self.has_pooler, self.all_tokens = network, has_pooler, False
        config = network.config
        native = getattr(config, "image_size", None)
        native = native[0] if isinstance(native, (tuple, list)) else native
        resizable = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
        self.options = {"interpolate_pos_encoding": True} if resizable and native not in (None, size) else {}
        patch = getattr(config, "patch_size", None)
        with torch.inference_mode():
            output = network.eval()(torch.zeros(1, 3, size, size), **self.options)
        hidden, pooled = output.last_hidden_state, self._own_pooling(output)
        self.pools = pooled is not None and pooled.ndim == 2  # by itself, to a vector
        patches = (size // patch) ** 2 if isinstance(patch, int) else 0
        self.num_prefix_tokens = max(hidden.shape[1] - patches, 0) if hidden.ndim == 3 and patches else 0

    def reset_classifier(self, classes: int, pooling: str = "") -> None:
        """Return all tokens, or the feature map, from now on; the name is timm's."""
        self.all_tokens = True

    def forward(self, images: Tensor) -> Tensor:
        output = self.network(images, **self.options)
        hidden: Tensor = output.last_hidden_state
        if self.all_tokens:
            return hidden
        if (pooled := self._own_pooling(output)) is not None:
            return pooled.flatten(1)
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.num_prefix_tokens else hidden.mean(1)

    def _own_pooling(self, output: Any) -> Tensor | None:
        pooled: Tensor | None = getattr(output, "image_embeds", None)
        return getattr(output, "pooler_output", None) if pooled is None and self.has_pooler else pooled


def create(config: Mapping[str, Any], size: int, tensors: Mapping[str, Tensor] | None = None) -> TransformersBackbone:
    """Create a model from its configuration, with the given weights or with random ones.

    Args:
        config: Content of ``config.json``.
        size: Input size in pixels.
        tensors: The weights under the names of the checkpoint; those of other parts (a text encoder, a classifier) are
            left out.

    Raises:
        LookalikeError: If the family is unknown or has no vision model, or the weights do not fit.
    """
    transformers = _import()
    made, kind = _vision(transformers, config)
    what = f"The transformers model `{config.get('model_type')}`"
    with _quiet(transformers), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seeds.derive(0, "weights", kind.__name__))
        try:
            if tensors is None:
                network, has_pooler = kind(made), bool(config.get("has_pooler", True))
            else:
                floats = {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}
                options = {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are named below
                network, info = kind.from_pretrained(
                    None, config=made, state_dict=floats, dtype=torch.float32, **options
                )
                missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
                if wrong := missing or sorted(key for key, *_ in info["mismatched_keys"]):
                    raise LookalikeError(
                        f"{what} lacks {len(wrong)} of its weights, or has them in another shape, first `{wrong[0]}`: "
                        "the file is of another model."
                    )
                has_pooler = not info["missing_keys"]
            return TransformersBackbone(network, size, has_pooler=has_pooler).eval()
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LookalikeError(f"{what} cannot embed images of {size} px ({first}).") from error


def check_family(config: Mapping[str, Any]) -> None:
    """Raise unless transformers has a vision model for such a configuration."""
    _vision(_import(), config)


def stored_config(config: Mapping[str, Any], backbone: TransformersBackbone) -> dict[str, Any]:
    """What a saved model needs of ``config.json`` to make the network again."""
    relevant = {key: value for key, value in config.items() if key not in {*IRRELEVANT, "text_config"}}
    if type(backbone.network).__name__ in TWO_SIDED.values():  # the configuration alone gives no projection
        relevant["architectures"] = [type(backbone.network).__name__]
    return {**relevant, **({} if backbone.has_pooler else {"has_pooler": False})}


def preprocess(document: Mapping[str, Any], size: int | None = None) -> Preprocess:
    """The preprocessing of a ``preprocessor_config.json``: whether it crops or squashes, and to which size.

    Args:
        document: Content of the file; what it leaves out is as the class that it names has it.
        size: Input size in pixels; the file's own without it.

    Raises:
        LookalikeError: If it is none that crops or squashes to a fixed square.

    Example:
        >>> preprocess({"size": {"height": 224, "width": 224}, "resample": 2}).squash
        True
    """
    document = {key: value for key, value in document.get("image_processor", document).items() if value is not None}
    kind = str(document.get("image_processor_type") or document.get("feature_extractor_type") or "ViT")
    kind = re.split("ImageProcessor|FeatureExtractor", kind)[0]
    crops = kind.startswith(("CLIP", "Bit", "ChineseCLIP", "DeiT", "Levit", "PoolFormer", "MobileNet"))
    centered = bool(document.get("do_center_crop", crops))
    sizes = document.get("size", 224)
    # A plain number was the short side for processors that crop, and both sides for all others.
    sizes = sizes if isinstance(sizes, dict) else {"shortest_edge" if centered else "height": sizes}
    shortest, edge = "shortest_edge" in sizes, sizes.get("shortest_edge") or sizes.get("height")
    cropped = document.get("crop_size", edge)
    cropped = cropped.get("height") or cropped.get("shortest_edge") if isinstance(cropped, dict) else cropped
    convnext = kind == "ConvNext"
    floating = not document.get("do_resize", True) or (shortest and not (centered or convnext))
    if edge is None or cropped is None or floating:
        raise LookalikeError("`preprocessor_config.json` states no fixed input size: this model cannot be used here.")
    resample = document.get("resample", 2 if kind.startswith(("ViT", "Segformer", "MobileNet")) else 3)
    impossible = {
        "makes images that are not square": sizes.get("width", edge) != edge,
        "pads images": document.get("do_pad") or (centered and cropped > edge),
        "orders colors as blue, green, red": document.get("do_flip_channel_order"),
        f"uses the resampling filter {resample}": resample not in RESAMPLING,
    }
    if reason := next((text for text, applies in impossible.items() if applies), None):
        raise LookalikeError(f"The model's preprocessing {reason}, which lookalike cannot do.")
    pct = document.get("crop_pct", {"ConvNext": 0.875, "PoolFormer": 0.9}.get(kind)) or 1.0
    if convnext:
        squash, crop, cropped = edge >= 384, 1.0 if edge >= 384 else edge / int(edge / pct), edge
    elif centered:  # some resize to more than the stated size before they crop
        enlarged = {"PoolFormer": int(edge / pct), "Levit": int(256 / 224 * edge)}.get(kind, edge)
        squash, crop = not shortest, cropped / enlarged
    else:
        squash, crop, cropped = True, 1.0, edge
    return Preprocess(size or cropped, crop, RESAMPLING[resample], *_normalization(document, kind), squash)


def _normalization(document: Mapping[str, Any], kind: str) -> tuple[Any, Any]:
    """Mean and standard deviation for values from 0 to 1, whatever the file rescales to."""
    scale = document.get("rescale_factor", 1 / 255) * 255 if document.get("do_rescale", True) else 255
    mean, std, offset = np.zeros(3), np.ones(3), float(document.get("rescale_offset") or False)
    if document.get("do_normalize", True):
        default = next((norm for kinds, norm in NORMS if kind.startswith(kinds)), ((0.5,) * 3, (0.5,) * 3))
        mean, std = (np.array(document.get(f"image_{name}") or default[n]) for n, name in enumerate(("mean", "std")))
        if kind == "EfficientNet" and document.get("include_top", True):  # it divides twice
            std = std**2
    return tuple((mean + offset) / scale), tuple(std / scale)


def _vision(transformers: Any, config: Mapping[str, Any]) -> tuple[Any, Any]:
    """The configuration and the class of the vision model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_MAPPING_NAMES

    name = str(config.get("model_type"))
    known = transformers.CONFIG_MAPPING
    families = sorted({*MODEL_FOR_IMAGE_MAPPING_NAMES, *TWO_SIDED, "clip_vision_model"} & set(known.keys()))
    if name in NOT_ONE_SIZE:
        raise LookalikeError(
            f"`{name}` is the NaFlex form of SigLIP 2, whose input has no fixed size: take a fixed one, such as "
            "google/siglip2-base-patch16-224."
        )
    if name not in families:
        what = "a text model or another that embeds no images" if name in known else "not a family transformers knows"
        hint = suggest(name, families) or f"; known are {', '.join(families[:40])}."
        raise LookalikeError(f"The model type `{name}` is {what}{hint}")
    document = {key: value for key, value in config.items() if key != "has_pooler"}
    if name in TWO_SIDED:
        vision = known[f"{name}_vision_model"].from_dict(dict(document.get("vision_config") or {}))
        if name != "siglip":
            vision.projection_dim = document.get("projection_dim", 512)
        return vision, getattr(transformers, TWO_SIDED[name])
    made = known[name].from_dict(document)
    if hasattr(made, "mask_ratio"):  # masked autoencoders hide patches in training only
        made.mask_ratio = 0.0
    if projecting := set(TWO_SIDED.values()) & set(config.get("architectures") or ()):
        return made, getattr(transformers, projecting.pop())
    return made, transformers.MODEL_MAPPING[type(made)]


def _import() -> Any:
    import_timm()  # transformers imports torchvision, which fails on some machines without our workaround
    try:
        import transformers
    except ImportError as error:
        raise LookalikeError("This model needs transformers: pip install 'lookalike[transformers]'.") from error
    return transformers


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's progress bars and its notes about weights that are left out on purpose."""
    log = transformers.utils.logging
    level, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if bars:
            log.enable_progress_bar()
