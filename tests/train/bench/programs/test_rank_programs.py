"""The programs of the ranks of a bench, each as one rank in this process or by clocks of the test's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from train.bench import bench_rank
from train.bench.bench_rank import BenchRank
from train.bench.programs import epoch_ours, ours, overlap_ours, roofline_ours
from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, mark
from train.bench.programs.overlap_ours import NONE, OVERLAPPED, SERIAL, Transfer
from train.bench.samples import read_samples
from train.comm.communicator import SingleProcess
from train.engine.protocol import Operator
from train.measure.progress import Progress
from train.measure.timing import StepClock
from train.networks.least_work import Work

TINY = ["model.name=resnet8", "model.image_size=16", "batch.global_size=4", "model.num_classes=10"]
ALONE = ["cluster.ranks_per_node=1", "cluster.communication.kind=none", "cluster.engine.name=mxnet"]
SETS = [word for override in (*TINY, *ALONE) for word in ("--set", override)]


class _Engine:
    """An engine whose arrays are the moments at which they are computed; its last work ends at ``end_s``."""

    now_s, end_s = 100.0, 107.0

    def perf_counter(self) -> float:
        return self.now_s

    def wait(self, moment_s: float) -> None:
        self.now_s = max(self.now_s, moment_s)

    def wait_all(self) -> None:
        self.wait(self.end_s)

    def gather(self, name: str, value: int) -> list[int]:
        assert name in {"begin", "took"}
        return [value, 0]


def test_steps_between_others_last_from_the_loss_of_one_to_the_loss_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine: Any = _Engine()
    monkeypatch.setattr(bench_rank, "time", engine)
    rank = BenchRank(SimpleNamespace(engine=engine, communicator=engine), None)  # type: ignore[arg-type]
    asked: list[tuple[int, float]] = []

    def steps(number: int) -> float:
        asked.append((number, engine.now_s))
        loss_s: float = engine.end_s + 2.0 * number  # and 3 s of reductions that the loss does not wait for
        engine.end_s = loss_s + 3.0
        return loss_s

    assert rank.time_between_s(steps, 5) == 3.0 + 10.0
    assert asked == [(1, 107.0), (5, 109.0)], "the ranks have met, and the first step is done"
    assert engine.now_s == engine.end_s, "no reduction is under way when the process ends"


TRANSFERS = [
    Transfer(NONE),
    Transfer(SERIAL, 1 << 18),
    Transfer(OVERLAPPED, 1 << 16),
    Transfer(OVERLAPPED, 1 << 14, deferred=0.3),
]


def test_every_transfer_has_a_sample_of_each_round_but_the_first(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    taken: list[tuple[Any, int]] = []

    def sample(_: BenchRank, steps: Any, number: int) -> dict[str, float]:
        steps(number)
        taken.append((steps, number))
        return {"step_ms": float(len(taken))}

    monkeypatch.setattr(overlap_ours, "_sample", sample)
    assert overlap_ours.main([*SETS, "--rounds", "2", "--steps", "2", *(each.name for each in TRANSFERS)]) == 0
    found = read_samples(capfd.readouterr().out)
    # Three rounds of four, the second one in the opposite order; the first round does not count.
    assert {Transfer.parse(name): [each["step_ms"] for each in samples] for name, samples in found.items()} == dict(
        zip(TRANSFERS, ([8.0, 9.0], [7.0, 10.0], [6.0, 11.0], [5.0, 12.0]), strict=True)
    )
    assert {number for _, number in taken} == {2}
    assert len({id(steps) for steps, _ in taken}) == 4


def test_a_transfer_reduces_by_its_own_buckets_over_its_own_communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[Transfer, tuple[Any, Any]] = {}
    rank = bench_rank.open_rank([*TINY, *ALONE])
    for transfer in TRANSFERS:

        def steps_of(of: BenchRank, communicator: Any, buckets: Any, transfer: Transfer = transfer) -> Any:
            assert of is rank
            given[transfer] = communicator, buckets
            return lambda _: None

        monkeypatch.setattr(overlap_ours, "steps_of", steps_of)
        transfer.steps(rank)
    sizes = [each.size * 4 for each in rank.parts.model.network.network.parameters]  # type: ignore[attr-defined]
    assert [type(communicator).__name__ for communicator, _ in given.values()] == [
        "SingleProcess", *["_TransferCommunicator"] * 3,
    ]  # fmt: skip
    for transfer, (_, buckets) in given.items():
        assert sorted(index for bucket in buckets.order for index in bucket) == list(range(len(sizes)))
        assert max(sum(sizes[index] for index in bucket) for bucket in buckets.order if len(bucket) > 1) <= (
            transfer.bucket_bytes
        )


def test_a_step_of_each_variant_has_its_wall_and_processor_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter([0.0, 9.0, 10.0, 10.5, 20.0, 20.25])
    monkeypatch.setattr(roofline_ours, "time", SimpleNamespace(process_time=lambda: next(moments)))
    order: list[tuple[str, int]] = []
    seconds = iter([9.0, 9.0, 2.0, 4.0])

    def time_s(action: Any) -> float:
        action()
        return next(seconds)

    variants: Any = {name: lambda number, name=name: order.append((name, number)) for name in ("alone", "summed")}
    found = roofline_ours._steps(SimpleNamespace(time_s=time_s), variants, 1)  # type: ignore[arg-type]
    assert order == [("alone", 1), ("summed", 1)] * 2
    assert found == {
        "step alone": [{"wall_ms": 2000.0, "processor_ms": 500.0}],
        "step summed": [{"wall_ms": 4000.0, "processor_ms": 250.0}],
    }


@pytest.mark.parametrize(("words", "is_closed"), [([], True), (["--operators"], False)])
def test_ranks_but_the_first_wait_while_it_is_measured_alone(
    words: list[str], is_closed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    source = SimpleNamespace(
        begin_epoch=lambda epoch: told.append(("epoch", epoch)), close=lambda: told.append("closed")
    )
    images = SimpleNamespace(open_training=lambda _: source)
    monkeypatch.setattr("train.dataset.images_of", lambda *_: images)
    real = SingleProcess()
    for number in (0, 1):
        identity = SimpleNamespace(rank=number, world_size=2)
        parts = SimpleNamespace(
            identity=identity, communicator=real, model=SimpleNamespace(buckets="buckets"), engine=None, recipe=None,
            cluster=None, plan=None,
        )  # fmt: skip
        rank = SimpleNamespace(parts=parts)

        def measured(of: Any, variants: dict[str, Any], rounds: int, rank: Any = rank) -> Any:
            assert (of, rounds) == (rank, 3)
            told.append(variants)
            return {"step alone": [{"wall_ms": 1.0}]}

        monkeypatch.setattr(roofline_ours, "open_rank", lambda overrides, recipe, rank=rank: rank)
        monkeypatch.setattr(roofline_ours, "steps_of", lambda *given: given)
        monkeypatch.setattr(roofline_ours, "_operators" if words else "_steps", measured)
        assert roofline_ours.main(["--rounds", "3", *words]) == 0
        assert read_samples(capsys.readouterr().out or '{"alternative":"none","samples":[]}') == (
            {"none": []} if number else {"step alone": [{"wall_ms": 1.0}]}
        )
    assert told.count("closed") == told.count(("epoch", 1)) == 2 * is_closed
    first, second = (each for each in told if isinstance(each, dict))
    assert [*first] == [*second] == ["alone", "apart", "summed", *(["read"] if is_closed else [])]
    assert first["alone"] is first["apart"]
    assert second["alone"](1) is None
    assert isinstance(first["apart"][1], SingleProcess)
    assert first["apart"][1] is not real
    assert first["summed"][1] is real
    assert first["summed"][2] == "buckets"
    if is_closed:
        assert first["read"][1:] == (real, "buckets", source)


def test_our_side_of_the_race_is_timed_after_its_warm_up_over_the_images_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[Any] = []
    source = SimpleNamespace(
        begin_epoch=lambda epoch: told.append(("epoch", epoch)), close=lambda: told.append("closed")
    )
    monkeypatch.setattr("train.dataset.images_of", lambda *_: SimpleNamespace(open_training=lambda _: source))

    def time_s(action: Any) -> float:
        action()
        return 2.5

    parts = SimpleNamespace(
        identity=SimpleNamespace(rank=0), communicator=None, model=SimpleNamespace(buckets=None), engine=None,
        recipe=None, cluster=None, plan=SimpleNamespace(global_batch_size=32),
    )  # fmt: skip
    monkeypatch.setattr(ours, "open_rank", lambda *_: SimpleNamespace(parts=parts, time_s=time_s))

    def steps_of(*given: Any) -> Any:
        told.append(given[3] is source)
        return told.append

    monkeypatch.setattr(ours, "steps_of", steps_of)
    assert ours.main(["--warmup", "3", "--steps", "10"]) == 0
    assert told == [("epoch", 1), True, 3, 10, "closed"]
    assert read_samples(capsys.readouterr().out) == {"ours": [{"images_per_s": 10 * 32 / 2.5}]}


def test_an_epoch_is_marked_where_its_parts_begin_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr("train.bench.programs.marks.time", SimpleNamespace(perf_counter=lambda: float(next(now))))
    moments: list[tuple[str, float]] = []
    inner: list[str] = []

    @contextmanager
    def block(_: object) -> Iterator[None]:
        inner.append(f"begins after {len(moments)}")
        yield
        inner.append(f"ends after {len(moments)}")

    monkeypatch.setattr(StepClock, "input", block)
    monkeypatch.setattr(StepClock, "pause", block)
    monkeypatch.setattr(StepClock, "step_queued", lambda *_: inner.append(f"queued after {len(moments)}"))
    monkeypatch.setattr(Progress, "__init__", lambda *_, **_others: None)
    monkeypatch.setattr(Progress, "steps", lambda *_, **given: inner.append(f"told {given} after {len(moments)}"))
    source: Any = SimpleNamespace(
        begin_epoch=lambda epoch: inner.append(f"epoch {epoch} after {len(moments)}"), next_batch=lambda: "batch",
        state=lambda: b"state", close=lambda: inner.append("closed"),
    )  # fmt: skip
    clock = epoch_ours._MarkingClock(moments, SimpleNamespace(), 2, 10)
    progress, images = epoch_ours._MarkingProgress(moments), epoch_ours._MarkingSource(moments, source)
    images.begin_epoch(4)
    with clock.input():
        batch: Any = images.next_batch()
    assert batch == "batch"
    clock.step_queued(None)
    progress.steps([], is_last=False)
    progress.steps([], is_last=True)
    with clock.pause():
        pass
    mark(moments, EPOCH)
    assert (images.state(), images.close()) == (b"state", None)  # type: ignore[func-returns-value]
    names = [EPOCH, BATCH, QUEUED, DRAINED, EVALUATING, EVALUATED, EPOCH]
    assert moments == [(name, float(number)) for number, name in enumerate(names)]
    assert inner == [
        "epoch 4 after 1", "begins after 1", "ends after 1", "queued after 2", "told {'is_last': False} after 3",
        "told {'is_last': True} after 4", "begins after 5", "ends after 5", "closed",
    ]  # fmt: skip


def test_the_time_of_a_kind_is_that_of_its_operators_in_each_variant_beside_the_floor_of_a_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def operator(name: str, lasts_us: int, *, is_communication: bool = False) -> Operator:
        return Operator(name, 100, 100 + lasts_us, is_communication)

    recorded = [
        ("apart", [operator("Convolution", 3000), operator("_backward_Convolution", 5000), operator("odd", 500)]),
        ("summed", [operator("Convolution", 9000), operator("Convolution", 7000, is_communication=True)]),
        ("apart", [operator("Convolution", 1000)]),
        ("summed", [operator("Convolution", 2000)]),
    ]
    warmed: list[int] = []
    monkeypatch.setattr(roofline_ours, "_recorded", lambda *_: iter(recorded))
    monkeypatch.setattr(roofline_ours, "peak_operations_per_s", lambda _: 4e9)
    monkeypatch.setattr(roofline_ours, "copied_bytes_per_s", lambda _: 2e9)
    work = {"convolution": [Work(4e6, 1.0), Work(1.0, 6e6)]}
    monkeypatch.setattr(roofline_ours, "work_of_step", lambda table, size: work if (table, size) == ("t", 3) else {})
    parts = SimpleNamespace(
        plan=SimpleNamespace(per_rank_batch_size=3), identity=SimpleNamespace(world_size=2),
        model=SimpleNamespace(network=SimpleNamespace(network="t")),
    )  # fmt: skip
    rank: Any = SimpleNamespace(parts=parts, time_s=lambda action: action())
    variants: Any = {"apart": pytest.fail, "summed": warmed.append}
    # A core computes 2e9 operations and moves 1e9 bytes a second: 2 ms, and 6 ms.
    assert roofline_ours._operators(rank, variants, 2) == {
        "convolution": [
            {"apart_ms": 8.0, "summed_ms": 9.0, "floor_ms": pytest.approx(8.0), "floor_share": pytest.approx(1.0)},
            {"apart_ms": 1.0, "summed_ms": 2.0, "floor_ms": pytest.approx(8.0), "floor_share": pytest.approx(8.0)},
        ],
        "other": [{"apart_ms": 0.5, "summed_ms": 0.0}, {"apart_ms": 0.0, "summed_ms": 0.0}],
        "core": [{"peak_gflop_per_s": 2.0, "copied_gb_per_s": 1.0}],
    }
    assert warmed == [1]


def test_each_transfer_reduces_under_names_of_its_own() -> None:
    names: list[str] = []
    real: Any = SimpleNamespace(reduce=lambda name, *_: names.append(name), complete=lambda: None)
    engine: Any = SimpleNamespace(wait_all=lambda: None)
    for transfer in (*TRANSFERS[1:], Transfer(OVERLAPPED, 1 << 14, order="first", deferred=0.3)):
        communicator = overlap_ours._TransferCommunicator(real, engine, transfer)
        communicator.reduce("bucket_0", [])
        communicator.complete()
    assert len(set(names)) == len(names) == 4
