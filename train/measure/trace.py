"""A few steps of a run as a Chrome trace: compute and communication of every rank, side by side in time.

The engine of each rank records its operators, among them the reductions, by one clock into one file. The bar of a
reduction lasts from the moment at which this rank was ready for it to its end, and includes waiting for other ranks.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from logs.disk import write_json
from train.engine.protocol import Engine, Operator

TRACE_FILE = "trace.json"

_SETTLED_STEPS = 5
"""Steps before the first traced one, if the run has so many: caches are then filled and ranks are in step."""

_MOST_RANKS = 16
"""Ranks in a trace; a viewer shows no more."""


class Tracer:
    """Record some steps of one rank. Waits for the engine before the first traced step and after the last.

    Args:
        engine: Records the operators.
        folder: The run folder.
        rank: The rank whose steps are recorded.
        num_steps: Number of steps to record; may be 0.
        total_steps: Steps of the run.
    """

    def __init__(self, engine: Engine, folder: Path, rank: int, num_steps: int, total_steps: int) -> None:
        self._engine, self._folder = engine, folder
        first = max(0, min(_SETTLED_STEPS, total_steps - num_steps))
        self._steps = range(first, first + num_steps if rank < _MOST_RANKS else first)
        self._part = folder / f"trace_{rank}.json"
        self._queued, self._is_open = 0, False
        self._begin_or_end()

    def step_queued(self) -> None:
        """Count a queued step; begin or end recording if this step is the first or the last."""
        self._queued += 1
        self._begin_or_end()

    def _begin_or_end(self) -> None:
        if self._steps and self._queued == self._steps.start:
            self._engine.begin_trace(self._part)
            self._is_open = True
        elif self._queued == self._steps.stop:
            self.close()

    def close(self) -> None:
        """End recording, if it is under way."""
        if self._is_open:
            self._engine.end_trace()
            self._is_open = False

    def merge(self) -> None:
        """Merge the ranks' files into one; one rank calls this after every rank has closed."""
        if not self._steps:
            return
        parts = {int(path.stem.removeprefix("trace_")): path for path in self._folder.glob("trace_*.json")}
        traced = {rank: self._engine.read_trace(parts[rank]) for rank in sorted(parts)}
        write_json(self._folder / TRACE_FILE, chrome_trace(traced))
        for path in parts.values():
            path.unlink()


def chrome_trace(traced: Mapping[int, Sequence[Operator]]) -> dict[str, Any]:
    """Return a trace for Chrome's viewer and ui.perfetto.dev, in their JSON object format; times start at 0.

    Each rank is a process, whose rows of compute stand above those of communication.

    Args:
        traced: Rank -> its operators.
    """
    start = min((operators[0].begin_us for operators in traced.values() if operators), default=0)
    events: list[dict[str, Any]] = []
    for rank, operators in traced.items():
        rows: dict[str, int] = {}
        for kind in ("compute", "communication"):
            of_kind = [each for each in operators if each.is_communication == (kind != "compute")]
            events += [
                {"ph": "X", "name": each.name, "cat": kind, "pid": rank, "tid": rows.setdefault(row, len(rows)),
                 "ts": round(each.begin_us - start, 3), "dur": round(each.end_us - each.begin_us, 3)}
                for row, each in _rows(kind, of_kind)
            ]  # fmt: skip
        names = [("process_name", 0, f"rank {rank}"), *(("thread_name", row, name) for name, row in rows.items())]
        events += [
            {"ph": "M", "name": kind, "pid": rank, "tid": row, "args": {"name": name}} for kind, row, name in names
        ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _rows(kind: str, operators: Iterable[Operator]) -> Iterator[tuple[str, Operator]]:
    """Yield each operator with the first free row of the trace, since bars of one row must not overlap."""
    free_from: list[int] = []
    for operator in operators:
        row = next((row for row, time in enumerate(free_from) if time <= operator.begin_us), len(free_from))
        free_from[row : row + 1] = [operator.end_us]
        yield f"{kind} {row + 1}" if row else kind, operator
