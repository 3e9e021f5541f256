"""Batches from a data set for one rank: shards, resuming, skipped images, and the switch to plain images."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.errors import UserError
from configs.schema import EngineSettings, Recipe
from data.forms.catalogue import form_of
from data.forms.form import Sample
from data.input.batches import EvaluationBatch, EvaluationSource, TrainingBatch, TrainingSource
from data.input.pipeline import DALI_VERSION, ReadRequest
from data.input.stream import Stream, UndecodableError
from data.shards import shard_range, stream_seed

logger = logging.getLogger(__name__)


def open_training(
    recipe: Recipe, engine: EngineSettings, folder: Path, *, state: bytes = b"", **place: Any
) -> TrainingSource:
    """Open this rank's endless stream of training images. No file is opened before the first epoch begins.

    Args:
        recipe: Crop, flip, normalisation, shuffling, the epoch from which images are plain, seed, number of samples.
        engine: Layout, threads, prefetching.
        folder: A data set (`data.prepare`).
        state: The state of a stream that this one continues; if empty, it starts at the beginning.
        place: The other fields of `ReadRequest`: batch size, rank, world size, which is at most the number of training
            images, device and arrays.
    """
    request = ReadRequest(recipe, engine, folder, "train", form_of(folder, "train"), **place)
    assert request.world_size <= recipe.data.train_samples
    return _PackedTraining(request, _StreamPosition.from_bytes(state) if state else _StreamPosition())


def open_evaluation(recipe: Recipe, engine: EngineSettings, folder: Path, **place: Any) -> EvaluationSource:
    """Open this rank's shard of the evaluation images.

    The arguments are those of `open_training`, but there may be more ranks than images.
    """
    return _PackedEvaluation(ReadRequest(recipe.evaluated, engine, folder, "eval", form_of(folder, "eval"), **place))


@dataclass(frozen=True)
class _StreamPosition:
    """The position of a training stream, as a checkpoint keeps it.

    Attributes:
        left_out: Images that could not be decoded.
        is_plain: Whether the stream has switched to plain images (`data.plain_from_epoch`).
        samples_given: Number of samples given since the stream began, or since the switch to plain images.
        opened_at: ``samples_given`` at the time when the current pipeline was made.
        pipeline: Checkpoint of the DALI pipeline; empty if the pipeline has given no batch.
        dali: Version of DALI that made the checkpoint.
    """

    left_out: frozenset[Sample] = frozenset()
    is_plain: bool = False
    samples_given: int = 0
    opened_at: int = 0
    pipeline: bytes = b""
    dali: str = DALI_VERSION

    def to_bytes(self) -> bytes:
        """Return a line of JSON, followed by the checkpoint of the DALI pipeline."""
        numbers = [sorted(self.left_out), self.is_plain, self.samples_given, self.opened_at, self.dali]
        return json.dumps(numbers).encode() + b"\n" + self.pipeline

    @classmethod
    def from_bytes(cls, content: bytes) -> _StreamPosition:
        """Return the position that `to_bytes` wrote, perhaps under another version of DALI.

        No version reads another one's checkpoint: the order of the images then begins anew in the shard that is due.
        Versions of this program before 0.2 did not record DALI's.
        """
        numbers, _, pipeline = content.partition(b"\n")
        try:
            left_out, is_plain, samples_given, opened_at, *version = json.loads(numbers)
            position = cls(frozenset(left_out), is_plain, samples_given, opened_at, pipeline)
        except (ValueError, TypeError):
            raise UserError(
                "the checkpoint does not say which images the run has seen; move it away to resume from the one before"
            ) from None
        if not pipeline or version in ([], [DALI_VERSION]):
            return position
        logger.warning(
            "the images are shuffled anew: the checkpoint was written with DALI %s, this is DALI %s",
            *version,
            DALI_VERSION,
        )
        return replace(position, opened_at=samples_given, pipeline=b"")


class _PackedTraining:
    """A `TrainingSource` that skips damaged records, and changes size and switches to plain images as the recipe says.

    The plain stream starts at the beginning of the shard, wherever the augmented stream stopped.
    """

    def __init__(self, request: ReadRequest, position: _StreamPosition) -> None:
        self._request, self._epoch, self._at = request, 1, position
        self._plain_from = request.recipe.data.plain_from_epoch
        self._index_folder: tempfile.TemporaryDirectory[str] | None = None
        self._stream = self._open(position)
        # The second pipeline is built before the run, so that the switch during the run costs only the first reads.
        self._plain = self._open_plain() if self._plain_from and not position.is_plain else None

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= 1
        if self._plain is not None and self._plain_from is not None and epoch >= self._plain_from:
            self._stream.close()
            self._stream, self._plain = self._plain, None
            self._at = _StreamPosition(self._at.left_out, is_plain=True)
        self._resize(epoch)
        self._stream.start()

    def _resize(self, epoch: int) -> None:
        """Go on with images of another size if the epoch has one; plain images have only one.

        A new pipeline continues from the checkpoint of the old one, so the records, the crops and the flips are those
        that would have followed, and what DALI has read ahead in the old size is dropped.
        """
        recipe, before, self._epoch = self._request.recipe, self._epoch, epoch
        sides = [recipe.of_epoch(each).model.image_size for each in (before, epoch)]
        if not self._at.is_plain and sides[0] != sides[1]:
            self._reopen(pipeline=self._stream.state())

    def next_batch(self) -> TrainingBatch:
        while True:
            try:
                batch = self._stream.next()
            except UndecodableError as error:  # noqa: PERF203 (rare, and a new pipeline costs far more)
                if self._request.recipe.data.bad_record == "stop":
                    raise
                logger.warning("left out of training: %s", error)
                self._leave_out(error.samples)
            else:
                self._at = replace(self._at, samples_given=self._at.samples_given + self._request.batch_size)
                return batch

    def state(self) -> bytes:
        return replace(self._at, pipeline=self._stream.state()).to_bytes()

    def close(self) -> None:
        for stream in filter(None, (self._stream, self._plain)):
            stream.close()
        if self._index_folder is not None:
            self._index_folder.cleanup()

    def _leave_out(self, samples: frozenset[Sample]) -> None:
        """Continue without these images; other ranks are not affected."""
        self._reopen(left_out=self._at.left_out | samples, opened_at=self._at.samples_given, pipeline=b"")
        self._stream.start()
        if self._plain is not None:
            self._plain.close()
            self._plain = self._open_plain()

    def _reopen(self, **changes: Any) -> None:
        """Go on with another pipeline, at a position that differs from the present one in these fields."""
        self._stream.close()
        self._at = replace(self._at, **changes)
        self._stream = self._open(self._at)

    def _open_plain(self) -> Stream:
        return self._open(_StreamPosition(self._at.left_out, is_plain=True))

    def _open(self, at: _StreamPosition) -> Stream:
        epoch = self._plain_from if at.is_plain and self._plain_from else self._epoch
        request = replace(self._request, recipe=self._request.recipe.of_epoch(epoch))
        data, sticks = request.recipe.data, request.engine.stick_to_shard
        # A new pipeline starts at the beginning of a shard. If shards rotate (each pass reads another shard), the
        # number of samples given tells which shard is due.
        passes = 0 if sticks else at.opened_at // request.largest_shard
        reader = {
            **self._files(at.left_out),
            "shard_id": (request.rank + passes) % request.world_size,
            "num_shards": request.world_size,
            "stick_to_shard": sticks,
            "random_shuffle": not at.is_plain,
            # A buffer larger than a shard would read the shard several times before the first batch.
            "initial_fill": min(data.shuffle_buffer, request.largest_shard),
        }
        seed = stream_seed(request.recipe.run.seed, f"train, {len(at.left_out)} left out", request.rank)
        state, samples = at.pipeline, at.samples_given - at.opened_at if at.pipeline else 0
        if state and DALI_VERSION.startswith("1."):
            from data.input.reader_age import with_reader_age  # noqa: PLC0415 (a run that begins needs no protobuf)

            def length_of_pass(number: int) -> int:
                shard = (request.rank + (0 if sticks else passes + number)) % request.world_size
                return len(shard_range(request.num_samples - len(at.left_out), shard, request.world_size))

            state = with_reader_age(state, samples, length_of_pass)
        return Stream(
            request,
            reader,
            seed,
            is_augmented=not at.is_plain,
            left_out=len(at.left_out),
            start=(state, samples // request.batch_size),
        )

    def _files(self, left_out: frozenset[Sample]) -> dict[str, Any]:
        """Return the files and indexes for the reader, the indexes without the images that are left out."""
        if not left_out:
            return self._request.images.arguments()
        if self._index_folder is None:
            self._index_folder = tempfile.TemporaryDirectory(prefix="without-bad-records-")
        return self._request.images.arguments(left_out, Path(self._index_folder.name))


class _PackedEvaluation:
    """An `EvaluationSource` that gives every image exactly once a pass, with any number of ranks."""

    def __init__(self, request: ReadRequest) -> None:
        shard = shard_range(request.num_samples, request.rank, request.world_size)
        self._num_valid = [min(request.batch_size, len(shard) - at) for at in range(0, len(shard), request.batch_size)]
        # DALI pads every shard to the length of the largest one, and pads that to whole batches.
        self._batches_per_pass = -(-request.largest_shard // request.batch_size)
        self._batches_read = 0
        self._stream: Stream | None = None
        if not shard:
            return
        # DALI refuses more shards than images. With more ranks than images, each rank that has an image takes a shard
        # of one image.
        has_more_ranks = request.world_size > request.num_samples
        reader = {
            **request.images.arguments(),
            "shard_id": shard.start if has_more_ranks else request.rank,
            "num_shards": min(request.world_size, request.num_samples),
            "stick_to_shard": True,
            "pad_last_batch": True,
        }
        seed = stream_seed(request.recipe.run.seed, "eval", request.rank)
        self._stream = Stream(request, reader, seed, is_augmented=False)

    def batches(self) -> Iterator[EvaluationBatch]:
        if self._stream is None:
            return
        self._stream.start()
        self._finish_pass(self._stream)
        for num_valid in self._num_valid:
            self._batches_read += 1
            yield EvaluationBatch(*self._stream.next(), num_valid)
        self._finish_pass(self._stream)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _finish_pass(self, stream: Stream) -> None:
        """Read and drop the rest of a pass: batches that the caller did not take, and padding to the largest shard."""
        while self._batches_read % self._batches_per_pass:
            self._batches_read += 1
            stream.next()
