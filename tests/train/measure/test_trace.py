"""A traced run of two real ranks, read back as a viewer reads it."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logs.folder import RunFolder
from tests.runs import FinishedRun
from train.engine.protocol import Operator
from train.measure.trace import Tracer, chrome_trace
from train.plan.document import plan_document


def _bars(trace: Any, kind: str, rank: int) -> list[tuple[int, int]]:
    bars = [each for each in trace["traceEvents"] if each["ph"] == "X" and (each["cat"], each["pid"]) == (kind, rank)]
    return [(bar["ts"], bar["ts"] + bar["dur"]) for bar in bars]


@pytest.mark.ranks
def test_a_trace_shows_ranks_computing_while_they_communicate(short_run: FinishedRun, other_run: FinishedRun) -> None:
    run, buckets = other_run, plan_document(*RunFolder(other_run.folder).settings)["buckets"]
    assert [path.name for path in run.folder.glob("trace*")] == ["trace.json"], run.errors
    assert not list(short_run.folder.glob("trace*"))
    trace = json.loads((run.folder / "trace.json").read_text(encoding="utf-8"))
    names = {each["pid"]: each["args"]["name"] for each in trace["traceEvents"]
             if (each["name"], each["ph"]) == ("process_name", "M")}  # fmt: skip
    assert names == {0: "rank 0", 1: "rank 1"}
    for rank in names:
        compute, communication = (_bars(trace, kind, rank) for kind in ("compute", "communication"))
        assert any(begin < end_ and begin_ < end for begin, end in compute for begin_, end_ in communication)
        assert len(communication) == 3 * len(buckets), "three steps are traced"


def test_a_run_that_does_not_ask_and_the_17th_rank_are_not_traced(tmp_path: Path) -> None:
    without_verbs: Any = None
    for tracer in (Tracer(without_verbs, tmp_path, 0, 0, 100), Tracer(without_verbs, tmp_path, 16, 3, 100)):
        for _ in range(100):
            tracer.step_queued()
        tracer.close()
        tracer.merge()
    assert list(tmp_path.iterdir()) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20), st.booleans()), min_size=1))
def test_bars_of_one_lane_never_cross_and_none_is_lost(rows: list[tuple[int, int, bool]]) -> None:
    operators = sorted(
        (Operator("any", 1000 + begin, 1000 + begin + lasts, reduces)
         for begin, lasts, reduces in rows), key=lambda each: each.begin_us,
    )  # fmt: skip
    events = [event for event in chrome_trace({3: operators})["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(rows)
    assert min(event["ts"] for event in events) == 0
    for lane in {event["tid"] for event in events}:
        own = [event for event in events if event["tid"] == lane]
        assert len({event["cat"] for event in own}) == 1
        assert all(first["ts"] + first["dur"] <= second["ts"] for first, second in pairwise(own))


def test_the_rows_of_a_trace_are_named_and_times_start_at_the_first_of_all_ranks() -> None:
    compute = [Operator(name, begin, begin + 10, False) for name, begin in (("a", 100), ("b", 105), ("c", 110))]
    traced = {0: [*compute, Operator("sum", 120, 150, True)], 5: [Operator("d", 90, 91, False)]}
    trace = chrome_trace(traced)
    names = [
        (each["pid"], each["tid"], each["args"]["name"])
        for each in trace["traceEvents"]
        if each["name"] == "thread_name"
    ]
    assert names == [(0, 0, "compute"), (0, 1, "compute 2"), (0, 2, "communication"), (5, 0, "compute")]
    bars = [(each["name"], each["tid"], each["ts"], each["dur"]) for each in trace["traceEvents"] if each["ph"] == "X"]
    assert bars == [("a", 0, 10, 10), ("b", 1, 15, 10), ("c", 0, 20, 10), ("sum", 2, 30, 30), ("d", 0, 0, 1)]


@pytest.mark.parametrize(
    ("total", "queued", "traced", "recorded"),
    [
        # Settled steps, if the run has so many.
        (100, 100, 3, [5, 8]), (7, 7, 3, [4, 7]), (2, 2, 3, [0, 2]),
        # A run that ends early ends the recording, and one that goes on does not begin another.
        (4, 1, 2, []), (4, 3, 2, [2, 3]), (4, 9, 2, [2, 4]),
    ],
)  # fmt: skip
def test_a_rank_records_a_few_settled_steps_once(
    tmp_path: Path, total: int, queued: int, traced: int, recorded: list[int]
) -> None:
    ends: list[int] = []
    step = 0
    engine: Any = SimpleNamespace(begin_trace=lambda _: ends.append(step), end_trace=lambda: ends.append(step))
    tracer = Tracer(engine, tmp_path, 15, traced, total)
    while step < queued:
        step += 1
        tracer.step_queued()
    tracer.close()
    assert ends == recorded
