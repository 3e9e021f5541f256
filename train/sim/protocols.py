"""NCCL's three ways to move a chunk, with their latencies by link.

*Source*: NCCL ``src/graph/tuning.cc``. Imports no framework.
"""

from typing import NamedTuple


class Protocol(NamedTuple):
    """One of NCCL's three ways to move a chunk.

    Attributes:
        base_ring_s: Latency of a ring before its first step.
        base_tree_s: Latency of a tree before its first step.
        hop_s: Kind of link -> latency of a ring's step inside a node.
        tree_hop_s: Kind of link -> latency of a tree's step inside a node.
        net_ring_s: Latency of a ring's step between nodes.
        net_tree_s: Latency of a tree's step between nodes.
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


_LOW_LATENCY = Protocol(  # NCCL's LL
    base_ring_s=6.6e-6,
    base_tree_s=6.8e-6,
    hop_s=_hops(0.6e-6, 1.0e-6),
    tree_hop_s=_hops(0.6e-6, 1.0e-6),
    net_ring_s=2.7e-6,
    net_tree_s=5.0e-6,
    bandwidth_share=0.5,
)
_LOW_LATENCY_128 = Protocol(  # NCCL's LL128
    base_ring_s=14e-6,
    base_tree_s=14e-6,
    hop_s=_hops(1.9e-6, 2.5e-6),
    tree_hop_s=_hops(1.25e-6, 1.9e-6),
    net_ring_s=4.0e-6,
    net_tree_s=8.5e-6,
    bandwidth_share=0.92,
)
SIMPLE = Protocol(  # NCCL's Simple
    base_ring_s=8.4e-6,
    base_tree_s=8.4e-6,
    hop_s=_hops(3.4e-6, 5.7e-6),
    tree_hop_s=_hops(4.0e-6, 4.0e-6),
    net_ring_s=14e-6,
    net_tree_s=14e-6,
    bandwidth_share=1.0,
)
PROTOCOLS = (_LOW_LATENCY, _LOW_LATENCY_128, SIMPLE)
"""All protocols; the fastest one for the size is taken."""
