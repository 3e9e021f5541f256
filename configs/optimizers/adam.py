"""Adam and AdamW: keys and log entries. The engine implements the updates."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import HyperParameters, OptimizerBlock


class AdamMoments(OptimizerBlock):
    """The keys of Adam's two running means, for the optimizers that have them."""

    num_moments: ClassVar[int] = 2

    momentum: float = Field(0.9, ge=0, lt=1)
    """Decay rate of the gradients' running mean: beta_1 of the paper."""
    beta_2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of the squared gradients' running mean: beta_2 of the paper."""
    epsilon: float = Field(1e-8, gt=0, lt=1)
    """Added to the root of the second moment, so that nothing is divided by 0."""

    def logged(self) -> dict[str, float]:
        """Return beta_2 and epsilon; beta_1 is logged as the momentum."""
        prefix = self.momentum_log_key.removesuffix("_beta_1")
        return {f"{prefix}_beta_2": self.beta_2, f"{prefix}_epsilon": self.epsilon}


class Adam(AdamMoments):
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), of the gradient g + wd w."""

    fused: ClassVar[str] = "adam"
    variation: ClassVar[str] = ""
    momentum_log_key: ClassVar[str] = "opt_adam_beta_1"

    name: Literal["adam"]
    """Chooses Adam."""
    weight_decay: float = Field(0.0, ge=0, lt=1)
    """Factor of the weight that is added to the gradient (L2 regularisation); 0: none."""


class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2), as PyTorch has it.

    A step takes the share lr wd off the weight, and then moves it as Adam does by the gradient alone. In the paper, the
    share is wd times the schedule's factor, without the base rate.
    """

    fused: ClassVar[str] = "adam"
    variation: ClassVar[str] = ""
    momentum_log_key: ClassVar[str] = "opt_adamw_beta_1"

    name: Literal["adamw"]
    """Chooses AdamW: Adam with a weight decay that its moments do not hold."""
    weight_decay: float = Field(0.01, ge=0, lt=1)
    """Share that a step takes off the weights, times the learning rate; 0: none."""

    def adapted(self, values: HyperParameters, lr_before: float, base_lr: float) -> HyperParameters:
        """Multiply the decay by the learning rate; see `OptimizerBlock`."""
        return replace(values, weight_decay=values.weight_decay * values.lr)

    @property
    def is_decoupled(self) -> bool:
        """See `OptimizerBlock`."""
        return True
