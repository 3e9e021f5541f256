"""The training program as the simulator sees it: launches, reductions, and the traffic of its batch norms."""

from dataclasses import dataclass

from configs.schema import Cluster, Communication, Recipe
from train.comm.buckets import bucket_cap
from train.networks.arch import gradient_bytes, network_of
from train.sim.collectives import SHARED_MEMORY
from train.sim.hardware import Machine

_ALGORITHMS = {"flat": "auto", "hierarchical": "hierarchical", "torus": "hierarchical"}
"""Allreduce in the cluster file -> simulated one. NCCL chooses ring or tree, over all ranks or between nodes."""
_SERVER_KINDS = ("parameter_server", "parameter_server_async")

SEPARATE_SUMS = 8 / 7
"""Memory traffic of batch norms that read their input once more for its sums, relative to NVIDIA's networks for one
node, in which the convolution before the batch norm makes the sums: 3 + 5 passes over a tensor instead of 2 + 5."""
UNFUSED = 13 / 7
"""The same of networks in which batch norm, ReLU and addition are kernels of their own: 5 + 8 passes over a tensor
instead of 2 + 5. Fused kernels exist for 16 bits only, and PyTorch has none."""
LAYOUT_COPIES = 5 / 7
"""What copies between channels first and channels last add to it if matrix units multiply tensors with channels first:
ten more passes if every tensor were copied, of which half fit the published rate with TF32 (docs/simulator.md)."""


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


def cluster_software(recipe: Recipe, cluster: Cluster, machine: Machine) -> Software:
    """Return this program with the buckets and the allreduce of a cluster file.

    Args:
        recipe: The network, whose gradients fill the buckets.
        cluster: The block ``communication`` says how gradients are reduced.
        machine: Accelerators of the cluster, or measured ones in place of them.
    """
    communication = cluster.communication
    sizes = gradient_bytes(network_of(recipe.model).parameters, machine.bytes_per_sum)
    return Software(
        bucket_bytes=bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction),
        algorithm=_algorithm(communication),
        # Only Horovod looks for ready gradients at an interval.
        cycle_s=communication.cycle_time_ms / 1e3 if communication.kind == "horovod" else 0.0,
        graphs=False,
        norm_traffic=_traffic(machine, cluster),
    )


def _traffic(machine: Machine, cluster: Cluster) -> float:
    """Return the memory traffic of batch norms: both engines have kernels of their own for them."""
    if cluster.device == "cpu":
        return SEPARATE_SUMS
    return framework_traffic(machine, is_fused=False, is_channels_last=cluster.engine.layout == "NHWC")


def _algorithm(communication: Communication) -> str:
    """Return the simulated algorithm of a cluster file's communication."""
    if communication.kind == "shared_memory":
        return SHARED_MEMORY
    if communication.kind in _SERVER_KINDS:
        return f"ps:{communication.servers}"
    return _ALGORITHMS[communication.allreduce]


def framework_software(machine: Machine, *, is_fused: bool, is_channels_last: bool) -> Software:
    """Return the software of a framework's usual program: no graphs, and kernels that are not tuned for MLPerf.

    Args:
        machine: Accelerators.
        is_fused: See `framework_traffic`.
        is_channels_last: See `framework_traffic`.
    """
    traffic = framework_traffic(machine, is_fused=is_fused, is_channels_last=is_channels_last)
    return Software(graphs=False, norm_traffic=traffic)


def framework_traffic(machine: Machine, *, is_fused: bool, is_channels_last: bool) -> float:
    """Return the memory traffic of the kernels between convolutions in a framework's usual program.

    Args:
        machine: Accelerators.
        is_fused: Whether batch norm, ReLU and addition are one kernel in 16 bits.
        is_channels_last: Whether tensors have the layout that matrix units read.

    Returns:
        The traffic relative to that of NVIDIA's network for one node, see `Software.norm_traffic`.
    """
    traffic = SEPARATE_SUMS if is_fused and machine.half else UNFUSED
    return traffic + (LAYOUT_COPIES if machine.uses_matrix_units and not is_channels_last else 0.0)
