"""What a forecast says of epochs and of convergence, and the scenario that a recipe and a cluster make."""

import math
from dataclasses import replace

import pytest

from configs.load import load_both, load_cluster, load_recipe
from tests.configs.test_progressive_resizing import GROWING
from train.sim.constants import load_calibration
from train.sim.forecast import Scenario, forecast, has_reference, make_scenario, time_step
from train.sim.hardware import Machine, find_accelerator

CALIBRATION = load_calibration()


def _record(*overrides: str) -> Scenario:
    return make_scenario(*load_both("abci-b86016", "abci-v100", ["data.plain_from_epoch=null", *overrides]))


@pytest.mark.parametrize(
    ("given", "epochs", "word", "reaches"),
    [(89, 89, "more epochs", False), (90, 90, "reference", True), (95, 90, "reference", True)],
)
def test_a_recipe_keeps_its_epochs_up_to_those_that_its_batch_needs(
    given: int, epochs: int, word: str, reaches: bool
) -> None:
    found = forecast(_record(f"run.epochs={given}"))
    assert (found.epochs, found.convergence, found.reaches_target) == (epochs, word, reaches)
    # A run that ends early has fewer evaluations than the recipe asks for: one after every fourth epoch.
    evaluations = found.scenario.evaluations if epochs == given else -(-epochs // 4)
    assert evaluations is not None
    assert found.scenario.mlperf_round == "0.7"
    assert found.run.evaluations_s == pytest.approx(evaluations * (0.95 * 50_000 / found.images_per_s + 0.02))


@pytest.mark.parametrize(("batch", "word"), [(42, "reference"), (43, "beyond")])
def test_nobody_is_known_to_have_converged_above_the_batch_of_the_record(batch: int, word: str) -> None:
    scenario = replace(_record(), batch=batch)
    found = forecast(scenario)
    assert (found.convergence, found.reaches_target) == (word, True if word == "reference" else None)


@pytest.mark.parametrize(
    ("overrides", "has_one"),
    [
        ((), True),
        (("run.target_top1=0.75",), False),
        (("run.max_steps=1000000",), False),
        (("model.name=resnet101",), False),
        (("data.train_samples=1000000",), True),
        (("data.train_samples=999999",), False),
        ((GROWING,), False),
    ],
)
def test_the_reference_is_for_one_network_one_accuracy_and_all_of_imagenet(
    overrides: tuple[str, ...], has_one: bool
) -> None:
    assert has_reference(load_recipe("imagenet-b256", overrides)) is has_one


@pytest.mark.parametrize(("steps", "epochs", "seconds_of"), [(3, 1, 3), (5005, 2, 5005), (10**6, 90, None)])
def test_a_run_of_some_steps_takes_the_time_of_these(steps: int, epochs: int, seconds_of: int | None) -> None:
    sets = ["run.epochs=90", "data.train_samples=1281024"]  # 5,004 steps an epoch
    scenario = make_scenario(*load_both("imagenet-b256", "a100-node", [*sets, f"run.max_steps={steps}"]))
    found = forecast(scenario)
    assert (found.epochs, found.time_to_train_s) == (epochs, None)
    assert found.run.epochs_s == pytest.approx((seconds_of or 90 * 5004) * 256 / found.images_per_s)


@pytest.mark.parametrize(
    ("allreduce", "algorithm"), [("flat", "auto"), ("hierarchical", "hierarchical"), ("torus", "hierarchical")]
)
def test_a_cluster_files_allreduce_is_one_of_the_simulators(allreduce: str, algorithm: str) -> None:
    sets = [f"cluster.communication.allreduce={allreduce}", "cluster.communication.cycle_time_ms=2"]
    software = _record(*sets).software
    assert (software.algorithm, software.cycle_s, software.graphs) == (algorithm, 0.002, False)


def test_a_share_of_all_gradients_fills_a_bucket_in_the_bytes_of_the_number_type() -> None:
    sets = ["cluster.communication.bucket_fraction=0.5"]
    half, full = (_record(*sets, f"cluster.engine.precision={name}").software for name in ("float16", "float32"))
    # 25,560,168 parameters, of which the 53,120 of batch norm are always float32.
    assert half.bucket_bytes == (2 * (25_560_168 - 53_120) + 4 * 53_120) // 2
    assert full.bucket_bytes == 4 * 25_560_168 // 2


def test_gradients_of_several_micro_batches_are_summed_in_float32() -> None:
    # 32 images a GPU, or two micro-batches of 204; the 53,120 parameters of batch norm are always float32.
    for recipe, half in (("imagenet-b256", 25_557_032 - 53_120), ("mlperf-b3264", 0)):
        step = time_step(make_scenario(*load_both(recipe, "a100-node")))
        assert sum(each.size_bytes for each in step.reductions) == 4 * 25_557_032 - 2 * half


def test_a_forecast_is_the_step_the_run_and_the_start_in_their_units() -> None:
    recipe = load_recipe("mlperf-b3264", ["batch.bn_span=51", "data.train_samples=1281167"])
    cluster = load_cluster("dgx-a100", ["cluster.num_nodes=2", "cluster.communication.cycle_time_ms=2.5"])
    scenario = make_scenario(recipe, cluster)
    assert (scenario.batch, scenario.accumulation, scenario.global_batch) == (51, 4, 3264)
    assert scenario.software.cycle_s == pytest.approx(0.0025)
    assert scenario.software.bucket_bytes == cluster.communication.bucket_bytes
    found, step = forecast(scenario), time_step(scenario)
    # The sums are reduced, and the weights updated, after the last of four micro-batches only.
    assert found.images_per_s == pytest.approx(3264 / (step.total_s + 3 * step.compute_s))
    quantities = ((found.images_per_s, found.rate_bounds), (found.run.total_s, found.run_bounds))
    for value, (low, high) in (*quantities, (found.startup.total_s, found.startup_bounds)):
        assert 1 < value / low == pytest.approx(high / value)
    assert found.run.epochs_s == pytest.approx(found.epochs * 1281167 / found.images_per_s)
    assert found.accelerator_hours == pytest.approx(16 * (found.run.total_s + found.startup.total_s) / 3600)
    ends = zip(found.hours_bounds, found.run_bounds, found.startup_bounds, strict=True)
    assert all(each == pytest.approx(16 * (run + startup) / 3600) for each, run, startup in ends)
    alone = forecast(replace(scenario, machine=replace(scenario.machine, ranks=1), accumulation=1))
    assert found.efficiency == pytest.approx(found.images_per_s / 16 / alone.images_per_s, rel=1e-6)


@pytest.mark.parametrize(
    ("chip", "ranks", "kind", "half_width"),
    [("A100", 64, "seen", 0.1), ("A100", 65, "larger", 0.2), ("A100", 1024, "larger", 0.2),
     ("A100", 4096, "larger", 0.3), ("B200", 8, "unseen", 0.5), ("TPUv3", 64, "compiler", 0.4),
     ("TPUv3", 2048, "compiler", 0.8)],
)  # fmt: skip
def test_an_interval_widens_beyond_the_largest_known_system(
    chip: str, ranks: int, kind: str, half_width: float
) -> None:
    # Measured up to four doublings beyond; six are half as much again. Other compilers: twice as wide after four.
    widths = {"seen": 0.1, "larger": 0.2, "unseen": 0.5, "compiler": 0.4, "float32": 0.3}
    times = {"seen": 0.2, "larger": 0.3, "unseen": 0.6, "compiler": 0.5}
    calibration = replace(CALIBRATION, half_widths=widths, time_half_widths=times, largest={"A100": 64, "TPUv3": 128})
    compiler = "xla" if chip == "TPUv3" else ""
    machine = Machine(replace(find_accelerator("V100"), chip=chip, compiler=compiler), ranks)
    found = calibration.interval(machine)
    assert (found.basis, found.lacks) == (kind, "")
    assert found.rate == pytest.approx(half_width)
    assert found.time == pytest.approx(half_width / widths[kind] * times[kind])
    assert calibration.interval(machine, "float32").rate == pytest.approx(math.hypot(half_width, 0.3))
