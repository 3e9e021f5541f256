"""The time of a part of a step."""

from __future__ import annotations

import pytest

from train.comm.communicator import SingleProcess
from train.doctor import step_probe


def test_a_part_takes_the_median_of_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 0.9, 1.0, 1.1, 2.0, 2.3])  # rounds of 0.9, 0.1 and 0.3 s
    monkeypatch.setattr("time.perf_counter", lambda: next(moments))
    told: list[str] = []
    results = iter("abc")
    parts = step_probe._Parts(SingleProcess(), lambda facts: told.append(facts["part"]))
    monkeypatch.setattr(step_probe, "_ENOUGH_S", 99.0)
    assert parts.run("forward", lambda: next(results), rounds=3) == "c"
    assert parts.facts["seconds"] == {"forward": pytest.approx(0.3)}
    assert told == ["forward"]
