"""The intervals of a calibration by held-out errors that are chosen by hand, and the file that keeps them."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from train.sim import constants as constants_module
from train.sim.constants import Calibration, Constants, load_calibration
from train.sim.fit import calibrate as calibrate_module
from train.sim.fit.calibrate import (
    calibrate,
    errors_by_product,
    framework_errors,
    startup_errors,
    summarize_errors,
    write_calibration,
)
from train.sim.fit.heldout import HeldOutPrediction
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point, read_points
from train.sim.fit.regression import PRIORS
from train.sim.hardware import find_accelerator
from train.sim.startup_time import predict_init

EXCERPT = Path(__file__).parents[1] / "points.csv"
FITTED = Constants().replaced(compute_efficiency=0.4321)
TUNED = next(point for point in read_points(EXCERPT) if point.program == "tuned")
COMPILED = replace(TUNED, accelerator=find_accelerator("TPU v3"))
TINYGRAD = replace(TUNED, submitter="tinycorp", accelerator=find_accelerator("NVIDIA GeForce RTX 4090"))


def _hidden(kind: str, point: Point, *errors: float, times: Sequence[float | None] = ()) -> list[HeldOutPrediction]:
    given = [*times, *[None] * (len(errors) - len(times))]
    return [
        HeldOutPrediction(point, kind, "1", error, time_error=time) for error, time in zip(errors, given, strict=True)
    ]


def _calibrated(monkeypatch: pytest.MonkeyPatch, hidden: list[HeldOutPrediction]) -> tuple[Calibration, list[str]]:
    """Return the calibration by the excerpt, if these are the errors on hidden points, and what was reported."""
    told: list[str] = []
    points = read_points(EXCERPT)
    measured = [point for point in points if point.measured_images_per_s]

    def fit(used: list[Point], _predictor: PointPredictor) -> Constants:
        assert used == measured
        return FITTED

    def hold_out(used: list[Point], predictor: PointPredictor, report: Any) -> list[HeldOutPrediction]:
        assert used == measured
        assert isinstance(predictor, PointPredictor)
        report("folds")
        return hidden

    def frameworks(_predictor: PointPredictor, constants: Constants) -> dict[str, list[float]]:
        assert constants is FITTED
        return {"own kernels": [0.25, -0.5], "float32": [0.125]}

    monkeypatch.setattr(calibrate_module, "fit", fit)
    monkeypatch.setattr(calibrate_module, "hold_out", hold_out)
    monkeypatch.setattr(calibrate_module, "framework_errors", frameworks)
    unmeasured = replace(points[0], measured_images_per_s=None)
    calibration, kept = calibrate([*points, unmeasured], PointPredictor(), told.append)
    assert kept is hidden
    return calibration, told


def test_each_class_of_forecasts_has_the_interval_of_the_errors_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = [
        *_hidden("campaign", TUNED, 0.1, -0.3, times=[0.05, -0.9]),
        *_hidden("nested", TUNED, 0.2, times=[0.6]),
        *_hidden("family", TUNED, -0.7, times=[None]),
        *_hidden("family", COMPILED, 0.4, -0.45, times=[1.1]),
        *_hidden("row", TINYGRAD, 0.55),
        *_hidden("row", TUNED, 0.01),
    ]
    found, told = _calibrated(monkeypatch, hidden)
    assert found.constants is FITTED
    assert found.coverage == 0.9
    # With so few errors, nine of ten are inside the largest; larger systems are no better known than those of the
    # size of known ones; twice the largest where there are too few chips.
    assert found.half_widths == pytest.approx({
        "seen": 0.3, "larger": 0.3, "unseen": 0.7, "compiler": 0.9, "tinygrad": 1.1, "own kernels": 0.5,
        "float32": 0.125,
    })  # fmt: skip
    # No time is known better than the rate, and where no time was measured, all errors of rates count.
    assert found.time_half_widths == pytest.approx({"seen": 0.9, "larger": 0.9, "unseen": 0.7, "compiler": 1.1})
    assert told == ["constants are fitted to all points; now fitting again with some points hidden", "folds"]
    chips = {point.accelerator.chip for point in read_points(EXCERPT)}
    assert found.largest.keys() == found.rounds.keys() == chips


def test_the_interval_of_larger_systems_is_their_own_where_it_is_the_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = [*_hidden("campaign", TUNED, 0.1, times=[0.05]), *_hidden("largest", TUNED, 0.4, times=[0.2])]
    found, _ = _calibrated(monkeypatch, hidden)
    assert (found.half_widths["seen"], found.half_widths["larger"]) == (0.1, 0.4)
    assert (found.time_half_widths["seen"], found.time_half_widths["larger"]) == (0.1, 0.4), "no time is known better"


def test_a_class_without_held_out_points_has_the_interval_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = _calibrated(monkeypatch, _hidden("campaign", TUNED, 0.1, 0.123456))
    assert found.half_widths["unseen"] == 0.1235
    assert found.half_widths["compiler"] == found.half_widths["tinygrad"] == 1.0, "twice the usual half"


def test_the_interval_of_the_start_up_is_that_of_nine_of_ten_measured_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = _calibrated(monkeypatch, _hidden("campaign", TUNED, 0.1))
    sizes = sorted(abs(error) for error in startup_errors(read_points(EXCERPT)))
    assert found.startup_half_width == pytest.approx(sizes[math.ceil(0.9 * (len(sizes) + 1)) - 1], abs=6e-5)
    monkeypatch.setattr(calibrate_module, "startup_errors", lambda _: [])
    found, _ = _calibrated(monkeypatch, _hidden("campaign", TUNED, 0.1))
    assert found.startup_half_width == 1.0


def test_twenty_points_of_two_chips_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_module, "fit", lambda *_: FITTED)
    monkeypatch.setattr(calibrate_module, "hold_out", lambda *_: _hidden("campaign", TUNED, 0.1))
    monkeypatch.setattr(calibrate_module, "framework_errors", lambda *_: {})
    other = next(point for point in read_points(EXCERPT) if point.accelerator.chip != TUNED.accelerator.chip)
    found, _ = calibrate([TUNED] * 19 + [other], PointPredictor(), lambda _: None)
    assert found.constants is FITTED


def test_an_error_of_a_start_up_is_predicted_over_measured() -> None:
    point = replace(TUNED, measured_init_s=predict_init(TUNED.ranks, TUNED.round, has_compiler=False) / 2)
    compiled = replace(COMPILED, measured_init_s=10.0)
    predicted_s = predict_init(compiled.ranks, compiled.round, has_compiler=True)
    assert startup_errors([point, replace(point, measured_init_s=None), compiled]) == pytest.approx(
        [math.log(2), math.log(predicted_s / 10)]
    )


def test_errors_of_products_are_predicted_over_measured_and_points_without_a_rate_are_left_out() -> None:
    predictor = PointPredictor()
    rate, compiled_rate = (predictor.rate(point, FITTED) for point in (TUNED, COMPILED))
    points = [
        replace(COMPILED, measured_images_per_s=compiled_rate / 3),
        replace(TUNED, measured_images_per_s=rate / 2),
        replace(TUNED, measured_images_per_s=None),
        replace(TUNED, measured_images_per_s=4 * rate),
    ]
    found = errors_by_product(points, predictor, FITTED)
    assert [*found] == sorted([TUNED.accelerator.name, COMPILED.accelerator.name])
    assert found[TUNED.accelerator.name] == pytest.approx([math.log(2), -math.log(4)])
    assert found[COMPILED.accelerator.name] == pytest.approx([math.log(3)])


CALIBRATION = Calibration(
    FITTED.replaced(launch_s=1.23456e-5), coverage=0.8, half_widths={"seen": 0.1, "larger": 0.2},
    time_half_widths={"seen": 0.3}, startup_half_width=0.4, largest={"b": 8, "a": 16}, rounds={"b": "0.6", "a": "4.0"},
)  # fmt: skip


def test_a_calibration_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "constants.yaml"
    hidden = _hidden("campaign", TUNED, 0.1, -0.3)
    spreads = dict.fromkeys(PRIORS, 0.12345)
    write_calibration(path, CALIBRATION, hidden, {"A100": [0.1, -0.5, 0.2]}, spreads)
    monkeypatch.setattr(constants_module, "CONSTANTS", path)
    # The file has four digits of each fitted constant, and none of those that are not fitted.
    fitted = CALIBRATION.constants.replaced(launch_s=1.235e-5)
    assert load_calibration.__wrapped__() == replace(CALIBRATION, constants=fitted)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Written by `./run.sh simulate --calibrate CSV`. Do not edit this file;")
    assert max(map(len, text.splitlines())) <= 120
    tree = yaml.safe_load(text)
    assert [*tree] == [
        "fitted", "expected", "log_spread_after", "coverage", "half_widths", "time_half_widths", "startup_half_width",
        "held_out", "residuals", "largest", "rounds",
    ]  # fmt: skip
    assert tree["expected"]["cache_share"] == {"value": 0.5, "log_spread": 0.3}
    assert tree["log_spread_after"] == dict.fromkeys(PRIORS, 0.123)
    assert [each["worst"] for each in tree["held_out"].values()] == [0.3]
    assert tree["residuals"] == {"A100": {"points": 3, "median": 0.2, "worst": 0.5}}
    assert ([*tree["largest"]], [*tree["rounds"]]) == (["a", "b"], ["a", "b"])


def test_the_shipped_calibration_is_that_of_its_file() -> None:
    tree = yaml.safe_load(constants_module.CONSTANTS.read_text(encoding="utf-8"))
    found = load_calibration()
    assert {name: getattr(found.constants, name) for name in PRIORS} == tree["fitted"]
    assert found.rounds == tree["rounds"]
    assert found.half_widths.keys() == set(constants_module.CLASSES)


def test_a_calibration_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "constants.yaml"
    with pytest.raises(UserError) as refused:
        write_calibration(path, CALIBRATION, [], {}, {})
    assert str(refused.value) == f"{path}: cannot be written: No such file or directory; choose another --out"


def test_a_summary_counts_errors_by_their_size() -> None:
    found = summarize_errors([-0.41237, 0.1, 0.2, -0.3])
    assert (found.points, found.median, found.worst) == (4, 0.25, 0.4124)


def test_every_published_rate_of_a_framework_has_an_error() -> None:
    found = framework_errors(PointPredictor(), FITTED)
    assert sum(map(len, found.values())) == len(read_points(calibrate_module.PUBLISHED_RATES))
