"""What a rehearsal keeps of the described run, what it changes and refuses; and the waits of the described GPU."""

from typing import Any

import pytest

from configs.blocks.rehearsal import MOST_SLOW, Rehearsal
from configs.errors import UserError
from configs.load import load_both
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from train.rehearse.rehearsed_run import invented_top1, rehearsed_job, rehearsed_run, waits_of
from train.sim.forecast import forecast, make_scenario, time_step

USUAL: dict[str, Any] = {}


def _record(*sets: str) -> tuple[Recipe, Cluster]:
    return load_both("abci-b86016", "abci-v100", sets)


def _rehearsal(cluster: Cluster) -> Rehearsal:
    assert cluster.rehearsal is not None
    return cluster.rehearsal


def test_a_rehearsed_record_has_the_records_steps_and_evaluations() -> None:
    recipe, cluster = rehearsed_run(*_record(), USUAL, ranks=64)
    plan = plan_run(recipe, cluster.world_size)
    assert (plan.total_steps, len(plan.eval_epochs), plan.global_batch_size) == (1340, 23, 86016)
    assert plan.accumulation_steps == 1
    assert len(_rehearsal(cluster).waits.top1) == 90
    assert (_rehearsal(cluster).shrink, _rehearsal(cluster).speed) == (256, 1.0)


@pytest.mark.parametrize(
    ("course", "message"),
    [
        ({"faults": ["melt@3:1"]}, r"cluster\.rehearsal\.faults: got 'melt@3:1', allowed: WHAT@STEP:RANK"),
        ({"faults": ["kill@3:64"]}, "--fail: got .*, allowed: a rank from 0 to 63 and a step from 1 to 1339"),
        ({"faults": ["kill@1340:0"]}, "--fail: got 'kill@1340:0', allowed: a rank"),
        ({"slow_ranks": {"64": 2}}, "--slow: got '64', allowed: a rank from 0 to 63"),
        ({"slow_ranks": {"1": 0}}, r"cluster\.rehearsal\.slow_ranks: got '1:0\.0'"),
        ({"slow_ranks": {"": 2}}, r"cluster\.rehearsal\.slow_ranks: got ':2\.0'"),
        ({"slow_ranks": {"1:disk": 2}}, r"cluster\.rehearsal\.slow_ranks: .* RANK:copy: .* RANK:link: "),
        ({"noise": 2}, r"cluster\.rehearsal\.noise: got 2"),
        ({"slow_ranks": {"1": MOST_SLOW + 1}}, rf"cluster\.rehearsal\.slow_ranks: .* at most {MOST_SLOW}"),
        ({"shrink": 0}, r"cluster\.rehearsal\.shrink: got 0"),
    ],
)
def test_what_lies_outside_the_run_is_refused_in_one_line(course: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        rehearsed_run(*_record(), course, ranks=64)


@pytest.mark.parametrize(
    ("ranks", "nodes", "allowed"),
    [
        (0, 1, " with --nodes 1, allowed: "),
        (3, 2, " with --nodes 2, allowed: "),
        (2, 0, " with --nodes 0, allowed: "),
        (5, 1, ", allowed: a divisor of the global batch 86016$"),
    ],
)
def test_ranks_that_cannot_share_the_batch_are_refused(ranks: int, nodes: int, allowed: str) -> None:
    with pytest.raises(UserError, match=rf"^--ranks: got {ranks}{allowed}"):
        rehearsed_run(*_record(), USUAL, ranks=ranks, nodes=nodes)


def test_faults_and_slow_ranks_are_taken_up_to_the_last_rank_and_step() -> None:
    own = {"slow_ranks": {"1": 0.5, "63": MOST_SLOW}, "faults": ["kill@1339:63", "error@1:0"]}
    course = {"shrink": 64, "speed": 5.0, **own}
    told = _rehearsal(rehearsed_run(*_record(), course, ranks=64)[1])
    assert (told.slow_ranks, told.faults) == ({"1": 0.5, "63": MOST_SLOW}, ("kill@1339:63", "error@1:0"))
    assert (told.shrink, told.speed) == (64, 5.0)
    assert rehearsed_run(*_record(), USUAL, ranks=1)[1].world_size == 1


def test_the_interval_grows_with_the_ranks_and_once_more_where_many_share_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    described, found = _record(), {}
    for cores in (2, 16):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        for ranks in (4, 64):
            found[cores, ranks] = rehearsed_run(*described, USUAL, ranks=ranks)[1].communication.cycle_time_ms
    assert found == {(2, 4): 4, (2, 64): 128, (16, 4): 4, (16, 64): 64}


@pytest.mark.parametrize(("described_s", "patience_s"), [(33, 600), (1000, 1000)])
def test_ranks_wait_ten_minutes_for_each_other_and_look_for_gradients_no_more_often_than_described(
    described_s: int, patience_s: int
) -> None:
    described = _record(f"cluster.communication.timeout_s={described_s}", "cluster.communication.cycle_time_ms=500")
    communication = rehearsed_run(*described, USUAL, ranks=2)[1].communication
    assert (communication.timeout_s, communication.cycle_time_ms) == (patience_s, 500)


@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ranks_that_mpi_starts_may_be_more_than_the_cores_and_leave_them_while_they_wait(launcher: str) -> None:
    _, cluster = rehearsed_run(*_record(), USUAL, ranks=4, nodes=2, launcher=launcher)
    assert cluster.communication.backend == "mpi"
    assert cluster.environment["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert cluster.environment["OMPI_MCA_mpi_yield_when_idle"] == "1"
    _, cluster = rehearsed_run(*_record(), USUAL, ranks=64)
    # What the described cluster sets for Horovod is rehearsed; NCCL and the kernels are not.
    assert (cluster.communication.backend, cluster.environment) == ("gloo", {"HOROVOD_BATCH_D2D_MEMCOPIES": "1"})


def test_what_the_described_machine_decides_is_kept_and_what_this_one_needs_is_set() -> None:
    recipe, described = _record(
        "cluster.engine.run_ahead_steps=3", "cluster.communication.bucket_fraction=0.125", "cluster.sample_gpus=true",
        "cluster.engine.update_groups=3", "cluster.paths.runs=/shared/runs", "cluster.paths.data=/shared/data",
        "cluster.engine.name=mxnet",
    )  # fmt: skip
    rehearsed, cluster = rehearsed_run(recipe, described, USUAL, ranks=64, nodes=2, launcher="mpirun")
    assert (cluster.num_nodes, cluster.ranks_per_node, cluster.device) == (2, 32, "cpu")
    assert cluster.communication.bucket_bytes == described.communication.bucket_bytes
    assert cluster.communication.bucket_fraction == described.communication.bucket_fraction
    assert (cluster.watchdog_s, cluster.checkpoint) == (described.watchdog_s, described.checkpoint)
    assert (cluster.engine.precision, cluster.engine.run_ahead_steps) == (described.engine.precision, 3)
    # 2,048 ranks of the record leave out the images that no whole share of a rank has.
    assert rehearsed.data.train_samples == 1_281_167 // 2048 * 2048
    assert cluster.engine.update_groups == 3
    assert (cluster.paths.runs, cluster.paths.data) == ("/shared/runs", "/shared/data")
    assert not cluster.sample_gpus


@pytest.mark.parametrize(
    ("recipe", "cluster", "sets", "backend"),
    [
        ("abci-b86016", "abci-v100", [], "mpi"),
        ("abci-b86016", "abci-v100", ["cluster.communication.backend=gloo", "cluster.engine.name=mxnet"], "gloo"),
        ("imagenet-b256", "a100-node", [], "gloo"),
    ],
)
def test_a_rehearsed_job_changes_nothing_of_its_cluster_but_what_computes(
    recipe: str, cluster: str, sets: list[str], backend: str
) -> None:
    described = load_both(recipe, cluster, [*sets, "cluster.communication.bucket_fraction=0.125"])
    ranks = described[1].world_size
    trained, place = rehearsed_job(*described)
    told = _rehearsal(place)
    assert (told.shrink, told.speed, told.faults) == (1, 1, ())
    assert (place.device, place.communication.backend, place.engine.name) == ("cpu", backend, "timed")
    assert place.communication.bucket_bytes == described[1].communication.bucket_bytes
    assert place.communication.bucket_fraction == 0.125
    assert place.scheduler == described[1].scheduler.model_copy(update={"check_first": False})
    assert not place.sample_gpus
    kept = ("num_nodes", "ranks_per_node", "launcher", "container", "node", "environment", "paths", "watchdog_s")
    assert {name: getattr(place, name) for name in kept} == {name: getattr(described[1], name) for name in kept}
    assert plan_run(trained, ranks).total_steps == plan_run(described[0], ranks).total_steps


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


@pytest.mark.parametrize(
    ("recipe", "cluster", "share"), [("imagenet-b256", "a100-node", 0.42), ("abci-b86016", "abci-v100", 0.95)]
)
def test_the_waits_of_a_rank_are_the_parts_of_its_simulated_step(recipe: str, cluster: str, share: float) -> None:
    described = load_both(recipe, cluster)
    scenario = make_scenario(*described)
    waits, step = waits_of(*described), time_step(scenario)
    assert waits.forward_s == pytest.approx(step.forward_s)
    assert waits.gradients_s[0] == max(waits.gradients_s) == pytest.approx(step.backward_s), "the first layer is last"
    assert waits.update_s == pytest.approx(step.update_s)
    # All ranks together evaluate 50,000 images, and V100s ran the programs of round 0.7.
    rate = forecast(scenario).images_per_s
    assert waits.evaluation_s == pytest.approx(share * 50_000 / rate + 0.02)


def test_all_gradients_arrive_after_the_graph_that_computes_them() -> None:
    step, compute = (
        waits_of(*load_both("imagenet-b256", "h100-node", [f"cluster.engine.cuda_graphs={graphs}"]))
        for graphs in ("step", "compute")
    )
    assert set(compute.gradients_s) == {max(step.gradients_s)}
    assert len(set(step.gradients_s)) > 50
