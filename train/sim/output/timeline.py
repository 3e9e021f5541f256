"""A simulated step for chrome://tracing or Perfetto: what computes, what communicates, who waits."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from configs.errors import UserError
from train.sim.constants import Calibration, log_factor
from train.sim.forecast import Scenario, effects_of, step_model, time_step
from train.sim.roofline import KernelTable

__all__ = ["step_trace", "write_trace"]

_COMPUTE, _REDUCE, _WAIT = 1, 2, 3


def step_trace(scenario: Scenario, calibration: Calibration) -> list[dict[str, Any]]:
    """Give one step's events in microseconds: a row for compute, one for reductions, one for waits.

    Backward kernels are shown at the speed of the slowest rank and under reductions, so that rows line up.
    """
    constants, machine = calibration.constants, scenario.machine
    step = time_step(scenario, calibration)
    factor = math.exp(log_factor(effects_of(machine, scenario.mlperf_round), constants.effects))
    model = scenario.recipe.model
    timed = step_model(model.name, model.num_classes, model.image_size, model.input_channels)
    slowest = 1 + step.straggler_s / step.compute_s
    stretched = slowest + step.contention_s / step.backward_s
    events, at = [], 0.0

    def play(table: KernelTable, speed: float, category: str) -> None:
        nonlocal at
        kernels = timed.kernels(table, machine, scenario.batch, constants, scenario.software)
        for name, seconds in zip(table.names, kernels, strict=True):
            spent = factor * speed * float(seconds)
            events.append(_event(name, category, _COMPUTE, at, spent))
            at += spent

    play(timed.forward, slowest, "forward")
    play(timed.backward, stretched, "backward")
    for index, one in enumerate(step.reductions):
        name = f"bucket {index} ({one.size_bytes / 1e6:.1f} MB)"
        events.append(_event(name, "allreduce", _REDUCE, one.start_s, one.end_s - one.start_s))
    for name, seconds, row in (
        ("exposed communication", step.exposed_s, _WAIT), ("negotiation", step.overhead_s, _WAIT),
        ("update", step.update_s, _COMPUTE), ("input", step.input_s, _WAIT),
    ):  # fmt: skip
        if seconds > 0:
            events.append(_event(name, name, row, at, seconds))
            at += seconds
    return events


def write_trace(path: Path, events: list[dict[str, Any]]) -> None:
    """Write events as a Chrome trace.

    Raises:
        UserError: The file cannot be written.
    """
    names = ((_COMPUTE, "compute (slowest rank)"), (_REDUCE, "reductions"), (_WAIT, "waits"))
    titles = [{"name": "thread_name", "ph": "M", "pid": 0, "tid": row, "args": {"name": name}} for row, name in names]
    try:
        path.write_text(json.dumps({"traceEvents": titles + events, "displayTimeUnit": "ms"}), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --trace") from None


def _event(name: str, category: str, row: int, start_s: float, duration_s: float) -> dict[str, Any]:
    return {
        "name": name, "cat": category, "ph": "X", "pid": 0, "tid": row,
        "ts": round(start_s * 1e6, 3), "dur": round(duration_s * 1e6, 3),
    }  # fmt: skip
