"""Allreduces whose latency, uplinks or shape decide their time, worked out by hand."""

from dataclasses import replace

import pytest

from configs.errors import ConfigError
from train.sim.collectives import allreduce
from train.sim.topology import Topology

RACKS = Topology(64, 1, 1e15, 20e9, nodes_per_rack=4, ideal=True)
"""16 racks of four nodes, and one rank a node."""


@pytest.mark.parametrize(
    ("uplink_share", "ordered", "rate"),
    [
        (0.25, True, 20e9),  # the uplinks of four nodes carry what one of them sends
        (0.1, True, 8e9),  # 0.1 x 4 nodes x 20 GB/s
        (0.5, False, 0.5 * 20e9 / (15 / 16)),  # of 16 racks, 15 are another one
        (1.0, False, 20e9),
    ],
)
def test_a_ring_is_bound_by_the_uplinks_over_which_one_node_of_each_rack_or_nearly_every_node_sends(
    uplink_share: float, ordered: bool, rate: float
) -> None:
    topology = replace(RACKS, uplink_share=uplink_share, rack_ordered=ordered)
    assert allreduce("ring", topology, 1e8).time_s == pytest.approx(2 * 63 / 64 * 1e8 / rate)


def test_slow_links_in_the_nodes_bound_a_ring_that_is_spread_over_racks_too() -> None:
    topology = Topology(64, 8, 1e9, 20e9, nodes_per_rack=4, rack_ordered=False, ideal=True)
    assert allreduce("ring", topology, 1e8).time_s == pytest.approx(2 * 63 / 64 * 1e8 / 1e9)


def test_one_byte_of_a_tree_is_not_read_from_the_end_of_the_table() -> None:
    # NCCL's LL between two nodes: 6.8 us, and 5 us up and down; of 50 % of the rate, 0.92 and 0.9 are reached.
    found = allreduce("tree", Topology(2, 1, 100e9, 20e9), 1)
    assert found.latency_s == pytest.approx(6.8e-6 + 2 * 5e-6)
    assert found.time_s - found.latency_s == pytest.approx(2 / (20e9 * 0.5 * 0.92 * 0.9), rel=1e-3)


@pytest.mark.parametrize(("size_bytes", "fill"), [(127 << 10, 0.6), (128 << 10, 0.5), (1 << 20, 0.5), (1 << 40, 0.9)])
def test_a_tree_reaches_the_share_of_its_bandwidth_that_nccl_measured_for_the_size(
    size_bytes: int, fill: float
) -> None:
    found = allreduce("tree", Topology(2, 1, 1e15, 1e3), size_bytes)  # so slow that only the bandwidth counts
    assert found.time_s == pytest.approx(2 * size_bytes / (1e3 * 0.92 * fill), rel=1e-6)


@pytest.mark.parametrize(
    ("ranks", "exchanges"), [(2, 2), (4, 4), (5, 4 + 2), (8, 6)], ids=["two", "four", "five", "eight"]
)
def test_halving_and_doubling_waits_once_for_each_exchange(ranks: int, exchanges: int) -> None:
    # 8.4 us to begin, and 14 us a message between nodes; a rank above the power of two sends and receives once more.
    found = allreduce("halving-doubling", Topology(ranks, 1, 1e15, 1e30), 1e6)
    assert found.latency_s == found.time_s == pytest.approx(8.4e-6 + exchanges * 14e-6)


@pytest.mark.parametrize(("kind", "hop_s"), [("nvlink", 3.4e-6), ("pcie", 5.7e-6), ("ethernet", 17.1e-6)])
def test_exchanges_in_a_node_take_the_latency_of_the_nodes_links(kind: str, hop_s: float) -> None:
    found = allreduce("halving-doubling", Topology(16, 8, 1e30, 1e30, link_kind=kind), 1e6)
    # Distances 1, 2 and 4 stay in the node; 8 does not.
    assert found.latency_s == pytest.approx(8.4e-6 + 6 * hop_s + 2 * 14e-6)


def test_the_ranks_of_a_node_share_its_cards_where_they_exchange_with_another_node() -> None:
    found = allreduce("halving-doubling", Topology(16, 8, 100e9, 20e9, ideal=True), 16e6)
    inside, between = (8e6 + 4e6 + 2e6) / 100e9, 8 * 1e6 / 20e9
    assert found.time_s == pytest.approx(2 * (inside + between))


@pytest.mark.parametrize(
    ("topology", "hops", "hop_s"),
    [
        (Topology(12, 1, 1e30, 1e30), 2 * 2 + 2 * 3, 14e-6),  # three by four
        (Topology(12, 12, 1e30, 1e30), 2 * 2 + 2 * 3, 3.4e-6),
        (Topology(12, 12, 1e30, 1e30, link_kind="pcie"), 2 * 2 + 2 * 3, 5.7e-6),
    ],
)
def test_a_torus_has_the_hops_of_its_rows_and_of_its_columns(topology: Topology, hops: int, hop_s: float) -> None:
    assert allreduce("torus", topology, 1e6).latency_s == pytest.approx(8.4e-6 + hops * hop_s)


def test_a_torus_that_is_no_square_sends_a_rows_share_along_its_columns() -> None:
    topology = Topology(12, 1, 1e15, 20e9, ideal=True)
    expected = (2 * 2 / 3 + 2 * 3 / 4 / 3) * 1e8 / 20e9
    assert allreduce("torus", topology, 1e8).time_s == pytest.approx(expected)


@pytest.mark.parametrize("ranks", [7, 13])
def test_a_prime_number_of_ranks_has_a_ring_for_a_torus(ranks: int) -> None:
    topology = Topology(ranks, 1, 100e9, 20e9)
    assert allreduce("torus", topology, 1e6) == allreduce("ring", topology, 1e6)


def test_a_torus_of_nodes_of_which_the_last_is_partly_filled_takes_no_node_for_a_row() -> None:
    topology = Topology(15, 8, 100e9, 20e9, ideal=True)
    share = 2 * 2 / 3 + 2 * 4 / 5 / 3
    assert allreduce("torus", topology, 1e8).time_s == pytest.approx(share * 1e8 / 20e9)


@pytest.mark.parametrize("name", ["ps:0", "ps:x", "ps:", "as:4", "rings"])
def test_what_is_no_algorithm_is_refused_with_all_that_are(name: str) -> None:
    known = "auto, ps:8, ring, torus, halving-doubling, tree, hierarchical, hierarchical-tree, switch"
    with pytest.raises(ConfigError) as refused:
        allreduce(name, Topology(4, 1, 100e9, 20e9), 1e6)
    assert (refused.value.key, refused.value.got, refused.value.allowed) == ("algorithm", name, known)


def test_a_buffer_of_one_byte_has_to_be_sent() -> None:
    assert allreduce("ring", Topology(2, 1, 100e9, 20e9), 1).time_s > 0


@pytest.mark.parametrize(("name", "passes"), [("torus", 1), ("hierarchical-tree", 2)])
def test_links_that_are_slower_than_a_ranks_share_of_the_cards_do_not_bound_what_goes_between_nodes(
    name: str, passes: float
) -> None:
    topology = Topology(16, 8, 1e9, 40e9, ideal=True)
    inside, between = 2 * 7 / 8 * 8e6 / 1e9, passes * 1e6 / (40e9 / 8)
    assert allreduce(name, topology, 8e6).time_s == pytest.approx(inside + between)
