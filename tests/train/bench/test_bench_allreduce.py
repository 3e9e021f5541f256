"""``bench allreduce``: sizes are read, and real ranks give a row of each size with the prediction of their machine."""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from train.bench.__main__ import _parse, main
from train.bench.bench_allreduce import _bytes_of, _per_node, _topology, _Way, _way, measure
from train.bench.measure import Figures
from train.sim.collectives import allreduce
from train.sim.conditions import DESCRIPTION
from train.sim.constants import load_calibration
from train.sim.hardware import machine_of_cluster


@pytest.mark.parametrize(("text", "size"), [("4K", 4096), ("16m", 16 << 20), ("1G", 1 << 30), ("4097", 4096)])
def test_a_size_is_bytes_with_a_unit(text: str, size: int) -> None:
    assert _bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4K", "1.5M", "3", "4T"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=rf"^--sizes {text}: allowed: 4 bytes or more"):
        _bytes_of(text)


def test_a_cluster_of_gpus_has_a_prediction_without_a_measurement() -> None:
    topology, reason = _topology(load_cluster("dgx-a100"))
    assert (topology is not None, reason) == (True, "")


def test_a_machine_that_the_simulator_does_not_know_says_why_there_is_no_prediction() -> None:
    topology, reason = _topology(load_cluster("dgx-a100", ["cluster.node.gpu=X1"]))
    assert topology is None
    assert reason.startswith("no prediction: node.gpu: got 'X1'")


def test_ranks_are_the_same_on_every_node() -> None:
    cluster = load_cluster("dgx-a100", ["cluster.num_nodes=2"])
    assert _per_node(cluster, 12) == 6
    with pytest.raises(UserError, match="--ranks 5: allowed: multiples of the cluster's 2 nodes"):
        _per_node(cluster, 5)


def test_shared_memory_stands_beside_the_libraries_with_a_prediction_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rates = {"flops": 1e10, "memory_bytes_per_s": 1e10, "link_bytes_per_s": 1e9, "cores": 2.0}
    rates |= {"sum_bytes_per_s": 8e9, "sum_bucket_s": 1e-4}
    monkeypatch.setattr("train.bench.bench_allreduce.load_description", {DESCRIPTION: rates}.__getitem__)
    options = argparse.Namespace(cluster="laptop", overrides=["cluster.engine.name=mxnet"])
    gloo, shared = (_way(options, load_cluster("laptop"), 2, backend, "flat") for backend in ("gloo", "shared_memory"))
    assert (gloo.title, shared.title) == ("2 ranks, flat, gloo", "2 ranks, flat, shared_memory")
    assert shared.cluster.communication.kind == "shared_memory"
    # Two ranks read and write four bytes for each byte of the buffer.
    assert shared._figures(8_000_000, 1.0)["predicted_ms"] == pytest.approx(0.1 + 4.0)
    assert gloo._figures(8_000_000, 1.0)["predicted_ms"] > 8.0


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the titles of what is started, each of which takes a millisecond."""
    titles: list[str] = []

    def start(way: _Way, _: str, sizes: Sequence[int]) -> dict[int, Figures]:
        titles.append(way.title)
        return {size: way._figures(size, 1.0) for size in sizes}

    monkeypatch.setattr(_Way, "start", start)
    return titles


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        ("--set cluster.engine.name=mxnet", ["2 ranks, flat, gloo", "2 ranks, flat, shared_memory",
                                             "4 ranks, flat, gloo", "4 ranks, flat, shared_memory"]),
        ("--ranks 3", ["3 ranks, flat, gloo", "3 ranks, flat, shared_memory"]),
        ("--ranks 2 --backends mpi gloo", ["2 ranks, flat, mpi", "2 ranks, flat, gloo"]),
        ("--cluster dgx-a100", ["16 ranks, torus, nccl"]),
        ("--cluster dgx-a100 --routes flat torus", ["16 ranks, flat, nccl", "16 ranks, torus, nccl"]),
    ],
)  # fmt: skip
def test_every_number_of_ranks_goes_over_every_library_and_route(
    words: str, titles: list[str], started: list[str]
) -> None:
    report = measure(_parse(["allreduce", "--sizes", "4K", "--rounds", "1", *words.split()]))
    assert started == titles
    measured = [row.alternative for row in report.rows if row.figure == "allreduce_ms"]
    assert measured == [f"{title}, 4 KiB" for title in titles]


@pytest.mark.parametrize("route", ["flat", "hierarchical", "torus"])
def test_a_route_is_predicted_as_the_simulators_algorithm(route: str, started: list[str]) -> None:
    words = ["--cluster", "dgx-a100", "--ranks", "32", "--routes", route, "--set", "cluster.num_nodes=4"]
    rows = {
        row.figure: row.median for row in measure(_parse(["allreduce", "--sizes", "64M", "--rounds", "1", *words])).rows
    }
    topology = machine_of_cluster(load_cluster("dgx-a100", ["cluster.num_nodes=4"])).topology(
        load_calibration().constants.network_efficiency
    )
    algorithm = {"flat": "auto"}.get(route, route)
    expected_ms = 1e3 * allreduce(algorithm, topology, 64 << 20).time_s
    assert rows["predicted_ms"] == rows["predicted / measured"] == pytest.approx(expected_ms)
    assert rows["bus_gb_per_s"] == pytest.approx(2 * 31 / 32 * (64 << 20) / 1e-3 / 1e9)
    assert started == [f"32 ranks, {route}, nccl"]


def test_a_machine_without_a_prediction_says_so_once(started: list[str]) -> None:
    words = ["--cluster", "dgx-a100", "--set", "cluster.node.gpu=X1", "--routes", "flat", "torus"]
    report = measure(_parse(["allreduce", "--sizes", "4K", "8K", "--rounds", "1", *words]))
    assert len([note for note in report.notes if note.startswith("no prediction: node.gpu: got 'X1'")]) == 1
    assert {row.figure.partition(" / ")[0] for row in report.rows} == {"allreduce_ms", "bus_gb_per_s"}
    assert len(started) == 2


@pytest.mark.parametrize(("text", "size"), [("4", 4), ("7", 4), ("1K", 1024)])
def test_the_smallest_size_is_one_number(text: str, size: int) -> None:
    assert _bytes_of(text) == size


@pytest.mark.ranks
def test_two_ranks_give_milliseconds_and_bandwidth_that_belong_together(tmp_path: Path) -> None:
    output = tmp_path / "rows.json"
    words = ["allreduce", "--ranks", "2", "--sizes", "4K", "1M", "--rounds", "1", "--output", str(output)]
    begin = time.monotonic()
    assert main(words) == 0
    took_ms = 1e3 * (time.monotonic() - begin)
    rows = json.loads(output.read_text())["rows"]
    assert sum(row["median"] for row in rows if row["figure"] == "allreduce_ms") < took_ms, "milliseconds of the bench"
    found = {(row["alternative"], row["figure"]): row for row in rows}
    for name, size in (("4 KiB", 4096), ("1 MiB", 1 << 20)):
        ms = found[f"2 ranks, flat, gloo, {name}", "allreduce_ms"]
        rate = found[f"2 ranks, flat, gloo, {name}", "bus_gb_per_s"]
        assert ms["n"] == 1
        assert rate["high"] == pytest.approx(size / ms["low"] / 1e6)
        assert (
            found[f"2 ranks, flat, shared_memory, {name}", "allreduce_ms / 2 ranks, flat, gloo, " + name]["median"] > 0
        )
