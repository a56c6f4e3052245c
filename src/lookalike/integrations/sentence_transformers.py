"""The module with which sentence-transformers loads model folders that its own modules cannot compute.

    SentenceTransformer("my-model", trust_remote_code=True).encode([Image.open("a.jpg")])

sentence-transformers asks for `trust_remote_code` because the class is not one of its own; the code is this module.
`lookalike.models.sentence_modules` writes which folders need it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from sentence_transformers.base.modules.input_module import InputModule
from torch import Tensor

from lookalike.core.device import CPU
from lookalike.models import Embedder


class LookalikeModule(InputModule):
    """A model of lookalike as a module of sentence-transformers: images in, unit vectors out.

    Args:
        model: The model.

    Example:
        >>> from sentence_transformers import SentenceTransformer  # doctest: +SKIP
        >>> SentenceTransformer("my-model", trust_remote_code=True).encode(["a.jpg"]).shape  # doctest: +SKIP
        (1, 1280)
    """

    def __init__(self, model: Embedder) -> None:
        super().__init__()
        self.model = model

    @property
    def modalities(self) -> list[Any]:
        return ["image"]

    def preprocess(self, inputs: Any, prompt: str | None = None, **options: Any) -> dict[str, Tensor]:
        """Decode images and crop or squash them as the model does."""
        crops = [torch.from_numpy(self.model.crop(image)) for image in inputs]
        return {"pixels": torch.stack(crops)}

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add the unit vectors."""
        return {**features, "sentence_embedding": self.model(features["pixels"])}

    def get_embedding_dimension(self) -> int:
        """Embedding dimension."""
        return self.model.dim

    def save(self, output_path: str, *arguments: Any, **options: Any) -> None:
        """Write a model folder of lookalike."""
        self.model.save_pretrained(Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, *arguments: Any, **options: Any) -> LookalikeModule:
        """Read a model folder, or a model of the Hub."""
        name, revision = model_name_or_path, options.get("revision")
        name += f"@{revision}" if revision and not Path(name).exists() else ""
        return cls(Embedder.from_pretrained(name, device=CPU))
