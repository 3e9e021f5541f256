"""The time of one training step of a program on a machine: forward, backward, reductions, update, and all waiting.

The time of a convolution is max(FLOPs / reached peak, bytes / reached bandwidth); other layers only move bytes. Two
costs weigh more the smaller the batch is: the launch of each kernel, and the last wave of tiles, which on average
leaves half of the multiprocessors idle. The layers come from `train.networks.arch`, which training uses too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from configs.schema import Cluster, Communication, Recipe
from train.comm.buckets import bucket_cap, plan_buckets
from train.networks.arch import Network, build_network, gradient_bytes, network_of
from train.networks.layer import Layer, Traffic
from train.sim.collectives import SHARED_MEMORY, allreduce
from train.sim.constants import Constants
from train.sim.hardware import Machine, program_numbers

Array = npt.NDArray[np.float64]
KernelTable = npt.NDArray[np.void]
"""Kernels of one pass in the order in which they run; ``table["flops"]`` is the column of a field of `Kernel`."""

_TILE = 128 * 128
"""Outputs in a usual tile of a matrix kernel."""
_UPDATE_BYTES = 26
"""Bytes that LARS moves for each parameter: the 32-bit weight and momentum are read and written, the gradient is read,
the 16-bit weight is written, and weight and gradient are read once more for their norms."""

MAX_RANKS, MAX_BATCH = 1 << 20, 1 << 14
"""Largest number of accelerators, and of images a rank, that a forecast accepts: far beyond any machine."""
_MOST_CONTENTION = 0.5
"""Reductions take at most this share of the multiprocessors from backward."""
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
        software = Software(
            graphs=False, norm_traffic=norm_traffic("unfused", machine, is_channels_last=is_channels_last)
        )
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
        norm_traffic=norm_traffic(passes, machine, is_channels_last=is_channels_last),
        overlaps=graphs != "compute",
        host_s=0.0 if is_graph else launches[program] / launches["kernels"] * pytorch["launch_s"],
        unit_bytes_per_s=pytorch["unit_bytes_per_s"],
    )


def norm_traffic(program: str, machine: Machine | None = None, *, is_channels_last: bool = True) -> float:
    """Return the memory traffic of a program's batch norms, relative to that of NVIDIA's networks for one node.

    Args:
        program: Of the section ``passes`` in programs.yaml.
        machine: Accelerators whose matrix units need copies of tensors with channels first. If None, none does.
        is_channels_last: Whether tensors have the layout that matrix units read.
    """
    passes = program_numbers("passes")
    is_copied = machine is not None and machine.uses_matrix_units and not is_channels_last
    return (passes[program] + is_copied * passes["layout_copies"]) / passes["tuned"]


class Kernel(NamedTuple):
    """A row of a `KernelTable`.

    Numbers (of tensors) become bytes when `kernel_times` multiplies them by the bytes of the precision.

    Attributes:
        layer: Index into the network's layers.
        numbers: Numbers read or written for each image.
        fresh: Of ``numbers``, those that this kernel or the one before has just read or written, for each image.
        span: Numbers for each image between the two uses of a fresh number: a cache that holds them saves the second
            reading.
        flops: FLOPs for each image.
        plain_flops: The same without matrix units, where kernels of small filters multiply less (Winograd).
        weights: Numbers read or written once, whatever the batch.
        tiles: Matrix tiles for each image; 0 for kernels that only move bytes.
    """

    layer: int
    numbers: float
    fresh: float
    span: float
    flops: float = 0.0
    plain_flops: float = 0.0
    weights: float = 0.0
    tiles: float = 0.0


def tabulate(network: Network) -> tuple[KernelTable, KernelTable]:
    """Return the kernels of forward and of backward; ReLU and addition are fused into the batch norm before them."""
    forward: list[Kernel] = []
    backward: list[Kernel] = []
    for index, layer in enumerate(network.layers):
        read, made = float(layer.input_elements), float(layer.output_elements)
        if layer.macs:
            forward.append(_product(layer, index, fresh=read, span=read, outputs=made))
            for_weights = _product(layer, index, fresh=made, span=made + read, outputs=0)
            for_data = _product(layer, index, fresh=made, span=made, outputs=read)
            # The gradient of the images is not needed. The layers of backward follow in the opposite order.
            backward += [for_weights, for_data] if index else [for_weights]
        elif layer.kind.has_kernel:
            forward.append(Kernel(index, *_traffic(layer, layer.kind.forward, fresh=read)))
            backward.append(Kernel(index, *_traffic(layer, layer.kind.backward, fresh=made)))
    return _table(forward), _table(backward[::-1])


def _traffic(layer: Layer, multiples: Traffic | None, *, fresh: float) -> Traffic:
    """Return what a kernel without products moves; ``fresh`` are the fresh numbers if its kind has no ``multiples``."""
    if multiples is None:
        return Traffic(layer.input_elements + layer.output_elements, fresh, span=fresh)
    return Traffic(*(each * layer.output_elements for each in multiples))


def _product(layer: Layer, index: int, *, fresh: float, span: float, outputs: float) -> Kernel:
    """Return a kernel of matrix products; ``outputs`` are those for each image, in tiles."""
    return Kernel(
        index,
        numbers=layer.input_elements + layer.output_elements,
        fresh=fresh,
        span=span,
        flops=2.0 * layer.macs,
        plain_flops=2.0 * layer.macs / layer.kind.spared(layer),
        weights=sum(parameter.size for parameter in layer.parameters),
        tiles=outputs / _TILE,
    )


def _table(kernels: list[Kernel]) -> KernelTable:
    return np.array(kernels, dtype=[(name, np.int64 if name == "layer" else np.float64) for name in Kernel._fields])


def kernel_times(table: KernelTable, machine: Machine, batch: float, constants: Constants, software: Software) -> Array:
    """Return the seconds of each kernel on one accelerator.

    Args:
        table: The kernels.
        machine: Its accelerator and precision.
        batch: Images of one rank.
        constants: Calibrated.
        software: How the program launches kernels, and what those without arithmetic move.
    """
    units, is_product = machine.accelerator.units, table["flops"] > 0
    if machine.uses_matrix_units:
        arithmetic = batch * table["flops"] / (machine.peak * constants.compute_efficiency)
    else:
        arithmetic = batch * table["plain_flops"] / (machine.peak * constants.plain_efficiency)
    tiles = np.maximum(batch * table["tiles"], 1e-9)
    arithmetic = np.where(table["tiles"] > 0, arithmetic * (1 + constants.tail * units / tiles), arithmetic)
    held = constants.cache_share * machine.accelerator.cache
    found = table["fresh"] * np.minimum(1.0, held / (machine.bytes_per_number * batch * table["span"]))
    numbers = np.where(is_product, 1.0, software.norm_traffic) * (table["numbers"] - found)
    traffic = machine.bytes_per_number * (batch * numbers + table["weights"])
    bandwidth = machine.accelerator.memory * constants.memory_efficiency
    memory = traffic / np.where(is_product, bandwidth, min(bandwidth, units * software.unit_bytes_per_s))
    launch_s = 0.0 if software.graphs else constants.launch_s
    return np.asarray(slowdown(machine, constants) * (constants.kernel_s + np.maximum(arithmetic, memory) + launch_s))


def update_time(parameters: int, machine: Machine, constants: Constants) -> float:
    """Return the seconds of the optimizer's update, which only moves bytes."""
    update_s = _UPDATE_BYTES * parameters / (machine.accelerator.memory * constants.memory_efficiency)
    return slowdown(machine, constants) * update_s


def slowdown(machine: Machine, constants: Constants) -> float:
    """Return the factor on the time of kernels and of the update: the ranks of a node share its cores."""
    return constants.compute_factor * max(1.0, min(machine.ranks, machine.accelerator.node) / constants.cores)


class Reduction(NamedTuple):
    """One bucket on the communication stream; times are seconds from the start of the step."""

    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


class StepTime(NamedTuple):
    """The time of a step by purpose, in seconds; the parts add up to ``total_s``.

    Attributes:
        forward_s: Forward of a typical rank.
        backward_s: Backward of a typical rank.
        straggler_s: Time by which the slowest rank's forward and backward exceed those of a typical rank.
        contention_s: Time that backward loses to reductions which run at the same time.
        exposed_communication_s: Wait for reductions after the end of backward.
        update_s: The optimizer's update.
        input_s: Wait for images.
        overhead_s: Negotiation of the communication library.
        reductions: The buckets in the order of their reductions.
    """

    forward_s: float
    backward_s: float
    straggler_s: float
    contention_s: float
    exposed_communication_s: float
    update_s: float
    input_s: float
    overhead_s: float
    reductions: tuple[Reduction, ...]

    @property
    def parts(self) -> dict[str, float]:
        """The seconds of each purpose, by the name of its field."""
        return dict(zip(self._fields[:-1], self[:-1], strict=True))

    @property
    def total_s(self) -> float:
        """Seconds from the start of one step to the start of the next."""
        return sum(self[:-1])

    @property
    def compute_s(self) -> float:
        """Forward and backward of a typical rank."""
        return self.forward_s + self.backward_s

    def with_micro_batches_s(self, number: int) -> float:
        """Return the seconds of a step with ``number`` micro-batches: the last one's gradients are summed for all."""
        return self.total_s + (number - 1) * self.compute_s

    @property
    def communication_s(self) -> float:
        """Time in which the communication stream is busy."""
        return sum(reduction.end_s - reduction.start_s for reduction in self.reductions)


@lru_cache(maxsize=64)
def step_model(name: str, *, num_classes: int = 1000, image_size: int = 224, **others: Any) -> StepModel:
    """Return the step model of a network; equal arguments, which are `build_network`'s, give the same object."""
    return StepModel(build_network(name, num_classes=num_classes, image_size=image_size, **others))


class StepModel:
    """The kernels and buckets of a network, from which a step can be timed on any machine.

    Attributes:
        network: The network.
        forward: Its kernels in forward; ``backward`` likewise.
        kernel_of_gradient: For each parameter, the index of the backward kernel after which its gradient is ready.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.forward, self.backward = tabulate(network)
        last_kernel = {int(layer): kernel for kernel, layer in enumerate(self.backward["layer"])}
        self.kernel_of_gradient = [
            last_kernel[index]
            for index, layer in enumerate(network.layers)
            for _ in layer.parameters
            if not layer.is_frozen
        ]
        self._buckets: dict[tuple[int, int, tuple[int, ...]], list[tuple[int, int]]] = {}

    def buckets(self, software: Software, bytes_per_number: int) -> list[tuple[int, int]]:
        """Return the buckets that training makes of the gradients, in the order of their reductions.

        Each is its bytes, and the index of the backward kernel after which the last of its gradients is ready.
        """
        key = (bytes_per_number, software.bucket_bytes, software.boundaries)
        if key not in self._buckets:
            sizes, ready = gradient_bytes(self.network.parameters, bytes_per_number), self.kernel_of_gradient
            self._buckets[key] = [
                (sum(sizes[each] for each in group), max(ready[each] for each in group))
                for group in _groups(sizes, software)
            ]
        return self._buckets[key]

    def kernels(self, machine: Machine, batch: float, constants: Constants, software: Software) -> tuple[Array, Array]:
        """Return the seconds of each kernel of forward and of backward, with the host's launches if there is no graph.

        If the host needs more time to launch a step than the step takes, all kernels wait for it in proportion.
        """
        forward, backward = (
            kernel_times(table, machine, batch, constants, software) for table in (self.forward, self.backward)
        )
        busy_s = float(forward.sum() + backward.sum())
        launches_s = slowdown(machine, constants) * software.host_s * (len(forward) + len(backward))
        update_s = update_time(self.network.num_parameters, machine, constants)
        wait = max(0.0, launches_s - update_s - busy_s) / busy_s
        return forward * (1 + wait), backward * (1 + wait)

    def time_step(self, machine: Machine, batch: float, constants: Constants, software: Software) -> StepTime:
        """Predict the time of one step.

        Backward on the slowest rank first runs as if alone. Then it is stretched by the multiprocessors that the hidden
        reductions take, and the reductions are queued again.

        Args:
            machine: Accelerators and network.
            batch: Images of one rank.
            constants: Calibrated.
            software: How the program launches kernels and reduces gradients.
        """
        slowest = 1 + constants.straggler * math.sqrt(2 * math.log(machine.ranks))
        forward, backward = self.kernels(machine, batch, constants, software)
        forward_s = float(forward.sum())
        # When each backward kernel ends, in seconds from the start of backward.
        ends = np.cumsum(backward)
        backward_s = float(ends[-1])
        compute_s = forward_s + backward_s
        topology = machine.topology(constants.network_efficiency)
        buckets = [
            (size, after_kernel, allreduce(software.algorithm, topology, size))
            for size, after_kernel in (self.buckets(software, machine.bytes_per_sum) if machine.ranks > 1 else ())
        ]
        reductions = _queue(buckets, slowest * (forward_s + ends), software)
        hidden_s = sum(max(0.0, min(one.end_s, slowest * compute_s) - one.start_s) for one in reductions)
        contention_s = hidden_s * _contention(machine, software)
        if contention_s:
            stretched = slowest * forward_s + ends * (slowest + contention_s / backward_s)
            reductions = _queue(buckets, stretched, software)
        exposed_s = max(0.0, reductions[-1].end_s - slowest * compute_s - contention_s) if reductions else 0.0
        update_s = update_time(self.network.num_parameters, machine, constants) + software.optimizer_work * compute_s
        busy_s = slowest * compute_s + contention_s + exposed_s + update_s
        overhead_s = constants.multinode_s if machine.nodes > 1 else 0.0
        if machine.ranks > 1 and software.cycle_s:
            # The communication thread wakes in every cycle, also while no gradient is ready.
            overhead_s += busy_s * constants.cycle_cpu_s / software.cycle_s
        input_s = batch * constants.decode_s
        if software.images_per_s is not None:
            input_s = max(input_s, batch / software.images_per_s - busy_s - overhead_s)
        return StepTime(
            forward_s=forward_s,
            backward_s=backward_s,
            straggler_s=(slowest - 1) * compute_s,
            contention_s=contention_s,
            exposed_communication_s=exposed_s,
            update_s=update_s,
            overhead_s=overhead_s,
            input_s=input_s,
            reductions=reductions,
        )


def _queue(
    buckets: Sequence[tuple[int, int, float]], gradients_ready: Array, software: Software
) -> tuple[Reduction, ...]:
    """Return the reduction of each bucket: it starts when it is ready and the reduction before it has ended.

    Args:
        buckets: Those of `StepModel.buckets`, each with the seconds of its reduction.
        gradients_ready: When the gradients of each backward kernel are ready, from the start of the step.
        software: Gradients wait half of its cycle on average, and for the end of backward if it does not overlap.
    """
    free_s, queue = 0.0, []
    for size, after_kernel, seconds in buckets:
        ready_s = float(gradients_ready[after_kernel if software.overlaps else -1]) + software.cycle_s / 2
        start_s = max(ready_s, free_s)
        free_s = start_s + seconds
        queue.append(Reduction(size, ready_s, start_s, free_s))
    return tuple(queue)


def _contention(machine: Machine, software: Software) -> float:
    """Return the share of a reduction's time that it takes from backward while both run."""
    if machine.sums is not None and software.algorithm == SHARED_MEMORY:
        return 1.0 if machine.sums.cores < 2 * machine.ranks else 0.0  # the threads take core time from compute
    return min(_MOST_CONTENTION, software.channels / machine.accelerator.units)


def _groups(sizes: Sequence[int], software: Software) -> Sequence[Sequence[int]]:
    """Return the parameters of each bucket: as many as ``boundaries`` says, or else up to ``bucket_bytes``."""
    if not software.boundaries:
        return plan_buckets(sizes, software.bucket_bytes)
    assert sum(software.boundaries) == len(sizes), "boundaries count every tensor once"
    last_first = iter(range(len(sizes) - 1, -1, -1))
    return [list(islice(last_first, count)) for count in software.boundaries]
