"""Settings of a cluster of GPUs that surely cost a factor, which ``plan`` and ``doctor`` tell. Pure."""

from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError
from configs.schema import Cluster, Recipe
from train.networks.arch import gradient_bytes, network_of
from train.plan.memory import BYTES_PER_NUMBER
from train.plan.slow_values import better_values, value_of
from train.sim.constants import load_calibration
from train.sim.forecast import forecast, make_scenario
from train.sim.hardware import machine_of_cluster

_LEAST_FACTOR = 1.05
"""Factors below this one are not told: the simulator is not as exact."""

_ASSUMED_GPU = "A100-SXM4-80GB"
"""The GPU for which a factor is computed where the cluster file names none that the simulator knows."""

_GLOO_BYTES_PER_S = 1.5e9
"""Most bytes that Gloo sends and adds a second for one rank. Two ranks on two cores of an AMD EPYC reached 0.5e9 in
float16 and 0.9e9 in float32 and bfloat16, with PyTorch 2.13 in November 2026; copies from and to a GPU come on top."""


def slow_settings(recipe: Recipe, cluster: Cluster) -> list[str]:
    """Return a line for each setting with which a step surely takes longer, with the factor and the better value.

    Args:
        recipe: Its network and its batch decide how much a setting costs.
        cluster: Where it is trained. CPUs have no such settings.

    Returns:
        The lines, the most costly setting first; none of a setting that costs less than a twentieth of a step.
    """
    better = better_values(cluster)
    if not better:
        return []
    fast, basis = _simulated(_changed(cluster, better))
    factors = {}
    for key in better:
        if key == "communication.backend":
            factors[key] = _gloo_s(recipe, fast) * _steps_per_s(recipe, fast)
        else:
            slow = _changed(fast, {key: value_of(cluster, key)})
            factors[key] = _steps_per_s(recipe, fast) / _steps_per_s(recipe, slow)
    return [
        f"cluster.{key}={value_of(cluster, key)} makes a step about {factor:.2g} times as long as {better[key]} would "
        f"({basis}); set cluster.{key}={better[key]}"
        for key, factor in sorted(factors.items(), key=lambda item: -item[1])
        if factor >= _LEAST_FACTOR
    ]


def _changed(cluster: Cluster, values: Mapping[str, str]) -> Cluster:
    blocks: dict[str, Any] = {}
    for key, value in values.items():
        block, _, name = key.partition(".")
        blocks[block] = blocks.get(block, getattr(cluster, block)).model_copy(update={name: value})
    return cluster.model_copy(update=blocks)


def _simulated(cluster: Cluster) -> tuple[Cluster, str]:
    """Return a cluster whose GPUs the simulator knows, and what it is, in words."""
    try:
        return cluster, f"simulated on {machine_of_cluster(cluster).accelerator.name}"
    except ConfigError:
        known = cluster.model_copy(update={"node": cluster.node.model_copy(update={"gpu": _ASSUMED_GPU})})
        return known, f"simulated on {_ASSUMED_GPU}, because cluster.node.gpu names no known GPU"


def _steps_per_s(recipe: Recipe, cluster: Cluster) -> float:
    calibration = load_calibration()
    return forecast(make_scenario(recipe, cluster, calibration), calibration).images_per_s / recipe.batch.global_size


def _gloo_s(recipe: Recipe, cluster: Cluster) -> float:
    """Return the least time in which Gloo sums a step's gradients: a ring sends and adds nearly all of them twice."""
    size = sum(gradient_bytes(network_of(recipe.model).parameters, BYTES_PER_NUMBER[cluster.sum_precision]))
    ranks = cluster.world_size
    return 2 * (ranks - 1) / ranks * size / _GLOO_BYTES_PER_S
