"""SGD with momentum: keys and log entries. The engine implements the update."""

from dataclasses import replace
from typing import ClassVar, Literal

from configs.optimizers.optimizer_block import CorrectedMomentum, HyperParameters, uncorrected
from configs.rule import CHECKED, REFERENCE, Rule, exactly


class Sgd(CorrectedMomentum):
    """SGD with momentum m, in the form v = m v - lr (g + wd w); w = w + v.

    With decoupled decay, v = m v - lr g; w = w (1 - wd lr/B) + v, where B is ``schedule.base_lr`` (Loshchilov and
    Hutter, arXiv:1711.05101, in the form of Composer's DecoupledSGDW). PyTorch and Composer have the rate outside the
    momentum, v = m v + g; w = w - lr v, which differs where the rate changes; with ``momentum_correction`` it is the
    same.
    """

    rules = (
        Rule(
            "sgd_opt_base_learning_rate",
            "schedule.base_lr",
            "a multiple of 0.001",
            lambda lr: bool((lr / 0.001).is_integer()),
            f"{CHECKED}_sgd.yaml",
            optimizer="sgd",
        ),
        exactly(
            "sgd_opt_decoupled_weight_decay", "optimizer.decoupled_weight_decay", False, REFERENCE, optimizer="sgd"
        ),
        uncorrected("sgd"),
    )
    fused: ClassVar[str] = "momentum"
    variation: ClassVar[str] = ""
    log_prefix: ClassVar[str] = "sgd_opt"
    momentum_log_key: ClassVar[str] = "sgd_opt_momentum"

    name: Literal["sgd"]
    """Chooses SGD with momentum."""
    decoupled_weight_decay: bool = False
    """Whether each step takes the share weight_decay off the weights, scaled as the learning rate is (1 at base_lr),
    instead of adding to the gradient. The gradients' momentum then does not hold the decay."""

    def adapted(self, values: HyperParameters, lr_before: float, base_lr: float) -> HyperParameters:
        """Scale a decoupled decay as the learning rate is; see `OptimizerBlock`."""
        values = super().adapted(values, lr_before, base_lr)
        if not self.is_decoupled:
            return values
        return replace(values, weight_decay=values.weight_decay * (values.lr / base_lr))

    @property
    def is_decoupled(self) -> bool:
        """See `OptimizerBlock`."""
        return self.decoupled_weight_decay
