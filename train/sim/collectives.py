"""The time of an allreduce on a described topology, by algorithm, from latency, protocol, bandwidth, shared uplinks.

*Sources*: ring, Patarasuk and Yuan, JPDC 69(2) 2009; halving-doubling, Thakur, Rabenseifner and Gropp, IJHPCA 19(1)
2005; double binary tree, NCCL ``src/graph/tuning.cc``; 2-D torus, arXiv:1811.05233. Imports no framework.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from configs.errors import ConfigError, nearest
from train.sim.protocols import PROTOCOLS, SIMPLE, Protocol
from train.sim.topology import Topology

SHARED_MEMORY = "shared-memory"
"""The sum that the ranks of one machine make in memory that they share. Only a machine with `Topology.sums` has it."""


class Cost(NamedTuple):
    """The seconds of one allreduce, and the part of them that would remain at infinite bandwidth."""

    time_s: float
    latency_s: float


_SWITCH_BASE_S = 30e-6
"""Latency of a reduction in the switches (CollNet, SHARP) before its first step."""
_MESSAGE_S = 1e-6
"""A host's work for one message: NCCL's overhead of a network post. A parameter server gets a message of each rank."""
_TREE_BUS_SHARE = 0.92
_TREE_FILL = (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9)
"""Share of a tree's bandwidth that NCCL reaches, from 64 bytes on; each entry is for twice the bytes of the last."""


def allreduce(algorithm: str, topology: Topology, size_bytes: float) -> Cost:
    """Predict the time of one allreduce.

    Args:
        algorithm: A key of `ALGORITHMS`; ``auto`` for the faster of ring and tree, between which NCCL chooses;
            ``ps:K`` for a parameter server of K machines; or `SHARED_MEMORY`.
        topology: The machine.
        size_bytes: Size of one rank's buffer.

    Raises:
        ConfigError: ``algorithm`` is none of these.
    """
    if topology.ranks == 1 or size_bytes <= 0:
        return Cost(0.0, 0.0)
    if algorithm == "auto":
        return min(ring(topology, size_bytes), tree(topology, size_bytes))
    if algorithm == SHARED_MEMORY:
        return shared_memory(topology, size_bytes)
    if algorithm.startswith("ps:") and algorithm[3:].isdecimal() and int(algorithm[3:]):
        return parameter_server(topology, size_bytes, int(algorithm[3:]))
    if algorithm not in ALGORITHMS:
        known = ["auto", "ps:8", *ALGORITHMS]
        raise ConfigError("algorithm", algorithm, ", ".join(known), nearest(algorithm, known))
    return ALGORITHMS[algorithm](topology, size_bytes)


def best_algorithm(topology: Topology, size_bytes: float, among: tuple[str, ...] | None = None) -> tuple[str, Cost]:
    """Return the fastest algorithm and its cost.

    Args:
        topology: The machine.
        size_bytes: Size of one rank's buffer.
        among: Names to choose from. If None, all algorithms except ``switch``, which needs special switches, and also
            `SHARED_MEMORY` where the ranks share memory.
    """
    names = among or tuple(name for name in ALGORITHMS if name != "switch")
    if among is None and topology.sums is not None and topology.nodes == 1:
        names = (*names, SHARED_MEMORY)
    return min(((name, allreduce(name, topology, size_bytes)) for name in names), key=lambda each: each[1].time_s)


def ring(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of one ring over all ranks in their order.

    With ranks numbered rack by rack, the ring leaves each rack once, which slows it only if the rack's uplinks carry
    less than one node sends.
    """
    ranks, nodes = topology.ranks, topology.nodes
    share = 2 * (ranks - 1) / ranks
    rate = topology.rank_bytes_per_s
    if topology.racks > 1:
        rate = min(rate, topology.node_rate(topology.crossing_share(1)))
    net_steps = 2 * (nodes - 1) if nodes > 1 else 0
    costs = []
    for protocol in PROTOCOLS:
        steps_s = (2 * (ranks - 1) - net_steps) * protocol.hop_s[topology.link_kind] + net_steps * protocol.net_ring_s
        latency = _latency(topology, protocol.base_ring_s + steps_s)
        costs.append(Cost(latency + share * size_bytes / (rate * protocol.bandwidth_share), latency))
    return min(costs)


def tree(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of a pipelined double binary tree between nodes, with a chain in each node (NCCL from 2.4 on)."""
    nodes, local = topology.nodes, topology.local
    doubling = max(0, int(math.log2(max(size_bytes, 1.0))) - 6)
    fill = 1.0 if topology.ideal else _TREE_FILL[min(len(_TREE_FILL) - 1, doubling)]
    rate = topology.link_bytes_per_s
    if nodes > 1:
        rate = min(rate, topology.node_rate(_tree_crossing_share(topology)))
    costs = []
    for protocol in PROTOCOLS:
        depth_s = (local - 1) * protocol.tree_hop_s[topology.link_kind] + math.log2(nodes) * protocol.net_tree_s
        latency = _latency(topology, protocol.base_tree_s + 2 * depth_s)
        bandwidth = rate * (1.0 if topology.ideal else _TREE_BUS_SHARE) * fill * protocol.bandwidth_share
        costs.append(Cost(latency + 2 * size_bytes / bandwidth, latency))
    return min(costs)


def halving_doubling(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of recursive halving, then doubling, with the nearest partners first.

    The ranks above a power of two first send their buffers to a neighbour, and receive the sums in the end.
    """
    power = 1 << (topology.ranks.bit_length() - 1)
    protocol = SIMPLE
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
    """Return the cost of a 2-D ring: reduce-scatter along rows, allreduce along columns, all-gather along rows.

    If a node has several ranks, a row is a node. Otherwise the length of a row is the largest factor of the number of
    ranks that is at most the square root of this number.
    """
    ranks = topology.ranks
    if topology.nodes > 1 and topology.local > 1 and ranks % topology.ranks_per_node == 0:
        return _two_level(topology, size_bytes, "ring")
    side = max(factor for factor in range(1, math.isqrt(ranks) + 1) if ranks % factor == 0)
    if side == 1:
        return ring(topology, size_bytes)
    protocol = SIMPLE
    hop_s = protocol.hop_s[topology.link_kind] if topology.nodes == 1 else protocol.net_ring_s
    rows, columns = side, ranks // side
    latency = _latency(topology, protocol.base_ring_s + (2 * (rows - 1) + 2 * (columns - 1)) * hop_s)
    share = 2 * (rows - 1) / rows + 2 * (columns - 1) / columns / rows
    return Cost(latency + share * size_bytes / topology.rank_bytes_per_s, latency)


def hierarchical(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of reduce-scatter in the node, tree or ring between nodes on each rank's part, all-gather.

    The faster of tree and ring is taken.
    """
    return min(_two_level(topology, size_bytes, "ring"), _two_level(topology, size_bytes, "tree"))


def hierarchical_tree(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of `hierarchical` with the tree between nodes, which the 2019 record used (NCCL 2.4)."""
    return _two_level(topology, size_bytes, "tree")


def in_switch(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of a reduction in the switches: each node sends its sum once and receives the total once."""
    if topology.nodes == 1:
        return ring(topology, size_bytes)
    protocol = SIMPLE
    depth = 2 * (topology.local - 1) * protocol.tree_hop_s[topology.link_kind] + 2 * protocol.net_ring_s
    latency = _latency(topology, _SWITCH_BASE_S + depth)
    rate = min(topology.link_bytes_per_s, topology.node_rate(0.0))
    return Cost(latency + size_bytes / rate, latency)


def parameter_server(topology: Topology, size_bytes: float, servers: int) -> Cost:
    """Return the cost if each rank sends its whole gradient to ``servers`` machines and receives the whole sum."""
    protocol = SIMPLE
    messages_s = topology.ranks / servers * _MESSAGE_S
    latency = _latency(topology, 2 * (protocol.base_ring_s + protocol.net_ring_s + messages_s))
    worker_s = topology.local / topology.node_bytes_per_s
    server_s = topology.ranks / (servers * topology.node_bytes_per_s)
    return Cost(latency + 2 * size_bytes * max(worker_s, server_s), latency)


def shared_memory(topology: Topology, size_bytes: float) -> Cost:
    """Return the cost of a sum in shared memory: each rank gives the others' shards, adds its own, takes the sums.

    Of p ranks, each reads and writes (p - 1) / p of the buffer twice, to give and to take; to add, it reads p shards of
    1 / p and writes two. More ranks than cores take turns.

    Raises:
        ConfigError: The ranks are on several machines, or share no memory.
    """
    if topology.sums is None or topology.nodes > 1:
        allowed = "CPU ranks of one machine that share memory"
        raise ConfigError("algorithm", SHARED_MEMORY, allowed, "set cluster.communication.kind=horovod")
    ranks, sums = topology.ranks, topology.sums
    moved = (4 * (ranks - 1) + ranks + 2) / ranks
    turns = max(1.0, ranks / sums.cores)
    latency = _latency(topology, turns * sums.bucket_s)
    return Cost(latency + turns * moved * size_bytes / sums.bytes_per_s, latency)


ALGORITHMS: dict[str, Callable[[Topology, float], Cost]] = {
    "ring": ring,
    "torus": torus,
    "halving-doubling": halving_doubling,
    "tree": tree,
    "hierarchical": hierarchical,
    "hierarchical-tree": hierarchical_tree,
    "switch": in_switch,
}
"""Allreduce algorithms, name -> function of topology and bytes."""


def _latency(topology: Topology, seconds: float) -> float:
    return 0.0 if topology.ideal else seconds


def _exchange(topology: Topology, distance: int, size_bytes: float, protocol: Protocol) -> Cost:
    """Return the cost if every rank swaps ``size_bytes`` with the rank ``distance`` away.

    The partners of a node's ranks are either all in this node or all in other nodes.
    """
    if topology.nodes == 1 or distance < topology.local:
        latency = _latency(topology, protocol.hop_s[topology.link_kind])
        return Cost(latency + size_bytes / topology.link_bytes_per_s, latency)
    share = topology.crossing_share(distance / topology.ranks_per_node)
    latency = _latency(topology, protocol.net_ring_s)
    return Cost(latency + size_bytes * topology.local / topology.node_rate(share), latency)


def _two_level(topology: Topology, size_bytes: float, between: str) -> Cost:
    """Return the cost of rings in the nodes, with one reduction for each local rank between the nodes.

    The reductions between the nodes run at the same time and share the network cards.
    """
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
    """Return the share of a binary tree's traffic that leaves its rack.

    Half of the tree's edges connect nodes at distance 1, a quarter at distance 2, and so on.
    """
    levels = max(1, math.ceil(math.log2(topology.nodes)))
    return sum(topology.crossing_share(2.0**level) / 2.0 ** (level + 1) for level in range(levels))
