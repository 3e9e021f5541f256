"""SGD with momentum: keys and log entries. The engine implements the update."""

from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import OptimizerBlock


class Sgd(OptimizerBlock):
    """SGD with momentum m, in the form v = m v - lr (g + wd w); w = w + v."""

    log_prefix: ClassVar[str] = "sgd_opt"
    momentum_log_key: ClassVar[str] = "sgd_opt_momentum"

    name: Literal["sgd"] = Field(description="Chooses SGD with momentum.")
