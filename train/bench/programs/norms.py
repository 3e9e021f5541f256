"""One rank of ``bench gpu``: batch norm, addition and ReLU at one shape, in one of the ways that the engine has."""

import time
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from train.bench.kernel_cases import KernelCase
from train.bench.programs.kernels import ALONE, batch_on, distance, network_on
from train.bench.samples import Figures, write_samples
from train.networks.arch import Network, Rows

_PAIRS, _SAMPLES, _PASSES = 4, 5, 10
"""Batch norms with a ReLU, each followed by one with an addition and a ReLU; samples, and passes of each one."""


def main(title: str, place: Sequence[str], changes: Sequence[str], shape: tuple[int, int, int]) -> None:
    """Write the milliseconds of a forward and a backward pass of eight batch norms, and the errors against float32.

    Args:
        title: Names the samples.
        place: Changes of the cluster ``laptop``.
        changes: Further changes, which choose the way.
        shape: Images, side in px, channels.
    """
    exact = _exact(tuple(place), tuple(shape))
    found, samples = _passes([*place, *changes], shape, _PASSES)
    errors = {f"{name}_error": distance(found[name], exact[name]) for name in exact}
    write_samples(ALONE, title, [{**sample, **errors} for sample in samples])


@lru_cache(maxsize=1)  # cases of one shape follow one another
def _exact(place: tuple[str, ...], shape: tuple[int, int, int]) -> dict[str, np.ndarray]:
    """Return the results in float32 on the same device."""
    return _passes([*place, "cluster.engine.precision=float32"], shape, 1)[0]


def _passes(
    place: Sequence[str], shape: tuple[int, int, int], passes: int
) -> tuple[dict[str, np.ndarray], list[Figures]]:
    """Return the results of a forward and a backward pass, and the samples of their time."""
    batch, side, channels = shape
    rows = Rows(channels, side)
    last = "data"
    for pair in range(_PAIRS):
        inner = rows.add(f"relu{pair}", "relu", rows.add(f"bn{pair}", "bn", last))
        added = rows.add(f"added{pair}", "add", rows.add(f"outer{pair}", "bn", inner), last)
        last = rows.add(f"end{pair}", "relu", added)
    rows.dense("classifier", rows.add("mean", "global_pool", last), 10)
    table = Network("norms", side, channels, 10, tuple(rows.layers))
    engine, network = network_on(KernelCase(), place, table, is_tf32=False)
    values = np.random.default_rng(0).standard_normal((batch, channels, side, side), np.float32)
    images, labels = batch_on(engine, network, values)

    def run(number: int) -> float:
        engine.wait_all()
        begin = time.perf_counter()
        for _ in range(number):
            loss = network.forward(images, labels)
            network.backward()
        engine.wait_all()
        results["loss"] = engine.to_host(loss)
        return 1e3 * (time.perf_counter() - begin) / number

    results: dict[str, np.ndarray] = {}
    run(1)
    results["gradient"] = np.concatenate([engine.to_host(each).ravel() for each in network.gradients])
    return results, [{"pass_ms": run(passes)} for _ in range(_SAMPLES)]
