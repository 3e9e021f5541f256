"""Parts of the simulator against numbers worked out on paper from its own documented formulas and constants."""

import math
from dataclasses import replace

import pytest

from configs.load import load_cluster, load_recipe
from train.networks.arch import build_network
from train.sim.collectives import _tree_crossing_share, allreduce
from train.sim.constants import Calibration, Constants, load_calibration
from train.sim.forecast import forecast, make_scenario, time_step
from train.sim.hardware import Machine, find_accelerator
from train.sim.roofline import update_time
from train.sim.software import Software
from train.sim.startup_time import predict_init, predict_startup
from train.sim.step_time import StepModel
from train.sim.time_to_train import DataSet, evaluation_time, evaluations_of, run_time
from train.sim.topology import Topology

V100 = find_accelerator("V100-SXM2-16GB")
MODEL = StepModel(build_network("resnet50", num_classes=1000, image_size=224))
CONSTANTS = Constants(straggler=0.0, multinode_s=0.25)


def _machine(ranks: int) -> Machine:
    return Machine(V100, ranks, 8, V100.link, V100.nics, V100.nic)


@pytest.mark.parametrize(
    ("ranks", "nodes", "local", "racks"), [(1, 1, 1, 1), (5, 1, 5, 1), (8, 1, 8, 1), (9, 2, 8, 1), (70, 9, 8, 3)]
)
def test_a_last_node_and_a_last_rack_may_be_partly_filled(ranks: int, nodes: int, local: int, racks: int) -> None:
    topology = Topology(ranks, 8, 100e9, 20e9, nodes_per_rack=4)
    assert (topology.nodes, topology.local, topology.racks) == (nodes, local, racks)
    assert topology.rank_bytes_per_s == (100e9 if nodes == 1 else 20e9)


@pytest.mark.parametrize("nodes", [2, 64, 512])
@pytest.mark.parametrize("size_bytes", [1e4, 1e6, 1e8, 1e9])
def test_a_hierarchy_takes_the_faster_way_between_its_nodes(nodes: int, size_bytes: float) -> None:
    topology = Topology(8 * nodes, 8, 100e9, 20e9)
    by_ring = allreduce("torus", topology, size_bytes)
    by_tree = allreduce("hierarchical-tree", topology, size_bytes)
    assert allreduce("hierarchical", topology, size_bytes) == min(by_ring, by_tree)
    assert allreduce("auto", topology, size_bytes) == min(
        allreduce(name, topology, size_bytes) for name in ("ring", "tree")
    )


def test_each_of_the_two_ways_is_the_faster_one_somewhere() -> None:
    few, many = Topology(16, 8, 100e9, 20e9), Topology(4096, 8, 100e9, 20e9)
    assert allreduce("torus", few, 1e9) < allreduce("hierarchical-tree", few, 1e9)
    assert allreduce("torus", many, 1e6) > allreduce("hierarchical-tree", many, 1e6)


def test_a_small_ring_takes_the_latency_of_its_steps() -> None:
    # NCCL's LL: 6.6 us, then 2 (n - 1) steps of 0.6 us over NVLink, or 2.7 us between nodes, at half the bandwidth.
    inside = allreduce("ring", Topology(8, 8, 100e9, 20e9), 8)
    assert inside.latency_s == pytest.approx(6.6e-6 + 14 * 0.6e-6)
    assert inside.time_s == pytest.approx(inside.latency_s + 2 * 7 / 8 * 8 / 50e9)
    between = allreduce("ring", Topology(16, 8, 100e9, 20e9), 8)
    assert between.latency_s == pytest.approx(6.6e-6 + 28 * 0.6e-6 + 2 * 2.7e-6)


@pytest.mark.parametrize(("ranks", "servers"), [(16, 1), (16, 2), (64, 64)])
def test_a_parameter_server_is_bound_by_the_busier_side(ranks: int, servers: int) -> None:
    topology = Topology(ranks, 8, 100e9, 20e9, ideal=True)
    # A node sends for its 8 ranks; a server receives from all ranks that share it.
    expected = 2 * 1e8 * max(8 / 20e9, ranks / servers / 20e9)
    assert allreduce(f"ps:{servers}", topology, 1e8).time_s == pytest.approx(expected)


def test_a_gradient_waits_half_a_cycle_and_starts_when_the_one_before_is_reduced() -> None:
    times = {cycle_s: MODEL.time_step(_machine(16), 64, CONSTANTS, Software(cycle_s=cycle_s)) for cycle_s in (0.0, 0.2)}
    for before, after in zip(times[0.0].reductions, times[0.2].reductions, strict=True):
        assert after.ready_s == pytest.approx(before.ready_s + 0.1, abs=0.01)
    last = times[0.0].reductions[-1]
    assert last.ready_s == pytest.approx(times[0.0].compute_s + times[0.0].contention_s, rel=1e-6)


def test_a_run_bound_by_its_input_takes_exactly_the_inputs_time() -> None:
    slow = MODEL.time_step(_machine(16), 64, CONSTANTS, Software(images_per_s=20.0))
    assert slow.overhead_s == 0.25
    assert slow.total_s == pytest.approx(64 / 20)
    fast = MODEL.time_step(_machine(16), 64, CONSTANTS, Software(images_per_s=1e6))
    assert fast.input_s == 0
    assert fast.total_s == pytest.approx(MODEL.time_step(_machine(16), 64, CONSTANTS, Software()).total_s)


def test_an_update_moves_26_bytes_a_parameter() -> None:
    plain = Constants(memory_efficiency=0.5)
    assert update_time(25_557_032, _machine(1), plain) == pytest.approx(26 * 25_557_032 / (0.5 * V100.memory))
    step = MODEL.time_step(_machine(1), 64, plain, Software())
    assert step.update_s == pytest.approx(update_time(25_557_032, _machine(1), plain))


def test_the_slowest_of_many_ranks_is_late_by_the_square_root_of_two_logs() -> None:
    late = MODEL.time_step(_machine(64), 64, Constants(straggler=0.02), Software())
    assert late.straggler_s == pytest.approx(late.compute_s * 0.02 * math.sqrt(2 * math.log(64)))


@pytest.mark.parametrize(("epochs", "evaluations"), [(1, 1), (4, 1), (5, 2), (8, 2), (35, 9), (90, 23)])
def test_every_fourth_epoch_and_the_last_are_evaluated(epochs: int, evaluations: int) -> None:
    assert evaluations_of(epochs) == evaluations


@pytest.mark.parametrize(
    ("mlperf_round", "nodes", "pre_s", "excess_s", "share"),
    [
        ("4.0", 1, 1.2, 0.35 + 1.2, 0.42),
        ("4.0", 8, 1.2, 0.35 + 1.2, 0.42),
        ("", 32, 1.2, 0.35 + 0.3, 0.42),
        ("0.7", 16, 2.0, 0.35 + 0.6, 0.95),
        ("0.6", 512, 2.0, 1.9, 0.95),
    ],
)
def test_a_run_is_its_parts(mlperf_round: str, nodes: int, pre_s: float, excess_s: float, share: float) -> None:
    data = DataSet(images=2_000_000, eval_images=30_000, evaluations=7)
    run = run_time(1e5, 10, nodes, mlperf_round=mlperf_round, data=data)
    assert run.pre_s == pre_s
    assert run.first_epoch_excess_s == pytest.approx(excess_s)
    assert run.epochs_s == pytest.approx(10 * 20)
    assert evaluation_time(1e5, mlperf_round, 30_000) == pytest.approx(share * 0.3 + 0.02)
    assert run.evaluations_s == pytest.approx(7 * (share * 0.3 + 0.02))
    assert run.total_s == pytest.approx(pre_s + excess_s + 200 + 7 * (share * 0.3 + 0.02))
    assert run_time(1e5, 10, nodes).evaluations_s == pytest.approx(3 * (0.42 * 0.5 + 0.02))


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
    calibration = Calibration(Constants(), 0.9, widths, times, largest={"A100": 64, "TPUv3": 128})
    found = calibration.interval(chip, ranks, has_compiler=chip == "TPUv3")
    assert (found.basis, found.lacks) == (kind, "")
    assert found.rate == pytest.approx(half_width)
    assert found.time == pytest.approx(half_width / widths[kind] * times[kind])
    lacking = calibration.interval(chip, ranks, has_compiler=chip == "TPUv3", lacks="float32")
    assert lacking.rate == pytest.approx(math.hypot(half_width, 0.3))


def test_a_forecast_is_the_step_the_run_and_the_start_in_their_units() -> None:
    recipe = load_recipe("mlperf-b3264", ["batch.bn_span=51", "data.train_samples=1281167"])
    cluster = load_cluster("dgx-a100", ["cluster.num_nodes=2", "cluster.communication.cycle_time_ms=2.5"])
    calibration = load_calibration()
    scenario = make_scenario(recipe, cluster, calibration)
    assert (scenario.batch, scenario.accumulation, scenario.global_batch) == (51, 4, 3264)
    assert scenario.software.cycle_s == pytest.approx(0.0025)
    assert scenario.software.bucket_bytes == cluster.communication.bucket_bytes
    large = load_cluster("dgx-a100", ["cluster.communication.bucket_fraction=0.5"])
    # Half of the float16 gradients of 25.6 million parameters.
    assert make_scenario(recipe, large, calibration).software.bucket_bytes == pytest.approx(25.6e6, rel=2e-3)
    found, step = forecast(scenario, calibration), time_step(scenario, calibration)
    # The sums are reduced, and the weights updated, after the last of four micro-batches only.
    assert found.images_per_s == pytest.approx(3264 / (step.total_s + 3 * step.compute_s))
    low, high = found.rate_bounds
    assert low < found.images_per_s < high
    assert found.images_per_s / low == pytest.approx(high / found.images_per_s)
    ends = zip(found.hours_bounds, found.run_bounds, found.startup_bounds, strict=True)
    assert all(each == pytest.approx(16 * (run + startup) / 3600) for each, run, startup in ends)
    assert found.run_bounds[0] < found.run.total_s < found.run_bounds[1]
    assert found.startup_bounds[0] < found.startup.total_s < found.startup_bounds[1]
    assert found.run.epochs_s == pytest.approx(found.epochs * 1281167 / found.images_per_s)
    hours = 16 * (found.run.total_s + found.startup.total_s) / 3600
    assert found.accelerator_hours == pytest.approx(hours)
    alone = forecast(replace(scenario, machine=scenario.machine.with_ranks(1), accumulation=1), calibration)
    assert found.efficiency == pytest.approx(found.images_per_s / 16 / alone.images_per_s, rel=1e-6)


@pytest.mark.parametrize(("kind", "hop_s"), [("nvlink", 4e-6), ("pcie", 4e-6), ("ethernet", 12e-6), ("memory", 40e-6)])
def test_a_reduction_in_the_switches_waits_for_both_ways_through_node_and_network(kind: str, hop_s: float) -> None:
    found = allreduce("switch", Topology(16, 8, 100e9, 20e9, link_kind=kind), 1e6)
    # 30 us to begin, 7 hops up and 7 down in the node, and 14 us each way between the nodes.
    assert found.latency_s == pytest.approx(30e-6 + 14 * hop_s + 28e-6)
    assert found.time_s == pytest.approx(found.latency_s + 1e6 / 20e9)


def test_a_parameter_server_handles_a_message_of_each_of_its_ranks() -> None:
    found = allreduce("ps:2", Topology(16, 8, 100e9, 20e9), 1e6)
    assert found.latency_s == pytest.approx(2 * (8.4e-6 + 14e-6 + 8 * 1e-6))


@pytest.mark.parametrize(
    ("ordered", "distance", "share"),
    [(True, 1, 0.25), (True, 3, 0.75), (True, 4, 1.0), (True, 8, 1.0), (False, 1, 2 / 3), (False, 8, 2 / 3)],
)
def test_exchanges_leave_their_rack_by_their_distance_or_by_chance(ordered: bool, distance: int, share: float) -> None:
    topology = Topology(72, 8, 100e9, 20e9, nodes_per_rack=4, uplink_share=0.5, rack_ordered=ordered)
    assert topology.racks == 3
    assert topology.crossing_share(distance) == pytest.approx(share)
    assert Topology(32, 8, 100e9, 20e9, nodes_per_rack=4).crossing_share(distance) == 0
    assert Topology(72, 8, 100e9, 20e9).crossing_share(distance) == 0


@pytest.mark.parametrize(
    ("ordered", "ideal", "crossing", "rate"),
    [(True, False, 0.0, 20e9), (True, False, 0.25, 20e9), (True, False, 0.5, 20e9), (True, False, 1.0, 10e9),
     (False, False, 1.0, 6.9e9), (False, False, 0.3, 20e9), (False, True, 1.0, 10e9)],
)  # fmt: skip
def test_uplinks_bound_what_crosses_them(ordered: bool, ideal: bool, crossing: float, rate: float) -> None:
    topology = Topology(
        72, 8, 100e9, 20e9, nodes_per_rack=4, uplink_share=0.5, rack_ordered=ordered, ideal=ideal
    )  # fmt: skip
    assert topology.node_rate(crossing) == pytest.approx(rate)


def test_racks_share_uplinks_only_where_a_share_is_given() -> None:
    assert Topology(72, 8, 100e9, 20e9, nodes_per_rack=4, rack_ordered=True).node_rate(1.0) == 20e9


def test_a_machine_is_seen_by_its_collectives_as_it_is() -> None:
    machine = replace(
        _machine(20), nics=3, nic_bytes_per_s=10e9, nodes_per_rack=2, uplink_share=0.25, rack_ordered=True
    )
    assert machine.topology(0.5) == Topology(
        20, 8, V100.link, 15e9, link_kind=V100.link_kind, nodes_per_rack=2, uplink_share=0.25, rack_ordered=True
    )
    assert replace(machine, nics=0).topology(1.0).node_bytes_per_s == 10e9
    other = replace(V100, link_kind="pcie")
    assert replace(machine, accelerator=other).topology(1.0).link_kind == "pcie"


@pytest.mark.parametrize(
    ("ranks", "seeded", "overlapped", "total_s"),
    [
        (1, True, True, 8 + 4.35),
        (1, False, False, 8 + 4.35),
        (4, True, True, 11.2 + 4.5224),
        (4, True, False, 11.2 + 4.5224 + 4.35),
        (4, False, True, 11.2 + 4.5224 + 161 * 40e-6 + 0.204),
        (4, False, False, 11.2 + 4.5224 + 4.35 + 161 * 40e-6 + 0.204),
    ],
)
def test_a_start_up_is_its_phases(ranks: int, seeded: bool, overlapped: bool, total_s: float) -> None:
    assert predict_startup(ranks, seeded=seeded, overlapped=overlapped).total_s == pytest.approx(total_s)


@pytest.mark.parametrize(
    ("mlperf_round", "has_compiler", "warm_up_s"),
    [("0.5", False, 8), ("0.7", False, 8), ("1.0", False, 36), ("", False, 36), ("0.7", True, 100), ("2.0", True, 100)],
)
def test_the_logged_initialisation_has_no_launch_but_the_warm_up_of_its_round(
    mlperf_round: str, has_compiler: bool, warm_up_s: float
) -> None:
    assert predict_init(4, mlperf_round, has_compiler=has_compiler) == pytest.approx(4.5224 + warm_up_s)


def test_half_of_a_trees_edges_are_short_and_a_quarter_twice_as_long() -> None:
    topology = Topology(64, 8, 100e9, 20e9, nodes_per_rack=4, uplink_share=0.5, rack_ordered=True)
    assert _tree_crossing_share(topology) == pytest.approx(0.25 / 2 + 0.5 / 4 + 1 / 8)
