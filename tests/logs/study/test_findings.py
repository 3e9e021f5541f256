"""The sentences follow the rows: other numbers, other sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.study.findings import findings, is_disturbed
from logs.study.scaling_figures import cell_figures, strong_speed_ups
from logs.study.scaling_table import with_efficiency
from tests.logs.study.rows import scaling_row


@given(st.lists(st.integers(1, 99), min_size=2, max_size=2, unique=True))
def test_the_network_that_loses_most_is_named_first(percent: list[int]) -> None:
    one, other = percent
    slow = [
        scaling_row(one, network="a", communication="slow"),
        scaling_row(other / 2, network="b", communication="slow"),
    ]
    rows = [scaling_row(100, network="a"), scaling_row(50, network="b"), *slow]
    (sentence,) = (each for each in findings(rows) if "instead of" in each)
    speeds = [f"a runs at {one}%", f"b runs at {other}%"]
    order = ", ".join(speeds if one < other else speeds[::-1])
    assert sentence == f"slow instead of fast (d, batch 8 a rank, 2 ranks): {order} of its images/s with fast."


def test_batches_ranks_epochs_and_cpu_times_are_compared_where_there_are_two() -> None:
    rows = with_efficiency(
        [
            scaling_row(100, network="small", ranks=1),
            scaling_row(300, network="small", ranks=1, batch=64),
            scaling_row(10, network="large", ranks=1),
            scaling_row(12, network="large", ranks=1, batch=64),
            scaling_row(18, network="large", cpu_s=30.0, wall_s=20.0),
            scaling_row(90, network="small", first_epoch_s=3.0, later_epoch_s=2.0),
            scaling_row(45, network="small", basis="predicted"),
        ]
    )
    assert findings(rows) == [
        "Batch 64 instead of 8 (fast, d, 1 rank): small 3.00 times, large 1.20 times its images/s at batch 8.",
        "On 2 ranks (fast, d, batch 8 a rank): small 45%, large 90% of the ideal images/s.",
        "The first epoch takes 1.50 (1.50 to 1.50) times as long as a later epoch.",
        "The CPU time of all ranks is 1.50 (1.50 to 1.50) times the wall time: a rate per CPU second is not a rate per "
        "second.",
        "In cells with both, the predicted images/s are 0.50 (0.50 to 0.50) times the measured images/s.",
    ]


def test_frameworks_are_compared_with_each_other_and_everything_else_within_each() -> None:
    rates = {("MXNet", 1): 100, ("MXNet", 2): 150, ("PyTorch", 1): 50, ("PyTorch", 2): 100}
    rows = with_efficiency([scaling_row(rate, framework=name, ranks=ranks) for (name, ranks), rate in rates.items()])
    assert [row.efficiency for row in rows] == [1, 0.75, 1, 1]
    assert findings(rows) == [
        "PyTorch instead of MXNet (fast, d, batch 8 a rank, 1 rank): n runs at 50% of its images/s with MXNet.",
        "PyTorch instead of MXNet (fast, d, batch 8 a rank, 2 ranks): n runs at 67% of its images/s with MXNet.",
        "On 2 ranks (MXNet, fast, d, batch 8 a rank): n 75% of the ideal images/s.",
        "On 2 ranks (PyTorch, fast, d, batch 8 a rank): n 100% of the ideal images/s.",
    ]
    told = dict(cell_figures(rows))
    assert [figure.caption for figure in told["Frameworks"]] == ["Images/s by framework: n, fast, d"]
    assert [figure.caption for figure in told["Throughput"]] == [
        f"Images/s: {name}, n, d, batch 8 a rank" for name in ("MXNet", "PyTorch")
    ]
    assert dict(cell_figures(rows[:2]))["Frameworks"] == []


@pytest.mark.parametrize(("metric", "name"), [("top1", "top-1"), ("mean_auc", "mean ROC-AUC")])
def test_accuracy_is_compared_by_ranks_in_runs_of_more_than_one_epoch(metric: str, name: str) -> None:
    epochs = {"first_epoch_s": 1.0, "later_epoch_s": 1.0}
    rows = [scaling_row(1, ranks=ranks, **{metric: value}, **epochs) for ranks, value in ((1, 0.75), (2, 0.5))]
    assert not any("by number of ranks" in each for each in findings(rows[:1]))
    assert f"{name} of n by number of ranks (d, batch 8 a rank): 0.750 on 1 (fast), 0.500 on 2 (fast)." in findings(
        rows
    )


def test_other_programs_on_the_machine_are_reported() -> None:
    sentence = (
        "Other programs kept 0.50 (0.10 to 1.25) cores busy during the runs: repeat the study on an idle machine."
    )
    assert sentence in findings([scaling_row(1, other_busy_cores=cores) for cores in (0.1, 0.5, 1.25)])
    assert not any("Other programs" in each for each in findings([scaling_row(1, other_busy_cores=0.02)]))


def test_a_network_that_ran_with_one_value_only_is_in_no_sentence_about_both() -> None:
    rows = [scaling_row(8), scaling_row(4, communication="slow")]
    for value in ("fast", "slow"):
        assert findings([*rows, scaling_row(1, network="other", communication=value)]) == findings(rows)


def test_predictions_alone_have_no_findings() -> None:
    assert (
        findings(
            [scaling_row(100, network="a", basis="predicted"), scaling_row(10, network="a", basis="predicted", ranks=4)]
        )
        == []
    )


def test_batches_are_compared_at_the_fewest_and_the_most_ranks_of_the_whole_study_only() -> None:
    rows = [scaling_row(rate, batch=batch, ranks=ranks) for ranks in (1, 2, 4) for batch, rate in ((8, 10), (64, 20))]
    rows += [scaling_row(rate, batch=batch, ranks=2, communication="slow") for batch, rate in ((8, 10), (64, 5))]
    rows += [scaling_row(15, batch=16, ranks=1)]
    told = [each for each in findings(rows) if each.startswith("Batch")]
    assert told == [
        f"Batch 64 instead of 8 (fast, d, {words}): n 2.00 times its images/s at batch 8."
        for words in ("1 rank", "4 ranks")
    ]


def test_repeats_that_lie_further_apart_than_the_values_are_told() -> None:
    fast = [scaling_row(rate, repeat=number) for number, rate in enumerate((90, 100, 135))]
    for slow, words in ((80, "; runs of one cell differ up to 1.50 times"), (50, "")):
        rows = [*fast, scaling_row(slow, communication="slow")]
        (sentence,) = (each for each in findings(rows) if each.startswith("slow"))
        assert sentence.endswith(f"n runs at {slow}% of its images/s with fast{words}.")


def test_a_run_without_a_rate_makes_no_cell_infinitely_uneven() -> None:
    rows = [*[scaling_row(rate, repeat=number) for number, rate in enumerate((0, 100, 110))],
            scaling_row(50, communication="slow")]  # fmt: skip
    assert any(each.startswith("slow") for each in findings(rows))


def test_a_cell_that_got_nowhere_is_no_base_of_a_share() -> None:
    assert findings([scaling_row(0.0, communication="fast"), scaling_row(50, communication="slow")]) == []


def test_strong_scaling_compares_with_the_fewest_ranks_of_the_same_basis_only() -> None:
    rows = [scaling_row(10 * ranks, batch=8 // ranks, ranks=ranks) for ranks in (1, 2)]
    rows += [scaling_row(99, batch=2, ranks=4, basis="predicted")]
    (pairs,) = strong_speed_ups(rows, 8).values()
    assert [(row.ranks, speed_up) for row, speed_up in pairs] == [(1, 1.0), (2, 2.0)]
    assert strong_speed_ups([rows[0], rows[2]], 8) == {}


def test_servers_and_the_noise_of_an_idle_machine() -> None:
    rows = [scaling_row(1, server_busy_cores=cores, other_busy_cores=0.1) for cores in (0.5, None, 0.0, 1.5)]
    told = findings(rows)
    assert "Parameter servers kept 1.00 (0.50 to 1.50) of the cores busy that they share with the ranks." in told
    assert not any("Other programs" in each for each in told)
    assert is_disturbed([scaling_row(1, other_busy_cores=0.11)])
    assert not is_disturbed([scaling_row(1, other_busy_cores=cores) for cores in (0.0, 0.05, 5.0)])
