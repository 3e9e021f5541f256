"""Muon: keys and log entries. `train.ideas.muon` has the update."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import OptimizerBlock


class Muon(OptimizerBlock):
    """Momentum whose step is orthogonalised, for hidden weights (Keller Jordan and others, 2024).

    Every tensor has Nesterov's momentum: v = m v + g; u = g + m v. A hidden weight is a matrix W [outputs, inputs x
    kernel height x width], and O is u with its singular values brought near 1 by Newton-Schulz steps; then
    W = W (1 - lr wd) - lr sqrt(max(1, rows / columns)) O. The first layer's weight, the classifier, biases and batch
    norm take w = w (1 - r lr wd) - r lr u, where r is ``sgd_lr_ratio`` and m is ``sgd_momentum``.
    """

    fused: ClassVar[str] = "muon"
    part: ClassVar[str] = "train.ideas.muon.MuonOptimizer"
    is_shared: ClassVar[bool] = True
    tells_layers_apart: ClassVar[bool] = True

    name: Literal["muon"]
    """Chooses Muon; ranks divide the orthogonalisation among themselves."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Nesterov momentum of the hidden weights; 0 keeps nothing of the last step."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """Share that a step takes off the weights, times the learning rate; 0: none."""
    newton_schulz_steps: int = Field(5, ge=1, le=20, json_schema_extra={"unit": "steps"})
    """Newton-Schulz steps. After 5, singular values above 0.0015 of the matrix's norm are between 0.68 and 1.21, after
    3 those above 0.017; smaller ones stay smaller."""
    sgd_lr_ratio: float = Field(1.0, gt=0, le=1000)
    """Learning rate of what is no hidden weight, as a multiple of the schedule's: the first layer's weight, the
    classifier, biases and batch norm, which SGD with Nesterov momentum updates."""
    sgd_momentum: float = Field(0.9, ge=0, lt=1)
    """Nesterov momentum of what is no hidden weight."""

    def logged(self) -> dict[str, float]:
        """Return the Newton-Schulz steps, and the rate and the momentum of SGD."""
        return {
            "opt_muon_newton_schulz_steps": self.newton_schulz_steps,
            "opt_muon_sgd_learning_rate_ratio": self.sgd_lr_ratio,
            "opt_muon_sgd_momentum": self.sgd_momentum,
        }

    def held_numbers(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return those of the momentum and of the steps."""
        return 2 * super().held_numbers(shapes)
