"""Waits behind `train.engine.protocol.Engine`; arrays are those of a real framework.

A rank needs hardly any processor, so one machine can hold many. Gradients have the real ones' names, order and types,
only shorter, and the real communicator reduces them.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from configs.machine_limits import usable_cores
from configs.optimizers import HyperParameters, OptimizerBlock
from configs.schema import Cluster, Recipe
from train.engine.protocol import Array, Engine, Optimizer, TrainableNetwork
from train.engine.timed.device import Device, strike
from train.engine.timed.score import INVENTED_LOSS
from train.networks.arch import Network
from train.rank.identity import Identity

_TICK_S = 1e-3
"""Longest time by which a gradient arrives late, so that a rank wakes up for several at once: waking up costs as much
processor as all else that the step of a rehearsed rank does."""
_RANKS_PER_CORE = 4
"""Where more ranks than this share a core, gradients may arrive later in proportion: the cores, and not the waits, then
set the time of a step."""


class TimedEngine:
    """See `train.engine.protocol.Engine`; every verb that is not here is the real framework's.

    Args:
        arrays: The real framework, which has the arrays.
        cluster: Has the rehearsal's times, sizes and faults.
        identity: This rank.
    """

    def __init__(self, arrays: Engine, cluster: Cluster, identity: Identity) -> None:
        rehearsal = cluster.rehearsal
        assert rehearsal is not None
        self.arrays, self.cluster, self.identity, self.rehearsal = arrays, cluster, identity, rehearsal
        self.device = Device(rehearsal.slowness(identity.rank) / rehearsal.speed, rehearsal.noise)
        # Beside the device's own work, as a GPU copies.
        self._paths = {part: Device(1 / rehearsal.speed, rehearsal.noise) for part in ("copy", "link")}
        self._told_s = 0.0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.arrays, verb)

    def build_network(self, table: Network, recipe: Recipe, *, accumulate: bool) -> TrainableNetwork:
        """Return the network of waits for a table of layers."""
        assert not accumulate, "a rehearsal has one micro-batch a step"
        return _TimedNetwork(self, table, recipe)

    def from_host(self, values: np.ndarray) -> Array:
        """Return an array of the real framework; the copy of images, which alone have two axes, is queued."""
        if values.ndim > 1:
            path, own = self._paths["copy"], self.rehearsal.slowness(self.identity.rank, "copy")
            path.queue(path.begin(), own * self.rehearsal.waits.copy_s)
        return self.arrays.from_host(values)

    def swap(self, array: Array, partner: int | None) -> Array:
        """Queue a swap over the slower one of two links, see `train.comm.communicator.Communicator`."""
        if partner is not None:
            path = self._paths["link"]
            slower = max(self.rehearsal.slowness(rank, "link") for rank in (self.identity.rank, partner))
            path.queue(path.begin(), slower * self.rehearsal.waits.swap_s)
        return array

    def wait_all(self) -> None:
        """Wait until everything queued is done, in the real framework and on the device of waits.

        The device comes last: what a rank computes after a wait, the other ranks that wake up then have to wait for.
        """
        self.arrays.wait_all()
        for each in (self.device, *self._paths.values()):
            each.wait()

    def finish(self) -> float:
        """See `train.engine.protocol.Engine.finish`.

        Waits have ended when they should, and not when this process woke up: where many ranks share few cores, it wakes
        up late by more than a rank's slowness that an acceptance is to find.
        """
        self.wait_all()
        last_s = max(each.free for each in (self.device, *self._paths.values()))
        if last_s == self._told_s:  # Nothing has been queued since, so what has ended now was no wait.
            return time.monotonic()
        self._told_s = last_s
        return last_s

    def fused_optimizer(self, config: OptimizerBlock, network: TrainableNetwork) -> Callable[..., Optimizer]:
        """Return what makes the optimizer that waits for the sums, and queues the update."""
        assert isinstance(network, _TimedNetwork)
        return lambda *_, **__: _TimedOptimizer(self, config, network)


def _grouped(ends_s: Sequence[float], tick_s: float) -> list[tuple[float, list[int]]]:
    """Return the gradients that arrive within a tick of each other, with the arrival of the last one of each group."""
    groups: list[tuple[float, list[int]]] = []
    for index in sorted(range(len(ends_s)), key=lambda index: (-ends_s[index], index)):
        if not groups or groups[-1][0] - ends_s[index] >= tick_s:
            groups.append((ends_s[index], []))
        groups[-1][1].insert(0, index)
    return groups[::-1]


class _TimedNetwork(TrainableNetwork):
    """A network of waits.

    In every step, one gradient is set to 1 before it arrives, and the optimizer compares its sum with the number of
    ranks (``summed_ranks``, which is 1 where a bench leaves the sums out). All others are 0.

    Args:
        owner: Has the real framework, the device that takes the time, and the rehearsal's times, sizes and faults.
        table: The layers.
        recipe: Has the images of an epoch and of a step, and the shape of labels.
    """

    def __init__(self, owner: TimedEngine, table: Network, recipe: Recipe) -> None:
        engine, cluster, identity, rehearsal = owner.arrays, owner.cluster, owner.identity, owner.rehearsal
        assert len(rehearsal.waits.gradients_s) == len(table.parameters)
        super().__init__(engine, table, recipe, "")
        self.image_shape = (1,)
        self.step = -1  # the warm-up, in which no fault strikes
        self._waits, self._device = rehearsal.waits, owner.device
        self._faults = rehearsal.faults_of(identity.rank)
        self.summed_ranks = identity.world_size
        # Arrays that a step needs are made once: making them anew took a quarter of this thread's processor time.
        self._loss = engine.from_host(
            np.array([INVENTED_LOSS * recipe.batch.global_size / identity.world_size], np.float32)
        )
        self._steps_per_epoch = recipe.data.train_samples / recipe.batch.global_size
        lengths = [max(1, each.size // rehearsal.shrink) for each in self.parameters]
        self.weights = self.masters = [engine.zeros((length,)) for length in lengths]
        # NumPy has no bfloat16; float16 is as long.
        half = "float32" if cluster.sum_precision == "float32" else "float16"
        kinds = ["float32" if each.is_norm else half for each in self.parameters]
        self.gradients = [engine.from_host(np.zeros(length, kind)) for length, kind in zip(lengths, kinds, strict=True)]
        self._marks = [[engine.flag(each, is_set=is_set) for is_set in (False, True)] for each in self.gradients]
        self._statistics |= {
            each.name: engine.zeros((max(1, each.shape[0] // rehearsal.shrink),)) for each in table.statistics
        }
        crowding = cluster.ranks_per_node / usable_cores() / _RANKS_PER_CORE
        self._groups = _grouped(rehearsal.waits.gradients_s, _TICK_S * rehearsal.speed * max(1.0, crowding))

    def forward(self, images: Array, labels: Array) -> Array:
        """Queue the forward pass and return an invented loss; a fault of this step strikes before."""
        for fault in self._faults:
            if fault.step == self.step:
                strike(fault, self._device)
        self._device.queue(self._device.begin(), self._waits.forward_s)
        return self._loss

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        """Wait for each gradient and call ``arrived`` when it would be computed; last layers come first.

        Without ``arrived``, the backward pass is only queued: nobody waits for single gradients, and ranks that share
        cores would delay each other whenever they wake up for one.
        """
        begin = self._device.begin()
        self.mark(is_set=True)
        if arrived is None:
            self._device.queue(begin, self._groups[-1][0])
            return
        for end_s, indices in self._groups:
            self._device.work_until(begin, end_s)
            for index in indices:
                arrived(index)

    def check_sum(self) -> None:
        """Raise unless the marked gradient's sum is the number of ranks.

        Raises:
            RuntimeError: The reduction went wrong.
        """
        found = float(self.engine.to_host(self.gradients[self.step % len(self.gradients)])[0])
        if found != self.summed_ranks:
            raise RuntimeError(f"the sum of ones over {self.summed_ranks} ranks is {found:g}")

    def mark(self, *, is_set: bool) -> None:
        """Fill the gradient of this step with ones or zeros."""
        index = self.step % len(self.gradients)
        self.engine.overwrite(self.gradients[index], self._marks[index][is_set])

    def inference(self) -> Callable[[Array], Array]:
        """Wait for the evaluation; return the function that returns the number of epochs done in place of logits."""
        epochs = self.engine.from_host(np.array([max(1, round(self.step / self._steps_per_epoch))], np.float32))
        self._device.work(self._waits.evaluation_s)
        return lambda _images: epochs

    def seed(self, seed: int) -> None:
        """Do nothing."""

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Keep the beginning of every tensor, and statistics where ``weights`` has them."""
        for name, array in {**self._weights(), **self._statistics}.items():
            if name in weights:
                start = np.ascontiguousarray(weights[name].reshape(-1)[: array.shape[0]], np.float32)
                self.engine.overwrite(array, self.engine.from_host(start))


class _TimedOptimizer:
    """See `train.engine.protocol.Optimizer`; it waits for the sums, and queues the update."""

    def __init__(self, owner: TimedEngine, config: OptimizerBlock, network: _TimedNetwork) -> None:
        self.config, self._owner, self._network = config, owner, network
        count = config.num_moments
        self.momenta = [owner.arrays.zeros(each.shape) for _ in range(count) for each in network.masters]

    def update(self, hyper: HyperParameters) -> None:
        """Wait for every gradient's sum, and queue the update."""
        self._owner.arrays.wait_all()  # A wait for each gradient would cost a rank a millisecond of its processor.
        if hyper.lr:  # The doctor takes updates without a rate of gradients that no other rank has, or that are inf.
            self._network.check_sum()
        self._network.mark(is_set=False)
        device = self._owner.device
        device.queue(device.begin(), self._owner.rehearsal.waits.update_s)
        self._network.step = hyper.step + 1

    def reset(self) -> None:
        """Set the step to 0, as before the first one."""
        self._network.step = 0
