"""Named moments of a run, and the gaps between them in milliseconds."""

import time
from collections.abc import Mapping
from statistics import median

EPOCH = "an epoch begins"
BATCH = "a step has got a batch"
QUEUED = "a step is queued"
DRAINED = "the engine has finished all queued steps"
EVALUATING = "an evaluation begins"
EVALUATED = "the evaluation has a result"

Moments = list[tuple[str, float]]
"""Name and time in seconds of each moment, in order of time."""


def mark(moments: Moments, name: str) -> None:
    """Append the moment ``name`` with the present time."""
    moments.append((name, time.perf_counter()))


def gaps(moments: Moments) -> Mapping[str, float]:
    """Return the medians over a run of the gaps between steps, between epochs, and around an evaluation.

    The start of the first epoch does not count, because it opens the files.

    Returns:
        ``between_steps_ms`` and ``between_epochs_ms``: from a queued step to the batch of the next step;
        ``before_evaluation_ms``: from the end of the last queued step to the beginning of the evaluation;
        ``evaluation_s``; ``after_evaluation_ms``: from the result to the batch of the next step.
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
