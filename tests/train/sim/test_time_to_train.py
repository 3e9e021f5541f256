"""The time of a whole run: epochs by batch, the parts of the timed run, and the start-up."""

import json
from pathlib import Path
from statistics import mean

import mlperf_logging
import pytest

from train.sim.time_to_train import (
    epochs_to_target,
    run_time,
)


def test_epochs_never_fall_with_the_batch_and_grow_beyond_the_last_point() -> None:
    found = [epochs_to_target(batch) for batch in range(256, 200_000, 512)]
    assert found == sorted(found)
    assert epochs_to_target(172_032) == 119  # 90, and 28.5 for the doubling, rounded up


@pytest.mark.parametrize(
    ("batch", "mlperf_round", "epochs"),
    [
        (40132, "", 62),  # the geometric mean of 32,768 and 49,152: the mean of 56 and 68
        (16963, "", 47),  # 47.45
        (1, "", 35),
        (1664, "0.5", 60),
        (1664, "banana", 35),
        (44544, "0.7", 70),
        (86016, "4.0", 90),
    ],
)
def test_between_known_batches_epochs_grow_with_the_logarithm(batch: int, mlperf_round: str, epochs: int) -> None:
    assert epochs_to_target(batch, mlperf_round) == epochs


def test_the_epochs_of_each_batch_are_those_of_the_official_reference_runs() -> None:
    folder = Path(mlperf_logging.__file__).parent / "rcp_checker"
    measured: dict[int, list[float]] = {}
    for file in folder.glob("training_*/rcps_resnet.json"):
        for point in json.loads(file.read_text(encoding="utf-8")).values():
            measured.setdefault(point["BS"], []).append(mean(sorted(point["Epochs to converge"])[1:-1]))
    known = [1632, 3264, 4096, 8192, 13056, 32768, 49152, 58880, 65536, 67840]
    assert set(known) <= set(measured)
    for batch in known:
        # Whole epochs: half of one is rounded.
        assert min(abs(epochs_to_target(batch) - each) for each in measured[batch]) < 0.7, batch


@pytest.mark.parametrize(
    ("rate", "epochs", "nodes", "mlperf_round", "seconds"),
    [
        (1_722_000, 90, 512, "0.6", 70.4),
        (1_144_921, 86, 130, "0.6", 101.4),
        (167_670, 35, 8, "2.0", 270.2),
        (318_223, 35, 8, "3.1", 149.7),
    ],
)
def test_measured_rates_and_epochs_give_the_published_times(
    rate: float, epochs: int, nodes: int, mlperf_round: str, seconds: float
) -> None:
    assert run_time(rate, epochs, nodes, mlperf_round=mlperf_round).total_s == pytest.approx(seconds, rel=0.04)
