"""The time of a whole run: epochs by batch, the parts of the timed run, and the start-up."""

import json
from pathlib import Path
from statistics import mean

import mlperf_logging
import pytest

from train.sim.time_to_train import (
    DataSet,
    epochs_to_target,
    evaluation_time,
    evaluations_of,
    predict_init,
    predict_startup,
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
        (17378, "", 48),  # 47.76
        (16963, "", 47),  # 47.45
        (1, "", 35),
        (1664, "0.5", 60),
        (1664, "banana", 35),
    ],
)
def test_between_known_batches_epochs_grow_with_the_logarithm(batch: int, mlperf_round: str, epochs: int) -> None:
    assert epochs_to_target(batch, mlperf_round) == epochs


@pytest.mark.parametrize(
    ("mlperf_round", "published"),
    [
        ("0.6", {1664: 60, 4096: 62, 16384: 66, 33280: 72, 54080: 86, 59904: 90, 86016: 90}),
        ("0.7", {832: 38, 1664: 38, 3264: 41, 4096: 43, 8192: 44, 34560: 59, 44544: 70, 53360: 82, 86016: 90}),
        ("4.0", {16384: 47, 86016: 90}),
    ],
)
def test_a_published_batch_needs_its_published_epochs(mlperf_round: str, published: dict[int, int]) -> None:
    assert {batch: epochs_to_target(batch, mlperf_round) for batch in published} == published


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


@pytest.mark.parametrize(("epochs", "evaluations"), [(1, 1), (4, 1), (5, 2), (35, 9), (90, 23)])
def test_every_fourth_epoch_and_the_last_are_evaluated(epochs: int, evaluations: int) -> None:
    assert evaluations_of(epochs) == evaluations


@pytest.mark.parametrize(
    ("mlperf_round", "nodes", "pre_s", "excess_s", "share"),
    [
        ("4.0", 1, 1.2, 0.35 + 1.2, 0.42),
        ("4.0", 8, 1.2, 0.35 + 1.2, 0.42),
        ("", 32, 1.2, 0.35 + 0.3, 0.42),
        ("0.7", 16, 2.0, 0.35 + 0.6, 0.95),
        ("0.6", 512, 2.0, 1.9, 0.95),
    ],
)
def test_a_run_is_its_parts(mlperf_round: str, nodes: int, pre_s: float, excess_s: float, share: float) -> None:
    data = DataSet(images=2_000_000, eval_images=30_000, evaluations=7)
    run = run_time(1e5, 10, nodes, mlperf_round=mlperf_round, data=data)
    assert run.pre_s == pre_s
    assert run.first_epoch_excess_s == pytest.approx(excess_s)
    assert run.epochs_s == pytest.approx(10 * 20)
    assert evaluation_time(1e5, mlperf_round, 30_000) == pytest.approx(share * 0.3 + 0.02)
    assert run.evaluations_s == pytest.approx(7 * (share * 0.3 + 0.02))
    assert run.total_s == pytest.approx(pre_s + excess_s + 200 + 7 * (share * 0.3 + 0.02))
    assert run_time(1e5, 10, nodes).evaluations_s == pytest.approx(3 * (0.42 * 0.5 + 0.02))


@pytest.mark.parametrize(
    ("ranks", "seeded", "overlapped", "total_s"),
    [
        (1, True, True, 8 + 4.35),
        (1, False, False, 8 + 4.35),
        (4, True, True, 11.2 + 4.5224),
        (4, True, False, 11.2 + 4.5224 + 4.35),
        (4, False, True, 11.2 + 4.5224 + 161 * 40e-6 + 0.204),
        (4, False, False, 11.2 + 4.5224 + 4.35 + 161 * 40e-6 + 0.204),
    ],
)
def test_a_start_up_is_its_phases(ranks: int, seeded: bool, overlapped: bool, total_s: float) -> None:
    assert predict_startup(ranks, seeded=seeded, overlapped=overlapped).total_s == pytest.approx(total_s)


@pytest.mark.parametrize(
    ("mlperf_round", "has_compiler", "warm_up_s"),
    [("0.5", False, 8), ("0.7", False, 8), ("1.0", False, 36), ("", False, 36), ("0.7", True, 100), ("2.0", True, 100)],
)
def test_the_logged_initialisation_has_no_launch_but_the_warm_up_of_its_round(
    mlperf_round: str, has_compiler: bool, warm_up_s: float
) -> None:
    assert predict_init(4, mlperf_round, has_compiler=has_compiler) == pytest.approx(4.5224 + warm_up_s)
