"""Expectations are judged by the numbers of a study, and do not hold when the numbers contradict them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.scaling_study import Expectation
from logs.study.cells import ScalingRow
from logs.study.expectations import compare, verdict

SLOW = Expectation(
    axis="communication", base="fast", other="slow", effect="loses", network="wide", than=("deep", "thin")
)


def _row(network: str, rate: float, **values: object) -> ScalingRow:
    row = {"communication": "fast", "data": "d", "batch": 8, "ranks": 2, "repeat": 0, "basis": "measured"} | values
    return ScalingRow(network=network, images_per_s=rate, **row)  # type: ignore[arg-type]


def _pair(network: str, base: float, other: float, **values: object) -> list[ScalingRow]:
    return [_row(network, base, **values), _row(network, other, communication="slow", **values)]


@given(st.lists(st.integers(1, 200), min_size=3, max_size=3, unique=True), st.integers(1, 9))
def test_the_network_named_must_lose_most_and_lose_at_all(percent: list[int], scale: int) -> None:
    wide, deep, thin = percent
    rows = [*_pair("wide", 100, wide), *_pair("deep", 100 * scale, deep * scale), *_pair("thin", 100, thin)]
    (found,) = compare(SLOW, rows)
    assert found.holds == (wide < 0.97 * min(100, deep, thin))
    assert list(found.speeds.values()) == pytest.approx(sorted(each / 100 for each in percent))
    assert found.where == "d, batch 8 a rank, 2 ranks"
    assert verdict([found]) == ("holds" if found.holds else "does not hold")


def test_a_gain_is_judged_the_other_way_round_and_alone_against_no_gain() -> None:
    gain = Expectation(axis="batch", base=8, other=64, effect="gains", network="small", than=("large",))
    rows = [_row("small", 10), _row("small", 30, batch=64), _row("large", 10), _row("large", 12, batch=64)]
    assert [each.holds for each in compare(gain, rows)] == [True]
    swapped = gain.model_copy(update={"network": "large", "than": ("small",)})
    assert [each.holds for each in compare(swapped, rows)] == [False]
    assert [each.holds for each in compare(swapped.model_copy(update={"than": ()}), rows)] == [True]
    assert gain.sentence == "small gains more than large with batch 64 in place of batch 8"


def test_predictions_are_judged_apart_at_the_most_ranks_and_do_not_count() -> None:
    predicted = [
        row
        for ranks in (4, 8)
        for name, rate in (("wide", 10), ("deep", 90), ("thin", 95))
        for row in _pair(name, 100, rate, basis="predicted", ranks=ranks)
    ]
    (found,) = compare(SLOW, predicted)
    assert (found.basis, found.where, found.holds) == ("predicted", "d, batch 8 a rank, 8 ranks", True)
    assert verdict([found]) == "not measured"
    against = [*_pair("wide", 100, 99), *_pair("deep", 100, 50), *_pair("thin", 100, 50)]
    assert verdict(compare(SLOW, [*predicted, *against])) == "does not hold"
    rates = (("wide", 10), ("deep", 90), ("thin", 90))
    at_batch_64 = [row for name, rate in rates for row in _pair(name, 100, rate, batch=64)]
    assert verdict(compare(SLOW, [*against, *at_batch_64])) == "holds in part"


def test_an_expectation_with_a_network_that_was_not_measured_is_not_judged() -> None:
    rows = [*_pair("wide", 100, 10), *_pair("deep", 100, 90), _row("thin", 100)]
    assert verdict(compare(SLOW, rows)) == "not measured"
