"""What `./run.sh simulate` prints, to the letter, for numbers of which no two are alike."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_recipe
from train.sim.constants import Interval
from train.sim.fit.heldout import HeldOutPrediction
from train.sim.fit.point_forecast import PointForecast
from train.sim.fit.points import Point
from train.sim.fit.worth import ConstantWorth
from train.sim.forecast import Forecast, Scenario
from train.sim.hardware import Machine, find_accelerator
from train.sim.output.comparison import held_out_text, validation_text, worth_text
from train.sim.output.forecast_text import forecast_row, forecast_text, startup_text
from train.sim.software import Software
from train.sim.startup_time import StartupTime
from train.sim.step_time import Reduction, StepTime
from train.sim.time_to_train import RunTime

TEXTS = Path(__file__).with_name("texts.txt")
"""Every text after its name; where a test fails because the words are new, they are copied from its output."""

V100, A100 = find_accelerator("V100-SXM2-16GB"), find_accelerator("A100-SXM4-80GB")
STEP = StepTime(
    forward_s=0.011, backward_s=0.022, straggler_s=0.0033, contention_s=0.0044, exposed_s=0.0055, update_s=0.0066,
    overhead_s=0.0077, input_s=0.0088, reductions=(Reduction(9, 0.0, 0.01, 0.013), Reduction(9, 0.01, 0.02, 0.026)),
)  # fmt: skip
MACHINE = Machine(V100, 1234, 4, V100.link, V100.nics, V100.nic)
SCENARIO = Scenario(load_recipe("abci-b86016"), MACHINE, 42.5, 2, Software(algorithm="ring"), "0.6")
FORECAST = Forecast(
    SCENARIO, STEP, images_per_s=1_512_000.0, interval=Interval("larger", "float32", math.log(2), math.log(4)),
    startup_half_width=math.log(1.5), efficiency=0.7654, epochs=85, convergence="more epochs",
    run=RunTime(pre_s=1.1, first_epoch_excess_s=2.2, epochs_s=1003.3, evaluations_s=4.4),
    startup=StartupTime(launch_s=10.0, communicator_s=31.0, weights_s=0.0, pipeline_s=20.0, total_s=41.0),
)  # fmt: skip

ROW = {
    "recipe": "abci-b86016", "accelerator": "V100-SXM2", "ranks": 1234, "nodes": 309, "per_rank_batch_size": 42.5,
    "global_batch_size": 104890, "software_round": "0.6", "algorithm": "ring", "bucket_bytes": 64 << 20,
    "step_s": 0.0693, "forward_s": 0.011, "backward_s": 0.022, "straggler_s": 0.0033, "contention_s": 0.0044,
    "communication_s": 0.009, "exposed_communication_s": 0.0055, "update_s": 0.0066, "input_s": 0.0088,
    "overhead_s": 0.0077, "images_per_s": 1_512_000, "low": 756_000, "high": 3_024_000, "interval_from": "larger",
    "interval_widened_by": "float32", "efficiency": 0.7654, "epochs": 85, "convergence": "more epochs",
    "reaches_target": False, "time_to_train_s": 1011, "run_s": 1011, "run_low_s": 252.75, "run_high_s": 4044,
    "epochs_s": 1003.3, "first_epoch_excess_s": 2.2, "evaluations_s": 4.4, "pre_s": 1.1, "startup_s": 41,
    "startup_low_s": 82 / 3, "startup_high_s": 61.5, "accelerator_hours": 1052 * 1234 / 3600,
    "accelerator_hours_low": (252.75 + 82 / 3) * 1234 / 3600, "accelerator_hours_high": 4105.5 * 1234 / 3600,
    "cost": 1052 * 1234 / 1440,
}  # fmt: skip


def _forecast() -> str:
    savings = {"shared uplinks": 12.346, "nothing to speak of": 0.005, "the network": 0.006}
    return forecast_text(FORECAST, savings, 0.9, 2.5)


def _plain_forecast() -> str:
    step = replace(STEP, straggler_s=0.0, contention_s=0.0, exposed_s=0.0, overhead_s=0.0, input_s=0.0)
    plain = replace(FORECAST, step=step, convergence="none", interval=Interval("seen", "", 0.0, 0.0))
    return forecast_text(plain, {}, 0.9, None)


def _startup() -> str:
    return startup_text([1, 1024])


def _point(submitter: str, measured: float | None, **values: object) -> Point:
    point = Point("0.7", submitter, "a system of a name that is longer than its column", V100, 64, 51.5, measured,
                  None, None, includes_evaluation=False)  # fmt: skip
    return replace(point, **values)  # type: ignore[arg-type]


def _validation() -> str:
    points = [
        _point("a submitter of many words", 1000.0, measured_time_s=50.0),
        _point("B", 2000.0),
        _point("C", 500.0, accelerator=A100, ranks=8),
    ]
    interval = Interval("seen", "", math.log(1.2), math.log(1.2))
    rates = (1100.0, 1600.0, 500.0)
    pairs = [
        (point, PointForecast(point, rate, interval, 40, 60.0, 7.0)) for point, rate in zip(points, rates, strict=True)
    ]
    errors = {"V100": [math.log(1.1), math.log(0.8)], "A100": [0.0]}
    return validation_text(pairs, errors)


def _held_out() -> str:
    a100, v100 = _point("A", 1.0, accelerator=A100), _point("B", 1.0)
    hidden = [
        HeldOutPrediction(v100, "family", "1", math.log(1.1), math.log(0.7), math.log(1.5)),
        HeldOutPrediction(v100, "family", "2", math.log(0.81)),
        HeldOutPrediction(a100, "family", "3", math.log(0.79), math.log(1.3)),
        HeldOutPrediction(a100, "campaign", "1", math.log(1.21)),
    ]
    return held_out_text(hidden, 0.5)


def _worth() -> str:
    rows = [
        ConstantWorth("latency", (0.5, 0.25), (0.4321, 0.0125), 0.9975, math.log(1.04)),
        ConstantWorth("share", (1e-5, 2.0), (2.5e-5, 1.0), 0.75, math.log(1.035)),
    ]
    return worth_text(rows, math.log(1.031))


@pytest.mark.parametrize("told", [_forecast, _plain_forecast, _startup, _validation, _held_out, _worth])
def test_it_is_told_to_the_letter(told: Callable[[], str]) -> None:
    texts = dict(each.split(":\n", 1) for each in TEXTS.read_text(encoding="utf-8").split("# ")[1:])
    assert told() == texts[told.__name__.strip("_")].strip("\n")


def test_a_row_has_every_number_under_its_own_name() -> None:
    row = forecast_row(FORECAST, 2.5)
    assert row == pytest.approx(ROW)
    assert [*forecast_row(FORECAST)] == [*ROW][:-1]
