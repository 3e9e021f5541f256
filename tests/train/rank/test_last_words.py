"""How long a rank that ends waits for the reports of others: the times of the watchdog, with a clock that jumps."""

import faulthandler
import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from configs.load import ROOT
from train.rank import watchdog
from train.rank.watchdog import StoodStill, Watchdog


class _Clock:
    """A clock that goes on by a second each time that somebody looks, and remembers for how long they slept."""

    def __init__(self) -> None:
        self.now, self.slept = 1000.0, list[float]()

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Give the watchdog this clock, and end no process."""
    made = _Clock()

    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(watchdog, "time", made)
    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(faulthandler, "dump_traceback", lambda **_: None)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda *_, **__: None)
    return made


@pytest.mark.parametrize(
    ("file", "slept"), [("train/comm/kvstore.py", 2.0), ("train/loop.py", 0)], ids=["waits", "keeps others waiting"]
)
def test_only_a_rank_that_waits_for_others_gives_them_time_to_report_too(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch, file: str, slept: float
) -> None:
    reports: list[StoodStill] = []
    watch = Watchdog._watch
    monkeypatch.setattr(Watchdog, "_watch", lambda _: None)
    dog = Watchdog(10.0, reports.append)
    dog(41)
    code = SimpleNamespace(co_filename=f"{ROOT}/{file}", co_name="stand")
    frame: Any = SimpleNamespace(f_code=code, f_lineno=7, f_back=None)
    monkeypatch.setattr(sys, "_current_frames", lambda: {dog._watched: frame})
    dog._rested = SimpleNamespace(wait=lambda _: False)  # type: ignore[assignment]
    with pytest.raises(SystemExit) as left:
        watch(dog)
    assert left.value.code == 1
    assert clock.slept == [slept]
    (report,) = reports
    assert str(report) == f"no progress for 10 s, standing in {file}:7 (stand)"
    assert (report.step, report.waits) == (41, slept > 0)


def test_an_orphan_has_as_long_as_its_supervisor_gives_it(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([17, 17, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(SystemExit) as left:
        watchdog._end_after(17)
    assert (left.value.code, clock.slept) == (1, [1, 1, 6.0])


def _watched(seconds: list[float], clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> list[StoodStill]:
    """Return the reports of a watchdog of 10 s whose rank makes progress every second, but not while time jumps.

    Args:
        seconds: How long each of the watchdog's naps lasts.
        clock: The time.
        monkeypatch: Replaces the thread.
    """
    reports: list[StoodStill] = []
    watch = Watchdog._watch
    monkeypatch.setattr(Watchdog, "_watch", lambda _: None)
    dog = Watchdog(10.0, reports.append)
    naps = iter(seconds)

    def wait(_: float) -> bool:
        nap = next(naps, None)
        if nap is not None:
            dog()
            clock.now += nap
        return nap is None

    dog._rested = SimpleNamespace(wait=wait)  # type: ignore[assignment]
    try:
        watch(dog)
    except SystemExit:
        clock.slept.append(-1.0)
    return reports


def test_a_rank_that_makes_progress_is_left_alone(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _watched([8.0] * 20, clock, monkeypatch) == []
    assert clock.slept == []


def test_a_rank_that_was_frozen_says_for_how_long_and_ends_at_once(
    clock: _Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    (report,) = _watched([1.0, 500.0], clock, monkeypatch)
    # The clock goes on by a second at each of two looks.
    assert str(report).startswith("stood still itself for 502 s, in ")
    assert not report.waits, "the others have given up waiting for it"
    assert clock.slept == [0, -1.0]
