"""Averages over steps of weights and running statistics, which are evaluated in place of those of the last step.

Running statistics belong to the weights that computed them, so averaged weights need averaged statistics.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.ideas.part import Part, Place
from configs.ideas.weight_average import WeightAverageKeys
from train.engine.protocol import Array, Engine, TrainableNetwork


class WeightAverage(Part):
    """Averages of a network's weights and running statistics.

    They are updated every n = ``every_steps`` steps. After the k-th update, the value of update i has a weight in
    proportion to d^(k - i), where d = 0.5^(n / h) and h is ``half_life_steps``; the sum of the weights is 1. *Sources*:
    EMA of MosaicML's Composer, which averages parameters and buffers alike; the correction of bias of Adam (Kingma and
    Ba, arXiv:1412.6980, section 3). Without it, the first value would weigh 1 / (1 - d) times as much, which counts in
    runs of few half-lives: with h = 20 steps the digits have 3 of them in 3 epochs.
    Through the first n steps an average is the value itself.

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
        """Queue average = kept average + (1 - kept) own, for each weight and each running statistic.

        For update k, kept = d (1 - d^(k - 1)) / (1 - d^k).
        """
        if step < self._every_steps:
            self.reset()
        if step < self._every_steps or (step + 1) % self._every_steps:
            return
        updates = (step + 1) // self._every_steps
        kept = self._kept * (1 - self._kept ** (updates - 1)) / (1 - self._kept**updates)
        averages = self._averages()
        # A number for each tensor, because MXNet then takes one operator for many of them.
        self._engine.scale_add(averages, [kept] * len(averages), self._own(), [1 - kept] * len(averages))

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
    keys = WeightAverageKeys.of(place.recipe.optimizer)
    assert keys.average_half_life_steps is not None
    return WeightAverage(place.engine, place.network, keys.average_half_life_steps, keys.average_every_steps)
