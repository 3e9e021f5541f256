"""A forecast as text and as a row: every number stands under its own name and in its unit."""

import math
import re
from dataclasses import replace

import pytest

from configs.load import load_both
from train.sim.constants import Interval
from train.sim.forecast import Forecast, Scenario
from train.sim.forecast_text import forecast_row, forecast_text
from train.sim.hardware import Machine, find_accelerator
from train.sim.software import Software
from train.sim.step_time import Reduction, StepTime
from train.sim.time_to_train import RunTime, StartupTime

V100 = find_accelerator("V100-SXM2-16GB")
STEP = StepTime(
    forward_s=0.011, backward_s=0.022, straggler_s=0.0033, contention_s=0.0044, exposed_s=0.0055, update_s=0.0066,
    overhead_s=0.0077, input_s=0.0088, reductions=(Reduction(9, 0.0, 0.01, 0.013), Reduction(9, 0.01, 0.02, 0.026)),
)  # fmt: skip
SCENARIO = Scenario(
    *load_both("abci-b86016", "abci-v100"), Machine(replace(V100, node=4), 1234), 42.5, 2, Software(algorithm="ring"),
    "0.6",
)  # fmt: skip
FORECAST = Forecast(
    SCENARIO, STEP, images_per_s=1_512_000.0, interval=Interval("larger", "float32", math.log(2), math.log(4)),
    startup_half_width=math.log(1.5), efficiency=0.7654, epoch_s={224: 11.8}, epochs=85, convergence="more epochs",
    run=RunTime(pre_s=1.1, first_epoch_excess_s=2.2, epochs_s=1003.3, evaluations_s=4.4),
    startup=StartupTime(launch_s=10.0, communicator_s=31.0, pipeline_s=20.0, total_s=41.0),
)  # fmt: skip
"""No two of its numbers are alike."""
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


def test_a_row_has_every_number_under_its_own_name() -> None:
    row = forecast_row(FORECAST, 2.5)
    assert row == pytest.approx(ROW)
    assert [*forecast_row(FORECAST)] == [*ROW][:-1]


def test_the_text_has_the_same_numbers_each_in_the_line_of_its_quantity() -> None:
    savings = {"shared uplinks": 12.346, "nothing to speak of": 0.005, "the network": 0.006}
    text = forecast_text(FORECAST, savings, 0.9, 2.5)
    numbers = {line[:14].strip(): re.findall(r"\d[\d,.]*\d|\d", line[14:]) for line in text.splitlines()[1:]}
    assert text.startswith("abci-b86016 on 1,234 x V100-SXM2 in 309 nodes, 42.5 images per rank, 104,890 a step\n")
    assert numbers["images/s"][:4] == ["1,512,000", "90", "756,000", "3,024,000"]
    assert numbers["efficiency"] == ["76.5", "1,234"]
    assert numbers["step"] == ["69.30", "11.00", "22.00", "3.30", "4.40", "5.50", "6.60", "7.70", "8.80"]
    assert numbers["reductions"] == ["9.00", "2", "5.50"]
    assert numbers["epochs"] == ["85"]
    assert numbers["time to train"] == ["1,011.0", "252.7", "4,044.0", "1.1", "1,003.3", "2.2", "4.4"]
    assert numbers["start-up"] == ["41.0", "27", "62", "10.0", "31.0", "20.0"]
    assert numbers["cost"] == ["360.6", "96.0", "1,407.3", "901.51", "2.5"]
    assert [line.split() for line in text.splitlines()[-3:]] == [
        ["a", "step", "would", "be", "shorter", "without"],
        ["shared", "uplinks", "by", "12.35", "ms"],
        ["the", "network", "by", "0.01", "ms"],
    ]


def test_parts_that_take_no_time_are_left_out_and_a_run_without_a_reference_has_no_time_to_train() -> None:
    step = STEP._replace(straggler_s=0.0, contention_s=0.0, exposed_s=0.0, overhead_s=0.0, input_s=0.0)
    plain = replace(FORECAST, step=step, convergence="none", interval=Interval("seen", "", 0.0, 0.0))
    text = forecast_text(plain, {}, 0.9, None)
    assert "39.60 ms: forward 11.00, backward 22.00, update 6.60\n" in text
    assert "\nrun            1,011.0 s" in text
    assert "time to train  " not in text
    assert text.splitlines()[-1].endswith("accelerator hours (355.9 to 367.6)")
    assert forecast_row(plain)["time_to_train_s"] is None
