"""The optimizer of any block that brings its own update rule, as arithmetic on the engine's arrays.

It runs one rule per tensor and is slower than an engine's fused implementation.
"""

from dataclasses import replace

from configs.optimizers import HyperParameters, OptimizerBlock
from train.engine.protocol import Engine, TrainableNetwork


class RuleOptimizer:
    """Update a network's weights by ``config.update_rule``; see `train.engine.protocol.Optimizer`.

    Args:
        engine: Where the arrays live.
        config: The recipe's block.
        network: The network; its gradients are sums over the global batch.
        rescale: Factor from sums to means, 1 / global batch size.
    """

    def __init__(self, engine: Engine, config: OptimizerBlock, network: TrainableNetwork, *, rescale: float) -> None:
        self.config = config
        self._engine, self._network, self._rescale = engine, network, rescale
        self.momenta = [engine.zeros(each.shape) for _ in range(config.num_moments) for each in network.masters]

    def update(self, hyper: HyperParameters) -> None:
        """Queue the update of all weights for one step."""
        engine, network, count = self._engine, self._network, len(self._network.parameters)
        undecayed = replace(hyper, weight_decay=0.0)
        columns = (network.parameters, network.weights, network.masters, network.gradients)
        for number, (parameter, weight, master, gradient) in enumerate(zip(*columns, strict=True)):
            moments = self.momenta[number::count]
            values = undecayed if parameter.kind in self.config.skip_weight_decay else hyper
            mean = engine.to_float32(gradient) * self._rescale
            updated, new_moments = self.config.update_rule(master, mean, moments, values)
            for moment, new in zip(moments, new_moments, strict=True):
                engine.overwrite(moment, new)
            engine.overwrite(master, updated)
            if weight is not master:
                engine.overwrite(weight, master)

    def reset(self) -> None:
        """Set every moment to 0."""
        for moment in self.momenta:
            self._engine.overwrite(moment, self._engine.flag(moment, is_set=False))
