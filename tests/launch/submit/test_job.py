"""The commands of a job script around its ranks: attempts, runs that have ended, and exit statuses."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_both, load_cluster
from launch.restart import _dispensable, _on_which_hosts
from launch.submit import job
from launch.submit.job import MOVE, RESTART, begin, end, main
from logs.attempts import ATTEMPTS_FILE, Attempt, read_attempts
from logs.checkpoints import SavedState, resume_checkpoint, write
from logs.claims import holder, owned_by, take
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
    assert _names(run) == {"config.yaml", "job.sh", "environment.json", "attempt-1", "claims"}
    assert {"result_0.txt", "summary.json"} <= _names(run / "attempt-1")


def test_the_files_of_a_killed_job_are_closed_and_set_aside(run: Path) -> None:
    assert begin(run)
    (run / "result_0.txt").write_text(":::MLLOG {}\n", encoding="utf-8")
    assert begin(run)
    assert '"aborted"' in (run / "attempt-1" / "result_0.txt").read_text(encoding="utf-8")


def test_with_checkpoints_the_next_attempt_finds_everything_but_the_end(run: Path) -> None:
    write(run, 3, SavedState({}, {}), keep=1)
    for name in ("result_0.txt", "metrics.jsonl", "failure_0.json", "verdict.json"):
        (run / name).touch()
    assert end(run, 75, was_signalled=False) == 75
    assert begin(run)
    kept = {"config.yaml", "job.sh", "environment.json", "checkpoints", "goes-on-from", "result_0.txt", "metrics.jsonl"}
    kept |= {"claims"}
    assert _names(run) == kept
    assert resume_checkpoint(run) == run / "checkpoints" / "step-00000003.ckpt"


def test_a_run_that_has_ended_is_not_started_again_whatever_its_result(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_summary(run, Summary("digits", "aborted", failure="loss not finite"))
    assert not begin(run)
    assert capsys.readouterr().err.endswith(": the run ended in an earlier attempt of this job\n")
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


def test_a_second_job_script_does_not_touch_the_folder_of_a_living_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        assert begin(run, script=first.pid)
        (run / "result_0.txt").write_text(":::MLLOG {}\n", encoding="utf-8")
        before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
        with pytest.raises(UserError, match=f"a run is going on in it: .* process {first.pid}, since"):
            begin(run, script=second.pid)
        assert end(run, 143, was_signalled=True, script=second.pid) == 2
        assert f"process {first.pid}" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
        assert end(run, 143, was_signalled=True, script=first.pid) == 75
        assert begin(run, script=second.pid)
        first.kill()
        second.kill()


def test_a_run_that_ended_while_a_job_waited_is_not_started_and_nobody_holds_it(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_late(folder: Path, **options: Any) -> Path:
        write_summary(run, Summary("digits", "success", steps=9))
        return take(folder, **options)

    monkeypatch.setattr(job, "take", take_late)
    assert not begin(run)
    assert holder(run) is None


def _with_restarts(run: Path, *overrides: str) -> None:
    (run / "config.yaml").write_text(dump(*load_both("digits", "laptop", list(overrides))), encoding="utf-8")


def test_a_failed_run_is_started_again_while_it_keeps_steps_and_no_oftener_than_allowed(run: Path) -> None:
    _with_restarts(run, "cluster.scheduler.max_restarts=2")
    for step in (3, 5):
        assert begin(run)
        write(run, step, SavedState({}, {}), keep=2)
        assert end(run, 137, was_signalled=False) == RESTART
        assert "summary.json" not in _names(run)
        assert owned_by(run, os.getpid()), "no other job may take the folder before the ranks start again"
    assert begin(run)
    write(run, 9, SavedState({}, {}), keep=1)
    assert end(run, 137, was_signalled=False) == 1
    assert holder(run) is None
    assert [(each.from_step, each.kept_step, each.goes_on) for each in read_attempts(run)] == [
        (0, 3, True), (3, 5, True), (5, 9, False),
    ]  # fmt: skip
    assert not begin(run)


def test_a_run_that_keeps_no_step_twice_is_not_started_again(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with_restarts(run, "cluster.scheduler.max_restarts=9")
    for status in (RESTART, 1):
        assert begin(run)
        assert end(run, 1, was_signalled=False) == status
    assert "no restart: 2 attempts in a row kept no step after step 0" in capsys.readouterr().err


def test_a_job_that_keeps_no_step_is_queued_again_once_and_stays_resumable(run: Path) -> None:
    for status in (75, 1):
        assert begin(run)
        assert end(run, 75, was_signalled=True, is_near_limit=True) == status
    assert begin(run)


def test_a_job_that_was_lost_twice_without_a_step_is_not_continued(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    for number in range(3):
        with subprocess.Popen(["sleep", "60"]) as script:
            assert begin(run, script=script.pid) is (number < 2)
            script.kill()
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert "lost with its node; not continued: 2 attempts in a row kept no step" in summary["failure"]


@pytest.mark.parametrize(("is_near_limit", "again"), [(False, "began it again"), (True, "time was over")])
def test_a_stop_that_the_scheduler_continues_is_one_attempt(
    run: Path, monkeypatch: pytest.MonkeyPatch, is_near_limit: bool, again: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert begin(run)
    write(run, 3, SavedState({}, {}), keep=1)
    assert end(run, 143, was_signalled=True, is_near_limit=is_near_limit) == 75
    assert begin(run)
    (attempt,) = read_attempts(run)
    assert (attempt.outcome, attempt.kept_step, attempt.goes_on) == ("stopped", 3, True)
    assert again in attempt.cause
    # Another job is another start by hand.
    assert end(run, 143, was_signalled=True) == 75
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert begin(run)
    assert len(read_attempts(run)) == 1


@pytest.mark.parametrize(
    ("hosts", "status", "words", "left"),
    [
        (["any"], MOVE, ", without node2, which failed twice", "node2"),
        (["node1.site", "node2.site", "spare.site"], MOVE, ", without node2.site, which failed twice", "node2.site"),
        (["node1", "node2"], RESTART, ", on the same hosts, although node2 failed twice", ""),
        (["node1", "other", "spare"], RESTART, ", on the same hosts, although node2 failed twice", ""),
        ([], RESTART, ", on the same hosts, although node2 failed twice", ""),
    ],
)
def test_a_host_that_failed_twice_is_left_out_if_there_are_others(
    run: Path, hosts: list[str], status: int, words: str, left: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_restarts(run, "cluster.scheduler.max_restarts=9", "cluster.num_nodes=2", "cluster.launcher=srun")
    row = {"rank": 1, "host": "node2", "step": 3, "message": "broke", "second_hand": False, "status": 1, "time": 1.0}
    for step, expected in ((3, RESTART), (5, status)):
        assert begin(run)
        write(run, step, SavedState({}, {}), keep=1)
        (run / "failure_1.json").write_text(json.dumps(row), encoding="utf-8")
        assert end(run, 1, was_signalled=False, hosts=hosts) == expected
        assert (holder(run) is None) is (expected == MOVE)
    assert words in capsys.readouterr().err
    assert main(["left-out", str(run)]) == 0
    assert capsys.readouterr().out.split() == left.split()
    # A host that is left out already, and whose old failures still count, is not left out once more.
    write(run, 9, SavedState({}, {}), keep=1)
    (run / "failure_1.json").write_text(json.dumps({**row, "host": "node1"}), encoding="utf-8")
    assert end(run, 1, was_signalled=False, hosts=hosts) == RESTART


@pytest.mark.parametrize(("said", "listed"), [("node2.site", "node2"), ("node2", "node2.site"), ("node2", "node2")])
def test_a_host_may_be_listed_by_a_longer_or_shorter_name_than_its_own(said: str, listed: str) -> None:
    assert _dispensable([said, "strange.site"], ["node1", listed, "spare"], 2) == [listed]
    assert _dispensable([said], ["node1", listed], 2) == []


def test_a_job_that_lost_its_folder_leaves_it_to_the_other_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as script:
        assert begin(run, script=script.pid)
        (run / "claims" / "2.json").write_text("{}", encoding="utf-8")
        before = _names(run)
        assert end(run, 0, was_signalled=False, script=script.pid) == 1
        assert capsys.readouterr().err.endswith(": the folder has another owner now, and is left to it\n")
        assert _names(run) == before
        script.kill()


def test_the_commands_of_a_job_script_have_the_statuses_that_it_reads(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["begin", str(run)]) == 0
    monkeypatch.setattr(job, "begin", lambda *_, **__: False)
    assert main(["begin", str(run)]) == 1
    monkeypatch.undo()
    for words in (
        ["end", str(run)],
        ["end", str(run), "--status", "0"],
        ["begin"],
        ["begin", str(run), "--status", "0"],
    ):
        assert main(words) == 2
    assert capsys.readouterr().err.count("error: ") == 4
    for status, signals in ((75, 0), (1, 1), (143, 2)):
        assert main(["end", str(run), "--status", str(status), "--signals", str(signals)]) == 75
    assert main(["left-out", str(run)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("nodes", "hosts", "left", "words"),
    [
        (2, "ab", "", ""),
        (2, "aa", "", ", on the same hosts, although a failed twice: there is no host to put in its place"),
        (2, "aa", "a", ", without a, which failed twice"),
        (1, "aa", "", ""),
    ],
)
def test_a_restart_tells_what_becomes_of_hosts_that_failed_twice(
    nodes: int, hosts: str, left: str, words: str, tmp_path: Path
) -> None:
    attempts = [Attempt("now", "failed", "broke", host, 0, 1, goes_on=True, leaves_out=[*left]) for host in hosts]
    lines = [json.dumps(asdict(attempt)) + "\n" for attempt in attempts]
    (tmp_path / ATTEMPTS_FILE).write_text("".join(lines), encoding="utf-8")
    cluster = load_cluster("laptop", [f"cluster.num_nodes={nodes}", "cluster.launcher=srun"])
    assert _on_which_hosts(tmp_path, cluster) == words
