"""Choose a small network, and a schedule, that suit the number and the size of the images. Pure; imports configs only.

The choices were measured on two CPU cores; docs/images.md has the figures.
"""

import re
import unicodedata
from dataclasses import dataclass
from typing import Any

from configs.registry import SOURCES_WITH_LABEL_VECTORS

_NETWORK, _SMALLEST, _LARGEST = "resnet20", 8, 32
_PHOTO_SIDE = 64
_PASSES, _FEWEST_EPOCHS, _MOST_EPOCHS = 40_000, 12, 60
_EVALUATIONS, _ROWS_AN_EVALUATION = 10, 4
_FEWEST_STEPS, _LARGEST_BATCH, _RANKS = 300, 32, 2
_IMAGES_PER_S = 500
_START_S = 15
_MINUTE_S = 60


@dataclass(frozen=True)
class Facts:
    """What is known of a packed data set.

    Attributes:
        name: Name of the folder.
        source: What was packed, in words.
        kind: `data.source` of the recipe.
        train: Number of training images.
        eval: Number of evaluation images.
        classes: Number of classes, at least 2.
        shorter_side: Median of the images' shorter sides, px.
        is_grey: Whether no image has a colour.
        mean: Mean of red, green and blue, 0 to 255.
        std: Standard deviation of red, green and blue.
    """

    name: str
    source: str
    kind: str
    train: int
    eval: int
    classes: int
    shorter_side: int
    is_grey: bool
    mean: tuple[int, int, int]
    std: tuple[int, int, int]


def choose(facts: Facts, command: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a recipe that trains on two CPU cores in minutes, if the data set is small.

    Args:
        facts: The data set.
        command: The command that runs the recipe, for its card.

    Returns:
        The content of the recipe file; and what was chosen and why, a line each.
    """
    is_photo = facts.shorter_side >= _PHOTO_SIDE
    side = min(max(_SMALLEST, facts.shorter_side), _LARGEST)
    # The largest power of two, from 2 to 32, of which an epoch has one.
    batch = max(_RANKS, min(_LARGEST_BATCH, 1 << facts.train.bit_length() - 1))
    steps_an_epoch = max(1, facts.train // batch)
    epochs = max(min(_PASSES // facts.train, _MOST_EPOCHS), _FEWEST_EPOCHS, -(-_FEWEST_STEPS // steps_an_epoch))
    every = max(1, epochs // _EVALUATIONS)
    duration = _duration(epochs * facts.train / _IMAGES_PER_S * (side / _LARGEST) ** 2)
    has_one_label = facts.kind not in SOURCES_WITH_LABEL_VECTORS
    crop = {"kind": "resized", "area": [0.35, 1.0]} if is_photo else {"kind": "shift", "padding": max(1, side // 16)}
    recipe = {
        "name": _recipe_name(facts.name),
        "card": {
            "purpose": f"A first training of {facts.name}; ./run.sh prepare wrote this file, which is yours to change.",
            "source": facts.source,
            "expected": "unknown; docs/images.md has the accuracy of other small data sets with these settings",
            "time": f"about {duration} on two CPU cores (estimated from the number of images)",
            "hardware": "any x86-64 CPU with two cores and 4 GB of memory",
            "command": command,
        },
        "model": {
            "name": _NETWORK,
            "num_classes": facts.classes,
            "image_size": side,
            **({"input_channels": 1} if facts.is_grey else {}),
        },
        "data": {
            "name": facts.name,
            "source": facts.kind,
            "train_samples": facts.train,
            "eval_samples": facts.eval,
            "crop": crop,
            "flip": is_photo,
            "mean": list(facts.mean),
            "std": list(facts.std),
        },
        "batch": {"global_size": batch},
        "optimizer": {"name": "adam"},
        "schedule": {"base_lr": 0.003, "warmup_epochs": 1, "decay": {"name": "cosine"}},
        "loss": {"label_smoothing": 0.1} if has_one_label else {"kind": "sigmoid"},
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
    moved = "cropped and mirrored at random" if is_photo else "moved by a few pixels, not mirrored"
    reasons = (
        f"{_NETWORK} at {side} px; the images have {facts.shorter_side} px (shorter side, median)",
        f"batch {batch}, {epochs} epochs, images {moved}: about {duration} on two CPU cores",
        f"mean and deviation of the pixels are measured{', colours dropped' if facts.is_grey else ''}",
    )
    return recipe, reasons


def _duration(training_s: float) -> str:
    minutes = (training_s + _START_S) / _MINUTE_S
    if minutes < 2 * _MINUTE_S:
        return f"{max(1, round(minutes))} min"
    return f"{round(minutes / _MINUTE_S)} hours"


def _recipe_name(folder: str) -> str:
    """Return a name that a recipe may have: ASCII letters, digits, dots, dashes and underscores."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9._-]+", "-", plain).strip("-._") or "own-images"
