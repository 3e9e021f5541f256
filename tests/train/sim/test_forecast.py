"""What a forecast says of epochs and of convergence, and the scenario that a recipe and a cluster make."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import UserError
from configs.load import load_both, load_recipe
from train.sim.constants import load_calibration
from train.sim.convergence import LARGEST_CONVERGED
from train.sim.forecast import Scenario, forecast, has_reference, make_scenario, with_recorded_software
from train.sim.hardware import find_system

CALIBRATION = load_calibration()


def _record(*overrides: str) -> Scenario:
    return make_scenario(
        *load_both("abci-b86016", "abci-v100", ["data.plain_from_epoch=null", *overrides]), CALIBRATION
    )


@pytest.mark.parametrize(
    ("given", "epochs", "word", "reaches"),
    [(89, 89, "more epochs", False), (90, 90, "reference", True), (95, 90, "reference", True)],
)
def test_a_recipe_keeps_its_epochs_up_to_those_that_its_batch_needs(
    given: int, epochs: int, word: str, reaches: bool
) -> None:
    found = forecast(_record(f"run.epochs={given}"), CALIBRATION)
    assert (found.epochs, found.convergence, found.reaches_target) == (epochs, word, reaches)
    # A run that ends early has fewer evaluations than the recipe asks for: one after every fourth epoch.
    evaluations = found.scenario.evaluations if epochs == given else -(-epochs // 4)
    assert evaluations is not None
    assert found.scenario.mlperf_round == "0.7"
    assert found.run.evaluations_s == pytest.approx(evaluations * (0.95 * 50_000 / found.images_per_s + 0.02))


def test_another_batch_has_the_epochs_that_it_needs_whatever_the_recipes_are() -> None:
    scenario = _record("run.epochs=40")
    smaller = forecast(replace(scenario, machine=scenario.machine.with_ranks(1024)), CALIBRATION)
    assert smaller.convergence == "reference"
    assert smaller.epochs > 40


@pytest.mark.parametrize(("batch", "word"), [(42, "reference"), (43, "beyond")])
def test_nobody_is_known_to_have_converged_above_the_records_batch(batch: int, word: str) -> None:
    assert LARGEST_CONVERGED == 2048 * 42
    scenario = replace(_record(), batch=batch)
    found = forecast(scenario, CALIBRATION)
    assert (found.convergence, found.reaches_target) == (word, True if word == "reference" else None)


@pytest.mark.parametrize(
    ("overrides", "has_one"),
    [((), True), (("run.target_top1=0.75",), False), (("model.name=resnet101",), False)],
)
def test_the_reference_is_for_one_network_and_one_accuracy(overrides: tuple[str, ...], has_one: bool) -> None:
    assert has_reference(load_recipe("imagenet-b256", overrides)) is has_one


def test_a_scenario_has_the_number_type_the_engine_and_the_evaluations_of_the_run() -> None:
    sets = ["cluster.engine.precision=float32", "cluster.engine.name=torch", "run.epochs=9", "run.eval_every_epochs=3"]
    sets += ["run.eval_first_epoch=3", "batch.accumulation_steps=2"]
    found = make_scenario(*load_both("imagenet-b256", "a100-node", sets), CALIBRATION)
    assert (found.precision, found.engine, found.evaluations) == ("float32", "torch", 3)
    assert (found.batch * found.accumulation * found.machine.ranks, found.accumulation) == (256, 2)
    assert found.mlperf_round == CALIBRATION.rounds["A100"]
    assert not found.tuned
    other = make_scenario(*load_both("imagenet-b256", "a100-node", sets), CALIBRATION, mlperf_round="0.7")
    assert other.mlperf_round == "0.7"


def test_the_records_program_has_its_buckets_and_counts_as_tuned() -> None:
    scenario, system = _record(), find_system("abci-v100")
    found = with_recorded_software(scenario, "abci-v100")
    assert (found.software.boundaries, found.software.algorithm) == (system.boundaries, system.algorithm)
    assert found.software.norm_traffic == (system.norm_traffic or scenario.software.norm_traffic)
    assert (scenario.lacks, found.lacks) == ("own kernels", "")
    with pytest.raises(
        UserError, match="--as-recorded: no record on the cluster 'dgx-a100' is known; it is known of a"
    ):
        with_recorded_software(scenario, "dgx-a100")
