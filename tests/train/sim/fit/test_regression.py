"""The fit on predictions of which every logarithm is a straight line, so that the best constants follow by hand."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import yaml

from train.sim.constants import CONSTANTS, Constants
from train.sim.fit import regression
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point, read_points
from train.sim.fit.regression import PRIORS, fit, uncertainty

KNOWN = next(point for point in read_points(Path(__file__).parents[1] / "points.csv") if point.program == "tuned")
EXPECTED = Constants().replaced(**{name: value for name, (value, _) in PRIORS.items()})


class _Lines:
    """Predicts the rate of a point with r ranks as the tail to the power r, and of one with 100 ranks as the straggler.

    Both relative to their expected values.
    """

    def log_rates(self, points: Sequence[Point], constants: Constants) -> Any:
        tail, straggler = (math.log(getattr(constants, name) / PRIORS[name][0]) for name in ("tail", "straggler"))
        return np.array([straggler if point.ranks == 100 else point.ranks * tail for point in points])


PREDICTOR = cast(PointPredictor, _Lines())


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


@pytest.mark.parametrize("logs", [(0.1,), (0.1, 0.14), (0.1, 0.12, 0.11, 1.5), (-0.2, -0.21)])
def test_a_constant_is_the_most_probable_one_and_a_point_that_is_far_off_hardly_counts(
    logs: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regression, "_SETTLED", 1e-9)
    monkeypatch.setattr(regression, "_ITERATIONS", 100)
    found = fit(_points(*logs), PREDICTOR)
    assert math.log(found.tail / 0.5) == pytest.approx(_best(logs, 0.3), abs=1e-6)
    others = [name for name in PRIORS if name != "tail"]
    assert [getattr(found, name) for name in others] == pytest.approx([PRIORS[name][0] for name in others])


def test_points_of_other_programs_and_without_a_rate_are_not_fitted() -> None:
    others = [replace(_points(3.0)[0], is_framework=True), replace(KNOWN, measured_images_per_s=None)]
    assert fit([*_points(0.1), *others], PREDICTOR) == fit(_points(0.1), PREDICTOR)


def test_the_spread_of_a_constant_is_that_of_its_points_and_of_what_was_expected() -> None:
    # A point without an error weighs 5/4 / 0.02^2 = 3125, and with a slope of 3 nine times as much.
    found = uncertainty([*_points(0.0, 0.0), *_points(0.0, ranks=3)], PREDICTOR, EXPECTED)
    assert found["tail"] == pytest.approx((11 * 3125 + 0.3**-2) ** -0.5)
    assert {name: found[name] for name in PRIORS if name != "tail"} == pytest.approx(
        {name: spread for name, (_, spread) in PRIORS.items() if name != "tail"}
    )
    # Of an error of 4 %, twice the scale, the weight is 5 / (4 + 4) / 0.02^2; so it is if the constant is off as much.
    far = uncertainty(_points(0.04), PREDICTOR, EXPECTED)["tail"]
    assert far == pytest.approx((1562.5 + 0.3**-2) ** -0.5)
    moved = EXPECTED.replaced(tail=0.5 * math.exp(0.04))
    assert uncertainty(_points(0.08), PREDICTOR, moved)["tail"] == pytest.approx(far)


def test_a_constant_that_is_left_out_keeps_its_expected_value_though_the_steps_start_elsewhere() -> None:
    points = [*_points(0.1), *_points(0.2, ranks=100)]
    start = EXPECTED.replaced(tail=0.9)
    found = fit(points, PREDICTOR, start, unfitted=["tail"])
    assert found.tail == 0.5
    assert math.log(found.straggler / 0.01) == pytest.approx(_best([0.2], 0.35), abs=2e-3)


def test_no_step_is_longer_than_half_and_the_steps_begin_where_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "_ITERATIONS", 1)
    points = _points(*[2.0] * 1000)  # far off, but so many that one step would go nearly all the way
    assert math.log(fit(points, PREDICTOR).tail / 0.5) == pytest.approx(0.5)
    start = EXPECTED.replaced(tail=0.5 * math.exp(1.2))
    assert math.log(fit(points, PREDICTOR, start).tail / 0.5) == pytest.approx(1.7)


def test_a_fit_ends_when_a_step_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Constants] = []

    class Counted(_Lines):
        def log_rates(self, points: Sequence[Point], constants: Constants) -> Any:
            asked.append(constants)
            return super().log_rates(points, constants)

    fit(_points(0.1), cast(PointPredictor, Counted()))
    steps, rest = divmod(len(asked), 1 + len(PRIORS))
    assert rest == 0
    assert 2 <= steps < regression._ITERATIONS


def test_the_shipped_constants_were_fitted_with_these_expectations() -> None:
    tree = yaml.safe_load(CONSTANTS.read_text(encoding="utf-8"))["expected"]
    assert {name: (each["value"], each["log_spread"]) for name, each in tree.items()} == PRIORS
