"""Where a rule begins to hold: the last value that is allowed, and the first that is not."""

import pytest

from configs.errors import ConfigError
from configs.load import load_recipe
from configs.plan import plan_run

PLAIN = "data.plain_from_epoch"
ALEXNET, DENSENET = "model.name=alexnet", "model.name=densenet121"

# Recipe, keys set in both cases, the key at stake, its last allowed and its first refused value.
EDGES = [
    ("digits", ["run.epochs=7"], PLAIN, 7, 8),
    ("digits", [], PLAIN, 2, 1),
    ("digits", ["model.image_size=32"], "data.eval_resize", 32, 31),
    ("digits", ["data.eval_size=24"], "data.eval_resize", 24, 23),
    ("digits", ["model.image_size=32", "data.eval_size=24", f"{PLAIN}=2"], "data.eval_resize", 32, 31),
    ("digits", ["data.eval_resize=null"], "data.eval_size", 64, 65),
    ("digits", ["model.name=alexnet", "model.image_size=64", "data.eval_resize=80"], "data.eval_size", 64, 65),
    ("digits", ["model.residual.shortcut=pooled", "data.eval_resize=24"], "data.eval_size", 20, 21),
    ("digits", ["data.eval_resize=8"], "data.eval_central_share", "null", 0.8),
    ("digits", [], "batch.global_size", 119800, 119801),
    ("digits", [], "model.image_size", 64, 65),
    ("digits", [], "model.image_size", 8, 7),
    ("digits", [ALEXNET], "model.image_size", 63, 62),
    ("digits", [DENSENET], "model.image_size", 29, 28),
    ("digits", ["model.name=resnet50"], "model.image_size", 1024, 1025),
    ("digits", [f"{PLAIN}=2"], "data.keep_batches", "false", "true"),
    ("mlperf-b32768", [], "run.eval_every_epochs", 4, 3),
]


@pytest.mark.parametrize(("name", "both", "key", "allowed", "refused"), EDGES)
def test_a_recipe_is_refused_from_the_first_value_beyond_the_rule(
    name: str, both: list[str], key: str, allowed: object, refused: object
) -> None:
    load_recipe(name, [*both, f"{key}={allowed}"])
    with pytest.raises(ConfigError):
        load_recipe(name, [*both, f"{key}={refused}"])


def test_a_warm_up_ends_at_least_a_step_before_the_run() -> None:
    keys = ["schedule.warmup_epochs=null", "run.epochs=1", "run.eval_first_epoch=1"]
    assert plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=18"]), 2).decay_steps == 1
    with pytest.raises(ConfigError, match=r"got 19, allowed: fewer steps than the run has \(19, by run\.epochs: 1\)"):
        plan_run(load_recipe("digits", [*keys, "schedule.warmup_steps=19"]), 2)
