"""Sweeps and the search for the best run: what is read, what is tried, and what is allowed."""

from dataclasses import replace

import pytest

from configs.errors import ConfigError
from configs.load import load_cluster, load_recipe
from train.sim.constants import load_calibration
from train.sim.forecast import make_scenario
from train.sim.grid import Limits, optimize, parse_sweep, savings_by_cause, sweep

CALIBRATION = load_calibration()
SCENARIO = make_scenario(load_recipe("imagenet-b256"), load_cluster("dgx-a100"), CALIBRATION)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("ranks=1..1", "1"),
        ("ranks=3..23", "3 6 12"),
        ("ranks=3..24", "3 6 12 24"),
        ("batch=1..10/2", "1 10"),
        ("batch=1..10/4", "1 4 7 10"),
        ("nics=1..3/5", "1 2 3"),  # 1.5 and 2.5 are rounded to the even 2, which counts once
        ("bucket_bytes=64, 128", "64 128"),
        ("uplink_share=1,0.5", "1 0.5"),
        ("algorithm=ring,ps:2", "ring ps:2"),
        ("ranks=1048576", "1048576"),
        ("nics=64", "64"),
        ("bucket_bytes=4294967296,1.5e6", "4294967296 1.5e6"),
    ],
)
def test_a_sweep_is_read(text: str, values: str) -> None:
    assert parse_sweep(text) == (text.partition("=")[0], tuple(values.split()))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ranks", "KEY=VALUES with KEY of"),
        ("uplink_share=1..2", "uplink_share=VALUE,VALUE,...; only whole numbers have LOW..HIGH"),
        ("ranks=0..2", "LOW..HIGH with 1 <= LOW <= HIGH, and /COUNT of 2 or more"),
        ("ranks=1..9/1", "LOW..HIGH with 1 <= LOW <= HIGH, and /COUNT of 2 or more"),
        ("batch=1..16384/10001", "batch up to 16,384, and at most 10,000 values"),
        ("ranks=0", "ranks in whole numbers above 0, up to"),
        ("uplink_share=none", "uplink_share in numbers above 0, up to 1"),
        ("uplink_share=1.01", "uplink_share in numbers above 0, up to 1"),
        ("ranks=1048577", "ranks in whole numbers above 0, up to 1,048,576"),
        ("nics=65", "nics in whole numbers above 0, up to 64"),
        ("bucket_bytes=4294967297", "bucket_bytes in numbers above 0, up to 4,294,967,296"),
        ("algorithm=ps:0", "one of ring, "),
    ],
)
def test_a_sweep_that_cannot_be_read_is_refused(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_sweep(text)
    assert str(refused.value).startswith(f"--sweep: got {text!r}, allowed: {words}" if "ps:" not in text else "--sweep")
    assert f"allowed: {words}" in str(refused.value)


def test_what_is_tried_keeps_to_the_ranks_the_memory_and_the_batches() -> None:
    found = optimize(SCENARIO, CALIBRATION, Limits(max_ranks=20, max_global_batch=2000))
    assert {one.scenario.machine.ranks for one in found} == {8, 16}
    totals = [one.scenario.global_batch for one in found]
    assert 1000 < max(totals) <= 2000
    assert min(totals) == 256
    times = [one.run.total_s for one in found]
    assert times == sorted(times)
    middle = times[len(times) // 2]
    cheap = optimize(SCENARIO, CALIBRATION, Limits(max_ranks=20, max_global_batch=2000, deadline_s=middle))
    assert len(cheap) == len(times) // 2 + 1
    hours = [one.accelerator_hours for one in cheap]
    assert hours == sorted(hours)
    assert max(one.scenario.batch for one in optimize(SCENARIO, CALIBRATION, Limits(max_ranks=8))) == 512
    small = optimize(SCENARIO, CALIBRATION, Limits(max_ranks=20, memory_bytes=16e9))
    assert max(one.scenario.batch for one in small) == 192  # (16 - 1.5) GB hold 207 images of 70 MB


def test_a_cause_that_is_not_there_costs_nothing_and_the_causes_come_by_size() -> None:
    saved = savings_by_cause(SCENARIO, CALIBRATION)
    assert list(saved.values()) == sorted(saved.values(), reverse=True)
    assert saved["shared uplinks between racks"] == 0
    for cause in ("ranks that are slower than others", "negotiation between nodes"):
        assert saved[cause] > 0
    alone = replace(SCENARIO, machine=replace(SCENARIO.machine, ranks=1))
    assert all(abs(each) < 1e-9 for each in savings_by_cause(alone, CALIBRATION).values())


def test_more_cards_than_accelerators_are_no_cause_of_waiting() -> None:
    many = replace(SCENARIO, machine=replace(SCENARIO.machine, nics=12))
    assert savings_by_cause(many, CALIBRATION)["accelerators that share a network card"] == 0
    few = replace(SCENARIO, machine=replace(SCENARIO.machine, nics=1))
    assert savings_by_cause(few, CALIBRATION)["accelerators that share a network card"] > 0


@pytest.mark.parametrize(
    ("max_ranks", "tried"), [(4, {4}), (12, {8}), (16, {8, 16}), (104, {8, 16, 24, 32, 48, 64, 96, 104})]
)
def test_nodes_are_tried_by_powers_of_two_and_halves_between_and_all_of_them(max_ranks: int, tried: set[int]) -> None:
    found = optimize(SCENARIO, CALIBRATION, Limits(max_ranks, memory_bytes=6e9))
    assert {one.scenario.machine.ranks for one in found} == tried
    assert {one.scenario.accumulation for one in found} == {1}


def test_deadline_and_budget_are_met_to_the_second() -> None:
    every = optimize(SCENARIO, CALIBRATION, Limits(16, memory_bytes=6e9))
    for one in every:
        seconds, hours = one.run.total_s, one.accelerator_hours
        for limits, is_allowed in (
            (Limits(16, 6e9, deadline_s=seconds), True), (Limits(16, 6e9, deadline_s=seconds - 0.1), False),
            (Limits(16, 6e9, budget_hours=hours), True), (Limits(16, 6e9, budget_hours=hours - 0.01), False),
            (Limits(16, 6e9, seconds, hours - 0.01), False), (Limits(16, 6e9, seconds - 0.1, hours), False),
        ):  # fmt: skip
            assert (one in optimize(SCENARIO, CALIBRATION, limits)) is is_allowed, limits


def test_a_swept_value_takes_the_place_of_the_scenarios() -> None:
    recorded = replace(SCENARIO, software=replace(SCENARIO.software, boundaries=(3, 21, 57, 80)))
    software, machine = recorded.software, recorded.machine
    for key, value, changed in (
        ("ranks", "24", replace(recorded, machine=machine.with_ranks(24))),
        ("batch", "7", replace(recorded, batch=7.0)),
        ("bucket_bytes", "2e6", replace(recorded, software=replace(software, bucket_bytes=2_000_000, boundaries=()))),
        ("algorithm", "ring", replace(recorded, software=replace(software, algorithm="ring"))),
        ("nics", "3", replace(recorded, machine=replace(machine, nics=3))),
        ("uplink_share", "0.25", replace(recorded, machine=replace(machine, uplink_share=0.25))),
    ):
        ((values, found),) = sweep(recorded, CALIBRATION, [(key, (value,))])
        assert (values, found.scenario) == ({key: value}, changed)
