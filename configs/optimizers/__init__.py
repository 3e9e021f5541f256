"""The recipe's ``optimizer`` block: one class for each optimizer.

A new optimizer is registered by adding its class to `Optimizer`; docs/extending.md has a worked example.
"""

from typing import Annotated

from pydantic import Field

from configs.optimizers.adam import Adam, AdamW
from configs.optimizers.lamb import Lamb
from configs.optimizers.lars import Lars
from configs.optimizers.muon import Muon
from configs.optimizers.optimizer_block import HyperParameters, OptimizerBlock, ParameterKinds
from configs.optimizers.sgd import Sgd
from configs.optimizers.shampoo import Shampoo

__all__ = [
    "Adam",
    "AdamW",
    "HyperParameters",
    "Lamb",
    "Lars",
    "Muon",
    "Optimizer",
    "OptimizerBlock",
    "ParameterKinds",
    "Sgd",
    "Shampoo",
]

Optimizer = Annotated[Lars | Sgd | Adam | AdamW | Lamb | Muon | Shampoo, Field(discriminator="name")]
