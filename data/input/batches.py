"""The interface between training and images, packed or synthetic. Imports nothing of ours and no framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

__all__ = ["DataError", "EvaluationBatch", "EvaluationSource", "TrainingBatch", "TrainingSource"]


class DataError(RuntimeError):
    """A data set cannot be used; the text is one line that names the file and, if known, the record."""


class TrainingBatch(NamedTuple):
    """One rank's micro-batch, in memory of its own on the rank's device; nothing overwrites it later.

    Attributes:
        images: NDArray of float32 [B, C, H, W], or [B, H, W, C] if ``engine.layout`` is NHWC.
        labels: NDArray of float32: [B] whole numbers from 0 to num_classes - 1, or [B, num_classes] zeros and ones if
            images have several labels.
    """

    images: Any
    labels: Any


class EvaluationBatch(NamedTuple):
    """A `TrainingBatch` of which only the first ``num_valid`` samples count, 1 to B; the others fill the batch."""

    images: Any
    labels: Any
    num_valid: int


class TrainingSource(Protocol):
    """An endless stream of full batches; the samples that an epoch leaves over come first in the next epoch."""

    def begin_epoch(self, epoch: int) -> None:
        """Begin ``epoch``, counted from 1. No byte of a record is read before the first call."""

    def next_batch(self) -> TrainingBatch:
        """Return the next micro-batch; it has exactly the per-rank batch size.

        Raises:
            DataError: A record cannot be used.
        """

    def state(self) -> bytes:
        """Return the position after the last batch returned; a stream that is opened with it continues there."""

    def close(self) -> None:
        """Free threads and memory; the source cannot be used afterwards."""


class EvaluationSource(Protocol):
    """This rank's shard of the evaluation images, which can be read any number of times."""

    def batches(self) -> Iterator[EvaluationBatch]:
        """Yield the batches of one pass over the shard; none if the shard is empty.

        Raises:
            DataError: A record cannot be used.
        """

    def close(self) -> None:
        """Free threads and memory; the source cannot be used afterwards."""
