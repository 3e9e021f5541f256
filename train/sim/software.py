"""The training program as the simulator sees it: launches, reductions, and the traffic of its batch norms."""

import math
from dataclasses import dataclass, replace

from configs.schema import Cluster, Recipe
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
NATIVE_NORM = 16 / 7
"""The same of PyTorch's own batch norm, which takes bfloat16, as cuDNN's takes float16 and float32 only: 6 + 10 passes.
`UNFUSED` fits PyTorch's published float16 rates, which have cuDNN's kernel. The kernel of channels last keeps what fits
of a tensor on the chip. PyTorch's reads the input once more for the normalization (batch_norm_stats, then
batch_norm_elemt), and the input and the gradient once more for the gradient (batch_norm_backward_reduce, then
batch_norm_backward_elemt): three passes more. Not measured."""
LAYOUT_COPIES = 5 / 7
"""What copies between channels first and channels last add to it if matrix units multiply tensors with channels first:
ten more passes if every tensor were copied, of which half fit the published rate with TF32 (docs/simulator.md)."""
PYTORCH_LAUNCHES, NATIVE_NORM_LAUNCHES, COMPILED_LAUNCHES = 483 / 303, 532 / 303, 404 / 303
FUSED_NORM_LAUNCHES = 580 / 303
"""Launches of PyTorch for each kernel of `train.sim.step_time`, of which ResNet-50 has 303: in float16, in bfloat16,
compiled, and with fused batch norms. 483, 532 and 580 were counted on tensors of a CUDA device that computes nothing
(`imagenet-b256`, docs/gpu.md). 404 are estimated: 158 of the convolutions and 22 of the update as there, two in forward
and two in backward for each of 53 batch norms, 12 more."""
PYTORCH_LAUNCH_S = 14.3e-6
"""Time that Python and PyTorch's dispatcher need for a launch. *Source*: pytorch/benchmark, pull request 706: three
steps of ResNet-50 with one image on a V100 take 89.0 ms eagerly, and 50.2 ms as a CUDA graph. Such a step launches
about 2,070 kernels: 230 in forward, 390 in backward with the sums into 161 gradients, 161 zeros and 1,288 of Adam."""
PYTORCH_UNIT_BYTES_PER_S = 22e9
"""Most bytes/s that PyTorch's kernels between convolutions move in a multiprocessor, which an H100 reaches. *Source*:
lambdal/deeplearning-benchmark, NVIDIA's ResNet-50 in PyTorch with AMP: one H200 made 3,079 images/s and one B200 3,077,
one H100 2,791, though their bandwidths a multiprocessor are 1.4 and 2.0 times an H100's."""


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
        software = Software(graphs=False, norm_traffic=SEPARATE_SUMS)
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
    if communication.kind == "shared_memory":
        algorithm = SHARED_MEMORY
    elif communication.kind in _SERVER_KINDS:
        algorithm = f"ps:{communication.servers}"
    else:
        algorithm = _ALGORITHMS[communication.allreduce]
    sizes = gradient_bytes(network_of(recipe.model).parameters, machine.bytes_per_sum)
    return replace(
        software,
        bucket_bytes=bucket_cap(sizes, communication.bucket_bytes, communication.bucket_fraction),
        algorithm=algorithm,
        # Only Horovod looks for ready gradients at an interval.
        cycle_s=communication.cycle_time_ms / 1e3 if communication.kind == "horovod" else 0.0,
    )


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
    passes, launches = (NATIVE_NORM, NATIVE_NORM_LAUNCHES) if machine.bfloat16 else (UNFUSED, PYTORCH_LAUNCHES)
    if is_compiled:
        passes, launches = SEPARATE_SUMS, COMPILED_LAUNCHES
    elif is_fused:
        passes, launches = SEPARATE_SUMS, FUSED_NORM_LAUNCHES
    is_graph = graphs != "none"
    return Software(
        graphs=is_graph,
        norm_traffic=passes + _copies(machine, is_channels_last=is_channels_last),
        overlaps=graphs != "compute",
        host_s=0.0 if is_graph else launches * PYTORCH_LAUNCH_S,
        unit_bytes_per_s=PYTORCH_UNIT_BYTES_PER_S,
    )


def framework_software(machine: Machine, *, is_channels_last: bool, is_fused: bool = True) -> Software:
    """Return the software of a framework's usual program: no graphs, and kernels that are not tuned for MLPerf.

    Args:
        machine: Accelerators.
        is_channels_last: Whether tensors have the layout that matrix units read.
        is_fused: Whether batch norm, ReLU and addition are one kernel in 16 bits.
    """
    passes = SEPARATE_SUMS if is_fused and machine.half else UNFUSED
    return Software(graphs=False, norm_traffic=passes + _copies(machine, is_channels_last=is_channels_last))


def _copies(machine: Machine, *, is_channels_last: bool) -> float:
    """Return what copies between the layouts add to the memory traffic of batch norms."""
    return LAYOUT_COPIES if machine.uses_matrix_units and not is_channels_last else 0.0
