"""The DALI pipeline that reads, decodes, cuts and normalises images, on a CPU or a GPU. Only this file imports DALI."""

import warnings
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # DALI 1.34 warns, past all filters, that it is experimental on Python 3.12. The tests pass there.
    warnings.showwarning = lambda *_, **__: None
    from nvidia import dali
    from nvidia.dali import fn, types
    from nvidia.dali.pipeline import Pipeline, pipeline_def

from configs.schema import EngineSettings, Recipe
from data.forms.form import Form
from data.input.batches import Arrays

DALI_VERSION: str = dali.__version__
"""The version whose checkpoints this process can continue from."""

READER = "reader"
"""Name of the reader operator in every pipeline."""

_COLOURS = 3

# Orientation tags are not followed (docs/images.md). DALI 1.34 knows no such argument and does not follow them.
_ORIENTATION = {} if DALI_VERSION.startswith("1.") else {"adjust_orientation": False}

# Without these sizes, nvJPEG grows its buffers at the first image that needs it, which stalls a step, and which failed
# on ImageNet's ILSVRC2012_val_00033687.JPEG. DALI's own ImageNet examples reserve the same sizes.
_GPU_DECODER = {
    "device_memory_padding": 211_025_920,
    "host_memory_padding": 140_544_512,
    "preallocate_width_hint": 5980,
    "preallocate_height_hint": 6430,
}

_FILE_ACCESS: dict[str, dict[str, Any]] = {
    "mapped": {},
    "mapped_ahead": {"read_ahead": True},
    "read": {"dont_use_mmap": True},
}
"""``engine.file_access`` -> arguments of the reader. Plain reads ignore ``read_ahead``."""


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
        arrays: Makes the arrays of the batches.
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
    arrays: Arrays

    @property
    def num_samples(self) -> int:
        """Number of images that the recipe expects."""
        data = self.recipe.data
        return data.train_samples if self.split == "train" else data.eval_samples

    @property
    def largest_shard(self) -> int:
        """Number of samples of the rank with the largest shard."""
        return -(-self.num_samples // self.world_size)


def make_pipeline(
    request: ReadRequest,
    reader: dict[str, Any],
    seed: int,
    *,
    is_augmented: bool,
    state: bytes = b"",
) -> Any:
    """Return a DALI pipeline that reads, decodes and normalises; all random operators take their numbers from the seed.

    The pipeline can make checkpoints. They take at most 0.1 MB a rank, and hardly any time (two cores, 32 digits:
    4.8 ms a batch without, 5.9 ms with, under a load that moves both by 1 ms).

    Args:
        request: The images to read.
        reader: Arguments of the reader operator: files, index, shard, shuffling, padding.
        seed: Seed of all random operators.
        is_augmented: Whether images are cut and flipped at random, instead of plainly.
        state: Checkpoint of a pipeline that this one continues; if empty, it starts at the beginning.
    """
    recipe, engine = request.recipe, request.engine
    modules = [idea.augmentation for idea in recipe.ideas if idea.augmentation and is_augmented]
    augmentations = [import_module(module).augmented for module in modules]

    def outputs() -> tuple[Any, Any, Any]:
        jpegs, labels = _read(request, reader)
        rows, in_order = recipe.rows(request.batch_size), range(request.batch_size)
        if is_augmented and rows != in_order:
            jpegs, labels = (fn.permute_batch(each, indices=list(rows)) for each in (jpegs, labels))
        images = _augmented_images(request, jpegs) if is_augmented else _plain_images(request, jpegs)
        mirror = fn.random.coin_flip() if is_augmented and recipe.data.flip else 0
        if augmentations:
            images, mirror = fn.flip(images, horizontal=mirror), 0
        for augmented in augmentations:
            images = augmented(images, recipe)
        return _normalised(request, images, mirror), labels, _sources_of(jpegs)

    # Only with conditionals can each image have operators of its own.
    define: Any = pipeline_def(enable_conditionals=bool(augmentations))
    return define(outputs)(
        batch_size=request.batch_size,
        num_threads=engine.input_threads,
        device_id=request.device_id,
        seed=seed,
        prefetch_queue_depth=engine.prefetch_depth,
        enable_checkpointing=True,
        checkpoint=state or None,
    )


def _normalised(request: ReadRequest, images: Any, mirror: Any) -> Any:
    """Return the images as the network takes them, mirrored where ``mirror`` is 1."""
    recipe, engine = request.recipe, request.engine
    side, channels = float(recipe.model.image_size), min(recipe.model.input_channels, _COLOURS)
    return fn.crop_mirror_normalize(
        images,
        crop=(side, side),
        mean=list(recipe.data.mean)[:channels],
        std=list(recipe.data.std)[:channels],
        mirror=mirror,
        # DALI normalises in float32 and rounds once, as a cast of each batch would (a test compares the bits).
        dtype=types.FLOAT16 if engine.precision == "float16" else types.FLOAT,  # type: ignore[attr-defined]
        output_layout=engine.layout.removeprefix("N"),
        pad_output=recipe.model.input_channels > channels,
    )


def make_reading_pipeline(request: ReadRequest, reader: dict[str, Any], seed: int) -> Any:
    """Return a pipeline that reads the records of `make_pipeline` in the same order, and gives only their sources."""
    request = replace(request, device_id=None)
    pipeline = Pipeline(  # type: ignore[no-untyped-call]
        request.batch_size, request.engine.input_threads, request.device_id, seed=seed, prefetch_queue_depth=1
    )
    with pipeline:
        jpegs, _ = _read(request, reader)
        pipeline.set_outputs(_sources_of(jpegs))  # type: ignore[no-untyped-call]
    return pipeline


def _read(request: ReadRequest, reader: dict[str, Any]) -> Any:
    read = getattr(fn.readers, request.images.reader)
    return read(lazy_init=True, name=READER, **reader_options(request) | reader)


def reader_options(request: ReadRequest) -> dict[str, Any]:
    """Return how the reader reads: of an image in the decoder's cache nothing, because DALI keeps its label too."""
    skips = {"skip_cached_images": True} if cache_options(request) else {}
    return {**_FILE_ACCESS[request.engine.file_access], **skips}


def _sources_of(jpegs: Any) -> Any:
    return fn.get_property(jpegs, key="source_info")


def decoder_options(request: ReadRequest) -> dict[str, Any]:
    """Return the arguments of an image decoder, which is nvJPEG on a GPU."""
    load = request.engine.hw_decoder_load
    share = {} if load is None else {"hw_decoder_load": load}
    where = {"device": "cpu"} if request.device_id is None else {"device": "mixed", **_GPU_DECODER, **share}
    is_grey = request.recipe.model.input_channels == 1
    return {**where, **_ORIENTATION, "output_type": types.GRAY if is_grey else types.RGB}  # type: ignore[attr-defined]


def cache_options(request: ReadRequest) -> dict[str, Any]:
    """Return the arguments of a decoder that keeps images in a GPU's memory: all of them, until the cache is full.

    A GPU has one cache: all decoders of a process must be told the same. DALI's CPU decoder has none.
    """
    size = request.engine.decoded_cache_bytes
    if request.device_id is None or not size:
        return {}
    return {"cache_size": max(1, size >> 20), "cache_type": "threshold"}


def _decode(request: ReadRequest, jpegs: Any) -> Any:
    """Return whole images."""
    return fn.decoders.image(jpegs, **decoder_options(request), **cache_options(request))


def _augmented_images(request: ReadRequest, jpegs: Any) -> Any:
    """Return decoded images, cut as `data.crop` says.

    Both decoders draw crops of the same distribution; with the same seed of the operator they draw the same crops.
    """
    crop, side = request.recipe.data.crop, request.recipe.model.image_size
    if crop.kind == "resized":
        window: dict[str, Any] = {"random_area": list(crop.area), "random_aspect_ratio": list(crop.aspect)}
        window["num_attempts"] = 100
        if request.engine.decoder == "whole" or request.engine.decoded_cache_bytes:
            return fn.random_resized_crop(_decode(request, jpegs), size=[side, side], **window, **_INTERPOLATION)
        images = fn.decoders.image_random_crop(jpegs, **window, **decoder_options(request))
        return _resize(images, resize_x=side, resize_y=side)
    images = _resize(_decode(request, jpegs), resize_x=side, resize_y=side)
    if crop.kind == "none" or not crop.padding:
        return images
    # Where the window reaches over the edge of the image, it is filled with black, as if the image were padded.
    corner = fn.random.uniform(values=[float(at) for at in range(-crop.padding, crop.padding + 1)], shape=[2])
    return fn.slice(
        images,
        corner,
        [float(side), float(side)],
        axes=[0, 1],
        normalized_anchor=False,
        normalized_shape=False,
        out_of_bounds_policy="pad",
        fill_values=0,
    )


def _plain_images(request: ReadRequest, jpegs: Any) -> Any:
    """Return decoded images, resized for the central crop that the normalisation cuts."""
    images = _decode(request, jpegs)
    data, side = request.recipe.data, request.recipe.model.image_size
    if data.eval_central_share is None:
        return _resize(images, resize_shorter=data.eval_resize or side)
    margin = (1 - data.eval_central_share) / 2
    window: dict[str, Any] = {"roi_start": [margin] * 2, "roi_end": [1 - margin] * 2, "roi_relative": True}
    return _resize(images, resize_x=side, resize_y=side, **window)


# Later versions of DALI switch antialiasing on by default; MLPerf's record runs were trained without. Without
# antialiasing, resizing takes a third less time on a CPU.
_INTERPOLATION: dict[str, Any] = {"interp_type": types.INTERP_LINEAR, "antialias": False}  # type: ignore[attr-defined]


def _resize(images: Any, **size: Any) -> Any:
    return fn.resize(images, **_INTERPOLATION, **size)
