"""A training source that reads its images once, keeps the batches of the first epoch, and repeats them in later epochs.

It does what ``cache()`` after augmentation does in ``tf.data``: later epochs read no disk and decode nothing, and get
the images as they were cut and flipped in the first epoch.
"""

from data.input.batches import TrainingBatch, TrainingSource


class CachedBatches:
    """A `TrainingSource` around another one, which is closed as soon as one epoch of batches is in memory.

    Args:
        source: Reads the batches.
        num_batches: Micro-batches of an epoch on this rank, rounded up.
        batches_given: Number of batches that the interrupted run had used; this source reads them again.
    """

    def __init__(self, source: TrainingSource, num_batches: int, batches_given: int = 0) -> None:
        self._source, self._num_batches = source, num_batches
        self._cache: list[TrainingBatch] = []
        self._batches_given = batches_given

    def begin_epoch(self, epoch: int) -> None:
        """See `TrainingSource`."""
        assert epoch >= 1
        if len(self._cache) < self._num_batches:
            # The cached batches are those of the first epoch, even if a resumed run continues in a later one.
            self._source.begin_epoch(1)
        while len(self._cache) < min(self._batches_given, self._num_batches):
            self._read()

    def next_batch(self) -> TrainingBatch:
        """See `TrainingSource`."""
        if len(self._cache) < self._num_batches:
            self._read()
        self._batches_given += 1
        return self._cache[(self._batches_given - 1) % self._num_batches]

    def _read(self) -> None:
        self._cache.append(self._source.next_batch())
        if len(self._cache) == self._num_batches:
            self._source.close()

    def state(self) -> bytes:
        """See `TrainingSource`."""
        return str(self._batches_given).encode()

    def close(self) -> None:
        """See `TrainingSource`."""
        if len(self._cache) < self._num_batches:
            self._source.close()
