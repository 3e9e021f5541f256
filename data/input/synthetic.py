"""Seeded images that touch no disk: for tests, and to measure all but the input.

Each class has its own coarse pattern, under noise, so that a network learns them; several classes add up. A pool of
images is made once; the image at position p of the endless global sequence is the pool's p modulo its length, so what
a micro-batch holds follows from the recipe and its place in the global batch, however that is cut into ranks and
accumulation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mxnet as mx
import numpy as np

from configs.schema import Engine, Recipe
from data.input.batches import EvaluationBatch, EvaluationSource, TrainingBatch, TrainingSource
from data.shards import shard_range, stream_seed

__all__ = ["open_synthetic_evaluation", "open_synthetic_training"]

_POOL_BYTES = 64 << 20
_PATTERN_SIDE = 4
_CHANNELS = 3
_SHARE_OF_A_CLASS = 0.2
"""Of the images, where each has any number of classes."""


def open_synthetic_training(  # noqa: PLR0913
    recipe: Recipe, engine: Engine, *, batch_size: int, rank: int, world_size: int, device_id: int | None = None,
    state: bytes = b"",
) -> TrainingSource:  # fmt: skip
    """Open this rank's endless stream of synthetic training images.

    A global batch is a row of micro-batches, rank by rank and then accumulation step by accumulation step; since
    one follows the other, a rank's n-th micro-batch is number ``n * world_size + rank`` of the run whatever the
    accumulation: two ranks see in a step what one rank sees in two accumulation steps.

    Args:
        recipe: Classes, image size, channels, number of samples, seed.
        engine: Layout.
        batch_size: Images of a micro-batch of this rank.
        rank: This rank, below ``world_size``.
        world_size: All ranks.
        device_id: GPU of this host; None: the CPU.
        state: Where another one stood; none: at the beginning.
    """
    pool = _Pool(recipe, engine, "train", recipe.data.train_samples, device_id)
    return _Training(pool, batch_size, int(state) if state else rank, world_size)


def open_synthetic_evaluation(
    recipe: Recipe, engine: Engine, *, batch_size: int, rank: int, world_size: int, device_id: int | None = None
) -> EvaluationSource:  # fmt: skip
    """Open this rank's shard of as many synthetic evaluation images as the recipe says; arguments as for training."""
    pool = _Pool(recipe, engine, "eval", recipe.data.eval_samples, device_id)
    return _Evaluation(pool, batch_size, shard_range(recipe.data.eval_samples, rank, world_size))


class _Training:
    """See `TrainingSource`."""

    def __init__(self, pool: _Pool, batch_size: int, block: int, world_size: int) -> None:
        self._pool, self._batch_size = pool, batch_size
        self._block, self._world_size = block, world_size

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= 1

    def next_batch(self) -> TrainingBatch:
        start = self._block * self._batch_size
        self._block += self._world_size
        return self._pool.take(np.arange(start, start + self._batch_size))

    def state(self) -> bytes:
        return str(self._block).encode()

    def close(self) -> None:
        """Nothing is open."""


class _Evaluation:
    """See `EvaluationSource`."""

    def __init__(self, pool: _Pool, batch_size: int, shard: range) -> None:
        self._pool, self._batch_size, self._shard = pool, batch_size, shard

    def batches(self) -> Iterator[EvaluationBatch]:
        for start in range(self._shard.start, self._shard.stop, self._batch_size):
            num_valid = min(self._batch_size, self._shard.stop - start)
            positions = np.minimum(np.arange(start, start + self._batch_size), self._shard.stop - 1)
            yield EvaluationBatch(*self._pool.take(positions), num_valid)

    def close(self) -> None:
        """Nothing is open."""


class _Pool:
    """Images in the device's memory, taken by position."""

    def __init__(self, recipe: Recipe, engine: Engine, split: str, num_samples: int, device_id: int | None) -> None:
        context = mx.cpu() if device_id is None else mx.gpu(device_id)
        images, labels = _draw(recipe, split, num_samples)
        if engine.layout == "NCHW":
            images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
        self._size = len(labels)
        self._images, self._labels = mx.nd.array(images, ctx=context), mx.nd.array(labels, ctx=context)

    def take(self, positions: Any) -> TrainingBatch:
        """Gather the images at these positions; queued in the engine, nothing waits."""
        rows = mx.nd.array(positions % self._size, dtype="int32").as_in_context(self._images.context)
        return TrainingBatch(mx.nd.take(self._images, rows), mx.nd.take(self._labels, rows))


def _draw(recipe: Recipe, split: str, num_samples: int) -> tuple[Any, Any]:
    """Draw a pool of normalised images [P, H, W, C], float32, and labels [P], or [P, classes] of 0 and 1."""
    model, seed = recipe.model, recipe.run.seed
    side = model.image_size
    size = min(num_samples, max(1, _POOL_BYTES // (side * side * model.input_channels * 4)))
    of_classes = np.random.Generator(np.random.Philox(key=stream_seed(seed, "synthetic patterns", 0)))
    coarse = (model.num_classes, _PATTERN_SIDE, _PATTERN_SIDE, _CHANNELS)
    patterns = of_classes.standard_normal(coarse, dtype=np.float32)
    of_split = np.random.Generator(np.random.Philox(key=stream_seed(seed, f"synthetic {split}", 0)))
    has_many = recipe.loss.kind == "sigmoid"
    labels = (
        of_split.random((size, model.num_classes)) < _SHARE_OF_A_CLASS
        if has_many
        else of_split.integers(model.num_classes, size=size)
    )
    cells = np.arange(side) * _PATTERN_SIDE // side
    images = np.zeros((size, side, side, model.input_channels), np.float32)
    drawn = min(_CHANNELS, model.input_channels)
    for image, label in zip(images, labels, strict=True):
        noise = of_split.standard_normal((side, side, _CHANNELS), dtype=np.float32)
        pattern = patterns[label].sum(axis=0) if has_many else patterns[label]
        image[..., :drawn] = (pattern[cells][:, cells] + noise)[..., :drawn]
    return images, labels.astype(np.float32)
