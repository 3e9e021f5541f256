"""A stream of batches: runs a DALI pipeline, copies its outputs into the framework's arrays, and explains its errors.

Calls methods of DALI's objects, but does not import DALI: `data.input.pipeline` makes the pipelines.
"""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.schema import EngineSettings, Recipe
from data.input.batches import Arrays, DataError, HostArrays, TrainingBatch
from data.recordio import find_wrong_length, index_rows

READER = "reader"
"""Name of the reader operator in every pipeline."""

_LOOK_S = 5.0
"""How long to look for a record of a wrong length after DALI has stopped: the other ranks wait."""

_DECODER = "fn.decoders."
"""In the error of a decoder."""

_NO_THREAD = "Resource temporarily unavailable"
"""In the error of a thread that the system refuses to start; it tells nothing of the images."""

_OUTCOME = "pipeline object is no longer valid"
_SOURCE = re.compile(r"(?P<path>.+) at index (?P<offset>\d+)")


@dataclass(frozen=True)
class ReadRequest:
    """The images that one rank reads, and the device that they go to.

    Attributes:
        recipe: Crop, flip, normalisation, shuffling, seed, number of samples.
        engine: Layout, threads, prefetching.
        folder: A packed data set.
        split: ``"train"`` or ``"eval"``.
        batch_size: Images of a micro-batch of this rank.
        rank: This rank, below ``world_size``.
        world_size: Number of ranks.
        device_id: GPU of this host; if None, the CPU.
        arrays: Makes the arrays of the batches; by default NumPy's.
    """

    recipe: Recipe
    engine: EngineSettings
    folder: Path
    split: str
    batch_size: int
    rank: int
    world_size: int
    device_id: int | None
    arrays: Arrays = field(default_factory=HostArrays)

    @property
    def rec(self) -> Path:
        """The file of records."""
        return self.folder / f"{self.split}.rec"

    @property
    def idx(self) -> Path:
        """The index of the records."""
        return self.folder / f"{self.split}.idx"

    @property
    def num_samples(self) -> int:
        """Number of records that the recipe expects."""
        data = self.recipe.data
        return data.train_samples if self.split == "train" else data.eval_samples

    @property
    def largest_shard(self) -> int:
        """Number of samples of the rank with the largest shard."""
        return -(-self.num_samples // self.world_size)


class UndecodableError(DataError):
    """The images of some records cannot be decoded.

    Args:
        text: The message.
        offsets: Byte offsets of these records in the file.
    """

    def __init__(self, text: str, offsets: frozenset[int]) -> None:
        super().__init__(text)
        self.offsets = offsets


class Start(NamedTuple):
    """The place where a stream starts.

    Attributes:
        checkpoint: The checkpoint that its pipeline was made with; empty at the beginning of a shard.
        batches_given: Batches that were given between that beginning and the checkpoint.
    """

    checkpoint: bytes = b""
    batches_given: int = 0


class Stream:
    """The batches of one DALI pipeline.

    Args:
        request: The images to read.
        pipeline: A pipeline, not built yet, with three outputs: images, labels, and the source of each image.
        num_samples: Number of records that the index of the pipeline should have.
        find_damaged: Returns the byte offsets of the records that stopped the pipeline, given the number of batches
            that it gave since its first shard began; asked where DALI does not name them.
        start: Where ``pipeline`` starts.
    """

    def __init__(
        self,
        request: ReadRequest,
        pipeline: Any,
        num_samples: int,
        *,
        find_damaged: Callable[[int], frozenset[int]],
        start: Start,
    ) -> None:
        self._request, self._pipeline, self._num_samples = request, pipeline, num_samples
        self._find_damaged = find_damaged
        self._initial_state: bytes | None = start.checkpoint
        self._batches_given = start.batches_given
        self._is_running = False
        self._has_vectors = request.recipe.loss.has_label_vectors
        self._call(pipeline.build)

    def start(self) -> None:
        """Open the files and begin to read ahead; does nothing if that is done already.

        Raises:
            DataError: A file cannot be read, or does not have the number of records that the recipe expects.
        """
        if self._is_running:
            return
        found = self._call(lambda: self._pipeline.reader_meta(READER)["epoch_size"])
        if found != self._num_samples:
            raise DataError(
                f"{self._request.idx}: {found} records, expected {self._num_samples}; prepare the data set again"
            )
        self._call(self._pipeline.schedule_run)
        self._is_running = True

    def next(self) -> TrainingBatch:
        """Return the next batch, and let DALI begin another one.

        Raises:
            DataError: A record cannot be used.
        """
        assert self._is_running
        images, labels, sources = self._call(self._pipeline.share_outputs)
        self._initial_state = None
        self._batches_given += 1
        self._check_labels(labels.as_array(), sources)
        # DALI keeps labels on the host.
        is_on_host = self._request.device_id is None
        batch = TrainingBatch(
            self._request.arrays.from_dali(images.as_tensor(), is_on_host=is_on_host),
            self._request.arrays.from_dali(self._dense_labels(labels), is_on_host=True),
        )
        self._pipeline.release_outputs()
        self._call(self._pipeline.schedule_run)
        return batch

    def state(self) -> bytes:
        """Return a checkpoint of the reader and the random operators after the last batch that `next` returned.

        Batches that DALI has read ahead do not count.
        """
        return bytes(self._pipeline.checkpoint()) if self._initial_state is None else self._initial_state

    def close(self) -> None:
        """Stop DALI's threads and free its memory."""
        self._pipeline = None
        self._is_running = False

    def _dense_labels(self, labels: Any) -> Any:
        tensor = labels.as_tensor()
        if not self._has_vectors:
            tensor.squeeze(-1)
        return tensor

    def _check_labels(self, labels: Any, sources: Any) -> None:
        """Raise DataError if a label is not a class. DALI keeps labels on the host, so this does not wait for a GPU."""
        num_classes = self._request.recipe.model.num_classes
        width, most = (num_classes, 1) if self._has_vectors else (1, num_classes - 1)
        if labels.shape[1] != width:
            raise DataError(f"{self._request.rec}: {labels.shape[1]} labels per image, expected {width}")
        is_class = (labels >= 0) & (labels <= most) & (labels == np.floor(labels))
        if is_class.all():
            return
        at, column = np.unravel_index(np.argmin(is_class), is_class.shape)
        record = self._name_records([offset_in(sources, int(at))])
        raise DataError(f"{record}: label {labels[at, column]:g}, allowed: whole numbers 0 to {most}")

    def _call(self, action: Callable[[], Any]) -> Any:
        """Call DALI, and turn its error, a page of text, into one line."""
        try:
            return action()
        except RuntimeError as error:
            text = str(error)
        offsets = frozenset(int(match["offset"]) for match in re.finditer(rf"File: {_SOURCE.pattern}", text))
        if not offsets and _DECODER in text:
            offsets = self._find_damaged(self._batches_given)
        if _NO_THREAD in text:
            raise DataError(f"DALI cannot start its threads: {_NO_THREAD}")
        folder = shlex.quote(str(self._request.folder))
        verify = f"({_reason(text)}); ./run.sh prepare --verify {folder} names all damaged records"
        if offsets:
            raise UndecodableError(f"{self._name_records(sorted(offsets))}: cannot be decoded {verify}", offsets)
        with suppress(OSError, ValueError, LookupError):
            if wrong := find_wrong_length(self._request.rec, self._request.idx, _LOOK_S):
                raise DataError(f"{wrong}; DALI stopped {verify}")
        raise DataError(f"{self._request.rec}: DALI stopped {verify}")

    def _name_records(self, offsets: list[int]) -> str:
        keys = {offset: key for key, offset in index_rows(self._request.idx)}
        records = (f"record {keys.get(offset, 'unknown')} at byte {offset}" for offset in offsets)
        return f"{self._request.rec}: {', '.join(records)}"


def offset_in(sources: Any, number: int) -> int:
    """Return the byte offset of a record of a batch, from the pipeline's output of sources."""
    source = _SOURCE.fullmatch(sources.at(number).tobytes().decode())
    assert source is not None
    return int(source["offset"])


def _reason(text: str) -> str:
    """Return the line of DALI's error text that says what happened: the last line before the first stack trace.

    DALI 2 ends with lines that only say that the pipeline cannot be used any more.
    """
    lines = text.partition("\nStacktrace")[0].splitlines()
    line = next((line for line in reversed(lines) if line and _OUTCOME not in line), lines[-1])
    return re.sub(r"^(Error in thread \d+: )?(\[\S+:\d+\] )*", "", line)
