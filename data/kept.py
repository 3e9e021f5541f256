"""A training source that reads its images once: what an epoch gave is kept, and given again in every later one.

It is what ``tf.data``'s ``cache()`` after augmentation does: later epochs cost no disk and no decoding, and see the
images cut and flipped as they were the first time.
"""

from __future__ import annotations

from data.source import Batch, TrainingSource

__all__ = ["KeptBatches"]


class KeptBatches:
    """A `TrainingSource` around another, which is closed once an epoch of batches is in memory.

    Args:
        source: Reads.
        num_batches: Micro-batches of an epoch on this rank, rounded up.
    """

    def __init__(self, source: TrainingSource, num_batches: int) -> None:
        self._source, self._num_batches = source, num_batches
        self._kept: list[Batch] = []
        self._given = 0

    def begin_epoch(self, epoch: int) -> None:
        """See `TrainingSource`."""
        if len(self._kept) < self._num_batches:
            self._source.begin_epoch(epoch)

    def next_batch(self) -> Batch:
        """See `TrainingSource`."""
        if len(self._kept) < self._num_batches:
            self._kept.append(self._source.next_batch())
            if len(self._kept) == self._num_batches:
                self._source.close()
        self._given += 1
        return self._kept[(self._given - 1) % self._num_batches]

    def close(self) -> None:
        """See `TrainingSource`."""
        if len(self._kept) < self._num_batches:
            self._source.close()
        self._kept.clear()
