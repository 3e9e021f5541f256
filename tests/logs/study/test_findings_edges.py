"""Which rows a sentence counts: medians of repeats, and no row that lacks a number or is of another basis."""

from typing import Any

import pytest

from logs.study.findings import findings, is_disturbed, ratios, where
from tests.logs.study.rows import scaling_row


def _repeats(*rates: float, **values: Any) -> list[Any]:
    return [scaling_row(rate, repeat=number, **values) for number, rate in enumerate(rates)]


def test_predicted_rows_and_those_without_a_rate_are_in_no_sentence_on_what_was_measured() -> None:
    rows = [scaling_row(100.0), scaling_row(50.0, communication="slow", cpu_s=3.0, wall_s=2.0)]
    told = findings(rows)
    assert len(told) == 2
    numbers = {
        "efficiency": 0.5, "first_epoch_s": 9.0, "later_epoch_s": 1.0, "cpu_s": 9.0, "wall_s": 1.0, "top1": 0.5,
        "server_busy_cores": 1.0, "other_busy_cores": 1.0,
    }  # fmt: skip
    places: list[dict[str, Any]] = [{"communication": "third"}, {"data": "e"}, {"batch": 64}, {"ranks": 4}]
    for place in places:
        assert findings([*rows, scaling_row(70.0, basis="predicted", **place, **numbers)]) == told
        assert findings([*rows, scaling_row(None, status="failed", **place, **numbers)]) == told


def test_repeats_as_far_apart_as_the_values_and_networks_with_one_value_are_no_warning() -> None:
    slow = _repeats(40.0, 60.0, communication="slow")
    (sentence,) = findings([scaling_row(75.0), *slow])
    assert sentence.endswith("n runs at 67% of its images/s with fast.")
    (sentence,) = findings([scaling_row(74.0), *slow])
    assert sentence.endswith("n runs at 68% of its images/s with fast; runs of one cell differ up to 1.50 times.")
    (sentence,) = findings([scaling_row(150.0), *slow, scaling_row(9.0, network="alone")])
    assert "differ" not in sentence
    (sentence,) = findings([scaling_row(150.0), *slow, *_repeats(1.0, 9.0, communication="third", network="m")])[:1]
    assert "differ" not in sentence, "the third value is not compared here"


def test_batches_are_told_from_the_smallest_with_the_largest_gain_first_and_the_framework() -> None:
    rows = [
        scaling_row(rate, network=name, batch=batch, framework="MXNet")
        for name, rates in (("little", (11.0, 10.0)), ("much", (30.0, 10.0)))
        for batch, rate in zip((64, 8), rates, strict=True)
    ]
    assert findings(rows) == [
        "Batch 64 instead of 8 (MXNet, fast, d, 2 ranks): much 3.00 times, little 1.10 times its images/s at batch 8."
    ]
    assert findings([rows[0], rows[3]]) == [], "each network ran with one batch only"


def test_sentences_are_about_the_median_of_the_repeats() -> None:
    assert findings([*_repeats(10.0, 100.0, 110.0), *_repeats(1.0, 50.0, 51.0, communication="slow")])[0].startswith(
        "slow instead of fast (d, batch 8 a rank, 2 ranks): n runs at 50% of its images/s with fast"
    )
    shares = [
        scaling_row(1.0, ranks=4, repeat=number, efficiency=share) for number, share in enumerate((0.1, 0.5, 0.6))
    ]
    rows = [scaling_row(1.0, ranks=1, efficiency=1.0), *shares, scaling_row(1.0, ranks=4, batch=2)]
    assert findings(rows)[1:] == ["On 4 ranks (fast, d, batch 8 a rank): n 50% of the ideal images/s."]
    both = [*_repeats(10.0, 20.0, 90.0), *_repeats(1.0, 5.0, 6.0, basis="predicted")]
    words = "In cells with both, the predicted images/s are 0.25 (0.25 to 0.25) times the measured images/s."
    assert findings(both) == [words]
    assert findings(both[:3]) == findings(both[3:]) == []


@pytest.mark.parametrize("lacking", ["later_epoch_s", "top1"])
def test_an_accuracy_is_told_only_of_whole_runs_that_have_one(lacking: str) -> None:
    whole: dict[str, Any] = {"later_epoch_s": 1.0, "top1": 0.5}
    rows = [scaling_row(1.0, ranks=ranks, **whole) for ranks in (1, 2)]
    more = [scaling_row(1.0, ranks=2, repeat=1 + n, **whole | {"top1": value}) for n, value in enumerate((0.625, 0.75))]
    told = "top-1 of n by number of ranks (d, batch 8 a rank): 0.500 on 1 (fast), 0.625 on 2 (fast)."
    assert told in findings([*rows, *more])
    assert told in findings([*rows, *more, scaling_row(1.0, ranks=4, **whole | {lacking: None})])
    assert not any("by number" in each for each in findings([rows[0], scaling_row(1.0, **whole | {lacking: None})]))
    others = [rows[0], scaling_row(1.0, communication="slow", ranks=1, **whole)]
    assert not any("by number" in each for each in findings(others)), "one number of ranks only"


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [("first_epoch_s", "later_epoch_s", "The first epoch takes 2.00 (2.00 to 2.00) times"),
     ("cpu_s", "wall_s", "The CPU time of all ranks is 2.00 (2.00 to 2.00) times")],
)  # fmt: skip
def test_times_are_compared_in_rows_that_have_both(one: str, other: str, words: str) -> None:
    rows = [
        scaling_row(1.0, **{one: 4.0, other: 2.0}),
        scaling_row(1.0, **{one: 9.0}),
        scaling_row(1.0, **{other: 9.0}),
    ]
    assert [each[: len(words)] for each in findings(rows)] == [words]
    assert findings(rows[1:]) == []


def test_rows_that_do_not_say_what_else_ran_are_left_out() -> None:
    rows = [scaling_row(1.0, other_busy_cores=cores) for cores in (None, 0.5, None)]
    assert is_disturbed(rows)
    assert any(each.startswith("Other programs kept 0.50 (0.50 to 0.50) cores busy") for each in findings(rows))
    assert not is_disturbed([scaling_row(1.0)])


def test_strong_scaling_is_told_by_the_medians_of_the_ways_at_the_most_ranks() -> None:
    rows = [scaling_row(10.0, ranks=2, batch=12, framework="A"), scaling_row(12.0, ranks=3, batch=8, framework="A")]
    rows += _repeats(15.0, 30.0, 90.0, ranks=6, batch=4, framework="A")
    rows += _repeats(20.0, ranks=6, batch=4, framework="A", communication="slow")
    words = (
        "Strong scaling: batch 24 split over 6 ranks (A, n, d): 3.00 times (fast), 2.00 times (slow) the images/s on "
    )
    assert [each for each in findings(rows, [24, 7]) if "Strong" in each] == [f"{words}2 ranks; ideal is 3 times."]


def test_what_cells_share_is_told_in_the_order_of_the_axes() -> None:
    assert where("data", ("MXNet", "fast", 8, 1)) == "MXNet, fast, batch 8 a rank, 1 rank"
    assert where("framework", ("fast", "d", 8, 2)) == "fast, d, batch 8 a rank, 2 ranks"
    rows = [scaling_row(10.0), scaling_row(5.0, communication="slow")]
    assert ratios(rows, "communication", "fast", "slow") == [("n", 0.5)]
    assert ratios(rows, "communication", "slow", "fast") == [("n", 2.0)]
    assert ratios(rows, "communication", "fast", "fast") == []


def test_sentences_come_in_the_order_of_the_axes_and_then_from_speed_to_the_machine() -> None:
    rows = [
        scaling_row(rate, framework=framework, communication=way, data=data, batch=batch, ranks=ranks, efficiency=1.0,
                    first_epoch_s=1.0, later_epoch_s=1.0, top1=0.5, cpu_s=1.0, wall_s=1.0, server_busy_cores=1.0,
                    other_busy_cores=1.0)
        for rate, framework, way, data, batch, ranks in (
            (9.0, "A", "fast", "d", 8, 2), (8.0, "B", "fast", "d", 8, 2), (7.0, "A", "slow", "d", 8, 2),
            (6.0, "A", "fast", "e", 8, 2), (5.0, "A", "fast", "d", 4, 2), (4.0, "A", "fast", "d", 8, 1),
        )
    ]  # fmt: skip
    rows.append(scaling_row(9.0, framework="A", basis="predicted"))
    told = findings(rows, [8])
    begins = ["B instead", "slow instead", "e instead", "Batch 8", "On 2 ranks", "Strong scaling", "top-1 of n",
              "The first epoch", "The CPU time", "Parameter servers", "Other programs",
              "In cells with both"]  # fmt: skip
    places = [min(number for number, each in enumerate(told) if each.startswith(begin)) for begin in begins]
    assert places == sorted(places)
    assert told[-1].startswith("In cells with both")
