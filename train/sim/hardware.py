"""Accelerators as published (families.yaml), and machines built from them. Nothing here is fitted."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from configs.errors import ConfigError, nearest
from configs.load import parse_yaml
from configs.registry import MOST_BFLOAT16_SUMMANDS
from configs.schema import Cluster
from train.sim.topology import SharedSums, Topology

_PCIE_BYTES_PER_S, _NIC_BYTES_PER_S = 12e9, 3e9
"""Links of a described machine without rates: PCIe of the third generation with 16 lanes, 25 Gb/s Ethernet."""
FAMILIES = Path(__file__).with_name("families.yaml")
Row = TypeVar("Row")


@dataclass(frozen=True)
class Accelerator:
    """One product of the catalogue, a row of families.yaml; of a `Machine`, with the values of its own nodes.

    Attributes:
        name: Product, for example ``A100-SXM-40GB``.
        chip: Generation; all products of a chip share a calibration.
        peak: Dense 16-bit matrix FLOP/s.
        peak32: Float32 FLOP/s without matrix units.
        memory: Memory bandwidth, bytes/s.
        cache: Bytes of the last-level cache.
        units: Multiprocessors, or the chip's equivalent.
        node: Accelerators of a full node.
        link: Bytes/s of one accelerator to the others in its node, in one direction.
        link_kind: ``nvlink``, ``pcie``, ``ethernet``, ``torus`` or ``memory``; decides the latency of a hop.
        nics: Network ports of a node.
        nic: Bytes/s of one network port, in one direction.
        tf32: Dense TF32 FLOP/s of the matrix units. If None, they have no TF32.
        matrix_units: Whether 16-bit numbers are multiplied in matrix units.
        compiler: Compiler of the programs that ran on the product, if it is not NVIDIA's: ``xla``, ``synapse``,
            ``mindspore`` or ``rocm``.
        match: Patterns of which one must occur in an accelerator's description.
    """

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
    tf32: float | None = None
    matrix_units: bool = True
    compiler: str = ""
    match: tuple[str, ...] = ()


@dataclass(frozen=True)
class System:
    """A system known by name that differs from the usual one of its accelerator.

    Attributes:
        name: For people only; accelerator likewise.
        match: Patterns of which one must occur in ``round submitter system``, or in the name of a cluster file.
        node: Accelerators of a node. If None, that of the accelerator; link likewise.
        nics: Network ports of a node. If None, those of the accelerator; nic, the bytes/s of one port, likewise.
        nodes_per_rack: See `train.sim.topology.Topology`; uplink_share and rack_ordered likewise.
        algorithm: Allreduce that the system's software used.
        boundaries: Tensors in each bucket of the system's software, last layer first. If empty, it is not known.
        norm_traffic: See `train.sim.software.Software`. If None, the usual value of the software.
    """

    name: str = ""
    match: tuple[str, ...] = ()
    accelerator: str | None = None
    node: int | None = None
    link: float | None = None
    nics: int | None = None
    nic: float | None = None
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    algorithm: str = "auto"
    boundaries: tuple[int, ...] = ()
    norm_traffic: float | None = None


def read_table(path: Path, name: str, row_type: type[Row]) -> tuple[Row, ...]:
    """Return the rows of a table of a YAML file, in their order; lists in them become tuples."""
    tree: dict[str, list[dict[str, Any]]] = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    return tuple(
        row_type(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        for row in tree[name]
    )


@cache
def accelerators() -> tuple[Accelerator, ...]:
    """Return the accelerators of families.yaml in the order of the file."""
    return read_table(FAMILIES, "accelerators", Accelerator)


@cache
def find_accelerator(*texts: str, key: str = "accelerator") -> Accelerator:
    """Return the first accelerator with a pattern that occurs in one of the texts, which are tried in turn.

    Raises:
        ConfigError: families.yaml has no such accelerator. It names ``key``, the first text and the nearest product.
    """
    for text in texts:
        for each in accelerators():
            if is_named(each.match, text):
                return each
    hint = nearest(texts[0], {each.name for each in accelerators()}) if texts[0] else "for example V100-SXM2-16GB"
    remedy = f"{hint}, or describe it by its data sheet in node.accelerator of the cluster file (./run.sh keys node)"
    raise ConfigError(key, texts[0] or None, "an accelerator of train/sim/families.yaml", remedy)


@cache
def _systems() -> tuple[System, ...]:
    return read_table(FAMILIES, "systems", System)


def find_system(text: str) -> System:
    """Return the first system with a pattern that occurs in ``text``, or a usual one."""
    return next((one for one in _systems() if any(re.search(each, text.lower()) for each in one.match)), System())


def is_named(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether a pattern stands in ``text`` as words of its own: GH200 is no H200, and A1000 is no A100."""
    whole = [pattern.replace(".*", "(?![0-9]).*", 1) for pattern in patterns]
    return any(re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text.lower()) for pattern in whole)


@dataclass(frozen=True)
class Machine:
    """Accelerators of one product, and the network between them.

    Attributes:
        accelerator: The product, with the links of this machine's nodes.
        ranks: Number of accelerators; each one is a rank.
        nodes_per_rack: See `train.sim.topology.Topology`; uplink_share, rack_ordered and sums likewise.
        half: Whether the run computes in 16 bits. If False, it computes in float32.
        bfloat16: Whether the 16 bits are bfloat16, which many ranks sum in float32.
        tf32: Whether float32 is multiplied as TF32 where the matrix units can do that, as cuDNN does by default.
    """

    accelerator: Accelerator
    ranks: int
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    half: bool = True
    bfloat16: bool = False
    tf32: bool = True
    sums: SharedSums | None = None

    @property
    def nodes(self) -> int:
        """Nodes that hold the ranks; the last node may be partly filled."""
        return -(-self.ranks // self.accelerator.node)

    @property
    def peak(self) -> float:
        """Peak FLOP/s of one accelerator in the precision of the run."""
        product = self.accelerator
        if self.half:
            return product.peak
        return product.tf32 if product.tf32 and self.tf32 else product.peak32

    @property
    def uses_matrix_units(self) -> bool:
        """Whether matrix units multiply. If False, the general float units do."""
        return self.accelerator.matrix_units if self.half else bool(self.accelerator.tf32 and self.tf32)

    @property
    def bytes_per_number(self) -> int:
        """Bytes of one number of an activation."""
        return 2 if self.half else 4

    @property
    def bytes_per_sum(self) -> int:
        """Bytes of one number of a gradient, as the ranks sum it."""
        return 4 if self.bfloat16 and self.ranks > MOST_BFLOAT16_SUMMANDS else self.bytes_per_number

    def topology(self, network_efficiency: float) -> Topology:
        """Return the machine as a collective sees it.

        Args:
            network_efficiency: Share of the network cards' rate that is reached.
        """
        product = self.accelerator
        return Topology(
            ranks=self.ranks,
            ranks_per_node=product.node,
            link_bytes_per_s=product.link,
            node_bytes_per_s=max(1, product.nics) * product.nic * network_efficiency,
            link_kind=product.link_kind,
            nodes_per_rack=self.nodes_per_rack,
            uplink_share=self.uplink_share,
            rack_ordered=self.rack_ordered,
            sums=self.sums,
        )


def machine_of_cluster(cluster: Cluster) -> Machine:
    """Return the machine that a cluster file describes; the catalogue gives what the node block leaves out.

    Raises:
        ConfigError: Neither the catalogue nor the cluster file describes the accelerator.
    """
    node, fabric = cluster.node, cluster.fabric
    product = _described_accelerator(cluster) or find_accelerator(node.gpu or "", key="node.gpu")
    return Machine(
        accelerator=replace(
            product,
            node=cluster.ranks_per_node,
            link=node.gpu_link_bytes_per_s or product.link,
            nics=node.nics or product.nics,
            nic=node.nic_bytes_per_s or product.nic,
        ),
        ranks=cluster.world_size,
        nodes_per_rack=fabric.nodes_per_rack,
        uplink_share=fabric.uplink_share,
        rack_ordered=find_system(cluster.name).rack_ordered,
        half=cluster.engine.precision != "float32",
        bfloat16=cluster.engine.precision == "bfloat16",
        # PyTorch's engine switches TF32 off.
        tf32=str(cluster.environment.get("NVIDIA_TF32_OVERRIDE", "")) != "0" and cluster.engine.name != "torch",
    )


def _described_accelerator(cluster: Cluster) -> Accelerator | None:
    """Return the accelerator of the data sheet in the cluster file, or None if the file has none.

    Its chip is the described name, so that no interval of a measured chip applies to it.
    """
    node = cluster.node
    sheet = node.accelerator
    if sheet is None:
        return None
    name = node.gpu or cluster.name
    return Accelerator(
        name=name,
        chip=f"described: {name}",
        peak=sheet.float16_flops,
        peak32=sheet.float32_flops,
        tf32=sheet.tf32_flops,
        memory=sheet.memory_bytes_per_s,
        cache=sheet.cache_bytes,
        units=sheet.units,
        node=cluster.ranks_per_node,
        link=_PCIE_BYTES_PER_S,
        link_kind="pcie" if node.gpu_link_bytes_per_s is None else sheet.link,
        nics=1,
        nic=_NIC_BYTES_PER_S,
        matrix_units=sheet.has_matrix_units,
    )
