"""Real ranks over a shaped loopback, and every transfer reduces every gradient once."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import mxnet as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.load import load_cluster, load_run
from configs.programs import Program, command_of
from launch.start.link import can_shape, shaped
from train.bench import bench_overlap, overlap_jobs
from train.bench.__main__ import _parse, main
from train.bench.bench_overlap import _bits_per_s, _figures, _judged
from train.bench.launching import run_ranks
from train.bench.measure import CANNOT_TELL, summarize
from train.bench.overlap_jobs import Job, TimedRanks, _least_of_processors, exposed_ms, real_job, timed_ranks
from train.bench.programs.overlap_ours import NONE, OVERLAPPED, SERIAL, Transfer, _TransferCommunicator
from train.bench.samples import read_samples
from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine
from train.networks.arch import float32_gradients, gradient_bytes, network_of

SMALL = ["--set", "model.name=resnet8", "--set", "model.image_size=16", "--set", "batch.global_size=4"]

LINK = "cluster.communication.link_bytes_per_s"

TRANSFER = """
import socket, sys, threading, time
def send_and_receive():
    server = socket.create_server(("127.0.0.1", 0))
    out = socket.create_connection(server.getsockname())
    into, _ = server.accept()
    threading.Thread(target=out.sendall, args=(bytes(2_000_000),)).start()
    left = 2_000_000
    while left:
        left -= len(into.recv(1 << 20))
senders = [threading.Thread(target=send_and_receive) for _ in range(int(sys.argv[1]))]
begin = time.monotonic()
for each in senders:
    each.start()
for each in senders:
    each.join()
print(time.monotonic() - begin)
"""

needs_link = pytest.mark.skipif(not can_shape(), reason="this kernel or user cannot shape a loopback")


def test_a_job_is_named_after_its_link_and_its_settings() -> None:
    job = Job("2 ranks", "digits", "laptop", ("model.image_size=16",), None, 2)
    job = job.over(1e6, "8 Mbit/s", "cluster.engine.threads=1").setting("cluster.communication.bucket_bytes=7")
    assert (job.title, job.link_bytes_per_s) == ("2 ranks, 8 Mbit/s bucket_bytes=7", 1e6)
    assert job.overrides[1:] == ("cluster.engine.threads=1", "cluster.communication.bucket_bytes=7")


@needs_link
@pytest.mark.parametrize("senders", [2, 4])
def test_a_shaped_link_lets_no_more_pass_than_its_senders_may(senders: int) -> None:
    command = [*shaped(50e6 / 8, senders), sys.executable, "-c", TRANSFER, str(senders)]
    took_s = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # The token bucket passes its own bytes at once.
    assert took_s > 8 * (2_000_000 - (128 << 10) / senders) / 50e6


@needs_link
@pytest.mark.ranks
def test_two_ranks_write_a_sample_a_round_of_every_transfer_over_a_shaped_link() -> None:
    transfers = [
        Transfer(NONE),
        Transfer(SERIAL, 1 << 18),
        Transfer(OVERLAPPED, 1 << 16),
        Transfer(OVERLAPPED, order="first"),
        Transfer(OVERLAPPED, wire="float16"),
        Transfer(OVERLAPPED, 1 << 14, deferred=0.3),
    ]
    words = [
        *SMALL,
        "--set",
        f"{LINK}=125e6",
        "--rounds",
        "2",
        "--steps",
        "1",
        *(transfer.name for transfer in transfers),
    ]
    command = command_of(Program.OVERLAP_OURS, *words)
    found = read_samples(run_ranks(command, overrides=[f"{LINK}=125e6"]))
    assert {Transfer.parse(name) for name in found} == set(transfers)
    assert all(
        len(samples) == 2 and all(min(each["step_ms"], each["processor_ms"]) > 0 for each in samples)
        for samples in found.values()
    )


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(1, 2000), st.sampled_from(["last", "first"]))
def test_every_order_sends_every_gradient_once(sizes: list[int], cap: int, order: str) -> None:
    buckets = Transfer(OVERLAPPED, cap, order).buckets(sizes).order
    sent = [index for bucket in buckets for index in bucket]
    assert sent == sorted(range(len(sizes)), reverse=order == "last")


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
    communicator = _TransferCommunicator(told, cast(Engine, told), Transfer(when))
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
    _TransferCommunicator(SingleProcess(), cast(Engine, None), transfer).reduce("bucket_0", [gradient])
    assert gradient.asnumpy().tolist() == [float(np.float16(1 / 3)), 2.0]


def test_the_hidden_fraction_is_the_part_of_serial_that_is_not_exposed() -> None:
    none, serial, own = {"step_ms": 100.0}, {"step_ms": 200.0}, {"step_ms": 120.0}
    job = Job("2 ranks", "r", "c", (), lambda *_: 5.0, 2)
    assert _figures(job, Transfer(OVERLAPPED), [own, none, serial]) == {
        "step_ms": 120.0,
        "exposed_ms": 20.0,
        "hidden_fraction": pytest.approx(0.8),
        "hidden_bound": pytest.approx(0.95),
    }
    assert _figures(job, Transfer(SERIAL), [serial, none, serial], 0.2) == {
        "step_ms": 200.0,
        "exposed_ms": 100.0,
        "exposed / backward": pytest.approx(0.5),
    }
    assert "hidden_fraction" not in _figures(job, Transfer(OVERLAPPED), [own, none, none])


@pytest.mark.parametrize(("values", "verdict"), [([0.83, 0.84, 0.85, 0.86, 0.87], "more than 0.8"),
                                                 ([0.5, 0.51, 0.52, 0.53, 0.54], "less than 0.8"),
                                                 ([0.81, 0.84, 0.85, 0.86, 0.95], CANNOT_TELL)])  # fmt: skip
def test_a_hidden_fraction_has_a_verdict_if_its_interval_is_narrow(values: list[float], verdict: str) -> None:
    (row,) = summarize("overlapped", [{"hidden_fraction": value} for value in values])
    assert _judged(row).verdict == verdict


def test_a_link_exposes_what_is_complete_when_backward_has_ended() -> None:
    # Gradients of 30, 10 and 60 bytes; the last layer's, 60 bytes, is computed first; the link takes 100 ms for all.
    sizes, ready_ms = [30, 10, 60], [100.0, 50.0, 20.0]
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 100.0) == 30.0, "20 + 60, 80 + 10, then from 100 on"
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 200.0) == 120.0, "the link is never idle from 20 on"
    assert exposed_ms([(2, 1, 0)], ready_ms, sizes, 100.0) == 100.0, "one bucket hides nothing"
    assert exposed_ms([(0,), (1,), (2,)], ready_ms, sizes, 100.0) == 100.0, "nor does the first layer first"


def test_processor_time_that_the_sums_take_stays_exposed_where_ranks_compute_on_the_same_processors() -> None:
    cores = len(os.sched_getaffinity(0))
    none, serial = {"processor_ms": 100.0}, {"processor_ms": 100.0 + 30 * cores}
    job = Job("2 ranks", "r", "c", (), _least_of_processors, 2)
    assert _least_of_processors(job, Transfer(OVERLAPPED), none, serial) == pytest.approx(30)
    assert _least_of_processors(job, Transfer(OVERLAPPED), serial, none) == 0


@needs_link
@pytest.mark.ranks
def test_timed_ranks_send_for_as_long_as_backward_takes_and_hide_no_more_than_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_jobs, "_BACKWARD_S", 0.1)
    output = tmp_path / "rows.json"
    words = ["--ranks", "2", "--no-sweep", "--rounds", "3", "--set", "cluster.communication.bucket_bytes=1073741824"]
    assert main(["overlap", *words, "--output", str(output)]) == 0
    way = "2 ranks, communication as long as backward: "
    rows = {
        (row["alternative"].removeprefix(way), row["figure"]): row for row in json.loads(output.read_text())["rows"]
    }
    assert rows["none", "step_ms"]["low"] >= 100
    # The link passes 128 KiB of 6.4 MB at once, and a direction may use what the other one leaves.
    assert rows["serial 4096 KiB", "exposed / backward"]["low"] > 0.5
    one, several = (rows[f"overlapped {size} KiB", "hidden_bound"]["median"] for size in (1048576, 4096))
    assert one < several < 1
    assert {name for name, figure in rows if figure == "hidden_fraction"} == {
        "overlapped 4096 KiB",
        "overlapped 1048576 KiB",
    }


def test_the_last_bucket_of_a_described_run_and_all_of_a_single_one_stay_exposed(tmp_path: Path) -> None:
    options = argparse.Namespace(model="resnet50", image_size=224, batch=42, described="abci-v100", overrides=[])
    timed = timed_ranks(options, 4, tmp_path)
    job = timed.over_backward()
    assert job.least_exposed_ms is not None
    exposed = {size: job.least_exposed_ms(job, Transfer(OVERLAPPED, size), {}, {}) for size in (1 << 30, 4 << 20)}
    assert exposed[1 << 30] == pytest.approx(1e3 * timed.backward_s, rel=0.01)
    parameters = network_of(load_run(tmp_path / "ranks-4.yaml")[0].model).parameters
    assert {each.kind for each in parameters[:3]} == {"weight", "gamma", "beta"}
    last = (
        Transfer(OVERLAPPED, 4 << 20).buckets(gradient_bytes(parameters, 2), float32_gradients(parameters, 2)).order[-1]
    )
    share = sum(parameters[index].size for index in last) / sum(each.size for each in parameters)
    assert share < 0.06
    assert exposed[4 << 20] == pytest.approx(1e3 * timed.backward_s * share, rel=0.15), (
        "and norms, which go just before"
    )


def test_the_link_of_many_ranks_lets_each_of_them_send_what_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []
    monkeypatch.setattr(overlap_jobs, "run_ranks", lambda _, *, cluster, overrides: given.extend(overrides))
    monkeypatch.setattr(overlap_jobs, "read_samples", lambda _: {})
    Job("8 ranks", "r", "c", ("model.name=a",), None, 8).over(1e6, "slow").run([Transfer(NONE)], 1, 1)
    assert given == [f"{LINK}=1e+06"], "the launcher multiplies it by the number of ranks"


def test_a_link_of_the_described_machine_becomes_as_much_slower_as_compute_and_shorter_as_gradients() -> None:
    job = Job("4 ranks", "r", "c", (), None, 4)
    timed = TimedRanks(job, 0.5, 8_000_000, speed=0.1, shrink=8, precision="float16", cycle_ms=16.0)
    assert timed.over_described(1.6e9, "slow").link_bytes_per_s == pytest.approx(2e7)
    assert timed.over_backward().link_bytes_per_s == pytest.approx(8e6 * 1.5 / 0.5)


@pytest.mark.parametrize("shares_processors", [True, False])
def test_ranks_that_train_are_those_of_the_cluster_and_the_users_words_come_last(shares_processors: bool) -> None:
    options = argparse.Namespace(model="resnet8", image_size=16, batch=2, cluster="abci-v100", overrides=["run.seed=3"])
    job = real_job(options, 4, shares_processors=shares_processors)
    assert (job.cluster, job.ranks, job.link_bytes_per_s) == ("abci-v100", 4, None)
    assert job.overrides == ("model.name=resnet8", "model.image_size=16", "batch.global_size=8", "run.seed=3")
    assert (job.least_exposed_ms is _least_of_processors) is shares_processors


def test_a_link_that_is_not_a_speed_is_refused_in_one_line() -> None:
    assert (_bits_per_s("2.5", "doubling"), _bits_per_s("doubling", "doubling")) == (2.5e9, None)
    for word in ("fast", "-1", "0", "backward"):
        with pytest.raises(ValueError, match=f"--links {word}: allowed: Gb/s above 0, or doubling"):
            _bits_per_s(word, "doubling")


@pytest.mark.parametrize(
    ("words", "compute", "asked"),
    [
        ("", "timed", {"model": "resnet50", "image_size": 224, "batch": 42, "rounds": 15, "steps": 1}),
        ("--compute real", "real", {"model": "resnet18", "image_size": 64, "batch": 16, "rounds": 7, "steps": 1}),
        ("--cluster abci-v100", "real", {"model": "resnet18", "rounds": 7}),
        ("--model alexnet --steps 3", "timed", {"model": "alexnet", "image_size": 224, "steps": 3}),
    ],
)
def test_timed_and_real_ranks_have_defaults_of_their_own(
    words: str, compute: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, Any, Any]] = []
    for name in ("timed", "real"):
        monkeypatch.setattr(
            bench_overlap, f"_measure_{name}", lambda options, cluster, name=name: told.append((name, options, cluster))
        )
    bench_overlap.measure(_parse(["overlap", *words.split()]))
    ((name, options, cluster),) = told
    assert name == compute
    assert {key: getattr(options, key) for key in asked} == asked
    assert cluster.name == ("abci-v100" if "abci" in words else "laptop")


def test_changes_are_those_of_the_described_machine_where_ranks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clusters: list[Any] = []
    for name in ("timed", "real"):
        monkeypatch.setattr(bench_overlap, f"_measure_{name}", lambda _, cluster: clusters.append(cluster))
    for compute in ("timed", "real"):
        words = ["--compute", compute, "--set", "cluster.engine.threads=7"]
        bench_overlap.measure(_parse(["overlap", *words]))
    timed, real = clusters
    assert (timed.engine.threads, real.engine.threads) == (load_cluster("laptop").engine.threads, 7)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--ranks 4 1", "--ranks 1: allowed: two ranks or more, because one rank sends nothing"),
        ("--compute timed --cluster abci-v100", "--compute timed: got --cluster abci-v100, allowed: laptop, or no"),
        ("--compute real --set cluster.ranks_per_node=1", "--cluster: got laptop with one rank, which sends nothing"),
        ("--cluster abci-v100 --links 1 5", "--links: got 1 5, allowed: none on abci-v100, whose network is real"),
    ],
)
def test_ranks_and_links_that_cannot_be_measured_are_named(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "overlap", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")


def test_a_round_in_which_serial_costs_nothing_leaves_no_round_a_hidden_fraction() -> None:
    none, serial, overlapped = Transfer(NONE), Transfer(SERIAL), Transfer(OVERLAPPED)
    options = argparse.Namespace(rounds=2, steps=3)
    for serial_ms, hidden in (((14.0, 18.0), [0.5, 0.75]), ((14.0, 10.0), []), ((14.0, 10.5), [0.5, -3.0])):
        measured = {none: [10.0, 10.0], serial: [*serial_ms], overlapped: [12.0, 12.0]}
        samples = {each: [{"step_ms": value} for value in values] for each, values in measured.items()}

        def run(transfers: Any, rounds: int, steps: int, samples: Any = samples) -> Any:
            assert (transfers, rounds, steps) == ([none, serial, overlapped], 2, 3)
            return samples

        job: Any = SimpleNamespace(title="2 ranks", run=run, least_exposed_ms=None)
        rows, alone_s = bench_overlap._measure(job, [none, serial, overlapped], options)
        assert alone_s == 0.01
        found = {row.figure: row for row in rows if row.alternative == f"2 ranks: {overlapped.title}"}
        assert (found["exposed_ms"].median, found["exposed_ms"].n, found["exposed_ms"].warmup) == (2.0, 2, 1)
        assert ("hidden_fraction" in found) is bool(hidden)
        if hidden:
            assert (found["hidden_fraction"].low, found["hidden_fraction"].high) == (min(hidden), max(hidden))
        assert "hidden_bound" not in found, "nothing bounds what can be hidden"


def test_numbers_of_another_type_have_no_bound() -> None:
    job: Any = SimpleNamespace(least_exposed_ms=lambda *_: 1.0)
    samples = [{"step_ms": each} for each in (12.0, 10.0, 14.0)]
    assert _figures(job, Transfer(OVERLAPPED), samples)["hidden_bound"] == 0.75
    assert "hidden_bound" not in _figures(job, Transfer(OVERLAPPED, wire="float16"), samples)
