"""Predicted collectives against closed forms, against messages that are sent one by one, and at their limits."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from train.sim.collectives import ALGORITHMS, SHARED_MEMORY, allreduce, best_algorithm
from train.sim.output.forecast_text import collective_rows
from train.sim.protocols import PROTOCOLS
from train.sim.topology import SharedSums, Topology

LINK, CARDS = 100e9, 20e9


def flat(ranks: int) -> Topology:
    """Return a machine with one rank a node and without latency, as textbooks assume it."""
    return Topology(ranks, 1, 1e15, CARDS, ideal=True)


def nodes(count: int, local: int = 8) -> Topology:
    return Topology(count * local, local, LINK, CARDS, ideal=True)


@pytest.mark.parametrize("ranks", [2, 3, 8, 1040])
def test_a_ring_moves_twice_the_buffer_less_one_part(ranks: int) -> None:
    assert allreduce("ring", flat(ranks), 1e8).time_s == pytest.approx(2 * (ranks - 1) / ranks * 1e8 / CARDS)


@pytest.mark.parametrize("ranks", [2, 8, 1024])
def test_halving_and_doubling_moves_as_much_as_a_ring(ranks: int) -> None:
    moved = 2 * sum(1e8 / 2**step for step in range(1, ranks.bit_length()))
    assert allreduce("halving-doubling", flat(ranks), 1e8).time_s == pytest.approx(moved / CARDS)
    assert moved == pytest.approx(2 * (ranks - 1) / ranks * 1e8)


@pytest.mark.parametrize("ranks", [3, 1040, 1536])
def test_ranks_above_a_power_of_two_fold_with_two_whole_buffers(ranks: int) -> None:
    power = 2 ** int(math.log2(ranks))
    expected = (2 * (power - 1) / power + 2) * 1e8 / CARDS
    assert allreduce("halving-doubling", flat(ranks), 1e8).time_s == pytest.approx(expected)


def played_ring(parts: list[Any]) -> float:
    """Send every message of a ring allreduce, leave the sums in ``parts``, and return the seconds of all steps."""
    ranks, spent_s = len(parts), 0.0
    for step in range(2 * (ranks - 1)):
        sent = [((rank - step) % ranks, parts[rank][(rank - step) % ranks].copy()) for rank in range(ranks)]
        for rank, (piece, values) in enumerate(sent):
            there = parts[(rank + 1) % ranks]
            # The first half of the steps reduces; in the second half, finished sums replace the parts.
            there[piece] = there[piece] + values if step < ranks - 1 else values
        spent_s += max(values.nbytes for _, values in sent) / CARDS
    return spent_s


def played_halving_and_doubling(parts: list[Any]) -> float:
    """Do the same for recursive halving and doubling over a number of ranks that is a power of two."""
    ranks, spent_s = len(parts), 0.0
    distances = [1 << power for power in range(ranks.bit_length() - 1)]
    for is_reducing, distance in [(True, each) for each in distances] + [(False, each) for each in reversed(distances)]:
        # A rank keeps the pieces of which the number agrees with the rank in every bit exchanged so far.
        done = distance - 1 if is_reducing else 2 * distance - 1
        sent = []
        for rank in range(ranks):
            mine = [piece for piece in range(ranks) if (piece ^ rank) & done == 0]
            going = [piece for piece in mine if not is_reducing or (piece ^ rank) & distance]
            sent.append({piece: parts[rank][piece].copy() for piece in going})
        for rank, message in enumerate(sent):
            for piece, values in message.items():
                there = parts[rank ^ distance]
                there[piece] = there[piece] + values if is_reducing else values
        spent_s += max(sum(values.nbytes for values in message.values()) for message in sent) / CARDS
    return spent_s


@pytest.mark.parametrize(("name", "play"), [("ring", played_ring), ("halving-doubling", played_halving_and_doubling)])
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_messages_sent_one_by_one_sum_up_and_take_the_predicted_time(
    name: str, play: Callable[[list[Any]], float], ranks: int
) -> None:
    values = np.random.default_rng(0).integers(0, 99, (ranks, ranks, 256)).astype(np.float64)
    parts: list[Any] = [list(each) for each in values]
    spent_s = play(parts)
    for each in parts:
        np.testing.assert_array_equal(np.array(each), values.sum(axis=0))
    assert allreduce(name, flat(ranks), values[0].nbytes).time_s == pytest.approx(spent_s)


def test_a_double_binary_tree_moves_the_buffer_twice_at_any_size() -> None:
    for ranks in (2, 64, 2048):
        assert allreduce("tree", flat(ranks), 1e8).time_s == pytest.approx(2 * 1e8 / CARDS)


def test_a_square_of_single_ranks_is_a_torus_of_its_root() -> None:
    expected = (2 * 7 / 8 + 2 * 7 / 8 / 8) * 1e8 / CARDS
    assert allreduce("torus", flat(64), 1e8).time_s == pytest.approx(expected)


def test_two_levels_add_the_node_and_the_share_between_nodes() -> None:
    size, count, local = 1e8, 64, 8
    inside = 2 * (local - 1) / local * size / LINK
    between = 2 * (count - 1) / count * size / CARDS  # `local` rings of size/local share the node's cards
    assert allreduce("torus", nodes(count), size).time_s == pytest.approx(inside + between)


def test_switches_that_reduce_halve_the_traffic() -> None:
    assert allreduce("switch", nodes(64), 1e8).time_s == pytest.approx(1e8 / CARDS)
    slow_links = replace(nodes(64), link_bytes_per_s=CARDS / 4)
    assert allreduce("switch", slow_links, 1e8).time_s == pytest.approx(4e8 / CARDS)


@pytest.mark.parametrize(("servers", "expected"), [(1, 2 * 16), (4, 2 * 4), (64, 2)])
def test_parameter_servers_are_bound_by_their_own_cards_until_there_are_as_many(servers: int, expected: float) -> None:
    assert allreduce(f"ps:{servers}", flat(16), 1e8).time_s == pytest.approx(expected * 1e8 / CARDS)


def test_the_record_needed_hierarchy_because_a_flat_ring_outlasts_its_step() -> None:
    record = Topology(2048, 4, 120e9, 24e9)
    ring, tree = (allreduce(name, record, 51.1e6).time_s for name in ("ring", "tree"))
    assert 0.012 <= ring <= 0.051
    assert 0.004 <= tree <= 0.008


@pytest.mark.parametrize("name", [*ALGORITHMS, "auto", "ps:4"])
def test_one_rank_or_nothing_to_send_costs_nothing(name: str) -> None:
    assert allreduce(name, Topology(1, 8, LINK, CARDS), 1e8).time_s == 0
    assert allreduce(name, Topology(64, 8, LINK, CARDS), 0).time_s == 0


@pytest.mark.parametrize("name", [*ALGORITHMS, "auto", "ps:4"])
def test_infinite_bandwidth_leaves_latency_and_no_latency_with_it_nothing(name: str) -> None:
    fast = Topology(256, 8, 1e30, 1e30)
    cost = allreduce(name, fast, 1e8)
    assert cost.time_s == pytest.approx(cost.latency_s)
    assert cost.latency_s > 0
    assert allreduce(name, replace(fast, ideal=True), 1e8).time_s == pytest.approx(0, abs=1e-12)


@given(
    name=st.sampled_from([*ALGORITHMS, "auto", "ps:4"]),
    count=st.integers(1, 600),
    local=st.sampled_from([1, 4, 8]),
    size=st.floats(1e3, 1e9),
    ordered=st.booleans(),
)
def test_faster_links_never_cost_time(name: str, count: int, local: int, size: float, ordered: bool) -> None:
    slow = Topology(count * local, local, LINK, CARDS, nodes_per_rack=34, uplink_share=0.35, rack_ordered=ordered)
    before = allreduce(name, slow, size).time_s
    for better in (
        replace(slow, link_bytes_per_s=2 * LINK),
        replace(slow, node_bytes_per_s=2 * CARDS),
        replace(slow, uplink_share=1.0),
        replace(slow, nodes_per_rack=None),
        replace(slow, ideal=True),
    ):
        assert allreduce(name, better, size).time_s <= before * (1 + 1e-9)


@given(name=st.sampled_from([*ALGORITHMS, "auto", "ps:4"]), size=st.floats(64, 5e8), count=st.integers(1, 300))
def test_more_bytes_never_take_less_time(name: str, size: float, count: int) -> None:
    machine = Topology(8 * count, 8, LINK, CARDS)
    assert allreduce(name, machine, 2 * size).time_s >= allreduce(name, machine, size).time_s * (1 - 1e-9)


@given(name=st.sampled_from(["ring", "tree", "torus", "hierarchical", "switch", "ps:4"]), count=st.integers(2, 300))
def test_more_nodes_never_take_less_time(name: str, count: int) -> None:
    some, more = (Topology(8 * each, 8, LINK, CARDS) for each in (count, 2 * count))
    assert allreduce(name, more, 5e7).time_s >= allreduce(name, some, 5e7).time_s * (1 - 1e-9)


def test_shared_uplinks_slow_what_crosses_racks_and_spare_a_ring_in_rack_order() -> None:
    open_fabric = Topology(2048, 4, LINK, 24e9)
    shared = replace(open_fabric, nodes_per_rack=34, uplink_share=1 / 3)
    scattered = replace(shared, rack_ordered=False)
    for name, slower in (("ring", shared), ("ring", scattered), ("halving-doubling", shared), ("tree", scattered)):
        before, after = (allreduce(name, each, 5e7).time_s for each in (open_fabric, slower))
        assert after > 1.05 * before if (name, slower) != ("ring", shared) else after == before


def test_trees_win_for_small_buffers_at_scale_and_rings_for_large_ones_on_few_nodes() -> None:
    assert best_algorithm(Topology(2048, 8, 240e9, 96e9), 1e4)[0] == "tree"
    assert best_algorithm(Topology(32, 8, 240e9, 96e9), 1e9)[0] in ("ring", "torus")


def test_an_unknown_algorithm_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean 'ring'"):
        allreduce("rings", flat(4), 1e6)


def test_a_sum_in_shared_memory_is_its_passes_over_the_memory_and_ranks_above_the_cores_take_turns() -> None:
    sums = SharedSums(bytes_per_s=8e9, bucket_s=1e-4, cores=2)
    two, four = (Topology(ranks, ranks, 1e9, 1e9, link_kind="memory", sums=sums) for ranks in (2, 4))
    assert allreduce(SHARED_MEMORY, two, 8e6).time_s == pytest.approx(1e-4 + 4 * 8e6 / 8e9)
    assert allreduce(SHARED_MEMORY, four, 8e6).time_s == pytest.approx(2 * (1e-4 + 4.5 * 8e6 / 8e9))
    assert best_algorithm(two, 8e6)[0] == SHARED_MEMORY


@pytest.mark.parametrize("topology", [Topology(2, 2, LINK, CARDS), replace(nodes(2), sums=SharedSums(8e9, 1e-4, 2))])
def test_ranks_without_a_memory_of_all_of_them_have_no_sum_in_it(topology: Topology) -> None:
    with pytest.raises(ConfigError, match="shared-memory"):
        allreduce(SHARED_MEMORY, topology, 8e6)
    assert best_algorithm(topology, 8e6)[0] != SHARED_MEMORY


def test_the_protocols_have_the_latencies_of_nccls_own_table() -> None:
    """Microseconds and share of the bandwidth, from ``baseLat`` and ``hwLat`` of NCCL's ``src/graph/tuning.cc``."""
    table = [
        (
            *(round(1e6 * time_s, 3) for time_s in (each.base_tree_s, each.base_ring_s)),
            *(round(1e6 * hops[kind], 3) for kind in ("nvlink", "pcie") for hops in (each.tree_hop_s, each.hop_s)),
            *(round(1e6 * time_s, 3) for time_s in (each.net_tree_s, each.net_ring_s)), each.bandwidth_share,
        )
        for each in PROTOCOLS
    ]  # fmt: skip
    assert table == [
        (6.8, 6.6, 0.6, 0.6, 1.0, 1.0, 5.0, 2.7, 0.5),
        (14, 14, 1.25, 1.9, 1.9, 2.5, 8.5, 4.0, 0.92),
        (8.4, 8.4, 4.0, 3.4, 4.0, 5.7, 14, 14, 1.0),
    ]


@pytest.mark.parametrize(
    ("sums", "nodes", "is_listed"),
    [(None, 1, False), (SharedSums(6e9, 2e-4, 2), 1, True), (SharedSums(6e9, 2e-4, 2), 2, False)],
)
def test_sums_in_shared_memory_are_compared_where_a_machine_has_them(
    sums: SharedSums | None, nodes: int, is_listed: bool
) -> None:
    topology = Topology(4 * nodes, 4, 100e9, 20e9, sums=sums)
    (row,) = collective_rows([topology], [1e6])
    assert (SHARED_MEMORY in row) is is_listed
    assert (row["ranks"], row["bytes"]) == (4 * nodes, 1e6)
