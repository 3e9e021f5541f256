"""A running DALI pipeline as a stream of batches in MXNet's memory, and its errors in words.

Knows what DALI's objects can do, yet imports nothing of it: pipelines come from `data.input.pipeline`.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from configs.schema import Engine, Recipe
from data.input.batches import DataError, TrainingBatch

__all__ = ["READER", "Reading", "Stream", "UndecodableError", "index_rows"]

READER = "reader"
"""Name of the reader in every pipeline."""

_SOURCE = re.compile(r"(?P<path>.+) at index (?P<offset>\d+)")


@dataclass(frozen=True)
class Reading:
    """What is read, by whom, and where to."""

    recipe: Recipe
    engine: Engine
    folder: Path
    split: str
    batch_size: int
    rank: int
    world_size: int
    device_id: int | None

    @property
    def rec(self) -> Path:
        """The records."""
        return self.folder / f"{self.split}.rec"

    @property
    def idx(self) -> Path:
        """Their index."""
        return self.folder / f"{self.split}.idx"

    @property
    def num_samples(self) -> int:
        """Records that the recipe expects."""
        data = self.recipe.data
        return data.train_samples if self.split == "train" else data.eval_samples

    @property
    def largest_shard(self) -> int:
        """Samples of the rank that has most."""
        return -(-self.num_samples // self.world_size)


class UndecodableError(DataError):
    """Records whose image cannot be decoded.

    Args:
        text: The message.
        offsets: Where the records begin in their file.
    """

    def __init__(self, text: str, offsets: frozenset[int]) -> None:
        super().__init__(text)
        self.offsets = offsets


class Stream:
    """Batches of a pipeline whose outputs are images, labels and where each image came from.

    Args:
        reading: What is read.
        pipeline: The pipeline, not built yet.
        num_samples: Records that its index should hold.
        state: Where ``pipeline`` was told to go on; none: at the beginning.
    """

    def __init__(self, reading: Reading, pipeline: Any, num_samples: int, state: bytes = b"") -> None:
        self._reading, self._pipeline, self._num_samples = reading, pipeline, num_samples
        self._untouched: bytes | None = state
        self._context = mx.cpu() if reading.device_id is None else mx.gpu(reading.device_id)
        self._is_running = False
        self._has_vectors = reading.recipe.loss.kind == "sigmoid"
        pipeline.build()

    def start(self) -> None:
        """Open the files and begin to read ahead, if not done yet.

        Raises:
            DataError: A file cannot be read, or is not of the recipe's length.
        """
        if self._is_running:
            return
        found = self._call(lambda: self._pipeline.reader_meta(READER)["epoch_size"])
        if found != self._num_samples:
            raise DataError(
                f"{self._reading.idx}: {found} records, expected {self._num_samples}; prepare the data set again"
            )
        self._call(self._pipeline.schedule_run)
        self._is_running = True

    def next(self) -> TrainingBatch:
        """Give the next batch, and let DALI begin another.

        Raises:
            DataError: A record cannot be used.
        """
        assert self._is_running
        images, labels, sources = self._call(self._pipeline.share_outputs)
        self._untouched = None
        self._check_labels(labels.as_array(), sources)
        batch = TrainingBatch(_copy(images.as_tensor(), self._context), self._labels(labels.as_tensor()))
        self._pipeline.release_outputs()
        self._call(self._pipeline.schedule_run)
        return batch

    def state(self) -> bytes:
        """Give the state of reader and random operators after the last batch given; batches read ahead do not count."""
        return bytes(self._pipeline.checkpoint()) if self._untouched is None else self._untouched

    def close(self) -> None:
        """Stop DALI's threads and free its memory."""
        self._pipeline = None
        self._is_running = False

    def _labels(self, tensor: Any) -> Any:
        if not self._has_vectors:
            tensor.squeeze(-1)
        return _copy(tensor, mx.cpu()).as_in_context(self._context)

    def _check_labels(self, labels: Any, sources: Any) -> None:
        """Refuse labels that are no class. They are still on the host, whatever the device: nothing waits."""
        num_classes = self._reading.recipe.model.num_classes
        width, most = (num_classes, 1) if self._has_vectors else (1, num_classes - 1)
        if labels.shape[1] != width:
            raise DataError(f"{self._reading.rec}: {labels.shape[1]} labels an image, expected {width}")
        is_class = (labels >= 0) & (labels <= most) & (labels == np.floor(labels))
        if is_class.all():
            return
        at, column = np.unravel_index(np.argmin(is_class), is_class.shape)
        source = _SOURCE.fullmatch(sources.at(int(at)).tobytes().decode())
        assert source is not None
        record = self._name([int(source["offset"])])
        raise DataError(f"{record}: label {labels[at, column]:g}, allowed: whole numbers 0 to {most}")

    def _call(self, action: Callable[[], Any]) -> Any:
        """Call DALI; turn its page of text into one line."""
        try:
            return action()
        except RuntimeError as error:
            text = str(error)
        offsets = frozenset(int(match["offset"]) for match in re.finditer(rf"File: {_SOURCE.pattern}", text))
        verify = f"({_reason(text)}); ./run.sh prepare --verify {self._reading.folder} finds all that is wrong"
        if offsets:
            raise UndecodableError(f"{self._name(sorted(offsets))}: cannot be decoded {verify}", offsets)
        raise DataError(f"{self._reading.rec}: DALI stopped {verify}")

    def _name(self, offsets: list[int]) -> str:
        keys = {offset: key for key, offset in index_rows(self._reading.idx)}
        records = (f"record {keys.get(offset, 'unknown')} at byte {offset}" for offset in offsets)
        return f"{self._reading.rec}: {', '.join(records)}"


def index_rows(idx: Path) -> Iterator[tuple[str, int]]:
    """Give key and byte offset of each record of an index."""
    with idx.open(encoding="ascii") as lines:
        for line in lines:
            key, offset = line.split("\t")
            yield key, int(offset)


def _reason(text: str) -> str:
    """Find the sentence in DALI's error that says what happened: the last one before the first stack trace."""
    line = text.partition("\nStacktrace")[0].splitlines()[-1]
    return re.sub(r"^(Error in thread \d+: )?(\[\S+:\d+\] )*", "", line)


def _copy(tensor: Any, context: Any) -> Any:
    """Copy DALI's tensor into a fresh array.

    Fresh, because the engine reads a batch some steps after it was handed out; a ring of arrays was no faster (two
    cores: 0.06 ms for 32x3x32x32, 1.0 ms for 16x3x224x224). On a GPU this waits for the copy, since MXNet's streams
    know nothing of DALI's.
    """
    array = mx.nd.empty(tuple(tensor.shape()), ctx=context, dtype="float32")
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    tensor.copy_to_external(pointer)
    return array
