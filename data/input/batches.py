"""The interface between training and images, packed or synthetic. Imports nothing of ours and no framework."""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np


class DataError(RuntimeError):
    """A data set cannot be used; the text is one line that names the file and, if known, the record."""


class Arrays(Protocol):
    """What a source needs from the framework to make arrays; `train.engine.protocol.Engine` implements it."""

    def from_host(self, values: np.ndarray) -> Any:
        """Return an array on the rank's device with the values and the type of a host array."""

    def from_dali(self, tensor: Any, *, is_on_host: bool) -> Any:
        """Copy a dense tensor of DALI into a new array on the rank's device.

        The tensor may be overwritten as soon as this returns.

        Args:
            tensor: The tensor, float32 or float16.
            is_on_host: Whether the tensor is in the memory of the host instead of that of the rank's GPU.
        """

    def take(self, array: Any, rows: np.ndarray) -> Any:
        """Return the rows with the numbers in ``rows`` as a new array.

        The copy may still be queued when this returns.
        """


class TrainingBatch(NamedTuple):
    """One rank's micro-batch, in memory of its own on the rank's device; nothing overwrites it later.

    Attributes:
        images: Array [B, C, H, W], or [B, H, W, C] if ``engine.layout`` is NHWC; float16 if a data set is read for
            ``engine.precision: float16``, else float32.
        labels: Array of float32: [B] whole numbers from 0 to num_classes - 1, or [B, num_classes] zeros and ones if
            images have several labels. Where a step has mixed the images in pairs, [B, 3]: the classes of both, and the
            share of the first.
    """

    images: Any
    labels: Any


class EvaluationBatch(NamedTuple):
    """A `TrainingBatch` of which only the first ``num_valid`` samples count, 1 to B; the others fill the batch."""

    images: Any
    labels: Any
    num_valid: int


class TrainingSource(Protocol):
    """An endless stream of full batches. Samples left over at the end of an epoch come first in the next one."""

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
