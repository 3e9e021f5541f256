"""What a rank holds in its device's memory, estimated from the architecture table. Pure: imports no framework.

Nothing here was measured on a GPU; it is for telling 4 GB from 40 before a job waits in a queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from configs.plan import RunPlan
from configs.schema import Engine
from train.networks.arch import Layer, Network

__all__ = ["InputBuffers", "MemoryEstimate", "estimate_input", "estimate_memory"]

BYTES_PER_NUMBER = {"float32": 4, "float16": 2}

_CUDA_BYTES = 3 << 29
"""Assumed for the CUDA context, cuDNN's workspace and NCCL's buffers: 1.5 GiB."""

_GPU_DECODER_BYTES = 211_025_920
"""Device memory that `data.input.pipeline` has nvJPEG set aside."""

_LIVE_GRADIENTS = 2
"""Activation gradients that backward holds at once, in units of the largest: one being read, one being made."""


@dataclass(frozen=True)
class InputBuffers:
    """What DALI holds for one rank: ``queued_bytes`` of batches made ahead, and the decoder's own on a GPU."""

    threads: int
    prefetch_depth: int
    batch_bytes: int
    queued_bytes: int
    decoder_bytes: int


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one rank, by what they hold."""

    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    input_bytes: int
    libraries_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them."""
        return (
            self.weights_bytes + self.gradients_bytes + self.optimizer_bytes
            + self.activations_bytes + self.input_bytes + self.libraries_bytes
        )  # fmt: skip


def estimate_input(network: Network, plan: RunPlan, engine: Engine, *, on_gpu: bool) -> InputBuffers:
    """Count the input's buffers: one micro-batch of decoded, cut, normalised images for each of the queue's places."""
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
    network: Network, plan: RunPlan, engine: Engine, buffers: InputBuffers, *, on_gpu: bool, moments: int
) -> MemoryEstimate:  # fmt: skip
    """Estimate a rank's memory in training.

    Backward needs the outputs of convolutions, ReLUs, pools and concatenations; batch norms and additions are
    overwritten by the ReLU behind them. float16 keeps a float32 master copy of the weights; the ``moments`` that an
    optimizer keeps of each weight are float32 always.
    """
    width = BYTES_PER_NUMBER[engine.precision]
    kept = [layer.output_elements for layer in network.layers if _is_kept(layer)]
    live = sum(kept) + _LIVE_GRADIENTS * max(kept)
    master = 4 if engine.precision == "float16" else 0
    return MemoryEstimate(
        weights_bytes=network.num_parameters * (width + master),
        gradients_bytes=network.num_parameters * width,
        optimizer_bytes=network.num_parameters * 4 * moments,
        activations_bytes=plan.per_rank_batch_size * live * width,
        input_bytes=buffers.queued_bytes + buffers.decoder_bytes,
        libraries_bytes=_CUDA_BYTES if on_gpu else 0,
    )


def _is_kept(layer: Layer) -> bool:
    return layer.kind not in ("bn", "add")
