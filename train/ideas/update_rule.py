"""The optimizer of any block that brings its own update rule, as arithmetic on the engine's arrays.

It runs one rule per tensor and is slower than an engine's fused implementation.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from configs.optimizers import HyperParameters
from train.comm.shares import ALONE, Shares
from train.engine.protocol import Array, Engine, TrainableNetwork


class RuleOptimizer:
    """Update a network's weights by ``config.update_rule``; see `train.engine.protocol.Optimizer`.

    Norms, moments and update use the float32 masters, and a weight of 16 bits is a copy of its master.
    An engine's own implementation is a subclass, with another `update` and what that needs.

    Args:
        engine: Where the arrays live.
        config: The recipe's block.
        network: The network; its gradients are sums over the global batch, in the type of the weights or in float32.
        rescale: Factor from sums to means, 1 / global batch size.
        arrivals: Arrival group of each tensor, 0 first, whose update need not wait for later groups. If empty, all
            tensors are one group.
        shares: Divides among the ranks what a subclass computes of whole tensors.

    Attributes:
        momenta: The first moment of every tensor, then the second moment of every tensor, float32.
    """

    def __init__(
        self,
        engine: Engine,
        config: Any,
        network: TrainableNetwork,
        *,
        rescale: float,
        arrivals: Sequence[int] = (),
        shares: Shares = ALONE,
    ) -> None:
        self.config, self._shares = config, shares
        self._engine, self._network, self._rescale = engine, network, rescale
        self._arrivals = arrivals or [0] * len(network.masters)
        self._skipped: Array | None = None
        self._prepare()

    def _prepare(self) -> None:
        """Make the moments, and what a subclass holds besides."""
        masters = self._network.masters
        self.momenta = [self._engine.zeros(each.shape) for _ in range(self.config.num_moments) for each in masters]

    def update(self, hyper: HyperParameters) -> Array | None:
        """Queue the update of all weights for one step; see `train.engine.protocol.Optimizer.update`."""
        network = self._network
        self._skipped = self._engine.clear_unless_finite(network.gradients) if network.may_overflow else None
        self._update(hyper)
        network.follow_masters()
        return self._skipped

    def _update(self, hyper: HyperParameters) -> None:
        for index in range(len(self._network.masters)):
            self._update_tensor(index, self._values(index, hyper))

    def _update_tensor(self, index: int, values: HyperParameters) -> None:
        moments = self._moments(index)
        updated, new_moments = self.config.update_rule(self._network.masters[index], self._mean(index), moments, values)
        for moment, new in zip(moments, new_moments, strict=True):
            self._move(moment, new)
        self._move(self._network.masters[index], updated)

    def _mean(self, index: int) -> Array:
        """Return the mean gradient of a tensor, float32."""
        return self._engine.to_float32(self._network.gradients[index]) * self._rescale

    def _moments(self, index: int) -> Sequence[Array]:
        """Return the moments of a tensor; a subclass may keep other state behind them."""
        count = len(self._network.masters)
        return self.momenta[index : self.config.num_moments * count : count]

    def _values(self, index: int, hyper: HyperParameters) -> HyperParameters:
        """Return the numbers of a step for a tensor, which may have no weight decay."""
        decays = self.config.decays(self._network.parameters[index].kind)
        return hyper if decays else replace(hyper, weight_decay=0.0)

    def _move(self, array: Array, new: Array) -> None:
        """Queue a new value of a weight or a moment, both finite; in a step that is skipped, it stays as it is."""
        skipped = self._skipped
        self._engine.overwrite(array, new if skipped is None else new * (1 - skipped) + array * skipped)

    def reset(self) -> None:
        """Set the state to what it was before the first step: every moment to 0."""
        self._engine.clear(self.momenta)
