"""A machine as a collective sees it, and the time of an allreduce on it: latency, protocol, bandwidth, shared uplinks.

*Sources*: ring, Patarasuk and Yuan, JPDC 69(2) 2009; halving-doubling, Thakur, Rabenseifner and Gropp, IJHPCA 19(1)
2005; double binary tree, NCCL ``src/graph/tuning.cc``; 2-D torus, arXiv:1811.05233. Imports no framework.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from configs.errors import ConfigError, nearest

_ROUTED_SHARE = 0.69
"""Share of the uplinks' bandwidth that is reached if every node sends through them: routes collide, so that some cables
carry two flows while others carry none. *Source*: effective bisection of large clusters, 0.55 to 0.60 of the full
bisection with static routes (Hoefler, Schneider and Lumsdaine, Cluster 2008, doi 10.1109/CLUSTR.2008.4663762), and 0.38
static, 0.77 adaptive on 512 nodes (Geoffray and Hoefler, Hot Interconnects 2008). The value within this range was
chosen with the 2019 record in view."""
SHARED_MEMORY = "shared-memory"
"""The sum that the ranks of one machine make in memory that they share. Only a machine with `Topology.sums` has it."""


@dataclass(frozen=True)
class SharedSums:
    """How fast the ranks of one machine sum gradients in memory that they share (`train.comm.shared_sum`).

    Attributes:
        bytes_per_s: Bytes that the thread of one rank reads and writes.
        cores: Cores of the machine, on which the ranks compute, too.
    """

    bytes_per_s: float
    cores: float


@dataclass(frozen=True)
class Topology:
    """Ranks in nodes in racks. Rates are bytes/s in one direction.

    Args:
        ranks: Accelerators that take part.
        ranks_per_node: Accelerators of a full node; the last node may be partly filled.
        link_bytes_per_s: Rate of one accelerator to the others in its node.
        node_bytes_per_s: Rate of all network cards of one node together.
        link_kind: ``nvlink`` or ``torus`` (direct links), ``pcie``, ``ethernet`` or ``memory``; decides the latency of
            a hop.
        nodes_per_rack: Nodes that share uplinks. If None, all nodes are on one switch.
        uplink_share: Uplink bandwidth of a rack over the sum of its nodes' network bandwidth, in (0, 1].
        rack_ordered: Whether ranks are numbered rack by rack. If False, placement is arbitrary, and ranks with
            neighbouring numbers are usually in different racks.
        sums: Sums in shared memory. If None, the ranks share none.
    """

    ranks: int
    ranks_per_node: int
    link_bytes_per_s: float
    node_bytes_per_s: float
    link_kind: str = "nvlink"
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    sums: SharedSums | None = None

    @property
    def nodes(self) -> int:
        """Nodes that hold the ranks."""
        return math.ceil(self.ranks / self.ranks_per_node)

    @property
    def local(self) -> int:
        """Ranks of one node that take part."""
        return min(self.ranks, self.ranks_per_node)

    @property
    def rank_bytes_per_s(self) -> float:
        """Rate of a flat ring: the rate of the link or, with several nodes, the slower of the link and the cards."""
        if self.nodes == 1:
            return self.link_bytes_per_s
        return min(self.link_bytes_per_s, self.node_bytes_per_s)

    @property
    def racks(self) -> int:
        """Racks that hold the nodes."""
        return math.ceil(self.nodes / self.nodes_per_rack) if self.nodes_per_rack else 1

    def crossing_share(self, distance: float) -> float:
        """Return the share of exchanges that leave their rack, between nodes ``distance`` apart in rank order."""
        if self.racks == 1 or self.nodes_per_rack is None:
            return 0.0
        if not self.rack_ordered:
            return 1 - 1 / self.racks
        return min(1.0, distance / self.nodes_per_rack)

    def node_rate(self, crossing_share: float) -> float:
        """Return the bytes/s of a node if ``crossing_share`` of every node's traffic goes through the uplinks."""
        if crossing_share <= 0:
            return self.node_bytes_per_s
        routes = 1.0 if self.rack_ordered else _ROUTED_SHARE
        return self.node_bytes_per_s * min(1.0, self.uplink_share * routes / crossing_share)


class _Protocol(NamedTuple):
    """One of NCCL's three ways to move a chunk, with its latencies (NCCL ``src/graph/tuning.cc``).

    Attributes:
        base_ring_s: Latency of a ring before its first step; ``base_tree_s`` that of a tree.
        hop_s: Kind of link -> latency of a ring's step inside a node; ``tree_hop_s`` that of a tree's step.
        net_ring_s: Latency of a ring's step between nodes; ``net_tree_s`` that of a tree's step.
        bandwidth_share: Share of the bandwidth that carries data.
    """

    base_ring_s: float
    base_tree_s: float
    hop_s: dict[str, float]
    tree_hop_s: dict[str, float]
    net_ring_s: float
    net_tree_s: float
    bandwidth_share: float


def _hops(nvlink: float, pcie: float) -> dict[str, float]:
    return {"nvlink": nvlink, "torus": nvlink, "pcie": pcie, "ethernet": 3 * pcie, "memory": 10 * pcie}


_SIMPLE = _Protocol(8.4e-6, 8.4e-6, _hops(3.4e-6, 5.7e-6), _hops(4.0e-6, 4.0e-6), 14e-6, 14e-6, 1.0)
_PROTOCOLS = (
    _Protocol(6.6e-6, 6.8e-6, _hops(0.6e-6, 1.0e-6), _hops(0.6e-6, 1.0e-6), 2.7e-6, 5.0e-6, 0.5),
    _Protocol(14e-6, 14e-6, _hops(1.9e-6, 2.5e-6), _hops(1.25e-6, 1.9e-6), 4.0e-6, 8.5e-6, 0.92),
    _SIMPLE,
)
"""LL, LL128 and Simple; the fastest one for the size is taken."""

_SUM_BUCKET_S = 2e-4
"""Time of a bucket of a few bytes in shared memory: messages between the threads, and their waking; measured on two
cores, and assumed everywhere."""
_MESSAGE_S = 1e-6
"""A host's work for one message: NCCL's overhead of a network post. A parameter server gets a message of each rank."""
_TREE_BUS_SHARE = 0.92
_TREE_FILL = (0.9,) * 7 + (0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9)
"""Share of a tree's bandwidth that NCCL reaches, from 64 bytes on; each entry is for twice the bytes of the last."""


def allreduce(algorithm: str, topology: Topology, size_bytes: float) -> float:
    """Return the predicted seconds of one allreduce.

    Args:
        algorithm: A key of `ALGORITHMS`; ``auto`` for the faster of ring and tree, between which NCCL chooses;
            ``ps:K`` for a parameter server of K machines; or `SHARED_MEMORY`.
        topology: The machine.
        size_bytes: Size of one rank's buffer.

    Raises:
        ConfigError: ``algorithm`` is none of these.
    """
    if topology.ranks == 1 or size_bytes <= 0:
        return 0.0
    if algorithm == "auto":
        return min(ring(topology, size_bytes), tree(topology, size_bytes))
    if algorithm == SHARED_MEMORY:
        return shared_memory(topology, size_bytes)
    check_algorithm("algorithm", algorithm)
    if algorithm in ALGORITHMS:
        return ALGORITHMS[algorithm](topology, size_bytes)
    return parameter_server(topology, size_bytes, int(algorithm.removeprefix("ps:")))


def check_algorithm(key: str, name: str) -> None:
    """Raise `ConfigError`, which names ``key``, if ``name`` is no algorithm that a user may ask for."""
    if name not in (*ALGORITHMS, "auto") and not re.fullmatch("ps:0*[1-9][0-9]*", name):
        known = (*ALGORITHMS, "auto", "ps:SERVERS")
        raise ConfigError(key, name, f"one of {', '.join(known)}", nearest(name, known))


def ring(topology: Topology, size_bytes: float) -> float:
    """Return the seconds of one ring over all ranks in their order.

    With ranks numbered rack by rack, the ring leaves each rack once, which slows it only if the rack's uplinks carry
    less than one node sends.
    """
    ranks, nodes = topology.ranks, topology.nodes
    share = 2 * (ranks - 1) / ranks
    rate = topology.rank_bytes_per_s
    if topology.racks > 1:
        rate = min(rate, topology.node_rate(topology.crossing_share(1)))
    net_steps = 2 * (nodes - 1) if nodes > 1 else 0
    times = []
    for protocol in _PROTOCOLS:
        steps_s = (2 * (ranks - 1) - net_steps) * protocol.hop_s[topology.link_kind] + net_steps * protocol.net_ring_s
        latency_s = protocol.base_ring_s + steps_s
        times.append(latency_s + share * size_bytes / (rate * protocol.bandwidth_share))
    return min(times)


def tree(topology: Topology, size_bytes: float) -> float:
    """Return the seconds of a pipelined double binary tree between nodes, with a chain in each node (NCCL from 2.4)."""
    nodes, local = topology.nodes, topology.local
    doubling = max(0, int(math.log2(max(size_bytes, 1.0))) - 6)
    fill = _TREE_FILL[min(len(_TREE_FILL) - 1, doubling)]
    rate = topology.link_bytes_per_s
    if nodes > 1:
        rate = min(rate, topology.node_rate(_tree_crossing_share(topology)))
    times = []
    for protocol in _PROTOCOLS:
        depth_s = (local - 1) * protocol.tree_hop_s[topology.link_kind] + math.log2(nodes) * protocol.net_tree_s
        latency_s = protocol.base_tree_s + 2 * depth_s
        times.append(latency_s + 2 * size_bytes / (rate * _TREE_BUS_SHARE * fill * protocol.bandwidth_share))
    return min(times)


def halving_doubling(topology: Topology, size_bytes: float) -> float:
    """Return the seconds of recursive halving, then doubling, with the nearest partners first.

    The ranks above a power of two first send their buffers to a neighbour, and receive the sums in the end.
    """
    power = 1 << (topology.ranks.bit_length() - 1)
    time_s = _SIMPLE.base_ring_s
    if power != topology.ranks:
        time_s += 2 * _exchange(topology, 1, size_bytes)
    distance, piece = 1, size_bytes / 2
    while distance < power:
        time_s += 2 * _exchange(topology, distance, piece)
        distance, piece = 2 * distance, piece / 2
    return time_s


def torus(topology: Topology, size_bytes: float) -> float:
    """Return the seconds of a 2-D ring: reduce-scatter along rows, allreduce along columns, all-gather along rows.

    If a node has several ranks, a row is a node. Otherwise the length of a row is the largest factor of the number of
    ranks that is at most the square root of this number.
    """
    ranks = topology.ranks
    if topology.nodes > 1 and topology.local > 1 and ranks % topology.ranks_per_node == 0:
        return two_level(topology, size_bytes, ring)
    rows = max(factor for factor in range(1, math.isqrt(ranks) + 1) if ranks % factor == 0)
    if rows == 1:
        return ring(topology, size_bytes)
    columns = ranks // rows
    hop_s = _SIMPLE.hop_s[topology.link_kind] if topology.nodes == 1 else _SIMPLE.net_ring_s
    latency_s = _SIMPLE.base_ring_s + (2 * (rows - 1) + 2 * (columns - 1)) * hop_s
    share = 2 * (rows - 1) / rows + 2 * (columns - 1) / columns / rows
    return latency_s + share * size_bytes / topology.rank_bytes_per_s


def two_level(topology: Topology, size_bytes: float, between: Callable[[Topology, float], float]) -> float:
    """Return the seconds of reduce-scatter in the node, a reduction of each rank's part between nodes, all-gather.

    The reductions between the nodes run at the same time and share the network cards.
    """
    if topology.nodes == 1:
        return ring(topology, size_bytes)
    local = topology.local
    inner_s = ring(replace(topology, ranks=local, nodes_per_rack=None), size_bytes) if local > 1 else 0.0
    card = replace(topology, ranks=topology.nodes, ranks_per_node=1, node_bytes_per_s=topology.node_bytes_per_s / local)
    card = replace(card, link_bytes_per_s=max(card.node_bytes_per_s, card.link_bytes_per_s))
    return inner_s + between(card, size_bytes / local)


def parameter_server(topology: Topology, size_bytes: float, servers: int) -> float:
    """Return the seconds if each rank sends its whole gradient to ``servers`` machines and receives the whole sum."""
    messages_s = topology.ranks / servers * _MESSAGE_S
    latency_s = 2 * (_SIMPLE.base_ring_s + _SIMPLE.net_ring_s + messages_s)
    worker_s = topology.local / topology.node_bytes_per_s
    server_s = topology.ranks / (servers * topology.node_bytes_per_s)
    return latency_s + 2 * size_bytes * max(worker_s, server_s)


def shared_memory(topology: Topology, size_bytes: float) -> float:
    """Return the seconds of a sum in shared memory: each rank gives the others' shards, adds its own, takes the sums.

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
    return turns * _SUM_BUCKET_S + turns * moved * size_bytes / sums.bytes_per_s


ALGORITHMS: dict[str, Callable[[Topology, float], float]] = {
    "ring": ring,
    "torus": torus,
    "halving-doubling": halving_doubling,
    "tree": tree,
    "hierarchical": lambda topology, size: min(two_level(topology, size, between) for between in (ring, tree)),
    "hierarchical-tree": lambda topology, size: two_level(topology, size, tree),
}
"""Allreduce algorithms, name -> function of topology and bytes; the 2019 record used the last one (NCCL 2.4)."""


def _exchange(topology: Topology, distance: int, size_bytes: float) -> float:
    """Return the seconds in which every rank swaps ``size_bytes`` with the rank ``distance`` away.

    The partners of a node's ranks are either all in this node or all in other nodes.
    """
    if topology.nodes == 1 or distance < topology.local:
        return _SIMPLE.hop_s[topology.link_kind] + size_bytes / topology.link_bytes_per_s
    share = topology.crossing_share(distance / topology.ranks_per_node)
    return _SIMPLE.net_ring_s + size_bytes * topology.local / topology.node_rate(share)


def _tree_crossing_share(topology: Topology) -> float:
    """Return the share of a binary tree's traffic that leaves its rack.

    Half of the tree's edges connect nodes at distance 1, a quarter at distance 2, and so on.
    """
    levels = max(1, math.ceil(math.log2(topology.nodes)))
    return sum(topology.crossing_share(2.0**level) / 2.0 ** (level + 1) for level in range(levels))
