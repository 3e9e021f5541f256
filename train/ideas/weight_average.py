"""Averages over steps of weights and running statistics, which are evaluated in place of those of the last step.

Running statistics belong to the weights that computed them, so averaged weights need averaged statistics.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.ideas.part import Part, Place
from configs.ideas.weight_average import WEIGHT_AVERAGE
from train.engine.protocol import Array, Engine, TrainableNetwork


class WeightAverage(Part):
    """Averages of a network's weights and running statistics.

    Every n = ``every_steps`` steps, an average becomes d average + (1 - d) value with d = 0.5^(n / h), where h is
    ``half_life_steps``. Through the first n steps it is the value itself: what a network was before its first step is
    no part of an average over steps. *Source*: EMA of MosaicML's Composer, which averages parameters and buffers alike,
    and begins with those after n steps.

    The averaged statistics of a rank differ from the other ranks', as its own do, until an evaluation.

    Args:
        engine: Where the arrays live.
        network: The network.
        half_life_steps: Steps after which a step counts half.
        every_steps: Steps between two updates of the averages.
    """

    def __init__(self, engine: Engine, network: TrainableNetwork, half_life_steps: float, every_steps: int) -> None:
        self._engine, self._network, self._every_steps = engine, network, every_steps
        self._kept = 0.5 ** (every_steps / half_life_steps)
        copies = [engine.copy(each) for each in self._own()]
        self._weights = {each.name: copies.pop(0) for each in network.parameters}
        self._statistics = dict(zip(network.read_statistics(), copies, strict=True))

    @property
    def evaluated_weights(self) -> Mapping[str, Array]:
        """See `Part`."""
        return self._weights

    @property
    def evaluated_statistics(self) -> Mapping[str, Array]:
        """See `Part`."""
        return self._statistics

    def reset(self) -> None:
        """See `Part`."""
        self._engine.overwrite_each(self._averages(), self._own())

    def updated(self, step: int) -> None:
        """Queue average = kept average + (1 - kept) own, for each weight and each running statistic."""
        if step < self._every_steps:
            self.reset()
        if step < self._every_steps or (step + 1) % self._every_steps:
            return
        for average, own in zip(self._averages(), self._own(), strict=True):
            self._engine.overwrite(average, average * self._kept + own * (1 - self._kept))

    @contextmanager
    def weights(self) -> Iterator[None]:
        """See `Part`; afterwards the network has its own weights and statistics again, bit for bit."""
        own = [self._engine.copy(each) for each in self._own()]
        self._give(self._averages())
        yield
        self._give(own)

    def _own(self) -> Sequence[Array]:
        return [*self._network.masters, *self._network.statistics]

    def _averages(self) -> Sequence[Array]:
        return [*self._weights.values(), *self._statistics.values()]

    def _give(self, values: Sequence[Array]) -> None:
        self._engine.overwrite_each(self._own(), values)
        self._network.follow_masters()


def part_of(place: Place) -> Part:
    """Return the averages of a network; an exported network has them as its weights."""
    if place.network is None:
        return Part()
    keys = WEIGHT_AVERAGE.keys_of(place.recipe)
    assert keys.average_half_life_steps is not None
    return WeightAverage(place.engine, place.network, keys.average_half_life_steps, keys.average_every_steps)
