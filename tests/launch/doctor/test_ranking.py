"""The ranking of nodes, on samples whose truth is known."""

import numpy as np
import pytest

from launch.doctor.ranking import count_alarms, rank_nodes
from logs.nodes import NodeScore

RANKS, ROUNDS, STEP_S = 64, 12, 0.05
HOSTS = [f"node{rank // 4}" for rank in range(RANKS)]


@pytest.mark.medium
def test_checks_of_sound_nodes_raise_hardly_an_alarm() -> None:
    """Equal GPUs differ by 2 % for good, and their samples by 4 %; one sample of 50 is late by 10 %."""
    alarms = 0
    for seed in range(300):
        draw = np.random.default_rng(seed)
        noise = 1 + 0.04 * draw.standard_normal((RANKS, ROUNDS)) + 0.1 * (draw.random((RANKS, ROUNDS)) < 0.02)
        own, together = 1 + 0.02 * draw.standard_normal((RANKS, 1)), 1 + 0.2 * draw.random(ROUNDS)
        nodes = rank_nodes(HOSTS, {"compute": STEP_S * own * noise * together}).nodes
        alarms += any(node.is_slow for node in nodes)
    assert alarms <= 1


def test_the_cost_is_that_of_the_slowest_rank_beyond_the_slowest_sound_one() -> None:
    samples = np.full((RANKS, ROUNDS), 0.100)
    samples[40], samples[21], samples[22] = 0.110, 0.102, 0.106
    ranking = rank_nodes(HOSTS, {"compute": samples})
    assert [(node.host, node.is_slow) for node in ranking.nodes[:3]] == [
        ("node10", True), ("node5", True), (ranking.nodes[2].host, False)
    ]  # fmt: skip
    assert [node.excess for node in ranking.nodes[:3]] == pytest.approx([0.10, 0.06, 0.0])
    assert (ranking.slowest["node10"], ranking.slowest["node5"]) == (40, 22)
    assert (ranking.cost_s, ranking.jitter_s) == pytest.approx((0.010, 0.0))
    samples[22] = 0.1
    assert rank_nodes(HOSTS, {"compute": samples}).cost_s == pytest.approx(0.008), "node5 is sound"


def test_jitter_is_what_a_rank_that_is_late_once_costs_all() -> None:
    samples = np.full((RANKS, ROUNDS), 0.100)
    for number in range(ROUNDS):
        samples[5 * number, number] = 0.106
    ranking = rank_nodes(HOSTS, {"compute": samples})
    assert (ranking.cost_s, ranking.jitter_s) == pytest.approx((0.0, 0.006))
    assert not any(node.is_slow for node in ranking.nodes)


@pytest.mark.parametrize(("input_s", "is_slow"), [(0.099, False), (0.102, False), (0.108, True)])
def test_input_delays_a_step_only_beyond_its_compute(input_s: float, is_slow: bool) -> None:
    samples = {part: np.full((RANKS, ROUNDS), value) for part, value in (("compute", 0.1), ("input", 0.05))}
    samples["input"][9] = input_s
    ranking = rank_nodes(HOSTS, samples)
    assert [(node.host, node.part) for node in ranking.nodes if node.is_slow] == [("node2", "input")] * is_slow
    assert ranking.cost_s == pytest.approx(0.008 if is_slow else 0.0)


def test_a_slow_copy_is_judged_by_the_step_that_it_delays() -> None:
    samples = {part: np.full((RANKS, ROUNDS), value) for part, value in (("compute", 0.1), ("copy", 0.001))}
    samples["copy"][9] = 0.003
    assert not rank_nodes(HOSTS, samples).nodes[0].is_slow, "three times as long, and 2 % of a step"
    samples["copy"][9] = 0.006
    (first, *_) = rank_nodes(HOSTS, samples).nodes
    assert (first.host, first.part, first.is_slow) == ("node2", "copy", True)
    assert first.excess == pytest.approx(5.0)


def test_the_namings_of_repeated_checks_are_counted() -> None:
    checks = [
        [NodeScore(host, 0.1, "compute", is_slow=host in slow) for host in "abc"] for slow in ("", "a", "ab", "a")
    ]
    assert count_alarms(checks) == "a: named in 3 of 4 checks\nb: named in 1 of 4 checks\n"
    assert count_alarms(checks[:1]) == "no node was named in 1 checks\n"
