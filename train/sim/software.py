"""The training program as the simulator sees it: launches, reductions, and the traffic of its batch norms."""

import math
from dataclasses import dataclass, replace

from configs.schema import Cluster, Communication, Recipe
from train.comm.buckets import bucket_cap
from train.networks.arch import gradient_bytes, network_of
from train.sim.collectives import SHARED_MEMORY
from train.sim.hardware import Machine, program_numbers

_ALGORITHMS = {"flat": "auto", "hierarchical": "hierarchical", "torus": "hierarchical"}
"""Allreduce in the cluster file -> simulated one. NCCL chooses ring or tree, over all ranks or between nodes."""
_SERVER_KINDS = ("parameter_server", "parameter_server_async")


@dataclass(frozen=True)
class Software:
    """How the training program launches kernels, reads images and reduces gradients.

    Args:
        bucket_bytes: Largest size of one fused reduction.
        algorithm: Algorithm of `train.sim.collectives.allreduce`.
        cycle_s: Time between two looks for ready gradients; a gradient waits half of it on average. 0 if the program
            is told when a gradient is ready.
        boundaries: Number of tensors in each bucket, last layer first, if the program fixes them. If empty,
            ``bucket_bytes`` decides.
        images_per_s: Rate of one rank's input pipeline. If None, the input is never waited for.
        graphs: Whether all kernels are launched as one graph. If False, the host launches them one by one.
        norm_traffic: Bytes that batch norms and additions move, relative to kernels of their own; compilers that fuse
            them into the convolutions move fewer.
        optimizer_work: Time that a costly optimizer adds to a step, relative to forward and backward.
        channels: Multiprocessors that a reduction takes from backward while both run.
        overlaps: Whether gradients are reduced during backward. If False, all reductions start at the end of backward.
        host_s: Time that the host needs to launch a kernel of the step, while the accelerator computes earlier ones. No
            step is shorter than all launches.
        unit_bytes_per_s: Most bytes/s that a kernel without arithmetic moves in a multiprocessor.
    """

    bucket_bytes: int = 64 << 20
    algorithm: str = "auto"
    cycle_s: float = 1e-4
    boundaries: tuple[int, ...] = ()
    images_per_s: float | None = None
    graphs: bool = True
    norm_traffic: float = 1.0
    optimizer_work: float = 0.0
    channels: int = 12
    overlaps: bool = True
    host_s: float = 0.0
    unit_bytes_per_s: float = math.inf


def cluster_software(recipe: Recipe, cluster: Cluster, machine: Machine) -> Software:
    """Return this program with the buckets and the allreduce of a cluster file.

    Args:
        recipe: The network, whose gradients fill the buckets.
        cluster: The block ``communication`` says how gradients are reduced, and ``engine`` how kernels are launched.
        machine: Accelerators of the cluster, or measured ones in place of them.
    """
    communication, engine = cluster.communication, cluster.engine
    is_channels_last = engine.layout == "NHWC"
    if cluster.device == "cpu":
        software = Software(graphs=False, norm_traffic=norm_traffic("separate_sums"))
    elif engine.name == "torch":
        software = pytorch_software(
            machine,
            is_channels_last=is_channels_last,
            is_compiled=engine.compile,
            is_fused=engine.batch_norm == "fused",
            graphs=engine.cuda_graphs,
        )
    else:
        software = framework_software(machine, is_fused=False, is_channels_last=is_channels_last)
    sizes = gradient_bytes(network_of(recipe.model).parameters, machine.bytes_per_sum)
    return replace(
        software,
        bucket_bytes=bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction),
        algorithm=simulated_algorithm(communication),
        # Only Horovod looks for ready gradients at an interval.
        cycle_s=communication.cycle_time_ms / 1e3 if communication.kind == "horovod" else 0.0,
    )


def simulated_algorithm(communication: Communication) -> str:
    """Return the algorithm of `train.sim.collectives.allreduce` that a cluster file asks for."""
    if communication.kind == "shared_memory":
        return SHARED_MEMORY
    if communication.kind in _SERVER_KINDS:
        return f"ps:{communication.servers}"
    return _ALGORITHMS[communication.allreduce]


def pytorch_software(
    machine: Machine,
    *,
    is_channels_last: bool,
    is_compiled: bool = False,
    is_fused: bool = False,
    graphs: str = "none",
) -> Software:
    """Return the software of PyTorch on a GPU.

    Args:
        machine: Accelerators.
        is_channels_last: Whether tensors have the layout that matrix units read.
        is_compiled: Whether Inductor fuses batch norm, ReLU and addition, which it does in every number type.
        is_fused: Whether ``engine.batch_norm`` is fused.
        graphs: ``engine.cuda_graphs``. The host launches no kernel of a graph; under ``compute``, the allreduces follow
            the whole backward pass.
    """
    program, passes = ("bfloat16", "native") if machine.bfloat16 else ("float16", "unfused")
    if is_compiled or is_fused:
        program, passes = "compiled" if is_compiled else "fused", "separate_sums"
    is_graph, launches, pytorch = graphs != "none", program_numbers("launches"), program_numbers("pytorch")
    return Software(
        graphs=is_graph,
        norm_traffic=norm_traffic(passes) + _copies(machine, is_channels_last=is_channels_last),
        overlaps=graphs != "compute",
        host_s=0.0 if is_graph else launches[program] / launches["kernels"] * pytorch["launch_s"],
        unit_bytes_per_s=pytorch["unit_bytes_per_s"],
    )


def framework_software(machine: Machine, *, is_channels_last: bool, is_fused: bool = True) -> Software:
    """Return the software of a framework's usual program: no graphs, and kernels that are not tuned for MLPerf.

    Args:
        machine: Accelerators.
        is_channels_last: Whether tensors have the layout that matrix units read.
        is_fused: Whether batch norm, ReLU and addition are one kernel in 16 bits.
    """
    passes = norm_traffic("separate_sums" if is_fused and machine.half else "unfused")
    return Software(graphs=False, norm_traffic=passes + _copies(machine, is_channels_last=is_channels_last))


def norm_traffic(program: str) -> float:
    """Return the memory traffic of a program's batch norms, relative to that of NVIDIA's networks for one node."""
    return program_numbers("passes")[program] / program_numbers("passes")["tuned"]


def _copies(machine: Machine, *, is_channels_last: bool) -> float:
    """Return what copies between the layouts add to the memory traffic of batch norms."""
    return norm_traffic("layout_copies") if machine.uses_matrix_units and not is_channels_last else 0.0
