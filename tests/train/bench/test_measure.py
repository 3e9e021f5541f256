"""Alternatives are measured in turn, rows have a spread, and ratios are computed round by round."""

import numpy as np
import pytest

from train.bench.measure import (
    CANNOT_TELL,
    CONFIDENCE,
    BenchRow,
    interleave,
    median_interval,
    ratio_rows,
)


def test_alternatives_take_turns_and_warm_up_rounds_do_not_count() -> None:
    order: list[str] = []

    def measure(name: str, values: list[float]) -> dict[str, float]:
        order.append(name)
        return {"step_ms": values[order.count(name) - 1]}

    rows = interleave(
        {"ours": lambda: measure("ours", [99, 1, 2, 9]), "theirs": lambda: measure("theirs", [99, 2, 8, 3])},
        n=3,
        warmup=1,
        reference="theirs",
    )
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    assert rows == [
        BenchRow("ours", "step_ms", 3, median=2, low=1, high=9),
        BenchRow("theirs", "step_ms", 3, median=3, low=2, high=8),
        # The ratios of the rounds are 1/2, 2/8 and 9/3; their median is not the ratio of the medians.
        BenchRow("ours", "step_ms / theirs", 3, median=0.5, low=0.25, high=3, verdict=CANNOT_TELL),
    ]


def test_the_interval_of_a_median_holds_it_in_nine_of_ten_cases_whatever_the_distribution() -> None:
    assert median_interval([3.0, 1, 4, 2]) is None, "the median lies outside the range in one of eight cases"
    assert median_interval([5.0, 1, 4, 2, 3]) == (1, 5)
    assert median_interval(range(1, 21)) == (6, 15), "as in tables of order statistics"
    values = np.random.default_rng(0).exponential(size=(2000, 11))
    intervals = [interval for interval in map(median_interval, values.tolist()) if interval]
    assert CONFIDENCE <= np.mean([low <= np.log(2) <= high for low, high in intervals]) < 0.96


@pytest.mark.parametrize(
    ("figure", "factors", "verdict"),
    [
        ("step_ms", [0.7, 0.8, 0.9, 0.8, 0.8], "faster"),
        ("start_s", [1.2, 1.1, 1.3, 1.1, 1.1], "slower"),
        ("images_per_s", [1.2, 1.1, 1.3, 1.1, 1.1], "faster"),
        ("wait_fraction", [0.9, 0.8, 0.9, 0.8, 0.9], "lower"),
        ("step_ms", [0.7, 0.8, 1.1, 0.8, 0.8], CANNOT_TELL),
        ("step_ms", [0.7, 0.7, 0.7, 0.7], CANNOT_TELL),
    ],
)
def test_a_ratio_whose_interval_holds_one_or_has_too_few_rounds_cannot_tell(
    figure: str, factors: list[float], verdict: str
) -> None:
    measured = {"ours": [{figure: 2 * factor} for factor in factors], "theirs": [{figure: 2.0}] * len(factors)}
    (row,) = ratio_rows(measured, "theirs")
    assert row.verdict == verdict


def test_figures_that_the_reference_lacks_or_has_as_zero_get_no_ratio() -> None:
    alternatives = {"ours": lambda: {"a_s": 1.0, "b_s": 2.0, "c_s": 3.0}, "theirs": lambda: {"a_s": 4.0, "b_s": 0.0}}
    rows = interleave(alternatives, n=2, reference="theirs")
    assert [row.figure for row in rows if "/" in row.figure] == ["a_s / theirs"]
