"""Seconds from launch to the first training image, by phase, for any number of ranks.

*Source* of the constants: the 2019 record's log of 2,048 ranks (20.4 s, of which 16.0 s communicator, 0.25 s network,
3.6 s input pipeline and binding, 0.5 s optimizer states; 25.5 s of launch and imports before that), and the untimed
start of the public points on 8 accelerators.
"""

import math
from dataclasses import dataclass

_LAUNCH_S, _LAUNCH_DOUBLING_S = 8.0, 1.6
_COMMUNICATOR_S, _COMMUNICATOR_RANK_S = 4.5, 5.6e-3
_PIPELINE_S, _NETWORK_S, _STATES_S = 3.6, 0.25, 0.5
_WARMUP_OLD_S, _WARMUP_S, _COMPILE_S = 8.0, 36.0, 100.0
"""What MLPerf's programs do besides before run_start: warm-up and, since round 1.0, tuning and the capture of graphs;
compilation of the whole program. Rounded medians of the public points on 8 accelerators, less the other parts."""
_NEGOTIATION_RANK_S = 10e-6
"""For every tensor of a broadcast, the coordinator reads one message of each rank."""


@dataclass(frozen=True)
class StartupTime:
    """Phases of a start in seconds.

    Attributes:
        launch_s: Launch of the processes and their imports.
        communicator_s: Until all ranks are connected.
        weights_s: Broadcast of the weights; 0 if every rank draws them from the seed.
        pipeline_s: Input pipeline, network and optimizer states.
        total_s: Less than the sum of the phases if the communicator starts while the pipeline is built.
    """

    launch_s: float
    communicator_s: float
    weights_s: float
    pipeline_s: float
    total_s: float


def predict_startup(
    ranks: int, *, tensors: int = 161, weight_bytes: float = 102e6, seeded: bool = True, overlapped: bool = True
) -> StartupTime:
    """Predict the start of ``ranks`` processes.

    Args:
        ranks: Number of processes.
        tensors: Parameter tensors of the network.
        weight_bytes: Bytes of all parameters in the precision of the broadcast.
        seeded: Whether every rank draws the same weights. If False, rank 0 broadcasts the weights tensor by tensor.
        overlapped: Whether the communicator starts while network and pipeline are built. If False, it starts after.
    """
    launch_s = _LAUNCH_S + _LAUNCH_DOUBLING_S * math.log2(ranks)
    communicator_s = _COMMUNICATOR_S + _COMMUNICATOR_RANK_S * ranks if ranks > 1 else 0.0
    local_s = _PIPELINE_S + _NETWORK_S + _STATES_S
    weights_s = 0.0
    if not seeded and ranks > 1:
        weights_s = tensors * _NEGOTIATION_RANK_S * ranks + 2 * weight_bytes / 1e9
    built_s = max(communicator_s, local_s) if overlapped else communicator_s + local_s
    return StartupTime(
        launch_s=launch_s,
        communicator_s=communicator_s,
        weights_s=weights_s,
        pipeline_s=local_s,
        total_s=launch_s + built_s + weights_s,
    )


def predict_init(ranks: int, mlperf_round: str, *, has_compiler: bool) -> float:
    """Return the seconds from init_start to run_start of MLPerf's programs, which log init_start after their imports.

    Args:
        ranks: Number of processes.
        mlperf_round: MLPerf round of the program.
        has_compiler: Whether a compiler makes one program of the whole step.
    """
    startup = predict_startup(ranks)
    if has_compiler:
        return startup.total_s - startup.launch_s + _COMPILE_S
    is_old = mlperf_round in ("0.5", "0.6", "0.7")
    return startup.total_s - startup.launch_s + (_WARMUP_OLD_S if is_old else _WARMUP_S)
