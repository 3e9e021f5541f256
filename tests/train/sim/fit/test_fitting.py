"""The fit of the constants: to points that known constants made, to points that are far off, and to no point at all."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from train.sim.constants import CONSTANTS, Constants, load_calibration
from train.sim.fit.calibrate import PRIORS, fit, uncertainty
from train.sim.fit.points import Point, point_rate, read_points

EXCERPT = read_points(Path(__file__).parents[1] / "points.csv")
TUNED = [point for point in EXCERPT if point.program == "tuned"][::3]
EXPECTED = Constants(**{name: value for name, (value, _) in PRIORS.items()})
TRUE = replace(EXPECTED, compute_efficiency=0.4, memory_efficiency=0.7)


def _made_by(constants: Constants, points: list[Point]) -> list[Point]:
    return [replace(point, measured_images_per_s=point_rate(point, constants)) for point in points]


def _off(name: str, found: Constants, wanted: Constants) -> float:
    return abs(math.log(getattr(found, name) / getattr(wanted, name)))


@pytest.mark.medium
def test_a_fit_finds_the_constants_that_made_the_points_though_one_of_them_is_far_off() -> None:
    points = _made_by(TRUE, TUNED)
    odd = replace(points[0], measured_images_per_s=3 * (points[0].measured_images_per_s or 0))
    for given in (points, [odd, *points[1:]]):
        found = fit(given)
        for name in ("compute_efficiency", "memory_efficiency"):
            assert _off(name, found, TRUE) < 0.25 * _off(name, EXPECTED, TRUE), name


def test_only_measured_points_of_tuned_programs_are_fitted() -> None:
    others = [replace(TUNED[0], is_framework=True, measured_images_per_s=1.0)]
    others.append(replace(TUNED[0], measured_images_per_s=None))
    assert fit(others) == EXPECTED
    assert uncertainty([*TUNED, *others], EXPECTED) == uncertainty(TUNED, EXPECTED)


def test_without_a_point_that_depends_on_a_constant_its_spread_is_as_expected() -> None:
    # One node has neither a network nor a negotiation; one rank has no stragglers.
    points = [replace(TUNED[0], ranks=1, node=1, measured_images_per_s=900.0)]
    spreads = uncertainty(points, EXPECTED)
    for name in ("network_efficiency", "multinode_s", "straggler"):
        assert spreads[name] == pytest.approx(PRIORS[name][1])
    assert spreads["compute_efficiency"] < PRIORS["compute_efficiency"][1]


@pytest.mark.slow
def test_the_shipped_constants_and_their_spreads_are_found_again() -> None:
    """Within 1 %: the shipped ones are of an earlier optimizer, which ended when they moved by less than 0.5 %."""
    points = read_points(CONSTANTS.with_name("scaling_points.csv"))
    found, shipped = fit(points), load_calibration().constants
    tree = yaml.safe_load(CONSTANTS.read_text(encoding="utf-8"))
    spreads = uncertainty(points, found)
    for name in PRIORS:
        assert getattr(found, name) == pytest.approx(getattr(shipped, name), rel=1e-2), name
        assert spreads[name] == pytest.approx(tree["log_spread_after"][name], rel=0.05), name
