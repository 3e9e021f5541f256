"""How images of a micro-batch are mixed in pairs, with their labels: MixUp and CutMix."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from configs.ideas.mixing import MixingKeys
from configs.ideas.part import Part, Place
from data.input.batches import TrainingBatch
from data.shards import stream_seed


class Mix(NamedTuple):
    """How each image of a micro-batch is mixed with its partner, the image at the same place counted from the end.

    Attributes:
        share: Share of the image's own label; without a box also of its own pixels.
        box: Rows and columns, in pixels, that the image takes from its partner (CutMix). If None, the pixels of both
            are added by their shares (MixUp).
    """

    share: float
    box: tuple[slice, slice] | None = None

    def region(self, layout: str) -> tuple[slice, ...]:
        """Return the index of the box in images of a layout, such as NCHW."""
        assert self.box is not None
        axes = dict(zip("HW", self.box, strict=True))
        return tuple(axes.get(axis, slice(None)) for axis in layout)


class MixingPart(Part):
    """Mixes each image of a micro-batch with the image at the same place counted from the end.

    A mix depends on seed, rank, step and micro-batch alone. A share is drawn from Beta(alpha, alpha). Where a recipe
    has both kinds, each batch is of either with even odds. The box of CutMix has a centre drawn evenly and 1 - share of
    the image's area; what would lie beyond the border is cut off, and the share follows.

    *Source*: Zhang et al., arXiv:1710.09412, and Yun et al., arXiv:1905.04899 with ``rand_bbox`` in its code.
    """

    def __init__(self, place: Place) -> None:
        recipe, plan = place.recipe, place.plan
        keys = MixingKeys.of(recipe.data)
        self._place, self._alphas = place, (keys.mixup_alpha, keys.cutmix_alpha)
        plain = recipe.data.plain_from_epoch
        self._end = math.inf if plain is None else plan.epoch_steps(plain).start
        # First step of each size of the images -> their side.
        self._sides = {plan.epoch_steps(epochs[0]).start: taken.model.image_size for epochs, taken in recipe.spans}

    def mix(self, step: int, number: int) -> Mix:
        """Return the mix of a step's micro-batch ``number``, both counted from 0."""
        if step >= self._end:
            return Mix(1.0)
        stream = f"mixing, step {step}, micro-batch {number}"
        key = stream_seed(self._place.recipe.run.seed, stream, self._place.rank)
        random = np.random.Generator(np.random.Philox(key=key))
        kinds = [pair for pair in enumerate(self._alphas) if pair[1]]
        is_cut, alpha = kinds[random.integers(len(kinds))]
        share = random.beta(alpha, alpha)
        if not is_cut:
            return Mix(share)
        side = next(self._sides[first] for first in reversed(self._sides) if step >= first)
        return _cut(share, random.integers(side, size=2).tolist(), side)

    def batch(self, step: int, number: int, batch: TrainingBatch) -> TrainingBatch:
        """Queue the mix of a micro-batch; the labels become [B, 3], see `TrainingBatch`."""
        engine, mix, (images, labels) = self._place.engine, self.mix(step, number), batch
        others = engine.flip(images, 0)
        if mix.box is None:
            mixed = engine.lerp(others, images, mix.share)
        else:
            mixed, region = engine.copy(images), mix.region(self._place.cluster.engine.layout)
            mixed[region] = others[region]
        shares = engine.flag(labels, is_set=True) * mix.share
        return TrainingBatch(mixed, engine.stack((labels, engine.flip(labels, 0), shares), 1))


def _cut(share: float, centre: tuple[int, int], side: int) -> Mix:
    half = int(side * math.sqrt(1 - share)) // 2
    rows, columns = (slice(max(at - half, 0), min(at + half, side)) for at in centre)
    if not half:
        return Mix(1.0)
    return Mix(1 - (rows.stop - rows.start) * (columns.stop - columns.start) / side**2, (rows, columns))


part_of = MixingPart
