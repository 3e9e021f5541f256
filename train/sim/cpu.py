"""Machines of CPUs: the rates of a rank, measured on this machine or by a CPU's data sheet, and what they make.

`train.sim.measure_here` writes the description of this machine, a YAML file of rates; processors.yaml has the data
sheets. Nothing here is fitted.
"""

import math
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from configs.errors import ConfigError, UserError, nearest
from configs.load import parse_yaml
from configs.schema import Cluster
from train.sim.constants import Constants
from train.sim.hardware import Accelerator, Machine, is_named, read_table
from train.sim.topology import SharedSums

PROCESSORS = Path(__file__).with_name("processors.yaml")

_CORE_BYTES_PER_S = 12e9
"""Memory bandwidth that one core can use at most; assumed, from 8 to 15 GB/s of copies on one core of several CPUs."""
_LOOPBACK_BYTES_PER_S = 1.5e9
"""Rate of a local TCP connection between ranks of one node; assumed, 0.6 to 3 GB/s on two-core machines."""
_SUM_BUCKET_S = 2e-4
"""Time of a bucket of a few bytes in shared memory; assumed, measured on two cores."""

_CPU = {"plain_efficiency": 0.4, "memory_efficiency": 0.8, "kernel_s": 40e-6, "launch_s": 0.0, "tail": 0.0}
"""Constants of a CPU, which are assumed and not measured: the rate of oneDNN's convolutions relative to the measured
matrix product, the time of an operator in MXNet's engine, and others."""
_CYCLE_CPU_S = 1e-4
"""Core time of one cycle of an idle Horovod thread, for two ranks with Gloo. Measured: 0.065 to 0.11 of a core at a
cycle of 1 ms, 0.015 of a core at 10 ms."""
_DECODE_S, _DECODE_PIXEL_S = 80e-6, 31e-9
"""Core time of DALI for an image, and for each pixel of the crop. Measured: 82 us at 32 px, 1.65 ms at 224 px."""

_RATES = ("cores", "flops", "link_bytes_per_s", "memory_bytes_per_s", "sum_bucket_s", "sum_bytes_per_s")
"""Keys that a description must have."""
_QUIET = 0.9
"""Smallest share of a core that each measuring process must have had."""


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
def find_processor(text: str) -> Processor:
    """Return the first processor with a pattern that occurs in ``text``.

    Raises:
        ConfigError: processors.yaml has no such CPU.
    """
    processors = read_table(PROCESSORS, "processors", Processor)
    for each in processors:
        if is_named(each.match, text):
            return each
    remedy = f"{nearest(text, {each.name for each in processors})}; or leave it out, and measure the machine: "
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
    share_bytes_per_s = math.ceil(cores / processor.cores) * processor.memory / cluster.ranks_per_node
    used = min(cluster.engine.threads, max(1.0, cores / cluster.ranks_per_node))
    return {
        "flops": used * processor.clock * processor.flops_per_cycle,
        "memory_bytes_per_s": min(used * _CORE_BYTES_PER_S, share_bytes_per_s),
        "link_bytes_per_s": _LOOPBACK_BYTES_PER_S,
        "sum_bytes_per_s": min(_CORE_BYTES_PER_S, share_bytes_per_s),
        "sum_bucket_s": _SUM_BUCKET_S,
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
        sums = SharedSums(rates["sum_bytes_per_s"], rates["sum_bucket_s"], rates["cores"])
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


def cpu_constants(constants: Constants, cores: float, ranks: int, image_size: int) -> Constants:
    """Return the constants of a CPU.

    Decoding and Horovod's negotiation run in threads of their own. If there are fewer than two cores a rank, these
    threads take core time from compute. If there are fewer cores than ranks, the ranks take turns.

    Args:
        constants: Those of accelerators; some also apply to a CPU.
        cores: Cores of a node.
        ranks: Ranks of a node.
        image_size: Side of the square input, px.
    """
    shared: dict[str, float] = {}
    if cores < 2 * ranks:
        shared = {"cycle_cpu_s": _CYCLE_CPU_S, "decode_s": _DECODE_S + _DECODE_PIXEL_S * image_size**2}
    return replace(constants, **_CPU, **shared, cores=cores)
