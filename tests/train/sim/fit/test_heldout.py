"""Which points are hidden together, which of the rest a fit may see, and the errors of the hidden ones."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train.sim.constants import Constants, load_calibration
from train.sim.fit import heldout
from train.sim.fit.fitting import PRIORS
from train.sim.fit.heldout import (
    HeldOutPrediction,
    affine_rate,
    covered,
    folds,
    hold_out,
    quantile,
    twice_the_largest,
    worth_of_constants,
)
from train.sim.fit.point_forecast import forecast_point
from train.sim.fit.points import Point, read_points
from train.sim.hardware import find_accelerator

EXCERPT = read_points(Path(__file__).parents[1] / "points.csv")
KNOWN = next(point for point in EXCERPT if point.program == "tuned")
A100, V100 = find_accelerator("A100-SXM4-40GB"), find_accelerator("V100-SXM2-16GB")


def _point(submitter: str, ranks: int, mlperf_round: str = "1.0", **others: Any) -> Point:
    given = {"accelerator": A100, "batch": 64, "system": "", "node": 8, "measured_images_per_s": 1e5, **others}
    return replace(KNOWN, submitter=submitter, ranks=ranks, round=mlperf_round, **given)


def _names(kind: str, points: list[Point]) -> dict[str, list[str]]:
    return {name: [point.submitter for point in fold] for name, fold in folds(kind, points).items()}


def test_systems_above_sixteen_accelerators_are_larger_ones() -> None:
    assert _names("larger", [_point("a", 16), _point("b", 17), _point("c", 64)]) == {
        "above 16 accelerators": ["b", "c"]
    }


def test_a_nested_fold_is_a_submitters_larger_systems_of_a_chip_and_a_round() -> None:
    points = [
        _point("A", 64),
        _point("a", 32),
        _point("A", 64, "2.0"),
        _point("A", 8),
        _point("a", 64, accelerator=V100),
    ]
    assert sorted(_names("nested", points).values()) == [["A"], ["A", "a"], ["a"]]


def test_a_family_is_a_chip_and_the_largest_are_those_of_a_product_with_several_nodes() -> None:
    other = find_accelerator("A100-PCIE-40GB")
    points = [_point("a", 8), _point("b", 16), _point("c", 64, accelerator=other), _point("d", 8, accelerator=V100)]
    assert _names("family", points) == {"A100": ["a", "b", "c"], "V100": ["d"]}
    expected = {other.name: [], A100.name: ["b"], V100.name: []}
    assert [*_names("largest", points).items()] == sorted(expected.items())
    for ranks, largest in (((8, 16, 32), [2]), ((32, 16, 32), [0, 2]), ((32, 32), []), ((8, 4), [])):
        points = [_point(str(number), each) for number, each in enumerate(ranks)]
        assert _names("largest", points) == {A100.name: [str(number) for number in largest]}


def test_rows_are_dealt_out_to_eight_parts_and_campaigns_whole() -> None:
    points = [_point(name, 8) for name in "abcdefghij"]
    rows = _names("row", [*points, points[0]])
    assert [*rows] == [f"part {number}" for number in range(1, 9)]
    assert [*rows.values()][:4] == [["a", "i"], ["b", "j"], ["c", "a"], ["d"]]
    campaigns = _names("campaign", [*points, _point("A", 8), _point("a", 8, "2.0")])
    assert [*campaigns.values()][:4] == [["a", "A", "h"], ["a", "i"], ["b", "j"], ["c"]], "a round is a campaign"


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Point], Any, Any]]:
    """Return the points of each fit, its start and what it leaves out; each fit gives constants of its own."""
    seen: list[tuple[list[Point], Any, Any]] = []

    def fit(points: list[Point], start: Any = None, *, unfitted: Any = ()) -> Constants:
        seen.append((points, start, unfitted))
        return Constants().replaced(straggler=0.01 * len(seen))

    monkeypatch.setattr(heldout, "fit", fit)
    return seen


def test_a_fold_is_predicted_by_a_fit_of_the_rest_that_starts_where_that_of_all_ended(
    fits: list[tuple[list[Point], Any, Any]],
) -> None:
    small, large, unmeasured = _point("a", 8), _point("b", 64), _point("c", 64, measured_images_per_s=None)
    other = _point("d", 8, accelerator=V100)
    told: list[str] = []
    found = hold_out([small, large, other, unmeasured], told.append, ("larger", "family"), unfitted=["tail"])
    assert [(one.point, one.kind, one.fold) for one in found] == [
        (large, "larger", "above 16 accelerators"), (small, "family", "A100"), (large, "family", "A100"),
        (other, "family", "V100"),
    ]  # fmt: skip
    assert told == [
        "hidden: larger, above 16 accelerators (1 points)", "hidden: family, A100 (2 points)",
        "hidden: family, V100 (1 points)",
    ]  # fmt: skip
    assert [points for points, _, _ in fits] == [[small, large, other], [small, other], [other], [small, large]]
    assert fits[0][1] is None
    assert {start.straggler for _, start, _ in fits[1:]} == {0.01}
    assert all(unfitted == ["tail"] for _, _, unfitted in fits)
    for one, straggler in zip(found, (0.02, 0.03, 0.03, 0.04), strict=True):
        calibration = replace(load_calibration(), constants=Constants().replaced(straggler=straggler))
        assert one.error == pytest.approx(math.log(forecast_point(one.point, calibration).images_per_s / 1e5))


def test_folds_of_no_point_or_of_all_are_left_out(fits: list[tuple[list[Point], Any, Any]]) -> None:
    points = [_point("a", 64), _point("b", 32)]
    assert hold_out(points, lambda _: None, ("larger", "family")) == []
    assert hold_out([_point("a", 8), _point("b", 8)], lambda _: None, ("larger",)) == []
    assert len(fits) == 2
    assert hold_out([replace(points[0], measured_images_per_s=None)], lambda _: None) == []
    assert len(fits) == 2, "nothing is measured"


def test_only_a_nested_fold_also_hides_its_submitter_and_its_chips_of_the_round_or_the_size(
    fits: list[tuple[list[Point], Any, Any]],
) -> None:
    hidden = [_point("A", 64), _point("A", 32)]
    alike = [
        _point("a", 8, "2.0", accelerator=V100),
        _point("B", 8),  # the round
        _point("B", 16, "2.0"),  # neither
        _point("B", 15, accelerator=V100),
        _point("B", 15, "3.0", accelerator=V100),
    ]
    hold_out([*hidden, *alike], lambda _: None, ("nested", "larger"))
    assert [points for points, _, _ in fits[1:]] == [alike[2:], alike]
    fits.clear()
    of_the_size = _point("B", 32, "2.0")
    hold_out([*hidden, *alike, of_the_size], lambda _: None, ("nested",))
    # Its own fold keeps what has neither its chip's round nor 32 accelerators.
    assert [points for points, _, _ in fits[1:]] == [alike[2:], [alike[0]]]


@pytest.mark.parametrize(("kind", "has_law"), [("nested", True), ("largest", True), ("larger", True), ("row", False),
                                               ("campaign", False), ("family", False)])  # fmt: skip
@pytest.mark.usefixtures("fits")
def test_the_affine_law_stands_beside_predictions_of_larger_systems(kind: str, has_law: bool) -> None:
    # Steps of 10 ms and 0.1 ms an image: 8 x 200 images take 30 ms, and the law predicts twice the measured rate.
    kept = [
        _point("a", 8, "0.7", batch=batch, measured_images_per_s=8 * batch / (0.01 + 1e-4 * batch))
        for batch in (50, 100)
    ]
    large = _point("b", 24, batch=200, measured_images_per_s=24 * 200 / 0.06, measured_time_s=None)
    found = [
        one for one in hold_out([*kept, large, _point("c", 8, accelerator=V100)], print, (kind,)) if one.point == large
    ]
    if kind == "family":
        assert not has_law
    assert [one.affine_error for one in found] == [pytest.approx(math.log(2)) if has_law else None]
    assert [one.time_error for one in found] == [None]


def test_the_affine_law_is_that_of_the_products_systems_of_the_round_or_else_of_all_rounds() -> None:
    def point(batch: int, step_s: float | None, year: str = "1.0", **others: Any) -> Point:
        rate = None if step_s is None else 8 * batch / step_s
        return _point("a", 8, year, batch=batch, measured_images_per_s=rate, **others)

    def law(*kept: Point) -> float | None:
        rate = affine_rate(point(300, None), kept)
        return None if rate is None else 8 * 300 / rate

    # Steps of 10 ms + 0.1 ms an image in this round, of twice as long in another.
    own, other = ([point(b, k * (0.01 + 1e-4 * b), year) for b in (100, 200)] for k, year in ((1, "1.0"), (2, "2.0")))
    assert law(*own, *other) == pytest.approx(0.04)
    assert law(own[0], *other) == pytest.approx(0.09), "from 30 ms, the mean at 100 images, to 60 ms at 200"
    assert law(own[0], own[0], point(200, 1.0, accelerator=V100)) is None
    assert law(point(100, 0.1), point(200, 0.04)) is None, "no positive time"
    assert law(*own, point(400, None)) == pytest.approx(0.04), "a point without a rate has no part in it"


def test_a_prediction_that_is_too_high_has_an_error_above_zero(fits: list[tuple[list[Point], Any, Any]]) -> None:
    calibration = replace(load_calibration(), constants=Constants().replaced(straggler=0.02))
    found = forecast_point(KNOWN, calibration)
    slower = replace(KNOWN, measured_images_per_s=found.images_per_s / 2, measured_time_s=found.time_to_train_s / 3)
    # The first of eight parts is hidden first, from the second fit.
    hidden = hold_out([slower, _point("b", 8)], print, ("row",))[0]
    assert len(fits) > 1
    assert (hidden.error, hidden.time_error) == pytest.approx((math.log(2), math.log(3)))


def test_an_interval_is_the_conformal_quantile_of_held_out_errors_or_twice_the_largest_of_few() -> None:
    assert quantile([0.1, -0.4, 0.2, 0.3], 0.5) == 0.3
    assert quantile([0.01] * 99 + [0.5], 0.9) == 0.01
    assert quantile([0.2], 0.9) == 0.2
    assert twice_the_largest([0.1, -0.4, 0.2]) == 0.8
    assert twice_the_largest([]) == 1.0


def test_coverage_is_counted_with_widths_that_the_fold_itself_had_no_part_in() -> None:
    calm = [HeldOutPrediction(KNOWN, "row", "calm", 0.01) for _ in range(9)]
    wild = [HeldOutPrediction(KNOWN, "row", "wild", 0.5)]
    assert covered(calm + wild, partial(quantile, share=0.9)) == 0.9
    assert covered(calm, partial(quantile, share=0.9)) is None
    assert covered([*calm, HeldOutPrediction(KNOWN, "row", "wild", 0.02)], twice_the_largest) == 1.0
    assert covered(calm + wild, twice_the_largest) == 0.9


@pytest.mark.medium
def test_the_largest_systems_are_predicted_and_a_law_in_the_batch_does_worse() -> None:
    points = [point for point in EXCERPT if point.accelerator.chip in ("A100", "H100")]
    hidden = hold_out(points, lambda _: None, ("largest", "larger"))
    errors = [abs(one.error) for one in hidden if one.kind == "largest"]
    assert len(errors) >= 4
    assert np.median(errors) < 0.1
    assert max(errors) < 0.2
    with_law = [one for one in hidden if one.kind == "larger" and one.affine_error is not None]
    assert len(with_law) >= 3
    assert np.median([abs(one.error) for one in with_law]) < np.median([abs(one.affine_error or 0) for one in with_law])


@pytest.mark.slow
def test_the_worth_of_a_constant_is_its_narrower_spread_and_the_nested_error_of_tuned_systems_without_it() -> None:
    points = [point for point in EXCERPT if point.accelerator.chip in ("H100", "V100", "TPUv3")]
    told: list[str] = []
    rows, error_with_all = worth_of_constants([*points, replace(KNOWN, measured_images_per_s=None)], told.append)
    assert [row.name for row in rows] == [*PRIORS]
    assert told == [f"without {name}" for name in PRIORS]
    for row in rows:
        assert row.expected == PRIORS[row.name]
        assert 0 < row.fitted[1] < row.expected[1]
        assert row.decided == pytest.approx(1 - (row.fitted[1] / row.expected[1]) ** 2)
    for name, expected in (("memory_efficiency", rows[1].error_without), ("", error_with_all)):
        hidden = hold_out(points, lambda _: None, ("nested",), unfitted=[name])
        tuned = [abs(one.error) for one in hidden if one.point.program == "tuned"]
        assert len(tuned) < len(hidden)
        assert expected == pytest.approx(np.median(tuned))
