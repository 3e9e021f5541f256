"""A stream of batches: runs a DALI pipeline, copies its outputs into the framework's arrays, and explains its errors.

Calls methods of DALI's objects, but does not import DALI: `data.input.pipeline` makes the pipelines.
"""

import ctypes
import os
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.schema import EngineSettings, Recipe
from data.forms.form import Form, Sample
from data.input.batches import Arrays, DataError, HostArrays, TrainingBatch

READER = "reader"
"""Name of the reader operator in every pipeline."""

_LOOK_S = 5.0
"""How long to look for a record of a wrong length after DALI has stopped: the other ranks wait."""

_DECODER = "fn.decoders."
"""In the error of a decoder."""

_NO_THREAD = "Resource temporarily unavailable"
"""In the error of a thread that the system refuses to start; it tells nothing of the images."""

_OUTCOME = "pipeline object is no longer valid"


@dataclass(frozen=True)
class ReadRequest:
    """The images that one rank reads, and the device that they go to.

    Attributes:
        recipe: Crop, flip, normalisation, shuffling, seed, number of samples.
        engine: Layout, threads, prefetching.
        folder: The data set.
        split: ``"train"`` or ``"eval"``.
        images: That part of it, in its form.
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
    images: Form
    batch_size: int
    rank: int
    world_size: int
    device_id: int | None
    arrays: Arrays = field(default_factory=HostArrays)

    @property
    def num_samples(self) -> int:
        """Number of images that the recipe expects."""
        data = self.recipe.data
        return data.train_samples if self.split == "train" else data.eval_samples

    @property
    def largest_shard(self) -> int:
        """Number of samples of the rank with the largest shard."""
        return -(-self.num_samples // self.world_size)


class UndecodableError(DataError):
    """Some images cannot be decoded.

    Args:
        text: The message.
        samples: These images.
    """

    def __init__(self, text: str, samples: frozenset[Sample]) -> None:
        super().__init__(text)
        self.samples = samples


class _HostTensor:
    """A host array with what `Arrays.from_dali` asks of a tensor of DALI; labels may have come as another type."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.__array_interface__ = values.__array_interface__

    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    def copy_to_external(self, pointer: ctypes.c_void_p) -> None:
        ctypes.memmove(pointer, self._values.ctypes.data, self._values.nbytes)


def in_order(samples: frozenset[Sample]) -> list[Sample]:
    """Return images of one form in the order of their places or names."""
    return sorted(samples)


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
        num_samples: Number of images that the index of the pipeline should have.
        find_damaged: Returns the images that stopped the pipeline, given the number of batches that it gave since its
            first shard began; asked where DALI does not name them.
        start: Where ``pipeline`` starts.
    """

    def __init__(
        self,
        request: ReadRequest,
        pipeline: Any,
        num_samples: int,
        *,
        find_damaged: Callable[[int], frozenset[Sample]],
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
            counts = f"{found} records, expected {self._num_samples}"
            raise DataError(f"{self._request.images.index}: {counts}; prepare the data set again")
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
        values = np.ascontiguousarray(self._request.images.labels(labels))
        self._check_labels(values, sources)
        # DALI keeps labels on the host.
        is_on_host = self._request.device_id is None
        batch = TrainingBatch(
            self._request.arrays.from_dali(images.as_tensor(), is_on_host=is_on_host),
            self._request.arrays.from_dali(_HostTensor(values if self._has_vectors else values[:, 0]), is_on_host=True),
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

    def _check_labels(self, labels: Any, sources: Any) -> None:
        """Raise DataError if a label is not a class. DALI keeps labels on the host, so this does not wait for a GPU."""
        num_classes = self._request.recipe.model.num_classes
        width, most = (num_classes, 1) if self._has_vectors else (1, num_classes - 1)
        if labels.shape[1] != width:
            raise DataError(f"{self._request.images.where}: {labels.shape[1]} labels per image, expected {width}")
        is_class = (labels >= 0) & (labels <= most) & (labels == np.floor(labels))
        if is_class.all():
            return
        at, column = np.unravel_index(np.argmin(is_class), is_class.shape)
        image = self._request.images.name([sample_in(self._request.images, sources, int(at))])
        raise DataError(f"{image}: label {labels[at, column]:g}, allowed: whole numbers 0 to {most}")

    def _call(self, action: Callable[[], Any]) -> Any:
        """Call DALI, and turn its error, a page of text, into one line."""
        try:
            return action()
        except RuntimeError as error:
            text = str(error)
        images = self._request.images
        told = re.finditer(rf"File: {images.source.pattern}", text)
        samples = frozenset(images.sample(match["sample"]) for match in told)
        if not samples and _DECODER in text:
            samples = self._find_damaged(self._batches_given)
        if _NO_THREAD in text:
            raise DataError(f"DALI cannot start its threads: {_NO_THREAD}")
        folder = shlex.quote(str(self._request.folder))
        verify = f"({_reason(text)}); ./run.sh prepare --verify {folder} names all damaged records"
        if samples:
            raise UndecodableError(f"{images.name(in_order(samples))}: cannot be decoded {verify}", samples)
        if wrong := images.why_stopped(_LOOK_S):
            raise DataError(f"{wrong}; DALI stopped {verify}")
        raise DataError(f"{images.where}: DALI stopped {verify}")


def sample_in(images: Form, sources: Any, number: int) -> Sample:
    """Return which image is at a place of a batch, from the pipeline's output of sources."""
    source = images.source.fullmatch(os.fsdecode(sources.at(number).tobytes()))
    assert source is not None
    return images.sample(source["sample"])


def _reason(text: str) -> str:
    """Return the line of DALI's error text that says what happened: the last line before the first stack trace.

    DALI 2 ends with lines that only say that the pipeline cannot be used any more.
    """
    lines = text.partition("\nStacktrace")[0].splitlines()
    line = next((line for line in reversed(lines) if line and _OUTCOME not in line), lines[-1])
    return re.sub(r"^(Error in thread \d+: )?(\[\S+:\d+\] )*", "", line)
