"""Which nodes swap with each other."""

import pytest

from train.comm.links import partner_of


@pytest.mark.parametrize("count", [2, 3, 4, 7, 64])
def test_partners_are_mutual_and_each_turn_has_other_ones(count: int) -> None:
    turns = count // 2 if count % 2 == 0 else count
    met = {number: set[int]() for number in range(count)}
    for turn in range(turns):
        partners = [partner_of(number, count, turn) for number in range(count)]
        idle = [number for number, partner in enumerate(partners) if partner is None]
        assert len(idle) == count % 2, "of an odd number, one"
        for number, partner in enumerate(partners):
            if partner is not None:
                assert partners[partner] == number != partner
                assert partner not in met[number]
                met[number].add(partner)
    assert {len(each) for each in met.values()} == {turns - count % 2}
