"""Predicted allreduces against closed forms, against messages that are sent one by one, and at their limits."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from train.sim.collectives import ALGORITHMS, SHARED_MEMORY, SharedSums, Topology, allreduce

LINK, CARDS = 5e3, 1e3
"""Bytes/s of machines so slow that latencies, at most 0.1 s, do not count: closed forms have the bandwidth only."""
NAMES = [*ALGORITHMS, "auto", "ps:4"]


def flat(ranks: int) -> Topology:
    return Topology(ranks, 1, 1e15, CARDS)


def nodes(count: int, local: int = 8) -> Topology:
    return Topology(count * local, local, LINK, CARDS)


def fast(ranks: int, node: int = 8, kind: str = "nvlink") -> Topology:
    """Return a machine on which only latencies count."""
    return Topology(ranks, node, 1e30, 1e30, link_kind=kind)


def racks(ranks: int, share: float, *, ordered: bool = True, local: int = 1, link: float = 1e15) -> Topology:
    """Return nodes in racks of four, of which the uplinks have ``share`` of the cards' bandwidth."""
    return Topology(ranks, local, link, CARDS, nodes_per_rack=4, uplink_share=share, rack_ordered=ordered)


@pytest.mark.parametrize(
    ("name", "topology", "moved"),
    [
        ("ring", flat(1040), 2 * 1039 / 1040),
        # Ranks above a power of two send their buffers to a neighbour first, and receive the sums in the end.
        ("halving-doubling", flat(3), 2 * 1 / 2 + 2),
        ("halving-doubling", nodes(2), 2 * (7 / 8 * CARDS / LINK + 8 / 16)),  # eight ranks share the cards
        # A row's share travels along the columns; a prime number of ranks is a ring.
        ("torus", flat(12), 2 * 2 / 3 + 2 * 3 / 4 / 3),
        ("torus", Topology(15, 8, 1e15, CARDS), 2 * 2 / 3 + 2 * 4 / 5 / 3),  # a node that is partly filled is no row
        ("torus", flat(7), 2 * 6 / 7),
        # In the node, and `local` rings of a share each between nodes, whose links may be slower than their cards.
        ("torus", nodes(64), 2 * 7 / 8 * CARDS / LINK + 2 * 63 / 64),
        ("torus", Topology(16, 8, CARDS / 10, 4 * CARDS), 2 * 7 / 8 * 10 + 1 / 4),
        ("hierarchical-tree", Topology(16, 8, CARDS / 10, 4 * CARDS), 2 * 7 / 8 * 10 + 2 / 4 / 0.92 / 0.9),
        # A node sends for its ranks; a server receives from all ranks that share it.
        ("ps:1", Topology(16, 1, LINK, CARDS), 2 * 16),
        ("ps:64", Topology(16, 1, LINK, CARDS), 2),
        ("ps:64", Topology(64, 8, LINK, CARDS), 2 * 8),
        ("tree", flat(2048), 2 / 0.92 / 0.9),
        # Over the uplinks of a rack goes one ring, or 15 of 16 exchanges at 0.69 of the bandwidth where ranks are
        # placed at random; links in the nodes may be slower still.
        ("ring", racks(64, 0.25), 2 * 63 / 64),
        ("ring", racks(64, 0.1), 2 * 63 / 64 / 0.4),
        ("ring", racks(64, 0.5, ordered=False), 2 * 63 / 64 / (0.5 * 0.69 / (15 / 16))),
        ("ring", racks(64, 1.0, ordered=False), 2 * 63 / 64 / (0.69 / (15 / 16))),
        ("ring", racks(512, 0.1, local=8, link=CARDS / 20), 2 * 511 / 512 * 20),
        # 1/2 of a tree's edges leave the rack of four with 1/4 of them, 1/4 with 2/4, and 1/8 always.
        ("tree", racks(8, 0.1), 2 / (0.1 / (0.25 / 2 + 0.5 / 4 + 1 / 8)) / 0.92 / 0.9),
        # Distances 1, 2 and 4 send halves, quarters and eighths; 1/4, 1/2 and all of it leaves the rack.
        ("halving-doubling", racks(8, 0.2), 2 * (0.5 / (0.2 / 0.25) + 0.25 / (0.2 / 0.5) + 0.125 / 0.2)),
    ],
)
def test_without_latencies_a_buffer_takes_as_long_as_what_is_moved_of_it(
    name: str, topology: Topology, moved: float
) -> None:
    size = 1 << 40  # of which a tree reaches 0.9 of the bandwidth
    assert allreduce(name, topology, size) == pytest.approx(moved * size / CARDS, rel=2e-3)


@pytest.mark.parametrize(
    ("name", "topology", "seconds"),
    [
        # NCCL's LL: 6.6 us, then 2 (n - 1) steps of 0.6 us over NVLink, or 2.7 us between nodes.
        ("ring", fast(8), 6.6e-6 + 14 * 0.6e-6),
        ("ring", fast(16), 6.6e-6 + 28 * 0.6e-6 + 2 * 2.7e-6),
        ("ring", fast(8, kind="pcie"), 6.6e-6 + 14 * 1e-6),
        ("ring", fast(8, kind="memory"), 6.6e-6 + 14 * 10e-6),
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
        ("ps:2", fast(16), 2 * (8.4e-6 + 14e-6 + 8 * 1e-6)),  # a message of each of its eight ranks
    ],
)
def test_infinite_bandwidth_leaves_the_latency_of_every_step(name: str, topology: Topology, seconds: float) -> None:
    assert allreduce(name, topology, 1e6) == pytest.approx(seconds)


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


def test_a_sum_in_shared_memory_is_its_passes_over_the_memory_and_ranks_above_the_cores_take_turns() -> None:
    sums = SharedSums(bytes_per_s=8e9, cores=2)
    two, four = (Topology(ranks, ranks, 1e9, 1e9, link_kind="memory", sums=sums) for ranks in (2, 4))
    assert allreduce(SHARED_MEMORY, two, 8e6) == pytest.approx(2e-4 + 4 * 8e6 / 8e9)
    assert allreduce(SHARED_MEMORY, four, 8e6) == pytest.approx(2 * (2e-4 + 4.5 * 8e6 / 8e9))


@pytest.mark.parametrize("topology", [Topology(4, 4, 100e9, 20e9), Topology(8, 4, 1e9, 1e9, sums=SharedSums(6e12, 8))])
def test_only_ranks_of_one_machine_with_a_memory_of_all_of_them_sum_in_it(topology: Topology) -> None:
    with pytest.raises(ConfigError, match="CPU ranks of one machine that share memory"):
        allreduce(SHARED_MEMORY, topology, 8e6)


@pytest.mark.parametrize("name", ["ps:0", "ps:x", "ps:", "as:4", "rings"])
def test_what_is_no_algorithm_is_refused_with_all_that_are(name: str) -> None:
    known = "ring, torus, halving-doubling, tree, hierarchical, hierarchical-tree, auto, ps:SERVERS"
    with pytest.raises(ConfigError) as refused:
        allreduce(name, Topology(4, 1, 100e9, 20e9), 1e6)
    assert (refused.value.key, refused.value.got, refused.value.allowed) == ("algorithm", name, f"one of {known}")
