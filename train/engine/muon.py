"""Muon on the arrays of either engine; the ranks divide the orthogonalisation among themselves.

*Source*: Keller Jordan, github.com/KellerJordan/Muon, muon.py, which computes in bfloat16; here everything is float32.
`configs.optimizers.Muon` has the formulas.
"""

import math
from collections.abc import Sequence

from configs.optimizers import HyperParameters, Muon
from train.comm.shares import Shares
from train.engine.protocol import Array, Engine, TrainableNetwork
from train.engine.rule_optimizer import RuleOptimizer
from train.networks.arch import Parameter

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of X, X X'X and X (X'X)^2 in a step: they raise small singular values most, and end near 1 instead of at 1."""

_LEAST_NORM = 1e-7
"""Added to the norm, so that a matrix of zeros stays one."""


class MuonOptimizer(RuleOptimizer):
    """Update hidden weights by Muon, and everything else by the block's rule; see `train.engine.protocol.Optimizer`.

    Every rank has the momentum of every tensor. Each hidden weight's step is orthogonalised by one rank, and all ranks
    get it by a sum with the zeros of the others, float32, as large as the hidden weights.

    Args:
        engine: Where the arrays live.
        config: The recipe's block.
        network: The network; its gradients are sums over the global batch.
        rescale: Factor from sums to means, 1 / global batch size.
        shares: Divides the work among the ranks.
    """

    config: Muon

    def __init__(
        self, engine: Engine, config: Muon, network: TrainableNetwork, *, rescale: float, shares: Shares
    ) -> None:
        super().__init__(engine, config, network, rescale=rescale)
        self._shares = shares
        hidden = hidden_weights(network.parameters)
        own = shares.own([_cost(network.parameters[index]) for index in hidden])
        self._own = {hidden[place] for place in own}
        self._steps = {index: engine.zeros(network.masters[index].shape) for index in hidden}

    def _update(self, hyper: HyperParameters) -> None:
        for index, step in self._steps.items():
            (moment,) = self._moments(index)
            direction, velocity = self.config.momentum_step(self._mean(index), moment, hyper.momentum)
            # Adding 0 makes a 0 of a -0, as the sum over several ranks does.
            is_own = index in self._own
            self._engine.overwrite(step, self._orthogonal(direction) + 0 if is_own else direction * 0)
            self._move(moment, velocity)
        if self._steps:
            self._shares.exchange("muon", list(self._steps.values()))
        super()._update(hyper)

    def _update_tensor(self, index: int, values: HyperParameters) -> None:
        if index not in self._steps:
            super()._update_tensor(index, values)
            return
        rows, columns = _sides(self._network.parameters[index])
        rate = values.lr * math.sqrt(max(1, rows / columns))
        kept = self._network.masters[index] * (1 - values.lr * values.weight_decay)
        self._move_weight(index, kept - self._steps[index] * rate)

    def _orthogonal(self, direction: Array) -> Array:
        """Return a tensor whose matrix has the singular vectors of ``direction``, and singular values near 1."""
        linear, cubic, quintic = _COEFFICIENTS
        product = self._engine.product
        matrix = direction.reshape((direction.shape[0], -1))
        is_tall = matrix.shape[0] > matrix.shape[1]
        if is_tall:
            matrix = matrix.T
        matrix = matrix / ((matrix * matrix).sum() ** 0.5 + _LEAST_NORM)
        for _ in range(self.config.newton_schulz_steps):
            square = product(matrix, matrix)
            matrix = matrix * linear + product(square * cubic + product(square, square) * quintic, matrix.T)
        return (matrix.T if is_tall else matrix).reshape(direction.shape)


def hidden_weights(parameters: Sequence[Parameter]) -> list[int]:
    """Return the numbers of the weights between the first layer's and the classifier's."""
    return [number for number, each in enumerate(parameters) if each.kind == "weight"][1:-1]


def _sides(parameter: Parameter) -> tuple[int, int]:
    """Return rows and columns of a weight's matrix: [outputs, inputs x kernel height x kernel width]."""
    return parameter.shape[0], parameter.size // parameter.shape[0]


def _cost(parameter: Parameter) -> int:
    """Return the multiply-adds of a Newton-Schulz step."""
    short, long = sorted(_sides(parameter))
    return short**2 * (2 * long + short)
