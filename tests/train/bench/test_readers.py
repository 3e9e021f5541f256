"""The random windows that Pillow's reader cuts, with random numbers chosen by hand."""

import math
from typing import Any

import numpy as np
import pytest

from configs.schema import Crop
from train.bench import readers
from train.bench.readers import _random_box

CROP = Crop(area=(0.1, 1.0), aspect=(0.5, 2.0))


class _Chosen:
    """Gives the chosen numbers, and notes between which ends each was asked for."""

    def __init__(self, *numbers: float) -> None:
        self._numbers, self.ends = iter(numbers), list[tuple[float, float]]()

    def uniform(self, low: float, high: float) -> float:
        self.ends.append((low, high))
        return next(self._numbers)


def test_a_window_has_the_drawn_area_and_aspect_and_lies_in_the_image() -> None:
    random: Any = _Chosen(0.5, math.log(2.0), 7.0, 3.0)
    left, top, right, bottom = _random_box(random, (400, 200), CROP)
    assert (left, top) == (7.0, 3.0)
    # Half of 400 x 200 px, twice as wide as high.
    assert (right - left, bottom - top) == pytest.approx((math.sqrt(80_000), math.sqrt(20_000)))
    assert np.array(random.ends) == pytest.approx(
        np.array(
            [(0.1, 1.0), (math.log(0.5), math.log(2.0)), (0, 400 - math.sqrt(80_000)), (0, 200 - math.sqrt(20_000))]
        )
    )


def test_a_window_that_does_not_fit_is_drawn_again_and_the_whole_image_is_taken_in_the_end() -> None:
    # All of a square image, twice as wide as high or half as wide, is too wide or too high.
    too_wide, too_high = (1.0, math.log(2.0)), (1.0, math.log(0.5))
    random: Any = _Chosen(*too_wide, *too_high, 0.25, 0.0, 1.0, 2.0)
    assert _random_box(random, (100, 100), CROP) == pytest.approx((1.0, 2.0, 51.0, 52.0))
    random = _Chosen(*too_wide * readers._CROP_ATTEMPTS)
    assert _random_box(random, (100, 80), CROP) == (0, 0, 100, 80)
    assert len(random.ends) == 2 * 10


def test_a_window_may_be_the_whole_image() -> None:
    random: Any = _Chosen(1.0, 0.0, 0.0, 0.0)
    assert _random_box(random, (100, 100), CROP) == (0, 0, 100, 100)
    assert len(random.ends) == 4
