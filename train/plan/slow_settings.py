"""What surely slows a run on GPUs: settings that cost a factor, and an input that cannot keep up. Pure."""

from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError
from configs.schema import Cluster, Recipe
from data.shards import shard_range
from train.networks.arch import gradient_bytes, network_of
from train.plan.before_run import better_values, value_of
from train.plan.memory import BYTES_PER_NUMBER, DECODED_BYTES
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

_JPEG_BYTES = 110_000
"""A JPEG of ImageNet, on average."""

_LEAST_SIDE = 128
"""Images of a smaller side, px, do not come from JPEGs of that size."""

_DECODED_PER_S = {"A100": 7000, "H100": 7000, "H200": 7000}
"""Chip -> images/s that DALI decodes on it, about: an A100 5,000 by hardware alone, 6,000 without and 7,000 with a load
of 0.75 (https://github.com/NVIDIA/DALI/issues/5362); seven engines of an H100 as five of an A100."""


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


def input_rates(recipe: Recipe, cluster: Cluster, images_per_s: float) -> dict[str, Any] | None:
    """Return the rates of a node and of a GPU in an epoch after the first; None where no GPU decodes large images.

    Args:
        recipe: Its JPEGs are taken to be of the size of ImageNet's.
        cluster: Where it is trained.
        images_per_s: Images that all steps take in a second.
    """
    is_small = recipe.model.image_size < _LEAST_SIDE
    if cluster.device == "cpu" or recipe.data.source == "synthetic" or is_small:
        return None
    engine, images, ranks = cluster.engine, recipe.data.train_samples, cluster.world_size
    # Without sticking to shards, every node reads all of the data set in time.
    node_images = images / (cluster.num_nodes if engine.stick_to_shard else 1)
    shard = len(shard_range(images, 0, ranks))
    cached = min(1.0, engine.decoded_cache_bytes / (shard * DECODED_BYTES)) if shard else 1.0
    held = cluster.node.memory_bytes
    in_memory = 1.0 if held is None else min(1.0, held / (node_images * _JPEG_BYTES))
    try:
        decoded_per_s = _DECODED_PER_S.get(machine_of_cluster(cluster).accelerator.chip)
    except ConfigError:
        decoded_per_s = None
    rates = {
        "images_per_s_per_node": images_per_s / cluster.num_nodes,
        "read_bytes_per_s_per_node": images_per_s / cluster.num_nodes * (1 - cached) * _JPEG_BYTES,
        "decoded_per_s_per_gpu": images_per_s / ranks * (1 - cached),
        "possible_per_s_per_gpu": decoded_per_s,
        "cached_share": cached,
        "node_bytes": round(node_images * _JPEG_BYTES),
        "in_memory_share": in_memory,
    }
    return {**rates, "missing": _missing(rates)}


def _missing(rates: Mapping[str, Any]) -> list[str]:
    """Return a line for each rate at which steps must wait for images."""
    lines = []
    wanted, possible = rates["decoded_per_s_per_gpu"], rates["possible_per_s_per_gpu"]
    if possible is not None and wanted > possible:
        lines.append(
            f"a GPU decodes about {possible:,} images/s of the {wanted:,.0f} that its steps take; raise "
            "cluster.engine.decoded_cache_bytes as far as its memory allows"
        )
    if rates["in_memory_share"] < 1:
        rest = rates["read_bytes_per_s_per_node"] * (1 - rates["in_memory_share"])
        lines.append(
            f"a node's memory holds {rates['in_memory_share']:.0%} of its JPEGs; {rest / 1e6:,.0f} MB/s must come from "
            "its disks or the network; let each node keep its part (cluster.engine.stick_to_shard=true, more nodes)"
        )
    return lines
