"""How images of a micro-batch are mixed in pairs, with their labels: MixUp and CutMix. Pure: the engine mixes them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from configs.plan import RunPlan
from configs.schema import Recipe
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


@dataclass(frozen=True)
class Mixing:
    """Draws the mix of each micro-batch of a rank; it depends on seed, rank, step and micro-batch alone.

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


def mixing_of(recipe: Recipe, plan: RunPlan, rank: int) -> Mixing | None:
    """Return what draws a rank's mixes; None if the recipe mixes nothing."""
    data = recipe.data
    if not data.is_mixed:
        return None
    end = None if data.plain_from_epoch is None else plan.epoch_steps(data.plain_from_epoch).start
    sides = {plan.epoch_steps(epochs[0]).start: side for side, epochs in recipe.epochs_by_size.items()}
    return Mixing((data.mixup_alpha, data.cutmix_alpha), sides, recipe.run.seed, rank, end)
