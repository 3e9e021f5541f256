"""The memory of a rank's device during training, estimated from the table of the network's layers.

The estimate was never compared with a measurement on a GPU. Its purpose is to tell 4 GB from 40 GB before a job waits
in a queue. Imports no framework.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass

from configs.plan import RunPlan
from configs.schema import EngineSettings
from train.networks.arch import Layer, Network

__all__ = ["BYTES_PER_NUMBER", "InputBuffers", "MemoryEstimate", "estimate_input", "estimate_memory"]

BYTES_PER_NUMBER = {"float32": 4, "float16": 2}

_CUDA_BYTES = 3 << 29
"""Assumed for the CUDA context, the workspace of cuDNN and the buffers of NCCL: 1.5 GiB."""

_GPU_DECODER_BYTES = 211_025_920
"""Device memory that `data.input.pipeline` lets nvJPEG allocate in advance."""

_LIVE_GRADIENTS = 2
"""Gradients of activations that backward holds at once, counted as the largest: one is read, one is written."""


@dataclass(frozen=True)
class InputBuffers:
    """The memory of one rank's DALI pipeline.

    Attributes:
        threads: CPU threads of the pipeline.
        prefetch_depth: Batches that the pipeline prepares in advance.
        batch_bytes: Bytes of one batch.
        queued_bytes: Bytes of all batches that are prepared in advance.
        decoder_bytes: Bytes of the JPEG decoder on the GPU; 0 on a CPU.
    """

    threads: int
    prefetch_depth: int
    batch_bytes: int
    queued_bytes: int
    decoder_bytes: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank, by purpose."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    input_bytes: int
    libraries_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum over all purposes."""
        return sum(astuple(self))


def estimate_input(network: Network, plan: RunPlan, engine: EngineSettings, *, on_gpu: bool) -> InputBuffers:
    """Return the buffers of the input: for each place of the queue, one micro-batch of cropped, normalised images."""
    numbers = plan.per_rank_batch_size * network.input_channels * network.image_size**2
    batch_bytes = numbers * BYTES_PER_NUMBER[engine.precision]
    return InputBuffers(
        threads=engine.input_threads,
        prefetch_depth=engine.prefetch_depth,
        batch_bytes=batch_bytes,
        queued_bytes=engine.prefetch_depth * batch_bytes,
        decoder_bytes=_GPU_DECODER_BYTES if on_gpu else 0,
    )


def estimate_memory(
    network: Network, plan: RunPlan, engine: EngineSettings, buffers: InputBuffers, *, on_gpu: bool, num_moments: int
) -> MemoryEstimate:
    """Estimate a rank's memory during training.

    Backward needs the outputs of convolutions, ReLUs, pools and concatenations. The outputs of batch norms and
    additions are not kept, because the ReLU behind them overwrites them. With float16, each weight also has a float32
    master copy.

    Args:
        network: The layers.
        plan: Gives the images of a micro-batch.
        engine: Gives the precision.
        buffers: Of `estimate_input`.
        on_gpu: Whether the rank computes on a GPU.
        num_moments: Numbers that the optimizer keeps for each weight, always in float32.
    """
    width = BYTES_PER_NUMBER[engine.precision]
    kept = [layer.output_elements for layer in network.layers if _is_kept(layer)]
    live = sum(kept) + _LIVE_GRADIENTS * max(kept)
    master = 4 if engine.precision == "float16" else 0
    return MemoryEstimate(
        weights_bytes=network.num_parameters * (width + master),
        gradients_bytes=network.num_parameters * width,
        optimizer_bytes=network.num_parameters * 4 * num_moments,
        activations_bytes=plan.per_rank_batch_size * live * width,
        input_bytes=buffers.queued_bytes + buffers.decoder_bytes,
        libraries_bytes=_CUDA_BYTES if on_gpu else 0,
    )


def _is_kept(layer: Layer) -> bool:
    return layer.kind not in ("bn", "add")
