"""One training step as a timeline: forward, backward, reductions on their stream, update, and who waits for whom."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.comm.buckets import plan_buckets
from train.networks.arch import Network, gradient_bytes
from train.sim.collectives import allreduce
from train.sim.constants import Constants
from train.sim.hardware import Machine
from train.sim.roofline import KernelTable, kernel_times, tabulate, update_time

__all__ = ["SUMS_APART", "Bucket", "Reduction", "Software", "Step", "StepModel"]

SUMS_APART = 8 / 7
"""Traffic of batch norms that read their input once more for its sums, over that of NVIDIA's networks for one node,
where the convolution before them makes the sums: 3 + 5 passes over a tensor in place of 2 + 5."""


@dataclass(frozen=True)
class Software:
    """How the training program reduces gradients.

    Args:
        bucket_bytes: Cap of one fused reduction.
        algorithm: Of `train.sim.collectives.allreduce`.
        cycle_s: How often ready gradients are looked for; half of it is waited on average.
        boundaries: Tensors in each bucket, last layer first, where a program fixes them; overrides the cap.
        images_per_s: What one rank's input pipeline delivers; none: enough.
        graphs: Kernels are launched as one graph, not one by one from the host.
        norm_traffic: Bytes moved by batch norms and additions, relative to kernels of their own; compilers that fuse
            them into the convolutions move fewer.
        optimizer_work: What a costly optimizer adds to a step, relative to forward and backward.
        channels: Multiprocessors that a reduction takes from the compute under which it hides.
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


@dataclass(frozen=True)
class Bucket:
    """Gradients that travel together: bytes, and the backward kernel after which the last of them is ready."""

    size_bytes: int
    after_kernel: int


@dataclass(frozen=True)
class Reduction:
    """One bucket on the communication stream, seconds from the start of the step."""

    size_bytes: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Step:
    """Where the time of a step goes, in seconds; the parts add up to ``total_s``.

    ``straggler_s`` is what the slowest rank adds to the compute of a typical one, ``contention_s`` what backward loses
    to reductions that run under it, ``exposed_s`` the wait for reductions after backward, ``input_s`` that for images.
    """

    forward_s: float
    backward_s: float
    straggler_s: float
    contention_s: float
    exposed_s: float
    update_s: float
    overhead_s: float
    input_s: float
    reductions: tuple[Reduction, ...]

    @property
    def total_s(self) -> float:
        """Seconds from one step to the next."""
        waits_s = self.straggler_s + self.contention_s + self.exposed_s + self.overhead_s + self.input_s
        return self.compute_s + waits_s + self.update_s

    @property
    def compute_s(self) -> float:
        """Forward and backward of a typical rank."""
        return self.forward_s + self.backward_s

    @property
    def communication_s(self) -> float:
        """Time in which the communication stream is busy."""
        return sum(reduction.end_s - reduction.start_s for reduction in self.reductions)


class StepModel:
    """A network's kernels and buckets, ready to be timed on any machine."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.forward, self.backward = tabulate(network)
        self._num_parameters = network.num_parameters
        self._buckets: dict[tuple[int, int, tuple[int, ...]], tuple[Bucket, ...]] = {}

    def buckets(self, software: Software, bytes_per_number: int) -> tuple[Bucket, ...]:
        """Fuse the gradients as training does."""
        key = (bytes_per_number, software.bucket_bytes, software.boundaries)
        if key not in self._buckets:
            self._buckets[key] = _plan(self.network, self.backward, *key)
        return self._buckets[key]

    @staticmethod
    def kernels(
        table: KernelTable, machine: Machine, batch: float, constants: Constants, software: Software
    ) -> npt.NDArray[np.float64]:
        """Give each kernel's seconds, launched as this software launches."""
        launch_s = 0.0 if software.graphs else constants.launch_s
        return kernel_times(table, machine, batch, constants, software.norm_traffic) + launch_s

    def step(
        self, machine: Machine, batch: float, constants: Constants, software: Software, factor: float = 1.0
    ) -> Step:
        """Time one step.

        Args:
            machine: Where.
            batch: Images a rank.
            constants: Calibrated.
            software: How gradients are reduced.
            factor: On compute time, from the calibrated effects of this family.
        """
        slowest = 1 + constants.straggler * math.sqrt(2 * math.log(machine.ranks))
        forward_s = factor * float(self.kernels(self.forward, machine, batch, constants, software).sum())
        kernels = factor * np.cumsum(self.kernels(self.backward, machine, batch, constants, software))
        alone_s = slowest * (forward_s + float(kernels[-1]))
        reductions = self._reduce(machine, constants, software, slowest * (forward_s + kernels))
        hidden_s = sum(max(0.0, min(one.end_s, alone_s) - one.start_s) for one in reductions)
        contention_s = hidden_s * min(0.5, software.channels / machine.accelerator.units)
        if contention_s:
            stretched = slowest * forward_s + kernels * (slowest + contention_s / float(kernels[-1]))
            reductions = self._reduce(machine, constants, software, stretched)
        backward_s = float(kernels[-1])
        compute_s = forward_s + backward_s
        exposed_s = max(0.0, reductions[-1].end_s - slowest * compute_s - contention_s) if reductions else 0.0
        nodes = -(-machine.ranks // machine.ranks_per_node)
        update_s = factor * update_time(self._num_parameters, machine, constants)
        update_s += software.optimizer_work * compute_s
        busy_s = slowest * compute_s + contention_s + exposed_s + update_s
        # The communication thread wakes every cycle, also while nothing is ready.
        overhead_s = (constants.multinode_s if nodes > 1 else 0.0) + _negotiation(machine, constants, software, busy_s)
        input_s = batch * constants.decode_s
        if software.images_per_s is not None:
            input_s = max(input_s, batch / software.images_per_s - busy_s - overhead_s)
        straggler_s = (slowest - 1) * compute_s
        return Step(
            forward_s, backward_s, straggler_s, contention_s, exposed_s, update_s, overhead_s, input_s, reductions
        )

    def _reduce(
        self, machine: Machine, constants: Constants, software: Software, ready: npt.NDArray[np.float64]
    ) -> tuple[Reduction, ...]:
        """Queue the buckets: each starts when it is ready and the one before it has ended."""
        if machine.ranks == 1:
            return ()
        topology = machine.topology(constants.network_efficiency)
        free_s, queue = 0.0, []
        for bucket in self.buckets(software, machine.bytes_per_number):
            ready_s = float(ready[bucket.after_kernel]) + software.cycle_s / 2
            start_s = max(ready_s, free_s)
            free_s = start_s + allreduce(software.algorithm, topology, bucket.size_bytes).time_s
            queue.append(Reduction(bucket.size_bytes, ready_s, start_s, free_s))
        return tuple(queue)


def _negotiation(machine: Machine, constants: Constants, software: Software, busy_s: float) -> float:
    if machine.ranks == 1 or not constants.cycle_cpu_s:
        return 0.0
    return busy_s * constants.cycle_cpu_s / software.cycle_s


def _plan(
    network: Network, backward: KernelTable, bytes_per_number: int, cap_bytes: int, boundaries: tuple[int, ...]
) -> tuple[Bucket, ...]:
    sizes = gradient_bytes(network.parameters, bytes_per_number)
    owner = [index for index, layer in enumerate(network.layers) for _ in layer.parameters]
    last_kernel = {int(layer): kernel for kernel, layer in enumerate(backward.layer)}
    if boundaries:
        assert sum(boundaries) == len(sizes), "boundaries count every tensor once"
        stops = np.cumsum(boundaries)
        order = range(len(sizes) - 1, -1, -1)
        groups = tuple(tuple(order[stop - count : stop]) for count, stop in zip(boundaries, stops, strict=True))
    else:
        groups = plan_buckets(sizes, cap_bytes)
    return tuple(
        Bucket(sum(sizes[index] for index in group), max(last_kernel[owner[index]] for index in group))
        for group in groups
    )
