"""What ranks measure, by a clock of the test's own: time of the slowest rank, the peak of all ranks, a step's rates."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from train.bench import bench_rank
from train.bench.bench_rank import BenchRank, open_rank, peak_operations_per_s
from train.bench.programs import allreduce, steps
from train.bench.samples import read_samples
from train.comm.communicator import SingleProcess
from train.networks.arch import build_network

TINY = ["model.name=resnet8", "model.image_size=16", "batch.global_size=16", "model.num_classes=10"]
ALONE = ["cluster.ranks_per_node=1", "cluster.communication.kind=none"]


class _TwoRanks(SingleProcess):
    """The engine and the communicator of a rank, by a clock that only waiting moves on; the other rank's values are 0.

    Attributes:
        now_s: The time.
        queued_s: What the engine still has to do.
        others_value: What the other rank contributes.
    """

    def __init__(self) -> None:
        self.now_s = self.queued_s = 0.0
        self.others_value = 0

    def perf_counter(self) -> float:
        return self.now_s

    def wait_all(self) -> None:
        self.now_s, self.queued_s = self.now_s + self.queued_s, 0.0

    def gather(self, _name: str, value: int) -> list[int]:
        return [value, self.others_value]

    def from_host(self, array: object) -> object:
        return array

    def product(self, left: Any, _right: object) -> float:
        return float(left.size * 1e-8)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _TwoRanks:
    machine = _TwoRanks()
    monkeypatch.setattr(bench_rank, "time", machine)
    return machine


def _rank(machine: Any) -> BenchRank:
    identity, plan = SimpleNamespace(world_size=2), SimpleNamespace(global_batch_size=6)
    parts = SimpleNamespace(engine=machine, communicator=machine, identity=identity, plan=plan)
    return BenchRank(cast(Any, parts), cast(Any, None))


@pytest.mark.parametrize(("others_s", "slowest_s"), [(1.5, 2.0), (3.0, 3.0)])
def test_a_time_ends_with_the_last_queued_work_of_the_slowest_rank(
    machine: _TwoRanks, others_s: float, slowest_s: float
) -> None:
    machine.others_value, machine.queued_s = round(1e9 * others_s), 7.0  # of before, which does not count

    def queue() -> None:
        machine.queued_s += 2.0

    assert _rank(machine).time_s(queue) == slowest_s


def test_rates_are_those_of_all_ranks(machine: _TwoRanks) -> None:
    # Steps of six images, three of each rank.
    assert _rank(machine).images_per_s(5, 2.0) == 15.0
    # A product of square matrices of 1536 takes 1e-8 s an element; each of two ranks computes one after another.
    assert peak_operations_per_s(_rank(machine)) == pytest.approx(2 * 2 * 1536**3 / (1536**2 * 1e-8))


def test_a_batch_has_labels_of_the_networks_classes() -> None:
    rank = open_rank("imagenet-smoke", [*TINY, *ALONE])
    engine = rank.parts.engine
    assert engine.to_host(rank.batch.labels).tolist() == [each % 10 for each in range(16)]
    images = engine.to_host(rank.batch.images)
    assert (images.size, images.std()) == (16 * 3 * 16 * 16, pytest.approx(1, abs=0.05))


def test_a_rank_alone_measures_a_step_and_its_rates_belong_together(capfd: pytest.CaptureFixture[str]) -> None:
    steps.main("imagenet-smoke", [*TINY, *ALONE], steps=2, has_parts=True)
    found = read_samples(capfd.readouterr().out)
    (sample,) = found["steps"]
    assert sample["images_per_s"] == pytest.approx(16e3 / sample["step_ms"])
    # An image takes two operations for each multiply-add, three times: forward, to the inputs, to the weights.
    operations = 6 * build_network("resnet8", num_classes=10, image_size=16).macs * sample["images_per_s"]
    assert sample["gflop_per_s"] == pytest.approx(operations / 1e9)
    assert 0.01 < sample["peak_fraction"] < 2
    assert found["start"][0].keys() == {"warm_up_ms", "first_step_ms"}
    steps.main("imagenet-smoke", [*TINY, *ALONE], warmup=1, seconds=0.01)
    assert {figure for each in read_samples(capfd.readouterr().out)["steps"] for figure in each} == {
        "step_ms",
        "images_per_s",
    }


@pytest.mark.parametrize(("others_s", "expected"), [(0.0, (100.0, 1000.0, 2000.0)), (7.0, (350.0, 3500.0, 7000.0))])
def test_a_small_allreduce_is_the_mean_of_many_and_takes_as_long_as_on_the_slowest_rank(
    others_s: float, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    other = _TwoRanks()
    other.others_value = round(1e9 * others_s)
    ticks = itertools.count(0.0, 2.0)  # so every sample takes two seconds here
    monkeypatch.setattr(bench_rank, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(allreduce, "connector", lambda _: lambda *_: other)
    sizes = [4096, 16 << 20, 32 << 20]
    allreduce.main("laptop", ALONE, 3, sizes)
    found = {name: [each["allreduce_ms"] for each in rounds] for name, rounds in
             read_samples(capfd.readouterr().out).items()}  # fmt: skip
    # Twenty reductions of the small buffer in a sample, two of 16 MiB, one of 32 MiB.
    assert found == {str(size): [ms] * 3 for size, ms in zip(sizes, expected, strict=True)}
