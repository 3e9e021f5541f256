"""Momentum that follows changes of the learning rate, for the optimizers whose velocity holds the rate."""

from __future__ import annotations

from dataclasses import replace

from configs.optimizers.optimizer_block import HyperParameters, OptimizerBlock
from configs.rule import REFERENCE, Rule, exactly


class CorrectedMomentum(OptimizerBlock):
    """The key of momentum correction: m lr(i) / lr(i-1) in step i, and m after a rate of 0."""

    momentum_correction: bool = False
    """Whether the momentum of a step is multiplied by its learning rate and divided by that of the step before, so that
    all gradients in it count with the present rate (Goyal et al., arXiv:1706.02677, section 3)."""

    def adapted(self, values: HyperParameters, lr_before: float, base_lr: float) -> HyperParameters:
        """See `OptimizerBlock`."""
        if not (self.momentum_correction and lr_before):
            return values
        return replace(values, momentum=values.momentum * (values.lr / lr_before))


def uncorrected(optimizer: str) -> Rule:
    """Return the rule of the closed division for an optimizer."""
    key = "optimizer.momentum_correction"
    return exactly(f"{optimizer}_opt_momentum_correction", key, False, REFERENCE, optimizer=optimizer)
