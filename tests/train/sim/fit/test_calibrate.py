"""The whole calibration by a points file, and what it refuses."""

import csv
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from train.sim.__main__ import main
from train.sim.constants import load_calibration
from train.sim.fit.calibrate import PUBLISHED_RATES, calibrate, framework_errors, largest_and_newest
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import read_points

EXCERPT = Path(__file__).parents[1] / "points.csv"
GOLDEN = EXCERPT.with_name("golden") / "calibration.yaml"
_CLOSE, _CLOSE_TO_ZERO = 5e-3, 1e-3
"""How closely the optimizer finds the same constants on another machine, relative and absolute."""


def _numbers(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: value for key in tree for name, value in _numbers(tree[key], f"{path}/{key}").items()}


@pytest.mark.slow
def test_a_calibration_by_a_few_points_changes_on_purpose_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``./run.sh simulate --calibrate tests/train/sim/points.csv --out tests/train/sim/golden/calibration.yaml``."""
    path = tmp_path / "constants.yaml"
    assert main(["simulate", "--calibrate", str(EXCERPT), "--out", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    found, expected = (_numbers(yaml.safe_load(each)) for each in (text, GOLDEN.read_text(encoding="utf-8")))
    assert list(found) == list(expected)
    for name, value in expected.items():
        is_close = pytest.approx(value, _CLOSE, _CLOSE_TO_ZERO) if isinstance(value, float) else value
        assert found[name] == is_close, name
    rows = path.with_suffix(".heldout.csv")
    hidden = list(csv.DictReader(rows.read_text(encoding="utf-8").splitlines()))
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(hidden) == sum(int(words[2]) for words in told if words[1] == "all")
    assert " ".join(told[-1]) == f"wrote {path} and, row by row, {rows}"


def test_the_error_of_a_framework_is_the_logarithm_of_predicted_over_published() -> None:
    predictor, constants = PointPredictor(), load_calibration().constants
    expected = defaultdict(list)
    for point in read_points(PUBLISHED_RATES):
        assert point.measured_images_per_s
        expected[point.lacks].append(math.log(predictor.rate(point, constants)) - math.log(point.measured_images_per_s))
    assert set(expected) == {"own kernels", "float32", "another network"}
    found = framework_errors(predictor, constants)
    assert {name: pytest.approx(errors) for name, errors in expected.items()} == found


def test_a_chip_is_known_up_to_its_largest_and_newest_point_whatever_the_order_of_the_rows() -> None:
    points = read_points(EXCERPT)
    largest, rounds = largest_and_newest(points)
    assert (largest, rounds) == largest_and_newest(points[::-1])
    for point in points:
        assert point.ranks <= largest[point.accelerator.chip]
        assert point.round <= rounds[point.accelerator.chip]
    assert {(chip, ranks) for chip, ranks in largest.items()} <= {(one.accelerator.chip, one.ranks) for one in points}
    assert {(chip, name) for chip, name in rounds.items()} <= {(one.accelerator.chip, one.round) for one in points}


@pytest.mark.parametrize(("rows", "chips"), [(19, 2), (20, 1)])
def test_too_few_points_or_chips_are_refused(rows: int, chips: int) -> None:
    points = [point for point in read_points(EXCERPT) if point.accelerator.chip == "A100"]
    points = points[:1] * (rows - chips + 1)
    if chips > 1:
        points.append(next(point for point in read_points(EXCERPT) if point.accelerator.chip == "V100"))
    words = f"got {rows} points with a measured rate, of {chips} chips, allowed: at least 20 points of 2"
    with pytest.raises(UserError, match=words):
        calibrate(points, PointPredictor(), print)
