"""Distributed Shampoo on PyTorch's tensors; the ranks divide the roots of the statistics among themselves.

*Source*: Anil and others, arXiv:2002.09018, as in shampoo.py of Google's open run of ResNet in MLPerf v1.0
(mlcommons/training_results_v1.0). Its coupled Newton iteration is an eigendecomposition here, which is exact to
rounding whatever the condition; both are float32. `configs.optimizers.Shampoo` has the formulas.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from configs.optimizers import HyperParameters, Shampoo
from train.engine.torch.optimizers import norms
from train.ideas.update_rule import RuleOptimizer

_TOGETHER = 16
"""Matrices of which one call takes the roots, the same ones on any number of ranks: a library may round a matrix in
another batch differently."""

_LEAST_NORM = 1e-16
"""Added to the norm of a preconditioned gradient, as in the source."""


@dataclass(frozen=True)
class _Group:
    """All blocks of one shape, of tensors with as many axes.

    Attributes:
        places: Number of the tensor and place in it, of each block.
        statistics: For each axis, the blocks' matrices [blocks, side, side].
        roots: For each axis, the roots of the statistics.
    """

    places: list[tuple[int, tuple[slice, ...]]] = field(default_factory=list)
    statistics: list[Any] = field(default_factory=list)
    roots: list[Any] = field(default_factory=list)


class ShampooOptimizer(RuleOptimizer):
    """Update weights by Shampoo; see `train.engine.protocol.Optimizer`.

    Every rank has all statistics and preconditions all gradients, which takes few multiply-adds. The roots take most,
    so each rank computes its share of them, and all ranks get them by a sum with the zeros of the others.
    """

    config: Shampoo

    def _prepare(self) -> None:
        super()._prepare()
        engine, network, config, shares = self._engine, self._network, self.config, self._shares
        self._axes = [config.axes(each.shape) for each in network.parameters]
        self._groups: dict[tuple[int, ...], _Group] = {}
        for number, axes in enumerate(self._axes):
            for block in config.blocks(axes):
                sides = tuple(part.stop - part.start for part in block)
                self._groups.setdefault(sides, _Group()).places.append((number, block))
        self._roots: list[tuple[Any, Any, int]] = []
        for sides, group in self._groups.items():
            for side in sides:
                for made in (group.statistics, group.roots):
                    made.append(engine.zeros((len(group.places), side, side)))
                self.momenta += [group.statistics[-1], group.roots[-1]]
                pairs = zip(group.statistics[-1].split(_TOGETHER), group.roots[-1].split(_TOGETHER), strict=True)
                power = config.root_power or 2 * len(sides)
                self._roots += [(statistics, roots, power) for statistics, roots in pairs]
        self._own = shares.own([len(roots) * roots.shape[-1] ** 3 for _, roots, _ in self._roots])
        self._pairs: list[tuple[Any, Any]] = []
        self.reset()

    def reset(self) -> None:
        """Set the momenta to 0, the statistics to epsilon I and the roots to I."""
        super().reset()
        for group in self._groups.values():
            for value, matrices in ((self.config.matrix_epsilon, group.statistics), (1.0, group.roots)):
                for each in matrices:
                    each.diagonal(dim1=-2, dim2=-1).fill_(value)

    def _update(self, hyper: HyperParameters) -> None:
        means = [self._mean(index) for index in range(len(self._axes))]
        stacks = self._stacked(means)
        for group, stack in zip(self._groups.values(), stacks, strict=True):
            for axis, statistic in enumerate(group.statistics):
                rows = _rows(stack, axis)
                self._move(statistic, torch.lerp(rows @ rows.mT, statistic, self.config.beta_2))
        if hyper.step % self.config.root_every_steps == 0:
            self._take_roots()
        steps = self._preconditioned(stacks)
        ratios = norms(means) / (norms(steps) + _LEAST_NORM)
        self._pairs = [(step * ratio, mean) for step, ratio, mean in zip(steps, ratios, means, strict=True)]
        super()._update(hyper)
        self._pairs.clear()

    def _stacked(self, means: Sequence[Any]) -> list[Any]:
        """Return the blocks of each group, [blocks, *sides]."""
        tensors = [mean.permute(_order(mean.ndim)).reshape(axes) for mean, axes in zip(means, self._axes, strict=True)]
        return [
            torch.stack([tensors[number][place] for number, place in each.places]) for each in self._groups.values()
        ]

    def _take_roots(self) -> None:
        """Compute this rank's share of the roots, and get those of the others."""
        for number, (statistics, roots, power) in enumerate(self._roots):
            if number in self._own:
                # Adding 0 makes a 0 of a -0, as the sum over several ranks does.
                roots.copy_(_inverse_root(statistics, power, self.config.matrix_epsilon) + 0)
            else:
                roots.zero_()
        self._shares.exchange("shampoo", [each for group in self._groups.values() for each in group.roots])

    def _preconditioned(self, stacks: Sequence[Any]) -> list[Any]:
        """Return the preconditioned gradient of each tensor, in OIHW, from the blocks of each group."""
        made = [torch.empty(axes, device=stacks[0].device) for axes in self._axes]
        for group, blocks in zip(self._groups.values(), stacks, strict=True):
            for axis, root in enumerate(group.roots):
                moved = blocks.movedim(1 + axis, 1)
                blocks = (root @ _rows(blocks, axis)).reshape(moved.shape).movedim(1, 1 + axis)  # noqa: PLW2901
            torch._foreach_copy_([made[number][place] for number, place in group.places], list(blocks.unbind()))
        shapes = [each.shape for each in self._network.parameters]
        orders = [_order(len(shape)) for shape in shapes]
        return [
            each.reshape([shape[axis] for axis in order]).permute([order.index(axis) for axis in sorted(order)])
            for each, shape, order in zip(made, shapes, orders, strict=True)
        ]

    def _update_tensor(self, index: int, values: HyperParameters) -> None:
        master, moments = self._network.masters[index], self._moments(index)
        decay = master * values.weight_decay
        steps = [step + decay for step in self._pairs[index]]
        velocities = [moment * values.momentum + step for moment, step in zip(moments, steps, strict=True)]
        for moment, velocity in zip(moments, velocities, strict=True):
            self._move(moment, velocity)
        chosen = 0 if values.step >= self.config.start_preconditioning_step else 1
        self._move(master, master - (steps[chosen] + velocities[chosen] * values.momentum) * values.lr)


def _order(num_axes: int) -> list[int]:
    """Return the order in which a tensor's axes are merged: HWIO of OIHW, [inputs, outputs] of a dense layer."""
    return [*range(2, num_axes), *reversed(range(min(2, num_axes)))]


def _rows(blocks: Any, axis: int) -> Any:
    """Return each block as a matrix whose rows are an axis, [blocks, side, other sides]."""
    return blocks.movedim(1 + axis, 1).reshape(len(blocks), blocks.shape[1 + axis], -1)


def _inverse_root(matrices: Any, power: int, epsilon: float) -> Any:
    """Return (M + epsilon I)^(-1 / power) of each positive semidefinite matrix, [matrices, side, side].

    Rounding may leave small eigenvalues below 0, which count as 0. A gradient that is not finite ends the run by the
    loss, so what is not finite here counts as 0, because the decomposition refuses it.
    """
    values, vectors = torch.linalg.eigh(matrices.nan_to_num(0.0, 0.0, 0.0))
    roots = (values.clamp(min=0) + epsilon) ** (-1 / power)
    return (vectors * roots[..., None, :]) @ vectors.mT
