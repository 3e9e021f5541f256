"""What the doctor says of a step: the slowest rank, what failed with its remedy, memory and rate beside the figures."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from configs.load import load_cluster
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.step_checks import check_step

CLUSTER = load_cluster("abci-v100", ["cluster.num_nodes=2", "cluster.ranks_per_node=2"])
PLAN = {"memory": {"total_bytes": 7e9, "available_bytes": 16e9}}
FORECAST = {"images_per_s": 3000.0, "low": 2400.0, "high": 3600.0}
SECONDS = {
    "network": 2.0, "first batch": 0.4, "warm-up": 3.0, "forward": 0.012, "forward and backward": 0.037,
    "update": 0.001, "evaluation": 0.006, "step": 0.05,
}  # fmt: skip


def _rows() -> list[dict[str, Any]]:
    step = {
        "seconds": SECONDS, "buckets_s": [0.001, 0.002], "failure": None, "images": 168, "part": "step",
        "memory_bytes": 6.9e9, "memory_before_bytes": 0.5e9,
    }  # fmt: skip
    return [{"rank": rank, "host": f"node{rank // 2}", "step": copy.deepcopy(step)} for rank in range(4)]


def _check(rows: list[dict[str, Any]]) -> dict[str, CheckResult]:
    report = ProbeReport(CLUSTER, rows, PLAN, is_packed_on_demand=False, forecast=FORECAST)
    return {result.topic: result for result in check_step(report)}


def test_a_sound_step_is_told_by_its_parts() -> None:
    results = _check(_rows())
    assert {result.level for result in results.values()} == {"OK"}
    assert results["step"].words == (
        "50 ms, 3,360.0 images/s on 4 ranks; forward 12 ms; backward 25 ms; update 1 ms; each bucket alone 1 ms, 2 ms; "
        "evaluation batch 6 ms; first batch 400 ms; warm-up 3 s"
    )
    assert results["step memory"].words == "6.90 GB in use by rank 0 on node0, planned 7.00 GB"
    assert results["forecast"].words == "3,360.0 images/s, the simulator expects 3,000.0 (2,400.0 to 3,600.0)"


def test_the_slowest_rank_is_named() -> None:
    rows = _rows()
    rows[2]["step"]["seconds"] = {**SECONDS, "forward and backward": 0.05}
    result = _check(rows)["slowest rank"]
    assert (result.level, result.hosts) == ("WARN", ("node1",))
    assert result.words == "rank 2 on node1 is the slowest: 50 ms of compute, median 37 ms"
    assert _check([rows[each] for each in (0, 2, 1, 3)])["slowest rank"] == result, "ranks report in any order"


def test_a_slow_step_and_more_memory_than_planned_are_warnings() -> None:
    rows = _rows()
    rows[3]["step"]["seconds"] = {**SECONDS, "step": 0.1}
    rows[1]["step"]["memory_bytes"] = 7.8e9
    results = _check(rows)
    assert (results["forecast"].level, results["step memory"].level) == ("WARN", "WARN")
    assert results["step"].words.startswith("100 ms, 1,680.0 images/s")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("cudaMalloc retry failed: out of memory", "smaller micro-batches"),
        ("CUDA: Check failed: e == cudaSuccess: no kernel image is available for execution", "docs/gpu.md"),
        ("CUDA_ERROR_INVALID_PTX while loading a fused operator", "MXNET_USE_FUSION: 0"),
        ("Check failed: e == CUDNN_STATUS_SUCCESS (9 vs. 0) : cuDNN: CUDNN_STATUS_NOT_SUPPORTED", "no algorithm"),
        ("NCCL error: unhandled system error, ncclSystemError", "NCCL_DEBUG=INFO"),
        ("[nvjpeg_decoder] NVJPEG_STATUS_ALLOCATOR_FAILURE", "engine.input_threads"),
    ],
)
def test_a_failure_names_rank_part_and_remedy(words: str, remedy: str) -> None:
    rows = _rows()
    rows[3]["step"]["failure"] = {"part": "warm-up", "words": words}
    results = _check(rows)
    assert list(results) == ["step"]
    assert results["step"].level == "FAIL"
    assert results["step"].words.startswith(f"rank 3 on node1, warm-up: {words}")
    assert remedy in results["step"].remedy


def test_out_of_memory_is_told_with_what_the_plan_lacks() -> None:
    rows = _rows()
    rows[0]["step"] |= {"failure": {"part": "warm-up", "words": "out of memory"}, "memory_before_bytes": 10e9}
    assert _check(rows)["step"].words.endswith("out of memory; 1.0 GB too much by the plan")


def test_a_rank_that_hangs_is_named_with_its_part() -> None:
    rows = _rows()
    del rows[1]["step"]["memory_bytes"]
    rows[1]["step"]["part"] = "reduction of bucket 1"
    result = _check(rows)["step"]
    assert (result.level, result.words) == (
        "FAIL", "rank 1 on node0 (reduction of bucket 1) did not come to the end of its part"
    )  # fmt: skip
