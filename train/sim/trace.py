"""A simulated step as a trace file for chrome://tracing or Perfetto: compute, reductions and waits."""

import json

from train.measure.chrome_trace import Bar, chrome_trace
from train.networks.arch import network_arguments
from train.sim.constants import Calibration
from train.sim.forecast import Scenario, time_step
from train.sim.step_time import step_model

_COMPUTE, _REDUCE, _WAIT = "compute (slowest rank)", "reductions", "waits"


def step_trace(scenario: Scenario, calibration: Calibration) -> str:
    """Return the text of a Chrome trace of one step: a row of compute, a row of reductions, a row of waits.

    Kernels have the duration that they have on the slowest rank and, in backward, with reductions at the same time, so
    that the three rows fit together.
    """
    step = time_step(scenario, calibration)
    timed = step_model(**network_arguments(scenario.recipe.model))
    slowest = 1 + step.straggler_s / step.compute_s
    stretched = slowest + step.contention_s / step.backward_s
    kernels = timed.kernels(scenario.machine, scenario.batch, calibration.constants, scenario.software)
    tables = (("forward", slowest, timed.forward), ("backward", stretched, timed.backward))
    activities = [
        (name, category, _COMPUTE, factor * seconds)
        for (category, factor, table), pass_s in zip(tables, kernels, strict=True)
        for name, seconds in zip(table["name"], pass_s.tolist(), strict=True)
    ]
    num_kernels = len(activities)
    activities += [
        (name, name, row, seconds)
        for name, row, seconds in (
            ("exposed communication", _WAIT, step.exposed_s),
            ("negotiation", _WAIT, step.overhead_s),
            ("update", _COMPUTE, step.update_s),
            ("input", _WAIT, step.input_s),
        )
        if seconds > 0
    ]
    bars, at_s = [], 0.0
    for name, category, row, seconds in activities:
        bars.append(Bar(name, category, row, 1e6 * at_s, 1e6 * seconds))
        at_s += seconds
    reductions = [
        Bar(
            f"bucket {index} ({one.size_bytes / 1e6:.1f} MB)",
            "allreduce",
            _REDUCE,
            1e6 * one.start_s,
            1e6 * (one.end_s - one.start_s),
        )
        for index, one in enumerate(step.reductions)
    ]
    return json.dumps(chrome_trace({0: [*bars[:num_kernels], *reductions, *bars[num_kernels:]]}, "rank"))
