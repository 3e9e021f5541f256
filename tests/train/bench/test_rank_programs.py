"""What the programs of the ranks measure: by a clock of the test's own, and on one real rank in this process."""

import itertools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from configs.load import load_both
from configs.plan import plan_run
from train.bench import bench_rank
from train.bench.bench_overlap import NONE, OVERLAPPED, SERIAL, Transfer
from train.bench.bench_rank import BenchRank, copied_bytes_per_s, open_rank, peak_operations_per_s
from train.bench.programs import allreduce_ours, epoch_ours, ours, overlap_ours, roofline_ours, step_ours
from train.bench.programs.marks import BATCH, DRAINED, EPOCH, EVALUATED, EVALUATING, QUEUED, gaps
from train.bench.python_step import python_step
from train.bench.samples import read_samples
from train.comm.communicator import SingleProcess
from train.compose import compose
from train.engine.protocol import Operator
from train.networks.arch import build_network, network_of
from train.plan.memory import estimate_input, estimate_memory

TINY = ["model.name=resnet8", "model.image_size=16", "batch.global_size=16", "model.num_classes=10"]
ALONE = ["cluster.ranks_per_node=1", "cluster.communication.kind=none"]
ON_MXNET = [*TINY, *ALONE, "cluster.engine.name=mxnet"]


class _TwoRanks:
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

    def zeros(self, shape: tuple[int]) -> tuple[int]:
        return shape

    def product(self, left: Any, _right: object) -> float:
        return float(left.size * 1e-8)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    def overwrite(self, _target: object, _array: object) -> None:
        self.queued_s += 0.01


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _TwoRanks:
    machine = _TwoRanks()
    monkeypatch.setattr(bench_rank, "time", machine)
    return machine


def _rank(machine: Any) -> BenchRank:
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


def test_steps_between_others_last_from_the_loss_of_one_to_the_loss_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Engine(_TwoRanks):
        """An engine whose arrays are the moments at which they are computed; its last work ends at ``end_s``."""

        end_s = 107.0

        def wait(self, moment_s: float) -> None:
            self.now_s = max(self.now_s, moment_s)

        def wait_all(self) -> None:
            self.wait(self.end_s)

    engine = Engine()
    monkeypatch.setattr(bench_rank, "time", engine)
    asked: list[tuple[int, float]] = []

    def steps(number: int) -> float:
        asked.append((number, engine.now_s))
        loss_s: float = engine.end_s + 2.0 * number  # and 3 s of reductions that the loss does not wait for
        engine.end_s = loss_s + 3.0
        return loss_s

    assert _rank(engine).time_between_s(steps, 5) == 3.0 + 10.0
    assert asked == [(1, 107.0), (5, 109.0)], "the ranks have met, and the first step is done"
    assert engine.now_s == engine.end_s, "no reduction is under way when the process ends"


def test_peak_and_bandwidth_are_those_of_all_ranks(machine: _TwoRanks) -> None:
    # A product of square matrices of 1536 takes 1e-8 s an element; each of two ranks computes one after another.
    seconds = 1536**2 * 1e-8
    assert peak_operations_per_s(_rank(machine)) == pytest.approx(2 * 2 * 1536**3 / seconds)
    # A hundred copies a second, each of which reads and writes.
    assert copied_bytes_per_s(_rank(machine)) == pytest.approx(2 * 100 * 2 * (64 << 20))


def test_a_batch_has_labels_of_the_networks_classes() -> None:
    rank = open_rank(ON_MXNET)
    assert rank.batch.images.shape == (16, 3, 16, 16)
    assert rank.batch.labels.asnumpy().tolist() == [each % 10 for each in range(16)]


# step


def test_a_rank_alone_measures_a_step_and_its_rates_belong_together(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    peaks: list[float] = []

    def peak(rank: BenchRank) -> float:
        peaks.append(peak_operations_per_s(rank))
        return peaks[-1]

    monkeypatch.setattr(step_ours, "peak_operations_per_s", peak)
    step_ours.main("laptop", ON_MXNET, 0.0)
    found = read_samples(capfd.readouterr().out)
    (sample,) = found["step"]
    assert sample["images_per_s"] == pytest.approx(16e3 / sample["step_ms"])
    operations = 6 * build_network("resnet8", num_classes=10, image_size=16).macs * sample["images_per_s"]
    assert sample["gflop_per_s"] == pytest.approx(operations / 1e9)
    assert sample["peak_fraction"] == pytest.approx(operations / peaks[0])
    assert found["start"][0].keys() == {"warm_up_ms", "first_step_ms"}


class _Scripted:
    """A rank whose actions take the seconds that the test gives, one after another; it notes what they do."""

    def __init__(self, seconds: Sequence[float], **parts: Any) -> None:
        self._seconds = iter(seconds)
        self.told: list[Any] = []
        network = SimpleNamespace(
            network=SimpleNamespace(macs=50),
            forward=lambda *batch: self.told.append(batch),
            backward=lambda: self.told.append("backward"),
            inference=lambda: lambda _: None,
            unfolded_inference=lambda: lambda _: None,
        )
        optimizer = SimpleNamespace(update=self.told.append)
        usual = {
            "model": SimpleNamespace(network=network, optimizer=optimizer, buckets=None),
            "plan": SimpleNamespace(global_batch_size=16, per_rank_batch_size=3),
            "identity": SimpleNamespace(rank=0, world_size=1),
            "communicator": SimpleNamespace(gather=lambda _, own: [own]),
            "engine": "engine",
        }
        self.parts = SimpleNamespace(**{**usual, **parts})
        self.batch = SimpleNamespace(images="images", labels="labels")

    def time_s(self, action: Any) -> float:
        action()
        return next(self._seconds)


# allreduce


@pytest.mark.parametrize(("others_s", "expected"), [(0.0, (100.0, 1000.0, 2000.0)), (7.0, (7000.0,) * 3)])
def test_a_small_allreduce_is_the_mean_of_many_and_takes_as_long_as_on_the_slowest_rank(
    others_s: float, expected: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class BesideAnother(SingleProcess):
        def gather(self, name: str, value: int) -> list[int]:
            return [value, round(1e9 * others_s) if name == "took" else 0]

    ticks = itertools.count(0.0, 2.0)
    monkeypatch.setattr(allreduce_ours, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    monkeypatch.setattr(allreduce_ours, "connector", lambda _: lambda *_: BesideAnother())
    sizes = [4096, 16 << 20, 32 << 20]
    allreduce_ours.main("laptop", ["cluster.engine.name=mxnet", *ALONE], 3, sizes)
    found = {name: [each["allreduce_ms"] for each in rounds] for name, rounds in
             read_samples(capfd.readouterr().out).items()}  # fmt: skip
    assert found == {str(size): [ms] * 3 for size, ms in zip(sizes, expected, strict=True)}


# overlap

TRANSFERS = [
    Transfer(NONE),
    Transfer(SERIAL, 1 << 18),
    Transfer(OVERLAPPED, 1 << 16),
    Transfer(OVERLAPPED, 1 << 14, deferred=0.3),
]


@pytest.mark.parametrize(("rehearsal", "steps_that_work"), [(None, 4), ("waits", 3)])
def test_a_sample_of_a_transfer_is_a_steps_share_of_the_time_and_of_all_ranks_processors(
    rehearsal: object, steps_that_work: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On real arrays, one more step goes before the three that are timed, and works too."""
    moments = itertools.count(10.0, 12.0)
    monkeypatch.setattr(overlap_ours, "time", SimpleNamespace(process_time=lambda: next(moments)))
    seconds = iter(6.0 + number for number in range(12))
    parts = SimpleNamespace(
        cluster=SimpleNamespace(rehearsal=rehearsal),
        communicator=SimpleNamespace(gather=lambda _, own: [own, own]),
        identity=SimpleNamespace(rank=0),
    )
    asked: list[tuple[object, int]] = []

    def time_between_s(steps: Any, number: int) -> float:
        steps(number)
        return next(seconds)

    rank = SimpleNamespace(
        parts=parts, time_between_s=time_between_s, time_s=lambda action: (action(), next(seconds))[1]
    )
    monkeypatch.setattr(overlap_ours, "open_rank", lambda *_: rank)
    monkeypatch.setattr(
        overlap_ours, "transfer_steps", lambda _, transfer: lambda number: asked.append((transfer, number))
    )
    overlap_ours.main("r", "c", [], 2, 3, [each.name for each in TRANSFERS])
    found = {Transfer.parse(name): samples for name, samples in read_samples(capsys.readouterr().out).items()}
    # Three rounds of four, the second one in the opposite order; the first round does not count.
    taken = dict(zip(TRANSFERS, ((13, 14), (12, 15), (11, 16), (10, 17)), strict=True))
    processor_ms = 2 * 12_000 / steps_that_work
    assert found == {
        transfer: [pytest.approx({"step_ms": 1e3 * each / 3, "processor_ms": processor_ms}) for each in own]
        for transfer, own in taken.items()
    }
    assert asked == [(each, 3) for each in (*TRANSFERS, *TRANSFERS[::-1], *TRANSFERS)]


# roofline


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("_backward_Convolution", "convolution"),
        ("_backward_BatchNorm", "batch norm"),
        ("preloaded_multi_sgd_mom_update", "update"),
        ("multi_sum_sq", "update"),
        ("_backward_log_softmax", "classifier and loss"),
        ("CopyCPU2CPU", "copies"),
        ("_plus_scalar", "other"),
    ],
)
def test_operators_have_kinds(name: str, kind: str) -> None:
    assert roofline_ours.kind_of(Operator(name, 0, 1, is_communication=False)) == kind


class _Recorder:
    """An engine whose profiler has recorded these operators."""

    def __init__(self, recorded: Sequence[Operator]) -> None:
        self._recorded = recorded

    def begin_trace(self, _path: Path) -> None: ...

    def end_trace(self) -> None: ...

    def wait_all(self) -> None: ...

    def read_trace(self, _path: Path) -> Sequence[Operator]:
        return self._recorded


def _roofline(rank: Any, monkeypatch: pytest.MonkeyPatch, *, operators: bool) -> None:
    """Run the program on a rank whose steps are words: whose network, summed by what."""
    monkeypatch.setattr(roofline_ours, "open_rank", lambda *_, **_others: rank)
    monkeypatch.setattr(
        roofline_ours,
        "steps_of",
        lambda _, sums=None: lambda number: rank.told.append(("apart" if sums else "summed", number)),
    )
    roofline_ours.main([], 2, operators=operators)


def test_the_time_of_a_kind_is_that_of_the_operators_that_began_in_the_step_beside_the_floor_of_a_core(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    moments = itertools.count(1.0, 0.5)  # a step lasts half a second, and the next one begins half a second later
    monkeypatch.setattr(roofline_ours, "time", SimpleNamespace(time=lambda: next(moments)))
    recorded = [
        Operator(name, begin_us, begin_us + lasts_us, is_communication)
        for name, begin_us, lasts_us, is_communication in [
            ("Convolution", 999_999, 9, False),  # before the first step, which is apart on rank 0 alone
            ("Convolution", 1_000_000, 3000, False),
            ("_backward_Convolution", 1_499_999, 5000, False),
            ("Convolution", 1_500_000, 9, False),  # between
            ("odd", 2_000_000, 500, False),
            ("Convolution", 2_000_000, 4000, False),
            ("Convolution", 3_000_000, 9000, False),
            ("Convolution", 3_000_000, 7000, True),  # communication, which waits
            ("Convolution", 4_000_000, 1000, False),
            ("Convolution", 5_000_000, 2000, False),
            ("Convolution", 6_000_000, 4000, False),
        ]
    ]
    engine: Any = _Recorder(recorded)
    identity = SimpleNamespace(rank=0, world_size=2)
    rank: Any = _Scripted([9.0], identity=identity, engine=engine, communicator=SimpleNamespace(gather=lambda *_: [0]))
    rank.barrier = lambda: None
    rank.parts.model.network.network = build_network("resnet8", num_classes=10, image_size=16)
    monkeypatch.setattr(roofline_ours, "peak_operations_per_s", lambda _: 4e9)
    monkeypatch.setattr(roofline_ours, "copied_bytes_per_s", lambda _: 2e9)
    _roofline(rank, monkeypatch, operators=True)
    assert rank.told == [("summed", 1), *[("apart", 1), ("apart", 1), ("summed", 1)] * 2]
    found = read_samples(capsys.readouterr().out)
    assert found["core"] == [{"peak_gflop_per_s": 2.0, "copied_gb_per_s": 1.0}]
    assert found["other"] == [{"alone_ms": 0.0, "apart_ms": 0.5, "summed_ms": 0.0}, dict.fromkeys(
        ("alone_ms", "apart_ms", "summed_ms"), 0.0)]  # fmt: skip
    times = [{name: each[name] for name in ("alone_ms", "apart_ms", "summed_ms")} for each in found["convolution"]]
    assert times == [
        {"alone_ms": 8.0, "apart_ms": 4.0, "summed_ms": 9.0},
        {"alone_ms": 1.0, "apart_ms": 2.0, "summed_ms": 4.0},
    ]
    # Three images of resnet8's convolutions: forward, and backward to inputs and weights, at 2e9 operations a second.
    operations = 6 * sum(row.macs for row in rank.parts.model.network.network.layers if row.kind.name == "conv")
    floor = found["convolution"][1]["floor_ms"]
    assert 0.8 * 3e3 * operations / 2e9 < floor < 3 * 3e3 * operations / 2e9
    assert found["convolution"][1]["floor_share"] == pytest.approx(floor / 2.0)


# peers


def test_our_side_is_timed_after_its_warm_up_over_the_images_of_all_ranks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rank: Any = _Scripted([9.0, 2.5])
    source = SimpleNamespace(
        begin_epoch=lambda epoch: rank.told.append(("epoch", epoch)), close=lambda: rank.told.append("closed")
    )
    monkeypatch.setattr("train.dataset.images_of", lambda *_: SimpleNamespace(open_training=lambda _: source))

    def steps_of(_: Any, *, source: object) -> Any:
        rank.told.append("reads" if source else "memory")
        return rank.told.append

    monkeypatch.setattr(bench_rank, "steps_of", steps_of)
    rank.parts.recipe = rank.parts.cluster = None
    rank.reading_steps = lambda: BenchRank.reading_steps(rank)
    monkeypatch.setattr(ours, "open_rank", lambda *_, **_others: rank)
    ours.main([], 3, 10)
    assert rank.told == [("epoch", 1), "reads", 3, 10, "closed"]
    assert read_samples(capsys.readouterr().out) == {"ours": [{"images_per_s": 10 * 16 / 2.5}]}


# epoch


def test_gaps_are_distinguished_and_the_start_of_the_first_epoch_does_not_count() -> None:
    moments = [
        (EPOCH, 0.0),
        (BATCH, 5.0),
        (QUEUED, 6.0),
        (BATCH, 6.001),
        (QUEUED, 7.0),
        (EPOCH, 7.001),
        (BATCH, 7.003),
        (QUEUED, 8.0),
        (BATCH, 8.002),
        (QUEUED, 9.0),
        (BATCH, 9.009),
        (QUEUED, 9.5),
        (DRAINED, 10.0),
        (EVALUATING, 10.004),
        (EVALUATED, 12.004),
        (EPOCH, 12.005),
        (BATCH, 12.014),
        (QUEUED, 13.0),
    ]
    expected = {"between_steps_ms": 2, "between_epochs_ms": 3, "before_evaluation_ms": 4, "evaluation_s": 2,
                "after_evaluation_ms": 10}  # fmt: skip
    assert gaps(moments) == pytest.approx(expected)


@pytest.mark.medium
def test_a_real_run_marks_its_steps_epochs_and_evaluations_in_order(
    shared_digits: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second passes before every moment, and ten while a batch is read, so that the gaps tell what lies between."""
    machine = _TwoRanks()

    def composed(*given: Any, **others: Any) -> Any:
        rank = compose(*given, **others)
        assert rank.training is not None
        read = rank.training.next_batch

        def next_batch() -> Any:
            machine.now_s += 10.0
            return read()

        monkeypatch.setattr(rank.training, "next_batch", next_batch)
        return rank

    def perf_counter() -> float:
        machine.now_s += 1.0
        return machine.now_s

    monkeypatch.setattr("train.bench.programs.marks.time", SimpleNamespace(perf_counter=perf_counter))
    monkeypatch.setattr(epoch_ours, "compose", composed)
    monkeypatch.setattr(epoch_ours, "die_with_parent", lambda: None)
    place = [f"cluster.paths.data={shared_digits.parent}", *ALONE, "cluster.engine.name=mxnet"]
    sizes = ["model.name=resnet8", "model.image_size=8", "batch.global_size=599", "run.log_every_steps=1"]
    evaluations = ["run.epochs=3", "run.eval_every_epochs=2", "run.eval_first_epoch=2"]
    optimizer = "optimizer={name: sgd, momentum: 0.9, weight_decay: 0.0}"
    epoch_ours.main("digits", [*place, *sizes, *evaluations, optimizer])
    (found,) = read_samples(capfd.readouterr().out)["gaps"]
    assert found == {"between_steps_ms": 11_000, "between_epochs_ms": 12_000, "before_evaluation_ms": 1000,
                     "evaluation_s": 1, "after_evaluation_ms": 12_000}  # fmt: skip


def test_pythons_share_is_a_steps_milliseconds_with_every_tensor_of_resnet_50(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    reduced: list[int] = []

    class Counting(SingleProcess):
        def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
            reduced.append(len(arrays))

    moments = iter([10.0, 10.25])
    monkeypatch.setattr("train.bench.python_step.time", SimpleNamespace(perf_counter=lambda: next(moments)))
    assert python_step(5, Counting()) == {"python_step_ms": 50.0}
    assert sum(reduced) == 5 * (161 + 2), "the loss and the wish to stop are summed too"
    assert len(reduced) > 5, "in buckets, and not in one"
    assert caplog.messages == [], "the progress is told, which takes longer than the step"


# gpu

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="no PyTorch: ./run.sh setup --engine torch")


@needs_torch
@pytest.mark.parametrize(
    ("seconds", "asked", "samples"),
    [
        (0.001, [3, 1, 1], 1),  # at least one
        (8.0, [3, 1, 5, 5, 5, 5], 4),  # a quarter of the time in a sample, and one step more
    ],
)
@pytest.mark.parametrize("is_gpu", [True, False])
def test_a_sample_is_a_quarter_of_the_time_and_has_the_figures_of_one_step(
    seconds: float,
    asked: list[int],
    samples: int,
    is_gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from train.bench.programs import gpu_step

    recipe, cluster = load_both("digits", "laptop")
    plan = plan_run(recipe, cluster.world_size)
    rank: Any = _Scripted((), recipe=recipe, cluster=cluster, plan=plan)

    def time_s(action: Any) -> float:
        action()
        return float(0.5 * rank.told[-1])

    rank.time_s = time_s
    cuda = SimpleNamespace(is_available=lambda: is_gpu, max_memory_allocated=lambda: 12_345)
    backends = SimpleNamespace(cudnn=SimpleNamespace(), cuda=SimpleNamespace(matmul=SimpleNamespace()))
    monkeypatch.setattr(gpu_step, "torch", SimpleNamespace(backends=backends, cuda=cuda))
    monkeypatch.setattr(gpu_step, "open_rank", lambda *_: rank)
    monkeypatch.setattr(gpu_step, "steps_of", lambda _: rank.told.append)
    gpu_step.main("digits", [], seconds, is_tf32=False)
    assert rank.told == asked
    planned = estimate_memory(recipe, cluster, plan, network_of(recipe.model), estimate_input(recipe, cluster, plan))
    step = planned.weights_bytes + planned.gradients_bytes + planned.optimizer_bytes + planned.activations_bytes
    memory = {"memory_bytes": 12_345.0, "planned_bytes": float(step)} if is_gpu else {}
    figures = {"step_ms": 500.0, "images_per_s": plan.global_batch_size / 0.5, **memory}
    assert read_samples(capsys.readouterr().out) == {"step": [pytest.approx(figures)] * samples}


@needs_torch
@pytest.mark.parametrize("is_tf32", [True, False])
def test_products_have_fewer_bits_only_where_that_is_asked_for(is_tf32: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from train.bench.programs import gpu_step

    cudnn, matmul = SimpleNamespace(allow_tf32=None), SimpleNamespace(allow_tf32=None)
    backends = SimpleNamespace(cudnn=cudnn, cuda=SimpleNamespace(matmul=matmul))
    cuda = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setattr(gpu_step, "torch", SimpleNamespace(backends=backends, cuda=cuda))  # not this process's switches
    rank: Any = _Scripted(itertools.repeat(1.0))  # type: ignore[arg-type]
    monkeypatch.setattr(gpu_step, "open_rank", lambda *_: rank)
    monkeypatch.setattr(gpu_step, "steps_of", lambda _: rank.told.append)
    gpu_step.main("digits", [], 0.1, is_tf32=is_tf32)
    assert (cudnn.allow_tf32, matmul.allow_tf32) == (is_tf32, is_tf32)
