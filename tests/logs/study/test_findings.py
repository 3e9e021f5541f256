"""Sentences say what the rows say: the same text over other numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.study.cells import Row
from logs.study.findings import findings
from logs.study.scaling_table import with_efficiency


def _row(network: str, rate: float, **values: object) -> Row:
    row = {"communication": "fast", "data": "d", "batch": 8, "ranks": 2, "repeat": 0, "basis": "measured"} | values
    return Row(network=network, images_per_s=rate, **row)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 99), min_size=2, max_size=2, unique=True))
def test_the_network_that_loses_most_is_named_first(percent: list[int]) -> None:
    one, other = percent
    rows = [_row("a", 100), _row("b", 50), _row("a", one, communication="slow"),
            _row("b", other / 2, communication="slow")]  # fmt: skip
    (said,) = (each for each in findings(rows) if "in place of" in each)
    keeps = [f"a runs at {one}%", f"b runs at {other}%"]
    order = keeps if one < other else keeps[::-1]
    assert said == f"slow in place of fast (d, batch 8 a rank, 2 ranks): {', '.join(order)} of its images/s."


def test_batches_ranks_epochs_and_clocks_are_compared_where_there_are_two() -> None:
    rows = with_efficiency([
        _row("small", 100, ranks=1), _row("small", 300, ranks=1, batch=64), _row("large", 10, ranks=1),
        _row("large", 12, ranks=1, batch=64), _row("large", 18, cpu_s=30.0, wall_s=20.0),
        _row("small", 90, first_epoch_s=3.0, later_epoch_s=2.0), _row("small", 45, basis="predicted"),
    ])  # fmt: skip
    assert findings(rows) == [
        "Batch 64 in place of 8 (fast, d, 1 rank): small 3.00 times, large 1.20 times its images/s.",
        "On 2 ranks (fast, d, batch 8 a rank): small 45%, large 90% of the ideal speed.",
        "The first epoch takes 1.50 (1.50 to 1.50) times a later one.",
        "CPU seconds of all ranks are 1.50 (1.50 to 1.50) times the wall's; a rate by the one is none by the other.",
        "Where cells were measured, the simulator's images/s are 0.50 (0.50 to 0.50) times theirs.",
    ]


@pytest.mark.parametrize(("metric", "name"), [("top1", "top-1"), ("mean_auc", "mean ROC-AUC")])
def test_accuracy_is_told_by_ranks_where_there_was_more_than_one_epoch(metric: str, name: str) -> None:
    epochs = {"first_epoch_s": 1.0, "later_epoch_s": 1.0}
    rows = [_row("n", 1, ranks=ranks, **{metric: value}, **epochs) for ranks, value in ((1, 0.75), (2, 0.5))]
    assert f"{name} of n (d, batch 8 a rank), by ranks: 0.750 on 1 (fast), 0.500 on 2 (fast)." in findings(rows)


def test_a_machine_that_was_not_the_studys_alone_is_told() -> None:
    told = "Other programs kept 0.50 (0.10 to 1.25) cores busy meanwhile: run it again on an idle machine."
    assert told in findings([_row("n", 1, other_busy_cores=cores) for cores in (0.1, 0.5, 1.25)])
    assert not any("Other programs" in each for each in findings([_row("n", 1, other_busy_cores=0.02)]))


def test_nothing_measured_says_nothing() -> None:
    assert findings([_row("a", 100, basis="predicted"), _row("a", 10, basis="predicted", ranks=4)]) == []
