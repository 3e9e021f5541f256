"""Images like photographs in size and weight, from random numbers."""

from __future__ import annotations

import numpy as np
from PIL import Image

__all__ = ["draw_image"]


def draw_image(random: np.random.Generator) -> Image.Image:
    """Draw noise whose power falls with frequency, as in photographs, about 500 x 400 px with a spread."""
    width, height = (int(np.clip(random.normal(mean, 80), 200, 1000)) for mean in (500, 400))
    total = np.full((height, width, 3), 128, np.float32)
    for cell, strength in ((128, 90), (32, 50), (8, 25), (3, 12)):
        grid = random.integers(0, 256, (height // cell + 2, width // cell + 2, 3), np.uint8)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += (np.asarray(layer, np.float32) - 128) * (strength / 128)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))
