"""A few steps as a Chrome trace: what every rank computed and what it communicated, side by side in time.

MXNet's profiler sees both, since Horovod's reductions are operators of the same engine: one clock, one file a rank.
A reduction's bar lasts from the moment this rank was ready for it to its end, waiting for the others included.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from logs.disk import write_json

__all__ = [
    "TRACE_FILE",
    "EngineTracer",
    "NoTracer",
    "Operator",
    "Tracer",
    "chrome_trace",
    "read_operators",
    "tracer_of",
]

TRACE_FILE = "trace.json"

_SETTLED_STEPS = 5
"""Steps before the first that is traced, where a run has so many: caches are filled, ranks in step."""

_MOST_RANKS = 16
"""Ranks in a trace; a viewer shows no more."""

_COMMUNICATION = "horovod_"
_HOUSEKEEPING = ("DeleteVariable",)


class Tracer(Protocol):
    """What a run tells a tracer."""

    def step_queued(self) -> None:
        """Tell that another step is queued."""

    def close(self) -> None:
        """End what is being traced, if it is."""

    def merge(self) -> None:
        """Make one file of the ranks' own; one rank calls it, after every rank has closed."""


class NoTracer:
    """The null twin."""

    def step_queued(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def merge(self) -> None:
        """Do nothing."""


class EngineTracer:
    """Trace some steps of one rank with MXNet's profiler. It waits for the engine before the first and after the last.

    Args:
        folder: The run's.
        rank: Whose steps these are.
        steps: Which ones, counted from 0.
    """

    def __init__(self, folder: Path, rank: int, steps: range) -> None:
        self._folder, self._steps = folder, steps
        self._part = folder / f"trace_{rank}.json"
        self._queued, self._is_open = 0, False
        self._begin_or_end()

    def step_queued(self) -> None:
        """See `Tracer`."""
        self._queued += 1
        self._begin_or_end()

    def _begin_or_end(self) -> None:
        if self._queued == self._steps.start:
            import mxnet as mx  # noqa: PLC0415 (slow; few runs are traced)

            mx.nd.waitall()
            mx.profiler.set_config(profile_symbolic=True, profile_imperative=True, filename=str(self._part))
            mx.profiler.set_state("run")
            self._is_open = True
        elif self._queued == self._steps.stop:
            self.close()

    def close(self) -> None:
        """See `Tracer`."""
        if not self._is_open:
            return
        import mxnet as mx  # noqa: PLC0415

        mx.nd.waitall()
        mx.profiler.set_state("stop")
        mx.profiler.dump(finished=True)
        self._is_open = False

    def merge(self) -> None:
        """See `Tracer`."""
        parts = {int(path.stem.removeprefix("trace_")): path for path in self._folder.glob("trace_*.json")}
        traced = {rank: read_operators(json.loads(parts[rank].read_text(encoding="utf-8"))) for rank in sorted(parts)}
        write_json(self._folder / TRACE_FILE, chrome_trace(traced))
        for path in parts.values():
            path.unlink()


def tracer_of(folder: Path, rank: int, num_steps: int, total_steps: int) -> Tracer:
    """Choose the tracer of a rank that traces ``num_steps`` of its ``total_steps``."""
    if not num_steps or rank >= _MOST_RANKS:
        return NoTracer()
    first = max(0, min(_SETTLED_STEPS, total_steps - num_steps))
    return EngineTracer(folder, rank, range(first, first + num_steps))


class Operator(NamedTuple):
    """One operator of the engine; times in microseconds since 1970."""

    name: str
    begin_us: int
    end_us: int

    @property
    def kind(self) -> str:
        """Say what it spends: the processor's time or the network's."""
        return "communication" if self.name.startswith(_COMMUNICATION) else "compute"


def read_operators(profile: dict[str, Any]) -> list[Operator]:
    """Take the operators out of what MXNet's profiler wrote, by their beginnings."""
    # A begin is followed by its own end, whatever runs beside it; a second pair ("b", "e") repeats each.
    begins = [event for event in profile["traceEvents"] if event["ph"] == "B"]
    ends = [event for event in profile["traceEvents"] if event["ph"] == "E"]
    operators = [
        Operator(begin["name"], begin["ts"], end["ts"])
        for begin, end in zip(begins, ends, strict=True)
        if begin["name"] not in _HOUSEKEEPING
    ]
    return sorted(operators, key=lambda operator: operator.begin_us)


def chrome_trace(traced: Mapping[int, Sequence[Operator]]) -> dict[str, Any]:
    """Put ranks side by side: a process each, in it compute above communication.

    Args:
        traced: Operators of each rank.

    Returns:
        The trace in the JSON object format of Chrome's viewer and of ui.perfetto.dev; times start at 0.
    """
    start = min((operators[0].begin_us for operators in traced.values() if operators), default=0)
    events: list[dict[str, Any]] = []
    for rank, operators in traced.items():
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        lanes: dict[tuple[str, int], int] = {}
        for kind in ("compute", "communication"):
            for lane, operator in _lanes(each for each in operators if each.kind == kind):
                thread = lanes.setdefault((kind, lane), len(lanes))
                events.append({
                    "ph": "X", "name": operator.name, "cat": kind, "pid": rank, "tid": thread,
                    "ts": operator.begin_us - start, "dur": operator.end_us - operator.begin_us,
                })  # fmt: skip
        events += [
            {"ph": "M", "name": "thread_name", "pid": rank, "tid": thread,
             "args": {"name": kind if not lane else f"{kind} {lane + 1}"}}
            for (kind, lane), thread in lanes.items()
        ]  # fmt: skip
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _lanes(operators: Iterable[Operator]) -> Iterator[tuple[int, Operator]]:
    """Give each operator the first lane that is free, since bars of one lane must not cross."""
    free_from: list[int] = []
    for operator in operators:
        lane = next((lane for lane, time in enumerate(free_from) if time <= operator.begin_us), len(free_from))
        free_from[lane : lane + 1] = [operator.end_us]
        yield lane, operator
