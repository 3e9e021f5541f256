"""The time of a whole run: before the first step, excess of the first epoch, epochs, evaluations.

``T = pre + E * N / R + first-epoch excess + evaluations + gaps``, for E epochs of N images at R images/s. For published
logs this sum agrees with the logged time within half a second. *Source* of the constants: medians over the public
points, by era.
"""

from dataclasses import dataclass

_PRE_S, _PRE_OLD_S = 1.2, 2.0
"""From run_start to the first epoch, and all gaps between epochs; since round 1.0, and before."""
_EXCESS_S, _EXCESS_OLD_S, _COLD_S, _COLD_NODES = 0.35, 1.9, 1.2, 8
"""Excess of the first epoch: a fixed part, which is the middle of 0.1 to 0.6 s (up to round 0.6 the middle of 0.66, 1.9
and 5.3 s, on systems of 512 accelerators and more); and from round 0.7 on the reading of a cold data set (medians of 1
to 1.8 s), which becomes shorter in proportion with more than eight nodes."""
_OLD_ROUNDS = ("0.5", "0.6", "0.7")


@dataclass(frozen=True)
class DataSet:
    """Numbers of images, and of evaluations in a run.

    Attributes:
        images: Images to train on.
        eval_images: Images of an evaluation.
        evaluations: Evaluations of the run. If None, there is one after every fourth epoch.
    """

    images: int
    eval_images: int
    evaluations: int | None = None


IMAGENET = DataSet(images=1_281_167, eval_images=50_000)


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
    """Return the seconds of one evaluation: inference on the validation set, and a fixed part.

    *Source*: evaluation rate against training rate of the public points, by era.

    Args:
        images_per_s: Rate of training.
        mlperf_round: MLPerf round of the software. If empty or unknown, that of rounds from 1.0 on.
        images: Images of the validation set.
    """
    return (0.95 if mlperf_round in _OLD_ROUNDS else 0.42) * images / images_per_s + 0.02


def evaluations_of(epochs: int) -> int:
    """Return the evaluations of a run of ``epochs``: one after every fourth epoch, and one after the last."""
    return -(-epochs // 4)


def run_time(
    images_per_s: float, epochs: int, nodes: int, *, mlperf_round: str = "", data: DataSet = IMAGENET
) -> RunTime:
    """Return the time of a run of ``epochs`` at a constant rate on ``nodes`` nodes."""
    evaluations = evaluations_of(epochs) if data.evaluations is None else data.evaluations
    excess_s = _EXCESS_S + _COLD_S * min(1.0, _COLD_NODES / nodes)
    return RunTime(
        pre_s=_PRE_OLD_S if mlperf_round in _OLD_ROUNDS else _PRE_S,
        first_epoch_excess_s=_EXCESS_OLD_S if mlperf_round in ("0.5", "0.6") else excess_s,
        epochs_s=epochs * data.images / images_per_s,
        evaluations_s=evaluations * evaluation_time(images_per_s, mlperf_round, data.eval_images),
    )
