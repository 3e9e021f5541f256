"""What the closed division of MLPerf's ResNet allows, as a table: a recipe that breaks a row can only be open.

The row's name is the MLPerf key where there is one. Nothing here needs a log: a recipe is judged before its job is
submitted. Imports nothing of ours but the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.errors import ConfigError

if TYPE_CHECKING:
    from configs.schema import Recipe

__all__ = ["CLOSED_RULES", "MAX_REFERENCE_BATCH_SIZE", "TARGET_TOP1", "Rule", "broken_rules", "require_allowed"]

MAX_REFERENCE_BATCH_SIZE = 67_840
"""The largest batch with a reference convergence point; the official RCP checker fails anything above."""

TARGET_TOP1 = 0.759
"""Evaluation top-1 that ends a run of ruleset 0.6.0 or later."""


@dataclass(frozen=True)
class Rule:
    """One row: the value at ``key`` of a recipe must satisfy ``holds``.

    Attributes:
        optimizer: The rule binds only recipes with this one; empty: all. ``reference`` likewise.
        rulesets: Those that have the rule.
    """

    name: str
    key: str
    allowed: str
    holds: Callable[[Any], bool]
    source: str
    optimizer: str = ""
    rulesets: tuple[str, ...] = ("0.6.0", "4.0.0")
    reference: str = ""

    def value(self, recipe: Recipe) -> Any:
        """Give what the recipe says at ``key``; None where it has no such key."""
        block: Any = recipe
        for part in self.key.split("."):
            block = getattr(block, part, None)
        return block

    def is_broken_by(self, recipe: Recipe, ruleset: str) -> bool:
        """Whether the rule binds such a recipe under ``ruleset``, and does not hold."""
        binds = ruleset in self.rulesets and self.optimizer in ("", recipe.optimizer.name)
        binds = binds and self.reference in ("", recipe.mlperf.reference)
        return binds and not self.holds(self.value(recipe))


def broken_rules(recipe: Recipe, ruleset: str) -> list[Rule]:
    """List the closed rules of ``ruleset`` that a recipe breaks, whatever its division."""
    return [rule for rule in CLOSED_RULES if rule.is_broken_by(recipe, ruleset)]


def require_allowed(recipe: Recipe) -> None:
    """Refuse a recipe that the closed division would.

    Raises:
        ConfigError: Names the first broken rule and where it is written.
    """
    for rule in broken_rules(recipe, recipe.mlperf.ruleset)[:1]:
        where = f"in the closed division of {recipe.mlperf.ruleset} (rule {rule.name}; {rule.source})"
        raise ConfigError(rule.key, rule.value(recipe), f"{rule.allowed} {where}", "or set mlperf.division: open")


def _is(expected: object) -> Callable[[Any], bool]:
    return lambda value: bool(value == expected)


def _range(low: float, high: float) -> Callable[[Any], bool]:
    """Match a pair to three decimals, in which the rule is written."""
    return lambda pair: pair is not None and (round(pair[0], 3), round(pair[1], 3)) == (low, high)


def _power_of_two_times_1e4(value: Any) -> bool:
    return value > 0 and math.log2(value / 0.0001).is_integer()


def _multiple_of_a_thousandth(value: Any) -> bool:
    return bool((value / 0.001).is_integer())


def _reaches_the_target(top1: Any) -> bool:
    return top1 is not None and top1 >= TARGET_TOP1


_EVAL_EVERY_EPOCHS = 4
_EVALUATION = "MLPerf training rules, ResNet evaluation frequency"
_HYPERPARAMETERS = "MLPerf training rules, ResNet hyperparameters"
_CHECKED = f"{_HYPERPARAMETERS}; mlperf-logging training_3.1.0/closed_resnet"
_AUGMENTATION = "MLPerf training rules, ResNet reference preprocessing"
_REFERENCE = "MLPerf ResNet reference model"

CLOSED_RULES = (
    Rule("opt_name", "optimizer.name", "'sgd' or 'lars'", lambda name: name in ("sgd", "lars"),
         f"{_CHECKED}.yaml"),
    Rule("lars_epsilon", "optimizer.epsilon", "0", _is(0), f"{_CHECKED}_lars.yaml", "lars"),
    Rule("lars_opt_end_learning_rate", "schedule.end_lr", "0.0001 (schedule.decay.end_lr)", _is(0.0001),
         f"{_CHECKED}_lars.yaml", "lars"),
    Rule("lars_opt_learning_rate_decay_poly_power", "schedule.decay.power", "2", _is(2),
         f"{_CHECKED}_lars.yaml", "lars"),
    Rule("lars_opt_weight_decay", "optimizer.weight_decay", "0.0001 times a power of two", _power_of_two_times_1e4,
         f"{_CHECKED}_lars.yaml", "lars"),
    Rule("lars_opt_trust_coefficient", "optimizer.trust_coefficient", "0.001", _is(0.001), _REFERENCE, "lars"),
    Rule("lars_opt_trust_weight_decay", "optimizer.trust_weight_decay", "none (that of the update)", _is(None),
         _REFERENCE, "lars"),
    Rule("sgd_opt_base_learning_rate", "schedule.base_lr", "a multiple of 0.001", _multiple_of_a_thousandth,
         f"{_CHECKED}_sgd.yaml", "sgd"),
    Rule("sgd_opt_end_learning_rate", "schedule.end_lr", "0.0001 (schedule.decay.end_lr)", _is(0.0001),
         f"{_CHECKED}_sgd.yaml", "sgd"),
    Rule("sgd_opt_learning_rate_decay_poly_power", "schedule.decay.power", "2", _is(2), _HYPERPARAMETERS, "sgd"),
    Rule("sgd_opt_weight_decay", "optimizer.weight_decay", "0.0001 times a power of two", _power_of_two_times_1e4,
         f"{_CHECKED}_sgd.yaml", "sgd"),
    Rule("weight_decay_lag", "schedule.weight_decay_lag_steps", "0", _is(0), _REFERENCE),
    Rule("eval_accuracy", "run.target_top1", "0.759 or more", _reaches_the_target,
         "MLPerf training rules, quality; mlperf-logging training_3.1.0/closed_resnet.yaml"),
    Rule("eval_frequency", "run.eval_every_epochs", f"{_EVAL_EVERY_EPOCHS}", _is(_EVAL_EVERY_EPOCHS), _EVALUATION),
    Rule("eval_offset", "run.eval_first_epoch", f"1 to {_EVAL_EVERY_EPOCHS}", lambda epoch: epoch <= _EVAL_EVERY_EPOCHS,
         _EVALUATION),
    Rule("max_steps", "run.max_steps", "none (train to the target)", _is(None), "MLPerf training rules, quality"),
    Rule("data_source", "data.source", "'folders' (photographs, not made up)", _is("folders"),
         "MLPerf training rules, ImageNet 2012"),
    Rule("train_samples", "data.train_samples", "1281167", _is(1_281_167), "MLPerf training rules, ImageNet 2012"),
    Rule("eval_samples", "data.eval_samples", "50000", _is(50_000), "MLPerf training rules, ImageNet 2012"),
    Rule("bad_record", "data.bad_record", "'stop' (every image is trained on)", _is("stop"),
         "MLPerf training rules, ImageNet 2012"),
    Rule("crop_kind", "data.crop.kind", "'resized'", _is("resized"), _AUGMENTATION),
    Rule("crop_area", "data.crop.area", "[0.05, 1.0]", _range(0.05, 1.0), _AUGMENTATION),
    Rule("crop_aspect", "data.crop.aspect", "[0.75, 1.333]", _range(0.75, 1.333), _AUGMENTATION),
    Rule("augmentation_throughout", "data.plain_from_epoch", "none (augment to the end)", _is(None), _AUGMENTATION),
    Rule("augmentation_throughout", "data.keep_batches", "false (augment anew)", _is(False), _AUGMENTATION),
    Rule("model_name", "model.name", "'resnet50'", _is("resnet50"), _REFERENCE),
    Rule("num_classes", "model.num_classes", "1000", _is(1000), _REFERENCE),
    Rule("initial_parameters", "model.parameters", "none (seeded weights)", _is(None), _REFERENCE),
    Rule("image_size", "model.image_size", "224", _is(224), _REFERENCE),
    Rule("reference_convergence_point", "batch.global_size", f"at most {MAX_REFERENCE_BATCH_SIZE}",
         lambda size: size <= MAX_REFERENCE_BATCH_SIZE,
         "mlperf-logging rcp_checker training_4.0.0: a larger batch has no reference convergence point and fails; with "
         "ten reference runs of one's own set mlperf.reference: own", rulesets=("4.0.0",), reference="official"),
)  # fmt: skip
"""*Sources* stand in the rows; the rule book's, as the project's facts page on MLPerf gives them."""
