"""Vision models of the transformers library as backbones (extra ``transformers``).

A folder holds ``config.json``, ``preprocessor_config.json`` and the weights. Network and pooling are the library's own;
the preprocessing is read from the file, so that no image processor of the library is needed.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.imports import import_timm
from lookalike.data.decoding import Preprocess

PREFIX = "transformers:"
RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
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

    Args:
        network: The model of transformers.
        size: Input size in pixels.
        has_pooler: Whether the checkpoint has weights for the family's pooler.
    """

    def __init__(self, network: Any, size: int, *, has_pooler: bool = True) -> None:
        super().__init__()
        self.network, self.has_pooler, self.all_tokens = network, has_pooler, False
        config = network.config
        native = getattr(config, "image_size", None)
        native = native[0] if isinstance(native, (tuple, list)) else native
        resize = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters and native not in (
            None,
            size,
        )
        self.options = {"interpolate_pos_encoding": True} if resize else {}
        patch = getattr(config, "patch_size", None)
        with torch.inference_mode():
            hidden = network.eval()(torch.zeros(1, 3, size, size), **self.options).last_hidden_state
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
        pooled = getattr(output, "image_embeds", None)
        if pooled is None and self.has_pooler:
            pooled = getattr(output, "pooler_output", None)
        if pooled is not None:
            return pooled.flatten(1)
        if hidden.ndim == 4:
            return hidden.mean((2, 3))
        return hidden[:, 0] if self.num_prefix_tokens else hidden.mean(1)


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
                network, info = kind.from_pretrained(
                    None,
                    config=made,
                    state_dict=floats,
                    output_loading_info=True,
                    ignore_mismatched_sizes=True,  # they are named below
                    dtype=torch.float32,
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

    Example:
        >>> preprocess({"size": {"height": 224, "width": 224}, "resample": 2}).squash
        True
    """
    document = document.get("image_processor", document)
    sizes = document.get("size", 224)
    edge = sizes if isinstance(sizes, int) else sizes.get("shortest_edge") or sizes.get("height")
    cropped = document.get("crop_size", edge)
    cropped = cropped.get("height") or cropped.get("shortest_edge") if isinstance(cropped, dict) else cropped
    if edge is None or cropped is None:
        raise LookalikeError("`preprocessor_config.json` states no fixed input size: this model cannot be used here.")
    # A plain number was the short side for processors that crop, and both sides for all others.
    shortest = "shortest_edge" in sizes if isinstance(sizes, dict) else bool(document.get("do_center_crop"))
    if document.get("crop_pct") and "ConvNext" in str(document.get("image_processor_type")):
        squash, crop, cropped = edge >= 384, 1.0 if edge >= 384 else float(document["crop_pct"]), edge
    elif document.get("do_center_crop", False):
        squash, crop = not shortest, min(cropped / edge, 1.0)
    else:
        squash, crop, cropped = True, 1.0, edge
    normalized, rescaled = document.get("do_normalize", True), document.get("rescale_factor", 1 / 255) * 255
    mean = document.get("image_mean") or (0.5, 0.5, 0.5)
    std = document.get("image_std") or (0.5, 0.5, 0.5)
    return Preprocess(
        size=size or cropped,
        crop=crop,
        interpolation=RESAMPLING.get(document.get("resample", 2), "bicubic"),
        mean=tuple(value / rescaled for value in mean) if normalized else (0.0, 0.0, 0.0),
        std=tuple(value / rescaled for value in std) if normalized else (1 / rescaled,) * 3,
        squash=squash,
    )


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
