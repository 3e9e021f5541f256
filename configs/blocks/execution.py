"""The cluster file's blocks for the work of a rank: computing, and exchanging gradients."""

from typing import Literal

from pydantic import Field

from configs.registry import COMMUNICATORS, ENGINES, gradient_precision
from configs.section import Section


class EngineSettings(Section):
    """How the framework and DALI use one rank's share of the machine."""

    name: Literal[tuple(ENGINES)] = "mxnet"  # type: ignore[valid-type]
    """Framework that computes. Default: mxnet, or torch if the environment has only PyTorch (./run.sh setup --engine
    torch). Weights, batches and schedules are the same under both. timed sleeps instead of computing, for ./run.sh
    rehearse."""
    precision: Literal["float32", "float16", "bfloat16"] = "float32"
    """Number type of convolutions, activations and gradients. Default: float16 for PyTorch on a GPU, otherwise float32,
    which PyTorch multiplies without TF32. The 16-bit types halve memory and network traffic, and every weight keeps a
    float32 master copy. float16 needs device: gpu. bfloat16 needs name: torch, or a CPU with AVX-512, where MXNet casts
    float32 weights in each step and sums float32 gradients; it is fast on CPUs with AMX. More than 64 ranks sum
    bfloat16 gradients in float32."""
    layout: Literal["NCHW", "NHWC"] = "NCHW"
    """Order of an image tensor's axes: batch N, channel C, height H, width W. Default: NHWC for PyTorch on a GPU,
    otherwise NCHW. Tensor cores want NHWC; MXNet's convolutions on a CPU know NCHW only."""
    threads: int = Field(1, ge=1, le=512, json_schema_extra={"unit": "threads"})
    """OpenMP threads of a rank's operators. More threads than the rank has cores slow it down."""
    input_threads: int = Field(1, ge=1, le=64, json_schema_extra={"unit": "threads"})
    """DALI threads of a rank, which read, decode and augment images. Default: 1; for PyTorch on a GPU, the cores of a
    rank by node.cores less two, at most 8, or 4 where the file gives no cores. Raise it if steps wait for input."""
    prefetch_depth: int = Field(2, ge=1, le=16, json_schema_extra={"unit": "batches"})
    """Batches that DALI prepares ahead of training. Larger values hide slow reads but take memory."""
    stick_to_shard: bool = False
    """Whether a rank reads the same shard of the data set in every epoch, which the node can then cache. If false, the
    ranks exchange shards after each epoch, so that every rank trains on every image."""
    decoder: Literal["region", "whole"] = "region"
    """What is decoded of an image that is cropped at random. region: only the crop, which takes less time and memory;
    whole: the whole image, which is cropped afterwards. Default: whole for PyTorch on a GPU, because decoding of
    regions by nvImageCodec 0.9, the decoder of DALI 2.4, crashes on GPUs
    (https://github.com/NVIDIA/nvImageCodec/issues/55); otherwise region. With decoded_cache_bytes, images are always
    decoded whole."""
    file_access: Literal["mapped", "mapped_ahead", "read"] = "mapped"
    """How DALI reads the file of records, with the same images. mapped: pages of the file, when they are needed;
    mapped_ahead: all of the file into memory when it is opened, if the node's memory holds the whole data set; read:
    plain reads, which a parallel file system (Lustre, GPFS) or NFS serves faster than pages. Files of class folders in
    place are always read plainly."""
    decoded_cache_bytes: int = Field(0, ge=0, json_schema_extra={"unit": "bytes"})
    """GPU memory for decoded images, of training and evaluation, as they come; those are not read and decoded again. 0
    switches the cache off. It needs device: gpu and stick_to_shard: true. An image of ImageNet takes 0.6 MB. Images are
    then decoded whole, as decoder: whole does, so under DALI 1.34 a run with the cache has other crops than a run
    without."""
    hw_decoder_load: float | None = Field(None, ge=0, le=1)
    """Share of a batch's JPEGs that the hardware decoder of an A100 or H100 decodes; its multiprocessors decode the
    rest. If null, DALI chooses the share. Other GPUs have no such decoder."""
    backward_bulk_nodes: int = Field(4, ge=1, le=999, json_schema_extra={"unit": "operators"})
    """Operators of the backward pass that MXNet's engine runs as one segment. An allreduce waits for the end of the
    segment that makes its gradient: smaller values start it earlier, larger values cost less scheduling."""
    forward_bulk_nodes: int = Field(15, ge=1, le=999, json_schema_extra={"unit": "operators"})
    """Operators of the forward pass that MXNet's engine runs as one segment. A segment waits until the weights of all
    its layers are updated: smaller values start the forward pass earlier."""
    update_groups: int = Field(1, ge=1, le=64, json_schema_extra={"unit": "groups"})
    """Groups of layers, last layers first; a group is updated as soon as its gradients are summed. With more groups,
    updates overlap the remaining sums; with 1, all layers are updated after the last sum."""
    compile: bool = False
    """Whether torch.compile makes kernels of its own for the forward and backward passes, in which batch norm, addition
    and ReLU are fused. The warm-up compiles everything, which takes a minute or more unless the kernels are in the
    cache (docs/engines.md), and needs a C++ compiler on a CPU, or Triton and a C compiler on a GPU. It needs name:
    torch."""
    batch_norm: Literal["framework", "fused"] = "framework"
    """What computes batch norm in training. framework: the framework's operator, with addition and ReLU as operators of
    their own; fused: one operator each way for batch norm, the addition behind it and the ReLU, which moves fewer bytes
    (docs/gpu.md). On a GPU these are kernels by Triton, which needs a C compiler, and so is the update by LARS or SGD.
    fused needs name: torch and layout: NHWC; it has not been timed on a GPU. Evaluations have no batch norm."""
    cuda_graphs: Literal["none", "step", "compute"] = "none"
    """Which part of a step a GPU replays as a CUDA graph, so that Python launches no kernel of it. step: all of it,
    with the allreduces in the backward pass; compute: forward and backward passes as one graph and the update as
    another, with the allreduces between them, where nothing hides them; none: every kernel is launched. With step and
    compute, evaluations infer by a graph, too. It needs name: torch, and a network without dropout. On a CPU, the same
    fixed step is computed as usual."""
    deterministic: bool = False
    """Whether a GPU takes only kernels that leave the same bits each time, which are slower; kernels are then chosen by
    rule and not by trials. On a CPU, all kernels do. ./run.sh accept compares such bits."""
    run_ahead_steps: int = Field(2, ge=1, le=16)
    """Steps that Python may queue before it waits for the engine. Larger values hide more of Python's overhead but take
    more memory."""
    timing: bool = True
    """Whether a run measures how long its steps wait for input and for communication. If false, both are missing from
    its metrics and its summary."""

    @property
    def gradient_precision(self) -> str:
        """Number type in which ranks hold the weights that compute, and gradients: ``precision``, or float32."""
        return gradient_precision(self.name, self.precision)


class Communication(Section):
    """How ranks sum their gradients, and in which portions.

    ``horovod`` and ``torch_distributed`` are an allreduce by ``backend``. ``shared_memory`` is one between CPU ranks of
    one machine, in memory that all of them map. ``parameter_server`` is MXNet's
    ``dist_sync``, with ``servers`` processes beside the ranks; ``parameter_server_async`` is its ``dist_async``.
    ``devices`` makes every rank a device of one process. ``none`` is for a single rank. All kinds but the asynchronous
    one take the same steps.
    """

    kind: Literal[tuple(COMMUNICATORS)] = "horovod"  # type: ignore[valid-type]
    """How gradients are summed: by an allreduce (horovod under MXNet, torch_distributed under PyTorch), in shared
    memory by the CPU ranks of one machine (shared_memory), by server processes, by the devices of one process, or not
    at all (none, for a single rank). Default: shared_memory for MXNet ranks of launcher local on a CPU, unless a key of
    a library's allreduce is set (backend, allreduce, cycle_time_ms, link_bytes_per_s); otherwise the engine's
    allreduce. Servers and devices need launcher local; horovodrun does not start torch_distributed."""
    servers: int = Field(1, ge=1, le=1024, json_schema_extra={"unit": "processes"})
    """Processes that hold the parameters of the two parameter_server kinds. More servers share the traffic; the other
    kinds ignore the key."""
    backend: Literal["gloo", "mpi", "nccl"] = "gloo"
    """Library that carries the messages of an allreduce: gloo or mpi between CPUs, nccl between GPUs. Default: nccl for
    PyTorch on a GPU, otherwise gloo, which is good for about 64 ranks."""
    allreduce: Literal["flat", "hierarchical", "torus"] = "flat"
    """Route of an allreduce. flat: over all ranks at once; hierarchical: first within a node, then across nodes; torus:
    reduce-scatter in the node, allreduce across nodes, all-gather in the node (needs nccl)."""
    bucket_bytes: int = Field(4 << 20, ge=1)
    """Largest size of a bucket, the gradients that one allreduce sums, unless bucket_fraction allows more; buckets are
    filled from the last layer on. Smaller buckets start earlier and overlap more of the backward pass; larger ones need
    fewer messages. Default: 4 MiB; 16 MiB for PyTorch on a GPU."""
    bucket_fraction: float = Field(0.0, ge=0, le=1)
    """Share of the network's gradients that a bucket may have if that is more than bucket_bytes, so that one cluster
    file suits small and large networks. With 0, bucket_bytes alone decides."""
    deferred_fraction: float = Field(0.0, ge=0, le=0.5)
    """Share of the gradients, taken from late layers, that are reduced during the next step's forward pass instead of
    the backward pass. It helps if the network limits the step, and gains nothing on two cores. 0 defers none."""
    cycle_time_ms: float = Field(1.0, gt=0, le=1000)
    """Interval at which Horovod looks for gradients that are ready. Smaller values start an allreduce sooner and take
    more CPU time."""
    timeout_s: int = Field(300, ge=1, le=86_400)
    """How long ranks wait for each other at start-up before the run fails. Raise it if many ranks start slowly."""
    link_bytes_per_s: float | None = Field(None, ge=1e5, le=1e11)
    """Speed at which a rank may send over this machine's loopback, which imitates a slow network between CPU ranks of
    launcher local. If null, the loopback keeps its own speed."""

    @property
    def is_synchronous(self) -> bool:
        """Whether all ranks are at the same step with the same weights."""
        return bool(self.kind != "parameter_server_async")

    @property
    def carrier(self) -> str:
        """What carries the sums: the library of an allreduce that has a choice of them, otherwise the kind itself."""
        return self.backend if self.kind in ("horovod", "torch_distributed") else self.kind
