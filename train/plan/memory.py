"""The memory of a rank during training, by purpose, estimated from the table of the network's layers.

Activations were compared with what MXNet allocates on a CPU (`tests/train/plan/test_memory.py`), and the whole with the
peaks of CPU ranks of the digits and of ResNet-50 at 64 px under both engines: it lies within 13% of them. The parts
that only a GPU has (context, cuDNN's workspace, NCCL, nvJPEG) follow from the libraries' sources and settings; on an
H200, PyTorch took 0.2 to 6 % more in 16 bits, and 5 to 6 GB more in TF32 (docs/gpu.md). Imports no framework.
"""

from dataclasses import dataclass, fields
from pathlib import Path

from configs.arguments import counted
from configs.errors import ConfigError
from configs.machine_limits import available_memory_bytes, memory_limit
from configs.plan import RunPlan, plan_run
from configs.schema import Cluster, Recipe
from train.networks.arch import gradient_bytes, network_of

BYTES_PER_NUMBER = {"float32": 4, "float16": 2, "bfloat16": 2}

_CUDA_BYTES = 1 << 30
"""Assumed for the CUDA context with the kernels of MXNet, cuDNN and cuBLAS: 1 GiB."""

PROCESS_BYTES = {"mxnet": 90_000_000, "torch": 190_000_000, "timed": 0}
"""Host memory that the interpreter, the engine and DALI take of a rank alone, by engine: RssAnon of a rank of the
digits less its network, with MXNet 1.9.1 and PyTorch 2.13. The timed engine invents its network; nothing is counted."""

LIBRARY_BYTES = {"mxnet": 140_000_000, "torch": 165_000_000, "timed": 0}
"""RssFile of the same ranks: pages of the libraries' files, which the ranks of a machine share, and which the kernel
can give back. A run of the digits fits into a control group of 400 MB."""

_WEIGHT_COPIES = 2
"""Copies of the float32 weights that a CPU rank holds beside those that it trains: the initial ones on the host, and
those that oneDNN has packed for its kernels. Ranks of ResNet-50 at 64 px had 2.2 to 4.3, the most on rank 0, which
writes the checkpoints; the third is counted as workspace, which refuses nothing."""

_DENSE_AXES = 2
"""Of the weight of a dense layer: outputs and inputs."""

_WORKSPACE_BYTES = 1 << 30
"""Most memory that MXNet lets cuDNN take for a convolution's temporary results: the default of the operator's
``workspace``, 1,024 MB. All convolutions of a device share one."""

_NCCL_CHANNELS, _NCCL_BUFFER_BYTES = 16, 4 << 20
"""NCCL's usual number of channels and its default NCCL_BUFFSIZE. A channel has a buffer to send and one to receive."""

_ROUTES = {"flat": 1, "hierarchical": 3, "torus": 3}
"""NCCL communicators by ``communication.allreduce``: all ranks; also those of the node, and those across nodes."""

_NVJPEG_DEVICE_BYTES, _NVJPEG_HOST_BYTES = 211_025_920, 140_544_512
"""What `data.input.pipeline` lets nvJPEG allocate in advance, as DALI's own ImageNet examples do. DALI keeps one buffer
on the GPU and two page-locked buffers on the host for each decoding thread. *Source*: DALI's nvJPEG decoder,
``nvjpeg_memory::AddBuffer``."""

_DECODED_BYTES = 500 * 400 * 3
"""A decoded image of ImageNet: about 500 x 400 px."""

_LIVE_GRADIENTS = 2
"""Gradients of activations that backward holds at once, counted as the largest: one is read, one is written."""

_CLIP_COPIES = 5.5
"""Copies of a ReLU6's output that MXNet holds besides on a CPU, by MobileNet v2: oneDNN has no clip."""

_PLANNING_LOSS = 2.25
"""Memory of inference, relative to the most that a layer reads and writes: 1.8 (ResNet-50) and 1.3 (GoogLeNet) measured
on a CPU. DenseNet-121 takes 11, because MXNet does not reuse the memory of its concatenations."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank, by purpose.

    Attributes:
        weights_bytes: What the network computes with, and the float32 masters of float16 weights.
        gradients_bytes: One gradient for each parameter, and the float32 sums of accumulated float16 gradients.
        optimizer_bytes: Moments.
        activations_bytes: Outputs of layers that backward needs, for one micro-batch, and their gradients; casts of
            weights. What an update holds later, if that is more.
        evaluation_bytes: Weights with batch norm folded in, and the outputs of inference.
        input_bytes: Batches and decoders.
        communication_bytes: Horovod's fusion buffer and NCCL's channels, or the memory in which ranks share gradients.
        workspace_bytes: Temporary results of convolutions, an upper limit; on a CPU, a copy of the weights,
            and under PyTorch the largest gradient as it leaves the graph.
        libraries_bytes: Context and kernels of a GPU; on a CPU, pages of the libraries' files.
        process_bytes: What interpreter and libraries of a CPU rank allocate, with the copies of the weights.
    """

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    evaluation_bytes: int
    input_bytes: int
    communication_bytes: int
    workspace_bytes: int
    libraries_bytes: int
    process_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum over all purposes."""
        return sum(getattr(self, field.name) for field in fields(self))

    @property
    def certain_bytes(self) -> int:
        """The part that follows from the recipe and from measurements: without limits, assumptions and shared pages."""
        return self.total_bytes - self.workspace_bytes - self.libraries_bytes


def estimate_input(recipe: Recipe, cluster: Cluster, plan: RunPlan) -> dict[str, int]:
    """Return the buffers of a rank's input.

    Every pipeline holds ``prefetch_depth`` batches of cropped, normalised images. A batch is copied for the step, and
    the copies of ``run_ahead_steps`` queued steps live on. Ideas may hold further ones.

    Returns:
        pipelines: Pipelines that exist at once: evaluation, training, and training on plain images.
        threads: CPU threads of a pipeline.
        prefetch_depth: Batches that a pipeline prepares in advance.
        batch_bytes: Bytes of one batch.
        queued_bytes: Bytes of all batches that are prepared in advance, and of those that queued steps still hold.
        decoder_bytes: Bytes of the JPEG decoders on the GPU, with decoded images and their cache; 0 on a CPU.
        pinned_bytes: Page-locked bytes of the host, for the JPEG decoders of a GPU; 0 on a CPU.
    """
    engine, model, batch = cluster.engine, recipe.model, plan.per_rank_batch_size
    on_gpu = cluster.device == "gpu"
    width = 2 if engine.precision == "float16" else 4
    batch_bytes, eval_batch_bytes = (
        batch * model.input_channels * side**2 * width for side in (model.image_size, recipe.evaluated.model.image_size)
    )
    is_packed = recipe.data.source != "synthetic"
    pipelines = (2 + (recipe.data.plain_from_epoch is not None)) * is_packed
    held = pipelines * engine.prefetch_depth + engine.run_ahead_steps + 1
    held += sum(idea.held_batches for idea in recipe.ideas)
    decoders = pipelines * engine.input_threads * on_gpu
    decoded = pipelines * engine.prefetch_depth * batch * _DECODED_BYTES * on_gpu
    return {
        "pipelines": pipelines,
        "threads": engine.input_threads,
        "prefetch_depth": engine.prefetch_depth,
        "batch_bytes": batch_bytes,
        "queued_bytes": held * batch_bytes + is_packed * engine.prefetch_depth * (eval_batch_bytes - batch_bytes),
        "decoder_bytes": decoders * _NVJPEG_DEVICE_BYTES + decoded + engine.decoded_cache_bytes * is_packed,
        "pinned_bytes": decoders * 2 * _NVJPEG_HOST_BYTES,
    }


def estimate_memory(recipe: Recipe, cluster: Cluster, plan: RunPlan) -> MemoryEstimate:
    """Estimate a rank's memory during training.

    Backward needs the outputs of convolutions, ReLUs, pools and concatenations. The outputs of batch norms, products
    and additions are not kept where a ReLU or an addition behind them overwrites them. With 16-bit weights, each weight
    also has a float32 master copy; where float32 weights are cast in each step, backward needs the casts. Parameters of
    batch norm are float32. Before the first layer that is trained, backward needs nothing.

    Args:
        recipe: The network and the optimizer.
        cluster: Precision, device and communication.
        plan: Gives the images of a micro-batch.
    """
    network, buffers = network_of(recipe.model), estimate_input(recipe, cluster, plan)
    engine, on_gpu = cluster.engine, cluster.device == "gpu"
    width, held_width = BYTES_PER_NUMBER[engine.precision], BYTES_PER_NUMBER[engine.gradient_precision]
    own = sum(gradient_bytes(network.parameters, held_width))
    summed = sum(gradient_bytes(network.parameters, BYTES_PER_NUMBER[cluster.sum_precision]))
    computed = sum(each.size for each in network.parameters if not each.is_norm)
    masters = 4 * computed if engine.gradient_precision != "float32" else 0
    casts = width * computed if width < held_width else 0
    overwritten = {name for layer in network.layers if layer.kind.overwrites for name in layer.inputs}
    kept, largest = [], 0
    is_trained = False  # whether backward comes to a layer
    for layer in network.layers:
        is_trained |= bool(layer.parameters) and not layer.is_frozen
        if layer.kind.keeps_output or layer.name not in overwritten:
            kept += [layer.output_elements] * is_trained
            largest = max(largest, layer.output_elements)
    # Devices are threads of one process.
    processes = 1 / cluster.ranks_per_node if cluster.communication.kind == "devices" else 1
    copy = 0 if engine.name == "timed" else 4 * (network.num_parameters + network.num_constants)
    evaluated = network if recipe.evaluated is recipe else network_of(recipe.evaluated.model)
    passing = max(layer.input_elements + layer.output_elements for layer in evaluated.layers)
    shapes = [each.shape for each in network.parameters]
    statistics = sum(each.size for each in network.statistics)
    held = sum(idea.held_numbers(recipe, shapes, statistics) for idea in recipe.ideas)
    live = sum(kept) + _LIVE_GRADIENTS * largest
    if engine.name == "mxnet" and not on_gpu:
        live += int(_CLIP_COPIES * sum(each.output_elements for each in network.layers if each.kind.name == "relu6"))
    is_torch, folds = engine.name == "torch", {f"{name}_weight" for name in network.foldable_convolutions()}
    matrices = [each for layer in network.layers for each in layer.parameters if each.is_matrix]
    # Only PyTorch's inference copies the weights that no batch norm folds into, and oneDNN packs no dense layer's.
    folded = sum(each.size for each in matrices if is_torch or each.name in folds) * held_width
    dense = 0 if is_torch or not copy else 4 * sum(each.size for each in matrices if len(each.shape) == _DENSE_AXES)
    fresh = held_width * max(each.size for each in network.parameters) if is_torch else 0
    return MemoryEstimate(
        weights_bytes=own + masters + 4 * network.num_constants,
        gradients_bytes=own + masters if plan.accumulation_steps > 1 else summed,
        optimizer_bytes=4 * held,
        activations_bytes=max(
            plan.per_rank_batch_size * live * width + casts, 4 * recipe.optimizer.update_numbers(shapes)
        ),
        evaluation_bytes=folded + int(plan.per_rank_batch_size * _PLANNING_LOSS * passing * width),
        input_bytes=buffers["queued_bytes"] + buffers["decoder_bytes"],
        communication_bytes=_communication_bytes(cluster, summed),
        workspace_bytes=_WORKSPACE_BYTES if on_gpu else copy + fresh,
        libraries_bytes=_CUDA_BYTES if on_gpu else int(LIBRARY_BYTES[engine.name] * processes),
        process_bytes=0 if on_gpu else int(PROCESS_BYTES[engine.name] * processes) + _WEIGHT_COPIES * copy - dense,
    )


def available_bytes(cluster: Cluster) -> int | None:
    """Return the bytes that a rank may use: of its GPU, or a share of its node. None if the file does not say."""
    if cluster.device == "gpu":
        return cluster.node.gpu_memory_bytes
    return None if cluster.node.memory_bytes is None else cluster.node.memory_bytes // cluster.ranks_per_node


def require_memory(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if a rank surely needs more memory than the cluster file says that it has.

    What is assumed of a GPU, or shared by the ranks of a CPU, is not counted: `MemoryEstimate.certain_bytes`.
    """
    available = available_bytes(cluster)
    if available is None or (needed := _certain_bytes(recipe, cluster)) <= available:
        return
    key, ranks = ("gpu_memory_bytes", 1) if cluster.device == "gpu" else ("memory_bytes", cluster.ranks_per_node)
    allowed = f"at least {needed * ranks} for {recipe.name}"
    remedy = "use more ranks, or accumulate smaller micro-batches (batch.bn_span); ./run.sh plan lists the memory"
    raise ConfigError(f"cluster.node.{key}", getattr(cluster.node, key), allowed, remedy)


def shortage_here(recipe: Recipe, cluster: Cluster, root: Path = Path("/")) -> str | None:
    """Return why the CPU ranks of a cluster of one machine surely find too little memory on this one, or None.

    Args:
        recipe: The recipe.
        cluster: The machine, which this one is if its ranks are started without a scheduler.
        root: Where ``proc`` and ``sys`` are.
    """
    is_here = cluster.launcher == "local" and cluster.scheduler.kind == "none"
    if not is_here or cluster.device == "gpu" or cluster.engine.name == "timed":
        return None
    needed = cluster.ranks_per_node * _certain_bytes(recipe, cluster)
    available, limit, where = available_memory_bytes(root), memory_limit(root), "this machine"
    if limit is not None and limit.free_bytes < needed:
        where = f"the control group {limit.group} (limit {limit.limit_bytes / 1e9:.2f} GB)"
        available = limit.free_bytes
    if available is None or needed <= available:
        return None
    return (
        f"{counted(cluster.ranks_per_node, 'rank')} of {recipe.name} would need {needed / 1e9:.2f} GB of memory, and "
        f"{where} has {available / 1e9:.2f} GB left; end other programs, raise the limit, or "
        "accumulate smaller micro-batches (batch.bn_span)"
    )


def _certain_bytes(recipe: Recipe, cluster: Cluster) -> int:
    return estimate_memory(recipe, cluster, plan_run(recipe, cluster.world_size)).certain_bytes


def _communication_bytes(cluster: Cluster, gradients_bytes: int) -> int:
    communication = cluster.communication
    if cluster.world_size > 1 and communication.kind == "shared_memory":
        # The shares of the others' shards, and the sum of the own shard; with two ranks the sum overwrites a share.
        return gradients_bytes if cluster.world_size > 2 else gradients_bytes // 2  # noqa: PLR2004
    if cluster.world_size == 1 or communication.kind != "horovod":
        return 0
    fusion = communication.bucket_bytes
    if communication.backend != "nccl":
        return fusion
    return fusion + _ROUTES[communication.allreduce] * 2 * _NCCL_CHANNELS * _NCCL_BUFFER_BYTES
