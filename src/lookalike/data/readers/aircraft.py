"""FGVC-Aircraft: variants as labels, their families as coarse labels, manufacturers beside."""

from __future__ import annotations

from pathlib import Path

from lookalike.data.readers.base import Columns, layout, pairs


@layout(
    "aircraft",
    "FGVC-Aircraft",
    marks=[("images_variant_test.txt", "images")],
    inside=["data", "fgvc-aircraft-2013b/data"],
)
def read(root: Path) -> Columns:
    out: Columns = {"path": [], "label": [], "coarse": [], "manufacturer": [], "split": []}
    for split in ("train", "val", "test"):
        files = {kind: root / f"images_{kind}_{split}.txt" for kind in ("variant", "family", "manufacturer")}
        if not files["variant"].exists():
            continue
        kinds = {kind: pairs(path) if path.exists() else {} for kind, path in files.items()}
        for image, variant in kinds["variant"].items():
            out["path"].append(f"images/{image}.jpg")
            out["label"].append(variant)
            out["coarse"].append(kinds["family"].get(image))
            out["manufacturer"].append(kinds["manufacturer"].get(image))
            out["split"].append(split)
    return out
