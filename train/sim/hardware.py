"""Accelerators as published (families.yaml) and the machine built from them; nothing here is fitted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from configs.load import parse_yaml
from configs.schema import Cluster
from train.sim.topology import Topology

__all__ = [
    "Accelerator",
    "Machine",
    "System",
    "accelerators",
    "find_accelerator",
    "find_system",
    "machine_of_cluster",
]

FAMILIES = Path(__file__).with_name("families.yaml")


@dataclass(frozen=True)
class Accelerator:
    """One product; see families.yaml for the meaning and the unit of each field."""

    name: str
    chip: str
    peak: float
    peak32: float
    memory: float
    cache: float
    units: int
    node: int
    link: float
    link_kind: str
    nics: int
    nic: float
    known: bool = True
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """A machine known by name; what it leaves out is as usual for its accelerator."""

    name: str = ""
    match: tuple[str, ...] = ()
    accelerator: str | None = None
    node: int | None = None
    nics: int | None = None
    nic: float | None = None
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    algorithm: str = "auto"
    boundaries: tuple[int, ...] = ()
    norm_traffic: float | None = None


UNKNOWN = Accelerator("unknown", "unknown", 250e12, 20e12, 1300e9, 30e6, 100, 8, 40e9, "pcie", 4, 20e9, known=False)
"""Stands in for an accelerator that families.yaml does not list: a middling one, predicted with a wide interval."""


@cache
def _catalogue() -> tuple[tuple[Accelerator, ...], tuple[System, ...]]:
    tree: dict[str, list[dict[str, Any]]] = parse_yaml(FAMILIES.read_text(encoding="utf-8"), FAMILIES.name)
    tuples = ("match", "boundaries")

    def frozen(row: dict[str, Any]) -> dict[str, Any]:
        return {key: tuple(value) if key in tuples else value for key, value in row.items()}

    kinds = tuple(Accelerator(**frozen(row)) for row in tree["accelerators"])
    return kinds, tuple(System(**frozen(row)) for row in tree["systems"])


def accelerators() -> tuple[Accelerator, ...]:
    """Give the catalogue, in the order of its file."""
    return _catalogue()[0]


@cache
def find_accelerator(text: str) -> Accelerator:
    """Give the first entry whose pattern fits ``text``, or `UNKNOWN`."""
    return next((each for each in accelerators() if _fits(each.match, text)), UNKNOWN)


@cache
def find_system(text: str) -> System:
    """Give the machine known by this name, or one with nothing special."""
    return next((each for each in _catalogue()[1] if _fits(each.match, text)), System())


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text.lower()) for pattern in patterns)


@dataclass(frozen=True)
class Machine:
    """An accelerator, how many, and the network between them."""

    accelerator: Accelerator
    ranks: int
    ranks_per_node: int
    link_bytes_per_s: float
    nics: int
    nic_bytes_per_s: float
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    half: bool = True

    @property
    def peak(self) -> float:
        """FLOP/s in the precision of the run."""
        return self.accelerator.peak if self.half else self.accelerator.peak32

    @property
    def bytes_per_number(self) -> int:
        """Of an activation or a gradient."""
        return 2 if self.half else 4

    def topology(self, network_efficiency: float) -> Topology:
        """Describe it to a collective; the efficiency is the reached share of the cards' rate."""
        node_rate = max(1, self.nics) * self.nic_bytes_per_s * network_efficiency
        return Topology(
            self.ranks, self.ranks_per_node, self.link_bytes_per_s, node_rate,
            self.accelerator.link_kind, self.nodes_per_rack, self.uplink_share, self.rack_ordered,
        )  # fmt: skip

    def with_ranks(self, ranks: int) -> Machine:
        """The same machine with another number of accelerators."""
        return replace(self, ranks=ranks)


def machine_of_cluster(cluster: Cluster) -> Machine:
    """Read a cluster file; what its node leaves out comes from the catalogue."""
    node, fabric = cluster.node, cluster.fabric
    found = find_accelerator(node.gpu or cluster.name)
    system = find_system(cluster.name)
    return Machine(
        accelerator=found,
        ranks=cluster.world_size,
        ranks_per_node=cluster.ranks_per_node,
        link_bytes_per_s=node.gpu_link_bytes_per_s or found.link,
        nics=node.nics or found.nics,
        nic_bytes_per_s=node.nic_bytes_per_s or found.nic,
        nodes_per_rack=fabric.nodes_per_rack,
        uplink_share=fabric.uplink_share,
        rack_ordered=system.rack_ordered,
        half=cluster.engine.precision == "float16",
    )
