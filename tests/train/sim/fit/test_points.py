"""Points: how a row is read, how close predictions are, and that predictions never use measured columns.

``points.csv`` is an excerpt of results in mlcommons/training_results_v0.6 to v4.0 (ResNet-50; medians of epoch times).
"""

import csv
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from train.sim.constants import Constants, load_calibration
from train.sim.fit.calibrate import PUBLISHED_RATES, _held_out, startup_errors
from train.sim.fit.heldout import (
    HeldOutPrediction,
    _folds,
    _largest,
    _predict,
    affine_rate,
    covered,
    hold_out,
    quantile,
    twice_the_largest,
)
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point, ranks_per_node, read_points
from train.sim.fit.regression import PRIORS, fit, fitted_points
from train.sim.fit.worth import worth_of_constants
from train.sim.hardware import find_accelerator

EXCERPT = Path(__file__).parents[1] / "points.csv"
FURTHER_RATES = PUBLISHED_RATES.with_name("further_rates.csv")
PREDICTOR = PointPredictor()
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
        found = PREDICTOR.forecast(point, calibration)
        assert found.low < found.images_per_s < found.high
        errors.append(abs(found.images_per_s / (point.measured_images_per_s or 1) - 1))
        times.append(abs(found.time_to_train_s / (point.measured_time_s or 1) - 1))
    assert np.median(errors) <= 0.03
    assert max(errors) <= 0.20
    assert np.median(times) <= 0.05


def test_rates_that_nobody_had_looked_at_are_inside_their_intervals() -> None:
    calibration, inside = load_calibration(), defaultdict(list)
    for point in read_points(PUBLISHED_RATES.with_name("unseen_rates.csv")):
        found = PREDICTOR.forecast(point, calibration)
        is_inside = found.low <= (point.measured_images_per_s or 0) <= found.high
        inside[bool(point.accelerator.compiler)].append(is_inside)
    assert {maker: len(each) for maker, each in inside.items()} == {False: 35, True: 13}
    assert np.mean(inside[False]) >= 0.9
    assert sum(inside[True]) >= 11


def test_further_rates_are_inside_and_seven_percent_off_in_the_median() -> None:
    found = [PREDICTOR.forecast(point, load_calibration()) for point in read_points(FURTHER_RATES)]
    measured = [one.point.measured_images_per_s or 0.0 for one in found]
    assert len(found) == 24
    assert sum(one.low <= rate <= one.high for one, rate in zip(found, measured, strict=True)) == 24
    assert np.median([abs(one.images_per_s / rate - 1) for one, rate in zip(found, measured, strict=True)]) < 0.08


@pytest.mark.parametrize(("layout", "published"), [("NHWC", 1154), ("NCHW", 841)])
def test_separate_kernels_and_copies_between_layouts_slow_pytorch_as_published(
    tmp_path: Path, layout: str, published: float
) -> None:
    row = {"accelerator": "V100-SXM2-16GB", "n_acc": "1", "batch_per_acc": "128", "layout": layout}
    rates = [
        PREDICTOR.rate(one_point(tmp_path, source=source, **row), load_calibration().constants)
        for source in ("torchvision (PyTorch)", "NVIDIA's MXNet")
    ]
    assert rates[0] == pytest.approx(published, rel=0.1)
    assert rates[1] / rates[0] > 1.15, "which has them in one kernel"
    with pytest.raises(UserError, match=r"row 2: layout: got 'NWHC', .*did you mean 'NHWC'"):
        one_point(tmp_path, **{**row, "layout": "NWHC"})


def test_a_named_machine_has_the_links_of_its_description(tmp_path: Path) -> None:
    row = {
        "system": "3xDSS8440x8A100-PCIE-40GB",
        "accelerator": "A100-PCIE-40GB",
        "n_acc": "24",
        "batch_per_acc": "256",
    }
    machine = one_point(tmp_path, **row).machine
    assert (machine.nodes, machine.link_bytes_per_s, machine.nics, machine.nic_bytes_per_s) == (3, 12e9, 1, 12e9)
    usual = one_point(tmp_path, **{**row, "system": "3xR750x8"}).machine
    assert (usual.link_bytes_per_s, usual.nics) == (20e9, 2)
    found = PREDICTOR.rate(one_point(tmp_path, **row), load_calibration().constants)
    assert found == pytest.approx(55438, rel=0.03), "as measured"


def test_tinygrads_runs_have_an_interval_of_their_own(tmp_path: Path) -> None:
    row = {"submitter": "tinycorp", "accelerator": "NVIDIA GeForce RTX 4090", "n_acc": "6", "batch_per_acc": "256"}
    forecasts = [
        PREDICTOR.forecast(one_point(tmp_path, **{**row, "submitter": who}), load_calibration())
        for who in ("tinycorp", "Lambda")
    ]
    assert forecasts[0].interval.lacks == "tinygrad"
    assert forecasts[0].low < 6352 < forecasts[0].high, "the published rate, which is half of what is predicted"
    assert forecasts[0].interval.rate > 3 * forecasts[1].interval.rate


def test_predictions_do_not_change_when_the_measured_columns_are_gone(tmp_path: Path) -> None:
    calibration = load_calibration()
    with EXCERPT.open() as file:
        bare = [{key: row[key] for key in IDENTITY} for row in csv.DictReader(file)]
    blind = read_points(write(tmp_path / "bare.csv", bare))
    for seen, unseen in zip(read_points(EXCERPT), blind, strict=True):
        assert PREDICTOR.forecast(seen, calibration).row() == PREDICTOR.forecast(unseen, calibration).row()


def test_the_record_is_predicted_though_no_point_of_its_machine_was_fitted(tmp_path: Path) -> None:
    point = one_point(
        tmp_path,
        mlperf_round="0.6",
        submitter="Fujitsu",
        system="abci_n512",
        accelerator="V100",
        n_acc="2048",
        batch_per_acc="42",
    )
    found = PREDICTOR.forecast(point, load_calibration())
    assert found.time_to_train_s == pytest.approx(70.4, rel=0.07)
    assert found.images_per_s == pytest.approx(1_722_000, rel=0.07)
    assert found.low <= 1_722_000 <= found.high


def test_an_unknown_accelerator_is_refused_with_the_row_and_the_nearest_name(tmp_path: Path) -> None:
    for name in ("foo", "H800", ""):
        with pytest.raises(UserError, match=r"row 2: accelerator: got .*node\.accelerator"):
            one_point(tmp_path, n_acc="16", batch_per_acc="64", accelerator=name)
    with pytest.raises(UserError, match="did you mean 'A100-SXM-80GB'"):
        one_point(tmp_path, n_acc="16", batch_per_acc="64", accelerator="A1000-SXM-80GB")


@pytest.mark.parametrize(
    "columns",
    [
        {"n_acc": "0", "batch_per_acc": "8"},
        {"n_acc": "8", "batch_per_acc": "many"},
        {"n_acc": "1.5", "global_batch": "3"},
        {"n_acc": "8", "batch_per_acc": "1e12"},
    ],
)
def test_a_row_without_a_usable_count_or_batch_is_refused_with_its_number(
    tmp_path: Path, columns: dict[str, str]
) -> None:
    with pytest.raises(UserError, match="row 2: got"):
        one_point(tmp_path, **columns)


@pytest.mark.parametrize(
    ("system", "ranks", "accelerator", "node"),
    [
        ("8xXE8545x4A100-SXM-40GB", 32, "A100-SXM4-40GB", 4),
        ("dgx1_n130_ngc19.05_mxnet", 1040, "V100-SXM2", 8),
        ("dgx2h_n32_ngc19.05_mxnet", 512, "V100-SXM3-H", 16),
        ("HPE-XL675d_A100-SXM-80GB_16N_mxnet", 128, "A100-SXM-80GB", 8),
        ("2R5500G5-Intelx8A100-SXM-80GB", 16, "A100-SXM-80GB", 8),
        ("new_n4", 64, "A100-SXM4-40GB", 16),
        ("new_n4", 68, "A100-SXM4-40GB", 8),
        ("ESC-N8-E11", 8, "NVIDIA H100-SXM5-80GB", 8),
        ("G5500V7x10xA30", 10, "A30", 10),
        ("something new", 4096, "NVIDIA H100-SXM5-80GB", 8),
    ],
)
def test_nodes_are_counted_from_a_systems_name(system: str, ranks: int, accelerator: str, node: int) -> None:
    assert ranks_per_node(system, ranks, find_accelerator(accelerator)) == node


def test_a_fit_to_few_points_predicts_a_larger_system_better_than_the_affine_law() -> None:
    points = [point for point in read_points(EXCERPT) if point.accelerator.chip in ("A100", "H100")]
    small, large = ([each for each in points if (each.ranks > 16) == big] for big in (False, True))
    constants = fit(small, PREDICTOR)
    ours, affine = [], []
    for point in large:
        law = affine_rate(point, small)
        if law is not None:
            ours.append(abs(math.log(PREDICTOR.rate(point, constants) / (point.measured_images_per_s or 1))))
            affine.append(abs(math.log(law / (point.measured_images_per_s or 1))))
    assert len(ours) >= 3
    assert np.median(ours) < np.median(affine)


def test_a_fit_finds_the_constants_that_made_the_points() -> None:
    true = Constants().replaced(compute_efficiency=0.4, memory_efficiency=0.7)
    points = [replace(point, measured_images_per_s=PREDICTOR.rate(point, true)) for point in read_points(EXCERPT)]
    fitted = fit(points, PREDICTOR)
    errors = [
        np.abs([math.log(PREDICTOR.rate(point, each) / PREDICTOR.rate(point, true)) for point in points]).mean()
        for each in (Constants(), fitted)
    ]
    assert errors[1] < errors[0] / 4


def test_the_affine_law_is_that_of_the_products_systems_of_the_round_or_else_of_all_rounds() -> None:
    def point(batch: int, step_s: float | None, year: str = "1.0", chip: str = "A100") -> Point:
        known = next(each for each in read_points(EXCERPT) if each.accelerator.chip == chip)
        rate = None if step_s is None else 8 * batch / step_s
        return replace(known, round=year, ranks=8, batch=batch, measured_images_per_s=rate)

    def law(*kept: Point) -> float | None:
        rate = affine_rate(point(300, None), kept)
        return None if rate is None else 8 * 300 / rate

    # Steps of 10 ms + 0.1 ms an image in this round, of twice as long in another.
    own, other = ([point(b, k * (0.01 + 1e-4 * b), year) for b in (100, 200)] for k, year in ((1, "1.0"), (2, "2.0")))
    assert law(*own, *other) == pytest.approx(0.04)
    assert law(own[0], *other) == pytest.approx(0.09), "from 30 ms, the mean at 100 images, to 60 ms at 200"
    assert law(own[0], own[0], point(200, 1.0, chip="H100")) is None
    assert law(point(100, 0.1), point(200, 0.04)) is None, "no positive time"


def test_an_interval_is_the_conformal_quantile_of_held_out_errors() -> None:
    assert quantile([0.1, -0.4, 0.2, 0.3], 0.5) == 0.3
    assert quantile([0.01] * 99 + [0.5], 0.9) == 0.01
    assert quantile([0.2], 0.9) == 0.2


@pytest.mark.slow
def test_the_largest_systems_are_hidden_a_product_at_a_time_and_predicted() -> None:
    points = [point for point in read_points(EXCERPT) if point.accelerator.chip in ("A100", "H100")]
    told: list[str] = []
    hidden = hold_out(points, PREDICTOR, told.append, ("largest",))
    assert len(told) == len({one.fold for one in hidden}) == 4
    for one in hidden:
        like = [point for point in points if point.accelerator.name == one.fold]
        assert one.point.ranks == max(point.ranks for point in like)
    assert np.median([abs(one.error) for one in hidden]) < 0.1
    assert max(abs(one.error) for one in hidden) < 0.2


def test_coverage_is_counted_with_widths_that_the_fold_itself_had_no_part_in(tmp_path: Path) -> None:
    point = one_point(tmp_path, n_acc="16", batch_per_acc="64", accelerator="H200")
    calm = [HeldOutPrediction(point, "row", "calm", 0.01) for _ in range(9)]
    wild = [HeldOutPrediction(point, "row", "wild", 0.5)]
    assert covered(calm + wild, partial(quantile, share=0.9)) == 0.9
    assert covered(calm, partial(quantile, share=0.9)) is None
    assert covered([*calm, HeldOutPrediction(point, "row", "wild", 0.02)], twice_the_largest) == 1.0
    assert covered(calm + wild, twice_the_largest) == 0.9


def test_a_costlier_optimizer_slows_a_step_by_what_its_authors_measured(tmp_path: Path) -> None:
    systems = ("tpu-v4-256-JAX-Distributed-Shampoo", "tpu-v4-256-JAX")
    rates = [
        PREDICTOR.rate(
            one_point(tmp_path, system=each, accelerator="TPU", n_acc="128", batch_per_acc="256"),
            load_calibration().constants,
        )
        for each in systems
    ]
    assert rates[1] / rates[0] == pytest.approx(1.26, abs=0.03)


def test_intervals_widen_from_seen_to_larger_to_unseen_systems() -> None:
    calibration = load_calibration()
    seen, larger, unseen = (calibration.interval(*each) for each in (("H100", 64), ("H100", 4096), ("H300", 8)))
    assert [each.basis for each in (seen, larger, unseen)] == ["seen", "larger", "unseen"]
    assert seen.rate < larger.rate < unseen.rate * 2
    assert seen.rate < unseen.rate
    other = calibration.interval("TPUv3", 1024, has_compiler=True)
    assert other.basis == "compiler"
    assert other.rate > 2 * unseen.rate


def test_nested_folds_hide_submitter_round_and_larger_systems_from_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    points = read_points(EXCERPT)
    kept: list[list[Point]] = []

    def spy(used: list[Point], *_: object, unfitted: object) -> Constants:
        assert not unfitted
        kept.append(used)
        return Constants()

    monkeypatch.setattr("train.sim.fit.heldout.fit", spy)
    told: list[str] = []
    hidden = hold_out(points, PREDICTOR, told.append, ("nested",))
    folds = list(dict.fromkeys(one.fold for one in hidden))
    assert len(folds) == len(told) == len(kept) - 1 > 3
    for fold, used in zip(folds, kept[1:], strict=True):
        gone = [one.point for one in hidden if one.fold == fold]
        least = min(point.ranks for point in gone)
        assert least > 16
        assert used
        for point in used:
            assert point.submitter.lower() != gone[0].submitter.lower()
            assert point.accelerator.chip != gone[0].accelerator.chip or (
                point.ranks < least and point.round != gone[0].round
            )


def test_the_start_up_of_public_systems_is_predicted_within_a_factor_of_one_and_a_half() -> None:
    errors = startup_errors(read_points(EXCERPT))
    assert len(errors) > 10
    assert math.exp(np.median(np.abs(errors))) <= 1.5


def test_nine_of_ten_published_rates_of_frameworks_are_inside_their_class() -> None:
    calibration = load_calibration()
    points = read_points(PUBLISHED_RATES)
    assert {point.lacks for point in points} == {"own kernels", "float32", "another network"}
    found = [PREDICTOR.forecast(point, calibration) for point in points]
    inside = [one.low <= (one.point.measured_images_per_s or 0) <= one.high for one in found]
    assert np.mean(inside) >= 0.9
    of_one_node = [
        abs(math.log(one.images_per_s / (one.point.measured_images_per_s or 1)))
        for one in found
        if one.point.ranks <= 8 and one.point.lacks == "own kernels"
    ]
    assert max(of_one_node) < 0.1


@pytest.mark.parametrize(
    ("submitter", "accelerator", "program"),
    [
        ("NVIDIA", "A100-SXM-80GB", "tuned"),
        ("Google", "V100", "framework"),
        ("Google", "TPU v3", "compiler"),
        ("tinycorp", "AMD Radeon RX 7900 XTX", "framework"),
        ("AMD", "MI300X", "compiler"),
    ],
)
def test_chips_and_programs_that_are_not_nvidias_have_wider_intervals(
    tmp_path: Path, submitter: str, accelerator: str, program: str
) -> None:
    point = one_point(tmp_path, submitter=submitter, accelerator=accelerator, n_acc="8", batch_per_acc="128")
    assert point.program == program
    width = PREDICTOR.forecast(point, load_calibration()).interval.rate
    assert width < 0.11 if program == "tuned" else width > 0.25


def test_a_constant_that_is_not_fitted_keeps_its_expected_value_and_the_others_move() -> None:
    points = read_points(EXCERPT)[3:9]
    fitted, without = fit(points, PREDICTOR), fit(points, PREDICTOR, unfitted=["memory_efficiency"])
    assert without.memory_efficiency == PRIORS["memory_efficiency"][0] != fitted.memory_efficiency
    assert without.compute_efficiency != fitted.compute_efficiency


@pytest.mark.slow
def test_the_worth_of_a_constant_is_its_narrower_spread_and_the_error_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = [point for point in read_points(EXCERPT) if point.accelerator.chip in ("H100", "V100")]
    monkeypatch.setattr("train.sim.fit.worth.PRIORS", {"memory_efficiency": PRIORS["memory_efficiency"]})
    (row,), error_with_all = worth_of_constants(points, PREDICTOR, lambda _: None)
    assert row.fitted[1] < row.expected[1]
    assert row.decided == pytest.approx(1 - (row.fitted[1] / row.expected[1]) ** 2)
    hidden = hold_out(points, PREDICTOR, lambda _: None, ("nested",), unfitted=["memory_efficiency"])
    assert row.error_without == pytest.approx(np.median([abs(one.error) for one in hidden]), abs=1e-4)
    assert row.error_without != error_with_all


def test_every_column_of_a_points_file_is_read(tmp_path: Path) -> None:
    columns = {
        "mlperf_round": "2.1", "submitter": "A", "system": "b", "accelerator": "V100", "n_acc": "16",
        "global_batch": "800", "batch_per_acc": "", "img_per_s": "1234.5", "time_to_train_s (mean)": "99",
        "init_s": "7", "how": "log, incl eval", "network": "resnet18", "precision": "float32", "source": "x",
        "accelerators_per_node": "4", "nics": "2", "nic_bytes_per_s": "5e9",
    }  # fmt: skip
    found = one_point(tmp_path, **columns)
    assert (found.round, found.submitter, found.system, found.ranks, found.batch) == ("2.1", "A", "b", 16, 50)
    assert (found.measured_images_per_s, found.measured_time_s, found.measured_init_s) == (1234.5, 99, 7)
    assert (found.includes_evaluation, found.network, found.precision) == (True, "resnet18", "float32")
    assert (found.is_framework, found.node, found.nics, found.nic_bytes_per_s) == (True, 4, 2, 5e9)
    assert found.accelerator.chip == "V100"
    bare = one_point(tmp_path, accelerator="", system="8x V100", n_acc="8", batch_per_acc="32.5", global_batch="800")
    assert (bare.accelerator.chip, bare.batch, bare.network, bare.precision) == ("V100", 32.5, "resnet50", "float16")
    assert (bare.measured_images_per_s, bare.measured_time_s, bare.measured_init_s) == (None, None, None)
    assert (bare.includes_evaluation, bare.is_framework, bare.node, bare.nics) == (False, False, None, None)
    halves = one_point(tmp_path, accelerator="TPU", system="v4-256", n_acc="8", batch_per_acc="32")
    assert halves.accelerator.chip == "TPUv4", "neither column names the chip by itself"


@pytest.mark.parametrize(("mlperf_round", "share", "fixed_s"), [("0.6", 0.95, 0.52), ("4.0", 0.42, 0.02)])
def test_a_rate_that_includes_evaluations_counts_one_after_every_fourth_epoch(
    mlperf_round: str, share: float, fixed_s: float
) -> None:
    point = replace(read_points(EXCERPT)[0], round=mlperf_round)
    without, included = (
        PREDICTOR.rate(replace(point, includes_evaluation=each), load_calibration().constants) for each in (False, True)
    )
    images = 4 * 1_281_167
    seconds = images / without + share * 50_000 / without + fixed_s
    assert included == pytest.approx(images / seconds)
    assert without == pytest.approx(
        point.ranks * point.batch / PREDICTOR.step_time(point, load_calibration().constants).total_s
    )


def test_the_largest_systems_are_hidden_where_they_have_several_nodes_and_others_remain() -> None:
    known = next(each for each in read_points(EXCERPT) if each.accelerator.chip == "A100")
    one, two, four = (replace(known, ranks=ranks, node=8, system="") for ranks in (8, 16, 32))
    for points, largest in (([one, two, four], [four]), ([four, two, four], [four, four]), ([four, four], []),
                            ([one, replace(one, ranks=4)], [])):  # fmt: skip
        assert _largest(points) == largest


def test_held_out_errors_are_summed_up_by_what_was_hidden_and_beside_the_law() -> None:
    point = read_points(EXCERPT)[0]
    hidden = [HeldOutPrediction(point, kind, "1", error, law) for kind, error, law in
              (("row", 0.1, -0.3), ("row", 0.2, None), ("larger", 0.4, 0.5))]  # fmt: skip
    found = _held_out(hidden)
    assert [(each["points"], each["median"], each["worst"]) for each in found.values()] == [
        (2, 0.15, 0.2), (1, 0.1, 0.1), (1, 0.3, 0.3), (1, 0.4, 0.4), (1, 0.4, 0.4), (1, 0.5, 0.5),
    ]  # fmt: skip


def test_a_campaign_is_what_a_submitter_sent_in_one_round() -> None:
    known = read_points(EXCERPT)[0]
    first, again = (replace(known, submitter="A", round=each) for each in ("1.0", "2.0"))
    folds = _folds("campaign", [first, again, replace(first, submitter="a"), again])
    assert [len(fold) for fold in folds.values()] == [2, 2, 0, 0, 0, 0, 0, 0]
    assert {point.round for point in folds["part 1"]} == {"1.0"}


def test_a_prediction_that_is_too_high_has_an_error_above_zero() -> None:
    point, calibration = read_points(EXCERPT)[0], load_calibration()
    found = PREDICTOR.forecast(point, calibration)
    slower = replace(point, measured_images_per_s=found.images_per_s / 2, measured_time_s=found.time_to_train_s / 3)
    hidden = _predict(slower, "row", "part 1", [], PREDICTOR, calibration)
    assert (hidden.error, hidden.time_error) == pytest.approx((math.log(2), math.log(3)))


def test_constants_are_fitted_to_measured_programs_of_nvidias_only() -> None:
    point = next(each for each in read_points(EXCERPT) if each.program == "tuned")
    others = [replace(point, measured_images_per_s=None), replace(point, is_framework=True)]
    assert fitted_points([*others, point]) == [point]


def test_a_row_has_the_ends_of_the_rate_and_of_the_time_by_their_own_intervals() -> None:
    found = PREDICTOR.forecast(read_points(EXCERPT)[0], load_calibration())
    row = replace(found, interval=replace(found.interval, rate=math.log(2), time=math.log(3))).row()
    ends = [row[key] for key in ("low", "high", "time_low_s", "time_high_s")]
    rate, time_s = found.images_per_s, found.time_to_train_s
    assert ends == pytest.approx([rate / 2, 2 * rate, time_s / 3, 3 * time_s], abs=0.1)


def test_points_that_are_predicted_together_are_predicted_as_alone() -> None:
    constants = load_calibration().constants
    known = next(each for each in read_points(EXCERPT) if each.program == "tuned")
    points = [replace(known, round=each, batch=batch) for each in ("0.6", "4.0") for batch in (32, 64)]
    alone = [math.log(PREDICTOR.rate(point, constants)) for point in points]
    assert len(set(alone)) == 4
    assert PREDICTOR.log_rates(points, constants).tolist() == pytest.approx(alone)
