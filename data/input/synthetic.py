"""Seeded images made in memory: for tests, and to measure training without any input from disk; and blank ones.

A rehearsal takes blank images, in the number and the size of a real shard, which nobody reads, decodes or copies.

Each class has a coarse pattern of its own, under noise, so that a network can learn the classes. The patterns of
several classes add up. A pool of images is made once for each size, and image p of the endless global sequence is
image p modulo the length of the pool. So the images of a micro-batch follow from the recipe and from the position in
the global batch, however the global batch is divided into ranks and accumulation steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from configs.schema import EngineSettings, Recipe
from data.input.batches import Arrays, EvaluationBatch, EvaluationSource, TrainingBatch, TrainingSource
from data.shards import shard_range, stream_seed

_Take = Callable[[np.ndarray], TrainingBatch]
"""Returns the images at these positions of the global sequence."""

_POOL_BYTES = 64 << 20
_PATTERN_SIDE = 4
_CHANNELS = 3
_SHARE_OF_A_CLASS = 0.2
"""Share of the images that have a class, if an image may have several classes."""


def open_synthetic_training(  # noqa: PLR0913
    recipe: Recipe,
    engine: EngineSettings,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    arrays: Arrays,
    state: bytes = b"",
) -> TrainingSource:
    """Open this rank's endless stream of synthetic training images.

    A global batch is a sequence of micro-batches: those of all ranks for the first accumulation step, then those for
    the next. So micro-batch n of a rank is number ``n * world_size + rank`` of the run, whatever the accumulation, and
    two ranks see in one step the images that one rank sees in two accumulation steps.

    Args:
        recipe: Classes, image size, channels, number of samples, seed.
        engine: Layout.
        batch_size: Images of a micro-batch of this rank.
        rank: This rank, below ``world_size``.
        world_size: Number of ranks.
        arrays: Makes the arrays of the batches.
        state: The state of a stream that this one continues; if empty, it starts at the beginning.
    """
    spans = {span.recipe.model.image_size: span.recipe for span in recipe.spans}
    pools = {
        side: _pool(taken, engine, "train", recipe.data.train_samples, arrays, len(spans))
        for side, taken in spans.items()
    }

    def pool_of(epoch: int) -> _Take:
        return pools[recipe.of_epoch(epoch).model.image_size]

    return _SyntheticTraining(pool_of, recipe.rows(batch_size), int(state) if state else rank, world_size)


def open_synthetic_evaluation(
    recipe: Recipe,
    engine: EngineSettings,
    *,
    batch_size: int,
    rank: int,
    world_size: int,
    arrays: Arrays,
) -> EvaluationSource:
    """Open this rank's shard of the synthetic evaluation images; the arguments are those of training."""
    pool = _pool(recipe.evaluated, engine, "eval", recipe.data.eval_samples, arrays)
    return _SyntheticEvaluation(pool, batch_size, shard_range(recipe.data.eval_samples, rank, world_size))


def open_repeated(batch: TrainingBatch, state: bytes = b"") -> TrainingSource:
    """Return an endless stream of one batch; ``state`` is that of a stream that this one continues."""
    return _SyntheticTraining(lambda _: lambda _: batch, range(1), int(state or 0), 1)


def open_blank_evaluation(arrays: Arrays, shard: range, batch_size: int) -> EvaluationSource:
    """Return blank batches for the images of a shard; the last batch may be padded."""
    blank = blank_batch(arrays)
    return _SyntheticEvaluation(lambda _: blank, batch_size, shard)


def random_batch(
    arrays: Arrays, image_shape: Sequence[int], label_shape: Sequence[int], classes: int, image_type: str = "float32"
) -> TrainingBatch:
    """Return a batch of noise, by which steps are timed. Its labels are the classes in turn, or vectors of zeros.

    Args:
        arrays: Makes the arrays.
        image_shape: Shape of the images of a batch, with the number of images first.
        label_shape: Shape of the labels of a batch.
        classes: Number of classes.
        image_type: Type of the images.
    """
    images = np.random.default_rng(0).standard_normal(image_shape, np.float32).astype(image_type)
    labels = np.zeros(label_shape, np.float32)
    if labels.ndim == 1:
        labels += np.arange(len(labels)) % classes
    return TrainingBatch(arrays.from_host(images), arrays.from_host(labels))


class _SyntheticTraining:
    """See `TrainingSource`."""

    def __init__(self, pool_of: Callable[[int], _Take], rows: Sequence[int], micro_batch: int, world_size: int) -> None:
        self._pool_of, self._take, self._rows = pool_of, pool_of(1), np.array(rows)
        self._micro_batch, self._world_size = micro_batch, world_size

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= 1
        self._take = self._pool_of(epoch)

    def next_batch(self) -> TrainingBatch:
        start = self._micro_batch * len(self._rows)
        self._micro_batch += self._world_size
        return self._take(start + self._rows)

    def state(self) -> bytes:
        return str(self._micro_batch).encode()

    def close(self) -> None:
        """Nothing is open."""


class _SyntheticEvaluation:
    """See `EvaluationSource`."""

    def __init__(self, take: _Take, batch_size: int, shard: range) -> None:
        self._take, self._batch_size, self._shard = take, batch_size, shard

    def batches(self) -> Iterator[EvaluationBatch]:
        for start in range(self._shard.start, self._shard.stop, self._batch_size):
            num_valid = min(self._batch_size, self._shard.stop - start)
            positions = np.minimum(np.arange(start, start + self._batch_size), self._shard.stop - 1)
            yield EvaluationBatch(*self._take(positions), num_valid)

    def close(self) -> None:
        """Nothing is open."""


def _pool(
    recipe: Recipe, engine: EngineSettings, split: str, num_samples: int, arrays: Arrays, num_pools: int = 1
) -> _Take:
    """Make images and labels in the memory of the device; return the function that takes batches of them."""
    images, labels = _draw(recipe, split, num_samples, num_pools)
    if engine.layout == "NCHW":
        images = np.ascontiguousarray(images.transpose(0, 3, 1, 2))
    held, size = (arrays.from_host(images), arrays.from_host(labels)), len(labels)

    def take(positions: np.ndarray) -> TrainingBatch:
        return TrainingBatch(*(arrays.take(each, positions % size) for each in held))

    return take


def blank_batch(arrays: Arrays) -> TrainingBatch:
    """Return a batch of one blank image of no size."""
    blank = arrays.from_host(np.zeros(1, np.float32))
    return TrainingBatch(blank, blank)


def _draw(recipe: Recipe, split: str, num_samples: int, num_pools: int) -> tuple[Any, Any]:
    """Return a pool of normalised images [P, H, W, C], float32, and labels [P], or [P, classes] zeros and ones."""
    model, seed = recipe.model, recipe.run.seed
    side = model.image_size
    size = min(num_samples, max(1, _POOL_BYTES // num_pools // (side * side * model.input_channels * 4)))
    class_random = np.random.Generator(np.random.Philox(key=stream_seed(seed, "synthetic patterns", 0)))
    coarse = (model.num_classes, _PATTERN_SIDE, _PATTERN_SIDE, _CHANNELS)
    patterns = class_random.standard_normal(coarse, dtype=np.float32)
    split_random = np.random.Generator(np.random.Philox(key=stream_seed(seed, f"synthetic {split}", 0)))
    has_label_vectors = recipe.loss.has_label_vectors
    labels = (
        split_random.random((size, model.num_classes)) < _SHARE_OF_A_CLASS
        if has_label_vectors
        else split_random.integers(model.num_classes, size=size)
    )
    cells = np.arange(side) * _PATTERN_SIDE // side
    images = np.zeros((size, side, side, model.input_channels), np.float32)
    drawn = min(_CHANNELS, model.input_channels)
    for image, label in zip(images, labels, strict=True):
        noise = split_random.standard_normal((side, side, _CHANNELS), dtype=np.float32)
        pattern = patterns[label].sum(axis=0) if has_label_vectors else patterns[label]
        image[..., :drawn] = (pattern[cells][:, cells] + noise)[..., :drawn]
    return images, labels.astype(np.float32)
