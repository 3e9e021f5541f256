"""The rules of the closed division of MLPerf's ResNet, as a table. A recipe that breaks a rule can only be open.

A rule is named after the MLPerf key where one exists. The rules need no log: a recipe is judged before its job is
submitted. Each idea has the rules of its own keys (`configs.ideas`).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from configs.ideas import IDEAS
from configs.optimizers import OPTIMIZER
from configs.rule import AUGMENTATION, CHECKED, HYPERPARAMETERS, REFERENCE, Rule, exactly
from configs.schema import Recipe

MAX_REFERENCE_BATCH_SIZE = 67_840
"""The largest global batch with a reference convergence point (RCP); the official RCP checker fails larger ones."""

TARGET_TOP1 = 0.759
"""Evaluation top-1 that ends a run under ruleset 0.6.0 and later ones."""


def broken_rules(recipe: Recipe, ruleset: str) -> list[Rule]:
    """Return the closed division's rules of ``ruleset`` that a recipe breaks, whatever division the recipe is for."""
    applying = [
        rule
        for rule in CLOSED_RULES
        if ruleset in rule.rulesets
        and rule.optimizer in ("", recipe.optimizer.name)
        and rule.reference in ("", recipe.mlperf.reference)
    ]
    return [rule for rule in applying if not rule.is_allowed(recipe.at(rule.key))]


def require_allowed(recipe: Recipe) -> None:
    """Raise an error if a recipe for the closed division breaks a rule of it.

    Raises:
        ConfigError: The recipe breaks a rule; the message names the first one and where it is written.
    """
    if recipe.mlperf.division != "closed":
        return
    for rule in broken_rules(recipe, recipe.mlperf.ruleset):
        where = f"in the closed division of {recipe.mlperf.ruleset} (rule {rule.name}; {rule.source})"
        recipe.refuse(rule, rule.key, f"{rule.allowed} {where}", "or set mlperf.division: open")


def _range(low: float, high: float) -> Callable[[Any], bool]:
    """Return a test for a pair of numbers, compared to the three decimals of the written rule."""
    return lambda pair: pair is not None and (round(pair[0], 3), round(pair[1], 3)) == (low, high)


_CHECKED_SGD = f"{CHECKED}_sgd.yaml"
_EVAL_EVERY_EPOCHS = 4
_EVALUATION = "MLPerf training rules, ResNet evaluation frequency"
_IMAGENET = "MLPerf training rules, ImageNet 2012"
_QUALITY = "MLPerf training rules, quality"


def _both(rule: Rule) -> Iterator[Rule]:
    """Yield a rule of momentum SGD, and the same one of LARS, which the checker has."""
    for optimizer, source in (("lars", f"{CHECKED}_lars.yaml"), ("sgd", rule.source)):
        yield replace(rule, name=f"{optimizer}_opt_{rule.name}", optimizer=optimizer, source=source)


CLOSED_RULES = (
    Rule("opt_name", "optimizer.name", "'sgd' or 'lars'", lambda name: name in ("sgd", "lars"), f"{CHECKED}.yaml"),
    *OPTIMIZER.rules,
    *_both(exactly("end_learning_rate", "schedule.end_lr", 0.0001, _CHECKED_SGD, "schedule.decay.end_lr")),
    *_both(exactly("learning_rate_decay_poly_power", "schedule.decay.power", 2, HYPERPARAMETERS)),
    *_both(
        Rule(
            "weight_decay",
            "optimizer.weight_decay",
            "0.0001 times a power of two",
            lambda value: value > 0 and math.log2(value / 0.0001).is_integer(),
            _CHECKED_SGD,
        )
    ),
    exactly("warmup_shape", "schedule.warmup_shape", "linear", REFERENCE),
    exactly("schedule_unit", "schedule.changes_every", "step", REFERENCE),
    Rule(
        "decay_start",
        "schedule.decay.begins",
        "after_warmup",
        lambda begins: begins in ("after_warmup", None),  # which a decay by steps does not have
        REFERENCE,
    ),
    exactly("warmup_start", "schedule.warmup_start_lr", 0, REFERENCE),
    exactly("weight_decay_lag", "schedule.weight_decay_lag_steps", 0, REFERENCE),
    Rule(
        "eval_accuracy",
        "run.target_top1",
        "0.759 or more",
        lambda top1: top1 is not None and top1 >= TARGET_TOP1,
        f"{_QUALITY}; mlperf-logging training_3.1.0/closed_resnet.yaml",
    ),
    exactly("eval_frequency", "run.eval_every_epochs", _EVAL_EVERY_EPOCHS, _EVALUATION),
    Rule(
        "eval_offset",
        "run.eval_first_epoch",
        f"1 to {_EVAL_EVERY_EPOCHS}",
        lambda epoch: epoch <= _EVAL_EVERY_EPOCHS,
        _EVALUATION,
    ),
    exactly("max_steps", "run.max_steps", None, _QUALITY, "train to the target"),
    exactly("data_source", "data.source", "folders", _IMAGENET, "real images, not generated ones"),
    exactly("train_samples", "data.train_samples", 1_281_167, _IMAGENET),
    exactly("eval_samples", "data.eval_samples", 50_000, _IMAGENET),
    exactly("bad_record", "data.bad_record", "stop", _IMAGENET, "every image is trained on"),
    exactly("crop_kind", "data.crop.kind", "resized", AUGMENTATION),
    exactly("eval_size", "data.eval_size", None, REFERENCE, "that of training"),
    exactly("eval_central_share", "data.eval_central_share", None, AUGMENTATION),
    Rule("crop_area", "data.crop.area", "[0.05, 1.0]", _range(0.05, 1.0), AUGMENTATION),
    Rule("crop_aspect", "data.crop.aspect", "[0.75, 1.333]", _range(0.75, 1.333), AUGMENTATION),
    exactly("augmentation_throughout", "data.plain_from_epoch", None, AUGMENTATION, "augment in every epoch"),
    exactly("augmentation_throughout", "data.keep_batches", False, AUGMENTATION, "augment anew in every epoch"),
    exactly("model_name", "model.name", "resnet50", REFERENCE),
    Rule("model_blocks", "model.residual", "the defaults", lambda got: bool(got == type(got)()), REFERENCE),
    exactly("num_classes", "model.num_classes", 1000, REFERENCE),
    exactly("initial_parameters", "model.parameters", None, REFERENCE, "weights drawn from the seed"),
    exactly("initial_kernels", "model.initial_kernels", "he_normal", REFERENCE),
    exactly("initial_classifier_bias", "model.classifier_bias", 0.0, REFERENCE),
    exactly("initial_last_gamma", "model.last_gamma", 1.0, REFERENCE),
    exactly("image_size", "model.image_size", 224, REFERENCE),
    Rule(
        "reference_convergence_point",
        "batch.global_size",
        f"at most {MAX_REFERENCE_BATCH_SIZE}",
        lambda size: size <= MAX_REFERENCE_BATCH_SIZE,
        "mlperf-logging rcp_checker training_4.0.0: a larger batch has no reference convergence point and fails; if "
        "you have ten reference runs of your own, set mlperf.reference: own",
        rulesets=("4.0.0",),
        reference="official",
    ),
    *(rule for idea in IDEAS for rule in idea.rules),
)
"""The rules. *Source*: each row names its own; rows of the rule book follow the project's facts page on MLPerf."""
