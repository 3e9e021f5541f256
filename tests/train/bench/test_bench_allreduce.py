"""``bench allreduce``: sizes are read, and real ranks give a row of each size with the prediction of their machine."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import load_cluster
from train.bench.__main__ import main
from train.bench.bench_allreduce import _bytes_of, _per_node, _topology, _way
from train.sim.conditions import DESCRIPTION


@pytest.mark.parametrize(("text", "size"), [("4K", 4096), ("16m", 16 << 20), ("1G", 1 << 30), ("4097", 4096)])
def test_a_size_is_bytes_with_a_unit(text: str, size: int) -> None:
    assert _bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4K", "1.5M", "3", "4T"])
def test_a_wrong_size_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--sizes"):
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
