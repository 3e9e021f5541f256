"""Accelerators and CPUs as published, or as this machine was measured, and machines built from them.

Nothing here is fitted.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from configs.errors import ConfigError, UserError, nearest
from configs.load import parse_yaml
from configs.registry import MOST_BFLOAT16_SUMMANDS
from configs.schema import Cluster
from train.sim.collectives import SharedSums, Topology

_PCIE_BYTES_PER_S, _NIC_BYTES_PER_S = 12e9, 3e9
"""Links of a described machine without rates: PCIe of the third generation with 16 lanes, 25 Gb/s Ethernet."""
FAMILIES = Path(__file__).with_name("families.yaml")
PROCESSORS = FAMILIES.with_name("processors.yaml")
_PROGRAMS = FAMILIES.with_name("programs.yaml")
_CORE_BYTES_PER_S = 12e9
"""Memory bandwidth that one core can use at most; assumed, from 8 to 15 GB/s of copies on one core of several CPUs."""
_LOOPBACK_BYTES_PER_S = 1.5e9
"""Rate of a local TCP connection between ranks of one node; assumed, 0.6 to 3 GB/s on two-core machines."""
_RATES = ("cores", "flops", "link_bytes_per_s", "memory_bytes_per_s")
"""Keys that a description must have."""
_QUIET = 0.9
"""Smallest share of a core that each measuring process must have had."""
Row = TypeVar("Row")
Product = TypeVar("Product", "Accelerator", SimpleNamespace)


@dataclass(frozen=True)
class Accelerator:
    """A product, a row of families.yaml, which describes the other values; of a `Machine`, with those of its own nodes.

    Attributes:
        memory: Memory bandwidth, bytes/s.
        cache: Bytes of the last-level cache.
        units: Multiprocessors, or the chip's equivalent.
        node: Accelerators of a full node.
        link: Bytes/s of one accelerator to the others in its node, in one direction.
        link_kind: ``nvlink``, ``pcie``, ``ethernet``, ``torus`` or ``memory``; decides the latency of a hop.
        nics: Network ports of a node; ``nic`` is the bytes/s of one, in one direction.
        compiler: ``xla``, ``synapse``, ``mindspore`` or ``rocm``; empty for NVIDIA's programs.
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
    """A system known by name that differs from the usual one of its accelerator, a row of families.yaml.

    Attributes:
        match: Patterns of which one must occur in ``round submitter system``, or in the name of a cluster file.
        node: None if it is as that of the accelerator; link, nics and nic likewise.
        boundaries: Tensors in each bucket of the system's software, last layer first. If empty, it is not known.
        norm_traffic: See `train.sim.step_time.Software`. If None, the usual value of the software.
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


@cache
def read_table(path: Path, name: str, row_type: type[Row]) -> tuple[Row, ...]:
    """Return the rows of a table of a YAML file, in their order; lists in them become tuples."""
    tree: dict[str, list[dict[str, Any]]] = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    return tuple(
        row_type(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        for row in tree[name]
    )


@cache
def program_numbers(section: str) -> dict[str, float]:
    """Return a section of programs.yaml, which says what each number means and where it comes from."""
    numbers: dict[str, float] = parse_yaml(_PROGRAMS.read_text(encoding="utf-8"), _PROGRAMS.name)[section]
    return numbers


def accelerators() -> tuple[Accelerator, ...]:
    """Return the accelerators of families.yaml in the order of the file."""
    return read_table(FAMILIES, "accelerators", Accelerator)


@cache
def find_accelerator(*texts: str, key: str = "accelerator") -> Accelerator:
    """Return the first accelerator with a pattern that occurs in one of the texts, which are tried in turn.

    Raises:
        ConfigError: families.yaml has no such accelerator. It names ``key``, the first text and the nearest product.
    """
    remedy = ", or describe it by its data sheet in node.accelerator of the cluster file (./run.sh keys node)"
    return _find(accelerators(), texts, key, f"an accelerator of train/sim/{FAMILIES.name}", remedy)


def _find(products: Sequence[Product], texts: Sequence[str], key: str, allowed: str, remedy: str) -> Product:
    for text in texts:
        for each in products:
            if _is_named(each.match, text):
                return each
    hint = nearest(texts[0], {each.name for each in products}) if texts[0] else "for example V100-SXM2-16GB"
    raise ConfigError(key, texts[0] or None, allowed, f"{hint}{remedy}")


def _is_named(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether a pattern stands in ``text`` as words of its own: GH200 is no H200, and A1000 is no A100."""
    whole = [pattern.replace(".*", "(?![0-9]).*", 1) for pattern in patterns]
    return any(re.search(rf"(?<![a-z0-9])(?:{pattern})(?![0-9])", text.lower()) for pattern in whole)


def find_system(text: str) -> System:
    """Return the first system with a pattern that occurs in ``text``, or a usual one."""
    systems: tuple[System, ...] = read_table(FAMILIES, "systems", System)
    return next((one for one in systems if any(re.search(each, text.lower()) for each in one.match)), System())


@dataclass(frozen=True)
class Machine:
    """Accelerators of one product, and the network between them.

    Attributes:
        accelerator: The product, with the links of this machine's nodes.
        ranks: Number of accelerators; each one is a rank.
        nodes_per_rack: See `train.sim.collectives.Topology`; uplink_share, rack_ordered and sums likewise.
        half: Whether the run computes in 16 bits. If False, it computes in float32.
        bfloat16: Whether the 16 bits are bfloat16, which many ranks sum in float32.
        tf32: Whether float32 is multiplied as TF32 where the matrix units can do that, as cuDNN does by default.
        adds_up: Whether a step adds up the gradients of several micro-batches, which is done in float32.
    """

    accelerator: Accelerator
    ranks: int
    nodes_per_rack: int | None = None
    uplink_share: float = 1.0
    rack_ordered: bool = True
    half: bool = True
    bfloat16: bool = False
    tf32: bool = True
    adds_up: bool = False
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
        is_in_float32 = self.adds_up or (self.bfloat16 and self.ranks > MOST_BFLOAT16_SUMMANDS)
        return 4 if is_in_float32 else self.bytes_per_number

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


def rates_of_processor(cluster: Cluster) -> dict[str, float]:
    """Return the rates of one rank on the CPU that the cluster file names, as ``--calibrate-here`` measures them here.

    A rank computes with ``engine.threads`` cores, and at most with its share of the node's. ``node.cores`` says how
    many sockets a node has.

    Raises:
        ConfigError: processors.yaml has no such CPU.
    """
    node, remedy = cluster.node, "; or leave it out, and measure the machine: ./run.sh simulate --calibrate-here"
    processors = read_table(PROCESSORS, "processors", SimpleNamespace)
    allowed = f"a CPU of train/sim/{PROCESSORS.name}"
    processor = _find(processors, (node.cpu or "",), "node.cpu", allowed, remedy)
    cores = node.cores or processor.cores
    share_bytes_per_s = math.ceil(cores / processor.cores) * processor.memory / cluster.ranks_per_node
    used = min(cluster.engine.threads, max(1.0, cores / cluster.ranks_per_node))
    return {
        "flops": used * processor.clock * processor.flops_per_cycle,
        "memory_bytes_per_s": min(used * _CORE_BYTES_PER_S, share_bytes_per_s),
        "link_bytes_per_s": _LOOPBACK_BYTES_PER_S,
        "sum_bytes_per_s": min(_CORE_BYTES_PER_S, share_bytes_per_s),
        "cores": float(cores),
    }


def load_description(path: Path) -> dict[str, float]:
    """Read a file that ``./run.sh simulate --calibrate-here`` wrote; warn if other work had the cores meanwhile.

    Raises:
        UserError: There is no such file, or a rate is missing or not above 0.
    """
    try:
        tree = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError:
        raise UserError(
            f"{path}: this machine has not been measured; run ./run.sh simulate --calibrate-here first"
        ) from None
    if not isinstance(tree, dict) or not tree.keys() >= set(_RATES) or not all(float(tree[key]) > 0 for key in _RATES):
        raise UserError(
            f"{path}: {', '.join(_RATES)} must all be there and above 0; run ./run.sh simulate --calibrate-here again"
        )
    if (share := float(tree.get("core_share", 1))) < _QUIET:
        sys.stderr.write(
            f"warning: {path}: this machine seems slower than it is, since other work had {1 - share:.0%} of the cores "
            "while it was measured; run ./run.sh simulate --calibrate-here again when it is idle\n"
        )
    return {key: float(value) for key, value in tree.items()}


def machine_of_rates(rates: dict[str, float], cluster: Cluster) -> Machine:
    """Return the machine of a cluster of CPUs.

    Args:
        rates: Of `load_description` or `rates_of_processor`. ``communication.link_bytes_per_s`` of the cluster file
            takes the place of their link.
        cluster: Has the ranks; on several nodes also the network cards, without which the link is taken for them.
    """
    node, communication = cluster.node, cluster.communication
    link = communication.link_bytes_per_s or rates["link_bytes_per_s"]
    sums = None
    if communication.kind == "shared_memory":
        # The thread of a rank that sums reads and writes as a copy does: 8.8 and 8.5 GB/s on one machine.
        sums = SharedSums(rates.get("sum_bytes_per_s", rates["memory_bytes_per_s"]), rates["cores"])
    cpu = Accelerator(
        name=node.cpu or "this machine",
        chip="cpu",
        peak=rates["flops"],
        peak32=rates["flops"],
        memory=rates["memory_bytes_per_s"],
        cache=0.0,
        units=1,
        node=cluster.ranks_per_node,
        link=link,
        link_kind="memory",
        nics=max(1, node.nics),
        nic=node.nic_bytes_per_s or link,
    )
    return Machine(cpu, cluster.world_size, half=False, sums=sums)
