"""What is handed over as a job, by which program, and what is recorded and told of it."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

from configs.errors import UserError
from configs.load import ROOT, load_both
from configs.rank_variables import binding_environment, rank_environment
from launch.submit import submission
from launch.submit.__main__ import main
from launch.submit.jobspec import IMAGE_PROGRAM
from launch.submit.scheduler import scheduler_of
from logs.attempts import Attempt


def _wait_for(process: str) -> None:
    """Wait for the end of a child that nobody may have waited for yet."""
    with suppress(ChildProcessError):
        os.waitpid(int(process), 0)


@pytest.mark.usefixtures("typed")
def test_a_job_on_hosts_outlives_its_terminal_reads_nothing_and_adds_to_its_log(tmp_path: Path) -> None:
    script, log = tmp_path / "job.sh", tmp_path / "job.log"
    script.write_text("cat; ps -o sid= -p $$; echo trouble >&2\n", encoding="utf-8")
    log.write_text("an earlier job\n", encoding="utf-8")
    number = submission._in_background(f"bash '{script}'", log)
    _wait_for(number)
    lines = log.read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in lines] == ["an earlier job", number, "trouble"]


@pytest.mark.parametrize(
    ("kind", "program", "python"),
    [
        ("slurm", ROOT, Path(sys.executable)),
        ("kubernetes", IMAGE_PROGRAM, IMAGE_PROGRAM / ".venv" / "bin" / "python"),
    ],
)
def test_a_job_in_an_image_uses_the_program_of_the_image(kind: str, program: Path, python: Path) -> None:
    both = load_both("digits", "laptop", [f"cluster.scheduler.kind={kind}", "cluster.paths.runs=a"])
    made = submission.make_job(*both, ("b", "c"), (Path("/runs/1"),))
    assert (made.program, made.python, made.hosts, made.name) == (program, python, ("b", "c"), "digits")
    assert made.cluster.paths.runs == str(ROOT / "a")
    assert made.variables == rank_environment(both[1]) | binding_environment(both[1])


def _client(folder: Path, name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{line}\n", encoding="utf-8")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("launch.run._pack_built_in", lambda *_: None)


def test_a_cell_of_a_study_is_a_job_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _client(tmp_path, "sbatch", f'echo "$*" >{tmp_path}/asked; echo 7', monkeypatch)
    monkeypatch.chdir(tmp_path)
    place = ["scheduler.kind=slurm", "scheduler.wall_time_s=600", "launcher=srun"]
    recipe, cluster = load_both("digits", "laptop", [f"cluster.{each}" for each in place])
    with pytest.raises(UserError, match="wall_time_s"):
        submission.submit_run(*load_both("digits", "laptop", [f"cluster.{place[0]}"]), Path("run"))
    assert not (tmp_path / "run").exists()
    submission.submit_run(recipe, cluster, Path("run"))
    assert (tmp_path / "asked").read_text(encoding="utf-8") == f"--parsable {tmp_path}/run/job.sh\n"
    assert json.loads((tmp_path / "run" / "job.json").read_text(encoding="utf-8"))["job"] == "7"
    assert capsys.readouterr().out.startswith("digits: job 7, 2 ranks on 1 node\n  run\n  watch ")


def test_a_job_on_hosts_is_started_here_and_again_with_the_log_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _client(tmp_path, "bash", 'echo "$*"', monkeypatch)
    folder = tmp_path / "a run"
    words = ["--hosts", "b", "--set", "cluster.launcher=horovodrun", "--run-dir", str(folder)]
    assert main(["submit", "digits", "--cluster", "laptop", *words]) == 0
    first = json.loads((folder / "job.json").read_text(encoding="utf-8"))["job"]
    _wait_for(first)
    assert f"digits: job {first}, 2 ranks on 1 node" in capsys.readouterr().out
    assert main(["submit", "--resume", str(folder)]) == 0
    record = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    _wait_for(record["job"])
    assert (record["script"], record["runs"]) == (f"{folder}/job.sh", [str(folder)])
    assert (folder / "job.log").read_text(encoding="utf-8") == f"{folder}/job.sh\n" * 2
    assert f"  cancel  kill {record['job']}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "said", "job_id"),
    [("lsf", "Job <7> is submitted to queue <normal>.", "7"), ("lsf", "submitted", "submitted"), ("slurm", "7;b", "7")],
)
def test_the_number_of_a_job_is_that_in_the_answer_or_the_whole_answer(kind: str, said: str, job_id: str) -> None:
    assert submission._hand_over(scheduler_of(kind), f"echo '{said}'") == job_id


@pytest.mark.parametrize(
    ("kind", "left", "option"),
    [("slurm", "b", ["--exclude=b"]), ("slurm", "", []), ("gridengine", "b", []), ("pbs", "b", [])],
)
def test_a_job_is_kept_off_bad_hosts_where_there_are_any_and_the_scheduler_can(
    kind: str, left: str, option: list[str], tmp_path: Path
) -> None:
    _, cluster = load_both("digits", "laptop", [f"cluster.scheduler.kind={kind}"])
    row = Attempt("now", "failed", "broke", "b", 0, 3, goes_on=True, leaves_out=[*left])
    (tmp_path / "attempts.jsonl").write_text(json.dumps(asdict(row)) + "\n", encoding="utf-8")
    assert submission._without_bad_hosts(cluster, scheduler_of(kind), [tmp_path]) == option
