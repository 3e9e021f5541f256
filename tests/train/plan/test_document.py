"""The document of a plan holds what the run would do: steps, rates, shards, memory, log keys and rules."""

import json
from typing import Any

import pytest

from configs.load import ROOT, load_both
from tests.oracles import record_lr
from train.plan.document import plan_document, render

FFCV = "{initial_size: 160, size_step: 32, ramp_start_share: 0.75, ramp_end_share: 0.875}"
RECIPES = sorted(path.stem for path in (ROOT / "configs" / "recipes").glob("*.yaml"))


def _plan(recipe: str, *overrides: str, cluster: str = "laptop") -> dict[str, Any]:
    return plan_document(*load_both(recipe, cluster, overrides))


def test_the_record_on_its_own_cluster() -> None:
    plan = _plan("abci-b86016", cluster="abci-v100")
    assert [row[1] for row in plan["schedule"]] == pytest.approx([record_lr(step) for step in range(1340)])
    assert plan["eval_epochs"] == list(range(2, 91, 4))
    assert sum(bucket["bytes"] for bucket in plan["buckets"]) == plan["gradient_bytes"]
    simulated = plan["simulated"]
    assert simulated["is_time_to_train"]
    for quantity in ("images_per_s", "run_s", "startup_s", "accelerator_hours"):
        value, low, high = simulated[quantity]
        assert 0 < low < value < high
    assert simulated["run_s"][1] < 70.4 < simulated["run_s"][2]


def test_a_plan_of_very_many_images_needs_no_memory_for_each() -> None:
    plan = _plan("digits", f"data.train_samples={10**12}")
    assert plan["shards"]["train"] == {
        "samples": 10**12, "smallest": 10**12 // 2, "largest": 10**12 // 2, "read_in_an_epoch": 10**12,
    }  # fmt: skip
    assert len(json.dumps(plan)) < 1 << 20


@pytest.mark.medium
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_can_be_planned_on_two_ranks(recipe: str) -> None:
    plan = _plan(recipe)
    assert plan["schedule"][-1][0] == plan["total_steps"] - 1
    for verdict in plan["compliance"]["rulesets"].values():
        assert verdict["closed_allowed"] is not bool(verdict["broken_rules"])
        assert verdict["closed_allowed"] or plan["compliance"]["division"] == "open"


@pytest.mark.medium
def test_a_machine_that_nobody_knows_is_planned_without_a_simulated_time() -> None:
    plan = _plan("abci-b86016", "cluster.node.gpu=X1", cluster="abci-v100")
    assert "node.accelerator" in plan["simulated"]["unknown"]
    assert "not possible" in render(plan)


def test_a_simulated_time_has_its_unit_and_the_ends_of_its_interval() -> None:
    bounded, keys = (1234.4, 1000.0, 99.126), ("images_per_s", "startup_s", "accelerator_hours")
    found: dict[str, Any] = {**dict.fromkeys(keys, bounded), "run_s": (70.4, 60, 100), "epochs": 86}
    found |= {"is_time_to_train": True, "is_unmeasured": False}
    text = render(_plan("digits") | {"simulated": found})
    assert "  images/s   1,234 (1,000 to 99)\n  to target  70.40 s (1m10s) for 86 epochs (60.00 to 100.00)\n" in text
    untimed = render(_plan("digits") | {"simulated": found | {"is_time_to_train": False}})
    assert "\n  run        70.40 s (1m10s) for 86 epochs" in untimed


def test_images_that_grow_take_in_each_epoch_what_images_of_its_size_take() -> None:
    sets = ["model.image_size=192", "run.epochs=16", f"data.progressive_resizing={FFCV}"]
    plan, text = _plan("imagenet-b256", *sets, cluster="a100-node"), []
    for row, (side, first, last) in zip(plan["image_sizes"], [(160, 1, 12), (192, 13, 16)], strict=True):
        other = _plan("imagenet-b256", f"model.image_size={side}", "run.epochs=16", cluster="a100-node")
        (only,) = other["image_sizes"]
        steps = (last - first + 1) * 1_281_160 / 256
        assert (row["side"], row["first_epoch"], row["last_epoch"]) == (side, first, last)
        assert row["steps"] == pytest.approx(steps, abs=1)
        assert row["forward_macs_per_image"] == other["forward_macs_per_image"]
        assert row["epoch_s"] == pytest.approx(only["epoch_s"], rel=1e-9)
        text.append(f"{first:>3} to {last}   {side} px  {row['steps']:>9,}")
    assert plan["memory"] == other["memory"], "that of the largest images"
    assert not plan["simulated"]["is_time_to_train"], "nobody knows how many epochs they need"
    saved = other["simulated"]["run_s"][0] - plan["simulated"]["run_s"][0]
    assert saved == pytest.approx(12 * (only["epoch_s"] - plan["image_sizes"][0]["epoch_s"]), rel=1e-6)
    assert all(line in render(plan) for line in text)
    assert "Training images by epoch" not in render(other)
    # Twelve epochs of 1,281,160 images are 60,054.4 steps of 256.
    short = _plan("imagenet-b256", *sets, "run.max_steps=61000", cluster="a100-node")
    assert [(row["last_epoch"], row["steps"]) for row in short["image_sizes"]] == [(12, 60_055), (13, 945)]
    assert len(_plan("imagenet-b256", *sets, "run.max_steps=9", cluster="a100-node")["image_sizes"]) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cuda_graphs=step", "a step is replayed as one CUDA graph, with its allreduces"),
        ("cuda_graphs=compute", "replayed as one CUDA graph and the update as another, allreduces between"),
        ("compile=true", "torch.compile makes the kernels of forward and backward passes, as 4 stages"),
        ("compile=true cluster.ranks_per_node=1", "forward and backward passes, as one program"),
    ],
)
def test_a_plan_says_what_is_compiled_and_what_a_gpu_replays(words: str, told: str) -> None:
    torch = "cluster.engine.name=torch"
    assert told in render(_plan("digits", torch, *f"cluster.engine.{words}".split()))
    assert told not in render(_plan("digits", torch))


@pytest.mark.parametrize(
    ("engine", "precision", "ranks", "width"),
    [
        ("mxnet", "bfloat16", 2, 4),
        ("mxnet", "float16", 8, 2),
        ("mxnet", "float16", 128, 2),
        ("torch", "bfloat16", 64, 2),
        ("torch", "bfloat16", 128, 4),
    ],
)
def test_gradients_are_reduced_in_the_weights_number_type_but_bfloat16_by_many_ranks_in_float32(
    engine: str, precision: str, ranks: int, width: int
) -> None:
    cluster = "a100-node" if precision == "float16" else "laptop"
    sets = [f"cluster.engine={{name: {engine}, precision: {precision}}}", f"cluster.ranks_per_node={ranks}"]
    plan = _plan("imagenet-b256", *sets, cluster=cluster)
    assert plan["gradient_bytes"] == width * 25_503_912 + 4 * 53_120
    assert sum(bucket["bytes"] for bucket in plan["buckets"]) == plan["gradient_bytes"]
    assert plan["memory"]["gradients_bytes"] == plan["gradient_bytes"]
    summed = {2: precision, 4: "float32"}[width]
    assert plan["number_types"] == {"computed": precision, "summed": summed, "kept": "float32"}


def test_a_broken_rule_is_told_with_its_source_and_a_value_that_can_be_written_as_json() -> None:
    plan = json.loads(json.dumps(_plan("imagenet-b256", "model.residual.stem=deep")))
    broken = plan["compliance"]["rulesets"]["4.0.0"]["broken_rules"]
    assert all(rule.keys() == {"rule", "key", "got", "allowed", "source"} and rule["source"] for rule in broken)
    (blocks,) = (each["got"] for each in broken if each["key"] == "model.residual")
    assert blocks["stem"] == "deep"


@pytest.mark.medium
@pytest.mark.parametrize(("steps", "stride"), [(50_000, 1), (50_001, 50)])
def test_every_step_is_listed_up_to_fifty_thousand_and_then_about_a_thousand_and_the_landmarks(
    steps: int, stride: int
) -> None:
    plan = _plan("digits", "run.epochs=2700", f"run.max_steps={steps}")
    listed = [row[0] for row in plan["schedule"]]
    assert listed == sorted({*range(0, steps, stride), *(mark["step"] for mark in plan["landmarks"])})
    rates = {row[0]: row[1:] for row in plan["schedule"]}
    assert all(rates[mark["step"]] == [mark["lr"], mark["momentum"]] for mark in plan["landmarks"])
