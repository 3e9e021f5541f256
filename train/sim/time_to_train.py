"""The time of a whole run: its start, the epochs to the target, and the timed run from run_start to run_stop."""

import math
from typing import NamedTuple

import numpy as np

_LAUNCH_S, _LAUNCH_DOUBLING_S = 8.0, 1.6
_COMMUNICATOR_S, _COMMUNICATOR_RANK_S = 4.5, 5.6e-3
_PIPELINE_S, _NETWORK_S, _STATES_S = 3.6, 0.25, 0.5
"""*Source*: the 2019 record's log of 2,048 ranks (20.4 s, of which 16.0 s communicator, 0.25 s network, 3.6 s input
pipeline and binding, 0.5 s optimizer states; 25.5 s of launch and imports before that), and the untimed start of the
public points on 8 accelerators."""
_WARMUP_OLD_S, _WARMUP_S, _COMPILE_S = 8.0, 36.0, 100.0
"""What MLPerf's programs do besides before run_start: warm-up and, since round 1.0, tuning and the capture of graphs;
compilation of the whole program. Rounded medians of the public points on 8 accelerators, less the other parts."""
_NEGOTIATION_RANK_S = 10e-6
"""For every tensor of a broadcast, the coordinator reads one message of each rank."""
_TENSORS, _BROADCAST_S = 161, 2 * 102e6 / 1e9
"""Parameter tensors of ResNet-50, and the time of their 102 MB at 1 GB/s, sent and received."""

_PRE_S, _PRE_OLD_S = 1.2, 2.0
"""From run_start to the first epoch, and all gaps between epochs; since round 1.0, and before. These and the following
are medians over the public points, by era."""
_EXCESS_S, _EXCESS_OLD_S, _COLD_S, _COLD_NODES = 0.35, 1.9, 1.2, 8
"""Excess of the first epoch: a fixed part, which is the middle of 0.1 to 0.6 s (up to round 0.6 the middle of 0.66, 1.9
and 5.3 s, on systems of 512 accelerators and more); and from round 0.7 on the reading of a cold data set (medians of 1
to 1.8 s), which becomes shorter in proportion with more than eight nodes."""
_OLD_ROUNDS = ("0.5", "0.6", "0.7")

LARGEST_CONVERGED = 86_016
"""Images a step of the largest batch with which anybody is known to have reached 75.9 % (the 2019 record)."""
_REFERENCE: dict[int, float] = {
    1632: 35, 3264: 35, 4096: 40, 8192: 42, 13056: 45.5, 16384: 47, 32768: 56, 49152: 68, 58880: 80, 65536: 84.5,
    67840: 85.9, 86016: 90,
}  # fmt: skip
"""Global batch -> epochs to 75.9 % top-1 in rounds from 1.0 on: MLPerf's reference convergence points
(mlcommons/logging rcps_resnet.json); 16,384 as submitted in 2.1; 86,016 as the 2019 record."""
_ROUND_06: dict[int, float] = {1664: 60, 4096: 61.5, 16384: 65.5, 33280: 72, 54080: 86, 59904: 90, 86016: 90}
"""Round 0.6 as submitted, before small batches had LARS recipes; 59,904 by its schedule (nvidia-v06-n96)."""
_ROUND_07: dict[int, float] = {
    832: 38, 1664: 38, 3264: 41, 4096: 43, 8192: 44, 34560: 59, 44544: 70, 53360: 82, 86016: 90,
}  # fmt: skip
"""Round 0.7 as submitted."""
_BEYOND = _REFERENCE[65536] - _REFERENCE[32768]
"""Epochs that a doubling of the batch adds beyond the last point: as many as the steepest known doubling adds, so that
a huge batch does not look free."""


def epochs_to_target(global_batch: float, mlperf_round: str = "") -> int:
    """Return the whole epochs to the target, interpolated between known points in the logarithm of the batch.

    Args:
        global_batch: Images a step. Below the smallest known batch, the epochs of that batch apply; above the largest
            known batch, each doubling adds `_BEYOND` epochs.
        mlperf_round: MLPerf round of the recipe. If empty or unknown, the table of rounds from 1.0 on applies.
    """
    table = {"0.5": _ROUND_06, "0.6": _ROUND_06, "0.7": _ROUND_07}.get(mlperf_round, _REFERENCE)
    batches = [math.log(batch) for batch in table]
    epochs = list(table.values())
    at = math.log(global_batch)
    if at > batches[-1]:
        return math.ceil(epochs[-1] + _BEYOND * (at - batches[-1]) / math.log(2))
    return round(float(np.interp(at, batches, epochs)))


class DataSet(NamedTuple):
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


class RunTime(NamedTuple):
    """Parts of a timed run, seconds."""

    pre_s: float
    first_epoch_excess_s: float
    epochs_s: float
    evaluations_s: float

    @property
    def total_s(self) -> float:
        """From run_start to run_stop."""
        return self.pre_s + self.first_epoch_excess_s + self.epochs_s + self.evaluations_s


def run_time(
    images_per_s: float, epochs: int, nodes: int, *, mlperf_round: str = "", data: DataSet = IMAGENET
) -> RunTime:
    """Return the time of a run of ``epochs`` at a constant rate on ``nodes`` nodes.

    For published logs the sum of the parts agrees with the logged time within half a second.
    """
    evaluations = evaluations_of(epochs) if data.evaluations is None else data.evaluations
    excess_s = _EXCESS_S + _COLD_S * min(1.0, _COLD_NODES / nodes)
    return RunTime(
        pre_s=_PRE_OLD_S if mlperf_round in _OLD_ROUNDS else _PRE_S,
        first_epoch_excess_s=_EXCESS_OLD_S if mlperf_round in ("0.5", "0.6") else excess_s,
        epochs_s=epochs * data.images / images_per_s,
        evaluations_s=evaluations * evaluation_time(images_per_s, mlperf_round, data.eval_images),
    )


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


class StartupTime(NamedTuple):
    """Phases of a start in seconds.

    Attributes:
        launch_s: Launch of the processes and their imports.
        communicator_s: Until all ranks are connected.
        pipeline_s: Input pipeline, network and optimizer states.
        total_s: Less than the sum of the phases if the communicator starts while the pipeline is built; with the
            broadcast of the weights, if rank 0 sends them.
    """

    launch_s: float
    communicator_s: float
    pipeline_s: float
    total_s: float


def predict_startup(ranks: int, *, seeded: bool = True, overlapped: bool = True) -> StartupTime:
    """Predict the start of ``ranks`` processes.

    Args:
        ranks: Number of processes.
        seeded: Whether every rank draws the same weights. If False, rank 0 broadcasts the weights tensor by tensor.
        overlapped: Whether the communicator starts while network and pipeline are built. If False, it starts after.
    """
    launch_s = _LAUNCH_S + _LAUNCH_DOUBLING_S * math.log2(ranks)
    communicator_s = _COMMUNICATOR_S + _COMMUNICATOR_RANK_S * ranks if ranks > 1 else 0.0
    pipeline_s = _PIPELINE_S + _NETWORK_S + _STATES_S
    weights_s = 0.0 if seeded or ranks == 1 else _TENSORS * _NEGOTIATION_RANK_S * ranks + _BROADCAST_S
    built_s = max(communicator_s, pipeline_s) if overlapped else communicator_s + pipeline_s
    return StartupTime(launch_s, communicator_s, pipeline_s, launch_s + built_s + weights_s)


def predict_init(ranks: int, mlperf_round: str, *, has_compiler: bool) -> float:
    """Return the seconds from init_start to run_start of MLPerf's programs, which log init_start after their imports.

    Args:
        ranks: Number of processes.
        mlperf_round: MLPerf round of the program.
        has_compiler: Whether a compiler makes one program of the whole step.
    """
    startup = predict_startup(ranks)
    warmup_s = _COMPILE_S if has_compiler else _WARMUP_OLD_S if mlperf_round in _OLD_ROUNDS else _WARMUP_S
    return startup.total_s - startup.launch_s + warmup_s
