"""The commands of a job script around its ranks: attempts, runs that have ended, and exit statuses."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from configs.load import dump, load_both
from launch.submit.job import MOVE, RESTART, begin, end, main
from logs.checkpoints import SavedState
from logs.claims import Claim, Claims
from logs.folder import RunFolder, Summary
from logs.nodes import NodeScore, write_nodes
from tests.logs import samples
from tests.programs import Said, run_program
from tests.runs import begin_logs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a submitted run."""
    (tmp_path / "config.yaml").write_text(dump(*load_both("digits", "laptop")), encoding="utf-8")
    (tmp_path / "job.sh").touch()
    return tmp_path


def _report(run: Path, rank: int, **told: object) -> None:
    """Write what a failed rank reports; rank 0 is on node1, and so on."""
    usual = {"rank": rank, "host": f"node{rank + 1}", "step": 3, "message": "torn", "second_hand": False, "status": 1,
             "time": 1.0}  # fmt: skip
    (run / f"failure_{rank}.json").write_text(json.dumps(usual | told), encoding="utf-8")


def _checkpoint(run: Path, step: int) -> None:
    RunFolder(run).checkpoints.write(step, SavedState({}, {}), keep=2)
    begin_logs(run)


def _set(run: Path, *overrides: str) -> None:
    """Set keys of the run's cluster."""
    settings = load_both("digits", "laptop", [f"cluster.{each}" for each in overrides])
    (run / "config.yaml").write_text(dump(*settings), encoding="utf-8")


RESTARTS = "scheduler.max_restarts=9"
TWO_NODES = ["num_nodes=2", "ranks_per_node=1", "launcher=srun"]


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


def test_a_run_that_has_ended_is_not_started_again_whatever_its_result(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder(run).write_summary(Summary("digits", "aborted", failure="loss not finite"))
    assert not begin(run)
    assert capsys.readouterr().err.endswith(": the run ended in an earlier attempt of this job\n")
    assert end(run, 0, was_signalled=False) == 1


STOPPED = {"second_hand": True, "step": None, "message": "stopped by SIGTERM", "status": 75}
REFUSED = {"status": 2, "step": None, "message": "no such file"}
SUCCESS = Summary("digits", "success", resumed_from_step=3)
BEGUN = Summary("digits", "aborted", failure="rank 1 failed")
SHORT = Summary("digits", "aborted", steps=9)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("sets", "found", "ending", "returned", "told"),
    [
        # A success stays a success if the launcher was killed afterwards, and a run that ended short of it a failure.
        ([], ([], SUCCESS), (143, True), 0, ""),
        ([], ([], SUCCESS), (143, False), 0, ""),
        ([], ([], SHORT), (143, True), 1, ""),
        # A failed launcher is a failed run, and a run that never started is no success.
        ([], ([], None), (0, False), 1, "status 0"),
        # Ranks that refuse make the job refused whatever the launcher returns, unless their run had begun.
        ([], ([], None), (2, False), 2, "the ranks refused to start"),
        ([RESTARTS], ([STOPPED, REFUSED], None), (2, False), 2, "rank 1 on node2 refused to start: no such file"),
        ([RESTARTS], ([STOPPED, REFUSED], None), (75, False), 2, "rank 1 on node2 refused to start: no such file"),
        ([], ([], BEGUN), (2, False), 1, "rank 1 failed"),
        # A rank that failed while the job was told to stop is a failure, but no second one between two attempts.
        ([], ([None, {}], None), (75, True), 1, "rank 1 on node2 failed at step 3: torn"),
        ([RESTARTS], ([None, {}], None), (75, True), 75, "rank 1 on node2 failed at step 3: torn"),
        ([], ([None, {}], None), (0, True), 75, ""),
        # So is one that ended without a report beside ranks that the launcher stopped.
        (TWO_NODES, ([STOPPED], None), (2, False), 1, "rank 1 on node2 ended and reported nothing"),
    ],
)
def test_the_status_of_a_job_follows_from_its_launcher_its_reports_and_the_summary(
    run: Path, sets: list[str], found: Any, ending: tuple[int, bool], returned: int, told: str
) -> None:
    (reports, summary), (status, was_signalled) = found, ending
    _set(run, *sets)
    (run / "ranks.txt").write_text("0 node1\n1 node2\n", encoding="utf-8")
    for rank, report in enumerate(reports):
        if report is not None:
            _report(run, rank, **report)
    if summary is SUCCESS:
        shutil.copytree(samples.run_folder(run / "whole"), run, dirs_exist_ok=True)
    if summary is not None:
        RunFolder(run).write_summary(summary)
        (run / "result_0.txt").touch()
    with redirect_stdout(StringIO()) as output, redirect_stderr(output):
        assert end(run, status, was_signalled=was_signalled) == returned
    printed = output.getvalue()
    kept = (RunFolder(run).summary().failure or "") if RunFolder(run).has_summary else ""
    assert told in printed + kept
    if returned == 2:
        assert "error: " in printed
        assert begin(run), "the folder can be submitted again"


def test_a_second_job_script_does_not_touch_the_folder_of_a_living_run(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen(["sleep", "60"]) as first, subprocess.Popen(["sleep", "60"]) as second:
        assert begin(run, script=first.pid)
        (run / "result_0.txt").write_text(":::MLLOG {}\n", encoding="utf-8")
        before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
        with pytest.raises(UserError, match=f"a run is active in it: .* process {first.pid}, since"):
            begin(run, script=second.pid)
        assert end(run, 143, was_signalled=True, script=second.pid) == 2
        assert f"process {first.pid}" in capsys.readouterr().err
        assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
        assert end(run, 143, was_signalled=True, script=first.pid) == 75
        assert begin(run, script=second.pid)
        first.kill()
        second.kill()


@pytest.mark.medium
def test_a_failed_run_is_started_again_while_it_keeps_steps_and_no_oftener_than_allowed(run: Path) -> None:
    _set(run, "scheduler.max_restarts=2")
    for step in (3, 5):
        assert begin(run)
        _checkpoint(run, step)
        assert end(run, 137, was_signalled=False) == RESTART
        assert "summary.json" not in _names(run)
        assert RunFolder(run).claims.owned_by(os.getpid()), (
            "no other job may take the folder before the ranks start again"
        )
    assert begin(run)
    _checkpoint(run, 9)
    assert end(run, 137, was_signalled=False) == 1
    assert RunFolder(run).claims.holder() is None
    assert [(each.from_step, each.kept_step, each.goes_on) for each in RunFolder(run).attempts.read()] == [
        (0, 3, True), (3, 5, True), (5, 9, False),
    ]  # fmt: skip
    assert not begin(run)


@pytest.mark.medium
@pytest.mark.parametrize(("is_near_limit", "again"), [(False, "restarted it"), (True, "time was over")])
def test_a_stop_that_the_scheduler_continues_is_one_attempt(
    run: Path, monkeypatch: pytest.MonkeyPatch, is_near_limit: bool, again: str
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert begin(run)
    _checkpoint(run, 3)
    assert end(run, 143, was_signalled=True, is_near_limit=is_near_limit) == 75
    assert begin(run)
    (attempt,) = RunFolder(run).attempts.read()
    assert (attempt.outcome, attempt.kept_step, attempt.goes_on) == ("stopped", 3, True)
    assert again in attempt.cause
    # Another job is another start by hand.
    assert end(run, 143, was_signalled=True) == 75
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    assert begin(run)
    assert len(RunFolder(run).attempts.read()) == 1


@pytest.mark.medium
@pytest.mark.parametrize(
    ("hosts", "status", "left"),
    [
        (["any", "node1.site", "node2.site"], MOVE, "node2.site"),
        (["node1.site", "node2.site", "spare.site"], RESTART, "node2.site"),
    ],
)
def test_a_host_that_failed_is_left_out_if_there_are_others(
    run: Path, hosts: list[str], status: int, left: str, said: Said
) -> None:
    _set(run, RESTARTS, *TWO_NODES)
    for step, expected in ((3, RESTART), (5, status)):
        assert begin(run)
        _checkpoint(run, step)
        _report(run, 1)
        assert end(run, 1, was_signalled=False, hosts=hosts) == expected
        assert (RunFolder(run).claims.holder() is None) is (expected == MOVE)
    assert said(main, "left-out", run).out == f"{left}\n"


def test_an_attempt_is_on_the_best_hosts_of_the_job_and_the_check_is_told_once(run: Path, said: Said) -> None:
    _set(run, RESTARTS, "num_nodes=2", "launcher=srun")
    write_nodes(run, [NodeScore("a", 0.3, "input", is_slow=True, delay=0.2)])
    words = ["choose", str(run), "--checked", str(run), "--hosts", "a b c d"]
    assert said(main, *words) == (
        "b\nc\n", f"{run} on b c, without a d; a is 30 % slower than the median (input)\n"
    )  # fmt: skip
    assert begin(run)
    _checkpoint(run, 3)
    _report(run, 0, host="b")
    assert end(run, 1, was_signalled=False, hosts=["b", "c", "a", "b", "c", "d"]) == RESTART
    assert said(main, *words).out == "c\nd\n", "the host that failed and the slow one stay behind"
    told = [(each.outcome, list(each.leaves_out)) for each in RunFolder(run).attempts.read()]
    assert told == [("checked", ["a"]), ("failed", ["b"])]


def test_a_job_that_lost_its_folder_leaves_it_to_the_other_one(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(["sleep", "60"]) as script:
        assert begin(run, script=script.pid)
        (run / "claims" / "2.json").write_text("{}", encoding="utf-8")
        before = _names(run)
        assert end(run, 0, was_signalled=False, script=script.pid) == 1
        assert capsys.readouterr().err.endswith(": was taken over by another run; this run stops\n")
        assert _names(run) == before
        script.kill()


def test_a_run_that_ended_while_a_job_waited_is_not_started_and_nobody_holds_it(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take = Claims.take

    def take_late(claims: Claims, **options: Any) -> Claim:
        RunFolder(run).write_summary(Summary("digits", "success", steps=9))
        return take(claims, **options)

    monkeypatch.setattr(Claims, "take", take_late)
    assert not begin(run)
    assert RunFolder(run).claims.holder() is None
    assert capsys.readouterr().err == f"{run}: the run ended in an earlier attempt of this job\n"


@pytest.mark.medium
def test_a_job_is_queued_again_no_oftener_than_allowed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    notify = "notify=echo $RUN_EVENT, $RUN_MESSAGE >$RUN_FOLDER/told"
    _set(run, "scheduler.max_requeues=1", notify)
    for step, status, reason in (
        (3, 75, ""),
        (5, 1, "; it is not queued again: it was stopped or lost 2 times, and scheduler.max_requeues is 1"),
    ):
        assert begin(run)
        assert f"digits on laptop: 2 ranks, {run}\n" in capsys.readouterr().err
        _checkpoint(run, step)
        assert end(run, 75, was_signalled=True, is_near_limit=True) == status
        assert capsys.readouterr().err == f"{run}: the run was stopped before its end{reason}\n"
        told = (run / "told").read_text(encoding="utf-8")
        assert told == f"stop, digits: the run was stopped before its end{reason}\n"


def test_a_job_that_was_lost_is_continued_no_oftener_than_allowed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    _set(run, "scheduler.max_requeues=1")
    for step, goes_on in ((3, True), (5, True), (7, False)):
        with subprocess.Popen(["sleep", "60"]) as script:
            assert begin(run, script=script.pid) is goes_on
            assert (RunFolder(run).claims.holder() is not None) is goes_on, (
                "a script that trains nothing keeps nobody out"
            )
            script.kill()
        _checkpoint(run, step)
    reason = "not continued: it was stopped or lost 2 times, and scheduler.max_requeues is 1"
    assert capsys.readouterr().err.splitlines()[-1] == f"{run}: {reason}"


def test_trouble_with_the_disk_after_the_ranks_is_a_failed_run_that_nobody_holds(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise UserError("the disk is full")

    assert begin(run)
    monkeypatch.setattr("launch.submit.job.finish_run", fail)
    assert end(run, 0, was_signalled=False) == 1
    assert capsys.readouterr().err.endswith("error: the disk is full\n")
    assert RunFolder(run).claims.holder() is None


_SCRIPT = """
trap 'exit 9' TERM
job() {{ "{python}" -I -m launch.submit.job "$@"; }}
exec {{claim}}> >(exec "{python}" -I -m launch.submit.job hold {run})
job begin {run}; echo $?
job begin {run}; echo $?
kill -0 $!
job end {run} --status 75 --signals 1; echo $?
job begin {run}; echo $?
job end {run} --status 1 --signals 1 --near-limit 1; echo $?
exec {{claim}}>&-; wait $!; echo $?
job begin {run}; echo $?
job end {run} --status 0 --signals 0; echo $?
job begin {run}; echo $?
job left-out {run}
"""


@pytest.mark.medium
def test_the_commands_of_a_job_script_have_the_statuses_that_it_reads_and_its_claim(run: Path) -> None:
    script = _SCRIPT.format(python=sys.executable, run=run)
    done = run_program("bash", "-c", script)
    statuses = [line for line in done.stdout.splitlines() if line.isdigit()]
    assert statuses == ["0", "0", "75", "0", "75", "0", "0", "1", "1"], done.stderr
    (stop,) = [each for each in RunFolder(run).attempts.read() if each.outcome == "stopped"]
    assert stop.cause == "the job's wall time was over"
    assert RunFolder(run).claims.holder() is None


@pytest.mark.parametrize(
    "words", [["begin", "{run}"], ["end", "{run}", "--status", "0"], ["begin"], ["start", "{run}"], ["end", "--near"]]
)
def test_trouble_is_one_line_with_the_status_of_a_refusal(words: list[str], tmp_path: Path, said: Said) -> None:
    told = said(main, *[word.format(run=tmp_path) for word in words], status=2).err
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert len(words) < 2 or words[1] != "{run}" or words[0] == "start" or f"{tmp_path}/config.yaml" in told
