"""The waits of a described GPU, invented accuracies, and what a rehearsal takes over of a cluster, by hand."""

import pytest

from configs.errors import UserError
from configs.load import load_both
from configs.registry import communicators_of, installed_engine
from train.rehearse.described_waits import invented_top1, waits_of
from train.rehearse.rehearsed_run import rehearsed_job, rehearsed_run
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


def test_an_accuracy_rises_steeply_and_passes_its_target_with_the_last_epoch() -> None:
    # 0.505 times 1 - (3/4)^3, 1 - (2/4)^3, 1 - (1/4)^3 and 1.
    assert invented_top1(4, 0.5) == pytest.approx((0.291953125, 0.441875, 0.497109375, 0.505))
    assert invented_top1(90, 0.5)[-2:] == pytest.approx((0.4995, 0.505)), "no earlier epoch comes nearer than 0.05 %"
    assert invented_top1(2, None) == pytest.approx((0.7875, 0.9))
    assert invented_top1(1, 0.5) == pytest.approx((0.505,))


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ranks_of_both_launchers_over_mpi_may_be_more_than_the_cores(launcher: str) -> None:
    _, cluster = rehearsed_run(*load_both("abci-b86016", "abci-v100"), ranks=4, nodes=2, launcher=launcher)
    assert cluster.communication.backend == "mpi"
    assert cluster.environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"


@pytest.mark.parametrize(("ranks", "is_allowed"), [(0, False), (-2, False), (1, True)])
def test_a_rehearsal_has_one_rank_at_least(ranks: int, is_allowed: bool) -> None:
    described = load_both("imagenet-b256", "a100-node")
    if is_allowed:
        assert rehearsed_run(*described, ranks=ranks)[1].world_size == 1
        return
    with pytest.raises(UserError, match=rf"^--ranks: got {ranks}, allowed: 1 or more, a multiple of --nodes 1$"):
        rehearsed_run(*described, ranks=ranks)


@pytest.mark.parametrize(
    ("text", "is_allowed"), [("1:0.5", True), ("1:1e-3", True), ("2:1", False), ("x:2", False), ("1:-1", False)]
)
def test_a_slow_rank_may_be_a_fast_one_and_has_a_number(text: str, is_allowed: bool) -> None:
    described = load_both("imagenet-b256", "a100-node")
    if is_allowed:
        rehearsal = rehearsed_run(*described, ranks=2, slow_ranks=[text])[1].rehearsal
        assert rehearsal is not None
        assert rehearsal.slow_ranks == {"1": float(text[2:])}
        return
    with pytest.raises(UserError, match=r"^--slow: got '.*', allowed: RANK:FACTOR with a rank from 0 to 1, and"):
        rehearsed_run(*described, ranks=2, slow_ranks=[text])


def test_a_fault_that_is_refused_is_named_by_its_option() -> None:
    described = load_both("imagenet-b256", "a100-node")
    for text in ("melt@3:1", "kill@3:2"):
        with pytest.raises(UserError, match=rf"^--fail: got '{text}', allowed: "):
            rehearsed_run(*described, ranks=2, faults=[text])


def test_a_job_keeps_its_scheduler_and_a_library_that_needs_no_gpu_and_samples_none() -> None:
    sets = ["cluster.communication.backend=gloo", "cluster.sample_gpus=true", "cluster.engine.name=mxnet"]
    recipe, described = load_both("abci-b86016", "abci-v100", sets)
    assert described.scheduler.check_first
    _, cluster = rehearsed_job(recipe, described, shrink=1, speed=1)
    assert (cluster.launcher, cluster.communication.backend) == ("mpirun", "gloo")
    assert cluster.scheduler == described.scheduler.model_copy(update={"check_first": False})
    assert not cluster.sample_gpus
    assert not rehearsed_run(recipe, described, ranks=4)[1].sample_gpus


def test_gpus_of_one_process_are_rehearsed_over_the_engines_own_library() -> None:
    described = load_both("digits", "dgx-a100", ["cluster.communication.kind=devices", "cluster.num_nodes=1"])
    expected = communicators_of(installed_engine())[0]
    for _, cluster in (rehearsed_run(*described, ranks=2), rehearsed_job(*described, shrink=1, speed=1)):
        assert cluster.communication.kind == expected


@pytest.mark.parametrize(("described_s", "patience_s"), [(33, 600), (1000, 1000)])
def test_ranks_wait_ten_minutes_for_each_other_and_look_for_gradients_no_more_often_than_described(
    described_s: int, patience_s: int
) -> None:
    sets = [f"cluster.communication.timeout_s={described_s}", "cluster.communication.cycle_time_ms=500"]
    communication = rehearsed_run(*load_both("abci-b86016", "abci-v100", sets), ranks=2)[1].communication
    assert (communication.timeout_s, communication.cycle_time_ms) == (patience_s, 500)


def test_a_factor_that_is_no_number_is_refused_with_an_example() -> None:
    with pytest.raises(UserError, match=r"^--slow: got '1:fast', allowed: RANK:FACTOR, as 7:1\.5$"):
        rehearsed_run(*load_both("imagenet-b256", "a100-node"), ranks=2, slow_ranks=["1:fast"])


@pytest.mark.parametrize(("cluster", "share"), [("a100-node", 0.42), ("abci-v100", 0.95)])
def test_the_waits_of_a_rank_are_the_parts_of_its_simulated_step(cluster: str, share: float) -> None:
    recipe = "imagenet-b256" if cluster == "a100-node" else "abci-b86016"
    described, calibration = load_both(recipe, cluster), load_calibration()
    scenario = make_scenario(*described, calibration)
    waits, step = waits_of(*described), time_step(scenario, calibration)
    assert waits.forward_s == pytest.approx(step.forward_s)
    assert max(waits.gradients_s) == pytest.approx(step.backward_s), "the first layer's weights are last"
    assert waits.update_s == pytest.approx(step.update_s)
    # All ranks together evaluate 50,000 images, and V100s ran the programs of round 0.7.
    rate = forecast(scenario, calibration).images_per_s
    assert waits.evaluation_s == pytest.approx(share * 50_000 / rate + 0.02)
