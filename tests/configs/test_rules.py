"""The closed division's rules: every published closed recipe keeps them, and each rule refuses by its name."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError
from configs.load import ROOT, load_recipe
from configs.rules import CLOSED_RULES, _multiple_of_a_thousandth, broken_rules

CLOSED = sorted(
    path.stem for pattern in ("mlperf-*.yaml", "nvidia-*.yaml") for path in (ROOT / "configs" / "recipes").glob(pattern)
)
SGD = [
    "optimizer={name: sgd, momentum: 0.9, weight_decay: 1e-4}",
    "schedule.base_lr=0.256",
    "schedule.decay={name: polynomial, power: 2, end_lr: 1e-4}",
]
BREAKS = {
    "lars_epsilon": ["optimizer.epsilon=1e-9"],
    "lars_opt_end_learning_rate": ["schedule.decay.end_lr=0.0325"],
    "lars_opt_learning_rate_decay_poly_power": ["schedule.decay.power=2.2"],
    "lars_opt_weight_decay": ["optimizer.weight_decay=3e-5"],
    "lars_opt_trust_coefficient": ["optimizer.trust_coefficient=0.0025"],
    "lars_opt_trust_weight_decay": ["optimizer.trust_weight_decay=6.5e-4"],
    "sgd_opt_base_learning_rate": [*SGD, "schedule.base_lr=0.2565"],
    "sgd_opt_end_learning_rate": [*SGD, "schedule.decay.end_lr=0"],
    "sgd_opt_learning_rate_decay_poly_power": [*SGD, "schedule.decay.power=1"],
    "sgd_opt_weight_decay": [*SGD, "optimizer.weight_decay=0"],
    "weight_decay_lag": ["schedule.weight_decay_lag_steps=1"],
    "eval_accuracy": ["run.target_top1=0.749"],
    "eval_frequency": ["run.eval_every_epochs=1"],
    "eval_offset": ["run.eval_first_epoch=5"],
    "max_steps": ["run.max_steps=100"],
    "data_source": ["data.source=synthetic"],
    "train_samples": ["data.train_samples=1281158"],
    "eval_samples": ["data.eval_samples=49999"],
    "bad_record": ["data.bad_record=skip"],
    "crop_kind": ["data.crop.kind=shift"],
    "crop_area": ["data.crop.area=[0.05, 0.9]"],
    "crop_aspect": ["data.crop.aspect=[0.6667, 1.5]"],
    "augmentation_throughout": ["data.plain_from_epoch=50"],
    "model_name": ["model.name=resnet101"],
    "num_classes": ["model.num_classes=1001"],
    "initial_parameters": ["model.parameters=resnet50.params"],
    "opt_name": ["optimizer={name: adam, weight_decay: 1e-4}"],
    "image_size": ["model.image_size=192"],
    "reference_convergence_point": ["batch.global_size=67968", "batch.bn_span=128"],
}


@pytest.mark.parametrize("name", CLOSED)
def test_every_published_closed_recipe_keeps_every_rule_of_both_rulesets(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.mlperf.division == "closed"
    assert not broken_rules(recipe, "0.6.0")
    assert not broken_rules(recipe, "4.0.0")


def test_ten_reference_points_and_eight_submissions_are_closed() -> None:
    assert len(CLOSED) == 18


def test_momentum_sgd_can_be_closed_too() -> None:
    assert load_recipe("mlperf-b1632", SGD).optimizer.name == "sgd"


@pytest.mark.parametrize("rule", CLOSED_RULES, ids=lambda rule: rule.name)
def test_a_closed_recipe_that_breaks_one_rule_is_refused_by_its_name(rule: object) -> None:
    name = rule.name  # type: ignore[attr-defined]
    with pytest.raises(ConfigError) as caught:
        load_recipe("mlperf-b32768", BREAKS[name])
    assert f"(rule {name}; " in str(caught.value)
    assert "\n" not in str(caught.value)
    opened = load_recipe("mlperf-b32768", [*BREAKS[name], "mlperf.division=open"])
    assert [broken.name for broken in broken_rules(opened, "4.0.0")] == [name]


def test_a_decay_by_steps_is_refused_for_its_missing_power() -> None:
    with pytest.raises(ConfigError, match=r"schedule\.decay\.power: got None, .*poly_power"):
        load_recipe("mlperf-b1632", ["schedule.decay={name: step, boundaries: [30], factor: 1.3513513513513513e-5}"])


def test_a_batch_beyond_the_reference_points_was_allowed_before_there_were_any() -> None:
    load_recipe("mlperf-b32768", [*BREAKS["reference_convergence_point"], "mlperf.ruleset=0.6.0"])


def test_a_batch_beyond_the_reference_points_is_allowed_with_reference_runs_of_ones_own() -> None:
    overrides = [*BREAKS["reference_convergence_point"], "mlperf.reference=own"]
    assert load_recipe("mlperf-b32768", overrides).batch.global_size == 67968


def test_the_record_could_not_be_closed() -> None:
    with pytest.raises(ConfigError, match="rule lars_epsilon"):
        load_recipe("abci-b86016", ["mlperf.division=closed"])


@pytest.mark.parametrize(("value", "is_multiple"), [(0.001, True), (0.003, True), (0.0015, False)])
def test_a_multiple_of_a_thousandth_may_be_an_odd_one(value: float, is_multiple: bool) -> None:
    assert _multiple_of_a_thousandth(value) == is_multiple


def test_the_ends_of_a_range_are_compared_to_the_three_decimals_of_the_rule() -> None:
    assert load_recipe("mlperf-b32768", ["data.crop.aspect=[0.75, 1.3333333]"]).mlperf.division == "closed"
    with pytest.raises(ConfigError, match="rule crop_aspect"):
        load_recipe("mlperf-b32768", ["data.crop.aspect=[0.75, 1.334]"])
