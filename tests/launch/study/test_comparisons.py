"""Expectations are judged by the numbers of a study, and do not hold when the numbers contradict them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.study import Expectation
from launch.study.comparisons import compare, disturbing_cores, simulator_errors, verdict
from launch.study.rows import ScalingRow
from tests.launch.study.rows import scaling_row

SLOW = Expectation(
    axis="communication", base="fast", other="slow", effect="loses", network="wide", than=("deep", "thin")
)


def _pair(network: str, base: float | None, other: float | None, **values: object) -> list[ScalingRow]:
    return [
        scaling_row(base, network=network, **values),
        scaling_row(other, network=network, communication="slow", **values),
    ]


def _twice(*rows: ScalingRow) -> list[ScalingRow]:
    """Return each row and a repeat with the same rate: a study without spread."""
    return [*rows, *(replace(row, repeat=1) for row in rows)]


@given(st.lists(st.integers(1, 200), min_size=3, max_size=3, unique=True), st.integers(1, 9))
def test_without_spread_the_network_named_must_lose_most_and_lose_at_all(percent: list[int], scale: int) -> None:
    wide, deep, thin = percent
    rows = [*_pair("wide", 100, wide), *_pair("deep", 100 * scale, deep * scale), *_pair("thin", 100, thin)]
    (found,) = compare(SLOW, _twice(*rows))
    (once,) = compare(SLOW, [*_twice(*rows)[1:]])
    assert once.outcome == "within the noise", "a cell that ran once settles nothing"
    assert found.outcome == ("holds" if wide < 0.97 * min(100, deep, thin) else "does not hold")
    assert [each.median for each in found.speeds.values()] == pytest.approx(sorted(each / 100 for each in percent))
    assert found.where == "d, batch 8 a rank, 2 ranks"
    assert verdict([found]) == found.outcome


def test_a_gain_is_judged_the_other_way_round_and_alone_against_no_gain() -> None:
    gain = Expectation(axis="batch", base=8, other=64, effect="gains", network="small", than=("large",))
    rows = _twice(
        scaling_row(10, network="small"),
        scaling_row(30, network="small", batch=64),
        scaling_row(10, network="large"),
        scaling_row(12, network="large", batch=64),
    )
    assert [each.outcome for each in compare(gain, rows)] == ["holds"]
    swapped = gain.model_copy(update={"network": "large", "than": ("small",)})
    assert [each.outcome for each in compare(swapped, rows)] == ["does not hold"]
    assert [each.outcome for each in compare(swapped.model_copy(update={"than": ()}), rows)] == ["holds"]


@pytest.mark.parametrize(("effect", "rate", "outcome"), [
    ("gains", 102, "does not hold"), ("gains", 104, "holds"), ("loses", 98, "does not hold"), ("loses", 96, "holds"),
])  # fmt: skip
def test_a_change_within_three_per_cent_is_neither_a_gain_nor_a_loss(effect: str, rate: int, outcome: str) -> None:
    alone = SLOW.model_copy(update={"effect": effect, "than": ()})
    assert [each.outcome for each in compare(alone, _twice(*_pair("wide", 100, rate)))] == [outcome]


def test_predictions_do_not_count_and_all_places_do() -> None:
    rates = (("wide", 10), ("deep", 90), ("thin", 95))
    predicted = _twice(*(row for name, rate in rates for row in _pair(name, 100, rate, basis="predicted")))
    assert verdict([*compare(SLOW, predicted)]) == "not measured"
    against = _twice(*_pair("wide", 100, 99), *_pair("deep", 100, 50), *_pair("thin", 100, 50))
    assert verdict([*compare(SLOW, [*predicted, *against])]) == "does not hold"
    at_batch_64 = _twice(*(row for name, rate in rates for row in _pair(name, 100, rate, batch=64)))
    assert verdict([*compare(SLOW, [*against, *at_batch_64])]) == "holds in part"


def test_an_expectation_with_a_network_that_was_not_measured_is_not_judged() -> None:
    rates: tuple[tuple[float | None, float | None], ...] = ((100, None), (None, 100))
    for base, other in rates:
        rows = [*_pair("wide", 100, 10), *_pair("deep", 100, 90), *_pair("thin", base, other)]
        assert verdict([*compare(SLOW, rows)]) == "not measured"
        assert verdict([*compare(SLOW, [row for row in rows if row.images_per_s])]) == "not measured"


@pytest.mark.parametrize(
    ("slow", "others", "outcome"),
    [
        ((40.0, 60.0), (80.0, 90.0), "holds"),
        ((95.0, 99.0), (80.0, 90.0), "does not hold"),
        ((60.0, 90.0), (90.0, 90.0), "within the noise"),
        ((60.0, 90.0), (60.0, 120.0), "within the noise"),
        # 0.97 x 0.9 = 0.873 is the limit
        ((84.6, 87.2), (90.0, 90.0), "holds"),
        ((84.6, 87.4), (90.0, 90.0), "within the noise"),
    ],
)
def test_the_spread_of_repeats_decides(slow: tuple[float, ...], others: tuple[float, ...], outcome: str) -> None:
    rows = [
        scaling_row(rate, network=network, repeat=number, communication=link)
        for network, own in (("wide", slow), ("deep", others), ("thin", others))
        for link, rates in (("fast", (100.0, 100.0)), ("slow", own))
        for number, rate in enumerate(rates)
    ]
    (found,) = compare(SLOW, rows)
    assert found.outcome == outcome
    assert verdict([found]) == outcome + (" of this machine" if outcome == "within the noise" else "")


@pytest.mark.parametrize(
    ("cores", "found"),
    [([0.1, 0.5, 1.25], [0.1, 0.5, 1.25]), ([None, 0.11], [0.11]), ([0.1], []), ([0.0, 0.05, 5.0], []), ([None], [])],
)
def test_other_programs_count_from_a_tenth_of_a_core_on_in_the_median_run(
    cores: list[float | None], found: list[float]
) -> None:
    assert disturbing_cores([scaling_row(1.0, other_busy_cores=each) for each in cores]) == found


def test_the_error_of_the_simulator_is_that_of_the_medians_in_cells_that_have_both() -> None:
    both = [
        *(scaling_row(rate) for rate in (10.0, 20.0, 90.0)),
        *(scaling_row(rate, basis="predicted") for rate in (1, 5, 6)),
    ]
    assert simulator_errors([*both, scaling_row(9.0, ranks=4), scaling_row(9.0, batch=4, basis="predicted")]) == [0.25]
    assert simulator_errors([scaling_row(None), *both[3:]]) == []
