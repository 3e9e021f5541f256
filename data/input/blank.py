"""Blank batches, in the number and the size of a real shard, for rehearsals: nothing is read, decoded or copied."""

from collections.abc import Iterator

import numpy as np

from data.input.batches import Arrays, EvaluationBatch, EvaluationSource, TrainingBatch, TrainingSource


def open_blank_training(arrays: Arrays, state: bytes = b"") -> TrainingSource:
    """Return an endless stream of one blank batch; ``state`` is that of a stream that this one continues."""
    return _BlankTraining(arrays, int(state or 0))


def open_blank_evaluation(arrays: Arrays, shard: range, batch_size: int) -> EvaluationSource:
    """Return blank batches for the images of a shard; the last batch may be padded."""
    return _BlankEvaluation(arrays, shard, batch_size)


class _BlankTraining:
    """See `TrainingSource`."""

    def __init__(self, arrays: Arrays, batches_given: int) -> None:
        blank = arrays.from_host(np.zeros(1, np.float32))
        self._batch = TrainingBatch(blank, blank)
        self._batches_given = batches_given

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= 1

    def next_batch(self) -> TrainingBatch:
        self._batches_given += 1
        return self._batch

    def state(self) -> bytes:
        return str(self._batches_given).encode()

    def close(self) -> None:
        """Nothing is open."""


class _BlankEvaluation:
    """See `EvaluationSource`."""

    def __init__(self, arrays: Arrays, shard: range, batch_size: int) -> None:
        self._blank = arrays.from_host(np.zeros(1, np.float32))
        self._shard, self._batch_size = shard, batch_size

    def batches(self) -> Iterator[EvaluationBatch]:
        for start in range(self._shard.start, self._shard.stop, self._batch_size):
            yield EvaluationBatch(self._blank, self._blank, min(self._batch_size, self._shard.stop - start))

    def close(self) -> None:
        """Nothing is open."""
