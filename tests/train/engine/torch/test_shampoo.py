"""Shampoo against its definition in NumPy: blocks, roots by eigenvalues, grafting, momentum, and when it begins."""

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from configs.optimizers import HyperParameters, Shampoo
from tests.engines import cpu_engine
from train.engine.build import build_optimizer
from train.networks.layer import Parameter

pytest.importorskip("torch")

RATES = [0.1, 0.2, 0.3, 0.1]
SHAPES: dict[tuple[int, ...], tuple[tuple[int, ...], tuple[int, ...]]] = {
    (16, 3, 3, 3): ((27, 16), (9, 3, 16)),
    (24, 16, 3, 3): ((9, 16, 24), (9, 16, 24)),
    (32, 4, 1, 1): ((128,), (4, 32)),
    (10, 64): ((64, 10), (64, 10)),
    (1, 30): ((30,), (30,)),
    (45,): ((45,), (45,)),
}
"""Shape in OIHW -> axes for blocks of up to 128 and of up to 20, merged by hand."""


class _Oracle:
    """Shampoo of one tensor, given with the axes that it is preconditioned along."""

    def __init__(self, config: Shampoo, weight: np.ndarray, decay: float) -> None:
        self.config, self.weight, self.decay = config, weight, decay
        cuts = [[range(at, min(at + config.block_size, side)) for at in range(0, side, config.block_size)]
                for side in weight.shape]  # fmt: skip
        self.blocks = [np.ix_(*each) for each in product(*cuts)]
        self.statistics = [[config.matrix_epsilon * np.eye(side) for side in weight[block].shape]
                           for block in self.blocks]  # fmt: skip
        self.roots: list[list[np.ndarray]] = []
        self.momenta = [np.zeros_like(weight), np.zeros_like(weight)]

    def step(self, step: int, gradient: np.ndarray, lr: float) -> None:
        config, k = self.config, gradient.ndim
        preconditioned = np.zeros_like(gradient)
        power = config.root_power or 2 * k
        takes_roots = step % config.root_every_steps == 0
        for number, block in enumerate(self.blocks):
            part = gradient[block]
            for axis in range(k):
                others = [other for other in range(k) if other != axis]
                square = np.tensordot(part, part, axes=(others, others))
                old = self.statistics[number][axis]
                self.statistics[number][axis] = config.beta_2 * old + (1 - config.beta_2) * square
            if takes_roots:
                self.roots[number : number + 1] = [[self._root(each, power) for each in self.statistics[number]]]
            for axis, root in enumerate(self.roots[number]):
                part = np.moveaxis(np.tensordot(root, part, axes=(1, axis)), 0, axis)
            preconditioned[block] = part
        grafted = preconditioned * np.linalg.norm(gradient) / np.linalg.norm(preconditioned)
        updates = [each + self.decay * self.weight for each in (grafted, gradient)]
        self.momenta = [config.momentum * old + new for old, new in zip(self.momenta, updates, strict=True)]
        which = 0 if step >= config.start_preconditioning_step else 1
        self.weight = self.weight - lr * (updates[which] + config.momentum * self.momenta[which])

    def _root(self, matrix: np.ndarray, power: int) -> np.ndarray:
        values, vectors = np.linalg.eigh(matrix + self.config.matrix_epsilon * np.eye(len(matrix)))
        return np.asarray(vectors @ np.diag(values ** (-1 / power)) @ vectors.T)


CONFIGS = [
    Shampoo(name="shampoo", momentum=0.9, beta_2=0.75, matrix_epsilon=0.1, weight_decay=0.1),
    Shampoo(
        name="shampoo", momentum=0.5, beta_2=0.9, matrix_epsilon=0.1, weight_decay=0.1, block_size=20,
        root_power=4, start_preconditioning_step=2, root_every_steps=3,
    ),
]  # fmt: skip


@pytest.mark.parametrize("which", [0, 1], ids=["blocks of 128", "blocks of 20"])
def test_steps_equal_the_definition_for_tensors_of_one_to_three_axes(which: int) -> None:
    config, engine, draw = CONFIGS[which], cpu_engine("torch"), np.random.default_rng(3)
    merged = [axes[which] for axes in SHAPES.values()]
    parameters = [Parameter(str(shape), "bias" if len(shape) == 1 else "weight", shape) for shape in SHAPES]
    weights = [engine.from_host(draw.standard_normal(shape, np.float32)) for shape in SHAPES]
    network: Any = SimpleNamespace(
        parameters=parameters,
        masters=weights,
        weights=weights,
        gradients=[engine.zeros(shape) for shape in SHAPES],
        may_overflow=False,
        follow_masters=lambda: None,
    )
    oracles = [
        _Oracle(config, _to_axes(engine.to_host(weight), axes), config.weight_decay if each.kind == "weight" else 0)
        for each, weight, axes in zip(parameters, weights, merged, strict=True)
    ]
    optimizer = build_optimizer(engine, config, network, rescale=0.5, arrivals=[])
    start = [engine.to_host(each) for each in optimizer.momenta]
    assert sum(each.size for each in start) == config.held_numbers([*SHAPES])
    for step, lr in enumerate(RATES):
        for gradient, oracle, axes in zip(network.gradients, oracles, merged, strict=True):
            mean = draw.standard_normal(gradient.shape, np.float32)
            engine.overwrite(gradient, engine.from_host(2 * mean))
            oracle.step(step, _to_axes(mean, axes), lr)
        optimizer.update(HyperParameters(lr, config.momentum, config.weight_decay, step))
        for weight, oracle, axes in zip(weights, oracles, merged, strict=True):
            found = _to_axes(engine.to_host(weight), axes)
            # Four gradients leave most eigenvalues of a vector's statistic at epsilon, whose roots multiply rounding.
            np.testing.assert_allclose(found, oracle.weight, rtol=1e-5, atol=1e-4, err_msg=f"step {step}, {axes}")
    optimizer.reset()
    assert all(
        np.array_equal(engine.to_host(each), first) for each, first in zip(optimizer.momenta, start, strict=True)
    )


def _to_axes(tensor: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return (tensor.transpose(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T).reshape(axes).astype(np.float64)
