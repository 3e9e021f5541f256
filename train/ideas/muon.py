"""Muon on the arrays of either engine; the ranks divide the orthogonalisation among themselves.

*Source*: Keller Jordan, github.com/KellerJordan/Muon, muon.py, which computes in bfloat16; here everything is float32.
`configs.optimizers.Muon` has the formulas.
"""

import math
from collections.abc import Sequence

from configs.optimizers import HyperParameters, Muon
from train.comm.shares import Shares
from train.engine.protocol import Array, Engine, TrainableNetwork
from train.ideas.update_rule import RuleOptimizer
from train.networks.layer import Parameter

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of X, X X'X and X (X'X)^2 in a step: they raise small singular values most, and end near 1 instead of at 1."""

_LEAST_NORM = 1e-7
"""Added to the norm, so that a matrix of zeros stays one."""


class MuonOptimizer(RuleOptimizer):
    """Update hidden weights by Muon, and everything else by SGD; see `train.engine.protocol.Optimizer`.

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
        self._steps = [engine.zeros(each.shape) for each in network.masters]
        self._hidden = hidden_weights(network.parameters)
        self._others = [index for index in range(len(self._steps)) if index not in self._hidden]
        own = shares.own([_cost(network.parameters[index]) for index in self._hidden])
        self._own = {self._hidden[place] for place in own}

    def _update(self, hyper: HyperParameters) -> None:
        engine, network = self._engine, self._network
        gradients = network.gradients
        for indices, momentum in ((self._hidden, hyper.momentum), (self._others, self.config.sgd_momentum)):
            engine.take_nesterov(
                [self._steps[index] for index in indices],
                [engine.to_float32(gradients[index]) for index in indices],
                [self.momenta[index] for index in indices],
                momentum=momentum,
                scale=self._rescale,
                skipped=self._skipped,
            )
        for index in self._hidden:
            step = self._steps[index]
            # Adding 0 makes a 0 of a -0, as the sum over several ranks does.
            is_own = index in self._own
            engine.overwrite(step, self._orthogonal(step) + 0 if is_own else engine.flag(step, is_set=False))
        if self._hidden:
            self._shares.exchange("muon", [self._steps[index] for index in self._hidden])
        rates = [self._rate(index, hyper.lr) for index in range(len(self._steps))]
        decays = [
            (hyper.lr if index in self._hidden else rate) * self._values(index, hyper).weight_decay
            for index, rate in enumerate(rates)
        ]
        engine.descend(network.masters, self._steps, rates=rates, decays=decays, skipped=self._skipped)
        for weight, master in zip(network.weights, network.masters, strict=True):
            if weight is not master:
                engine.overwrite(weight, master)

    def _rate(self, index: int, lr: float) -> float:
        """Return the factor of a tensor's step."""
        if index not in self._hidden:
            return lr * self.config.sgd_lr_ratio
        rows, columns = _sides(self._network.parameters[index])
        return lr * math.sqrt(max(1, rows / columns))

    def _orthogonal(self, direction: Array) -> Array:
        """Return a tensor whose matrix has the singular vectors of ``direction``, and singular values near 1."""
        engine, (linear, cubic, quintic) = self._engine, _COEFFICIENTS
        matrix = direction.reshape((direction.shape[0], -1))
        is_tall = matrix.shape[0] > matrix.shape[1]
        if is_tall:
            matrix = matrix.T
        matrix = matrix / ((matrix * matrix).sum() ** 0.5 + _LEAST_NORM)
        for _ in range(self.config.newton_schulz_steps):
            square = engine.product(matrix, matrix)
            factor = engine.gemm(square, square, square, alpha=quintic, beta=cubic)
            matrix = engine.gemm(factor, matrix, matrix, alpha=1.0, beta=linear)
        return (matrix.T if is_tall else matrix).reshape(direction.shape)


def optimizer_of(
    engine: Engine, config: Muon, network: TrainableNetwork, *, rescale: float, shares: Shares
) -> MuonOptimizer:
    """Return the optimizer, see `train.engine.build.build_optimizer`."""
    return MuonOptimizer(engine, config, network, rescale=rescale, shares=shares)


def hidden_weights(parameters: Sequence[Parameter]) -> list[int]:
    """Return the numbers of the weights between the first layer's and the classifier's."""
    return [number for number, each in enumerate(parameters) if each.is_matrix][1:-1]


def _sides(parameter: Parameter) -> tuple[int, int]:
    """Return rows and columns of a weight's matrix: [outputs, inputs x kernel height x kernel width]."""
    return parameter.shape[0], parameter.size // parameter.shape[0]


def _cost(parameter: Parameter) -> int:
    """Return the multiply-adds of a Newton-Schulz step."""
    short, long = sorted(_sides(parameter))
    return short**2 * (2 * long + short)
