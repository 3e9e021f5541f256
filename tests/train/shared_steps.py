"""Batch norms whose statistics two ranks compute together, against PyTorch's own batch norm on the images of both."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.engines import forward_backward, random_batch, small_network

_RANKS, _IMAGES = 2, 12
_TOLERANCES = {"float32": 2e-5, "bfloat16": 6e-2}
_SHARED = (
    f"cluster.ranks_per_node={_RANKS}", "cluster.communication.kind=torch_distributed",
    "cluster.communication.backend=gloo",
)  # fmt: skip


def _step(rank: int, images: int, precision: str, *words: str) -> tuple[list[Any], dict[str, np.ndarray]]:
    """Return the gradients, in the order of the parameters, and the running statistics after one step of a rank."""
    sizes = f"batch.global_size={_IMAGES}", f"batch.bn_span={_IMAGES}"
    engine, _, network = small_network("torch", *sizes, *words, precision=precision, layout="NHWC")
    own = slice(rank * images, (rank + 1) * images)
    forward_backward(network, *(each[own] for each in random_batch(engine, network, _IMAGES)))
    return [each.float().numpy() for each in network.gradients], network.read_statistics()


def write_shared_steps(rank: int, folder: Path) -> None:
    """Take a step in each precision as one rank of two that have met, and write what it leaves."""
    for precision in _TOLERANCES:
        gradients, statistics = _step(rank, _IMAGES // _RANKS, precision, *_SHARED)
        np.savez(folder / f"{precision}-{rank}.npz", *gradients, **statistics)


def require_steps_of_one_rank(folder: Path) -> None:
    """See that gradients and statistics of two ranks are those of one rank with all images."""
    gradients, statistics = _step(0, _IMAGES, "float32", "cluster.ranks_per_node=1")
    for precision, tolerance in _TOLERANCES.items():
        first, second = (np.load(folder / f"{precision}-{rank}.npz") for rank in range(_RANKS))
        for index, expected in enumerate(gradients):
            found = first[f"arr_{index}"] + second[f"arr_{index}"]
            assert np.abs(found - expected).max() <= tolerance * max(1.0, np.abs(expected).max()), (precision, index)
        for name, expected in statistics.items():
            np.testing.assert_array_equal(first[name], second[name], name)
            np.testing.assert_allclose(first[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)
