"""``network.json``: everything that a program needs to use ``network.onnx`` as this one evaluates it. Pure.

`train.export.classify` reads it, and a copy of that file lies beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.ideas import IDEAS
from configs.reading import is_file
from configs.schema import Recipe
from data.manifest import Manifest
from logs.disk import digest_of, read_object
from train.engine.onnx_graph import INPUT, OPSET, OUTPUT

DESCRIPTION_FILE = "network.json"

_VERSION = 2
_CHANNELS = {1: "grey", 3: "RGB", 4: "RGB, zero"}


def describe(
    recipe: Recipe, *, checkpoint: str, onnx_file: Path | None, manifest: Manifest | None, score: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the content of ``network.json``.

    Args:
        recipe: The network and its images.
        checkpoint: Name of the checkpoint that holds the weights.
        onnx_file: The ONNX file. If None, there is none.
        manifest: Says how images were packed, and the names of the classes. If None, images are taken as they are, and
            the classes have no names.
        score: Metric and counts of an evaluation of the network. If None, it was not evaluated.
    """
    packed_side = None if manifest is None else manifest.packed_side
    model, data = recipe.model, recipe.data
    channels = min(model.input_channels, 3)
    return {
        "version": _VERSION,
        "recipe": recipe.name,
        "checkpoint": checkpoint,
        "onnx": onnx_file
        and {"file": onnx_file.name, "sha256": digest_of(onnx_file), "opset": OPSET, "input": INPUT, "output": OUTPUT},
        "input": ["N", model.input_channels, model.image_size, model.image_size],
        "layout": "NCHW",
        "dtype": "float32",
        "output": "logits",
        **{name: value for idea in IDEAS for name, value in idea.described(recipe).items()},
        "num_classes": model.num_classes,
        "class_names": None if manifest is None else manifest.class_names,
        "packed": {
            "shorter_side": packed_side,
            "interpolation": None if packed_side is None else "bicubic, antialiased (Pillow)",
            "orientation_tag": "ignored" if packed_side is None else "followed",
        },
        "channels": _CHANNELS[model.input_channels],
        "grey": "BT.601: the luma of a JPEG; otherwise (299 R + 587 G + 114 B) / 1000, rounded down"
        if model.input_channels == 1
        else None,
        "resize": {
            "central_share": data.eval_central_share,
            "shorter_side": data.eval_resize or model.image_size,
            "longer_side": "scaled by the same factor, rounded to whole pixels; the centres of both images coincide"
            if data.eval_central_share is None
            else "of the central share, which is scaled to the crop without keeping its aspect",
            "interpolation": "linear",
            "antialias": False,
            "rounding": "to whole numbers from 0 to 255",
        },
        "crop": {"side": model.image_size, "place": "centre; of an odd margin, the larger half lies before the crop"},
        "mean": data.mean[:channels],
        "std": data.std[:channels],
        "normalised": "(value - mean) / std for values from 0 to 255",
        "score": score,
    }


def read_description(folder: Path) -> dict[str, Any]:
    """Return the content of ``network.json`` in an export.

    Raises:
        UserError: The file is missing or damaged, an older version of this program wrote it, or the ONNX file is
            missing or not the one that was written with it.
    """
    path = folder / DESCRIPTION_FILE
    found = read_object(path)
    if found.get("version") != _VERSION:
        raise UserError(f"{path}: comes from another version of this program; export the network again")
    if onnx := found["onnx"]:
        file = folder / onnx["file"]
        if not is_file(file) or onnx.get("sha256") not in {None, digest_of(file)}:  # older versions kept no checksum
            raise UserError(f"{file}: damaged, or of another export; export the network again")
    return found
