"""SGD with momentum: keys and log entries. The engine implements the update."""

from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import MomentumCorrection, OptimizerBlock


class Sgd(OptimizerBlock):
    """SGD with momentum m, in the form v = m v - lr (g + wd w); w = w + v.

    With decoupled decay, v = m v - lr g; w = w (1 - wd lr/B) + v, where B is ``schedule.base_lr`` (Loshchilov and
    Hutter, arXiv:1711.05101, in the form of Composer's DecoupledSGDW). PyTorch and Composer have the rate outside the
    momentum, v = m v + g; w = w - lr v, which differs where the rate changes; with ``momentum_correction`` it is the
    same.
    """

    variation: ClassVar[str] = ""
    log_prefix: ClassVar[str] = "sgd_opt"
    momentum_log_key: ClassVar[str] = "sgd_opt_momentum"

    name: Literal["sgd"] = Field(description="Chooses SGD with momentum.")
    momentum_correction: MomentumCorrection = False
    decoupled_weight_decay: bool = Field(
        False,
        description="Whether each step takes the share weight_decay off the weights, scaled as the learning rate is "
        "(1 at base_lr), instead of adding to the gradient. The gradients' momentum then does not hold the decay.",
    )
