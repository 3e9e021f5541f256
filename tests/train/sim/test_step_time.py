"""One simulated step: limits, parts, and agreement with the recurrence of buckets on a single stream."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train.networks.arch import build_network, gradient_bytes
from train.sim.collectives import SHARED_MEMORY, SharedSums, allreduce
from train.sim.constants import Constants
from train.sim.hardware import Machine, find_accelerator
from train.sim.step_time import Software, StepModel, StepTime, kernel_times, tabulate

MODEL = StepModel(build_network("resnet50", num_classes=1000, image_size=224))
V100 = find_accelerator("V100-SXM2-16GB")
CONSTANTS = Constants()
SMOOTH = replace(CONSTANTS, straggler=0.0, multinode_s=0.0)


def machine(ranks: int, node: int = 8) -> Machine:
    return Machine(replace(V100, node=node), ranks)


def test_forward_and_backward_hold_the_networks_arithmetic() -> None:
    forward, backward = tabulate(MODEL.network)
    assert forward["flops"].sum() == pytest.approx(2 * MODEL.network.macs)
    first = MODEL.network.layers[0]
    assert backward["flops"].sum() == pytest.approx(4 * MODEL.network.macs - 2 * first.macs), "no gradient for images"


def test_a_convolution_takes_the_slower_of_arithmetic_and_traffic() -> None:
    forward, _ = tabulate(MODEL.network)
    number = [each.name for each in MODEL.network.layers].index("stage4_block2_conv2")
    at, layer = list(forward["layer"]).index(number), MODEL.network.layers[number]
    plain = Constants(compute_efficiency=0.5, memory_efficiency=0.5, kernel_s=0.0, tail=0.0)
    arithmetic = 64 * 2 * layer.macs / (0.5 * 125e12)
    traffic = 2 * (64 * 2 * 512 * 49 + 512 * 512 * 9) / (0.5 * 900e9)
    assert kernel_times(forward, machine(1), 64, plain, Software())[at] == pytest.approx(max(arithmetic, traffic))


def test_the_records_buckets_have_the_published_sizes() -> None:
    buckets = MODEL.buckets(Software(boundaries=(3, 21, 57, 80)), 2)
    assert [round(size / 1e6) for size, _ in buckets] == [4, 22, 20, 5]


@pytest.mark.medium
@settings(max_examples=40)
@given(st.integers(1, 250), st.integers(2, 400))
def test_larger_batches_take_longer_but_less_an_image_and_more_ranks_never_speed_a_step(batch: int, nodes: int) -> None:
    one, two = (MODEL.time_step(machine(8), size, CONSTANTS, Software()).total_s for size in (batch, 2 * batch))
    assert one < two < 2 * one
    few, many = (MODEL.time_step(machine(8 * n), batch, CONSTANTS, Software()).total_s for n in (nodes, nodes + 1))
    assert few <= many * (1 + 1e-9)


def test_a_step_lasts_until_the_last_reduction_of_late_ranks_and_counts_no_time_twice() -> None:
    constants = replace(SMOOTH, straggler=0.02)
    for size in (64 << 20, 4 << 20):
        step = MODEL.time_step(machine(512), 64, constants, Software(bucket_bytes=size))
        assert min(step.straggler_s, step.exposed_communication_s) > 0
        assert step.total_s == pytest.approx(step.reductions[-1].end_s + step.update_s + step.overhead_s + step.input_s)


def test_what_is_read_behind_compute_counts_only_beyond_the_time_that_decoding_takes_from_it() -> None:
    decoding = replace(SMOOTH, decode_s=1e-3, multinode_s=0.25)
    busy_s = MODEL.time_step(machine(16), 64, replace(SMOOTH, multinode_s=0.25), Software()).total_s
    for rate, input_s in ((1e6, 0.064), (64 / (busy_s + 0.05), 0.064), (64 / (busy_s + 0.1), 0.1)):
        step = MODEL.time_step(machine(16), 64, decoding, Software(images_per_s=rate))
        assert step.input_s == pytest.approx(input_s), rate
        assert step.overhead_s == 0.25


def test_the_host_launches_every_kernel_on_its_own_unless_all_are_one_graph() -> None:
    constants = replace(SMOOTH, launch_s=1e-5)
    graph, single = (MODEL.time_step(machine(1), 64, constants, Software(graphs=graphs)) for graphs in (True, False))
    kernels = len(MODEL.forward), len(MODEL.backward)
    assert single.forward_s == pytest.approx(graph.forward_s + kernels[0] * 1e-5)
    assert single.backward_s == pytest.approx(graph.backward_s + kernels[1] * 1e-5)
    assert single.update_s == graph.update_s


def _hidden_s(step: StepTime, alone_s: float) -> float:
    """Return how long the reductions of a step would run during a backward that ends at ``alone_s``."""
    return sum(max(0.0, min(one.end_s, alone_s) - one.start_s) for one in step.reductions)


@pytest.mark.parametrize(
    ("sums", "channels", "algorithm", "share"),
    [
        (None, 12, "tree", 12 / 80),  # of a V100's multiprocessors
        (None, 60, "tree", 0.5),  # at most
        (SharedSums(8e9, cores=63), 12, SHARED_MEMORY, 1.0),  # a thread that sums has no core of its own
        (SharedSums(8e9, cores=64), 12, SHARED_MEMORY, 0.0),
        (SharedSums(8e9, cores=63), 12, "ring", 0.15),
    ],
)
def test_reductions_follow_each_other_on_one_stream_and_slow_the_backward_that_hides_them(
    sums: SharedSums | None, channels: int, algorithm: str, share: float
) -> None:
    ranks, node = (512, 8) if sums is None else (32, 32)
    where = replace(machine(ranks, node), sums=sums)
    software = Software(bucket_bytes=4 << 20, cycle_s=2e-3, channels=channels, algorithm=algorithm)
    step = MODEL.time_step(where, 64, SMOOTH, software)
    # As if alone: the same buckets, whose gradients backward has ready without contention.
    alone = MODEL.time_step(where, 64, SMOOTH, replace(software, channels=0)) if sums is None else step
    topology = where.topology(SMOOTH.network_efficiency)
    for found in (alone, step):
        end_s = 0.0
        for one in found.reductions:
            start_s = max(one.ready_s, end_s)
            end_s = start_s + allreduce(algorithm, topology, one.size_bytes)
            assert (one.start_s, one.end_s) == pytest.approx((start_s, end_s))
        assert found.exposed_communication_s == pytest.approx(max(0.0, end_s - found.compute_s - found.contention_s))
    assert sum(one.size_bytes for one in step.reductions) == sum(gradient_bytes(MODEL.network.parameters, 2))
    if sums is None:
        assert alone.contention_s == 0
        assert step.contention_s == pytest.approx(share * _hidden_s(alone, alone.compute_s))
        # A gradient waits half a cycle, and the last one is ready when the stretched backward ends.
        assert step.reductions[-1].ready_s == pytest.approx(step.compute_s + step.contention_s + 1e-3)
    else:
        assert (step.contention_s > 0) is (share > 0)


def test_a_thread_that_looks_for_gradients_takes_its_share_of_a_core() -> None:
    on_cpu = replace(SMOOTH, cycle_cpu_s=1e-4, decode_s=1e-4)
    alone, looking = (MODEL.time_step(machine(2), 64, each, Software(cycle_s=1e-3)) for each in (SMOOTH, on_cpu))
    assert looking.overhead_s == pytest.approx(0.1 * alone.total_s)
    assert looking.input_s == pytest.approx(64e-4)
    assert MODEL.time_step(machine(1), 64, on_cpu, Software(cycle_s=1e-3)).overhead_s == 0


@pytest.mark.parametrize(("ranks", "cores", "factor"), [(16, 8, 1.0), (16, 4, 2.0), (4, 8, 1.0), (4, 2, 2.0)])
def test_the_ranks_of_a_node_and_not_those_of_all_nodes_share_its_cores(
    ranks: int, cores: float, factor: float
) -> None:
    free, shared = (
        MODEL.time_step(machine(ranks), 64, each, Software()) for each in (SMOOTH, replace(SMOOTH, cores=cores))
    )
    for part in ("forward_s", "backward_s", "update_s"):
        assert getattr(shared, part) == pytest.approx(factor * getattr(free, part)), part
