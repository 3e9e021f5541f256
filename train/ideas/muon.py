"""Muon on the arrays of either engine; the ranks divide the orthogonalisation among themselves.

*Source*: Keller Jordan, github.com/KellerJordan/Muon, muon.py, which computes in bfloat16; here everything is float32.
The rate of a convolution grows with its outputs as that of a dense layer does; muon.py takes the kernel's two sides for
rows and columns there, so that its factor is 1.
`configs.optimizers.Muon` has the formulas.
"""

import math
from collections.abc import Sequence

from configs.optimizers import HyperParameters, Muon
from train.engine.protocol import Array
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
    """

    config: Muon

    def _prepare(self) -> None:
        super()._prepare()
        engine, network, shares = self._engine, self._network, self._shares
        self._steps = [engine.zeros(each.shape) for each in network.masters]
        # The weights between the first layer's and the classifier's.
        self._hidden = [number for number, each in enumerate(network.parameters) if each.is_matrix][1:-1]
        self._others = [index for index in range(len(self._steps)) if index not in self._hidden]
        own = shares.own([_cost(network.parameters[index]) for index in self._hidden])
        self._own = {self._hidden[place] for place in own}

    def _update(self, hyper: HyperParameters) -> None:
        engine, network = self._engine, self._network
        gradients = network.gradients
        for indices, momentum in ((self._hidden, hyper.momentum), (self._others, self.config.sgd_momentum)):
            sums = [engine.to_float32(gradients[index]) for index in indices]
            steps, velocities = ([arrays[index] for index in indices] for arrays in (self._steps, self.momenta))
            self._take_momentum(steps, velocities, sums, momentum)
        for index in self._hidden:
            step = self._steps[index]
            # Adding 0 makes a 0 of a -0, as the sum over several ranks does.
            is_own = index in self._own
            engine.overwrite(step, self._orthogonal(step) + 0 if is_own else engine.flag(step, is_set=False))
        if self._hidden:
            self._shares.exchange("muon", [self._steps[index] for index in self._hidden])
        rates = [self._rate(index, hyper.lr) for index in range(len(self._steps))]
        kept = [
            1 - (hyper.lr if index in self._hidden else rate) * self._values(index, hyper).weight_decay
            for index, rate in enumerate(rates)
        ]
        engine.scale_add(network.masters, kept, self._steps, [-rate for rate in rates], unless=self._skipped)

    def _take_momentum(
        self, steps: Sequence[Array], velocities: Sequence[Array], sums: Sequence[Array], momentum: float
    ) -> None:
        """Queue Nesterov's momentum: v = m v + s g, then u = m v + s g; an engine may have one operator for both."""
        engine = self._engine
        engine.scale_add(velocities, momentum, sums, self._rescale, unless=self._skipped)
        engine.overwrite_each(steps, velocities)
        engine.scale_add(steps, momentum, sums, self._rescale)

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


def _sides(parameter: Parameter) -> tuple[int, int]:
    """Return rows and columns of a weight's matrix: [outputs, inputs x kernel height x kernel width]."""
    return parameter.shape[0], parameter.size // parameter.shape[0]


def _cost(parameter: Parameter) -> int:
    """Return the multiply-adds of a Newton-Schulz step."""
    short, long = sorted(_sides(parameter))
    return short**2 * (2 * long + short)
