"""generated: random images of about 500 x 400 px, the size of ImageNet's, for trials.

--train, --eval and --classes set their numbers (256, 64 and 10), --seed changes the images, --quality sets the JPEG
quality.
"""

import numpy as np
from PIL import Image

from data.images import DEFAULT_QUALITY, encode_jpeg
from data.sources.image_source import Settings, Source, SourceSplit, fingerprint

LAYOUT = "generated"
OPTIONS = ("quality", "train", "eval", "classes")


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
        fingerprint=fingerprint("generated", train, evaluation, classes, quality, settings.seed),
        class_names=tuple(f"class{label:0{width}}" for label in range(classes)),
        train=_split(train, classes, (settings.seed, 0), quality),
        eval=_split(evaluation, classes, (settings.seed, 1), quality),
    )


def _split(count: int, classes: int, stream: tuple[int, int], quality: int) -> SourceSplit:
    def jpeg(index: int) -> bytes:
        return encode_jpeg(_draw_image(np.random.default_rng((*stream, index))), quality)

    return SourceSplit([index % classes for index in range(count)], jpeg)


def _draw_image(random: np.random.Generator) -> Image.Image:
    """Return noise whose power falls with frequency, as in photographs, of about 500 x 400 px (deviation: 80 px)."""
    width, height = (int(np.clip(random.normal(mean, 80), 200, 1000)) for mean in (500, 400))
    total = np.full((height, width, 3), 128, np.float32)
    for cell, strength in ((128, 90), (32, 50), (8, 25), (3, 12)):
        grid = random.integers(0, 256, (height // cell + 2, width // cell + 2, 3), np.uint8)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += (np.asarray(layer, np.float32) - 128) * (strength / 128)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))
