"""The ledger counts each phase, and what ran side by side, once."""

from contextlib import ExitStack
from typing import Any

import pytest

from train.rank import startup
from train.rank.startup import WAITING, Ledger, gather_starts, process_age_s


class _Time:
    """A time that a test sets, in place of the module `time`; the process begins at 0."""

    def __init__(self, began: float) -> None:
        self.now, self._began = 0.0, began

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self._began


def _recorded(phases: list[tuple[str, float, float]], began: float = 0.0) -> Ledger:
    """Return a ledger of phases, each with its begin and its end, as threads would record them side by side."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(startup, "process_age_s", lambda: 0.0)
        time = _Time(began)
        patch.setattr(startup, "time", time)
        ledger, opened = Ledger(), dict[int, Any]()
        moments = [(end, 1, number) for number, (_, _, end) in enumerate(phases)]
        moments += [(begin, 0, number) for number, (_, begin, _) in enumerate(phases)]
        for time.now, is_end, number in sorted(moments):
            if is_end:
                opened[number].close()
            else:
                opened[number] = stack.enter_context(ExitStack())
                opened[number].enter_context(ledger.phase(phases[number][0]))
    return ledger


def test_a_phase_that_raises_is_still_entered() -> None:
    ledger = Ledger()
    with pytest.raises(KeyError), ledger.phase("doomed"):
        raise KeyError
    assert [row["phase"] for row in ledger.to_json()["phases"]] == ["interpreter", "doomed"]


def test_the_last_rank_is_named_with_the_phase_in_which_it_lost_most() -> None:
    def rank(began: float, data_s: float, imports_s: float, imports: str = "imports") -> Ledger:
        ready_s = imports_s + data_s
        return _recorded([(imports, 0, imports_s), ("data set", imports_s, ready_s), (WAITING, ready_s, 30)], began)

    rows: list[bytes] = []

    def gather(_: str, content: bytes) -> list[bytes]:
        rows.append(content)
        return rows

    for number, ledger in enumerate([rank(100, 2, 7), rank(101, 6, 8), rank(102, 2, 8)]):
        found = gather_starts(gather, f"host{number}", ledger)
    assert found["hosts"] == ["host0", "host1", "host2"]
    assert found["last"] == {
        "rank": 1, "host": "host1", "ready_s": 15.0, "median_s": 12.0,
        "phase": "data set", "phase_s": 6.0, "phase_median_s": 2.0,
    }  # fmt: skip  # its imports took longer, but they did so on all ranks
    rows.clear()
    odd = rank(103, 4, 7, "copy")  # which other ranks do not do
    for number, ledger in enumerate([rank(100, 2, 3), odd, rank(101, 2, 4)]):
        found = gather_starts(gather, f"host{number}", ledger)
    assert [found["last"][key] for key in ("phase", "phase_s", "phase_median_s")] == ["copy", 7.0, 0.0]


def test_the_first_phase_is_the_interpreters_from_the_start_of_the_process() -> None:
    before = process_age_s()
    (first,) = Ledger().to_json()["phases"]
    assert (first["phase"], first["thread"], first["begin_s"]) == ("interpreter", "MainThread", 0.0)
    assert before - 0.1 <= first["end_s"] <= process_age_s() + 0.1


def test_a_rank_that_waits_for_nobody_is_ready_at_the_end_of_its_last_phase() -> None:
    ledger = _recorded([("imports", 0.0, 4.0), ("data set", 1.0, 3.0)])
    last = gather_starts(lambda _, content: [content], "here", ledger)["last"]
    assert (last["ready_s"], last["median_s"]) == pytest.approx((4.0, 4.0))
