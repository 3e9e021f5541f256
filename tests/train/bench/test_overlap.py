"""Every transfer reduces every gradient once, and the hidden share of the communication is that of the rounds."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import mxnet as mx
import numpy as np
import pytest

from configs.load import load_cluster, load_recipe, load_run
from tests.train.bench.fake_jobs import FakeJobs, Started
from train.bench.__main__ import BENCHES, read_command
from train.bench.bench_overlap import NONE, OVERLAPPED, SERIAL, OverlapOptions, Transfer, Workload
from train.bench.measure import CANNOT_TELL, BenchRow, Report
from train.bench.overlap_jobs import exposed_ms, timed_ranks
from train.bench.programs.overlap_ours import TransferCommunicator
from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine
from train.networks.arch import float32_gradients, gradient_bytes, network_of

LINK = "cluster.communication.link_bytes_per_s="
ON_MXNET = "--set cluster.engine.name=mxnet --set cluster.communication.kind=horovod"


def _jobs(milliseconds: Callable[[Transfer], Sequence[float]], processor_ms: float = 1.0) -> FakeJobs:
    """Return jobs whose ranks tell these milliseconds of a step; a serial step takes twice the processor time."""

    def answer(started: Started) -> Any:
        return {
            name: [
                {"step_ms": each, "processor_ms": processor_ms * (1 + ("serial" in name))}
                for each in milliseconds(Transfer.parse(name))
            ]
            for name in started.task["transfers"]
        }

    return FakeJobs(answer=answer)


def _measure(words: str, jobs: FakeJobs) -> Report:
    return BENCHES["overlap"].measure(read_command(["overlap", *words.split()]).options, jobs)


def _row(report: Report, name: str, figure: str) -> BenchRow:
    return next(row for row in report.rows if row.alternative.endswith(name) and row.figure == figure)


def _usual(transfer: Transfer) -> list[float]:
    return [{NONE: 100.0, SERIAL: 200.0, OVERLAPPED: 120.0}[transfer.when]] * 5


def test_the_first_layer_has_the_first_bucket_where_the_order_says_so() -> None:
    assert Transfer(OVERLAPPED, 40, "first").buckets([30, 10, 60]).order == ((0, 1), (2,))
    assert Transfer(OVERLAPPED, 70, "last").buckets([30, 10, 60]).order == ((2, 1), (0,))


class _Told(SingleProcess):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        self.told.append(f"{name.split()[1]} {arrays} {priority}")

    def complete(self) -> None:
        self.told.append("complete")

    def wait_all(self) -> None:
        self.told.append("backward has ended")


@pytest.mark.parametrize(
    ("when", "order"),
    [
        (OVERLAPPED, ["bucket_0 [7] 0", "backward", "bucket_1 [8] -1", "complete"]),
        (SERIAL, ["backward", "backward has ended", "bucket_0 [7] 0", "bucket_1 [8] -1", "complete"]),
    ],
)
def test_a_serial_transfer_begins_when_backward_has_ended_and_an_overlapped_one_at_once(
    when: str, order: list[str]
) -> None:
    told = _Told()
    communicator = TransferCommunicator(told, cast(Engine, told), Transfer(when))
    for _ in range(2):
        told.told.clear()
        communicator.reduce("bucket_0", [7], 0)
        told.told.append("backward")
        communicator.reduce("bucket_1", [8], -1)
        communicator.complete()
        assert told.told == order


def test_gradients_that_travel_in_16_bits_are_rounded_to_them() -> None:
    gradient = mx.nd.array([1 / 3, 2.0])
    transfer = Transfer(OVERLAPPED, wire="float16")
    TransferCommunicator(SingleProcess(), cast(Engine, None), transfer).reduce("bucket_0", [gradient])
    assert gradient.asnumpy().tolist() == [float(np.float16(1 / 3)), 2.0]


def test_the_hidden_fraction_is_the_part_of_serial_that_is_not_exposed() -> None:
    report = _measure(f"--compute real --links 10 --no-sweep {ON_MXNET}", _jobs(_usual))
    plain = "network as it is: overlapped 1024 KiB"
    assert _row(report, plain, "exposed_ms").median == 20.0
    assert _row(report, plain, "hidden_fraction").median == pytest.approx(0.8)
    assert _row(report, "10 Gb/s: serial 4096 KiB", "exposed_ms").median == 100.0
    # A millisecond of processor time that the sums take, on all cores, of 100 ms that serial exposes.
    bound = 1 - 1 / len(os.sched_getaffinity(0)) / 100
    assert _row(report, plain, "hidden_bound").median == pytest.approx(bound)
    assert {row.n for row in report.rows} == {5}
    assert {row.warmup for row in report.rows} == {1}
    with pytest.raises(StopIteration):
        _row(report, "none", "exposed_ms")


@pytest.mark.parametrize(("values", "verdict"), [([83, 84, 85, 86, 87], "more than 0.8"),
                                                 ([50, 51, 52, 53, 54], "less than 0.8"),
                                                 ([81, 84, 85, 86, 95], CANNOT_TELL)])  # fmt: skip
def test_a_hidden_fraction_has_a_verdict_if_its_interval_is_narrow(values: list[float], verdict: str) -> None:
    def milliseconds(transfer: Transfer) -> list[float]:
        return [200.0 - each for each in values] if transfer.when == OVERLAPPED else _usual(transfer)

    report = _measure(f"--compute real --links 10 --no-sweep {ON_MXNET}", _jobs(milliseconds))
    assert _row(report, "10 Gb/s: overlapped 1024 KiB", "hidden_fraction").verdict == verdict


@pytest.mark.parametrize(
    ("serial", "hidden"), [((14.0, 18.0), [0.5, 0.75]), ((14.0, 10.0), []), ((14.0, 10.5), [-3, 0.5])]
)
def test_a_round_in_which_serial_costs_nothing_leaves_no_round_a_hidden_fraction(
    serial: tuple[float, float], hidden: list[float]
) -> None:
    def milliseconds(transfer: Transfer) -> Sequence[float]:
        return {NONE: [10.0, 10.0], SERIAL: serial, OVERLAPPED: [12.0, 12.0]}[transfer.when]

    report = _measure(f"--compute real --links 10 --no-sweep --rounds 2 {ON_MXNET}", _jobs(milliseconds))
    name = "10 Gb/s: overlapped 1024 KiB"
    assert _row(report, name, "exposed_ms").median == 2.0
    found = [row for row in report.rows if row.alternative.endswith(name) and row.figure == "hidden_fraction"]
    assert [each for row in found for each in (row.low, row.high)] == pytest.approx(hidden)


def test_ranks_that_train_sweep_the_link_on_which_communication_doubles_a_step() -> None:
    jobs = _jobs(_usual)
    words = "--compute real --model resnet8 --image-size 16 --batch 4 --rounds 5 --steps 2"
    report = _measure(f"{words} --set cluster.engine.name=mxnet --set cluster.communication.kind=shared_memory", jobs)
    plain, swept, bulk, updates, one, ten = (each.task for each in jobs.started)
    unswept = _jobs(_usual)
    _measure(f"{words} --no-sweep {ON_MXNET}", unswept)
    assert [len(each.task["transfers"]) for each in unswept.started] == [3, 4, 4, 4]
    assert (plain["rounds"], plain["steps"]) == (5, 2)
    assert {"model.name=resnet8", "model.image_size=16", "batch.global_size=8"} <= {*plain["overrides"]}
    assert len(swept["transfers"]) == 4 + 3 + 2, "other bucket sizes, the other order, 16 bits"
    assert "cluster.engine.update_groups=1" in bulk["overrides"]
    assert "cluster.engine.backward_bulk_nodes=15" in updates["overrides"]
    total = sum(gradient_bytes(network_of(load_run_model(words)).parameters, 4))
    # Without communication, a step takes 0.1 s; in a ring of two, each rank sends what it has.
    assert f"{LINK}{total / 0.1:g}" in swept["overrides"]
    assert f"{LINK}1.25e+08" in one["overrides"]
    assert f"{LINK}1.25e+09" in ten["overrides"]
    assert "cluster.communication.kind=horovod" in ten["overrides"], "sums in shared memory pass no link"
    assert not any(each.startswith(LINK) for each in plain["overrides"])
    assert jobs.started[1].place == [each for each in swept["overrides"] if each.startswith("cluster.")]
    # Numbers of another type have no bound.
    wire = next(row.alternative for row in report.rows if row.alternative.endswith("float16, 30% deferred"))
    assert {row.figure for row in report.rows if row.alternative == wire} >= {"hidden_fraction"}
    assert not any(row.figure == "hidden_bound" for row in report.rows if row.alternative == wire)


def load_run_model(words: str) -> Any:
    """Return the block ``model`` that ranks train with these words."""
    name, size = words.split()[3], int(words.split()[5])
    return load_recipe("imagenet-smoke", [f"model.name={name}", f"model.image_size={size}"]).model


def test_ranks_on_a_cluster_train_over_its_own_network_without_a_bound() -> None:
    jobs = _jobs(_usual)
    report = _measure("--cluster abci-v100 --rounds 5", jobs)
    (started,) = jobs.started
    assert started.after("--cluster") == started.task["cluster"] == "abci-v100"
    ranks = load_cluster("abci-v100").world_size
    assert {"model.name=resnet18", "model.image_size=64", f"batch.global_size={16 * ranks}"} <= {
        *started.task["overrides"]
    }
    assert not any(row.figure == "hidden_bound" for row in report.rows)


def test_timed_ranks_stand_for_a_described_gpu_and_have_defaults_of_their_own() -> None:
    jobs = _jobs(_usual)
    report = _measure("--ranks 2 4 --rounds 5", jobs)
    two, four = jobs.started
    assert (len(two.task["transfers"]), len(four.task["transfers"])) == (4 + 3, 4), "the first one is swept"
    assert (
        _row(report, "2 ranks, communication as long as backward: serial 4096 KiB", "exposed / backward").median == 0.2
    )
    # Each rank sends 2 (n - 1) / n of the bytes in the time of backward.
    speeds = [float(each.place[-1].removeprefix(LINK)) for each in jobs.started]
    assert speeds[1] / speeds[0] == pytest.approx(1.5, rel=1e-4)
    assert report.notes[0].startswith("timed: resnet50 at 224 px, batch 42 a rank, float16, on a GPU of abci-v100, ")
    assert any("it looks for gradients every 4 ms times the ranks" in note for note in report.notes)
    real = _measure("--ranks 2 --links 100 --rounds 5 --no-sweep --model alexnet", _jobs(_usual))
    assert real.notes[0].startswith("timed: alexnet at 224 px")
    assert any(row.alternative.startswith("2 ranks, 100 Gb/s: ") for row in real.rows)


def test_a_link_exposes_what_is_complete_when_backward_has_ended() -> None:
    # Gradients of 30, 10 and 60 bytes; the last layer's, 60 bytes, is computed first; the link takes 100 ms for all.
    sizes, ready_ms = [30, 10, 60], [100.0, 50.0, 20.0]
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 100.0) == 30.0, "20 + 60, 80 + 10, then from 100 on"
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 200.0) == 120.0, "the link is never idle from 20 on"
    assert exposed_ms([(2, 1, 0)], ready_ms, sizes, 100.0) == 100.0, "one bucket hides nothing"
    assert exposed_ms([(0,), (1,), (2,)], ready_ms, sizes, 100.0) == 100.0, "nor does the first layer first"


def test_the_last_bucket_of_a_described_run_and_all_of_a_single_one_stay_exposed(tmp_path: Path) -> None:
    timed = timed_ranks(OverlapOptions(), Workload("resnet50", 224, 42, 1), 4, tmp_path, 0.5)
    job = timed.over_backward()
    assert job.least_exposed_ms is not None
    exposed = {size: job.least_exposed_ms(job, Transfer(OVERLAPPED, size), {}, {}) for size in (1 << 30, 4 << 20)}
    assert exposed[1 << 30] == pytest.approx(500, rel=0.01)
    parameters = network_of(load_run(tmp_path / "ranks-4.yaml")[0].model).parameters
    order = Transfer(OVERLAPPED, 4 << 20).buckets(gradient_bytes(parameters, 2), float32_gradients(parameters, 2)).order
    share = sum(parameters[index].size for index in order[-1]) / sum(each.size for each in parameters)
    assert share < 0.06
    assert exposed[4 << 20] == pytest.approx(500 * share, rel=0.15), "and norms, which go just before"
    # Compute is as much slower as the link, and gradients are shorter.
    described = timed.over_described(1.6e9, "slow").link_bytes_per_s
    assert described == pytest.approx(1.6e9 * timed.speed / 8)
