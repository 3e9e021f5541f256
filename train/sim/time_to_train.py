"""A whole run: before the first step, the first epoch's excess, epochs, evaluations, gaps.

``T = pre + E * N / R + first-epoch excess + evaluations + gaps``, the identity that closes within half a second for
published logs. *Source* of the constants: medians over the public points, by era.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["IMAGENET", "DataSet", "RunTime", "evaluation_time", "evaluations_of", "run_time"]

_PRE_S, _PRE_OLD_S = 1.2, 2.0
"""From run_start to the first epoch, and what lies between epochs."""
_EXCESS_S, _EXCESS_OLD_S, _COLD_S, _COLD_NODES = 0.35, 1.9, 1.2, 8
"""The first epoch's: a fixed part (the middle of 0.1 to 0.6 s, up to round 0.6 of 0.66, 1.9 and 5.3 s, on systems of
512 and more), and from 0.7 on reading a cold data set, which more than eight nodes share (medians of 1 to 1.8 s)."""
_OLD_ROUNDS = ("0.5", "0.6", "0.7")


@dataclass(frozen=True)
class DataSet:
    """Images to train on and to evaluate on, and how often the latter; none: every fourth epoch."""

    images: int
    eval_images: int
    evaluations: int | None = None


IMAGENET = DataSet(1_281_167, 50_000)


@dataclass(frozen=True)
class RunTime:
    """Parts of a timed run, seconds."""

    pre_s: float
    first_epoch_excess_s: float
    epochs_s: float
    evaluations_s: float

    @property
    def total_s(self) -> float:
        """From run_start to run_stop."""
        return self.pre_s + self.first_epoch_excess_s + self.epochs_s + self.evaluations_s


def evaluation_time(images_per_s: float, mlperf_round: str = "", images: int = 50_000) -> float:
    """Predict one evaluation's seconds: inference on the validation set, and a fixed part.

    *Source*: evaluation against training rate of the public points, by era.
    """
    return (0.95 if mlperf_round in _OLD_ROUNDS else 0.42) * images / images_per_s + 0.02


def evaluations_of(epochs: int) -> int:
    """Count the evaluations of a run of ``epochs``: every fourth epoch, the last one included."""
    return -(-epochs // 4)


def run_time(
    images_per_s: float, epochs: int, nodes: int, *, mlperf_round: str = "", data: DataSet = IMAGENET
) -> RunTime:
    """Add up a run of ``epochs`` at a steady rate on ``nodes`` machines."""
    count = evaluations_of(epochs) if data.evaluations is None else data.evaluations
    return RunTime(
        _PRE_OLD_S if mlperf_round in _OLD_ROUNDS else _PRE_S,
        _EXCESS_OLD_S if mlperf_round in ("0.5", "0.6") else _EXCESS_S + _COLD_S * min(1.0, _COLD_NODES / nodes),
        epochs * data.images / images_per_s,
        count * evaluation_time(images_per_s, mlperf_round, data.eval_images),
    )
