"""A rule of the closed division of MLPerf's ResNet, as data. Imports nothing of ours."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

AUGMENTATION = "MLPerf training rules, ResNet reference preprocessing"
REFERENCE = "MLPerf ResNet reference model"
HYPERPARAMETERS = "MLPerf training rules, ResNet hyperparameters"
CHECKED = f"{HYPERPARAMETERS}; mlperf-logging training_3.1.0/closed_resnet"
"""Followed by the ending of a file of the checker's rules."""


@dataclass(frozen=True)
class Rule:
    """One rule: the value that a recipe has at a key must be allowed.

    Attributes:
        name: Name of the rule: an MLPerf log key where one exists.
        key: Dotted path in a recipe.
        allowed: The allowed values, in words.
        is_allowed: Returns whether a value is allowed.
        source: Where the rule is written.
        optimizer: Name of the only optimizer that the rule applies to. If empty, any.
        rulesets: The rulesets that have the rule.
        reference: Value of ``mlperf.reference`` that the rule applies to. If empty, any.
    """

    name: str
    key: str
    allowed: str
    is_allowed: Callable[[Any], bool]
    source: str
    optimizer: str = ""
    rulesets: tuple[str, ...] = ("0.6.0", "4.0.0")
    reference: str = ""


def exactly(name: str, key: str, value: object, source: str, why: str = "", optimizer: str = "") -> Rule:
    """Return the rule that a key has one value, with the reason if the value does not speak for itself."""
    words = {"None": "null", "True": "true", "False": "false"}  # by text: 0 equals False, and 1 True
    shown = words.get(repr(value), repr(value))
    return Rule(name, key, f"{shown} ({why})" if why else shown, lambda got: bool(got == value), source, optimizer)
