"""Rows of a points file: the machine that a row describes, rows that are refused, and how close predictions are."""

import csv
import io
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from train.sim.constants import load_calibration
from train.sim.fit.calibrate import PUBLISHED_RATES
from train.sim.fit.points import Point, PointForecast, forecast_point, point_rate, ranks_per_node, read_points
from train.sim.hardware import find_accelerator
from train.sim.step_time import MAX_BATCH, MAX_RANKS

EXCERPT = Path(__file__).parents[1] / "points.csv"
"""Of results in mlcommons/training_results_v0.6 to v4.0 (ResNet-50; medians of epoch times)."""
IDENTITY = ("mlperf_round", "submitter", "system", "accelerator", "n_acc", "batch_per_acc", "how")
ROW = {"accelerator": "A100-SXM4-40GB", "n_acc": "16", "batch_per_acc": "64"}


def _read(folder: Path, *rows: dict[str, str]) -> list[Point]:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    (folder / "points.csv").write_text(text.getvalue(), encoding="utf-8")
    return read_points(folder / "points.csv")


def _point(folder: Path, **columns: str) -> Point:
    return _read(folder, ROW | columns)[0]


def _bare(folder: Path, **columns: str) -> Point:
    return _read(folder, columns)[0]


def test_cards_in_pcie_slots_are_one_node_up_to_twenty_four_and_some_products_have_one_a_node() -> None:
    card = replace(find_accelerator("A30"), node=4, link_kind="pcie")
    assert [ranks_per_node("", ranks, card) for ranks in (24, 25)] == [24, 4]
    assert ranks_per_node("new_n8", 8, replace(card, node=1)) == 1


def test_a_row_of_the_largest_number_of_accelerators_and_images_is_read(tmp_path: Path) -> None:
    found = _point(tmp_path, n_acc=str(MAX_RANKS), batch_per_acc=str(MAX_BATCH))
    assert (found.ranks, found.batch) == (MAX_RANKS, MAX_BATCH)
    assert _point(tmp_path, batch_per_acc="0.5").batch == 0.5
    for columns in ({"n_acc": str(MAX_RANKS + 1)}, {"batch_per_acc": str(MAX_BATCH + 1)}, {"n_acc": "1.5"}):
        with pytest.raises(UserError, match=r"points.csv, row 2: got"):
            _point(tmp_path, **columns)


def test_a_row_that_is_refused_is_named_with_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"points.csv, row 3: got \{'n_acc': '', 'batch_per_acc': '', .*16,384\)$"):
        _read(tmp_path, ROW, ROW | {"n_acc": "", "batch_per_acc": ""})
    for columns, words in (
        ({"batch_per_acc": "256,5"}, "batch_per_acc: got '256,5', allowed: a finite number, not below 0"),
        ({"img_per_s": "inf"}, "img_per_s: got 'inf', allowed: a finite number"),
        ({"time_to_train_s (mean)": "-1"}, r"time_to_train_s \(mean\): got '-1', allowed: a finite number"),
        ({"precision": "float61"}, "precision: got 'float61', allowed: one of .* 'float16'"),
        ({"layout": "NWHC"}, "layout: got 'NWHC', .*did you mean 'NHWC'"),
        ({"accelerator": "H800"}, r"accelerator: got 'H800', .*node\.accelerator"),
        ({"accelerator": ""}, r"accelerator: got .*node\.accelerator"),
        ({"accelerator": "A1000-SXM-80GB"}, "accelerator: .*did you mean 'A100-SXM-80GB'"),
    ):
        with pytest.raises(UserError, match=f"row 2: {words}"):
            _point(tmp_path, **columns)


def test_a_row_with_more_cells_than_titles_is_read(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("n_acc,batch_per_acc,accelerator\n8,64,V100,a note\n", encoding="utf-8")
    (found,) = read_points(path)
    assert (found.ranks, found.measured_time_s, found.measured_init_s) == (8, None, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"n_acc\n\xff\n", "cannot be read: \\S"),
        (b"n_acc\n\x00\n" + b'"' + b"x" * 200_000, "cannot be read: \\S"),
        (b"n_acc;batch_per_acc\n8;64\n", "got the titles 'n_acc;batch_per_acc', allowed: n_acc,batch_per_acc"),
        (b"n_acc,batch_per_acc,batch_per_acc\n8,64,32\n", "got the titles 'n_acc,.*', allowed: .*, each once"),
    ],
    ids=["text", "csv", "marks", "twice"],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "points.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path}: {words}"):
        read_points(path)


def test_every_column_of_a_points_file_is_read(tmp_path: Path) -> None:
    columns = {
        "mlperf_round": "2.1", "submitter": "A", "system": "b", "accelerator": "V100", "n_acc": "16",
        "global_batch": "800", "batch_per_acc": "", "img_per_s": "1234.5", "time_to_train_s (mean)": "99",
        "init_s": "7", "how": "log, incl eval", "network": "resnet18", "precision": "float32", "source": "x",
        "accelerators_per_node": "4", "nics": "2", "nic_bytes_per_s": "5e9",
    }  # fmt: skip
    found = _read(tmp_path, columns)[0]
    assert (found.round, found.submitter, found.system, found.ranks, found.batch) == ("2.1", "A", "b", 16, 50)
    assert (found.measured_images_per_s, found.measured_time_s, found.measured_init_s) == (1234.5, 99, 7)
    assert (found.includes_evaluation, found.network, found.precision) == (True, "resnet18", "float32")
    assert (found.is_framework, found.node, found.nics, found.nic_bytes_per_s) == (True, 4, 2, 5e9)
    assert found.accelerator.chip == "V100"
    bare = _point(tmp_path, accelerator="", system="8x V100", n_acc="8", batch_per_acc="32.5", global_batch="800")
    assert (bare.accelerator.chip, bare.batch, bare.network, bare.precision) == ("V100", 32.5, "resnet50", "float16")
    assert (bare.measured_images_per_s, bare.measured_time_s, bare.measured_init_s) == (None, None, None)
    assert (bare.includes_evaluation, bare.is_framework, bare.node, bare.nics) == (False, False, None, None)
    halves = _point(tmp_path, accelerator="TPU", system="v4-256", n_acc="8", batch_per_acc="32")
    assert halves.accelerator.chip == "TPUv4", "neither column names the chip by itself"


@pytest.mark.parametrize(
    ("system", "ranks", "accelerator", "node"),
    [
        ("dgx1_n130_ngc19.05_mxnet", 1040, "V100-SXM2", 8),
        ("HPE-XL675d_A100-SXM-80GB_16N_mxnet", 128, "A100-SXM-80GB", 8),
        ("new_n4", 68, "A100-SXM4-40GB", 8),
        ("ESC-N8-E11", 8, "NVIDIA H100-SXM5-80GB", 8),
        ("G5500V7x10xA30", 10, "A30", 10),
        ("new_n64", 64, "A100-SXM4-40GB", 8),  # a single accelerator is no node of a product with eight
        ("", 4, "A100-SXM4-40GB", 4),
    ],
)
def test_nodes_are_counted_from_a_systems_name(system: str, ranks: int, accelerator: str, node: int) -> None:
    assert ranks_per_node(system, ranks, find_accelerator(accelerator)) == node


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


@pytest.mark.medium
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
        point_rate(_bare(tmp_path, source=source, **row), load_calibration().constants)
        for source in ("torchvision (PyTorch)", "NVIDIA's MXNet")
    ]
    assert rates[0] == pytest.approx(published, rel=0.1)
    assert rates[1] / rates[0] > 1.15, "which has them in one kernel"


def test_predictions_do_not_change_when_the_measured_columns_are_gone(tmp_path: Path) -> None:
    calibration = load_calibration()
    with EXCERPT.open() as file:
        bare = [{key: row[key] for key in IDENTITY} for row in csv.DictReader(file)]
    blind = _read(tmp_path, *bare)
    for seen, unseen in zip(read_points(EXCERPT), blind, strict=True):
        assert forecast_point(seen, calibration).row() == forecast_point(unseen, calibration).row()


def test_a_costlier_optimizer_slows_a_step_by_what_its_authors_measured(tmp_path: Path) -> None:
    systems = ("tpu-v4-256-JAX-Distributed-Shampoo", "tpu-v4-256-JAX")
    rates = [
        point_rate(
            _bare(tmp_path, system=each, accelerator="TPU", n_acc="128", batch_per_acc="256"),
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
    point = _bare(tmp_path, submitter=submitter, accelerator=accelerator, n_acc="8", batch_per_acc="128")
    assert point.program == program
    width = forecast_point(point, load_calibration()).interval.rate
    assert width < 0.11 if program == "tuned" else width > 0.25


def test_a_row_has_the_ends_of_the_rate_and_of_the_time_by_their_own_intervals() -> None:
    found = forecast_point(read_points(EXCERPT)[0], load_calibration())
    interval = replace(found.interval, rate=math.log(2), time=math.log(3))
    row = found._replace(interval=interval).row()
    ends = [row[key] for key in ("low", "high", "time_low_s", "time_high_s")]
    rate, time_s = found.images_per_s, found.time_to_train_s
    assert ends == pytest.approx([rate / 2, 2 * rate, time_s / 3, 3 * time_s], abs=0.1)
