"""Predictions of points: how close they are to what was measured, and that they never use the measured columns.

``points.csv`` is an excerpt of results in mlcommons/training_results_v0.6 to v4.0 (ResNet-50; medians of epoch times).
"""

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from train.sim.constants import load_calibration
from train.sim.fit.calibrate import PUBLISHED_RATES
from train.sim.fit.points import Point, PointForecast, forecast_point, point_rate, read_points

EXCERPT = Path(__file__).parents[1] / "points.csv"
IDENTITY = ("mlperf_round", "submitter", "system", "accelerator", "n_acc", "batch_per_acc", "how")


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def one_point(folder: Path, **columns: str) -> Point:
    return read_points(write(folder / "one.csv", [columns]))[0]


def test_points_of_the_excerpt_are_predicted_within_the_promised_errors() -> None:
    calibration = load_calibration()
    points = read_points(EXCERPT)
    errors, times = [], []
    for point in points:
        found = forecast_point(point, calibration)
        assert found.rate_bounds[0] < found.images_per_s < found.rate_bounds[1]
        errors.append(abs(found.images_per_s / (point.measured_images_per_s or 1) - 1))
        times.append(abs(found.time_to_train_s / (point.measured_time_s or 1) - 1))
    assert np.median(errors) <= 0.03
    assert max(errors) <= 0.20
    assert np.median(times) <= 0.05


def _is_inside(found: PointForecast) -> bool:
    low, high = found.rate_bounds
    return low <= (found.point.measured_images_per_s or 0) <= high


def _forecasts(name: str) -> list[PointForecast]:
    return [forecast_point(point, load_calibration()) for point in read_points(PUBLISHED_RATES.with_name(name))]


def test_rates_that_were_not_fitted_are_inside_their_intervals_as_often_as_promised() -> None:
    unseen, further, published = map(_forecasts, ("unseen_rates.csv", "further_rates.csv", "published_rates.csv"))
    nvidia = [one for one in unseen if not one.point.accelerator.compiler]
    others = [one for one in unseen if one.point.accelerator.compiler]
    assert [len(each) for each in (nvidia, others, further)] == [35, 13, 24]
    assert np.mean([*map(_is_inside, nvidia)]) >= 0.9
    assert sum(map(_is_inside, others)) >= 11
    assert all(map(_is_inside, further))
    assert np.median([abs(math.expm1(_log_error(one))) for one in further]) < 0.08
    assert {one.point.lacks for one in published} == {"own kernels", "float32", "another network"}
    assert np.mean([*map(_is_inside, published)]) >= 0.9
    own = [one for one in published if one.point.ranks <= 8 and one.point.lacks == "own kernels"]
    assert max(abs(_log_error(one)) for one in own) < 0.1


def _log_error(found: PointForecast) -> float:
    return math.log(found.images_per_s / (found.point.measured_images_per_s or 1))


@pytest.mark.parametrize(("layout", "published"), [("NHWC", 1154), ("NCHW", 841)])
def test_separate_kernels_and_copies_between_layouts_slow_pytorch_as_published(
    tmp_path: Path, layout: str, published: float
) -> None:
    row = {"accelerator": "V100-SXM2-16GB", "n_acc": "1", "batch_per_acc": "128", "layout": layout}
    rates = [
        point_rate(one_point(tmp_path, source=source, **row), load_calibration().constants)
        for source in ("torchvision (PyTorch)", "NVIDIA's MXNet")
    ]
    assert rates[0] == pytest.approx(published, rel=0.1)
    assert rates[1] / rates[0] > 1.15, "which has them in one kernel"


def test_tinygrads_runs_have_an_interval_of_their_own(tmp_path: Path) -> None:
    row = {"submitter": "tinycorp", "accelerator": "NVIDIA GeForce RTX 4090", "n_acc": "6", "batch_per_acc": "256"}
    forecasts = [
        forecast_point(one_point(tmp_path, **{**row, "submitter": who}), load_calibration())
        for who in ("tinycorp", "Lambda")
    ]
    assert forecasts[0].interval.lacks == "tinygrad"
    low, high = forecasts[0].rate_bounds
    assert low < 6352 < high, "the published rate, which is half of what is predicted"
    assert forecasts[0].interval.rate > 3 * forecasts[1].interval.rate


def test_predictions_do_not_change_when_the_measured_columns_are_gone(tmp_path: Path) -> None:
    calibration = load_calibration()
    with EXCERPT.open() as file:
        bare = [{key: row[key] for key in IDENTITY} for row in csv.DictReader(file)]
    blind = read_points(write(tmp_path / "bare.csv", bare))
    for seen, unseen in zip(read_points(EXCERPT), blind, strict=True):
        assert forecast_point(seen, calibration).row() == forecast_point(unseen, calibration).row()


def test_the_record_is_predicted_though_no_point_of_its_machine_was_fitted(tmp_path: Path) -> None:
    row = {"mlperf_round": "0.6", "submitter": "Fujitsu", "system": "abci_n512", "accelerator": "V100"}
    point = one_point(tmp_path, **row, n_acc="2048", batch_per_acc="42")
    found = forecast_point(point, load_calibration())
    assert found.time_to_train_s == pytest.approx(70.4, rel=0.07)
    assert found.images_per_s == pytest.approx(1_722_000, rel=0.07)
    assert found.rate_bounds[0] <= 1_722_000 <= found.rate_bounds[1]


def test_a_costlier_optimizer_slows_a_step_by_what_its_authors_measured(tmp_path: Path) -> None:
    systems = ("tpu-v4-256-JAX-Distributed-Shampoo", "tpu-v4-256-JAX")
    rates = [
        point_rate(
            one_point(tmp_path, system=each, accelerator="TPU", n_acc="128", batch_per_acc="256"),
            load_calibration().constants,
        )
        for each in systems
    ]
    assert rates[1] / rates[0] == pytest.approx(1.26, abs=0.03)


@pytest.mark.parametrize(
    ("submitter", "accelerator", "program"),
    [("NVIDIA", "A100-SXM-80GB", "tuned"), ("Google", "V100", "framework"), ("Google", "TPU v3", "compiler"),
     ("tinycorp", "AMD Radeon RX 7900 XTX", "framework"), ("AMD", "MI300X", "compiler")],
)  # fmt: skip
def test_chips_and_programs_that_are_not_nvidias_have_wider_intervals(
    tmp_path: Path, submitter: str, accelerator: str, program: str
) -> None:
    point = one_point(tmp_path, submitter=submitter, accelerator=accelerator, n_acc="8", batch_per_acc="128")
    assert point.program == program
    width = forecast_point(point, load_calibration()).interval.rate
    assert width < 0.11 if program == "tuned" else width > 0.25


@pytest.mark.parametrize(("mlperf_round", "share", "fixed_s"), [("0.6", 0.95, 0.52), ("4.0", 0.42, 0.02)])
def test_a_rate_that_includes_evaluations_counts_one_after_every_fourth_epoch(
    mlperf_round: str, share: float, fixed_s: float
) -> None:
    point = replace(read_points(EXCERPT)[0], round=mlperf_round)
    without, included = (
        point_rate(replace(point, includes_evaluation=each), load_calibration().constants) for each in (False, True)
    )
    images = 4 * 1_281_167
    seconds = images / without + share * 50_000 / without + fixed_s
    assert included == pytest.approx(images / seconds)


def test_a_row_has_the_ends_of_the_rate_and_of_the_time_by_their_own_intervals() -> None:
    found = forecast_point(read_points(EXCERPT)[0], load_calibration())
    interval = replace(found.interval, rate=math.log(2), time=math.log(3))
    row = found._replace(interval=interval).row()
    ends = [row[key] for key in ("low", "high", "time_low_s", "time_high_s")]
    rate, time_s = found.images_per_s, found.time_to_train_s
    assert ends == pytest.approx([rate / 2, 2 * rate, time_s / 3, 3 * time_s], abs=0.1)
