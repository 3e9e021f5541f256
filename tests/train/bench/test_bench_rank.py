"""What the programs of the ranks measure: by a clock of the test's own, and on one real rank in this process."""

import itertools
from collections import Counter
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest

from train.bench import bench_rank
from train.bench.bench_rank import BenchRank, copied_bytes_per_s, open_rank, peak_operations_per_s
from train.bench.programs import allreduce_ours, overlap_ours, roofline_ours, step_ours
from train.bench.samples import read_samples
from train.comm.communicator import SingleProcess
from train.engine.protocol import Operator
from train.networks.arch import build_network

TINY = ["model.name=resnet8", "model.image_size=16", "batch.global_size=16", "model.num_classes=10"]
ALONE = ["cluster.ranks_per_node=1", "cluster.communication.kind=none"]


def _sets(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


class _TwoRanks:
    """The engine and the communicator of a rank, by a clock that only waiting moves on; the other rank's values are 0.

    Attributes:
        now_s: The time.
        queued_s: What the engine still has to do.
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

    def zeros(self, shape: tuple[int]) -> tuple[int]:
        return shape

    def product(self, _left: object, _right: object) -> float:
        return 0.01

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def overwrite(self, _target: object, _array: object) -> None:
        self.queued_s += 0.01


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _TwoRanks:
    machine = _TwoRanks()
    monkeypatch.setattr(bench_rank, "time", machine)
    return machine


def _rank(machine: _TwoRanks) -> BenchRank:
    parts = SimpleNamespace(engine=machine, communicator=machine, identity=SimpleNamespace(world_size=2))
    return BenchRank(cast(Any, parts), cast(Any, None))


@pytest.mark.parametrize(("others_s", "slowest_s"), [(1.5, 2.0), (3.0, 3.0)])
def test_a_time_ends_with_the_last_queued_work_of_the_slowest_rank(
    machine: _TwoRanks, others_s: float, slowest_s: float
) -> None:
    machine.others_value, machine.queued_s = round(1e9 * others_s), 7.0  # of before, which does not count

    def queue() -> None:
        machine.queued_s += 2.0

    assert _rank(machine).time_s(queue) == slowest_s


def test_peak_and_bandwidth_are_those_of_all_ranks(machine: _TwoRanks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rank, "_SIDE", 8)
    # Each of two ranks multiplies or copies a hundred times a second; a copy reads and writes.
    assert peak_operations_per_s(_rank(machine)) == pytest.approx(2 * 100 * 2 * 8**3)
    assert copied_bytes_per_s(_rank(machine)) == pytest.approx(2 * 100 * 2 * (64 << 20))


def test_a_batch_has_labels_of_the_networks_classes() -> None:
    rank = open_rank([*TINY, *ALONE])
    assert rank.batch.images.shape == (16, 3, 16, 16)
    assert rank.batch.labels.asnumpy().tolist() == [each % 10 for each in range(16)]


def test_a_rank_alone_measures_a_step_and_its_rates_belong_together(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in (("_SIDE", 64), ("_PEAK_S", 0.01)):
        monkeypatch.setattr(bench_rank, name, value)
    assert step_ours.main([*_sets("cluster.engine.name=mxnet", *TINY, *ALONE), "--seconds", "0"]) == 0
    found = read_samples(capfd.readouterr().out)
    (sample,) = found["step"]
    assert sample["images_per_s"] == pytest.approx(16e3 / sample["step_ms"])
    macs = build_network("resnet8", num_classes=10, image_size=16).macs
    assert sample["gflop_per_s"] == pytest.approx(6 * macs * sample["images_per_s"] / 1e9)
    assert found["start"][0].keys() == {"warm_up_ms", "first_step_ms"}


def test_the_first_batch_of_an_evaluation_does_not_count() -> None:
    network = SimpleNamespace(inference=lambda: lambda _: None, unfolded_inference=lambda: lambda _: None)
    # The fold; folded and unfolded; then these in turn, the other way round in every second round.
    seconds = iter([5.0, 99, 99, 0.01, 0.1, 0.2, 0.02, 0.04, 0.4])
    model = SimpleNamespace(model=SimpleNamespace(network=network))
    rank: Any = SimpleNamespace(parts=model, batch=SimpleNamespace(images=None), time_s=lambda _: next(seconds))
    expected = {"fold_ms": 5000.0, "evaluation_ms": 200.0, "unfolded_evaluation_ms": 20.0}
    assert step_ours._evaluation_sample(rank) == pytest.approx(expected)


def test_a_small_allreduce_is_the_mean_of_many_and_a_large_one_is_taken_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ticks = itertools.count(0.0, 2.0)
    monkeypatch.setattr(allreduce_ours, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    words = ["--cluster", "laptop", *_sets("cluster.engine.name=mxnet", *ALONE), "--rounds", "3"]
    assert allreduce_ours.main([*words, "4096", str(16 << 20), str(32 << 20)]) == 0
    found = {name: [each["allreduce_ms"] for each in rounds] for name, rounds in
             read_samples(capfd.readouterr().out).items()}  # fmt: skip
    assert found == {"4096": [100.0] * 3, str(16 << 20): [1000.0] * 3, str(32 << 20): [2000.0] * 3}


@pytest.mark.parametrize(("rehearsal", "steps_that_work"), [(None, 4), ("waits", 3)])
def test_a_sample_of_a_transfer_is_a_steps_share_of_the_time_and_of_all_ranks_processors(
    rehearsal: object, steps_that_work: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real arrays, one more step goes before the three that are timed, and works too."""
    moments = iter([10.0, 22.0])
    monkeypatch.setattr(overlap_ours, "time", SimpleNamespace(process_time=lambda: next(moments)))
    parts = SimpleNamespace(
        cluster=SimpleNamespace(rehearsal=rehearsal), communicator=SimpleNamespace(gather=lambda _, own: [own, own])
    )
    rank: Any = SimpleNamespace(parts=parts, time_between_s=lambda *_: 6.0, time_s=lambda _: 6.0)
    sample = overlap_ours._sample(rank, lambda _: None, 3)
    assert sample == pytest.approx({"step_ms": 2000.0, "processor_ms": 2 * 12_000 / steps_that_work})


def test_an_operator_belongs_to_the_step_in_which_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([1.0, 2.0, 2.5, 3.0])
    monkeypatch.setattr(roofline_ours, "time", SimpleNamespace(time=lambda: next(moments)))
    begins = {"before": 999_999, "a": 1_000_000, "b": 1_999_999, "between": 2_000_000, "c": 2_500_000}
    recorded = [Operator(name, begin, begin + 9, is_communication=False) for name, begin in begins.items()]
    engine = SimpleNamespace(
        begin_trace=lambda _: None, end_trace=lambda: None, wait_all=lambda: None, read_trace=lambda _: recorded
    )
    rank: Any = SimpleNamespace(parts=SimpleNamespace(engine=engine), meet=lambda: None)
    variants: Any = {"apart": lambda _: None, "summed": lambda _: None}
    found = [(name, [each.name for each in own]) for name, own in roofline_ours._recorded(rank, variants, 1)]
    assert found == [("apart", ["a", "b"]), ("summed", ["c"])]


def test_the_time_of_a_kind_stands_beside_its_floor_if_it_has_one() -> None:
    spent = {"apart": Counter(update=4000, other=500), "summed": Counter(update=5000)}
    floors = {"update": 1.0}
    times = {"apart_ms": 4.0, "summed_ms": 5.0}
    assert roofline_ours._figures("update", spent, floors) == {**times, "floor_ms": 1.0, "floor_share": 0.25}
    assert roofline_ours._figures("other", spent, floors) == {"apart_ms": 0.5, "summed_ms": 0.0}


def test_a_step_is_one_of_two_that_are_queued_and_its_rates_are_those_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[Any] = []
    network = SimpleNamespace(
        network=SimpleNamespace(macs=50), forward=lambda *batch: told.append(batch),
        backward=lambda: told.append("backward"),
    )  # fmt: skip
    optimizer = SimpleNamespace(update=told.append)
    seconds = iter([0.25, 0.5, 0.125, 4.0])

    def time_s(action: Any) -> float:
        action()
        return next(seconds)

    parts = SimpleNamespace(
        model=SimpleNamespace(network=network, optimizer=optimizer), plan=SimpleNamespace(global_batch_size=16)
    )
    rank: Any = SimpleNamespace(parts=parts, batch=("images", "labels"), time_s=time_s)
    monkeypatch.setattr(step_ours, "peak_operations_per_s", lambda _: 9600.0)
    found = step_ours._step_sample(rank, cast(Any, told.append))
    assert told == [("images", "labels"), "backward", bench_rank.HYPER, 2]
    # 8 images a second, each of 6 x 50 operations.
    rates = {"images_per_s": 8.0, "gflop_per_s": 2.4e-6, "peak_fraction": 0.25}
    times = {"forward_ms": 250.0, "backward_ms": 500.0, "update_ms": 125.0, "step_ms": 2000.0}
    assert found == pytest.approx(times | rates)


def test_the_start_is_the_warm_up_and_the_first_step_and_samples_are_taken_until_rank_0_says_stop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    answers = iter([[1, 0], [0, 1]])
    seconds = iter([5.0, 0.5])

    def time_s(action: Any) -> float:
        action()
        return next(seconds)

    parts = SimpleNamespace(
        communicator=SimpleNamespace(gather=lambda *_: next(answers)), model=SimpleNamespace(buckets=None),
        engine="engine", plan=SimpleNamespace(per_rank_batch_size=3), identity=SimpleNamespace(rank=0),
    )  # fmt: skip
    rank = SimpleNamespace(parts=parts, time_s=time_s)
    monkeypatch.setattr(step_ours, "open_rank", lambda *_, **_others: rank)
    monkeypatch.setattr(step_ours, "steps_of", lambda *_: told.append)
    monkeypatch.setattr(step_ours, "warm_up", lambda engine, _model, _communicator, size: told.append((engine, size)))
    monkeypatch.setattr(step_ours, "_step_sample", lambda *_: {"step_ms": 1.0})
    monkeypatch.setattr(step_ours, "_evaluation_sample", lambda _: {"fold_ms": 2.0})
    assert step_ours.main(["--seconds", "99"]) == 0
    assert told == [("engine", 3), 1]
    assert read_samples(capsys.readouterr().out) == {
        "step": [{"step_ms": 1.0, "fold_ms": 2.0}] * 2,
        "start": [{"warm_up_ms": 5000.0, "first_step_ms": 500.0}],
    }


def test_an_allreduce_takes_as_long_as_on_the_slowest_rank(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class BesideASlowOne(SingleProcess):
        def gather(self, name: str, value: int) -> list[int]:
            return [value, 7_000_000_000 if name == "took" else 0]

    monkeypatch.setattr(allreduce_ours, "connector", lambda _: lambda *_: BesideASlowOne())
    words = ["--cluster", "laptop", *_sets("cluster.engine.name=mxnet", *ALONE), "--rounds", "2", "4096"]
    assert allreduce_ours.main(words) == 0
    assert read_samples(capfd.readouterr().out) == {"4096": [{"allreduce_ms": 7000.0}] * 2}


@pytest.mark.parametrize("source", [None, "source"])
def test_steps_take_their_batches_from_a_source_or_the_one_in_memory_and_give_the_last_loss(
    source: str | None,
) -> None:
    made: list[Any] = []
    taken: list[Any] = []

    def step(number: int, images: Any, hyper: Any) -> Any:
        taken.append((number, images, hyper))
        return SimpleNamespace(summed=f"loss {len(taken)}", own="own")

    def make_step(clock: Any, _on_step: Any, **given: Any) -> Any:
        made.append((clock._run_ahead_steps, given))
        return step

    engine = SimpleNamespace(run_ahead_steps=7)
    parts = SimpleNamespace(engine=None, cluster=SimpleNamespace(engine=engine), make_step=make_step)
    rank = BenchRank(cast(Any, parts), cast(Any, "batch"))
    batch: Any = rank.next_batch()
    assert batch == "batch"
    steps = bench_rank.steps_of(rank, cast(Any, "sums"), cast(Any, "buckets"), cast(Any, source))
    assert steps(3) == "loss 3"
    assert made == [(7, {"communicator": "sums", "buckets": "buckets"})]
    assert taken == [(0, source or rank, bench_rank.HYPER)] * 3


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: ./run.sh setup --engine torch")
def test_a_step_on_pytorch_is_measured_in_any_time(capfd: pytest.CaptureFixture[str]) -> None:
    from train.bench.programs import gpu_step

    sets = _sets("cluster.engine.name=torch", *TINY, *ALONE)
    assert gpu_step.main(["--recipe", "imagenet-smoke", *sets, "--variant", "eager", "--seconds", "1e-6"]) == 0
    (sample,) = read_samples(capfd.readouterr().out)["step"]
    assert sample["images_per_s"] == pytest.approx(16e3 / sample["step_ms"])
