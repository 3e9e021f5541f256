"""The runner of studies, with tasks that are numbers: what it starts, keeps, records and returns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launch.study.runner import StudyTask, run_study


@dataclass
class _Number:
    """A task that ends with a status, after which it has a result or none."""

    value: int
    status: int | None = 0
    is_done: bool = False
    can_go_on: bool = True

    @property
    def folder(self) -> Path:
        return Path(f"/runs/{self.value}")

    def read(self) -> int | None:
        return self.value if self.is_done else None

    def start(self) -> int | None:
        assert not self.is_done, "a finished task must not run again"
        self.is_done = self.status == 0
        return self.status

    def describe(self, result: int | None) -> str:
        return "to run" if result is None else str(result)

    def failure(self) -> int | None:
        return -self.value if self.can_go_on else None


@dataclass
class _Numbers:
    """Two stages, of which the second depends on the results of the first."""

    first: list[_Number]
    results: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    is_finished: bool = False

    def stages(self) -> Iterator[Sequence[StudyTask[int]]]:
        yield self.first
        yield [_Number(10 * sum(self.results))]

    def record(self, result: int) -> None:
        self.results.append(result)

    def save(self) -> None:
        self.saved.append(len(self.results))

    def finish(self) -> None:
        self.is_finished = True


def test_finished_tasks_are_kept_and_a_later_stage_sees_the_results_of_the_earlier_one() -> None:
    study = _Numbers([_Number(1, is_done=True), _Number(2)])
    assert run_study(study, is_dry_run=False) == 0
    assert (study.results, study.saved, study.is_finished) == ([1, 2, 30], [1, 2, 3], True)


def test_a_dry_run_lists_every_task_records_what_is_known_and_writes_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _Numbers([_Number(1, is_done=True), _Number(2)])
    assert run_study(study, is_dry_run=True) == 0
    assert (study.results, study.saved, study.is_finished) == ([1], [], False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["1/2", "1", "1"],
        ["2/2", "2", "to", "run"],
        ["1/1", "10", "to", "run"],
    ]


def test_a_task_that_failed_is_recorded_as_such_and_the_others_are_run() -> None:
    study = _Numbers([_Number(1, status=1), _Number(2)])
    assert run_study(study, is_dry_run=False) == 1
    assert (study.results, study.is_finished) == ([-1, 2, 10], True)


@pytest.mark.parametrize(
    ("status", "can_go_on", "returned"), [(143, True, 143), (75, True, 75), (1, False, 1), (0, False, 1), (3, False, 3)]
)
def test_a_signal_or_a_failure_that_the_study_needs_the_result_of_ends_the_study(
    status: int, can_go_on: bool, returned: int
) -> None:
    stopping = _Number(2, status=status, can_go_on=can_go_on)
    stopping.read = lambda: None  # type: ignore[method-assign]
    study = _Numbers([_Number(1), stopping, _Number(3)])
    assert run_study(study, is_dry_run=False) == returned
    assert (study.results, study.is_finished) == ([1], False)


def test_a_task_in_a_schedulers_queue_is_neither_a_result_nor_a_failure() -> None:
    study = _Numbers([_Number(1, status=None), _Number(2)])
    assert run_study(study, is_dry_run=False) == 0
    assert study.results == [2, 20]


def test_a_status_of_128_is_that_of_no_signal_and_the_study_goes_on() -> None:
    study = _Numbers([_Number(1, status=128), _Number(2)])
    assert run_study(study, is_dry_run=False) == 1
    assert study.results == [-1, 2, 10]
