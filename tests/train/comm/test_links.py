"""Which nodes swap with each other, and how long an action takes."""

import time
from functools import partial

import pytest

from configs.load import load_cluster
from tests.engines import ALONE
from train.comm.links import mean_s, partner_of
from train.engine.protocol import open_engine


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


@pytest.mark.medium
def test_an_action_takes_the_mean_of_its_repeats() -> None:
    engine = open_engine(load_cluster("laptop"), ALONE)
    assert 0.2 <= mean_s(engine, partial(time.sleep, 0.2), repeats=4) < 0.8
