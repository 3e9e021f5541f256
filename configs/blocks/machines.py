"""The cluster file's blocks for hardware: one machine, and the network between machines."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from configs.section import Section

__all__ = ["Fabric", "Node"]

Texts = Annotated[tuple[str, ...], Field(strict=False)]


class Node(Section):
    """The hardware of one machine, for planning, for prediction and for binding ranks.

    Rates are those that are reached, in one direction. A value that nobody knows is left out. Only ``cores``,
    ``rank_cores``, ``hcas`` and ``interface`` change what a run does: a rank that a job script starts is bound to
    its share.
    """

    gpu: str | None = Field(
        None,
        description="Model of the GPU, for example V100-SXM2-16GB, by which ./run.sh simulate finds its speed. If "
        "null, the cluster's name is looked up instead.",
    )
    gpu_memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Memory of one GPU, with which ./run.sh plan compares a rank's need. If null, nothing is compared.",
    )
    gpu_link_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="Bandwidth of one GPU to the other GPUs of its node, one direction. If null, ./run.sh simulate "
        "takes the rate of the GPU's model.",
    )
    cores: int | None = Field(
        None,
        ge=1,
        description="CPU cores of one node: a job requests them, and its ranks are bound to equal blocks of them. If "
        "null, no cores are requested and a rank may use any.",
        json_schema_extra={"unit": "cores"},
    )
    memory_bytes: int | None = Field(
        None,
        ge=1,
        description="Main memory of one node, with which ./run.sh plan compares the need of CPU ranks. If null, "
        "nothing is compared.",
    )
    nics: int = Field(
        0,
        ge=0,
        le=64,
        description="Network cards of one node, for predictions and for the doctor's bandwidth check. With 0, ./run.sh "
        "simulate takes the number that is usual for the GPU's model.",
        json_schema_extra={"unit": "cards"},
    )
    nic_bytes_per_s: float | None = Field(
        None,
        gt=0,
        description="Bandwidth of one network card, one direction. If null, ./run.sh simulate takes the rate that is "
        "usual for the GPU's model.",
    )
    hcas: Texts = Field(
        (),
        description="InfiniBand adapters, in the order of the local ranks that share them: [mlx5_0, mlx5_1]. If empty, "
        "NCCL and MPI choose adapters by themselves.",
    )
    interface: str | None = Field(
        None,
        min_length=1,
        description="Network interface over which NCCL's ranks find each other, for example eth0. If null, NCCL takes "
        "the first interface that is up, which may be one that does not reach the other nodes.",
    )
    rank_cores: Texts = Field(
        (),
        description="CPU cores of each local rank, in the order of the ranks: [0-7, 8-15]. If empty, ranks share "
        "node.cores in equal blocks.",
    )


class Fabric(Section):
    """The network between machines, for predictions."""

    nodes_per_rack: int | None = Field(
        None,
        ge=1,
        description="Nodes that share the uplinks of a rack. If null, all nodes hang on one switch.",
        json_schema_extra={"unit": "nodes"},
    )
    uplink_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Bandwidth of a rack's uplinks over that of all its nodes together. 1 is a fabric of full "
        "bisection; smaller values slow down traffic between racks.",
    )
