"""Moments of a run, by name, and the milliseconds between them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

__all__ = ["BATCH", "DRAINED", "EPOCH", "EVALUATED", "EVALUATING", "QUEUED", "Moments", "gaps", "mark"]

EPOCH = "an epoch begins"
BATCH = "a step has its batch"
QUEUED = "a step is queued"
DRAINED = "the engine has done all steps"
EVALUATING = "an evaluation begins"
EVALUATED = "it has its result"

Moments = list[tuple[str, float]]
"""Name and time in seconds, in order."""


def mark(moments: Moments, name: str) -> None:
    """Note that this moment is now."""
    moments.append((name, time.perf_counter()))


def gaps(moments: Moments) -> Mapping[str, float]:
    """Give what lies between steps, between epochs, and around an evaluation: medians over a run.

    The first epoch's start is left out: it opens the files.
    """
    found: dict[str, list[float]] = {}
    names = [name for name, _ in moments]
    for at, (name, begin) in enumerate(moments):
        if name == QUEUED and names[at + 1 : at + 2] == [BATCH]:
            found.setdefault("between_steps_ms", []).append(1e3 * (moments[at + 1][1] - begin))
        elif name == QUEUED and names[at + 1 : at + 3] == [EPOCH, BATCH]:
            found.setdefault("between_epochs_ms", []).append(1e3 * (moments[at + 2][1] - begin))
        elif name == DRAINED:
            assert names[at + 1] == EVALUATING
            found.setdefault("before_evaluation_ms", []).append(1e3 * (moments[at + 1][1] - begin))
        elif name == EVALUATING:
            assert names[at + 1] == EVALUATED
            found.setdefault("evaluation_s", []).append(moments[at + 1][1] - begin)
        elif name == EVALUATED and names[at + 1 : at + 3] == [EPOCH, BATCH]:
            found.setdefault("after_evaluation_ms", []).append(1e3 * (moments[at + 2][1] - begin))
    return {figure: median(values) for figure, values in found.items()}
