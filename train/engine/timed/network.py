"""A network and an optimizer that compute nothing and take their time.

Gradients have the real ones' names, order and types, only shorter, and the real communicator reduces them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from configs.machine_limits import usable_cores
from configs.optimizers import HyperParameters, OptimizerBlock
from configs.schema import Cluster, Recipe
from train.engine.protocol import Array, Engine
from train.engine.timed.device import Device, strike
from train.engine.timed.score import INVENTED_LOSS
from train.networks.arch import Network
from train.networks.layer import Parameter
from train.rank.identity import Identity

_TICK_S = 1e-3
"""Longest time by which a gradient arrives late, so that a rank wakes up for several at once: waking up costs as much
processor as all else that the step of a rehearsed rank does."""
_RANKS_PER_CORE = 4
"""Where more ranks than this share a core, gradients may arrive later in proportion: the cores, and not the waits, then
set the time of a step."""


def _grouped(ends_s: Sequence[float], tick_s: float) -> list[tuple[float, list[int]]]:
    """Return the gradients that arrive within a tick of each other, with the arrival of the last one of each group."""
    groups: list[tuple[float, list[int]]] = []
    for index in sorted(range(len(ends_s)), key=lambda index: (-ends_s[index], index)):
        if not groups or groups[-1][0] - ends_s[index] >= tick_s:
            groups.append((ends_s[index], []))
        groups[-1][1].insert(0, index)
    return groups[::-1]


class TimedNetwork:
    """See `train.engine.protocol.TrainableNetwork`.

    In every step, one gradient is set to 1 before it arrives, and the optimizer compares its sum with the number of
    ranks (``summed_ranks``, which is 1 where a bench leaves the sums out). All others are 0.

    Args:
        engine: The real framework.
        table: The layers.
        recipe: Has the images of an epoch and of a step, and the shape of labels.
        cluster: Has the rehearsal's times, sizes and faults, and the number type of gradients.
        device: Takes the time.
        identity: This rank.
    """

    def __init__(
        self,
        engine: Engine,
        table: Network,
        recipe: Recipe,
        cluster: Cluster,
        device: Device,
        identity: Identity,
    ) -> None:
        rehearsal = cluster.rehearsal
        assert rehearsal is not None
        assert len(rehearsal.waits.gradients_s) == len(table.parameters)
        self.parameters: tuple[Parameter, ...] = table.parameters
        self.image_shape = (1,)
        self.label_shape = recipe.label_shape
        self.step = -1  # the warm-up, in which no fault strikes
        self._engine, self._waits, self._device = engine, rehearsal.waits, device
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
        self._statistics = {
            each.name: engine.zeros((max(1, each.shape[0] // rehearsal.shrink),)) for each in table.statistics
        }
        crowding = cluster.ranks_per_node / usable_cores() / _RANKS_PER_CORE
        self._groups = _grouped(rehearsal.waits.gradients_s, _TICK_S * rehearsal.speed * max(1.0, crowding))

    @property
    def statistics(self) -> Sequence[Array]:
        """Return the running means and variances, which never change."""
        return list(self._statistics.values())

    def forward(self, images: Array, labels: Array) -> Array:
        """Wait for the forward pass and return an invented loss; a fault of this step strikes before."""
        for fault in self._faults:
            if fault.step == self.step:
                strike(fault, self._device)
        self._device.work(self._waits.forward_s)
        return self._loss

    def backward(self, arrived: Callable[[int], None] | None = None) -> None:
        """Wait for each gradient and call ``arrived`` when it would be computed; last layers come first."""
        begin = self._device.begin()
        self.mark(is_set=True)
        for end_s, indices in self._groups:
            self._device.work_until(begin, end_s)
            for index in indices:
                if arrived is not None:
                    arrived(index)

    def check_sum(self) -> None:
        """Raise unless the marked gradient's sum is the number of ranks.

        Raises:
            RuntimeError: The reduction went wrong.
        """
        found = float(self._engine.to_host(self.gradients[self.step % len(self.gradients)])[0])
        if found != self.summed_ranks:
            raise RuntimeError(f"the sum of ones over {self.summed_ranks} ranks is {found:g}")

    def mark(self, *, is_set: bool) -> None:
        """Fill the gradient of this step with ones or zeros."""
        index = self.step % len(self.gradients)
        self._engine.overwrite(self.gradients[index], self._marks[index][is_set])

    def inference(self) -> Callable[[Array], Array]:
        """Wait for the evaluation; return the function that returns the number of epochs done in place of logits."""
        epochs = self._engine.from_host(np.array([max(1, round(self.step / self._steps_per_epoch))], np.float32))
        self._device.work(self._waits.evaluation_s)
        return lambda _images: epochs

    def zero_gradients(self) -> None:
        """Set every gradient to 0, as it was."""
        for gradient, (zeros, _) in zip(self.gradients, self._marks, strict=True):
            self._engine.overwrite(gradient, zeros)

    @property
    def may_overflow(self) -> bool:
        """Return False."""
        return False

    def follow_masters(self) -> None:
        """Do nothing."""

    def seed(self, seed: int) -> None:
        """Do nothing."""

    def load_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Keep the beginning of every tensor, and statistics where ``weights`` has them."""
        held = {each.name: array for each, array in zip(self.parameters, self.masters, strict=True)}
        for name, array in {**held, **self._statistics}.items():
            if name in weights:
                start = np.ascontiguousarray(weights[name].reshape(-1)[: array.shape[0]], np.float32)
                self._engine.overwrite(array, self._engine.from_host(start))

    def read_weights(self) -> dict[str, np.ndarray]:
        """Copy every tensor to the host."""
        return dict(self.each_weight())

    def each_weight(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the items of `read_weights` one by one."""
        for each, array in zip(self.parameters, self.masters, strict=True):
            yield each.name, self._engine.to_host(array)

    def read_statistics(self) -> dict[str, np.ndarray]:
        """Copy the running statistics to the host."""
        return {name: self._engine.to_host(array) for name, array in self._statistics.items()}

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        """Return the array, which is a vector."""
        return stored

    from_oihw = to_oihw


class TimedOptimizer:
    """See `train.engine.protocol.Optimizer`; it waits for the sums, then for the update.

    Args:
        engine: The real framework.
        config: The recipe's block.
        network: Has the gradients.
        device: Takes the time.
        update_s: Time of an update.
    """

    def __init__(
        self, engine: Engine, config: OptimizerBlock, network: TimedNetwork, device: Device, update_s: float
    ) -> None:
        self.config = config
        self._engine, self._network, self._device, self._update_s = engine, network, device, update_s
        count = config.num_moments
        self.momenta = [engine.zeros(each.shape) for _ in range(count) for each in network.masters]

    def update(self, hyper: HyperParameters) -> None:
        """Wait for every gradient's sum, and then for the update."""
        self._engine.wait_all()  # A wait for each gradient would cost a rank a millisecond of its processor.
        if hyper.lr:  # The doctor takes updates without a rate of gradients that no other rank has, or that are inf.
            self._network.check_sum()
        self._network.mark(is_set=False)
        self._device.work(self._update_s)
        self._network.step = hyper.step + 1

    def reset(self) -> None:
        """Set the step to 0, as before the first one."""
        self._network.step = 0
