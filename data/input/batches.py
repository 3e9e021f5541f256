"""What the training side sees of its images, real or synthetic. Imports nothing of ours and no framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

__all__ = ["Batch", "DataError", "EvaluationBatch", "EvaluationSource", "TrainingSource"]


class DataError(RuntimeError):
    """A data set that proved unusable while it was read; one line that names the file and, if known, the record."""


class Batch(NamedTuple):
    """One rank's micro-batch, on the rank's device, its own memory: nothing overwrites it later.

    ``images`` is a float32 NDArray [B, C, H, W] (or [B, H, W, C], as ``engine.layout`` says), ``labels`` a float32
    NDArray [B] of whole numbers in [0, num_classes), or [B, num_classes] of 0 and 1 where images have many labels.
    """

    images: Any
    labels: Any


class EvaluationBatch(NamedTuple):
    """A `Batch` of which only the first ``num_valid`` samples count (1 to B); the others pad it."""

    images: Any
    labels: Any
    num_valid: int


class TrainingSource(Protocol):
    """An endless stream of full batches; what an epoch leaves over is carried into the next."""

    def begin_epoch(self, epoch: int) -> None:
        """Say that 1-based ``epoch`` begins. No byte of a record is read before the first call."""

    def next_batch(self) -> Batch:
        """Give the next micro-batch of exactly the per-rank batch size.

        Raises:
            DataError: A record cannot be used.
        """

    def state(self) -> bytes:
        """Say where the stream stands, after the last batch given: opened with it, another one goes on there."""

    def close(self) -> None:
        """Free threads and memory; the source is of no use afterwards."""


class EvaluationSource(Protocol):
    """This rank's shard of the evaluation images, any number of times."""

    def batches(self) -> Iterator[EvaluationBatch]:
        """Pass over the shard once; no batch at all if the shard is empty.

        Raises:
            DataError: A record cannot be used.
        """

    def close(self) -> None:
        """Free threads and memory; the source is of no use afterwards."""
