"""The recipe's optimizer block, one class for each optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from configs.section import Section

__all__ = ["Adam", "Lars", "Optimizer", "Sgd"]

ParameterKind = Literal["weight", "gamma", "beta", "bias"]
Kinds = Annotated[tuple[ParameterKind, ...], Field(strict=False)]


class Lars(Section):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg, arXiv:1708.03888)."""

    name: Literal["lars"]
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(ge=0, lt=1)
    trust_coefficient: float = Field(0.001, gt=0, lt=1, description="eta of the paper.")
    epsilon: float = Field(0.0, ge=0, lt=1)
    trust_weight_decay: float | None = Field(
        None, ge=0, lt=10, description="Weight decay in the trust ratio's denominator; none: weight_decay."
    )
    skip_trust_ratio: Kinds = ("gamma", "beta", "bias")
    skip_weight_decay: Kinds = ("gamma", "beta", "bias")


class Sgd(Section):
    """SGD with momentum, in the form v = m v - lr (g + wd w); w = w + v."""

    name: Literal["sgd"]
    momentum: float = Field(0.9, ge=0, lt=1)
    weight_decay: float = Field(ge=0, lt=1)
    skip_weight_decay: Kinds = ("gamma", "beta", "bias")


class Adam(Section):
    """Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), of the gradient g + wd w."""

    name: Literal["adam"]
    momentum: float = Field(0.9, ge=0, lt=1, description="beta_1 of the paper.")
    beta_2: float = Field(0.999, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, lt=1)
    skip_weight_decay: Kinds = ("gamma", "beta", "bias")


Optimizer = Annotated[Lars | Sgd | Adam, Field(discriminator="name")]
