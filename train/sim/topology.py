"""A described machine as a collective sees it: ranks in nodes in racks, rates of links, and which links are shared."""

import math
from dataclasses import dataclass

_ROUTED_SHARE = 0.69
"""Share of the uplinks' bandwidth that is reached if every node sends through them: routes collide, so that some cables
carry two flows while others carry none. *Source*: effective bisection of large clusters, 0.55 to 0.60 of the full
bisection with static routes (Hoefler, Schneider and Lumsdaine, Cluster 2008, doi 10.1109/CLUSTR.2008.4663762), and 0.38
static, 0.77 adaptive on 512 nodes (Geoffray and Hoefler, Hot Interconnects 2008). The value within this range was
chosen with the 2019 record in view."""


@dataclass(frozen=True)
class SharedSums:
    """How fast the ranks of one machine sum gradients in memory that they share (`train.comm.shared_sum`).

    Attributes:
        bytes_per_s: Bytes that the thread of one rank reads and writes.
        bucket_s: Time of a bucket without bytes: messages between the threads, and their waking.
        cores: Cores of the machine, on which the ranks compute, too.
    """

    bytes_per_s: float
    bucket_s: float
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
