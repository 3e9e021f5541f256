"""LARS: keys and log entries. The engine implements the update."""

from typing import ClassVar, Literal

from pydantic import Field

from configs.optimizers.optimizer_block import CorrectedMomentum, ParameterKinds, uncorrected
from configs.rule import CHECKED, REFERENCE, exactly


class Lars(CorrectedMomentum):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg, arXiv:1708.03888)."""

    rules = (
        exactly("lars_epsilon", "optimizer.epsilon", 0, f"{CHECKED}_lars.yaml", optimizer="lars"),
        exactly("lars_opt_trust_coefficient", "optimizer.trust_coefficient", 0.001, REFERENCE, optimizer="lars"),
        exactly(
            "lars_opt_trust_weight_decay",
            "optimizer.trust_weight_decay",
            None,
            REFERENCE,
            "optimizer.weight_decay",
            optimizer="lars",
        ),
        uncorrected("lars"),
    )
    fused: ClassVar[str] = "momentum"
    variation: ClassVar[str] = ""
    log_prefix: ClassVar[str] = "lars_opt"
    warmup_log_prefix: ClassVar[str] = "lars_opt"
    momentum_log_key: ClassVar[str] = "lars_opt_momentum"

    name: Literal["lars"]
    """Chooses LARS."""
    trust_coefficient: float = Field(0.001, gt=0, lt=1)
    """Factor of every layer's trust ratio |w| / (|g| + decay |w|): eta of the paper."""
    epsilon: float = Field(0.0, ge=0, lt=1)
    """Added to the trust ratio's denominator; MLPerf's closed division requires 0."""
    trust_weight_decay: float | None = Field(None, ge=0, lt=10)
    """Weight decay in the trust ratio's denominator. If null, optimizer.weight_decay."""
    skip_trust_ratio: ParameterKinds = ("gamma", "beta", "bias")
    """Kinds of parameters that use the plain learning rate, without a trust ratio."""

    def trusts(self, kind: str) -> bool:
        """Return whether ``skip_trust_ratio`` leaves the kind out."""
        return kind not in self.skip_trust_ratio

    def logged(self) -> dict[str, float]:
        """Return epsilon and trust coefficient."""
        return {"lars_epsilon": self.epsilon, "lars_opt_trust_coefficient": self.trust_coefficient}
