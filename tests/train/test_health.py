"""What of the ranks' states is compared: ranks are threads that meet, whose networks hold numbers."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest

from configs.plan import Position
from tests.dry_loop import Blank, NumberEngine
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.init import RanksDiffer
from train.health import StateNotFinite, require_sound
from train.measure.timing import Clock
from train.step import Step

NUM_RANKS = 3


class Meeting(SingleProcess):
    """Gathers what each of the ranks has."""

    def __init__(self, rank: int, barrier: Barrier, held: dict[int, bytes], *, keeps_ranks_equal: bool) -> None:
        self._rank, self._barrier, self._held, self.keeps_ranks_equal = rank, barrier, held, keeps_ranks_equal

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        self._held[self._rank] = content
        self._barrier.wait(30)
        rows = [self._held[rank] for rank in range(NUM_RANKS)]
        self._barrier.wait(30)
        return rows


def _compare(part: str, place: int | str, value: float, *, keeps_ranks_equal: bool = True) -> list[Exception | None]:
    """Return what each rank raises when rank 1 has another number in a place of a part of the state."""
    barrier, held, engine = Barrier(NUM_RANKS), dict[int, bytes](), cast(Any, NumberEngine())

    def look(rank: int) -> Exception | None:
        blank, averages = Blank(), {"first": 0.5, "second": 0.5}
        state: Any = {**vars(blank), "averages": averages}
        if rank == 1:
            state[part][place] = value
        idea = cast(Any, SimpleNamespace(evaluated_weights=averages))
        meeting = Meeting(rank, barrier, held, keeps_ranks_equal=keeps_ranks_equal)
        own, clock = cast(Any, blank), Clock(engine, 2)
        step = Step(engine, own, own, meeting, BucketPlan(((0, 1),)), 1, clock, on_step=lambda _: None, parts=[idea])
        try:
            require_sound(step, Position(2, 38))
        except (RanksDiffer, StateNotFinite) as error:
            return error
        return None

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        return list(pool.map(look, range(NUM_RANKS)))


LAST_BIT = 1.0 + 2**-52


@pytest.mark.parametrize(
    ("part", "place", "value", "tensor"),
    [
        ("masters", 1, LAST_BIT, "second"),
        ("momenta", 1, 1e-300, "optimizer's state 1"),
        ("averages", "second", 0.25, "average of second"),
    ],
)
def test_each_part_of_the_state_is_compared_and_every_rank_names_the_odd_one(
    part: str, place: int | str, value: float, tensor: str
) -> None:
    for error in _compare(part, place, value):
        assert isinstance(error, RanksDiffer)
        assert error.ranks == (1,)
        assert all(words in str(error) for words in (f"first in {tensor}", "step 37 of epoch 2", "rank 1"))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_an_average_that_is_not_finite_is_named_though_all_weights_are(value: float) -> None:
    for error in _compare("averages", "second", value):
        assert isinstance(error, StateNotFinite)
        assert "average of second on rank 1" in str(error)


def test_running_statistics_and_momenta_of_asynchronous_ranks_may_differ() -> None:
    assert _compare("statistics", 0, 1.0) == [None] * NUM_RANKS
    assert _compare("momenta", 1, 1e-300, keeps_ranks_equal=False) == [None] * NUM_RANKS
    assert any(_compare("masters", 1, LAST_BIT, keeps_ranks_equal=False))
