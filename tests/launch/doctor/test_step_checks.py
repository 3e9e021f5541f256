"""What the doctor says of a step: the slowest rank, what failed with its remedy, and memory beside the plan."""

import copy
from typing import Any

import pytest

from configs.load import load_cluster
from launch.doctor.check_result import CheckResult, ProbeReport
from launch.doctor.step_checks import check_step
from tests.launch.doctor.test_diagnosis import reports

CLUSTER = load_cluster("abci-v100", ["cluster.num_nodes=2", "cluster.ranks_per_node=2"])
PLAN = {"total_bytes": 7 * 10**9, "total_steps": 0}


def _rows() -> list[dict[str, Any]]:
    step = {
        "buckets_s": [0.001, 0.002], "images": 168, "part": "samples", "memory_bytes": 6.9e9, "has_ended": True,
        "samples": {"compute": [0.037], "allreduce": [0.002], "step": [0.05]},
    }  # fmt: skip
    own = {"local_rank": 0, "world_size": 4, "cores": []}
    return [{"rank": rank, "host": f"node{rank // 2}", "step": copy.deepcopy(step), **own} for rank in range(4)]


def _check(
    rows: list[dict[str, Any]], device: str = "gpu", plan: dict[str, Any] | None = PLAN
) -> dict[str, CheckResult]:
    cluster = CLUSTER.model_copy(update={"device": device})
    report = ProbeReport(cluster, reports(rows), plan)
    return {result.topic: result for result in check_step(report)}


def test_a_sound_step_is_told_by_its_parts() -> None:
    results = _check(_rows())
    assert {result.level for result in results.values()} == {"OK"}
    assert results["step"].words == (
        "50 ms, 3,360.0 images/s on 4 ranks; compute 37 ms; allreduce 2 ms; random images, as no data set is there"
    )
    assert results["step memory"].words == "6.90 GB in use by rank 0 on node0, planned 7.00 GB"


def _sampled(slow: float = 1.0, input_s: float = 0.01) -> list[dict[str, Any]]:
    """Return 16 ranks on eight nodes with samples; rank 5 computes by a factor slower."""
    rows = [{**copy.deepcopy(_rows()[0]), "rank": rank, "host": f"node{rank // 2}"} for rank in range(16)]
    for row in rows:
        own = 0.04 * (slow if row["rank"] == 5 else 1)
        row["step"]["samples"] = {
            "compute": [own] * 12, "copy": [0.001] * 12, "input": [input_s] * 12,
            "allreduce": [0.002 + 0.001 * row["rank"]] * 11 + [0.05], "step": [0.05] * 12,
        }  # fmt: skip
        row["world_size"] = 16
    return rows


SIXTEEN = load_cluster("abci-v100", ["cluster.num_nodes=8", "cluster.ranks_per_node=2"])


def _lines(rows: list[dict[str, Any]], *topics: str) -> list[str]:
    report = ProbeReport(SIXTEEN, reports(rows), PLAN | {"total_steps": 1340})
    return [str(result) for result in check_step(report) if result.topic in topics]


def test_a_slow_node_is_named_with_what_it_costs_the_run() -> None:
    assert _lines(_sampled(slow=1.1), "nodes", "slow node") == [
        "WARN  nodes: 1 of 8 are slow; without it a step takes 4 ms (8.0 %) less, and the planned 1,340 steps 5.4 s; "
        "--json has the scores of all, and their samples",
        "WARN  slow node (node2): 10.0 % longer than the median rank in compute (rank 5); look for other programs, a "
        "throttled GPU, wrong cores or a failing disk there, or leave the host out",
    ]
    (line,) = _lines(_sampled(slow=1.02), "nodes", "slow node")
    assert line == "OK    nodes: none of 8 is slow; the slowest is node2, 2.0 % longer than the median rank in compute"


def test_on_a_single_node_a_slow_rank_is_named() -> None:
    rows = [{**row, "host": "node1"} for row in _sampled(slow=1.1)]
    total, named = _lines(rows, "ranks", "slow rank")
    assert total.startswith("WARN  ranks: 1 of 16 are slow; without it a step takes 4 ms (8.0 %) less, and the planned")
    assert named.startswith("WARN  slow rank (rank 5): 10.0 % longer than the median rank in compute; look for other")
    assert _lines([{**row, "host": "node1"} for row in _sampled()], "ranks")[0].startswith("OK    ranks: none of 16 is")


def test_jitter_and_the_allreduce_are_told_apart_from_nodes() -> None:
    assert _lines(_sampled(), "jitter") == [
        "OK    jitter: the ranks wait 0 ms (0.0 %) of a step for whichever is late; all buckets alone 2 ms, from 2 ms "
        "to 50 ms, which tells nothing of single ranks"
    ]


@pytest.mark.parametrize(("factor", "level"), [(1.24, "OK"), (1.26, "WARN")])
def test_ranks_with_one_sample_are_compared_by_it(factor: float, level: str) -> None:
    rows = _rows()
    rows[3]["step"]["samples"]["compute"] = [factor * 0.037]
    assert _check(rows)["nodes"].level == level
    assert [each.hosts for each in _check(rows).values() if each.topic == "slow node"] == [("node1",)] * (
        level == "WARN"
    )


@pytest.mark.parametrize(("device", "used", "level"), [("gpu", 7.69e9, "OK"), ("gpu", 7.71e9, "WARN"),
                                                       ("cpu", 7.80e9, "OK"), ("cpu", 7.82e9, "WARN")])  # fmt: skip
def test_a_tenth_more_memory_than_planned_is_no_finding(device: str, used: float, level: str) -> None:
    rows = _rows()
    rows[1]["step"]["memory_bytes"] = used
    assert _check(rows, device)["step memory"].level == level


def test_what_cannot_be_compared_is_told() -> None:
    rows = _rows()
    for row in rows:
        row["step"]["memory_bytes"] = None
    assert str(_check(rows)["step memory"]).startswith("WARN  step memory: not measured")
    for row in rows:
        row["step"] = None
    assert _check(rows) == {}


def test_the_slowest_rank_sets_the_rate() -> None:
    rows = _rows()
    rows[3]["step"]["samples"] |= {"step": [0.01, 0.1, 0.2], "input": [1.5, 1.5, 1.5]}
    results = _check(rows)
    assert results["step"].words.startswith("100 ms, 1,680.0 images/s")
    assert results["step"].words.endswith("input 1.5 s")


def test_a_failure_names_rank_and_part() -> None:
    rows = _rows()
    rows[0] |= {"failure": "Connection reset by peer", "is_second_hand": True}
    rows[3]["failure"] = "cudaMalloc retry failed: out of memory"
    for rank, part in ((0, "reduction of bucket 1"), (3, "warm-up")):
        rows[rank]["step"] |= {"part": part, "has_ended": False}
    ((topic, result),) = _check(rows).items()
    assert (topic, result.level, result.hosts) == ("step", "FAIL", ("node1",))
    assert result.words == "rank 3 on node1, warm-up: cudaMalloc retry failed: out of memory"
    assert "batch.accumulation_steps" in result.remedy


def test_a_rank_that_hangs_or_did_not_report_has_no_end() -> None:
    result = _check(_rows()[:3])["step"]
    assert (result.level, result.words) == ("FAIL", "a rank did not finish its part")
    rows = _rows()
    rows[1]["step"] |= {"part": "reduction of bucket 1", "has_ended": False}
    expected = "rank 1 on node0 (reduction of bucket 1) did not finish its part"
    for waiting in ({}, {"failure": "no progress for 480 s", "is_second_hand": True}):
        rows[0] |= waiting
        result = _check(rows)["step"]
        assert (result.level, result.words) == ("FAIL", expected)


def test_memory_without_a_plan_is_not_compared() -> None:
    assert _check(_rows(), plan=None)["step memory"].level == "WARN"
