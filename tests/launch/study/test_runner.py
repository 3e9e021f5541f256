"""The runner of studies, with tasks that are numbers: what it starts, keeps, records and returns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launch.study.runner import Task, run_study


def _number(
    value: int, status: int | None = 0, *, is_done: bool = False, can_go_on: bool = True, is_lost: bool = False
) -> Task[int]:
    """Return a task that ends with a status, and has a result after status 0 unless it is lost."""
    found = [value] if is_done else []

    def start() -> int | None:
        assert not found, "a finished task must not run again"
        if status == 0 and not is_lost:
            found.append(value)
        return status

    return Task(
        Path(f"/runs/{value}"),
        read=lambda: found[0] if found else None,
        start=start,
        describe=lambda result: "to run" if result is None else str(result),
        failure=-value if can_go_on else None,
    )


@dataclass
class _Numbers:
    """Two stages, of which the second depends on the results of the first."""

    first: list[Task[int]]
    results: list[int] = field(default_factory=list)
    is_finished: bool = False

    def _stages(self) -> Iterator[Sequence[Task[int]]]:
        yield self.first
        yield [_number(10 * sum(self.results))]

    def _finish(self) -> None:
        self.is_finished = True

    def run(self, *, is_dry_run: bool = False) -> int:
        return run_study(self._stages(), self.results.append, self._finish, is_dry_run=is_dry_run)


def test_finished_tasks_are_kept_and_a_later_stage_sees_the_results_of_the_earlier_one() -> None:
    study = _Numbers([_number(1, is_done=True), _number(2)])
    assert study.run() == 0
    assert (study.results, study.is_finished) == ([1, 2, 30], True)


def test_a_dry_run_lists_every_task_records_what_is_known_and_starts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    study = _Numbers([_number(1, is_done=True), _number(2)])
    assert study.run(is_dry_run=True) == 0
    assert (study.results, study.is_finished) == ([1], False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["1/2", "1", "1"],
        ["2/2", "2", "to", "run"],
        ["1/1", "10", "to", "run"],
    ]


@pytest.mark.parametrize("status", [1, 128])
def test_a_task_that_failed_is_recorded_as_such_and_the_others_are_run(status: int) -> None:
    study = _Numbers([_number(1, status), _number(2)])
    assert study.run() == 1
    assert (study.results, study.is_finished) == ([-1, 2, 10], True)


@pytest.mark.parametrize(
    ("status", "can_go_on", "returned"),
    [(143, True, 143), (129, True, 129), (75, True, 75), (1, False, 1), (0, False, 1), (3, False, 3)],
)
def test_a_signal_or_a_failure_that_the_study_needs_the_result_of_ends_the_study(
    status: int, can_go_on: bool, returned: int
) -> None:
    study = _Numbers([_number(1), _number(2, status, can_go_on=can_go_on, is_lost=True), _number(3)])
    assert study.run() == returned
    assert (study.results, study.is_finished) == ([1], False)


def test_a_task_in_a_schedulers_queue_is_neither_a_result_nor_a_failure() -> None:
    study = _Numbers([_number(1, None), _number(2)])
    assert study.run() == 0
    assert study.results == [2, 20]
