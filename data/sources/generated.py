"""generated: random images of about 500 x 400 px and 110 KB, as ImageNet's are, for trials.

A network can learn the classes: they differ in the colours of three kinds of patches, ten hues each. Classes whose
numbers are 1,000 apart look alike. --train, --eval and --classes set their numbers (256, 64 and 10), --seed changes the
images, --quality sets the JPEG quality.
"""

import colorsys

import numpy as np
from PIL import Image

from data.images import DEFAULT_QUALITY, encode_jpeg
from data.sources.image_source import Settings, Source, SourceSplit, fingerprint

LAYOUT = "generated"
OPTIONS = ("quality", "train", "eval", "classes")

_HUES = 10
_SHARES = (0.5, 0.3, 0.2)
"""Shares of the patches whose hues are the last digit of a label, the one before it and that of the hundreds."""


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    return name == "generated"


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`."""
    train, evaluation, classes = settings.train or 256, settings.eval or 64, settings.classes or 10
    quality = settings.quality or DEFAULT_QUALITY
    width = len(str(classes - 1))
    return Source(
        kind="generated",
        description=f"generated images, seed {settings.seed}, JPEG quality {quality}",
        fingerprint=fingerprint("generated patches", train, evaluation, classes, quality, settings.seed),
        class_names=tuple(f"class{label:0{width}}" for label in range(classes)),
        train=_split(train, classes, (settings.seed, 0), quality),
        eval=_split(evaluation, classes, (settings.seed, 1), quality),
    )


def _split(count: int, classes: int, stream: tuple[int, int], quality: int) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        return encode_jpeg(_draw_image(np.random.default_rng((*stream, index)), index % classes), quality)

    return SourceSplit([index % classes for index in range(count)], jpeg)


def _draw_image(random: np.random.Generator, label: int) -> Image.Image:
    """Return the patches of a class under noise, of about 500 x 400 px (deviation: 80 px).

    The share of a patch tells which digit of the label its hue stands for, so that crops, flips and other sizes leave
    the class as it is. The power of the noise falls with frequency, as in photographs.
    """
    width, height = (int(np.clip(random.normal(mean, 80), 200, 1000)) for mean in (500, 400))
    hues = (np.array([label % 10, label // 10 % 10, label // 100 % 10]) + random.normal(0, 0.15, 3)) / _HUES
    colours = [colorsys.hsv_to_rgb(hue % 1, 0.8, random.uniform(0.7, 1)) for hue in hues]
    cell = random.integers(12, 40)
    digits = random.choice(len(_SHARES), (height // cell + 1, width // cell + 1), p=_SHARES)
    patches = Image.fromarray((255 * np.array(colours)[digits]).astype(np.uint8))
    total = np.asarray(patches.resize((width, height), Image.Resampling.NEAREST), np.float32)
    for period, strength in ((128, 40), (32, 30), (8, 25), (3, 32)):
        grid = random.integers(0, 256, (height // period + 2, width // period + 2, 3), np.uint8)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total = total + (np.asarray(layer, np.float32) - 128) * (strength / 128)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))
