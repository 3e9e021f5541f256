"""The hidden share of the communication is that of the rounds, and its bound that of a link that is never idle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from configs.load import load_run
from train.bench.bench_overlap import NONE, OVERLAPPED, SERIAL, OverlapOptions, describe, exposed_ms, figures
from train.bench.measure import summarize
from train.bench.programs.overlap import TransferCommunicator
from train.comm.buckets import plan_reductions
from train.comm.communicator import SingleProcess
from train.engine.protocol import Engine
from train.networks.arch import float32_gradients, gradient_bytes, network_of


class _Told(SingleProcess):
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        self.told.append(f"{name.rsplit(maxsplit=1)[-1]} {arrays} {priority}")

    def complete(self) -> None:
        self.told.append("complete")

    def wait_all(self) -> None:
        self.told.append("backward has ended")


@pytest.mark.parametrize(
    ("when", "order"),
    [
        (OVERLAPPED, ["bucket_0 [7] 0", "backward", "bucket_1 [8] -1", "complete"]),
        (SERIAL, ["backward", "backward has ended", "bucket_0 [7] 0", "bucket_1 [8] -1", "complete"]),
    ],
)
def test_a_serial_transfer_begins_when_backward_has_ended_and_an_overlapped_one_at_once(
    when: str, order: list[str]
) -> None:
    told = _Told()
    communicator = TransferCommunicator(told, cast(Engine, told), when, 1 << 20)
    for _ in range(2):
        told.told.clear()
        communicator.reduce("bucket_0", [7], 0)
        told.told.append("backward")
        communicator.reduce("bucket_1", [8], -1)
        communicator.complete()
        assert told.told == order


def _figures(when: str, own: Sequence[float], none: Sequence[float], serial: Sequence[float]) -> list[dict[str, float]]:
    samples = [[{"step_ms": each} for each in steps] for steps in (own, none, serial)]
    return figures(when, *samples, backward_s=0.5, least_ms=5.0)


def test_the_hidden_fraction_is_the_part_of_serial_that_is_not_exposed_round_by_round() -> None:
    none, serial = [100.0, 110.0], [200.0, 160.0]
    assert _figures(NONE, none, none, serial) == [{"step_ms": 100.0}, {"step_ms": 110.0}]
    after = _figures(SERIAL, serial, none, serial)
    assert [each["exposed_ms"] for each in after] == [100.0, 50.0]
    assert [each["exposed / backward"] for each in after] == [0.2, 0.1]
    first, second = _figures(OVERLAPPED, [120.0, 120.0], none, serial)
    assert first == {"step_ms": 120.0, "exposed_ms": 20.0, "hidden_fraction": 0.8, "hidden_bound": 0.95}
    assert second == {"step_ms": 120.0, "exposed_ms": 10.0, "hidden_fraction": 0.8, "hidden_bound": 0.9}


def test_a_round_in_which_serial_costs_nothing_leaves_no_round_a_hidden_fraction() -> None:
    rounds = _figures(OVERLAPPED, [12.0, 12.0], [10.0, 10.0], [14.0, 10.0])
    assert rounds == [{"step_ms": 12.0, "exposed_ms": 2.0}] * 2
    assert [row.figure for row in summarize("a", rounds)] == ["step_ms", "exposed_ms"]


def test_a_link_exposes_what_is_complete_when_backward_has_ended() -> None:
    # Gradients of 30, 10 and 60 bytes; the last layer's, 60 bytes, is computed first; the link takes 100 ms for all.
    sizes, ready_ms = [30, 10, 60], [100.0, 50.0, 20.0]
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 100.0) == 30.0, "20 + 60, 80 + 10, then from 100 on"
    assert exposed_ms([(2,), (1,), (0,)], ready_ms, sizes, 200.0) == 120.0, "the link is never idle from 20 on"
    assert exposed_ms([(2, 1, 0)], ready_ms, sizes, 100.0) == 100.0, "one bucket hides nothing"
    assert exposed_ms([(0,), (1,), (2,)], ready_ms, sizes, 100.0) == 100.0, "nor does the first layer first"


def test_the_last_bucket_of_a_described_run_and_all_of_a_single_one_stay_exposed(tmp_path: Path) -> None:
    timed = describe(OverlapOptions(), 4, tmp_path, 0.5)
    link = timed.link_bytes_per_s(None)
    # Each of four ranks sends 2 * 3 / 4 of the gradients, an eighth as long, in the half second of backward.
    assert link == pytest.approx(1.5 * sum(timed.sizes_bytes) / 8 / 0.5)
    assert timed.least_exposed_ms(1 << 30, link) == pytest.approx(500, rel=0.01)
    parameters = network_of(load_run(timed.config)[0].model).parameters
    order = plan_reductions(gradient_bytes(parameters, 2), 4 << 20, 0.0, float32_gradients(parameters, 2)).order
    share = sum(parameters[index].size for index in order[-1]) / sum(each.size for each in parameters)
    assert share < 0.06
    assert timed.least_exposed_ms(4 << 20, link) == pytest.approx(500 * share, rel=0.15), "and norms, just before"
    # Compute is as much slower as the link, and gradients are shorter.
    assert timed.link_bytes_per_s(8 * 1.6e9) == pytest.approx(1.6e9 * max(timed.ready_s) / 0.5 / 8)
    assert load_run(timed.config)[1].rehearsal.speed == pytest.approx(timed.speed)  # type: ignore[union-attr]
