"""Which points are hidden together, which of the rest a fit may see, and the errors of the hidden ones."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from train.sim.constants import load_calibration
from train.sim.fit.calibrate import (
    HeldOutPrediction,
    covered,
    folds,
    hold_out,
    quantile,
    twice_the_largest,
)
from train.sim.fit.points import Point, forecast_point, point_rate, read_points
from train.sim.hardware import find_accelerator

EXCERPT = read_points(Path(__file__).parents[1] / "points.csv")
KNOWN = next(point for point in EXCERPT if point.program == "tuned")
A100, V100 = find_accelerator("A100-SXM4-40GB"), find_accelerator("V100-SXM2-16GB")


def _point(submitter: str, ranks: int, mlperf_round: str = "1.0", **others: Any) -> Point:
    given = {"accelerator": A100, "batch": 64, "system": "", "node": 8, "measured_images_per_s": 1e5, **others}
    return replace(KNOWN, submitter=submitter, ranks=ranks, round=mlperf_round, **given)


def _names(kind: str, points: list[Point]) -> dict[str, list[str]]:
    return {name: [point.submitter for point in fold] for name, fold in folds(kind, points).items()}


def test_a_family_is_a_chip_and_the_largest_are_those_of_a_product_with_several_nodes() -> None:
    other = find_accelerator("A100-PCIE-40GB")
    points = [_point("a", 8), _point("b", 16), _point("c", 64, accelerator=other), _point("d", 8, accelerator=V100)]
    assert _names("family", points) == {"A100": ["a", "b", "c"], "V100": ["d"]}
    expected = {other.name: [], A100.name: ["b"], V100.name: []}
    assert [*_names("largest", points).items()] == sorted(expected.items())
    for ranks, largest in (((8, 16, 32), [2]), ((32, 16, 32), [0, 2]), ((32, 32), []), ((8, 4), [])):
        points = [_point(str(number), each) for number, each in enumerate(ranks)]
        assert _names("largest", points) == {A100.name: [str(number) for number in largest]}


def test_campaigns_are_dealt_out_whole_to_eight_parts() -> None:
    points = [_point(name, 8) for name in "abcdefghij"]
    campaigns = _names("campaign", [*points, _point("A", 8), _point("a", 8, "2.0")])
    assert [*campaigns] == [f"part {number}" for number in range(1, 9)]
    assert [*campaigns.values()][:4] == [["a", "A", "h"], ["a", "i"], ["b", "j"], ["c"]], "a round is a campaign"


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "unseen", "seen", "fold"),
    [
        ("larger", ["as large"], "same round", "above 16 accelerators (2 points)"),
        ("family", ["small", "same round", "as large", "other"], "same submitter", "A100 (5 points)"),
        # The submitter, the chip in this round, and the chip at this size.
        ("nested", ["small", "same round", "as large", "same submitter"], "other", "('a', 'A100', '1.0') (1 points)"),
    ],
)
def test_a_prediction_depends_on_the_measured_points_that_are_not_hidden_with_it(
    kind: str, unseen: list[str], seen: str, fold: str, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {
        "large": _point("a", 64),
        "small": _point("A", 8),
        "same round": _point("b", 8),
        "as large": _point("b", 72, "2.0"),
        "other": _point("b", 16, "3.0"),
        "same submitter": _point("a", 8, "2.0", accelerator=V100),
        "another chip": _point("c", 16, "2.0", accelerator=V100),
    }
    usual = {name: point_rate(point, load_calibration().constants) for name, point in points.items()}

    def error(*changed: str) -> float:
        """Return the large system's error if the measured rates of some others are 3 % higher than usual."""
        given = [
            replace(point, system=name, measured_images_per_s=(1.03 if name in changed else 1) * usual[name])
            for name, point in points.items()
        ]
        hidden = hold_out([*given, replace(given[0], measured_images_per_s=None)], (kind,))
        return next(one.error for one in hidden if one.point.system == "large")

    before = error()
    assert f"hidden: {kind}, {fold}" in capsys.readouterr().err.splitlines()
    assert error(*unseen) == pytest.approx(before, abs=3e-4)
    assert error(seen) > before + 1e-3


@pytest.mark.medium
def test_folds_of_no_point_or_of_all_are_left_out() -> None:
    points = [_point("a", 64), _point("b", 32)]
    assert hold_out(points, ("larger", "family")) == []
    assert hold_out([_point("a", 8), _point("b", 8)], ("larger",)) == []
    assert hold_out([replace(points[0], measured_images_per_s=None)]) == []


@pytest.mark.medium
def test_a_prediction_that_is_too_high_has_an_error_above_zero() -> None:
    found = forecast_point(KNOWN, load_calibration())
    slower = replace(KNOWN, measured_images_per_s=found.images_per_s / 2, measured_time_s=found.time_to_train_s / 3)
    others = [replace(KNOWN, submitter=name) for name in ("y", "z")]
    hidden = hold_out([replace(slower, submitter="x"), *others], ("campaign",))[0]
    assert (hidden.error, hidden.time_error) == pytest.approx((math.log(2), math.log(3)), abs=0.1)


def test_an_interval_is_the_conformal_quantile_of_held_out_errors_or_twice_the_largest_of_few() -> None:
    assert quantile([0.1, -0.4, 0.2, 0.3], 0.5) == 0.3
    assert quantile([0.01] * 99 + [0.5], 0.9) == 0.01
    assert quantile([0.2], 0.9) == 0.2
    assert twice_the_largest([0.1, -0.4, 0.2]) == 0.8
    assert twice_the_largest([]) == 1.0


def test_coverage_is_counted_with_widths_that_the_fold_itself_had_no_part_in() -> None:
    calm = [HeldOutPrediction(KNOWN, "campaign", "calm", 0.01) for _ in range(9)]
    wild = [HeldOutPrediction(KNOWN, "campaign", "wild", 0.5)]
    assert covered(calm + wild, partial(quantile, share=0.9)) == 0.9
    assert covered(calm, partial(quantile, share=0.9)) is None
    assert covered([*calm, HeldOutPrediction(KNOWN, "campaign", "wild", 0.02)], twice_the_largest) == 1.0
    assert covered(calm + wild, twice_the_largest) == 0.9
