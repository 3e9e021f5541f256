"""The energy of a run: sums over devices, nodes and attempts, and what follows from them."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from logs.energy import AttemptEnergy, Joules, RunEnergy, Totals, energy_of, read_attempts, write_attempts

FIRST, SECOND = 100.5, 200.5
"""When attempts began."""


def test_attempts_and_nodes_add_and_each_rank_that_counts_a_node_twice_counts_once(tmp_path: Path) -> None:
    write_attempts(
        tmp_path, 0,
        [AttemptEnergy(FIRST, 2, "a", Joules([900, 100], [20, 30], [4])),
         AttemptEnergy(SECOND, 2, "a", Joules([500, 500], [10, 10], [1]))],
    )  # fmt: skip
    write_attempts(tmp_path, 1, [AttemptEnergy(FIRST, 2, "a", Joules([900, 100], [20, 30], [4]))])
    write_attempts(tmp_path, 8, [AttemptEnergy(FIRST, 2, "b", Joules([1000, 1000], [50, 50], [5]))])
    # After the failure of b, c took its place.
    write_attempts(tmp_path, 9, [AttemptEnergy(SECOND, 2, "c", Joules([1500, 1500], [30, 30], [5]))])
    found = energy_of(read_attempts(tmp_path), images=14_490, has_reached_target=True)
    assert found is not None
    nodes = {"a": Totals(2075, 2000, 70, 5), "b": Totals(2105, 2000, 100, 5), "c": Totals(3065, 3000, 60, 5)}
    assert (found.nodes, found.attempts) == (nodes, 2)
    assert (found.joules, found.gpus_j, found.packages_j, found.dram_j) == (7245, 7000, 230, 15)
    assert found.images_per_joule == pytest.approx(2)
    assert found.watt_hours_to_target == pytest.approx(2.0125)


@pytest.mark.parametrize(
    ("own", "other", "sums"),
    [
        (Joules([], [7.0], []), Joules([], [8.0], []), (15, None, 15, None)),  # processors of AMD
        (Joules([5.0], [None]), Joules([6.0], [3.0]), (11, 11, None, None)),  # processors are for root only
        (Joules([5.0], [7.0]), Joules([None], [8.0]), (None, None, 15, None)),  # a GPU before Volta
        (Joules([], [7.0], [1.0]), Joules([], [None], [2.0]), (None, None, None, 3)),
        (Joules([], [7.0], [1.0]), Joules([], [1.0, 2.0], [2.0, None]), (10, None, 10, None)),
        (Joules([], [7.0]), None, (None, None, None, None)),  # a node without a file
    ],
)
def test_a_sum_is_known_if_all_that_compute_were_counted_on_every_node(
    own: Joules, other: Joules | None, sums: Sequence[float | None], tmp_path: Path
) -> None:
    write_attempts(tmp_path, 0, [AttemptEnergy(FIRST, 2, "a", own)])
    if other is not None:
        write_attempts(tmp_path, 4, [AttemptEnergy(FIRST, 2, "b", other)])
    found = energy_of(read_attempts(tmp_path), images=30, has_reached_target=False)
    assert found is not None
    assert (found.joules, found.gpus_j, found.packages_j, found.dram_j) == sums
    assert found.watt_hours_to_target is None
    assert found.images_per_joule == (sums[0] and pytest.approx(30 / sums[0]))
    for kind, value in (("processors", found.packages_j), ("memory", found.dram_j)):
        counted, _, left_out = found.words.partition("not counted:")
        assert found.joules is None or (kind in (left_out if value is None else counted))
    assert ("network" in found.words) == (found.joules is not None)


def test_no_file_is_no_energy_and_a_damaged_one_makes_the_sum_unknown(tmp_path: Path) -> None:
    assert energy_of(read_attempts(tmp_path)) is None
    write_attempts(tmp_path, 0, [AttemptEnergy(FIRST, 2, "a", Joules([], [7.0]))])
    for content in (b"", b"\xff", b"[]", b'{"attempts": [{"attempt": 1}]}', b'{"attempts": 3}'):
        (tmp_path / "energy_1.json").write_bytes(content)
        found = energy_of(read_attempts(tmp_path), images=3, has_reached_target=True)
        assert found == RunEnergy(attempts=1, nodes={"a": Totals(7, None, 7)})
