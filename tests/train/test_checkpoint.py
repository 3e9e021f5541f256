"""What a run keeps of its state and when, and what a resumed rank gets back of it; real files, no training."""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from configs.errors import UserError
from configs.load import load_recipe
from configs.plan import Position, plan_run
from logs.checkpoints import CheckpointFolder, SavedState, read
from logs.folder import RunFolder
from tests.failing_reads import failing_reads
from tests.programs import python
from train.best_checkpoint import BestMark
from train.checkpoint import Checkpoints, CheckpointWriter, InitialState
from train.comm.communicator import SingleProcess
from train.evaluate import Score

SETTINGS = {"run": {"seed": 1}}
PLAN = plan_run(load_recipe("digits"), 2)
WEIGHTS: dict[str, np.ndarray] = {
    "stem_weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([7], np.float32),
}
STATISTICS: dict[str, np.ndarray] = {
    "bn_moving_mean": np.array([1, 2], np.float32),
    "bn_moving_var": np.array([3, 4], np.float32),
}
MOMENTA: list[np.ndarray] = [np.array([[0.5, 1.5]], np.float32), np.array([2.5], np.float32)]


class Parts:
    """Engine, network, optimizer and source of a rank, and its model, whose arrays are NumPy's."""

    def __init__(self) -> None:
        self.momenta = [each.copy() for each in MOMENTA]
        self.parts = ()

    @property
    def engine(self) -> "Parts":
        return self

    network = optimizer = engine

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def from_host(self, array: np.ndarray) -> np.ndarray:
        return array

    def overwrite(self, target: np.ndarray, source: np.ndarray) -> None:
        target[:] = source

    def read_weights(self) -> Mapping[str, np.ndarray]:
        return WEIGHTS

    def read_statistics(self) -> Mapping[str, np.ndarray]:
        return STATISTICS

    def to_oihw(self, stored: np.ndarray) -> np.ndarray:
        return stored.T

    from_oihw = to_oihw

    def state(self) -> bytes:
        return b"where rank 0 reads"


class TwoRanks(SingleProcess):
    """Gathers what rank 1 has beside rank 0's."""

    def __init__(self) -> None:
        self.gathered: list[str] = []

    def gather_bytes(self, name: str, content: bytes) -> list[bytes]:
        self.gathered.append(name)
        if "statistics" in name:
            return [content, (10 * np.frombuffer(content, np.float32)).tobytes()]
        return [content, content and b"where rank 1 reads"]

    def gather(self, name: str, value: int) -> list[int]:
        self.gathered.append(name)
        return [value, value]


def _checkpoints(
    folder: Path,
    every: int | None = 2,
    keep: int = 2,
    writer: Any = None,
    on_save: Callable[[], object] = lambda: None,
) -> tuple[Checkpoints, TwoRanks]:
    parts, communicator = cast(Any, Parts()), TwoRanks()
    folder.mkdir(exist_ok=True)
    return Checkpoints(
        parts, communicator,
        writer or CheckpointWriter(CheckpointFolder(folder), keep), SETTINGS, every,
        saved=Position(1, 0), on_save=on_save,
    ), communicator  # fmt: skip


def _steps(folder: Path) -> list[int]:
    return sorted(int(path.stem.partition("-")[2]) for path in RunFolder(folder).checkpoints.files())


def _evaluate(checkpoints: Checkpoints, epochs: Sequence[int]) -> None:
    for epoch in epochs:
        checkpoints.evaluated(cast(Any, Parts()), Position(epoch, 19 * (epoch - 1)))
    checkpoints.writer.wait()


@pytest.mark.parametrize(
    ("every", "evaluated", "kept"),
    [(1, [2, 3, 4], [19, 38, 57]), (2, [2, 3, 4, 5], [38, 76]), (3, [3, 5, 6, 9], [76, 152]), (None, [2, 3, 4], [])],
)
def test_a_checkpoint_is_due_so_many_epochs_after_the_last(
    tmp_path: Path, every: int | None, evaluated: list[int], kept: list[int]
) -> None:
    checkpoints, _ = _checkpoints(tmp_path, every, keep=9)
    _evaluate(checkpoints, evaluated)
    assert _steps(tmp_path) == kept


def test_the_first_of_the_best_evaluations_has_a_checkpoint_that_no_later_one_removes(tmp_path: Path) -> None:
    checkpoints, _ = _checkpoints(tmp_path, every=None, keep=1)
    checkpoints.mark = BestMark(marks=True)
    folder, source = CheckpointFolder(tmp_path), cast(Any, Parts())
    scores = [Score("top-1", value, {"top1": value}, "") for value in (0.5, 0.7, 0.6, 0.7)]
    for epoch, score in enumerate(scores, start=1):
        checkpoints.evaluated(source, Position(epoch + 1, 19 * epoch), score)
    checkpoints.stopped(source, Position(5, 80))
    expected = {"best": {"epoch": 2, "step": 38, "top1": 0.7, "checkpoint": "best-step-00000038.ckpt"}}
    assert _steps(tmp_path) == [80]
    kept = tmp_path / "checkpoints" / "best-step-00000038.ckpt"
    assert (checkpoints.mark.summed_up(folder), folder.marked()) == (expected, kept)

    again, _ = _checkpoints(tmp_path, every=None, keep=1)
    again.mark = BestMark(marks=True, resumed=_origin(tmp_path).checkpoint)
    again.finished(Position(6, 95), score=scores[1])
    assert again.mark.summed_up(folder) == expected
    again.finished(Position(6, 95), score=Score("top-1", 0.71, {"top1": 0.71}, ""))
    assert not kept.exists()
    assert folder.marked() == tmp_path / "checkpoints" / "best-step-00000095.ckpt"
    told = {"epoch": 5, "step": 95, "top1": 0.71, "checkpoint": "best-step-00000095.ckpt"}
    assert again.mark.summed_up(folder) == {"best": told}
    assert checkpoints.mark.summed_up(folder) == {}, "its file was written, and is gone"
    assert BestMark().of(Position(6, 95), scores[1]) is None
    assert BestMark(resumed=_origin(tmp_path).checkpoint).of(Position(7, 114), scores[1]) is None, "0.71 was better"
    better = Score("top-1", 0.72, {"top1": 0.72}, "")
    assert BestMark(resumed=_origin(tmp_path).checkpoint).of(Position(7, 114), better) == "best"


@pytest.mark.medium
def test_the_end_of_a_run_that_marks_nothing_does_not_depend_on_a_list_of_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    code = (
        "import sys; from pathlib import Path; from logs.checkpoints import CheckpointFolder; "
        "from train.best_checkpoint import BestMark; print(BestMark().summed_up(CheckpointFolder(Path(sys.argv[1]))))"
    )
    variables = failing_reads(tmp_path, "opendir", tmp_path / "checkpoints", errno.EIO, once=False)
    done = python("-c", code, str(tmp_path), env=variables)
    assert done.stdout == "{}\n", done.stderr


def _origin(folder: Path, settings: Mapping[str, Any] = SETTINGS) -> InitialState:
    return InitialState.read(RunFolder(folder).checkpoints.files()[0], settings, PLAN)


def test_another_number_of_ranks_takes_the_mean_of_the_statistics_and_begins_the_images_anew(tmp_path: Path) -> None:
    checkpoints, _ = _checkpoints(tmp_path)
    checkpoints.stopped(cast(Any, Parts()), Position(3, 45))
    assert [_origin(tmp_path).source_state(rank) for rank in range(2)] == [b"where rank 0 reads", b"where rank 1 reads"]
    origin = InitialState.read(RunFolder(tmp_path).checkpoints.files()[0], SETTINGS, plan_run(load_recipe("digits"), 4))
    for rank in range(4):
        given = origin.weights(rank)
        assert given is not None
        np.testing.assert_array_equal(given["bn_moving_mean"], 5.5 * STATISTICS["bn_moving_mean"])
        assert origin.source_state(rank) == b""


def test_a_run_that_changed_twice_tells_of_both_changes(tmp_path: Path) -> None:
    checkpoints, _ = _checkpoints(tmp_path)
    checkpoints.fixed_settings, checkpoints.changes = {"run": {"epochs": 6}}, ("2 ranks instead of 1",)
    checkpoints.finished(Position(4, 57))
    first, second = _origin(tmp_path, {"run": {"epochs": 8}}).changes
    assert (first, second.partition(":")[0]) == ("2 ranks instead of 1", "8 epochs instead of 6")


@pytest.mark.parametrize(
    ("keep", "epoch", "ending"),
    [
        # Before the network of the end was kept: no step is left of the last epoch, and its evaluation ends the run.
        (lambda checkpoints: _evaluate(checkpoints, [7]), 6, None),
        (lambda checkpoints: checkpoints.finished(Position(7, 114)), 6, "had ended after step 114"),
        (lambda checkpoints: checkpoints.finished(Position(4, 114)), 3, "had ended after step 114"),
        (lambda checkpoints: checkpoints.finished(Position(4, 114), "stuck at chance"), 3, "stuck at chance"),
    ],
)
def test_a_run_that_lacks_only_its_summary_continues_with_its_last_evaluation(
    keep: Callable[[Checkpoints], object], epoch: int, ending: str | None, tmp_path: Path
) -> None:
    checkpoints, _ = _checkpoints(tmp_path, every=1)
    checkpoints.fixed_settings = {"run": {"epochs": 6}}
    keep(checkpoints)
    origin = _origin(tmp_path, {"run": {"epochs": 6}})
    assert origin.position == Position(epoch, 114)
    assert (ending or "None") in str(origin.ending)
    longer = plan_run(load_recipe("digits", ["run.epochs=9"]), 2)
    path = RunFolder(tmp_path).checkpoints.files()[0]
    assert InitialState.read(path, {"run": {"epochs": 9}}, longer).ending is None, "more epochs are trained"


def test_a_disk_in_trouble_costs_one_checkpoint_and_ends_a_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    folder = tmp_path / "run"
    refused: list[int] = []

    class FullOnce(CheckpointFolder):
        def write(self, step: int, *given: Any, **options: Any) -> Path:
            if not refused:
                refused.append(step)
                raise UserError("cannot be written: the disk is full")
            return super().write(step, *given, **options)

    writer = CheckpointWriter(FullOnce(folder), 2)
    checkpoints, _ = _checkpoints(folder, every=1, writer=writer)
    checkpoints.evaluated(cast(Any, Parts()), Position(2, 19))
    stall_s = checkpoints.stall_s
    assert stall_s > 0
    checkpoints.evaluated(cast(Any, Parts()), Position(3, 38))
    writer.wait()
    assert _steps(folder) == [38], "written although the one before was not"
    assert checkpoints.stall_s > stall_s
    shutil.rmtree(folder)
    assert "step-00000113.ckpt: cannot be written" in str(checkpoints.finished(Position(7, 113)))
    assert caplog.messages == ["no checkpoint after step 19: cannot be written: the disk is full"]
    assert refused == [19]
    with pytest.raises(UserError, match=r"step-00000025\.ckpt: cannot be written: No such file"):
        checkpoints.stopped(cast(Any, Parts()), Position(2, 25))


def test_the_checkpoint_after_the_last_evaluation_has_the_trained_network_too(tmp_path: Path) -> None:
    class FullAtTheEnd(CheckpointFolder):
        def write(self, *given: Any, **options: Any) -> Path:
            if self.files():
                raise UserError("cannot be written: the disk is full")
            return super().write(*given, **options)

    writer = CheckpointWriter(FullAtTheEnd(tmp_path), 2)
    checkpoints, _ = _checkpoints(tmp_path, every=1, writer=writer)
    checkpoints.evaluated(cast(Any, Parts()), Position(6, 95))
    assert checkpoints.finished(Position(6, 95)) is None
    assert "the disk is full" in str(checkpoints.finished(Position(7, 114)))
    assert _steps(tmp_path) == [95]


def test_ranks_leave_only_when_rank_0_has_written_the_state(tmp_path: Path) -> None:
    on_disk: list[list[int]] = []

    class Watching(TwoRanks):
        def gather(self, name: str, value: int) -> list[int]:
            on_disk.append(_steps(tmp_path))
            return super().gather(name, value)

    checkpoints, _ = _checkpoints(tmp_path)
    checkpoints.communicator = Watching()
    checkpoints.stopped(cast(Any, Parts()), Position(3, 45))
    assert on_disk == [[45]]


def test_the_state_is_taken_before_training_goes_on(tmp_path: Path) -> None:
    taken: list[str] = []

    def collect() -> SavedState:
        taken.append(threading.current_thread().name)
        return SavedState({"step": 7}, {})

    writer = CheckpointWriter(CheckpointFolder(tmp_path), 2)
    writer.write(7, collect)
    assert taken == [threading.current_thread().name], "another thread would find the weights of later steps"
    writer.wait()
    assert _steps(tmp_path) == [7]


SHAPES = {name: array.shape for name, array in {**WEIGHTS, **STATISTICS}.items()}


def _without(name: str) -> Callable[[SavedState], SavedState]:
    return lambda state: SavedState(state.meta, {key: each for key, each in state.arrays.items() if key != name})


def _with(name: str, values: Any) -> Callable[[SavedState], SavedState]:
    return lambda state: SavedState(state.meta, {**state.arrays, name: np.asarray(values)})


def _saying(**told: Any) -> Callable[[SavedState], SavedState]:
    return lambda state: SavedState({**state.meta, **told}, state.arrays)


def test_a_checkpoint_of_another_run_is_refused_with_both_remedies(tmp_path: Path) -> None:
    checkpoints, _ = _checkpoints(tmp_path)
    checkpoints.stopped(cast(Any, Parts()), Position(3, 45))
    with pytest.raises(UserError) as refusal:
        InitialState.read(RunFolder(tmp_path).checkpoints.files()[0], {"run": {"seed": 2}}, PLAN, SHAPES)
    told = str(refusal.value)
    assert "step-00000045.ckpt: run.seed: got 2, the run of this checkpoint was started with 1; " in told
    assert told.endswith("; if the checkpoint is another run's, move it away")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: SavedState({}, state.arrays), "it does not say of which run"),
        (_saying(settings=[1]), "it does not say of which run"),
        (_saying(epoch="two"), "it says epoch 'two', step 45"),
        (_saying(epoch=-5), "it says epoch -5, step 45"),
        (_saying(step=10**9), "it says epoch 3, step 1000000000"),
        (_saying(settings={**SETTINGS, "cluster": {"num_nodes x ranks_per_node": 4}}), "the states of 2 ranks only"),
        (_without("weights/b"), r"b is missing, wanted \(1,\)"),
        (_with("weights/b", [1.0, 2.0]), r"b is \(2,\), wanted \(1,\)"),
        (_with("weights/b", ["text"]), "weights/b has no real numbers"),
        (_with("weights/other", [1.0]), r"other is \(1,\), wanted nothing"),
        (_with("statistics/bn_moving_var", np.zeros((0, 2))), "bn_moving_var are those of no rank"),
        (_with("statistics/bn_moving_var", 1.0), "bn_moving_var are those of no rank"),
        (_without("momenta/0"), "the optimizer's state has other shapes"),
        (_with("momenta/2", [1.0]), "the optimizer's state has other shapes"),
    ],
)
def test_what_is_written_as_a_checkpoint_is_and_holds_something_else_is_refused_in_one_line(
    tmp_path: Path, spoil: Callable[[SavedState], SavedState], words: str
) -> None:
    checkpoints, _ = _checkpoints(tmp_path)
    checkpoints.stopped(cast(Any, Parts()), Position(3, 45))
    folder, parts = RunFolder(tmp_path).checkpoints, Parts()
    given = {**SETTINGS, "cluster": {"num_nodes x ranks_per_node": 2}} if "ranks" in words else SETTINGS
    folder.write(45, spoil(read(folder.files()[0])), keep=1)
    with pytest.raises(
        UserError, match=rf"step-00000045\.ckpt: is no checkpoint of this run \([^\n]*{words}[^\n]*\); move"
    ):
        InitialState.read(folder.files()[0], given, PLAN, SHAPES).restore_optimizer(cast(Any, parts))
