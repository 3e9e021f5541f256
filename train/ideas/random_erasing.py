"""How a rectangle of a training image is erased."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from configs.ideas.part import Part, Place
from configs.ideas.random_erasing import RandomErasingKeys
from data.input.batches import TrainingBatch
from data.shards import stream_seed

_AREA, _ASPECT = (0.02, 0.33), (0.3, 3.3)
"""Least and largest share of the area, and ratio of height to width.

*Source*: ``RandomErasing`` of torchvision; the paper has areas up to 0.4 and ratios up to 1 / 0.3.
"""

_ATTEMPTS = 10


class RandomErasingPart(Part):
    """Sets a rectangle of some images to 0, which is the mean colour after the normalisation.

    The rectangles depend on seed, rank, step and micro-batch alone. Plain images (`data.plain_from_epoch`) stay whole.
    """

    def __init__(self, place: Place) -> None:
        self._place, self._probability = place, RandomErasingKeys.of(place.recipe.data).random_erasing
        plain = place.recipe.data.plain_from_epoch
        self._end = math.inf if plain is None else place.plan.epoch_steps(plain).start

    def batch(self, step: int, number: int, batch: TrainingBatch) -> TrainingBatch:
        """Queue the copy of the images of a micro-batch, and then what is erased of it."""
        if step >= self._end:
            return batch
        images, layout = self._place.engine.copy(batch.images), self._place.cluster.engine.layout
        stream = f"random erasing, step {step}, micro-batch {number}"
        key = stream_seed(self._place.recipe.run.seed, stream, self._place.rank)
        random = np.random.Generator(np.random.Philox(key=key))
        side = images.shape[layout.index("H")]
        for row in np.flatnonzero(random.random(len(images)) < self._probability).tolist():
            for box in _boxes(random, side):
                axes = dict(zip("NHW", (slice(row, row + 1), *box), strict=True))
                images[tuple(axes.get(axis, slice(None)) for axis in layout)] = 0
        return batch._replace(images=images)


def _boxes(random: np.random.Generator, side: int) -> Iterator[tuple[slice, slice]]:
    """Yield rows and columns of a rectangle of a square image; nothing if ten drawn ones reach over the image."""
    for _ in range(_ATTEMPTS):
        area, aspect = side**2 * random.uniform(*_AREA), math.exp(random.uniform(*np.log(_ASPECT)))
        sides = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if max(sides) < side:
            top, left = (int(random.integers(side - length + 1)) for length in sides)
            yield slice(top, top + sides[0]), slice(left, left + sides[1])
            return


part_of = RandomErasingPart
