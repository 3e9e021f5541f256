"""Rows of a validation that only some points have, and whose points are inside."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from train.sim.constants import Interval
from train.sim.fit.heldout import HeldOutPrediction
from train.sim.fit.point_forecast import PointForecast
from train.sim.fit.points import read_points
from train.sim.hardware import find_accelerator
from train.sim.output.comparison import held_out_text, validation_text
from train.sim.startup_time import predict_init

POINT = replace(
    next(each for each in read_points(Path(__file__).parents[1] / "points.csv") if each.program == "tuned"),
    measured_images_per_s=1000.0, measured_time_s=None, measured_init_s=None,
)  # fmt: skip
EXACT = PointForecast(POINT, 1000.0, Interval("seen", "", 0.0, 0.0), 40, 60.0, 7.0)


def _products(text: str) -> list[list[str]]:
    return [line.split() for line in text.split("\n\n")[1].splitlines()[1:]]


def test_times_and_start_ups_have_a_row_where_they_were_measured() -> None:
    errors = {"A100": [0.5]}
    assert [row[:2] for row in _products(validation_text([(POINT, EXACT)], errors))] == [["A100", "1"], ["all", "1"]]
    init_s = predict_init(POINT.ranks, POINT.round, has_compiler=False)
    told = replace(POINT, measured_init_s=init_s / 2, measured_time_s=20.0)
    rows = _products(validation_text([(told, EXACT), (POINT, EXACT)], errors))
    assert rows[2:] == [
        ["all,", "time", "to", "train", "1", f"{math.log(3):.4g}", f"{math.log(3):.4g}"],
        ["all,", "start-up", "1", f"{math.log(2):.4g}", f"{math.log(2):.4g}"],
    ]


@pytest.mark.parametrize(("rate", "inside"), [(1000.0, 1), (999.9, 0), (1000.1, 0)])
def test_a_rate_at_the_end_of_its_interval_is_inside(rate: float, inside: int) -> None:
    text = validation_text([(POINT, replace(EXACT, images_per_s=rate))], {"A100": [0.5]})
    assert text.endswith(f"{inside} of 1 points ({inside:.0%}) are inside their interval")


def test_chips_with_a_compiler_have_twice_the_largest_error_of_the_others() -> None:
    compiled = replace(POINT, accelerator=find_accelerator("TPU v3"))
    for point, basis, share in ((compiled, "compiler", "100%"), (POINT, "unseen", "50%")):
        hidden = [HeldOutPrediction(point, "family", fold, error) for fold, error in (("a", 0.1), ("b", -0.15))]
        assert f"\n{share} of the points are inside the 90% interval '{basis}', if only" in held_out_text(hidden, 0.9)


def test_a_fifth_is_no_large_error() -> None:
    errors = (math.log(1.2), math.log(1.21), math.log(0.79))
    hidden = [HeldOutPrediction(POINT, "row", "a", error) for error in errors]
    assert held_out_text(hidden, 0.9).splitlines()[-1].split()[:6] == ["row", "all", "3", "21.0", "21.0", "2"]
