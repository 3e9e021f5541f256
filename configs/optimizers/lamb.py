"""LAMB: keys, log entries and update."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from configs.optimizers.adam import AdamMoments
from configs.optimizers.optimizer_block import HyperParameters


class Lamb(AdamMoments):
    """Layer-wise adaptive moments (You et al., arXiv:1904.00962, algorithm 2), as in timm's code.

    With Adam's means m and v, corrected for bias in step t = 1, 2, ..., a tensor has the step u = m / (sqrt(v) +
    epsilon) + wd w, and w = w - lr T u with the trust ratio T = |w| / |u|; T is 1 where a norm is 0. As in timm's code,
    T is also 1 for tensors without weight decay, and the gradient is clipped before.
    """

    momentum_log_key: ClassVar[str] = "opt_lamb_beta_1"

    name: Literal["lamb"]
    """Chooses LAMB. Tensors with weight decay have a trust ratio; those in skip_weight_decay, and all tensors where
    weight_decay is 0, take the step of Adam."""
    epsilon: float = Field(1e-6, gt=0, lt=1)
    """Added to the root of the second moment, so that nothing is divided by 0."""
    weight_decay: float = Field(0.01, ge=0, lt=1)
    """Factor of the weight that is added to Adam's step, before the trust ratio."""
    clip_norm: float | None = Field(1.0, gt=0, le=1e6)
    """Largest L2 norm of the gradient of all parameters together, as elsewhere; timm's LAMB clips at 1. If null, the
    gradient is used as it is."""

    def update_rule(
        self, weight: Any, gradient: Any, moments: Sequence[Any], values: HyperParameters
    ) -> tuple[Any, Sequence[Any]]:
        """See `OptimizerBlock`."""
        first = moments[0] * values.momentum + gradient * (1 - values.momentum)
        second = moments[1] * self.beta_2 + gradient * gradient * (1 - self.beta_2)
        time = values.step + 1
        root = (second / (1 - self.beta_2**time)) ** 0.5
        step = first / (1 - values.momentum**time) / (root + self.epsilon)
        if values.weight_decay:
            step = step + weight * values.weight_decay
            step = step * _trust_ratio(weight, step)
        return weight - step * values.lr, [first, second]


def _trust_ratio(weight: Any, step: Any) -> Any:
    norms = [(each * each).sum() ** 0.5 for each in (weight, step)]
    # 1 or 0, a number in every framework: of PyTorch's comparisons it makes numbers, too.
    is_set = (norms[0] > 0) * (norms[1] > 0) * 1.0
    longest, shortest = (each * is_set + (1 - is_set) for each in norms)
    return longest / shortest
