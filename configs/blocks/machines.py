"""The cluster file's blocks for hardware: one machine, and the network between machines."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.config import JsonDict

from configs.section import Section

_FLOPS: JsonDict = {"unit": "FLOP/s"}
Texts = Annotated[tuple[str, ...], Field(strict=False)]


class DataSheet(Section):
    """An accelerator as its data sheet describes it, for predictions on a machine that the program does not list.

    All rates are dense ones; data sheets often print twice the rate, for sparse matrices.
    """

    float16_flops: float = Field(gt=0, json_schema_extra=_FLOPS)
    """FLOP/s of 16-bit matrix products."""
    tf32_flops: float | None = Field(None, gt=0, json_schema_extra=_FLOPS)
    """FLOP/s of TF32 matrix products. If null, the accelerator has no TF32."""
    float32_flops: float = Field(gt=0, json_schema_extra=_FLOPS)
    """FLOP/s of float32 without matrix units (CUDA cores)."""
    memory_bytes_per_s: float = Field(gt=0)
    """Bandwidth of the memory."""
    cache_bytes: float = Field(ge=0)
    """Size of the last-level cache."""
    units: int = Field(ge=1, json_schema_extra={"unit": "SMs"})
    """Multiprocessors (SMs, compute units)."""
    link: Literal["nvlink", "pcie", "ethernet", "torus"] = "nvlink"
    """Kind of link to the other accelerators of the node, which decides the latency of a hop. It is used only with
    node.gpu_link_bytes_per_s; if that is null, PCIe is assumed."""
    has_matrix_units: bool = True
    """Whether matrix units (tensor cores) compute 16-bit products, as on GPUs since 2017."""


class Node(Section):
    """The hardware of one machine, for planning, for prediction and for binding ranks.

    Rates are those that are reached, in one direction. A value that nobody knows is left out. Only ``cores``,
    ``rank_cores``, ``hcas`` and ``interface`` change what a run does: a rank that a job script starts is bound to
    its share.
    """

    gpu: str | None = None
    """Model of the GPU, for example V100-SXM2-16GB, by which ./run.sh simulate finds its speed. If null,
    node.accelerator must describe the GPU before a prediction can be made."""
    accelerator: DataSheet | None = None
    """Data sheet of the GPU, for ./run.sh simulate. If null, the listed rates of the GPU's model apply."""
    cpu: str | None = None
    """Model of the CPU, for example EPYC 7763, by which ./run.sh simulate finds the speed of CPU ranks. If null, the
    CPU is that of this machine, as measured by ./run.sh simulate --calibrate-here."""
    gpu_memory_bytes: int | None = Field(None, ge=1)
    """Memory of one GPU, with which ./run.sh plan compares a rank's need. If null, nothing is compared."""
    gpu_link_bytes_per_s: float | None = Field(None, gt=0)
    """Bandwidth of one GPU to the other GPUs of its node, one direction. If null, ./run.sh simulate takes the rate of
    the GPU's model."""
    cores: int | None = Field(None, ge=1, json_schema_extra={"unit": "cores"})
    """CPU cores of one node: a job requests them, and its ranks are bound to equal blocks of them, ranks on GPUs to
    cores at their GPU (rank_cores). If null, a job requests no cores, and ranks are not bound."""
    memory_bytes: int | None = Field(None, ge=1)
    """Main memory of one node, with which ./run.sh plan compares the need of CPU ranks. If null, nothing is
    compared."""
    nics: int = Field(0, ge=0, le=64, json_schema_extra={"unit": "cards"})
    """Network cards of one node, for predictions and for the doctor's bandwidth check. With 0, ./run.sh simulate takes
    the number that is usual for the GPU's model."""
    nic_bytes_per_s: float | None = Field(None, gt=0)
    """Bandwidth of one network card, one direction. If null, ./run.sh simulate takes the rate that is usual for the
    GPU's model."""
    hcas: Texts = ()
    """InfiniBand adapters, in the order of the local ranks that share them: [mlx5_0, mlx5_1]. If empty, NCCL and MPI
    choose adapters by themselves."""
    interface: str | None = Field(None, min_length=1)
    """Network interface over which ranks of several nodes find each other by NCCL, Gloo and Open MPI: eth0. If null,
    PyTorch's ranks take the one that leads to the ranks of other nodes. NCCL under Horovod takes the first one that is
    up, and Open MPI every one whose addresses are not link-local; these may not reach the other nodes."""
    rank_cores: Texts = ()
    """CPU cores of each local rank, in the order of the ranks: [0-7, 8-15]. If empty, ranks that have all GPUs of a
    node share the cores that the kernel lists at their GPU (local_cpulist), one thread a core; other ranks share
    node.cores in equal blocks."""


class Fabric(Section):
    """The network between machines, for predictions."""

    nodes_per_rack: int | None = Field(None, ge=1, json_schema_extra={"unit": "nodes"})
    """Nodes that share the uplinks of a rack. If null, all nodes are on one switch."""
    uplink_share: float = Field(1.0, gt=0, le=1)
    """Bandwidth of a rack's uplinks over that of all its nodes together. 1 means full bisection bandwidth; smaller
    values slow down traffic between racks."""
