"""Weights averaged over steps, which are evaluated and exported in place of those of the last step.

Names no framework: the averages are arrays of the engine, and part of the optimizer's state, so that checkpoints hold
them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from configs.optimizers import HyperParameters, OptimizerBlock
from train.engine.protocol import Array, Engine, Optimizer, TrainableNetwork


class AveragingOptimizer:
    """An optimizer that also moves an average of each weight towards the weight, every few steps.

    After n = ``average_every_steps`` steps, the average becomes d average + (1 - d) weight with d = 0.5^(n / h), where
    h is ``average_half_life_steps``. It begins as the first weight. *Source*: EMA of MosaicML's Composer; running
    statistics are not averaged here, as in PyTorch's ``AveragedModel``.

    Args:
        engine: Where the arrays live.
        optimizer: Updates the weights; its block has the half-life.
        network: The network.
    """

    def __init__(self, engine: Engine, optimizer: Optimizer, network: TrainableNetwork) -> None:
        self.config: OptimizerBlock = optimizer.config
        self._engine, self._optimizer, self._network = engine, optimizer, network
        self._averages = [engine.copy(master) for master in network.masters]
        assert self.config.average_half_life_steps is not None
        self._kept = 0.5 ** (self.config.average_every_steps / self.config.average_half_life_steps)

    @property
    def momenta(self) -> Sequence[Array]:
        """Return the state of the optimizer, then the averages."""
        return [*self._optimizer.momenta, *self._averages]

    def update(self, hyper: HyperParameters) -> Array | None:
        """Queue the update of weights and averages; see `Optimizer`."""
        skipped = self._optimizer.update(hyper)
        if (hyper.step + 1) % self.config.average_every_steps == 0:
            for average, master in zip(self._averages, self._network.masters, strict=True):
                self._engine.overwrite(average, average * self._kept + master * (1 - self._kept))
        return skipped

    def reset(self) -> None:
        """Set the optimizer's state to 0 and the averages to the weights, as before the first step."""
        self._optimizer.reset()
        self._set(self._averages, self._network.masters)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the network the averages while the block runs, and then its own weights again, bit for bit."""
        own = [self._engine.copy(master) for master in self._network.masters]
        self._give(self._averages)
        yield
        self._give(own)

    def _give(self, values: Sequence[Array]) -> None:
        network = self._network
        self._set(network.masters, values)
        for weight, master in zip(network.weights, network.masters, strict=True):
            if weight is not master:
                self._engine.overwrite(weight, master)

    def _set(self, targets: Sequence[Array], values: Sequence[Array]) -> None:
        for target, value in zip(targets, values, strict=True):
            self._engine.overwrite(target, value)
