"""A stream of batches: runs a DALI pipeline, copies its outputs into the framework's arrays, explains its errors."""

import ctypes
import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from data.forms.form import Form, Sample
from data.input.batches import DataError, TrainingBatch
from data.input.pipeline import READER, ReadRequest, make_pipeline, make_reading_pipeline

_DECODER = "fn.decoders."
"""In the error of a decoder."""

_NO_THREAD = "Resource temporarily unavailable"
"""In the error of a thread that the system refuses to start; it tells nothing of the images."""

_NO_MAPPING = "File mapping failed"
"""In the error of a file that is gone, or lies on a file system without mappings, as some in user space are."""

_OUTCOME = "pipeline object is no longer valid"


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


class Stream:
    """The batches of one DALI pipeline.

    Args:
        request: The images to read.
        reader: Arguments of the reader operator: files, index, shard, shuffling, padding.
        seed: Seed of all random operators.
        is_augmented: Whether images are cut and flipped at random, instead of plainly.
        left_out: How many images the index lacks.
        start: Checkpoint of a pipeline that this one continues, and the batches that were given before it since the
            first shard began.
    """

    def __init__(
        self,
        request: ReadRequest,
        reader: dict[str, Any],
        seed: int,
        *,
        is_augmented: bool,
        left_out: int = 0,
        start: tuple[bytes, int] = (b"", 0),
    ) -> None:
        self._request, self._reader, self._seed = request, reader, seed
        self._num_samples = request.num_samples - left_out
        self._initial_state: bytes | None = start[0]
        self._batches_given = start[1]
        self._is_running = False
        self._has_vectors = request.recipe.loss.has_label_vectors
        self._pipeline = make_pipeline(request, reader, seed, is_augmented=is_augmented, state=start[0])
        self._call(self._pipeline.build)

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
        image = self._request.images.name([_sample_in(self._request.images, sources, int(at))])
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
            samples = self._find_damaged()
        if _NO_THREAD in text:
            raise DataError(f"DALI cannot start its threads: {_NO_THREAD}")
        remedy = f"./run.sh prepare --verify {shlex.quote(str(self._request.folder))} names all damaged records"
        if _NO_MAPPING in text:
            remedy += "; if it names none, --set cluster.engine.file_access=read"
        verify = f"({_reason(text)}); {remedy}"
        if samples:
            raise UndecodableError(f"{images.name(sorted(samples))}: cannot be decoded {verify}", samples)
        raise DataError(f"{images.where}: DALI stopped {verify}")

    def _find_damaged(self) -> frozenset[Sample]:
        """Return the images that stopped the pipeline: DALI 2 says that a batch cannot be decoded, but not which image.

        A pipeline that only reads, with the same reader and seed, gives the images in the same order; it passes over
        the batches that were given, whose pages it does not touch. Pillow decodes the next ones, as ``./run.sh prepare
        --verify`` does. DALI 2.4 must not decode them: one in four of its processes crashed at a damaged image.

        Returns:
            Those of the first batch that has any; none if every image can be decoded: the cause was another one.
        """
        pipeline, images = make_reading_pipeline(self._request, self._reader, self._seed), self._request.images
        pipeline.build()
        for number in range(self._batches_given + self._request.engine.prefetch_depth + 1):
            (sources,) = pipeline.run()
            if number < self._batches_given:
                continue
            samples = (_sample_in(images, sources, row) for row in range(len(sources)))
            if bad := frozenset(filter(images.is_damaged, samples)):
                return bad
        return frozenset()


def _sample_in(images: Form, sources: Any, number: int) -> Sample:
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
