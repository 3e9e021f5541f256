"""CPUs from data sheets: the rates of a rank by hand, and what is known of the forecast."""

import pytest

from configs.errors import ConfigError
from configs.load import load_both, load_cluster
from train.sim.conditions import conditions
from train.sim.forecast import forecast
from train.sim.processors import find_processor, rates_of_processor


@pytest.mark.parametrize(
    ("cores", "ranks", "threads", "flops", "memory"),
    [
        (64, 2, 1, 2.45e9 * 32, 12e9),  # one core of its share of 32, which cannot use the socket's bandwidth
        (64, 2, 32, 32 * 2.45e9 * 32, 102.4e9),
        (128, 8, 64, 16 * 2.45e9 * 32, 51.2e9),  # two sockets; no rank has more than its share
        (None, 1, 512, 64 * 2.45e9 * 32, 204.8e9),
    ],
)
def test_a_rank_has_its_share_of_the_cores_and_of_the_bandwidth(
    cores: int | None, ranks: int, threads: int, flops: float, memory: float
) -> None:
    sets = [f"cluster.engine.threads={threads}", f"cluster.ranks_per_node={ranks}", "cluster.node.cpu=EPYC 7763"]
    rates = rates_of_processor(load_cluster("laptop", [*sets, f"cluster.node.cores={cores or 'null'}"]))
    assert (rates["flops"], rates["memory_bytes_per_s"]) == pytest.approx((flops, memory))
    assert rates["sum_bytes_per_s"] == pytest.approx(12e9), "one thread of a rank sums"


def test_many_ranks_share_a_sockets_bandwidth_also_for_their_sums() -> None:
    sets = ["cluster.ranks_per_node=64", "cluster.node.cpu=EPYC 7763", "cluster.node.cores=64"]
    assert rates_of_processor(load_cluster("laptop", sets))["sum_bytes_per_s"] == pytest.approx(204.8e9 / 64)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AMD EPYC 7763 64-Core Processor", "EPYC 7763"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Xeon Gold 6148"),
        ("Intel(R) Xeon(R) Platinum 8480+", "Xeon 8480+"),
    ],
)
def test_the_kernels_own_words_name_a_cpu(text: str, name: str) -> None:
    assert find_processor(text).name == name


def test_an_unknown_cpu_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"node.cpu: got 'EPYC 77630', allowed: .* did you mean 'EPYC 7763'"):
        find_processor("EPYC 77630")


def test_more_nodes_meet_over_their_cards_and_the_interval_is_that_of_an_unseen_machine() -> None:
    sets = ["cluster.node.cpu=Xeon 8480+", "cluster.node.cores=112", "cluster.engine.threads=28", "cluster.num_nodes=2"]
    sets += ["cluster.ranks_per_node=4", "cluster.launcher=mpirun", "cluster.communication.backend=mpi"]
    slow, fast = (
        forecast(*conditions(*load_both("imagenet-b256", "laptop", [*sets, f"cluster.node.nic_bytes_per_s={rate}"])))
        for rate in (1e8, 1.2e10)
    )
    assert fast.scenario.machine.ranks_per_node == 4
    assert fast.images_per_s > slow.images_per_s
    assert fast.interval.lacks == "another network"
    assert fast.interval.basis == "unseen"


def test_a_rank_has_a_core_even_where_ranks_outnumber_the_cores_and_a_second_socket_may_be_partly_there() -> None:
    crowded, odd = (
        rates_of_processor(load_cluster("laptop", [f"cluster.node.cores={cores}", *sets, "cluster.node.cpu=EPYC 7763"]))
        for cores, sets in (
            (4, ["cluster.ranks_per_node=8"]),
            (96, ["cluster.ranks_per_node=32", "cluster.engine.threads=3"]),
        )
    )
    assert crowded["flops"] == pytest.approx(2.45e9 * 32)
    assert crowded["cores"] == 4
    # Two sockets of 204.8 GB/s, of which each of 32 ranks has 12.8 GB/s, less than its three cores can use.
    assert odd["memory_bytes_per_s"] == pytest.approx(2 * 204.8e9 / 32)
    assert odd["cores"] == 96


@pytest.mark.parametrize(("link", "bytes_per_s"), [("null", 1.5e9), ("4e9", 4e9)])
def test_ranks_of_a_published_cpu_meet_over_the_loopback_or_the_link_of_the_file(link: str, bytes_per_s: float) -> None:
    sets = ["cluster.node.cpu=EPYC 7763", f"cluster.communication.link_bytes_per_s={link}"]
    rates = rates_of_processor(load_cluster("laptop", sets))
    assert (rates["link_bytes_per_s"], rates["sum_bucket_s"]) == (bytes_per_s, 2e-4)


@pytest.mark.parametrize(("cores", "takes_core_time"), [(3, True), (4, False)])
def test_threads_beside_compute_are_counted_by_the_ranks_of_a_node(cores: int, takes_core_time: bool) -> None:
    sets = ["cluster.node.cpu=EPYC 7763", f"cluster.node.cores={cores}", "cluster.num_nodes=3"]
    sets += ["cluster.launcher=mpirun", "cluster.communication.kind=horovod", "cluster.communication.backend=mpi"]
    constants = conditions(*load_both("digits", "laptop", ["batch.global_size=96", *sets]))[1].constants
    # Two ranks a node with two threads each: four cores hold them all. An image of digits has 8 x 8 px.
    assert constants.decode_s == pytest.approx(80e-6 + 31e-9 * 8**2 if takes_core_time else 0)
    assert (constants.cycle_cpu_s > 0) is takes_core_time
