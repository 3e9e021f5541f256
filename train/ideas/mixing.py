"""How images of a micro-batch are mixed in pairs, with their labels: MixUp and CutMix."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from configs.ideas.mixing import MixingKeys
from configs.ideas.part import Part, Place
from configs.plan import RunPlan
from configs.schema import Recipe
from data.input.batches import TrainingBatch
from data.shards import stream_seed
from train.engine.protocol import Engine


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


@dataclass(frozen=True)
class Mixing:
    """Draws the mix of each micro-batch of a rank. A mix depends on seed, rank, step and micro-batch alone.

    A share is drawn from Beta(alpha, alpha). Where a recipe has both kinds, each batch is of either with even odds. The
    box of CutMix has a centre drawn evenly and 1 - share of the image's area; what would lie beyond the border is cut
    off, and the share follows.

    *Source*: Zhang et al., arXiv:1710.09412, and Yun et al., arXiv:1905.04899 with ``rand_bbox`` in its code.

    Attributes:
        alphas: Of MixUp and of CutMix; 0 leaves a kind out.
        sides: First step of each size of the images, ascending -> their side, px.
        seed: Of the run.
        rank: This rank.
        end: First step whose images stay as they are. If None, there is none.
    """

    alphas: tuple[float, float]
    sides: Mapping[int, int]
    seed: int
    rank: int
    end: int | None = None

    def __call__(self, step: int, number: int) -> Mix:
        """Return the mix of a step's micro-batch ``number``, both counted from 0."""
        if self.end is not None and step >= self.end:
            return Mix(1.0)
        stream = f"mixing, step {step}, micro-batch {number}"
        random = np.random.Generator(np.random.Philox(key=stream_seed(self.seed, stream, self.rank)))
        kinds = [pair for pair in enumerate(self.alphas) if pair[1]]
        is_cut, alpha = kinds[random.integers(len(kinds))]
        share = random.beta(alpha, alpha)
        if not is_cut:
            return Mix(share)
        side = next(self.sides[first] for first in reversed(self.sides) if step >= first)
        return _cut(share, random.integers(side, size=2).tolist(), side)


def _cut(share: float, centre: tuple[int, int], side: int) -> Mix:
    half = int(side * math.sqrt(1 - share)) // 2
    rows, columns = (slice(max(at - half, 0), min(at + half, side)) for at in centre)
    if not half:
        return Mix(1.0)
    return Mix(1 - (rows.stop - rows.start) * (columns.stop - columns.start) / side**2, (rows, columns))


class MixingPart(Part):
    """Mixes each image of a micro-batch with the image at the same place counted from the end.

    Args:
        engine: Has the images.
        layout: The axes of images, such as NCHW.
        draw: Returns the mix of a step's micro-batch.
    """

    def __init__(self, engine: Engine, layout: str, draw: Mixing) -> None:
        self._engine, self._layout, self._draw = engine, layout, draw

    def batch(self, step: int, number: int, batch: TrainingBatch) -> TrainingBatch:
        """Queue the mix of a micro-batch; the labels become [B, 3], see `TrainingBatch`."""
        engine, mix, (images, labels) = self._engine, self._draw(step, number), batch
        others = engine.flip(images, 0)
        if mix.box is None:
            mixed = engine.lerp(others, images, mix.share)
        else:
            mixed, region = engine.copy(images), mix.region(self._layout)
            mixed[region] = others[region]
        shares = engine.flag(labels, is_set=True) * mix.share
        return TrainingBatch(mixed, engine.stack((labels, engine.flip(labels, 0), shares), 1))


def mixing_of(recipe: Recipe, plan: RunPlan, rank: int) -> Mixing:
    """Return what draws a rank's mixes."""
    plain = recipe.data.plain_from_epoch
    end = None if plain is None else plan.epoch_steps(plain).start
    sides = {plan.epoch_steps(epochs[0]).start: taken.model.image_size for epochs, taken in recipe.spans}
    keys = MixingKeys.of(recipe.data)
    return Mixing((keys.mixup_alpha, keys.cutmix_alpha), sides, recipe.run.seed, rank, end)


def part_of(place: Place) -> MixingPart:
    """Return the part of a rank, which draws mixes of its own."""
    draw = mixing_of(place.recipe, place.plan, place.rank)
    return MixingPart(place.engine, place.cluster.engine.layout, draw)
