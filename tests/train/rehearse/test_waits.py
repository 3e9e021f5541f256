"""The waits of a described GPU, and invented accuracies, by hand."""

import pytest

from configs.load import load_both
from train.rehearse.rehearsed_run import invented_top1, waits_of
from train.sim.constants import load_calibration
from train.sim.forecast import forecast, make_scenario, time_step


def test_micro_batches_before_the_last_lengthen_the_forward_pass_and_nothing_else() -> None:
    # Four ranks take 16 images at a time, three times or once.
    once, thrice = (
        waits_of(*load_both("imagenet-b256", "a100-node", [f"batch.global_size={64 * number}",
                                                           f"batch.accumulation_steps={number}",
                                                           "cluster.ranks_per_node=4"]))
        for number in (1, 3)
    )  # fmt: skip
    assert thrice.forward_s == pytest.approx(3 * once.forward_s + 2 * max(once.gradients_s))
    assert thrice.gradients_s == once.gradients_s
    assert thrice.update_s == once.update_s


@pytest.mark.parametrize(
    ("epochs", "target", "last"),
    [
        # 0.505 times 1 - (3/4)^3, 1 - (2/4)^3, 1 - (1/4)^3 and 1.
        (4, 0.5, (0.291953125, 0.441875, 0.497109375, 0.505)),
        (90, 0.5, (0.4995, 0.505)),  # no earlier epoch comes nearer than 0.05 %
        (2, None, (0.7875, 0.9)),
        (1, 0.5, (0.505,)),
        (4, 0.998, (1.0,)),
    ],
)
def test_an_accuracy_rises_steeply_and_passes_its_target_with_the_last_epoch(
    epochs: int, target: float | None, last: tuple[float, ...]
) -> None:
    curve = invented_top1(epochs, target)
    assert len(curve) == epochs
    assert list(curve) == sorted(curve)
    assert curve[-len(last) :] == pytest.approx(last)


def test_the_waits_of_the_record_are_those_of_its_gpu() -> None:
    waits = waits_of(*load_both("abci-b86016", "abci-v100"))
    assert len(waits.gradients_s) == 161
    assert waits.gradients_s[0] == max(waits.gradients_s), "the first layer's gradient arrives last"
    assert waits.gradients_s[-1] == min(waits.gradients_s)
    # The record took 52 ms a step (70.4 s without 1.4 s of evaluations, 1,340 steps), not all of it compute.
    assert 0.03 < waits.forward_s + max(waits.gradients_s) + waits.update_s < 0.052


@pytest.mark.parametrize(
    ("recipe", "cluster", "share"), [("imagenet-b256", "a100-node", 0.42), ("abci-b86016", "abci-v100", 0.95)]
)
def test_the_waits_of_a_rank_are_the_parts_of_its_simulated_step(recipe: str, cluster: str, share: float) -> None:
    described, calibration = load_both(recipe, cluster), load_calibration()
    scenario = make_scenario(*described, calibration)
    waits, step = waits_of(*described), time_step(scenario, calibration)
    assert waits.forward_s == pytest.approx(step.forward_s)
    assert max(waits.gradients_s) == pytest.approx(step.backward_s), "the first layer's weights are last"
    assert waits.update_s == pytest.approx(step.update_s)
    # All ranks together evaluate 50,000 images, and V100s ran the programs of round 0.7.
    rate = forecast(scenario, calibration).images_per_s
    assert waits.evaluation_s == pytest.approx(share * 50_000 / rate + 0.02)


def test_all_gradients_arrive_after_the_graph_that_computes_them() -> None:
    step, compute = (
        waits_of(*load_both("imagenet-b256", "h100-node", [f"cluster.engine.cuda_graphs={graphs}"]))
        for graphs in ("step", "compute")
    )
    assert set(compute.gradients_s) == {max(step.gradients_s)}
    assert len(set(step.gradients_s)) > 50
