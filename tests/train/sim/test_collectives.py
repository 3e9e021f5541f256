"""Predicted allreduces against closed forms, against messages that are sent one by one, and at their limits."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from train.sim.collectives import ALGORITHMS, SHARED_MEMORY, allreduce
from train.sim.forecast_text import collective_rows
from train.sim.topology import SharedSums, Topology

LINK, CARDS = 5e3, 1e3
"""Bytes/s of machines so slow that latencies, at most 0.1 s, do not count: closed forms have the bandwidth only."""
RACKS = Topology(64, 1, 1e15, CARDS, nodes_per_rack=4)
"""16 racks of four nodes, and one rank a node."""
NAMES = [*ALGORITHMS, "auto", "ps:4"]


def flat(ranks: int) -> Topology:
    return Topology(ranks, 1, 1e15, CARDS)


def nodes(count: int, local: int = 8) -> Topology:
    return Topology(count * local, local, LINK, CARDS)


def fast(ranks: int, node: int = 8, kind: str = "nvlink") -> Topology:
    """Return a machine on which only latencies count."""
    return Topology(ranks, node, 1e30, 1e30, link_kind=kind)


def _close(seconds: float) -> Any:
    return pytest.approx(seconds, rel=2e-3)


@pytest.mark.parametrize("ranks", [2, 3, 8, 1040])
def test_a_ring_moves_twice_the_buffer_less_one_part(ranks: int) -> None:
    assert allreduce("ring", flat(ranks), 1e8) == _close(2 * (ranks - 1) / ranks * 1e8 / CARDS)


@pytest.mark.parametrize("ranks", [2, 3, 8, 1024, 1040])
def test_halving_and_doubling_moves_as_much_as_a_ring_and_folds_ranks_above_a_power_of_two(ranks: int) -> None:
    power = 2 ** int(math.log2(ranks))
    folded = 2 if ranks > power else 0
    assert allreduce("halving-doubling", flat(ranks), 1e8) == _close((2 * (power - 1) / power + folded) * 1e8 / CARDS)


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
    assert allreduce(name, flat(ranks), values[0].nbytes) == _close(spent_s)


@pytest.mark.parametrize(("size_bytes", "fill"), [(127 << 10, 0.6), (128 << 10, 0.5), (1 << 20, 0.5), (1 << 40, 0.9)])
def test_a_tree_moves_the_buffer_twice_at_the_share_of_the_bandwidth_that_nccl_measured(
    size_bytes: int, fill: float
) -> None:
    for ranks in (2, 64, 2048):
        assert allreduce("tree", flat(ranks), size_bytes) == _close(2 * size_bytes / (CARDS * 0.92 * fill))


@pytest.mark.parametrize(
    ("topology", "share"),
    [
        (flat(64), 2 * 7 / 8 + 2 * 7 / 8 / 8),
        (flat(12), 2 * 2 / 3 + 2 * 3 / 4 / 3),  # three by four
        (Topology(15, 8, 1e15, CARDS), 2 * 2 / 3 + 2 * 4 / 5 / 3),  # a node that is partly filled is no row
        (flat(7), 2 * 6 / 7),  # a prime number of ranks is a ring
    ],
)
def test_a_torus_sends_a_rows_share_along_its_columns(topology: Topology, share: float) -> None:
    assert allreduce("torus", topology, 1e8) == _close(share * 1e8 / CARDS)


def test_two_levels_add_the_node_and_the_share_between_nodes() -> None:
    size, count, local = 1e8, 64, 8
    inside = 2 * (local - 1) / local * size / LINK
    between = 2 * (count - 1) / count * size / CARDS  # `local` rings of size/local share the node's cards
    assert allreduce("torus", nodes(count), size) == _close(inside + between)


def test_links_slower_than_a_ranks_share_of_the_cards_do_not_bound_what_goes_between_nodes() -> None:
    topology = Topology(16, 8, 1e2, 40e2)
    inside = 2 * 7 / 8 * 8e6 / 1e2
    assert allreduce("torus", topology, 8e6) == _close(inside + 1e6 / (40e2 / 8))
    assert allreduce("hierarchical-tree", topology, 8e6) == _close(inside + 2e6 / (40e2 / 8 * 0.92 * 0.5))


def test_the_ranks_of_a_node_share_its_cards_where_they_exchange_with_another_node() -> None:
    inside, between = (8e6 + 4e6 + 2e6) / LINK, 8 * 1e6 / CARDS
    assert allreduce("halving-doubling", nodes(2), 16e6) == _close(2 * (inside + between))


def test_switches_that_reduce_halve_the_traffic() -> None:
    assert allreduce("switch", nodes(64), 1e8) == _close(1e8 / CARDS)
    slow_links = replace(nodes(64), link_bytes_per_s=CARDS / 4)
    assert allreduce("switch", slow_links, 1e8) == _close(4e8 / CARDS)
    assert allreduce("switch", nodes(1), 1e8) == allreduce("ring", nodes(1), 1e8)


@pytest.mark.parametrize(("ranks", "local", "servers"), [(16, 1, 1), (16, 1, 4), (16, 1, 64), (16, 8, 2), (64, 8, 64)])
def test_a_parameter_server_is_bound_by_the_busier_side(ranks: int, local: int, servers: int) -> None:
    # A node sends for its ranks; a server receives from all ranks that share it.
    expected = 2 * 1e8 * max(local, ranks / servers) / CARDS
    assert allreduce(f"ps:{servers}", Topology(ranks, local, LINK, CARDS), 1e8) == _close(expected)


@pytest.mark.parametrize(
    ("name", "topology", "seconds"),
    [
        # NCCL's LL: 6.6 us, then 2 (n - 1) steps of 0.6 us over NVLink, or 2.7 us between nodes.
        ("ring", fast(8), 6.6e-6 + 14 * 0.6e-6),
        ("ring", fast(16), 6.6e-6 + 28 * 0.6e-6 + 2 * 2.7e-6),
        ("ring", fast(8, kind="pcie"), 6.6e-6 + 14 * 1e-6),
        # 6.8 us, and up and down: seven links in the node, and a level of the tree for each doubling of the nodes.
        ("tree", fast(64), 6.8e-6 + 2 * (7 * 0.6e-6 + 3 * 5e-6)),
        # NCCL's Simple: 8.4 us, and 14 us a message between nodes; a fifth rank sends and receives once more.
        ("halving-doubling", fast(4, 1), 8.4e-6 + 4 * 14e-6),
        ("halving-doubling", fast(5, 1), 8.4e-6 + 6 * 14e-6),
        # Distances 1, 2 and 4 stay in the node; 8 does not.
        ("halving-doubling", fast(16), 8.4e-6 + 6 * 3.4e-6 + 2 * 14e-6),
        ("halving-doubling", fast(16, kind="ethernet"), 8.4e-6 + 6 * 17.1e-6 + 2 * 14e-6),
        ("torus", fast(12, 1), 8.4e-6 + (2 * 2 + 2 * 3) * 14e-6),
        ("torus", fast(12, 12, "pcie"), 8.4e-6 + (2 * 2 + 2 * 3) * 5.7e-6),
        # A ring in the node, and a ring of the nodes.
        ("torus", fast(16), 6.6e-6 + 14 * 0.6e-6 + 6.6e-6 + 2 * 2.7e-6),
        # 30 us to begin, 7 hops up and 7 down in the node, and 14 us each way between the nodes.
        ("switch", fast(16), 30e-6 + 14 * 4e-6 + 28e-6),
        ("switch", fast(16, kind="memory"), 30e-6 + 14 * 40e-6 + 28e-6),
        ("ps:2", fast(16), 2 * (8.4e-6 + 14e-6 + 8 * 1e-6)),  # a message of each of its eight ranks
    ],
)
def test_infinite_bandwidth_leaves_the_latency_of_every_step(name: str, topology: Topology, seconds: float) -> None:
    assert allreduce(name, topology, 1e6) == pytest.approx(seconds)


def test_protocols_trade_latency_for_bandwidth_as_nccls_table_does() -> None:
    """A ring of two nodes: 6.6, 14 or 8.4 us and two steps of 2.7, 4 or 14 us, at 50, 92 or 100 % of the bandwidth."""
    for size in (1e3, 3e5, 5e5, 1e9):
        ways = ((6.6e-6, 2.7e-6, 0.5), (14e-6, 4e-6, 0.92), (8.4e-6, 14e-6, 1.0))
        expected = min(base_s + 2 * step_s + size / (20e9 * share) for base_s, step_s, share in ways)
        assert allreduce("ring", Topology(2, 1, 1e15, 20e9), size) == pytest.approx(expected)
        ways = ((6.8e-6, 5e-6, 0.5), (14e-6, 8.5e-6, 0.92), (8.4e-6, 14e-6, 1.0))
        fill = {1e3: 0.9, 3e5: 0.5, 5e5: 0.5, 1e9: 0.9}[size]
        trees = [base_s + 2 * step_s + 2 * size / (20e9 * 0.92 * fill * share) for base_s, step_s, share in ways]
        assert allreduce("tree", Topology(2, 1, 1e15, 20e9), size) == pytest.approx(min(trees))


@pytest.mark.parametrize("count", [2, 64, 512])
@pytest.mark.parametrize("size_bytes", [1e4, 1e6, 1e8, 1e9])
def test_a_hierarchy_takes_the_faster_way_between_its_nodes_and_nccl_the_faster_of_ring_and_tree(
    count: int, size_bytes: float
) -> None:
    topology = Topology(8 * count, 8, 100e9, 20e9)
    for name, ways in (("hierarchical", ("torus", "hierarchical-tree")), ("auto", ("ring", "tree"))):
        assert allreduce(name, topology, size_bytes) == min(allreduce(each, topology, size_bytes) for each in ways)


def test_the_record_needed_hierarchy_because_a_flat_ring_outlasts_its_step() -> None:
    ring, tree = (allreduce(name, Topology(2048, 4, 120e9, 24e9), 51.1e6) for name in ("ring", "tree"))
    assert 0.012 <= ring <= 0.051
    assert 0.004 <= tree <= 0.008


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_or_nothing_to_send_costs_nothing_and_a_byte_something(name: str) -> None:
    assert allreduce(name, Topology(1, 8, LINK, CARDS), 1e8) == 0
    assert allreduce(name, Topology(64, 8, LINK, CARDS), 0) == 0
    assert allreduce(name, Topology(64, 8, LINK, CARDS), 1) > 0


@given(
    name=st.sampled_from(NAMES),
    count=st.integers(1, 600),
    local=st.sampled_from([1, 4, 8]),
    size=st.floats(64, 1e9),
    ordered=st.booleans(),
)
def test_faster_links_never_cost_time_and_more_bytes_never_save_any(
    name: str, count: int, local: int, size: float, ordered: bool
) -> None:
    slow = Topology(count * local, local, 100e9, 20e9, nodes_per_rack=34, uplink_share=0.35, rack_ordered=ordered)
    before = allreduce(name, slow, size)
    for better in (
        replace(slow, link_bytes_per_s=200e9),
        replace(slow, node_bytes_per_s=40e9),
        replace(slow, uplink_share=1.0),
        replace(slow, nodes_per_rack=None),
    ):
        assert allreduce(name, better, size) <= before * (1 + 1e-9)
    assert allreduce(name, slow, 2 * size) >= before * (1 - 1e-9)


@given(name=st.sampled_from(["ring", "tree", "torus", "hierarchical", "switch", "ps:4"]), count=st.integers(2, 300))
def test_more_nodes_never_take_less_time(name: str, count: int) -> None:
    some, more = (Topology(8 * each, 8, 100e9, 20e9) for each in (count, 2 * count))
    assert allreduce(name, more, 5e7) >= allreduce(name, some, 5e7) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("uplink_share", "ordered", "rate"),
    [
        (0.25, True, CARDS),  # the uplinks of four nodes carry what one of them sends
        (0.1, True, 0.4 * CARDS),  # 0.1 x 4 nodes
        (0.5, False, 0.5 * CARDS * 0.69 / (15 / 16)),  # of 16 racks, 15 are another one; routes reach 0.69
        (1.0, False, 0.69 * CARDS / (15 / 16)),
    ],
)
def test_a_ring_is_bound_by_the_uplinks_over_which_one_node_of_each_rack_or_nearly_every_node_sends(
    uplink_share: float, ordered: bool, rate: float
) -> None:
    topology = replace(RACKS, uplink_share=uplink_share, rack_ordered=ordered)
    assert allreduce("ring", topology, 1e8) == _close(2 * 63 / 64 * 1e8 / rate)
    slow_links = replace(topology, ranks_per_node=8, ranks=512, link_bytes_per_s=CARDS / 20)
    assert allreduce("ring", slow_links, 1e8) == _close(2 * 511 / 512 * 1e8 / (CARDS / 20)), "the links in the nodes"


def test_half_of_a_trees_edges_are_short_and_a_quarter_twice_as_long() -> None:
    # Of eight nodes in racks of four: 1/2 of the edges leave the rack with 1/4, 1/4 with 2/4, and 1/8 all of them.
    topology = Topology(8, 1, 1e15, CARDS, nodes_per_rack=4, uplink_share=0.1)
    crossing = 0.25 / 2 + 0.5 / 4 + 1 / 8
    assert allreduce("tree", topology, 1 << 40) == _close(2 * (1 << 40) / (CARDS * 0.1 / crossing * 0.92 * 0.9))


def test_an_exchange_leaves_its_rack_by_its_distance() -> None:
    # Distances 1, 2 and 4 send halves, quarters and eighths; of four nodes a rack, 1/4, 1/2 and all of it crosses.
    topology = Topology(8, 1, 1e15, CARDS, nodes_per_rack=4, uplink_share=0.2)
    seconds = sum(piece / min(1.0, 0.2 / share) for piece, share in ((0.5, 0.25), (0.25, 0.5), (0.125, 1.0)))
    assert allreduce("halving-doubling", topology, 1e8) == _close(2 * seconds * 1e8 / CARDS)


@pytest.mark.parametrize(
    ("ranks", "count", "local", "racks"), [(1, 1, 1, 1), (5, 1, 5, 1), (8, 1, 8, 1), (9, 2, 8, 1), (70, 9, 8, 3)]
)
def test_a_last_node_and_a_last_rack_may_be_partly_filled(ranks: int, count: int, local: int, racks: int) -> None:
    topology = Topology(ranks, 8, 100e9, 20e9, nodes_per_rack=4)
    assert (topology.nodes, topology.local, topology.racks) == (count, local, racks)
    assert topology.rank_bytes_per_s == (100e9 if count == 1 else 20e9)


def test_a_sum_in_shared_memory_is_its_passes_over_the_memory_and_ranks_above_the_cores_take_turns() -> None:
    sums = SharedSums(bytes_per_s=8e9, bucket_s=1e-4, cores=2)
    two, four = (Topology(ranks, ranks, 1e9, 1e9, link_kind="memory", sums=sums) for ranks in (2, 4))
    assert allreduce(SHARED_MEMORY, two, 8e6) == pytest.approx(1e-4 + 4 * 8e6 / 8e9)
    assert allreduce(SHARED_MEMORY, four, 8e6) == pytest.approx(2 * (1e-4 + 4.5 * 8e6 / 8e9))


@pytest.mark.parametrize(
    ("topology", "has_memory"),
    [
        (Topology(4, 4, 100e9, 20e9), False),
        (Topology(4, 4, 1e9, 1e9, sums=SharedSums(6e12, 1e-7, 8)), True),
        (Topology(8, 4, 1e9, 1e9, sums=SharedSums(6e12, 1e-7, 8)), False),
    ],
)
def test_only_ranks_of_one_machine_with_a_memory_of_all_of_them_sum_in_it(topology: Topology, has_memory: bool) -> None:
    (row,) = collective_rows([topology], [1e6])
    assert (row["ranks"], row["bytes"]) == (topology.ranks, 1e6)
    assert (SHARED_MEMORY in row) is has_memory
    assert (row["best"] == SHARED_MEMORY) is has_memory
    if not has_memory:
        with pytest.raises(ConfigError, match="CPU ranks of one machine that share memory"):
            allreduce(SHARED_MEMORY, topology, 8e6)


def test_the_best_is_a_tree_for_small_buffers_at_scale_and_a_ring_for_large_ones_and_never_a_special_switch() -> None:
    (small,) = collective_rows([Topology(2048, 8, 240e9, 96e9)], [1e4])
    (large,) = collective_rows([Topology(32, 8, 240e9, 96e9)], [1e9])
    assert (small["best"], large["best"]) == ("tree", "ring")
    assert large["switch"] < large["ring"]


@pytest.mark.parametrize("name", ["ps:0", "ps:x", "ps:", "as:4", "rings"])
def test_what_is_no_algorithm_is_refused_with_all_that_are(name: str) -> None:
    known = "ring, torus, halving-doubling, tree, hierarchical, hierarchical-tree, switch, auto, ps:SERVERS"
    with pytest.raises(ConfigError) as refused:
        allreduce(name, Topology(4, 1, 100e9, 20e9), 1e6)
    assert (refused.value.key, refused.value.got, refused.value.allowed) == ("algorithm", name, f"one of {known}")
