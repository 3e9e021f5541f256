"""A simulated step as a trace file for chrome://tracing or Perfetto: compute, reductions and waits."""

import json
from collections.abc import Iterable, Iterator

from train.measure.chrome_trace import Bar, chrome_trace
from train.networks.arch import network_arguments
from train.sim.constants import Calibration
from train.sim.forecast import Scenario, time_step
from train.sim.roofline import KernelTable
from train.sim.step_time import Reduction, StepTime, step_model

_COMPUTE, _REDUCE, _WAIT = "compute (slowest rank)", "reductions", "waits"
_Activity = tuple[str, str, str, float]
"""Name, category, row of the trace, seconds."""


def step_trace(scenario: Scenario, calibration: Calibration) -> list[Bar]:
    """Return the bars of one step: a row of compute, a row of reductions, a row of waits.

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
    in_turn = list(_in_turn([*compute, *_after_backward(step)]))
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


def _reductions(reductions: Iterable[Reduction]) -> list[Bar]:
    return [
        Bar(
            f"bucket {index} ({one.size_bytes / 1e6:.1f} MB)",
            "allreduce",
            _REDUCE,
            1e6 * one.start_s,
            1e6 * (one.end_s - one.start_s),
        )
        for index, one in enumerate(reductions)
    ]


def _in_turn(activities: Iterable[_Activity]) -> Iterator[Bar]:
    """Yield the bars of activities of which each starts when the one before it ends."""
    at_s = 0.0
    for name, category, row, seconds in activities:
        yield Bar(name, category, row, 1e6 * at_s, 1e6 * seconds)
        at_s += seconds


def trace_json(bars: Iterable[Bar]) -> str:
    """Return bars as the text of a Chrome trace."""
    return json.dumps(chrome_trace({0: bars}, "rank"))
