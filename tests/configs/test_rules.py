"""The closed division's rules: every published closed recipe keeps them, and each rule refuses by its name."""

import pytest

from configs.errors import ConfigError
from configs.load import ROOT, load_recipe
from configs.rules import CLOSED_RULES, broken_rules
from tests.configs.test_progressive_resizing import GROWING

CLOSED = sorted(
    path.stem
    for pattern in ("mlperf-*.yaml", "nvidia-*.yaml", "lars-*.yaml")
    for path in (ROOT / "configs" / "recipes").glob(pattern)
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
    "loss": ["loss.kind=one_hot_sigmoid"],
    "class_weights": ["loss.class_weights=balanced"],
    "weight_average": ["optimizer.average_half_life_steps=100"],
    "schedule_unit": ["schedule.changes_every=epoch", "schedule.warmup_epochs=0", "schedule.decay.steps=null"],
    "decay_start": ["schedule.decay.begins=at_start"],
    "warmup_shape": ["schedule.warmup_shape=cosine"],
    "warmup_start": ["schedule.warmup_start_lr=0.8"],
    "sgd_opt_decoupled_weight_decay": [*SGD, "optimizer.decoupled_weight_decay=true"],
    "sgd_opt_momentum_correction": [*SGD, "optimizer.momentum_correction=true"],
    "lars_opt_momentum_correction": ["optimizer.momentum_correction=true"],
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
    "random_erasing": ["data.random_erasing=0.25"],
    "auto_augment": ["data.auto_augment=trivialaugment"],
    "augmentation_repeats": ["data.augmentation_repeats=4"],
    "mixup": ["data.mixup_alpha=0.2"],
    "cutmix": ["data.cutmix_alpha=1"],
    "eval_size": ["data.eval_size=256"],
    "eval_flip": ["data.eval_flip=true"],
    "progressive_resizing": [GROWING],
    "eval_central_share": ["data.eval_central_share=0.8", "data.eval_resize=null"],
    "crop_area": ["data.crop.area=[0.05, 0.9]"],
    "crop_aspect": ["data.crop.aspect=[0.6667, 1.5]"],
    "augmentation_throughout": ["data.plain_from_epoch=50"],
    "model_name": ["model.name=resnet101"],
    "model_blocks": ["model.residual.stem=deep"],
    "num_classes": ["model.num_classes=1001"],
    "initial_parameters": ["model.parameters=resnet50.params"],
    "initial_classifier_bias": ["model.classifier_bias=-6.9"],
    "initial_kernels": ["model.initial_kernels=lecun_uniform"],
    "initial_last_gamma": ["model.last_gamma=1.4"],
    "stochastic_depth": ["model.stochastic_depth=0.1"],
    "opt_gradient_clip_norm": ["optimizer.clip_norm=1"],
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


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [
        ("optimizer.weight_decay", ["1e-4", "2e-4", "0.0016", "3.125e-6", "1.9073486328125e-10"],
         ["0", "3e-4", "1.5e-4", "1.414213562373095e-4"]),
        ("run.target_top1", ["0.759", "0.76", "0.9"], ["0.7589", "null"]),
        ("run.eval_first_epoch", ["1", "2", "3", "4"], ["5"]),
        ("data.keep_batches", ["false"], ["true"]),
        ("batch.global_size", ["67840", "32768"], ["67968"]),
        ("data.crop.area", ["[0.05, 1]", "[0.0504, 0.9996]"], ["[0.051, 1]", "[0.05, 0.999]"]),
        ("data.crop.aspect", ["[0.75, 1.3333333]"], ["[0.75, 1.334]"]),
        ("optimizer.name", ["lars"], ["adam"]),
        ("schedule.decay.counts_from", ["0", "1"], []),
    ],
)  # fmt: skip
def test_a_rule_of_the_closed_division_has_these_bounds(key: str, allowed: list[str], refused: list[str]) -> None:
    for value, is_refused in [*((each, False) for each in allowed), *((each, True) for each in refused)]:
        both = ["batch.bn_span=128"] if key == "batch.global_size" else []
        opened = load_recipe("mlperf-b32768", [*both, "mlperf.division=open", *_set(key, value)])
        assert any(rule.key == key for rule in broken_rules(opened, "4.0.0")) is is_refused, value


def _set(key: str, value: str) -> list[str]:
    return ["optimizer={name: adam}"] if value == "adam" else [f"{key}={value}"]


@pytest.mark.parametrize(
    ("lr", "is_allowed"), [(0.001, True), (0.003, True), (12.8, True), (0.0015, False), (0.2565, False)]
)
def test_the_rate_of_momentum_sgd_is_a_multiple_of_a_thousandth(lr: float, is_allowed: bool) -> None:
    opened = load_recipe("mlperf-b1632", [*SGD, f"schedule.base_lr={lr}", "mlperf.division=open"])
    assert (broken_rules(opened, "4.0.0") == []) is is_allowed


@pytest.mark.parametrize("ruleset", ["0.6.0", "4.0.0"])
@pytest.mark.parametrize("reference", ["official", "own"])
def test_a_large_batch_breaks_a_rule_of_the_newer_rules_with_official_references_only(
    ruleset: str, reference: str
) -> None:
    keys = [*BREAKS["reference_convergence_point"], f"mlperf.reference={reference}", "mlperf.division=open"]
    broken = broken_rules(load_recipe("mlperf-b32768", [*keys, f"mlperf.ruleset={ruleset}"]), ruleset)
    assert bool(broken) is (ruleset == "4.0.0" and reference == "official")
