"""Which rank counts the energy of its node, and what of an attempt is kept."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_cluster
from logs.energy import energy_of, read_attempts
from tests.engines import ALONE
from tests.logs.rapl import Rapl
from train.measure.node_energy import counted, node_meter

ZONE = "intel-rapl:0"
Attempt = Callable[..., float | None]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Return the function that lets an attempt fail in which a processor used 3 J; it returns the energy of the run."""
    monkeypatch.setenv("RANK_SYS", str(tmp_path / "sys"))
    rapl, run = Rapl(tmp_path / "sys", **{ZONE: "package-0"}), tmp_path / "run"
    run.mkdir()

    def fail(
        began: float, *sets: str, hosts: str = "a", place: str = "laptop", local_rank: int = 0, from_step: int = 0,
        shown: tuple[int, int] = (0, 3_000_000),
    ) -> float | None:  # fmt: skip
        rank = replace(ALONE, host=hosts[0], local_rank=local_rank, rank=local_rank)
        rapl.show({ZONE: shown[0]})
        meter = node_meter(rank, load_cluster(place, sets))
        with suppress(OSError), counted(meter, run, rank, {"hosts": hosts, "began": began}, from_step):
            rapl.show({ZONE: shown[1]})
            raise OSError("a fault")
        found = energy_of(read_attempts(run))
        return None if found is None else found.joules

    return fail


def test_attempts_that_failed_add_until_one_was_not_counted(attempt: Attempt) -> None:
    assert attempt(1.0) == 3
    assert attempt(2.0, from_step=9) == 6
    assert attempt(3.0, shown=(-1, -1), from_step=9) is None


def test_a_counter_that_is_lost_before_the_end_leaves_no_part_of_a_sum(attempt: Attempt) -> None:
    assert attempt(1.0, shown=(0, -1)) is None


def test_an_attempt_after_one_that_left_nothing_is_not_the_whole_run(attempt: Attempt) -> None:
    assert attempt(1.0, shown=(-1, -1)) is None
    assert attempt(2.0, from_step=9) is None


def test_a_node_has_one_counter_and_a_node_without_makes_the_sum_unknown(attempt: Attempt) -> None:
    assert attempt(1.0, hosts="aaa", local_rank=1) is None
    assert attempt(1.0, hosts="aaa") == 3
    assert attempt(2.0, hosts="aab") is None


WAITS = "{forward_s: 1, gradients_s: [1], update_s: 1, evaluation_s: 1, top1: [0.5]}"


@pytest.mark.parametrize(
    ("place", "sets"),
    [
        ("a100-node", ["cluster.sample_gpus=false"]),
        ("laptop", ["cluster.engine.name=timed", f"cluster.rehearsal={{waits: {WAITS}}}"]),
    ],
)
def test_what_is_not_to_be_asked_and_ranks_that_sleep_are_not_counted(
    place: str, sets: list[str], attempt: Attempt
) -> None:
    assert attempt(1.0, *sets, place=place) is None
