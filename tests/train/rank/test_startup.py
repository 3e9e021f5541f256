"""The ledger counts each phase, and what ran side by side, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.rank.startup import Ledger, process_age_s


def _ledger(spans: list[tuple[float, float]]) -> dict[str, object]:
    ledger = Ledger()
    ledger._rows.clear()
    for number, (begin, end) in enumerate(spans):
        ledger._add(str(number), ledger._origin + begin, ledger._origin + end)
    return ledger.to_json()


def test_phases_one_after_another_save_nothing() -> None:
    assert _ledger([(0, 1), (1, 3), (5, 6)])["overlap_saved_s"] == pytest.approx(0)


def test_a_phase_inside_another_is_saved_whole() -> None:
    row = _ledger([(0, 10), (2, 5), (4, 6)])
    assert row["overlap_saved_s"] == pytest.approx(5)
    assert row["elapsed_s"] == pytest.approx(10)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), min_size=1, max_size=12))
def test_saved_time_equals_work_minus_the_union(pairs: list[tuple[int, int]]) -> None:
    spans = [(float(begin), float(begin + length)) for begin, length in pairs]
    union = sum(any(begin <= tick < end for begin, end in spans) for tick in range(80))
    row = _ledger(spans)
    assert row["overlap_saved_s"] == pytest.approx(sum(end - begin for begin, end in spans) - union, abs=1e-4)


def test_a_phase_that_raises_is_still_entered() -> None:
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.phase("doomed"):
        raise KeyError
    assert [row["phase"] for row in ledger.to_json()["phases"]] == ["interpreter", "doomed"]


def test_the_ledger_starts_when_the_kernel_started_the_process() -> None:
    assert 0 < process_age_s() < 3600
