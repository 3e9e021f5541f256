"""Which points are hidden together, which of the rest a fit may see, and the errors of the hidden ones."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from train.sim.constants import Calibration, Constants, load_calibration
from train.sim.fit import heldout, worth
from train.sim.fit.heldout import HeldOutPrediction, _alike, _folds, _predict, affine_rate, hold_out, twice_the_largest
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point, read_points
from train.sim.fit.worth import worth_of_constants
from train.sim.hardware import find_accelerator

KNOWN = next(point for point in read_points(Path(__file__).parents[1] / "points.csv") if point.program == "tuned")
PREDICTOR = PointPredictor()
A100, V100 = find_accelerator("A100-SXM4-40GB"), find_accelerator("V100-SXM2-16GB")


def _point(submitter: str, ranks: int, mlperf_round: str = "1.0", **others: Any) -> Point:
    given = {"accelerator": A100, "batch": 64, "system": "", "node": 8, "measured_images_per_s": 1e5, **others}
    return replace(KNOWN, submitter=submitter, ranks=ranks, round=mlperf_round, **given)


def _names(folds: dict[str, list[Point]]) -> dict[str, list[str]]:
    return {name: [point.submitter for point in fold] for name, fold in folds.items()}


def test_systems_above_sixteen_accelerators_are_larger_ones() -> None:
    points = [_point("a", 16), _point("b", 17), _point("c", 64)]
    assert _names(_folds("larger", points)) == {"above 16 accelerators": ["b", "c"]}


def test_a_nested_fold_is_a_submitters_larger_systems_of_a_chip_and_a_round() -> None:
    points = [
        _point("A", 64),
        _point("a", 32),
        _point("A", 64, "2.0"),
        _point("A", 8),
        _point("a", 64, accelerator=V100),
    ]
    found = _folds("nested", points)
    assert sorted(_names(found).values()) == [["A"], ["A", "a"], ["a"]]
    assert sum(map(len, found.values())) == 4


def test_a_family_is_a_chip_and_the_largest_are_those_of_a_product() -> None:
    other = find_accelerator("A100-PCIE-40GB")
    points = [_point("a", 8), _point("b", 16), _point("c", 64, accelerator=other), _point("d", 8, accelerator=V100)]
    assert _names(_folds("family", points)) == {"A100": ["a", "b", "c"], "V100": ["d"]}
    expected = {A100.name: ["b"], V100.name: [], other.name: []}
    assert _names(_folds("largest", points)) == expected
    assert [*_folds("largest", points)] == sorted(expected)


def test_rows_are_dealt_out_to_eight_parts_and_campaigns_whole() -> None:
    points = [_point(name, 8) for name in "abcdefghij"]
    rows = _names(_folds("row", [*points, points[0]]))
    assert [*rows] == [f"part {number}" for number in range(1, 9)]
    assert [*rows.values()][:4] == [["a", "i"], ["b", "j"], ["c", "a"], ["d"]]
    campaigns = _names(_folds("campaign", [*points, points[0]]))
    assert [*campaigns.values()][:3] == [["a", "a", "i"], ["b", "j"], ["c"]]


def test_what_resembles_a_nested_fold_is_its_submitters_and_its_chips_of_the_round_or_the_size() -> None:
    hidden = [_point("A", 64), _point("A", 32)]
    alike = [
        *hidden,
        _point("a", 8, "2.0", accelerator=V100),
        _point("B", 8),  # the round
        _point("B", 32, "2.0"),  # the size of the smallest hidden one
    ]
    others = [_point("B", 31, "2.0"), _point("B", 64, accelerator=V100), _point("B", 31, "3.0", accelerator=V100)]
    assert _alike(hidden, [*alike, *others]) == alike


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[Point], Any, Any]]:
    """Return the points of each fit, its start and what it leaves out; each fit gives constants of its own."""
    seen: list[tuple[list[Point], Any, Any]] = []

    def fit(points: list[Point], _: PointPredictor, start: Any = None, *, unfitted: Any = ()) -> Constants:
        seen.append((points, start, unfitted))
        return Constants().replaced(straggler=0.001 * len(seen))

    monkeypatch.setattr(heldout, "fit", fit)
    return seen


def test_a_fold_is_predicted_by_a_fit_of_the_rest_that_starts_where_that_of_all_ended(
    fits: list[tuple[list[Point], Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []

    def predict(point: Point, kind: str, fold: str, kept: Any, _: Any, calibration: Calibration) -> HeldOutPrediction:
        assert point not in kept
        used.append(calibration.constants.straggler)
        return HeldOutPrediction(point, kind, fold, 0.0)

    monkeypatch.setattr(heldout, "_predict", predict)
    small, large, unmeasured = _point("a", 8), _point("b", 64), _point("c", 64, measured_images_per_s=None)
    other = _point("d", 8, accelerator=V100)
    told: list[str] = []
    found = hold_out([small, large, other, unmeasured], PREDICTOR, told.append, ("larger", "family"), unfitted=["tail"])
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
    assert {start.straggler for _, start, _ in fits[1:]} == {0.001}
    assert all(unfitted == ["tail"] for _, _, unfitted in fits)
    assert used == pytest.approx([0.002, 0.003, 0.003, 0.004])


def test_folds_of_no_point_or_of_all_are_left_out(fits: list[tuple[list[Point], Any, Any]]) -> None:
    points = [_point("a", 64), _point("b", 32)]
    assert hold_out(points, PREDICTOR, lambda _: None, ("larger", "family")) == []
    assert hold_out([_point("a", 8), _point("b", 8)], PREDICTOR, lambda _: None, ("larger",)) == []
    assert len(fits) == 2
    assert hold_out([replace(points[0], measured_images_per_s=None)], PREDICTOR, lambda _: None) == []
    assert len(fits) == 2, "nothing is measured"


def test_only_a_nested_fold_also_hides_what_resembles_it(fits: list[tuple[list[Point], Any, Any]]) -> None:
    alike, hidden, other = _point("A", 8), _point("A", 64), _point("B", 8, accelerator=V100)
    for kind, kept in (("nested", [other]), ("larger", [alike, other])):
        hold_out([alike, hidden, other], PREDICTOR, lambda _: None, (kind,))
        assert fits[-1][0] == kept


@pytest.mark.parametrize(("kind", "has_law"), [("nested", True), ("largest", True), ("larger", True), ("row", False),
                                               ("campaign", False), ("family", False)])  # fmt: skip
def test_the_affine_law_stands_beside_predictions_of_larger_systems(kind: str, has_law: bool) -> None:
    # Steps of 10 ms and 0.1 ms an image: 8 x 200 images take 30 ms, and the law predicts twice the measured rate.
    kept = [_point("a", 8, batch=batch, measured_images_per_s=8 * batch / (0.01 + 1e-4 * batch)) for batch in (50, 100)]
    point = _point("b", 8, batch=200, measured_images_per_s=8 * 200 / 0.06, measured_time_s=None)
    found = _predict(point, kind, "fold", kept, PREDICTOR, load_calibration())
    assert found.affine_error == (pytest.approx(math.log(2)) if has_law else None)
    assert (found.point, found.kind, found.fold, found.time_error) == (point, kind, "fold", None)
    assert _predict(point, kind, "fold", kept[:1], PREDICTOR, load_calibration()).affine_error is None


def test_a_point_without_a_rate_has_no_part_in_the_affine_law() -> None:
    kept = [_point("a", 8, batch=batch, measured_images_per_s=8 * batch / (1e-4 * batch)) for batch in (50, 100)]
    unmeasured = _point("a", 8, batch=150, measured_images_per_s=None)
    assert affine_rate(_point("a", 8, batch=200), [*kept, unmeasured]) == pytest.approx(8 / 1e-4)


def test_a_class_of_few_chips_is_twice_as_wide_as_the_largest_of_errors_of_either_sign() -> None:
    assert twice_the_largest([0.1, -0.4, 0.2]) == 0.8
    assert twice_the_largest([]) == 1.0


def test_the_worth_of_a_constant_is_told_by_spreads_and_by_nested_errors_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuned, compiled = _point("a", 64), _point("b", 64, accelerator=find_accelerator("TPU v3"))
    unmeasured = replace(tuned, measured_images_per_s=None)
    fitted = Constants().replaced(tail=0.6, straggler=0.02)

    def held(points: Any, _: Any, _report: Any, kinds: Any, *, unfitted: Any) -> list[HeldOutPrediction]:
        assert (points, kinds) == ([tuned, compiled], ("nested",))
        error = {(): 0.1, ("tail",): -0.2, ("straggler",): 0.3}[tuple(unfitted)]
        return [HeldOutPrediction(tuned, "nested", "1", error), HeldOutPrediction(compiled, "nested", "1", 9.0)]

    monkeypatch.setattr(worth, "PRIORS", {"tail": (0.5, 0.3), "straggler": (0.01, 0.4)})
    monkeypatch.setattr(worth, "fit", lambda points, _: fitted if points == [tuned, compiled] else None)
    monkeypatch.setattr(worth, "uncertainty", lambda *given: {"tail": 0.15, "straggler": 0.1})
    monkeypatch.setattr(worth, "hold_out", held)
    told: list[str] = []
    rows, error_with_all = worth_of_constants([tuned, compiled, unmeasured], PREDICTOR, told.append)
    assert told == ["without tail", "without straggler"]
    assert [tuple(row) for row in rows] == [
        ("tail", (0.5, 0.3), (0.6, 0.15), pytest.approx(0.75), 0.2),
        ("straggler", (0.01, 0.4), (0.02, 0.1), pytest.approx(1 - 1 / 16), 0.3),
    ]
    assert error_with_all == 0.1
