"""What a node must read, decode and hold of images on GPUs, and what of that it surely cannot. Pure."""

from collections.abc import Mapping
from typing import Any

from configs.errors import ConfigError
from configs.schema import Cluster, Recipe
from data.shards import shard_range
from train.plan.memory import DECODED_BYTES
from train.sim.hardware import machine_of_cluster

_JPEG_BYTES = 110_000
"""A JPEG of ImageNet, on average."""

_LEAST_SIDE = 128
"""Images of a smaller side, px, do not come from JPEGs of that size."""

_DECODED_PER_S = {"A100": 7000, "H100": 7000, "H200": 7000}
"""Chip -> images/s that DALI decodes on it, about: an A100 5,000 by hardware alone, 6,000 without and 7,000 with a load
of 0.75 (https://github.com/NVIDIA/DALI/issues/5362); seven engines of an H100 as five of an A100."""


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
