"""The commands of a job script around its ranks: attempts, runs that have ended, and exit statuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from configs.load import dump, load_both
from launch.submit.job import begin, end
from logs.checkpoints import SavedState, resume_checkpoint, write
from logs.folder import Summary, write_summary


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a submitted run."""
    (tmp_path / "config.yaml").write_text(dump(*load_both("digits", "laptop")), encoding="utf-8")
    (tmp_path / "job.sh").touch()
    return tmp_path


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_stopped_run_is_aborted_in_its_log_and_begun_again_with_the_attempt_set_aside(run: Path) -> None:
    assert begin(run)
    (run / "result_0.txt").write_text(":::MLLOG {}\n", encoding="utf-8")
    assert end(run, 137, was_signalled=True) == 75
    assert '"run_stop"' in (run / "result_0.txt").read_text(encoding="utf-8")
    assert json.loads((run / "summary.json").read_text(encoding="utf-8"))["status"] == "aborted"
    assert begin(run)
    assert _names(run) == {"config.yaml", "job.sh", "environment.json", "attempt-1"}
    assert {"result_0.txt", "summary.json"} <= _names(run / "attempt-1")


def test_the_files_of_a_killed_job_are_closed_and_set_aside(run: Path) -> None:
    assert begin(run)
    (run / "result_0.txt").write_text(":::MLLOG {}\n", encoding="utf-8")
    assert begin(run)
    assert '"aborted"' in (run / "attempt-1" / "result_0.txt").read_text(encoding="utf-8")


def test_with_checkpoints_the_next_attempt_finds_everything_but_the_end(run: Path) -> None:
    write(run, 3, SavedState({}, {}), keep=1)
    for name in ("result_0.txt", "metrics.jsonl", "failure_0.json"):
        (run / name).touch()
    assert end(run, 75, was_signalled=False) == 75
    assert begin(run)
    kept = {"config.yaml", "job.sh", "environment.json", "checkpoints", "goes-on-from", "result_0.txt", "metrics.jsonl"}
    assert _names(run) == kept
    assert resume_checkpoint(run) == run / "checkpoints" / "step-00000003.ckpt"


def test_a_run_that_has_ended_is_not_started_again_whatever_its_result(run: Path) -> None:
    write_summary(run, Summary("digits", "aborted", failure="loss not finite"))
    assert not begin(run)
    assert end(run, 0, was_signalled=False) == 1


@pytest.mark.parametrize(("was_signalled", "status"), [(True, 0), (False, 1)])
def test_a_success_stays_a_success_if_a_late_signal_killed_the_launcher(
    run: Path, was_signalled: bool, status: int
) -> None:
    write_summary(run, Summary("digits", "success", resumed_from_step=3))
    (run / "result_0.txt").touch()
    assert end(run, 143, was_signalled=was_signalled) == status


def test_a_failed_launcher_is_a_failed_run_and_a_run_that_never_started_is_no_success(run: Path) -> None:
    assert end(run, 0, was_signalled=False) == 1
    assert "status 0" in json.loads((run / "summary.json").read_text(encoding="utf-8"))["failure"]


def test_ranks_that_refused_keep_their_folder(run: Path) -> None:
    assert end(run, 2, was_signalled=False) == 2
    assert "summary.json" not in _names(run)


def test_ranks_that_ended_with_the_status_of_a_refusal_after_their_run_had_begun_have_failed(run: Path) -> None:
    write_summary(run, Summary("digits", "aborted", failure="rank 1 failed"))
    assert end(run, 2, was_signalled=False) == 1
