"""The verdict on machines whose truth is known: what is slow or wrong is named, and nothing else is."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_recipe
from launch.accept.document import Check, Figures
from launch.accept.judgement import Evidence, judge, judge_learning, nodes_of
from launch.doctor.check_result import CheckResult, Expected
from launch.doctor.facts import AloneFacts, RankFacts, StepFacts
from logs.folder import Summary

RANKS, STEP_S = 64, 0.1
SECONDS = {"compute": STEP_S, "copy": 0.002, "input": 0.03, "link": 0.001}
NOISE = 0.01
"""Equal GPUs differ by half as much for good, and their samples by so much; one sample of 50 is ten times as late."""


def _ranks(
    seed: int, slow: Mapping[tuple[int, str], float] = {}, *, count: int = RANKS, noise: float = NOISE, **facts: Any
) -> list[RankFacts]:
    """Return the reports of ranks that are nodes of their own."""
    draw = np.random.default_rng(seed)
    samples = {}
    for part, seconds in SECONDS.items():
        shape = count, 12 if part == "link" else 24
        late = 10 * noise * (draw.random(shape) < 0.02)
        own = 1 + noise / 2 * draw.standard_normal((count, 1))
        all_alike = 1 + 0.2 * draw.random(shape[1])
        samples[part] = seconds * own * (1 + noise * draw.standard_normal(shape) + late) * all_alike
        for (rank, name), factor in slow.items():
            samples[part][rank] *= factor if name == part else 1
    return [
        RankFacts(
            rank, 0, count, f"node{rank}", (0,), model="A100", gpu=f"GPU-{rank}",
            step=StepFacts(
                images=64 * count, has_ended=True,
                buckets_s=(0.004, 0.002), buckets_bytes=(64_000_000, 32_000_000),
                links_s=samples["link"][rank].tolist(),
                samples={"step": [0.12]} | {part: samples[part][rank].tolist() for part in SECONDS if part != "link"},
            ),
            **facts,
        )
        for rank in range(count)
    ]  # fmt: skip


def _judged(ranks: Sequence[RankFacts], **evidence: Any) -> list[Check]:
    return judge(Evidence((), ranks, **evidence))[0]


def _bad(checks: Sequence[Check]) -> dict[tuple[str, str], str]:
    return {(check.host, check.topic): check.verdict for check in checks if check.verdict in ("slow", "failed")}


@pytest.mark.medium
def test_three_nodes_that_are_slow_in_three_ways_are_named_and_no_other_is() -> None:
    slow = {(9, "compute"): 1.05, (20, "copy"): 1.2, (41, "link"): 1.3}
    found = [_bad(_judged(_ranks(seed, slow))) for seed in range(100)]
    expected = {(f"node{rank}", part): "slow" for rank, part in slow}
    assert sum(each == expected for each in found) >= 95, "a node of which a percent was good luck is 4 % slow"
    assert all(each.keys() <= expected.keys() for each in found), "no other is named"


@pytest.mark.medium
@pytest.mark.parametrize("noise", [NOISE, 0.05])
def test_a_hundred_sound_machines_raise_no_alarm(noise: float) -> None:
    assert [_bad(_judged(_ranks(seed, noise=noise))) for seed in range(100)] == [{}] * 100


@pytest.mark.parametrize("noise", [NOISE, 0.05])
def test_a_verdict_says_which_difference_the_noise_would_have_hidden(noise: float) -> None:
    (told,) = (each for each in _judged(_ranks(1, noise=noise)) if (each.topic, each.host) == ("compute", ""))
    assert told.value is not None
    assert f"{100 * told.value:.3g} %" in told.words
    assert ("--minutes" in told.words) == (noise > NOISE)
    for share, found in ((0.4, {}), (1.6, {("node9", "compute"): "slow"})):
        ranks = _ranks(1, {(9, "compute"): 1 + share * told.value}, noise=noise)
        assert _bad(_judged(ranks)) == found


def test_a_disturbance_of_half_the_rounds_is_no_alarm() -> None:
    ranks = _ranks(1)
    step = ranks[17].step
    assert step is not None
    for half in (slice(0, 12), slice(0, 14), slice(10, 24)):
        series = np.array(step.samples["compute"])
        series[half] *= 1.5
        samples = {**step.samples, "compute": series.tolist()}
        disturbed = [*ranks[:17], replace(ranks[17], step=replace(step, samples=samples)), *ranks[18:]]
        assert _bad(_judged(disturbed)) == {}


def test_ranks_are_compared_with_those_of_their_own_model() -> None:
    mixed = [replace(rank, model="A100" if rank.rank < 32 else "H100") for rank in _ranks(2)]
    faster = {(rank, "compute"): 0.5 for rank in range(32, 64)}
    fast = [replace(rank, model=other.model) for rank, other in zip(_ranks(2, faster), mixed, strict=True)]
    assert _bad(_judged(fast)) == {}
    lame = _ranks(2, {**faster, (40, "compute"): 0.55})
    fast = [replace(rank, model=other.model) for rank, other in zip(lame, mixed, strict=True)]
    assert _bad(_judged(fast)) == {("node40", "compute"): "slow"}, "10 % slower than its like, and faster than half"


@pytest.mark.parametrize(("factor", "slow"), [(1.2, {}), (1.9, {("node1", "compute"): "slow"})])
def test_of_two_nodes_only_one_that_is_much_slower_is_named(factor: float, slow: Mapping[Any, str]) -> None:
    assert _bad(_judged(_ranks(3, {(1, "compute"): factor}, count=2))) == slow


def test_the_words_name_the_rank_and_its_gpu_for_whoever_is_called() -> None:
    checks = _judged(_ranks(4, {(9, "compute"): 1.1}))
    ranks = _ranks(4)
    (node,) = [each for each in nodes_of(checks, ranks) if each.verdict == "slow"]
    assert (node.host, node.ranks, node.gpus) == ("node9", [9], ["GPU-9"])
    assert all(word in node.words[0] for word in ("compute", "rank 9", "GPU-9", "throttled"))


def test_a_node_that_became_slower_than_its_baseline_is_named_although_all_are_alike() -> None:
    _, before = judge(Evidence((), _ranks(5)))
    after = _ranks(6, {(rank, "copy"): 1.3 for rank in range(RANKS)})
    assert _bad(_judged(after)) == {}
    found = _judged(after, baseline=before)
    assert _bad(found) == {(f"node{rank}", "copy"): "slow" for rank in range(RANKS)}
    told = [check.words for check in found if check.verdict == "slow"]
    assert all(re.search(r"\+[23]\d\.\d % from its baseline", words) for words in told), told
    assert _bad(_judged(_ranks(7), baseline=before)) == {}


def _drifting(seed: int, drift: float, memory: float, count: int, factor: float = 1.0) -> list[RankFacts]:
    """Return the reports of two ranks of a node, whose pace drifts, as on cores that other programs use, too.

    The logarithm of the pace has the deviation ``drift``, and from one round to the next the correlation ``memory``.
    """
    draw = np.random.default_rng(seed)
    rounds = [draw.standard_normal(3)]
    while len(rounds) < count:
        rounds.append(memory * rounds[-1] + (1 - memory**2) ** 0.5 * draw.standard_normal(3))
    first, second, step = STEP_S * factor * np.exp(drift * np.array(rounds).T)
    return [
        RankFacts(rank, rank, 2, "node0", (0,), step=StepFacts(
            images=64, has_ended=True, samples={"compute": samples.tolist(), "step": step.tolist()},
        ))
        for rank, samples in enumerate((first, second))
    ]  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize(
    ("drift", "memory", "rounds", "factor", "named"),
    [
        (0.25, 0.7, 6, 1.0, range(1)),
        (0.25, 0.9, 24, 1.0, range(1)),
        (0.01, 0.9, 24, 1.1, range(95, 101)),
        (0.25, 0.7, 6, 30.0, range(100, 101)),
    ],
)
def test_a_node_is_slow_beside_its_baseline_beyond_what_its_drift_explains(
    drift: float, memory: float, rounds: int, factor: float, named: range
) -> None:
    found = 0
    for seed in range(0, 200, 2):
        _, before = judge(Evidence((), _drifting(seed, drift, memory, rounds)))
        found += bool(_bad(_judged(_drifting(seed + 1, drift, memory, rounds, factor), baseline=before)))
    assert found in named


RATE = 64 * RANKS / 0.12


@pytest.mark.parametrize(
    ("forecast", "baseline", "verdict"),
    [
        ([Expected("the simulator", 0.99 * RATE, 2 * RATE)], None, "pass"),
        ([Expected("the simulator", 1.01 * RATE, 3 * RATE)], None, "slow"),
        ([Expected("the simulator", 1.01 * RATE, 3 * RATE, decides=False)], None, "pass"),
        ([Expected("the simulator", note="not known")], None, "pass"),
        ([Expected("the simulator", 0.9 * RATE, 2 * RATE), Expected("the data sheet", high=0.5 * RATE)], None, "pass"),
        ([], Figures(images_per_s=1.05 * RATE), "pass"),
        ([], Figures(images_per_s=1.3 * RATE), "slow"),
    ],
)
def test_the_rate_is_slow_below_an_interval_that_was_measured_and_below_the_baseline(
    forecast: Sequence[Expected], baseline: Figures | None, verdict: str
) -> None:
    (rate,) = [check for check in _judged(_ranks(8), forecast=forecast, baseline=baseline) if check.topic == "rate"]
    assert rate.verdict == verdict
    assert rate.value == pytest.approx(RATE)
    assert len(rate.expected) == len(forecast) + (baseline is not None)
    assert ("200 % of what the data sheet allows" in rate.words) == (len(forecast) > 1)


@pytest.mark.parametrize(("link", "verdict"), [(None, "pass"), (60e9, "pass"), (70e9, "slow")])
@pytest.mark.parametrize("predicted_s", [(), (0.001, 0.0005)])
def test_buckets_are_to_travel_at_half_the_rate_of_the_links_at_least(
    predicted_s: Sequence[float], link: float | None, verdict: str
) -> None:
    # 2 x 63 / 64 x 96 MB in 6 ms are 31.5 GB/s. The simulator's times stand beside those of the buckets.
    checks = _judged(_ranks(9), link_bytes_per_s=link, predicted_buckets_s=predicted_s)
    (found,) = [each for each in checks if each.topic == "allreduce of buckets"]
    assert found.verdict == verdict
    assert found.value == pytest.approx(31.5)
    notes = [each.note for each in found.expected if each.by == "the simulator"]
    assert [re.findall(r"[\d.]+", note) for note in notes] == [["64", "4", "1", "32", "2", "0.5"]] * bool(predicted_s)


def _alone(*checksums: Sequence[str], models: str = "", **facts: Any) -> list[RankFacts]:
    return [
        RankFacts(rank, 0, len(checksums), f"node{rank}", (0,), model=models[rank : rank + 1], gpu=f"GPU-{rank}",
                  alone=AloneFacts(each, **facts))
        for rank, each in enumerate(checksums)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "before", "named"),
    [
        (_alone("aa", "aa", "aa"), {}, []),
        (_alone("aa", "bb", "aa"), {}, ["node1"]),
        (_alone("aa", "ab"), {}, ["node1"]),
        (_alone("aa", "ba", "aa"), {}, ["node1"]),
        (_alone("aa", "bb"), {}, ["node0", "node1"]),
        (_alone("aa", "bb"), {"": "a"}, ["node1"]),
        (_alone("aa", "bb", "aa", "bb", models="xyxy"), {}, []),
        (_alone("aa", "bb", "aa", "bc", "bb", models="xyxyy"), {}, ["node3"]),
        (_alone("aa", "bb", models="xy"), {}, []),
        (_alone("aa", "aa", are_finite=False), {}, ["node0", "node1"]),
        ([*_alone("aa", "aa"), *_alone("aa", "aa", "")[2:]], {}, ["node2"]),
    ],
)
def test_a_rank_whose_bits_are_not_those_of_its_like_or_of_itself_is_named(
    ranks: Sequence[RankFacts], before: Mapping[str, str], named: Sequence[str]
) -> None:
    checks, figures = judge(Evidence((), (), alone=ranks, baseline=Figures(bits=before)))
    assert [check.host for check in checks if check.verdict == "failed"] == named
    for check in checks:
        assert check.verdict == "pass" or f"GPU-{check.host.removeprefix('node')}" in check.words
    assert figures.bits.get("", "a") == "a"


def test_a_failed_check_of_the_doctor_fails_its_nodes_and_a_warning_does_not() -> None:
    results = [
        CheckResult("OK", "ranks", "2 on 2 hosts"), CheckResult("WARN", "clocks", "apart"),
        CheckResult("FAIL", "versions", "torch 1, elsewhere 2", "start from one folder", ("b",)),
        CheckResult("WARN", "slow node", "5 % longer", "", ("a",)),
    ]  # fmt: skip
    checks, _ = judge(Evidence(results, ()))
    assert {(check.topic, check.host): check.verdict for check in checks} == {
        ("ranks", ""): "pass", ("clocks", ""): "pass", ("versions", "b"): "failed"
    }  # fmt: skip
    assert {node.host: node.verdict for node in nodes_of(checks, [RankFacts(0, 0, 1, "a", ())])} == {
        "a": "pass",
        "b": "failed",
    }


def test_of_steps_that_failed_on_a_rank_no_figure_is_judged() -> None:
    step = StepFacts("warm-up")
    ranks = [RankFacts(rank, rank, 2, "a", (0,), step=step, failure=each) for rank, each in enumerate(("OOM", None))]
    checks, figures = judge(Evidence([CheckResult("FAIL", "step", "rank 0: out of memory", "", ("a",))], ranks))
    assert [(check.topic, check.host, check.verdict) for check in checks] == [("step", "a", "failed")]
    assert figures == Figures()


@pytest.mark.parametrize(
    ("ended", "status", "verdict", "words"),
    [
        (Summary("a", "success", top1=0.98, epochs=2), 0, "pass", "after 2"),
        (Summary("a", "aborted", top1=0.4, epochs=5), 1, "failed", "0.4, expected top-1 0.97 within 30 epochs"),
        (Summary("a", "aborted", failure="rank 1 broke"), 1, "failed", "rank 1 broke"),
        (Summary("a", "success", top1=0.98, epochs=2), 9, "failed", "status 9"),
        (None, 1, "failed", "status 1, see a/run"),
    ],
)
def test_a_machine_that_does_not_learn_failed(ended: Summary | None, status: int, verdict: str, words: str) -> None:
    check = judge_learning(
        load_recipe("digits", ["run.epochs=30", "run.target_top1=0.97"]), status, ended, Path("a/run")
    )
    assert (check.topic, check.verdict) == ("learning", verdict)
    assert words in check.words
    assert judge(Evidence((), (), others=[check]))[0] == [check]
