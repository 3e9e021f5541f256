"""AdamW: keys and log entries. The engine implements the update, with that of Adam."""

from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.adam import AdamMoments
from configs.optimizers.optimizer_block import HyperParameters


class AdamW(AdamMoments):
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101, algorithm 2), as PyTorch has it.

    A step takes the share lr wd off the weight, and then moves it as Adam does by the gradient alone. In the paper, the
    share is wd times the schedule's factor, without the base rate.
    """

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
