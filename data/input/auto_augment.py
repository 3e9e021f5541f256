"""RandAugment and TrivialAugment in a DALI pipeline, of the operations of ``nvidia.dali.auto_aug``.

Operations and magnitudes are those of torchvision, but not Pillow's to the last bit: colour, contrast and sharpness
round otherwise, sharpness also changes the outermost pixels, and equalize is that of OpenCV.
"""

import warnings
from typing import Any

from nvidia.dali import fn, math, types
from nvidia.dali._autograph import do_not_convert  # type: ignore[attr-defined]
from nvidia.dali.auto_aug import augmentations
from nvidia.dali.auto_aug.core import select, signed_bin
from nvidia.dali.auto_aug.rand_augment import get_rand_augment_suite
from nvidia.dali.auto_aug.trivial_augment import get_trivial_augment_wide_suite

from configs.ideas.auto_augment import LARGEST_MAGNITUDE, AutoAugmentKeys
from configs.schema import Recipe

_MAGNITUDES = LARGEST_MAGNITUDE + 1
_TRANSLATION = 150 / 331
"""Largest translation of RandAugment, as a share of the side, as in torchvision; that of TrivialAugment is 32 px."""


def augmented(images: Any, recipe: Recipe) -> Any:
    """Return images to each of which the operations that were drawn for it are applied; gaps become black."""
    operations, draws = do_not_convert(_drawn)(recipe)
    settings = {"num_magnitude_bins": _MAGNITUDES, "fill_value": 0, "shape": (recipe.model.image_size,) * 2}
    for number, magnitude in draws:
        images = select(operations, number, images, magnitude_bin=magnitude, **settings)
    return images


def _drawn(recipe: Recipe) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """Return the operations, and for each layer the number of the operation and its magnitude with a random sign."""
    settings = AutoAugmentKeys.of(recipe.data)
    if settings.auto_augment == "randaugment":
        suite = get_rand_augment_suite(use_shape=True, max_translate_rel=_TRANSLATION)
        magnitudes = [_magnitude_near(settings) for _ in range(settings.randaugment_layers)]
    else:
        suite, magnitudes = get_trivial_augment_wide_suite(), [_whole_number(_MAGNITUDES)]
    if recipe.model.input_channels == 1:  # Grey has no colour that could be changed.
        suite = [augmentations.identity if each.name == "color" else each for each in suite]
    draws = [(_whole_number(len(suite)), signed_bin(magnitude)) for magnitude in magnitudes]
    return [_as_it_is(each) for each in suite], draws


def _as_it_is(operation: Any) -> Any:
    """Return an operation that DALI does not rewrite, which would take seconds, and that warns of nothing."""

    def applied(*images: Any, **settings: Any) -> Any:
        with warnings.catch_warnings():
            # DALI 2.4 warns, past all filters, of names of operators by which it calls them itself.
            warnings.showwarning = lambda *_, **__: None
            return operation(*images, **settings)

    return do_not_convert(applied)


def _magnitude_near(settings: AutoAugmentKeys) -> Any:
    """Return the magnitude of a layer of RandAugment: one for all images, or one for each."""
    mean, deviation = settings.randaugment_magnitude, settings.randaugment_std
    if not deviation:
        return mean
    nearest = math.floor(fn.random.normal(mean=mean, stddev=deviation) + 0.5)
    return fn.cast(math.clamp(nearest, 0, LARGEST_MAGNITUDE), dtype=types.INT32)  # type: ignore[attr-defined]


def _whole_number(count: int) -> Any:
    """Return a whole number below ``count`` for each image, drawn evenly."""
    return fn.random.uniform(values=list(range(count)), dtype=types.INT32)  # type: ignore[attr-defined]
