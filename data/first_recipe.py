"""The first recipe for a data set: ``./run.sh prepare`` measures the images, and writes ``recipe.yaml`` beside them.

The recipe has a small network, and a schedule, that suit the number and the size of the images. The choices were
measured on two CPU cores; docs/images.md has the figures. A file that the user has changed is kept.
"""

import contextlib
import io
import re
import shlex
import unicodedata
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from PIL import Image

from configs.arguments import duration
from configs.errors import UserError
from configs.load import ROOT, Dumper, load_cluster, load_recipe, resolve_path
from configs.reading import exists
from configs.schema import Recipe
from configs.validate import validate
from data.forms.catalogue import form_of
from data.images import to_rgb
from data.manifest import Manifest

NAME = "recipe.yaml"

_MEASURED, _MEASURED_PX, _DECODED_PX, _WIDTH = 200, 64, 256, 120
_HEADER = "# ./run.sh prepare wrote this recipe for the images beside it. Change it as you like: it is kept.\n"
_NETWORK, _SMALLEST, _LARGEST = "resnet20", 8, 32
_PHOTO_SIDE = 64
_PASSES, _FEWEST_EPOCHS, _MOST_EPOCHS = 40_000, 12, 60
_EVALUATIONS, _ROWS_AN_EVALUATION = 10, 4
_FEWEST_STEPS, _LARGEST_BATCH, _RANKS = 300, 32, 2
_IMAGES_PER_S = 500
_START_S = 15


class _Pixels(NamedTuple):
    """What was measured of images: median of their shorter sides, px; and of their colours, 0 to 255, for each."""

    shorter_side: int
    is_grey: bool
    mean: list[int]
    std: list[int]


def write_recipe(folder: Path, manifest: Manifest) -> tuple[Path, bool, str]:
    """Write the first recipe of a data set.

    Args:
        folder: The data set.
        manifest: Its manifest.

    Returns:
        The file; whether it was written now, and not kept, as one that is there already; and the command that trains on
        the images, by the recipe that comes with the program for them, or by this one.

    Raises:
        UserError: The file cannot be written.
    """
    path = folder / NAME
    own = shlex.join(["./run.sh", "train", str(path)])
    command = f"./run.sh train {folder.absolute().name}" if _is_shipped(folder.absolute(), manifest) else own
    if exists(path):
        return path, False, command
    tree = _choose(folder.absolute().name, manifest, _measure(folder), own)
    validate(Recipe, tree)
    text = _HEADER + yaml.dump(tree, Dumper=Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    try:
        partial = folder / f".{NAME}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        told = f"{path}: cannot be written: {error.strerror}; the images are packed: with --no-recipe, this is no error"
        raise UserError(told) from None
    return path, True, command


def _is_shipped(folder: Path, manifest: Manifest) -> bool:
    """Return whether a recipe of the folder's name comes with the program, finds these images there and is for them."""
    is_found = folder.parent == resolve_path(load_cluster("laptop").paths.data)
    if not (is_found and (ROOT / "configs" / "recipes" / f"{folder.name}.yaml").is_file()):
        return False
    data = load_recipe(folder.name).data
    return (data.train_samples, data.eval_samples) == (manifest.train.records, manifest.eval.records)


def _measure(folder: Path) -> _Pixels:
    """Measure the first training images of a data set, whose order is random."""
    sides, pixels = [], []
    images = form_of(folder, "train")
    for sample in islice(images.samples(), _MEASURED):
        encoded = io.BytesIO(images.image(sample))
        with contextlib.suppress(OSError, SyntaxError), Image.open(encoded) as image:  # --no-decode
            side = min(image.size)
            image.draft("RGB", (_DECODED_PX, _DECODED_PX))  # decodes large JPEGs at a fraction of the size
            every = max(1, min(image.size) // _MEASURED_PX)
            pixels.append(np.asarray(to_rgb(image), np.float64)[::every, ::every].reshape(-1, 3))
            sides.append(side)
    if not sides:
        raise UserError(f"{folder}: none of the first images can be decoded; ./run.sh prepare --verify lists them")
    values = np.concatenate(pixels)
    is_grey = bool((values == values[:, :1]).all())
    mean, std = (np.rint(each).astype(int).tolist() for each in (values.mean(axis=0), values.std(axis=0)))
    return _Pixels(int(np.median(sides)), is_grey, mean, [max(1, each) for each in std])


def _choose(name: str, manifest: Manifest, pixels: _Pixels, command: str) -> dict[str, Any]:
    """Return a recipe that trains on two CPU cores in minutes, if the data set is small.

    Args:
        name: Name of the data set's folder.
        manifest: That of the data set.
        pixels: What was measured.
        command: The command that runs the recipe, for its card.
    """
    train = manifest.train.records
    is_photo = pixels.shorter_side >= _PHOTO_SIDE
    side = min(max(_SMALLEST, pixels.shorter_side), _LARGEST)
    # The largest power of two, from 2 to 32, of which an epoch has one.
    batch = max(_RANKS, min(_LARGEST_BATCH, 1 << train.bit_length() - 1))
    steps_an_epoch = max(1, train // batch)
    epochs = max(min(_PASSES // train, _MOST_EPOCHS), _FEWEST_EPOCHS, -(-_FEWEST_STEPS // steps_an_epoch))
    every = max(1, epochs // _EVALUATIONS)
    time = duration(_START_S + epochs * train / _IMAGES_PER_S * (side / _LARGEST) ** 2)
    crop = {"kind": "resized", "area": [0.35, 1.0]} if is_photo else {"kind": "shift", "padding": max(1, side // 16)}
    return {
        "name": _recipe_name(name),
        "card": {
            "purpose": f"A first training of {name}; ./run.sh prepare wrote this file, which is yours to change.",
            "source": manifest.source.description,
            "expected": "unknown; docs/images.md has the accuracy of other small data sets with these settings",
            "time": f"about {time} on two CPU cores (estimated from the number of images)",
            "hardware": "any x86-64 CPU with two cores and 4 GB of memory",
            "command": command,
        },
        "model": {
            "name": _NETWORK,
            "num_classes": max(2, len(manifest.class_names)),
            "image_size": side,
            **({"input_channels": 1} if pixels.is_grey else {}),
        },
        "data": {
            "name": name,
            "source": manifest.source.kind,
            "train_samples": train,
            "eval_samples": manifest.eval.records,
            "crop": crop,
            "flip": is_photo,
            "mean": pixels.mean,
            "std": pixels.std,
        },
        "batch": {"global_size": batch},
        "optimizer": {"name": "adam"},
        "schedule": {"base_lr": 0.003, "warmup_epochs": 1, "decay": {"name": "cosine"}},
        "loss": {"kind": "sigmoid"} if manifest.has_label_vectors else {"label_smoothing": 0.1},
        "run": {
            "epochs": epochs,
            "target_top1": None,
            "eval_every_epochs": every,
            "eval_first_epoch": every,
            "seed": 1,
            "log_every_steps": max(1, steps_an_epoch * every // _ROWS_AN_EVALUATION),
        },
        "mlperf": {"submits": False},
    }


def _recipe_name(folder: str) -> str:
    """Return a name that a recipe may have: ASCII letters, digits, dots, dashes and underscores."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "own-images"
