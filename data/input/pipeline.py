"""Images from RecordIO through DALI, on a CPU or a GPU from one description. The only importer of nvidia.dali."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvidia.dali import fn, types
from nvidia.dali.pipeline import Pipeline

from configs.schema import Engine, Recipe
from data.input.batches import EvaluationBatch, EvaluationSource, TrainingBatch, TrainingSource
from data.input.stream import READER, Reading, Stream, UndecodableError, index_rows
from data.shards import shard_range, stream_seed

__all__ = ["open_evaluation", "open_training"]

logger = logging.getLogger(__name__)

# nvJPEG grows its buffers at the first image that needs it, which stalls a step, and failed on ImageNet's
# ILSVRC2012_val_00033687.JPEG; these are the sizes that DALI's own ImageNet examples reserve.
_GPU_DECODER = {
    "device_memory_padding": 211_025_920,
    "host_memory_padding": 140_544_512,
    "preallocate_width_hint": 5980,
    "preallocate_height_hint": 6430,
}


def open_training(  # noqa: PLR0913
    recipe: Recipe, engine: Engine, folder: Path, *,
    batch_size: int, rank: int, world_size: int, device_id: int | None, state: bytes = b"",
) -> TrainingSource:  # fmt: skip
    """Open this rank's endless stream of training images; no file is touched before its first epoch.

    Args:
        recipe: Crop, flip, normalisation, shuffling, when both end, seed, number of samples.
        engine: Layout, threads, prefetching.
        folder: A prepared data set (`data.prepare`).
        batch_size: Images of a micro-batch of this rank.
        rank: This rank, below ``world_size``.
        world_size: All ranks; at most as many as there are training images.
        device_id: GPU of this host; None: the CPU.
        state: Where another stream stood; none: at the beginning.
    """
    assert world_size <= recipe.data.train_samples
    reading = Reading(recipe, engine, folder, "train", batch_size, rank, world_size, device_id)
    return _Training(reading, _Place.from_bytes(state) if state else _Place())


def open_evaluation(  # noqa: PLR0913
    recipe: Recipe, engine: Engine, folder: Path, *,
    batch_size: int, rank: int, world_size: int, device_id: int | None,
) -> EvaluationSource:  # fmt: skip
    """Open this rank's shard of the evaluation images; arguments as for `open_training`, any number of ranks."""
    return _Evaluation(Reading(recipe, engine, folder, "eval", batch_size, rank, world_size, device_id))


@dataclass(frozen=True)
class _Place:
    """Where a training stream stands.

    Attributes:
        left_out: Byte offsets of the records that could not be decoded.
        is_plain: Whether it turned to plain images.
        samples_given: Since it began, or turned to plain images.
        opened_at: ``samples_given`` when its pipeline was made.
        pipeline: DALI's own state; none: not begun.
    """

    left_out: frozenset[int] = frozenset()
    is_plain: bool = False
    samples_given: int = 0
    opened_at: int = 0
    pipeline: bytes = b""

    def to_bytes(self) -> bytes:
        """Write a line of JSON, then DALI's state."""
        numbers = [sorted(self.left_out), self.is_plain, self.samples_given, self.opened_at]
        return json.dumps(numbers).encode() + b"\n" + self.pipeline

    @classmethod
    def from_bytes(cls, content: bytes) -> _Place:
        """Read what `to_bytes` wrote."""
        numbers, _, pipeline = content.partition(b"\n")
        left_out, is_plain, samples_given, opened_at = json.loads(numbers)
        return cls(frozenset(left_out), is_plain, samples_given, opened_at, pipeline)


class _Training:
    """A `TrainingSource` that goes on behind a bad record, and turns to plain images, if the recipe says so.

    The plain stream begins at the head of its shard, whatever the last augmented batch carried over.
    """

    def __init__(self, reading: Reading, place: _Place) -> None:
        self._reading = reading
        self._left_out = place.left_out
        self._samples_given, self._opened_at = place.samples_given, place.opened_at
        self._private: tempfile.TemporaryDirectory[str] | None = None
        self._plain_from = reading.recipe.data.plain_from_epoch
        self._is_plain = place.is_plain
        self._stream = self._open(is_plain=place.is_plain, opened_at=place.opened_at, state=place.pipeline)
        # Built before the run, so that the switch costs no more than its first reads.
        self._plain = self._open(is_plain=True) if self._plain_from and not place.is_plain else None

    def begin_epoch(self, epoch: int) -> None:
        assert epoch >= 1
        if self._plain is not None and self._plain_from is not None and epoch >= self._plain_from:
            self._stream.close()
            self._stream, self._plain, self._is_plain = self._plain, None, True
            self._samples_given = self._opened_at = 0
        self._stream.start()

    def next_batch(self) -> TrainingBatch:
        while True:
            try:
                batch = self._stream.next()
            except UndecodableError as error:  # noqa: PERF203 (rare, and each time it costs a new pipeline)
                if self._reading.recipe.data.bad_record == "stop":
                    raise
                logger.warning("left out: %s", error)
                self._leave_out(error.offsets)
            else:
                self._samples_given += self._reading.batch_size
                return batch

    def state(self) -> bytes:
        place = _Place(self._left_out, self._is_plain, self._samples_given, self._opened_at, self._stream.state())
        return place.to_bytes()

    def close(self) -> None:
        for stream in filter(None, (self._stream, self._plain)):
            stream.close()
        if self._private is not None:
            self._private.cleanup()

    def _open(self, *, is_plain: bool, opened_at: int = 0, state: bytes = b"") -> Stream:
        reading, data, sticks = self._reading, self._reading.recipe.data, self._reading.engine.stick_to_shard
        # A new stream begins its shard anew. Where shards go round, the images given say which one it is by now.
        passes = 0 if sticks else opened_at // reading.largest_shard
        reader = {
            "shard_id": (reading.rank + passes) % reading.world_size,
            "num_shards": reading.world_size,
            "stick_to_shard": sticks,
            "random_shuffle": not is_plain,
            # To fill more than a shard would read it several times before the first batch.
            "initial_fill": min(data.shuffle_buffer, reading.largest_shard),
        }
        seed = stream_seed(reading.recipe.run.seed, f"train, {len(self._left_out)} left out", reading.rank)
        pipeline = _describe(reading, self._index(), reader, seed, is_augmented=not is_plain, state=state)
        return Stream(reading, pipeline, reading.num_samples - len(self._left_out), state)

    def _index(self) -> Path:
        """Give the data set's index, or one of our own that lacks the records left out."""
        if not self._left_out:
            return self._reading.idx
        if self._private is None:
            self._private = tempfile.TemporaryDirectory(prefix="without-bad-records-")
        idx = Path(self._private.name) / "train.idx"
        rows = [f"{key}\t{at}\n" for key, at in index_rows(self._reading.idx) if at not in self._left_out]
        idx.write_text("".join(rows), encoding="ascii")
        return idx

    def _leave_out(self, offsets: frozenset[int]) -> None:
        """Go on without these records; other ranks notice nothing."""
        self._stream.close()
        self._left_out |= offsets
        self._opened_at = self._samples_given
        self._stream = self._open(is_plain=self._is_plain, opened_at=self._opened_at)
        self._stream.start()
        if self._plain is not None:
            self._plain.close()
            self._plain = self._open(is_plain=True)


class _Evaluation:
    """An `EvaluationSource` that gives every image once a pass, at any number of ranks."""

    def __init__(self, reading: Reading) -> None:
        shard = shard_range(reading.num_samples, reading.rank, reading.world_size)
        self._num_valid = [min(reading.batch_size, len(shard) - at) for at in range(0, len(shard), reading.batch_size)]
        # DALI pads every shard to the largest one, and that to whole batches.
        self._batches_per_pass = -(-reading.largest_shard // reading.batch_size)
        self._batches_read = 0
        self._stream: Stream | None = None
        if not shard:
            return
        # DALI refuses more shards than images; each rank that has an image then takes a shard of one image.
        is_crowded = reading.world_size > reading.num_samples
        reader = {
            "shard_id": shard.start if is_crowded else reading.rank,
            "num_shards": min(reading.world_size, reading.num_samples),
            "stick_to_shard": True,
            "pad_last_batch": True,
        }
        seed = stream_seed(reading.recipe.run.seed, "eval", reading.rank)
        pipeline = _describe(reading, reading.idx, reader, seed, is_augmented=False)
        self._stream = Stream(reading, pipeline, reading.num_samples)

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
        """Drop what is left of a pass: of one that was cut short, or a batch that only larger shards need."""
        while self._batches_read % self._batches_per_pass:
            self._batches_read += 1
            stream.next()


def _describe(
    reading: Reading, idx: Path, reader: dict[str, Any], seed: int, *, is_augmented: bool, state: bytes | None = None
) -> Any:  # fmt: skip
    """Describe a pipeline: records, images, normalisation. All random operators follow from the seed.

    With a ``state``, even an empty one, it can tell where it stands: 0.1 MB a rank at most, and no time to speak of
    (two cores, 32 digits: 4.8 and 5.9 ms a batch, without and with, under a load that moves both by 1 ms).
    """
    recipe, engine = reading.recipe, reading.engine
    pipeline = Pipeline(  # type: ignore[no-untyped-call]
        reading.batch_size, engine.input_threads, reading.device_id,
        seed=seed, prefetch_queue_depth=engine.prefetch_depth,
        enable_checkpointing=state is not None, checkpoint=state or None,
    )  # fmt: skip
    with pipeline:
        jpegs, labels = fn.readers.mxnet(
            path=[str(reading.rec)], index_path=[str(idx)], lazy_init=True, name=READER, **reader
        )
        images = _augmented_images(reading, jpegs) if is_augmented else _plain_images(reading, jpegs)
        side, channels = float(recipe.model.image_size), min(recipe.model.input_channels, 3)
        images = fn.crop_mirror_normalize(
            images, crop=(side, side), mean=list(recipe.data.mean)[:channels], std=list(recipe.data.std)[:channels],
            mirror=fn.random.coin_flip() if is_augmented and recipe.data.flip else 0,
            dtype=types.FLOAT, output_layout=engine.layout.removeprefix("N"),  # type: ignore[attr-defined]
            pad_output=recipe.model.input_channels == 4,  # noqa: PLR2004
        )  # fmt: skip
        pipeline.set_outputs(images, labels, fn.get_property(jpegs, key="source_info"))  # type: ignore[no-untyped-call]
    return pipeline


def _decoder(reading: Reading) -> dict[str, Any]:
    """Give a decoder's arguments: nvJPEG on a GPU."""
    where = {"device": "cpu"} if reading.device_id is None else {"device": "mixed", **_GPU_DECODER}
    is_grey = reading.recipe.model.input_channels == 1
    return {**where, "output_type": types.GRAY if is_grey else types.RGB}  # type: ignore[attr-defined]


def _augmented_images(reading: Reading, jpegs: Any) -> Any:
    crop, side = reading.recipe.data.crop, reading.recipe.model.image_size
    if crop.kind == "resized":
        images = fn.decoders.image_random_crop(
            jpegs, random_area=list(crop.area), random_aspect_ratio=list(crop.aspect), num_attempts=100,
            **_decoder(reading),
        )  # fmt: skip
        return _resize(images, resize_x=side, resize_y=side)
    images = _resize(fn.decoders.image(jpegs, **_decoder(reading)), resize_x=side, resize_y=side)
    if crop.kind == "none" or not crop.padding:
        return images
    # A window that reaches over the edge sees black there, as if the image had been padded.
    corner = fn.random.uniform(values=[float(at) for at in range(-crop.padding, crop.padding + 1)], shape=[2])
    return fn.slice(
        images, corner, [float(side), float(side)], axes=[0, 1],
        normalized_anchor=False, normalized_shape=False, out_of_bounds_policy="pad", fill_values=0,
    )  # fmt: skip


def _plain_images(reading: Reading, jpegs: Any) -> Any:
    images = fn.decoders.image(jpegs, **_decoder(reading))
    shorter = reading.recipe.data.eval_resize or reading.recipe.model.image_size
    return _resize(images, resize_shorter=shorter)


def _resize(images: Any, **size: Any) -> Any:
    # Without the antialiasing that later DALI versions switch on, as in the records; a third cheaper on a CPU.
    return fn.resize(images, interp_type=types.INTERP_LINEAR, antialias=False, **size)  # type: ignore[attr-defined]
