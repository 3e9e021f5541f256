"""Seconds from launch to the first training image, by phase, for any number of ranks.

*Source* of the constants: the 2019 record's log of 2,048 ranks (20.4 s, of which 16.0 s communicator, 0.25 s network,
3.6 s input pipeline and binding, 0.5 s optimizer states; 25.5 s of launch and imports before that), and the untimed
start of the public points on 8 accelerators.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Startup", "predict_startup"]

_LAUNCH_S, _LAUNCH_DOUBLING_S = 8.0, 1.6
_COMMUNICATOR_S, _COMMUNICATOR_RANK_S = 4.5, 5.6e-3
_PIPELINE_S, _NETWORK_S, _STATES_S = 3.6, 0.25, 0.5
_NEGOTIATION_RANK_S = 10e-6
"""The coordinator reads one message a rank for every tensor of a broadcast."""


@dataclass(frozen=True)
class Startup:
    """Phases in seconds; ``total_s`` is their sum, or what remains when they overlap."""

    launch_s: float
    communicator_s: float
    weights_s: float
    pipeline_s: float
    total_s: float


def predict_startup(
    ranks: int, *, tensors: int = 161, weight_bytes: float = 102e6, seeded: bool = True, overlapped: bool = True
) -> Startup:
    """Predict the start of ``ranks`` processes.

    Args:
        ranks: Processes.
        tensors: Parameters of the network.
        weight_bytes: Their size in the precision in which they are broadcast.
        seeded: Every rank draws the same weights; else rank 0 broadcasts them, tensor by tensor.
        overlapped: The communicator comes up while network and pipeline are built; else one after the other.
    """
    launch_s = _LAUNCH_S + _LAUNCH_DOUBLING_S * math.log2(ranks)
    communicator_s = _COMMUNICATOR_S + _COMMUNICATOR_RANK_S * ranks if ranks > 1 else 0.0
    local_s = _PIPELINE_S + _NETWORK_S + _STATES_S
    weights_s = 0.0
    if not seeded and ranks > 1:
        weights_s = tensors * _NEGOTIATION_RANK_S * ranks + 2 * weight_bytes / 1e9
    built_s = max(communicator_s, local_s) if overlapped else communicator_s + local_s
    return Startup(launch_s, communicator_s, weights_s, local_s, launch_s + built_s + weights_s)
