"""The calibration by a points file: intervals by errors that are chosen by hand, the file, and its tables of errors."""

import csv
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.errors import UserError
from train.sim import constants as constants_module
from train.sim.__main__ import main
from train.sim.constants import load_calibration
from train.sim.fit.calibrate import (
    PRIORS,
    HeldOutPrediction,
    calibrate,
    framework_errors,
    half_widths,
    held_out_text,
    startup_errors,
)
from train.sim.fit.points import Point, read_points
from train.sim.hardware import find_accelerator
from train.sim.time_to_train import predict_init

EXCERPT = Path(__file__).parents[1] / "points.csv"
GOLDEN = EXCERPT.with_name("golden") / "calibration.yaml"
POINTS = read_points(EXCERPT)
TUNED = next(point for point in POINTS if point.program == "tuned")
COMPILED = replace(TUNED, accelerator=find_accelerator("TPU v3"))
TINYGRAD = replace(TUNED, submitter="tinycorp", accelerator=find_accelerator("NVIDIA GeForce RTX 4090"))
_CLOSE, _CLOSE_TO_ZERO = 5e-3, 1e-3
"""How closely the optimizer finds the same constants on another machine, relative and absolute."""


def _hidden(kind: str, point: Point, *errors: float, times: Sequence[float | None] = ()) -> list[HeldOutPrediction]:
    given = [*times, *[None] * (len(errors) - len(times))]
    return [
        HeldOutPrediction(point, kind, "1", error, time_error=time) for error, time in zip(errors, given, strict=True)
    ]


def _numbers(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {name: value for key in tree for name, value in _numbers(tree[key], f"{path}/{key}").items()}


@pytest.mark.slow
def test_a_calibration_by_a_few_points_changes_on_purpose_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    # The same errors without a calibration.
    assert main(["simulate", "--validate", str(EXCERPT), "--held-out"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == told[:-1]
    # A chip is known up to its largest and newest point.
    for point in POINTS:
        assert point.ranks <= found[f"/largest/{point.accelerator.chip}"]
        assert point.round <= found[f"/rounds/{point.accelerator.chip}"]
    # The file is read as it was written.
    monkeypatch.setattr(constants_module, "CONSTANTS", path)
    calibration = load_calibration.__wrapped__()
    assert {name: getattr(calibration.constants, name) for name in PRIORS} == yaml.safe_load(text)["fitted"]
    assert calibration.half_widths["seen"] == found["/half_widths/seen"]
    assert calibration.time_half_widths["larger"] == found["/time_half_widths/larger"]
    assert (calibration.coverage, calibration.startup_half_width) == (0.9, found["/startup_half_width"])


@pytest.mark.parametrize(("rows", "chips"), [(19, 2), (20, 1)])
def test_too_few_points_or_chips_are_refused(rows: int, chips: int) -> None:
    points = [point for point in POINTS if point.accelerator.chip == "A100"][:1] * (rows - chips + 1)
    if chips > 1:
        points.append(next(point for point in POINTS if point.accelerator.chip == "V100"))
    words = f"got {rows} points with a measured rate, of {chips} chips, allowed: at least 20 points of 2"
    with pytest.raises(UserError, match=words):
        calibrate([*points, replace(COMPILED, measured_images_per_s=None)])


def test_each_class_of_forecasts_has_the_interval_of_the_errors_of_its_kind() -> None:
    hidden = [
        *_hidden("campaign", TUNED, 0.1, -0.3, times=[0.05, -0.9]),
        *_hidden("nested", TUNED, 0.2, times=[0.6]),
        *_hidden("family", TUNED, -0.7, times=[None]),
        *_hidden("family", COMPILED, 0.4, -0.45, times=[1.1]),
        *_hidden("campaign", TINYGRAD, 0.55),
    ]
    rates, times = half_widths(hidden, {"own kernels": [0.25, -0.5], "float32": [0.125]})
    # With so few errors, nine of ten are inside the largest; larger systems are no better known than those of the
    # size of known ones; twice the largest where there are too few chips.
    assert rates == pytest.approx({
        "seen": 0.3, "larger": 0.3, "unseen": 0.7, "compiler": 0.9, "tinygrad": 1.1, "own kernels": 0.5,
        "float32": 0.125,
    })  # fmt: skip
    # No time is known better than the rate, and where no time was measured, all errors of rates count.
    assert times == pytest.approx({"seen": 0.9, "larger": 0.9, "unseen": 0.7, "compiler": 1.1})


def test_the_shipped_intervals_of_frameworks_are_those_of_their_published_rates() -> None:
    """The rank of the error is ceil(0.9 (n + 1)), counted from the smallest."""
    shipped = load_calibration()
    for name, errors in framework_errors(shipped.constants).items():
        rank = min(len(errors), math.ceil(0.9 * (len(errors) + 1)))
        assert shipped.half_widths[name] == pytest.approx(sorted(map(abs, errors))[rank - 1], abs=1e-4), name


def test_an_error_of_a_start_up_is_predicted_over_measured() -> None:
    point = replace(TUNED, measured_init_s=predict_init(TUNED.ranks, TUNED.round, has_compiler=False) / 2)
    compiled = replace(COMPILED, measured_init_s=10.0)
    predicted_s = predict_init(compiled.ranks, compiled.round, has_compiler=True)
    assert startup_errors([point, replace(point, measured_init_s=None), compiled]) == pytest.approx(
        [math.log(2), math.log(predicted_s / 10)]
    )
    errors = startup_errors(POINTS)
    assert len(errors) > 10
    assert math.exp(sorted(map(abs, errors))[len(errors) // 2]) <= 1.5, "the usual start is predicted well"


def test_held_out_errors_are_told_by_product() -> None:
    a100 = replace(TUNED, accelerator=find_accelerator("A100-SXM4-80GB"))
    v100 = replace(TUNED, accelerator=find_accelerator("V100-SXM2"))
    hidden = [
        HeldOutPrediction(v100, "family", "1", math.log(1.1), math.log(1.5)),
        HeldOutPrediction(v100, "family", "2", math.log(0.81)),
        HeldOutPrediction(a100, "family", "3", math.log(0.79)),
        HeldOutPrediction(a100, "campaign", "1", math.log(1.2)),
    ]
    titles, *rows, last = held_out_text(hidden, 0.5).splitlines()
    assert titles.split()[:3] == ["hidden", "product", "points"]
    # Points, median and worst error, those above a fifth, the median of times.
    assert [row.split() for row in rows] == [
        ["family", "A100-SXM-80GB", "1", "21.0", "21.0", "1"],
        ["family", "V100-SXM2", "2", "14.5", "19.0", "0", "50.0"],
        ["family", "all", "3", "19.0", "21.0", "1", "50.0"],
        ["campaign", "A100-SXM-80GB", "1", "20.0", "20.0", "0"],
        ["campaign", "all", "1", "20.0", "20.0", "0"],
    ]
    # The others' median is 0.21 and 0.165 of the first two, and 0.153 of the third.
    assert last.startswith("67% of the points are inside the 50% interval 'unseen', if only other folds set its width")
