"""A simulated step as a trace file for chrome://tracing or Perfetto: compute, reductions and waits."""

import json
from collections.abc import Iterable
from typing import Any

from train.networks.arch import network_arguments
from train.sim.constants import Calibration
from train.sim.forecast import Scenario, time_step
from train.sim.roofline import KernelTable
from train.sim.step_time import Reduction, StepTime, step_model

_COMPUTE, _REDUCE, _WAIT = 1, 2, 3
_Activity = tuple[str, str, int, float]
"""Name, category, row of the trace, seconds."""


def step_trace(scenario: Scenario, calibration: Calibration) -> list[dict[str, Any]]:
    """Return the events of one step in microseconds: a row of compute, a row of reductions, a row of waits.

    Kernels have the duration that they have on the slowest rank and, in backward, with reductions at the same time, so
    that the three rows fit together.
    """
    step = time_step(scenario, calibration)
    timed = step_model(**network_arguments(scenario.recipe.model))
    slowest = 1 + step.straggler_s / step.compute_s
    stretched = slowest + step.contention_s / step.backward_s

    forward, backward = timed.kernels(scenario.machine, scenario.batch, calibration.constants, scenario.software)
    compute = [
        *_kernels(timed.forward, slowest * forward, "forward"),
        *_kernels(timed.backward, stretched * backward, "backward"),
    ]
    in_turn = _in_turn([*compute, *_after_backward(step)])
    return [*in_turn[: len(compute)], *_reductions(step.reductions), *in_turn[len(compute) :]]


def _kernels(table: KernelTable, seconds: Iterable[float], category: str) -> list[_Activity]:
    return [(name, category, _COMPUTE, float(each)) for name, each in zip(table.names, seconds, strict=True)]


def _after_backward(step: StepTime) -> list[_Activity]:
    activities = [
        ("exposed communication", _WAIT, step.exposed_s),
        ("negotiation", _WAIT, step.overhead_s),
        ("update", _COMPUTE, step.update_s),
        ("input", _WAIT, step.input_s),
    ]
    return [(name, name, row, seconds) for name, row, seconds in activities if seconds > 0]


def _reductions(reductions: Iterable[Reduction]) -> list[dict[str, Any]]:
    return [
        _event(
            f"bucket {index} ({one.size_bytes / 1e6:.1f} MB)",
            "allreduce",
            _REDUCE,
            start_s=one.start_s,
            duration_s=one.end_s - one.start_s,
        )
        for index, one in enumerate(reductions)
    ]


def _in_turn(activities: Iterable[_Activity]) -> list[dict[str, Any]]:
    """Return the events of activities of which each starts when the one before it ends."""
    events, at_s = [], 0.0
    for name, category, row, seconds in activities:
        events.append(_event(name, category, row, start_s=at_s, duration_s=seconds))
        at_s += seconds
    return events


def _event(name: str, category: str, row: int, *, start_s: float, duration_s: float) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": 0,
        "tid": row,
        "ts": round(start_s * 1e6, 3),
        "dur": round(duration_s * 1e6, 3),
    }


def trace_json(events: list[dict[str, Any]]) -> str:
    """Return events as the text of a Chrome trace."""
    names = ((_COMPUTE, "compute (slowest rank)"), (_REDUCE, "reductions"), (_WAIT, "waits"))
    titles = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}} for row, name in names]
    return json.dumps({"traceEvents": titles + events, "displayTimeUnit": "ms"})
