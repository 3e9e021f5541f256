"""The fit on predictions of which every logarithm is a straight line, so that the best constants follow by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from train.sim.constants import CONSTANTS, Constants
from train.sim.fit.fitting import PRIORS, fit, uncertainty
from train.sim.fit.point_forecast import point_rate
from train.sim.fit.points import Point, read_points

EXCERPT = read_points(Path(__file__).parents[1] / "points.csv")
KNOWN = next(point for point in EXCERPT if point.program == "tuned")
EXPECTED = Constants(**{name: value for name, (value, _) in PRIORS.items()})


@pytest.fixture
def straight_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Predict the rate of a point with r ranks as the tail to the power r, and with 100 ranks as the straggler.

    Both are relative to their expected values.
    """

    def rate(point: Point, constants: Constants) -> float:
        if point.ranks == 100:
            return constants.straggler / PRIORS["straggler"][0]
        return float((constants.tail / PRIORS["tail"][0]) ** point.ranks)

    monkeypatch.setattr("train.sim.fit.fitting.point_rate", rate)


def _points(*logs: float, ranks: int = 1) -> list[Point]:
    return [replace(KNOWN, ranks=ranks, measured_images_per_s=math.exp(each)) for each in logs]


def _best(logs: Sequence[float], spread: float) -> float:
    """Return where the slope of the log posterior is 0: Student's t with 4 degrees of freedom and a scale of 2 %."""

    def slope(value: float) -> float:
        errors = [each - value for each in logs]
        return sum(5 * error / (4 * 0.02**2 + error**2) for error in errors) - value / spread**2

    low, high = -0.5, 0.5
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return low


@pytest.mark.usefixtures("straight_lines")
@pytest.mark.parametrize("logs", [(0.1,), (0.1, 0.14), (0.1, 0.12, 0.11, 1.5), (-0.2, -0.21)])
def test_a_constant_is_the_most_probable_one_and_a_point_that_is_far_off_hardly_counts(logs: Sequence[float]) -> None:
    found = fit(_points(*logs))
    assert math.log(found.tail / 0.5) == pytest.approx(_best(logs, 0.3), abs=1e-4)
    others = [name for name in PRIORS if name != "tail"]
    assert [getattr(found, name) for name in others] == pytest.approx([PRIORS[name][0] for name in others])


@pytest.mark.usefixtures("straight_lines")
def test_points_of_other_programs_and_without_a_rate_are_not_fitted() -> None:
    others = [replace(_points(3.0)[0], is_framework=True), replace(KNOWN, measured_images_per_s=None)]
    assert fit([*_points(0.1), *others]) == fit(_points(0.1))
    assert uncertainty([*_points(0.1), *others], EXPECTED) == uncertainty(_points(0.1), EXPECTED)


@pytest.mark.usefixtures("straight_lines")
def test_the_spread_of_a_constant_is_that_of_its_points_and_of_what_was_expected() -> None:
    # A point without an error weighs 5/4 / 0.02^2 = 3125, and with a slope of 3 nine times as much.
    found = uncertainty([*_points(0.0, 0.0), *_points(0.0, ranks=3)], EXPECTED)
    assert found["tail"] == pytest.approx((11 * 3125 + 0.3**-2) ** -0.5)
    assert {name: found[name] for name in PRIORS if name != "tail"} == pytest.approx(
        {name: spread for name, (_, spread) in PRIORS.items() if name != "tail"}
    )
    # Of an error of 4 %, twice the scale, the weight is 5 / (4 + 4) / 0.02^2; so it is if the constant is off as much.
    far = uncertainty(_points(0.04), EXPECTED)["tail"]
    assert far == pytest.approx((1562.5 + 0.3**-2) ** -0.5)
    moved = EXPECTED.replaced(tail=0.5 * math.exp(0.04))
    assert uncertainty(_points(0.08), moved)["tail"] == pytest.approx(far)


@pytest.mark.usefixtures("straight_lines")
def test_a_constant_that_is_left_out_keeps_its_expected_value_wherever_the_search_starts() -> None:
    points = [*_points(0.1), *_points(0.2, ranks=100)]
    found = fit(points, EXPECTED.replaced(tail=0.9, straggler=0.02), unfitted=["tail"])
    assert found.tail == 0.5
    assert math.log(found.straggler / 0.01) == pytest.approx(_best([0.2], 0.35), abs=1e-4)


def test_a_fit_finds_the_constants_that_made_the_points() -> None:
    true = Constants().replaced(compute_efficiency=0.4, memory_efficiency=0.7)
    points = [replace(point, measured_images_per_s=point_rate(point, true)) for point in EXCERPT]
    errors = [
        np.abs([math.log(point_rate(point, each) / point_rate(point, true)) for point in points]).mean()
        for each in (Constants(), fit(points))
    ]
    assert errors[1] < errors[0] / 4


def test_the_shipped_constants_were_fitted_with_these_expectations() -> None:
    tree = yaml.safe_load(CONSTANTS.read_text(encoding="utf-8"))["expected"]
    assert {name: (each["value"], each["log_spread"]) for name, each in tree.items()} == PRIORS
