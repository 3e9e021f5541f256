"""Job scripts: their whole text, that shellcheck accepts them, and that they end with the right exit status."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.schema import Cluster
from launch.submit.script import job_text
from tests.launch.golden_jobs import CASES, GOLDEN, golden_texts, job, script_and_manifest
from tests.programs import run_program

pytestmark = pytest.mark.usefixtures("with_mxnet")


def test_the_scripts_are_those_that_were_reviewed() -> None:
    kept = {file.name: file.read_text(encoding="utf-8") for file in GOLDEN.iterdir()}
    assert golden_texts() == kept, (
        "if the change is intended: run python -m tests.launch.golden_jobs, and review the difference"
    )


@pytest.mark.medium
def test_the_scripts_are_shellcheck_clean(tmp_path: Path) -> None:
    for name in CASES:
        (tmp_path / f"{name}.sh").write_text(script_and_manifest(name)[0], encoding="utf-8")
    shellcheck = Path(sys.executable).parent / "shellcheck"
    done = run_program(shellcheck, *tmp_path.iterdir())
    assert (done.returncode, done.stdout) == (0, "")


class _StandInJob:
    """A job script on this machine, in which a stand-in replaces Python and therefore every launcher.

    Each line of ``table`` is for one run: the seconds until the launcher ends, and its exit status, which the stand-in
    for ``job end`` returns.
    """

    def __init__(self, folder: Path, cluster: Cluster, table: list[str]) -> None:
        self.folder = folder
        runs = tuple(folder / f"run-{number}" for number in range(len(table)))
        for run, line in zip(runs, table, strict=True):
            run.mkdir()
            (run / "table").write_text(line, encoding="utf-8")
        python = folder / "python"
        python.write_text(_STAND_IN, encoding="utf-8")
        python.chmod(0o755)
        (folder / "launch").mkdir()
        (folder / "launch" / "rank.sh").write_text("", encoding="utf-8")
        spec = replace(job(cluster, 1), run_folders=runs, program=folder, python=python)
        self.script = folder / "job.sh"
        self.script.write_text(job_text(spec), encoding="utf-8")

    def start(self, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", self.script],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, **variables: str) -> tuple[int, str]:
        """Run the script to its end; return its status and what it printed."""
        script = self.start(**variables)
        output, _ = script.communicate(timeout=25)
        return script.returncode, output

    def wait_for_launch(self, script: subprocess.Popen[str]) -> None:
        """Wait until the script has started a launcher; fails when the script ends before."""
        while not (self.folder / "run-0" / "launched").exists():
            assert script.poll() is None, script.communicate()[0]
            time.sleep(0.01)


# A scheduler's signal reaches every process of a job; it ends neither who keeps the claim nor who closes the run.
_STAND_IN = """#!/usr/bin/env bash
run=${!#}
case "$*" in
  *'launch.submit.job begin'*) [[ ! -e $run/taken ]] || exit 2; [[ ! -e $run/over ]] ;;
  *'launch.doctor'*) [[ ! -e ${0%/*}/sick ]] ;;
  *'launch.submit.reach'*) shift 4; printf '%s\n' "$@" ;;
  *'launch.submit.job hold'*) kill $$; cat >/dev/null; touch "$run/let-go" ;;
  *'launch.submit.job end'*) kill $$; run=$5; echo "end $*"; [[ $9 -eq 0 ]] || exit 75; exit "$7" ;;
  *)
    trap 'kill $!; exit 75' TERM
    read -r seconds status <"$run/table"
    (while [[ ! -e $run/stop ]]; do sleep 0.05; kill -0 "$$" || exit; done; kill "$$") 2>/dev/null &
    touch "$run/launched"
    sleep "$seconds" & wait $!
    exit "$status"
    ;;
esac
"""


def _cluster(*overrides: str) -> Cluster:
    return load_cluster("laptop", ["cluster.num_nodes=2", "cluster.launcher=horovodrun", *overrides])


@pytest.mark.parametrize(("table", "status"), [(["0 0", "0 0"], 0), (["0 0", "0 1", "0 0"], 1), (["0 137"], 137)])
def test_the_exit_status_of_several_runs_is_their_worst(tmp_path: Path, table: list[str], status: int) -> None:
    found, output = _StandInJob(tmp_path, _cluster(), table).run()
    assert found == status
    assert output.count("launch.submit.job end") == len(table)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_the_launcher_and_the_job_ends_with_75_without_a_further_run(
    tmp_path: Path, number: int
) -> None:
    job = _StandInJob(tmp_path, _cluster(), ["30 0", "0 0"])
    started = job.start()
    job.wait_for_launch(started)
    started.send_signal(number)
    output, _ = started.communicate(timeout=25)
    assert started.returncode == 75
    assert "--status 75 --signals 1" in output
    assert not (tmp_path / "run-1" / "launched").exists()


@pytest.mark.medium
def test_a_script_that_is_killed_takes_the_launcher_with_it_and_gives_the_run_up(tmp_path: Path) -> None:
    job = _StandInJob(tmp_path, _cluster(), ["30 0"])
    started = job.start()
    job.wait_for_launch(started)
    started.kill()
    give_up = time.monotonic() + 20
    while not (tmp_path / "run-0" / "let-go").exists():
        assert time.monotonic() < give_up, "the launcher goes on, and with it the claim on the folder"
        time.sleep(0.01)
    started.communicate(timeout=5)


@pytest.mark.medium
def test_before_the_limit_the_script_signals_its_ranks_and_asks_grid_engine_to_queue_the_job_again(
    tmp_path: Path,
) -> None:
    limits = ["cluster.scheduler.wall_time_s=60", "cluster.scheduler.notice_s=59", "cluster.scheduler.requeue=true"]
    hosts = tmp_path / "pe_hostfile"
    hosts.write_text("one 2 main.q@one UNDEFINED\ntwo 2 main.q@two UNDEFINED\n", encoding="utf-8")
    job = _StandInJob(tmp_path, _cluster("cluster.scheduler.kind=gridengine", *limits), ["30 0"])
    status, output = job.run(PE_HOSTFILE=str(hosts), JOB_ID="7")
    assert status == 99
    assert f"job 7 of {tmp_path}/run-0 on one two" in output


@pytest.mark.parametrize(("mark", "status", "ends"), [("over", 0, 2), ("taken", 2, 1)])
def test_a_run_that_has_ended_or_is_somebody_else_s_is_left_alone_and_the_next_one_is_trained(
    tmp_path: Path, mark: str, status: int, ends: int
) -> None:
    job = _StandInJob(tmp_path, _cluster(), ["0 1", "0 0"])
    (tmp_path / "run-0" / mark).touch()
    found, output = job.run()
    assert found == status
    assert [(tmp_path / f"run-{number}" / "launched").exists() for number in (0, 1)] == [False, True]
    assert output.count("launch.submit.job end") == ends
    assert (tmp_path / "run-1" / "let-go").exists(), "the claim is kept after the end of the launcher"


def test_a_run_that_failed_is_started_again_while_the_end_says_so(tmp_path: Path) -> None:
    job = _StandInJob(tmp_path, _cluster(), ["0 79"])
    script = job.start()
    job.wait_for_launch(script)
    (tmp_path / "run-0" / "table").write_text("0 0", encoding="utf-8")
    output, _ = script.communicate(timeout=25)
    assert script.returncode == 0
    assert output.count("--status 79") >= 1
    assert output.count("--status 0") == 1


def test_other_hosts_than_asked_for_are_refused(tmp_path: Path) -> None:
    hosts = tmp_path / "nodes"
    hosts.write_text("one\none\n", encoding="utf-8")
    limit = "cluster.scheduler.wall_time_s=60", "cluster.scheduler.notice_s=0"
    job = _StandInJob(tmp_path, _cluster("cluster.scheduler.kind=gridengine", *limit), ["0 0"])
    status, output = job.run(SGE_JOB_HOSTLIST=str(hosts), JOB_ID="7")
    assert status == 2
    assert "error: the job needs 2 hosts and got 1 (one)" in output


@pytest.mark.parametrize("is_sick", [False, True])
def test_a_job_whose_nodes_fail_a_check_trains_nothing(is_sick: bool, tmp_path: Path) -> None:
    job = _StandInJob(tmp_path, _cluster("cluster.scheduler.check_first=true"), ["0 0"])
    if is_sick:
        (tmp_path / "sick").touch()
    status, output = job.run()
    assert (status, (tmp_path / "run-0" / "launched").exists()) == ((1, False) if is_sick else (0, True))
    assert ("error: the nodes failed a check, see above; nothing was trained\n" in output) == is_sick
