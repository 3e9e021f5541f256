"""Adam: keys and log entries. The engine implements the update."""

from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import OptimizerBlock


class Adam(OptimizerBlock):
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), of the gradient g + wd w."""

    variation: ClassVar[str] = ""
    num_moments: ClassVar[int] = 2
    momentum_log_key: ClassVar[str] = "opt_adam_beta_1"

    name: Literal["adam"] = Field(description="Chooses Adam.")
    momentum: float = Field(
        0.9, ge=0, lt=1, description="Decay rate of the gradients' running mean: beta_1 of the paper."
    )
    beta_2: float = Field(
        0.999, ge=0, lt=1, description="Decay rate of the squared gradients' running mean: beta_2 of the paper."
    )
    epsilon: float = Field(
        1e-8, gt=0, lt=1, description="Added to the root of the second moment, so that nothing is divided by 0."
    )
    weight_decay: float = Field(
        0.0, ge=0, lt=1, description="Factor of the weight that is added to the gradient (L2 regularisation); 0: none."
    )

    def logged(self) -> dict[str, float]:
        """Return beta_2 and epsilon; beta_1 is logged as the momentum."""
        return {"opt_adam_beta_2": self.beta_2, "opt_adam_epsilon": self.epsilon}
