"""What an allreduce costs on a described topology, by algorithm: latency, protocol, bandwidth, shared uplinks.

*Sources*: ring, Patarasuk and Yuan, JPDC 69(2) 2009; halving-doubling, Thakur, Rabenseifner and Gropp, IJHPCA 19(1)
2005; double binary tree and the constants of latency and protocol, NCCL ``src/graph/tuning.cc``; 2-D torus,
arXiv:1811.05233. Imports no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from configs.errors import ConfigError, nearest
from train.sim.topology import Topology

__all__ = ["ALGORITHMS", "Cost", "allreduce", "best_algorithm"]


class Cost(NamedTuple):
    """One allreduce: its seconds, and the part that no bandwidth would save."""

    time_s: float
    latency_s: float


class _Protocol(NamedTuple):
    """NCCL's three ways to move a chunk; latencies in seconds."""

    base_ring_s: float
    base_tree_s: float
    hop_s: dict[str, float]
    tree_hop_s: dict[str, float]
    net_ring_s: float
    net_tree_s: float
    bandwidth_share: float


def _hops(nvlink: float, pcie: float) -> dict[str, float]:
    return {"nvlink": nvlink, "torus": nvlink, "pcie": pcie, "ethernet": 3 * pcie, "memory": 10 * pcie}


_PROTOCOLS = (
    _Protocol(6.6e-6, 6.8e-6, _hops(0.6e-6, 1.0e-6), _hops(0.6e-6, 1.0e-6), 2.7e-6, 5.0e-6, 0.5),  # LL
    _Protocol(14e-6, 14e-6, _hops(1.9e-6, 2.5e-6), _hops(1.25e-6, 1.9e-6), 4.0e-6, 8.5e-6, 0.92),  # LL128
    _Protocol(8.4e-6, 8.4e-6, _hops(3.4e-6, 5.7e-6), _hops(4.0e-6, 4.0e-6), 14e-6, 14e-6, 1.0),  # Simple
)
_SWITCH_BASE_S = 30e-6
"""Of a reduction in the switches (CollNet, SHARP)."""
_MESSAGE_S = 1e-6
"""A host's work for one message (NCCL's overhead of a network post); a server has one of every rank."""
_TREE_BUS_SHARE = 0.92
_TREE_FILL = (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9)
"""NCCL's share of a tree's bandwidth that is reached, from 64 bytes on, a doubling an entry."""


def allreduce(algorithm: str, topology: Topology, size_bytes: float) -> Cost:
    """Predict one allreduce of ``size_bytes`` a rank.

    Args:
        algorithm: A key of `ALGORITHMS`, ``auto`` for the best that NCCL would choose from (ring, tree), or
            ``ps:K`` for a parameter server of K machines.
        topology: The machine.
        size_bytes: Of one rank's buffer.

    Raises:
        ConfigError: No such algorithm.
    """
    if topology.ranks == 1 or size_bytes <= 0:
        return Cost(0.0, 0.0)
    if algorithm == "auto":
        return min(ring(topology, size_bytes), tree(topology, size_bytes))
    if algorithm.startswith("ps:") and algorithm[3:].isdecimal() and int(algorithm[3:]):
        return parameter_server(topology, size_bytes, int(algorithm[3:]))
    if algorithm not in ALGORITHMS:
        known = ["auto", "ps:8", *ALGORITHMS]
        raise ConfigError("algorithm", algorithm, ", ".join(known), nearest(algorithm, known))
    return ALGORITHMS[algorithm](topology, size_bytes)


def best_algorithm(topology: Topology, size_bytes: float, among: tuple[str, ...] | None = None) -> tuple[str, Cost]:
    """Give the fastest of ``among`` (default: all but in-network reduction, which a switch must offer)."""
    names = among or tuple(name for name in ALGORITHMS if name != "switch")
    return min(((name, allreduce(name, topology, size_bytes)) for name in names), key=lambda each: each[1].time_s)


def ring(topology: Topology, size_bytes: float) -> Cost:
    """Flat ring over all ranks, neighbours in order: a rack boundary is crossed once a direction."""
    ranks, nodes = topology.ranks, topology.nodes
    share = 2 * (ranks - 1) / ranks
    rate = topology.rank_bytes_per_s
    if topology.racks > 1 and not topology.rack_ordered:
        rate = min(rate, topology.node_rate(topology.crossing_share(1)))
    net_steps = 2 * (nodes - 1) if nodes > 1 else 0
    costs = []
    for protocol in _PROTOCOLS:
        steps_s = (2 * (ranks - 1) - net_steps) * protocol.hop_s[topology.link_kind] + net_steps * protocol.net_ring_s
        latency = _latency(topology, protocol.base_ring_s + steps_s)
        costs.append(Cost(latency + share * size_bytes / (rate * protocol.bandwidth_share), latency))
    return min(costs)


def tree(topology: Topology, size_bytes: float) -> Cost:
    """Double binary tree between nodes, a chain within each (NCCL 2.4 and later), pipelined."""
    nodes, local = topology.nodes, topology.local
    doubling = max(0, int(math.log2(max(size_bytes, 1.0))) - 6)
    fill = 1.0 if topology.ideal else _TREE_FILL[min(len(_TREE_FILL) - 1, doubling)]
    rate = topology.link_bytes_per_s
    if nodes > 1:
        rate = min(rate, topology.node_rate(_tree_crossing_share(topology)))
    costs = []
    for protocol in _PROTOCOLS:
        depth_s = (local - 1) * protocol.tree_hop_s[topology.link_kind] + math.log2(nodes) * protocol.net_tree_s
        latency = _latency(topology, protocol.base_tree_s + 2 * depth_s)
        bandwidth = rate * (1.0 if topology.ideal else _TREE_BUS_SHARE) * fill * protocol.bandwidth_share
        costs.append(Cost(latency + 2 * size_bytes / bandwidth, latency))
    return min(costs)


def halving_doubling(topology: Topology, size_bytes: float) -> Cost:
    """Recursive halving, then doubling, nearest partners first; ranks above a power of two fold onto a neighbour."""
    power = 1 << (topology.ranks.bit_length() - 1)
    protocol = _PROTOCOLS[2]
    time_s = latency = _latency(topology, protocol.base_ring_s)
    if power != topology.ranks:
        fold = _exchange(topology, 1, size_bytes, protocol)
        time_s, latency = time_s + 2 * fold.time_s, latency + 2 * fold.latency_s
    distance, piece = 1, size_bytes / 2
    while distance < power:
        step = _exchange(topology, distance, piece, protocol)
        time_s, latency = time_s + 2 * step.time_s, latency + 2 * step.latency_s
        distance, piece = 2 * distance, piece / 2
    return Cost(time_s, latency)


def torus(topology: Topology, size_bytes: float) -> Cost:
    """2-D ring: reduce-scatter along rows, allreduce along columns, all-gather along rows.

    A row is a node where a node has several ranks, and else the factor of the rank count next to its root.
    """
    ranks = topology.ranks
    if topology.nodes > 1 and topology.local > 1 and ranks % topology.ranks_per_node == 0:
        return _two_level(topology, size_bytes, "ring")
    side = max(factor for factor in range(1, math.isqrt(ranks) + 1) if ranks % factor == 0)
    if side == 1:
        return ring(topology, size_bytes)
    protocol = _PROTOCOLS[2]
    hop_s = protocol.hop_s[topology.link_kind] if topology.nodes == 1 else protocol.net_ring_s
    rows, columns = side, ranks // side
    latency = _latency(topology, protocol.base_ring_s + (2 * (rows - 1) + 2 * (columns - 1)) * hop_s)
    share = 2 * (rows - 1) / rows + 2 * (columns - 1) / columns / rows
    return Cost(latency + share * size_bytes / topology.rank_bytes_per_s, latency)


def hierarchical(topology: Topology, size_bytes: float) -> Cost:
    """Reduce-scatter in the node, a tree or ring between nodes on each rank's part, all-gather in the node."""
    return min(_two_level(topology, size_bytes, "ring"), _two_level(topology, size_bytes, "tree"))


def hierarchical_tree(topology: Topology, size_bytes: float) -> Cost:
    """As `hierarchical`, with the tree between nodes: what the 2019 record ran (NCCL 2.4)."""
    return _two_level(topology, size_bytes, "tree")


def in_switch(topology: Topology, size_bytes: float) -> Cost:
    """Reduce in the switches: a node sends its sum once and receives the total once."""
    if topology.nodes == 1:
        return ring(topology, size_bytes)
    protocol = _PROTOCOLS[2]
    depth = 2 * (topology.local - 1) * protocol.tree_hop_s[topology.link_kind] + 2 * protocol.net_ring_s
    latency = _latency(topology, _SWITCH_BASE_S + depth)
    rate = min(topology.link_bytes_per_s, topology.node_rate(0.0))
    return Cost(latency + size_bytes / rate, latency)


def parameter_server(topology: Topology, size_bytes: float, servers: int) -> Cost:
    """Push to and pull from ``servers`` machines, synchronously, each rank its whole gradient."""
    protocol = _PROTOCOLS[2]
    messages_s = topology.ranks / servers * _MESSAGE_S
    latency = _latency(topology, 2 * (protocol.base_ring_s + protocol.net_ring_s + messages_s))
    worker_s = topology.local / topology.node_bytes_per_s
    server_s = topology.ranks / (servers * topology.node_bytes_per_s)
    return Cost(latency + 2 * size_bytes * max(worker_s, server_s), latency)


ALGORITHMS: dict[str, Callable[[Topology, float], Cost]] = {
    "ring": ring,
    "torus": torus,
    "halving-doubling": halving_doubling,
    "tree": tree,
    "hierarchical": hierarchical,
    "hierarchical-tree": hierarchical_tree,
    "switch": in_switch,
}
"""Allreduce algorithms by name."""


def _latency(topology: Topology, seconds: float) -> float:
    return 0.0 if topology.ideal else seconds


def _exchange(topology: Topology, distance: int, size_bytes: float, protocol: _Protocol) -> Cost:
    """Every rank swaps ``size_bytes`` with the rank ``distance`` away; all ranks of a node leave it together or not."""
    if topology.nodes == 1 or distance < topology.local:
        latency = _latency(topology, protocol.hop_s[topology.link_kind])
        return Cost(latency + size_bytes / topology.link_bytes_per_s, latency)
    share = topology.crossing_share(distance / topology.ranks_per_node)
    latency = _latency(topology, protocol.net_ring_s)
    return Cost(latency + size_bytes * topology.local / topology.node_rate(share), latency)


def _two_level(topology: Topology, size_bytes: float, between: str) -> Cost:
    """Combine rings within nodes with ``local`` concurrent reductions between nodes, which share the cards."""
    if topology.nodes == 1:
        return ring(topology, size_bytes)
    local = topology.local
    inner = replace(topology, ranks=local, nodes_per_rack=None)
    time_s, latency = ring(inner, size_bytes) if local > 1 else Cost(0.0, 0.0)
    card = replace(topology, ranks=topology.nodes, ranks_per_node=1, node_bytes_per_s=topology.node_bytes_per_s / local)
    card = replace(card, link_bytes_per_s=max(card.node_bytes_per_s, card.link_bytes_per_s))
    outer = ALGORITHMS[between](card, size_bytes / local)
    return Cost(time_s + outer.time_s, latency + outer.latency_s)


def _tree_crossing_share(topology: Topology) -> float:
    """Share of a binary tree's traffic that leaves its rack: half of its edges have distance 1, a quarter 2, ..."""
    levels = max(1, math.ceil(math.log2(topology.nodes)))
    return sum(topology.crossing_share(2.0**level) / 2.0 ** (level + 1) for level in range(levels))
