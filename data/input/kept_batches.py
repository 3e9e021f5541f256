"""A training source that reads its images once: what an epoch gave is kept, and given again in every later one.

It is what ``tf.data``'s ``cache()`` after augmentation does: later epochs cost no disk and no decoding, and see the
images cut and flipped as they were the first time.
"""

from __future__ import annotations

from data.input.batches import Batch, TrainingSource

__all__ = ["KeptBatches"]


class KeptBatches:
    """A `TrainingSource` around another, which is closed once an epoch of batches is in memory.

    Args:
        source: Reads.
        num_batches: Micro-batches of an epoch on this rank, rounded up.
        given: Batches that another one gave, where this one goes on; they are read again.
    """

    def __init__(self, source: TrainingSource, num_batches: int, given: int = 0) -> None:
        self._source, self._num_batches = source, num_batches
        self._kept: list[Batch] = []
        self._given = given

    def begin_epoch(self, epoch: int) -> None:
        """See `TrainingSource`."""
        assert epoch >= 1
        if len(self._kept) < self._num_batches:
            # All that is kept is of the first epoch, whichever this one goes on in.
            self._source.begin_epoch(1)
        while len(self._kept) < min(self._given, self._num_batches):
            self._read()

    def next_batch(self) -> Batch:
        """See `TrainingSource`."""
        if len(self._kept) < self._num_batches:
            self._read()
        self._given += 1
        return self._kept[(self._given - 1) % self._num_batches]

    def _read(self) -> None:
        self._kept.append(self._source.next_batch())
        if len(self._kept) == self._num_batches:
            self._source.close()

    def state(self) -> bytes:
        """See `TrainingSource`."""
        return str(self._given).encode()

    def close(self) -> None:
        """See `TrainingSource`."""
        if len(self._kept) < self._num_batches:
            self._source.close()
        self._kept.clear()
