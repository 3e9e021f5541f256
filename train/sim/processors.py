"""CPUs as published (processors.yaml), and the rates of a rank on them. Nothing here is fitted."""

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from configs.errors import ConfigError, nearest
from configs.load import parse_yaml
from configs.schema import Cluster

PROCESSORS = Path(__file__).with_name("processors.yaml")

THIS_MACHINE = "this machine"
"""Name of the CPU where the cluster file names none."""

_CORE_BYTES_PER_S = 12e9
"""Memory bandwidth that one core can use at most; assumed, from 8 to 15 GB/s of copies on one core of several CPUs."""
_LOOPBACK_BYTES_PER_S = 1.5e9
"""Rate of a local TCP connection between ranks of one node; assumed, 0.6 to 3 GB/s on two-core machines."""
_SUM_BUCKET_S = 2e-4
"""Time of a bucket of a few bytes in shared memory; assumed, measured on two cores."""


@dataclass(frozen=True)
class Processor:
    """One product, a row of processors.yaml.

    Attributes:
        name: Product.
        match: Patterns of which one must occur in ``node.cpu``.
        cores: Cores of one socket.
        clock: Base clock, Hz.
        flops_per_cycle: Float32 operations of one core in one cycle.
        memory: Memory bandwidth of one socket, bytes/s.
    """

    name: str
    match: tuple[str, ...]
    cores: int
    clock: float
    flops_per_cycle: int
    memory: float


@cache
def _processors() -> tuple[Processor, ...]:
    tree: dict[str, list[dict[str, Any]]] = parse_yaml(PROCESSORS.read_text(encoding="utf-8"), PROCESSORS.name)
    return tuple(Processor(**{**row, "match": tuple(row["match"])}) for row in tree["processors"])


def find_processor(text: str) -> Processor:
    """Return the first processor with a pattern that occurs in ``text``.

    Raises:
        ConfigError: processors.yaml has no such CPU.
    """
    for each in _processors():
        if any(re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text.lower()) for pattern in each.match):
            return each
    remedy = f"{nearest(text, {each.name for each in _processors()})}; or leave it out, and measure the machine: "
    remedy += "./run.sh simulate --calibrate-here"
    raise ConfigError("node.cpu", text, "a CPU of train/sim/processors.yaml", remedy)


def rates_of_processor(cluster: Cluster) -> dict[str, float]:
    """Return the rates of one rank on the CPU that the cluster file names, as ``--calibrate-here`` measures them here.

    A rank computes with ``engine.threads`` cores, and at most with its share of the node's. ``node.cores`` says how
    many sockets a node has.

    Raises:
        ConfigError: processors.yaml has no such CPU.
    """
    node, processor = cluster.node, find_processor(cluster.node.cpu or "")
    cores = node.cores or processor.cores
    sockets = math.ceil(cores / processor.cores)
    used = min(cluster.engine.threads, max(1.0, cores / cluster.ranks_per_node))
    return {
        "flops": used * processor.clock * processor.flops_per_cycle,
        "memory_bytes_per_s": min(used * _CORE_BYTES_PER_S, sockets * processor.memory / cluster.ranks_per_node),
        "link_bytes_per_s": cluster.communication.link_bytes_per_s or _LOOPBACK_BYTES_PER_S,
        "sum_bytes_per_s": min(_CORE_BYTES_PER_S, sockets * processor.memory / cluster.ranks_per_node),
        "sum_bucket_s": _SUM_BUCKET_S,
        "cores": float(cores),
    }
