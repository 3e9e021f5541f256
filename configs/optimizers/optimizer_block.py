"""What every optimizer's block of keys has, and what it says of itself. Imports no framework."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from configs.ideas import with_keys_of_ideas
from configs.rule import REFERENCE, Rule, exactly
from configs.section import Section

ParameterKind = Literal["weight", "gamma", "beta", "bias"]
ParameterKinds = Annotated[tuple[ParameterKind, ...], Field(strict=False)]


@dataclass(frozen=True)
class HyperParameters:
    """The values that an optimizer uses in the 0-based ``step``.

    ``weight_decay`` is the factor of the weight in the gradient; if decoupled, the share that the step takes off.
    """

    lr: float
    momentum: float
    weight_decay: float
    step: int = 0


@with_keys_of_ideas("optimizer")
class OptimizerBlock(Section):
    """The keys of an optimizer, what it logs, what memory it takes, and optionally its update rule.

    A subclass adds ``name: Literal["..."]`` and its own keys. An engine may have an implementation of its own, which it
    finds by ``fused``. Any other optimizer runs its ``part``, which by default applies `update_rule` to each tensor.

    Attributes:
        rules: The rules of the closed division for the optimizer's keys.
        num_moments: Float32 arrays of a parameter's shape that the optimizer keeps for each parameter.
        fused: Name of an update that an engine may have an implementation of; optimizers may share one. Empty: none.
        part: Module and class of the optimizer, see `train.ideas.update_rule.RuleOptimizer`.
        engines: Engines that can compute the optimizer. If empty, all of them.
        is_shared: Whether ranks divide among themselves what the optimizer computes of whole tensors.
        tells_layers_apart: Whether a layer's place in the network decides how its tensors are updated.
        variation: What makes its updates differ from each other, in words, so that no CUDA graph can repeat one.
        log_prefix: Prefix of the optimizer's keys in the MLPerf log.
        warmup_log_prefix: Prefix of the warm-up's key in the MLPerf log.
        momentum_log_key: Key of ``momentum`` in the MLPerf log.
    """

    rules: ClassVar[Sequence[Rule]] = ()
    num_moments: ClassVar[int] = 1
    fused: ClassVar[str] = ""
    part: ClassVar[str] = "train.ideas.update_rule.RuleOptimizer"
    engines: ClassVar[Sequence[str]] = ()
    is_shared: ClassVar[bool] = False
    tells_layers_apart: ClassVar[bool] = False
    variation: ClassVar[str] = "computes on the host"
    log_prefix: ClassVar[str] = "opt"
    warmup_log_prefix: ClassVar[str] = "opt"
    momentum_log_key: ClassVar[str] = "opt_momentum"

    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum: share of the last update, or of the running mean, that is kept in each step; 0 keeps nothing."""
    weight_decay: float = Field(ge=0, lt=1)
    """Factor of the weight that is added to the gradient (L2 regularisation); 0: none."""
    skip_weight_decay: ParameterKinds = ("gamma", "beta", "bias")
    """Kinds of parameters without weight decay: batch-norm gamma and beta, biases, weights."""

    def logged(self) -> dict[str, float]:
        """Return the optimizer's own hyperparameters, MLPerf log key -> value, in the order in which they are logged.

        Learning rates, weight decay and momentum are logged for every optimizer and are not repeated here.
        """
        return {}

    def decays(self, kind: str) -> bool:
        """Return whether parameters of a kind have weight decay."""
        return kind not in self.skip_weight_decay

    def adapted(self, values: HyperParameters, lr_before: float, base_lr: float) -> HyperParameters:
        """Return the values of a step as this optimizer takes them.

        Args:
            values: What the schedule gives.
            lr_before: Learning rate of the step before; 0 in the first step.
            base_lr: Learning rate at which the warm-up ends.
        """
        return values

    def trusts(self, kind: str) -> bool:
        """Return whether parameters of a kind have a learning rate of their own, by a trust ratio."""
        return False

    @property
    def is_decoupled(self) -> bool:
        """Whether the decay is taken off the weights by a step, instead of being added to the gradient."""
        return False

    def held_numbers(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return how many float32 numbers the optimizer keeps on each rank for tensors of these shapes (OIHW)."""
        return self.num_moments * sum(map(math.prod, shapes))

    def update_numbers(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """Return how many float32 numbers an update holds beside them, when nothing of the forward pass is left."""
        return 0

    def describe(self) -> str:
        """Return the optimizer's line in ``./run.sh plan``: name and settings."""
        keys = self.model_dump().items()
        words = [f"{key} {value:g}" for key, value in keys if isinstance(value, float)]
        words += [key for key, value in keys if value is True]
        return ", ".join([str(getattr(self, "name", "optimizer")), *words])

    def update_rule(
        self, weight: Any, gradient: Any, moments: Sequence[Any], values: HyperParameters
    ) -> tuple[Any, Sequence[Any]]:
        """Return the new weight and the new moments of one parameter tensor.

        The rule is plain arithmetic (``+ - * / **``) on arrays, so that every engine can run it.

        Args:
            weight: Float32 array.
            gradient: Float32 array of the same shape: the mean over the global batch.
            moments: `num_moments` float32 arrays of the same shape, all 0 before the first step.
            values: Learning rate, momentum and weight decay of this step; weight decay is 0 for a kind of parameter
                that ``skip_weight_decay`` names.

        Raises:
            NotImplementedError: The optimizer relies on an implementation in the engine.
        """
        raise NotImplementedError(f"{type(self).__name__} has no update rule: the engine must implement it")


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
