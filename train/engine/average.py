"""Averages over steps of weights and running statistics, which are evaluated and exported in place of the last step's.

Names no framework: the averages are arrays of the engine.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from configs.optimizers import HyperParameters
from train.engine.protocol import Array, Engine, Optimizer, TrainableNetwork


class NoAverages:
    """The averages of a run that keeps none.

    Attributes:
        weights: Name of each parameter -> average of its float32 weights, first layer first.
        statistics: Name of each running statistic -> average of it.
    """

    def __init__(self) -> None:
        self.weights: Mapping[str, Array] = {}
        self.statistics: Mapping[str, Array] = {}

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Give the network the averages while the block runs, and then its own state again, bit for bit."""
        yield


NO_AVERAGES = NoAverages()


class Averages(NoAverages):
    """The averages of a network's weights and running statistics, as they are when this is made.

    Running statistics belong to the weights that computed them, so an averaged network needs averaged ones. Those of a
    rank differ from the other ranks', as its own running statistics do, until an evaluation.

    Args:
        engine: Where the arrays live.
        network: The network.
    """

    def __init__(self, engine: Engine, network: TrainableNetwork) -> None:
        self._engine, self._network = engine, network
        copies = [engine.copy(each) for each in self._own()]
        self.weights = {each.name: copies.pop(0) for each in network.parameters}
        self.statistics = dict(zip(network.read_statistics(), copies, strict=True))

    def move(self, kept: float) -> None:
        """Queue average = kept average + (1 - kept) own, for each weight and each running statistic."""
        for average, own in zip(self._averages(), self._own(), strict=True):
            self._engine.overwrite(average, average * kept + own * (1 - kept))

    def begin(self) -> None:
        """Set the averages to the network's own weights and running statistics."""
        self._set(self._averages(), self._own())

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """See `NoAverages`."""
        own = [self._engine.copy(each) for each in self._own()]
        self._give(self._averages())
        yield
        self._give(own)

    def _own(self) -> Sequence[Array]:
        return [*self._network.masters, *self._network.statistics]

    def _averages(self) -> Sequence[Array]:
        return [*self.weights.values(), *self.statistics.values()]

    def _give(self, values: Sequence[Array]) -> None:
        network = self._network
        self._set(self._own(), values)
        for weight, master in zip(network.weights, network.masters, strict=True):
            if weight is not master:
                self._engine.overwrite(weight, master)

    def _set(self, targets: Sequence[Array], values: Sequence[Array]) -> None:
        for target, value in zip(targets, values, strict=True):
            self._engine.overwrite(target, value)


class AveragingOptimizer:
    """An optimizer that also moves averages towards weights and running statistics, every few steps.

    Every n = ``average_every_steps`` steps, an average becomes d average + (1 - d) value with d = 0.5^(n / h), where h
    is ``average_half_life_steps``. Through the first n steps it is the value itself: what a network was before its
    first step is no part of an average over steps. *Source*: EMA of MosaicML's Composer, which averages parameters and
    buffers alike, and begins with those after n steps.

    Args:
        optimizer: Updates the weights; its block has the half-life.
        averages: The averages of the same network.
    """

    def __init__(self, optimizer: Optimizer, averages: Averages) -> None:
        self.config: Any = optimizer.config
        self._optimizer, self._averages = optimizer, averages
        self._kept = 0.5 ** (self.config.average_every_steps / self.config.average_half_life_steps)

    @property
    def momenta(self) -> Sequence[Array]:
        """Return the state of the optimizer, of which the averages are no part."""
        return self._optimizer.momenta

    def update(self, hyper: HyperParameters) -> Array | None:
        """Queue the update of weights and averages; see `Optimizer`."""
        skipped = self._optimizer.update(hyper)
        every = self.config.average_every_steps
        if hyper.step < every:
            self._averages.begin()
        elif (hyper.step + 1) % every == 0:
            self._averages.move(self._kept)
        return skipped

    def reset(self) -> None:
        """Set the optimizer's state to 0 and begin the averages, as before the first step."""
        self._optimizer.reset()
        self._averages.begin()
