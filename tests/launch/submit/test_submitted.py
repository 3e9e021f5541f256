"""``submit --resume``, ``--status`` and ``--cancel``, with Slurm's clients replaced; `test_slurm` has the real ones."""

import json
import os
import shutil
import signal
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from configs import registry
from configs.load import load_run
from launch.submit.__main__ import main
from logs.attempts import Attempt
from logs.checkpoints import SavedState
from logs.folder import UNFINISHED_MARK, RunFolder, Summary
from tests.launch.stand_in import write_program
from tests.programs import Said

_CLIENTS = {
    "sbatch": "echo $* >asked; echo $(($(cat job) + 1)) | tee job.new; mv job.new job",
    "squeue": '[ "$1" != --noheader ] || exec cat queued; echo "$1 pending"',
    "scancel": '[ "$1" != 9 ] || { echo "Invalid job id" >&2; exit 1; }; echo "$1" >cancelled',
}
_PLACE = ["--cluster", "laptop", "--set=cluster.scheduler.kind=slurm", "--set=cluster.scheduler.wall_time_s=600",
          "--set=cluster.launcher=srun"]  # fmt: skip


def _change(folder: Path, old: str, new: str) -> None:
    """Change the settings of a run."""
    config = (folder / "config.yaml").read_text(encoding="utf-8")
    assert old in config
    (folder / "config.yaml").write_text(config.replace(old, new), encoding="utf-8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Submit a run as job 8, and return its folder."""
    for name, line in _CLIENTS.items():
        write_program(tmp_path / name, f"cd {tmp_path}; {line}")
    (tmp_path / "job").write_text("7", encoding="utf-8")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("launch.run.pack_data_set", lambda *_: None)
    folder = tmp_path / "run"
    assert main(["submit", "digits", *_PLACE, "--run-dir", str(folder)]) == 0
    return folder


def test_the_status_says_who_trains_and_how_far_the_run_is(run: Path, said: Said) -> None:
    claim = RunFolder(run).claims.take()
    for step in (2, 3):
        RunFolder(run).checkpoints.write(step, SavedState({}, {}), keep=2)
    told = said(main, "submit", "--status", run).out
    lines = told.splitlines()
    assert lines[0].startswith(f"{run}: job 8, submitted 2")
    assert lines[1].startswith("  owner of the folder: ")
    assert f"process {os.getpid()}, since" in lines[1]
    assert lines[2:] == ["  newest checkpoint: step 3", "  squeue:", "    --jobs=8 pending"]
    claim.release()
    row = Attempt("now", "failed", "rank 1 was killed", "beta", 0, 3, goes_on=True)
    (run / "attempts.jsonl").write_text(json.dumps(asdict(row)) + "\n", encoding="utf-8")
    write_program(run.parent / "squeue", "echo invalid job >&2")
    RunFolder(run).write_summary(Summary("digits", "aborted", failure="rank 1 was killed"))
    assert said(main, "submit", "--status", run).out.splitlines()[1:] == [
        "  owner of the folder: none",
        "  newest checkpoint: step 3",
        f"  an attempt {row.description}",
        "  ended: aborted: rank 1 was killed",
        "  squeue:",
        "    invalid job",
    ]
    (run / UNFINISHED_MARK).touch()
    write_program(run.parent / "squeue", "printf 'caf\\351 pending\\n'")  # Latin-1, as of a site's messages
    told = said(main, "submit", "--status", run).out
    assert "  ended: " not in told, "it was stopped and is to go on"
    assert "  the last attempt: aborted: rank 1 was killed" in told
    assert told.endswith("    caf\ufffd pending\n")
    write_program(run.parent / "squeue", "")
    assert said(main, "submit", "--status", run).out.endswith("  squeue:\n    nothing\n")


@pytest.mark.medium
def test_a_scheduler_that_does_not_answer_is_named_after_a_while_and_leaves_no_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, said: Said
) -> None:
    monkeypatch.setattr("launch.submit.submission.ANSWER_S", 0.1)
    for name in _CLIENTS:
        write_program(run.parent / name, "exec sleep 60")
    assert "    no answer after 0.1 s; " in said(main, "submit", "--status", run).out
    another = run.with_name("another")
    for words in (["--cancel", str(run)], ["digits", *_PLACE, "--run-dir", str(another)]):
        assert ": no answer after 0.1 s; " in said(main, "submit", *words, status=2).err
    assert not another.exists()


@pytest.mark.medium
def test_each_run_of_a_job_has_the_seed_after_that_of_the_run_before(run: Path) -> None:
    other = run.parent / "other"
    assert main(["submit", "digits", *_PLACE, "--set=run.seed=7", "--run-dir", str(other), "--repeat", "3"]) == 0
    seeds = {each.parent.name: load_run(each)[0].run.seed for each in run.parent.glob("other*/config.yaml")}
    assert seeds == {"other-1": 7, "other-2": 8, "other-3": 9}


@pytest.mark.medium
def test_a_job_whose_engine_is_not_in_this_environment_is_refused_unless_it_runs_in_an_image(
    run: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"torch", "nvidia", "nvidia.dali"}
    monkeypatch.setattr(registry, "find_spec", lambda package: package if package in found else None)
    other = run.parent / "other"
    words = ["submit", "imagenet-b256", "--cluster", "dgx-a100", "--run-dir"]
    told = said(main, *words, other, status=2).err
    assert told.endswith(" adds MXNet, or train by --set cluster.engine.name=torch\n")
    remedy = ["--set", "cluster.engine.name=torch", "--set", "cluster.communication.allreduce=flat"]
    assert not other.exists()
    image = ["--set", "cluster.container={runtime: apptainer, image: x.sif}"]
    found -= {"nvidia", "nvidia.dali"}
    told = said(main, *words, other, *remedy, status=2).err
    assert "data.source: got 'folders', allowed: synthetic in this environment" in told
    assert main([*words, f"{other}-in-image", *image]) == 0
    found |= {"nvidia", "nvidia.dali"}
    assert [main([*words, f"{other}-{number}", *more]) for number, more in enumerate((remedy, image))] == [0, 0]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("echo 'no such\n queue'; exit 1", "refuses the job: no such queue"),
        ("echo 'no such\n queue' >&2; exit 1", "refuses the job: no such queue"),
        ("echo The queue; echo is paused", "names no job, but says 'The queue is paused'; ask the scheduler whether"),
    ],
)
def test_a_job_that_the_scheduler_refuses_leaves_no_folder(line: str, told: str, run: Path, said: Said) -> None:
    write_program(run.parent / "sbatch", line)
    words = said(main, "submit", "digits", *_PLACE, "--run-dir", run.parent / "other", "--repeat", "2", status=2).err
    assert words.splitlines()[-1].startswith(f"error: sbatch {told}")
    assert not list(run.parent.glob("other*"))


def test_a_job_is_cancelled_by_its_folder_and_a_refusal_is_one_line(run: Path, said: Said) -> None:
    assert main(["submit", "--cancel", str(run)]) == 0
    assert (run.parent / "cancelled").read_text(encoding="utf-8") == "8\n"
    assert main(["submit", "--resume", str(run)]) == 0
    assert said(main, "submit", "--cancel", run, status=2).err == "error: scancel 9: Invalid job id\n"


@pytest.mark.medium
def test_a_run_that_failed_is_submitted_again_and_one_that_goes_on_waits_or_ended_is_not(run: Path, said: Said) -> None:
    claim = RunFolder(run).claims.take()
    assert "a run is active in it" in said(main, "submit", "--resume", run, status=2).err
    claim.release()
    RunFolder(run).write_summary(Summary("digits", "aborted", failure="rank 1 was killed"))
    (run.parent / "queued").write_text("8 held\n", encoding="utf-8")
    assert "its job 8 waits or runs" in said(main, "submit", "--resume", run, status=2).err
    (run.parent / "queued").unlink()
    assert "digits: job 9, 2 ranks on 1 node" in said(main, "submit", "--resume", run).out
    assert (run / "unfinished").exists()
    RunFolder(run).write_summary(Summary("digits", "success", steps=38))
    assert "the run in it has ended, success after step 38" in said(main, "submit", "--resume", run, status=2).err


def test_a_run_that_is_submitted_again_keeps_off_the_nodes_that_it_left_out(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _change(run, "resources: []", "resources: ['--exclude=old']")
    row = Attempt("now", "failed", "rank 1 was killed", "beta", 0, 3, goes_on=True, leaves_out=["beta"])
    (run / "attempts.jsonl").write_text(json.dumps(asdict(row)) + "\n", encoding="utf-8")
    assert main(["submit", "--resume", str(run)]) == 0
    assert (run.parent / "asked").read_text(encoding="utf-8") == f"--parsable --exclude=old,beta {run}/job.sh\n"
    assert "the job leaves out beta, where ranks failed or were slow" in capsys.readouterr().err


def test_the_process_of_hosts_is_ended_only_while_it_trains(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _change(run, "kind: slurm", "kind: none")
    assert main(["submit", "--cancel", str(run)]) == 2
    assert capsys.readouterr().err == f"error: {run}: no run is active in it, so there is nothing to cancel\n"
    RunFolder(run).claims.take()
    with subprocess.Popen(["sleep", "60"]) as process:
        row = json.loads((run / "job.json").read_text(encoding="utf-8"))
        (run / "job.json").write_text(json.dumps({**row, "job": str(process.pid)}), encoding="utf-8")
        assert main(["submit", "--cancel", str(run)]) == 0
        assert process.wait() == -signal.SIGTERM
    assert capsys.readouterr().out == f"{run}: kill {process.pid}\n"


def test_a_job_in_an_image_is_cancelled_though_nobody_here_knows_whether_it_trains(run: Path, said: Said) -> None:
    _change(run, "kind: slurm", "kind: kubernetes")
    write_program(run.parent / "kubectl", "")
    assert said(main, "submit", "--cancel", run).out == f"{run}: kubectl delete 8\n"


_ALONE = "--resume, --status and --cancel take no other option"
_NO_JOB = "no job.json in it; give the folder of a run that ./run.sh submit started"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("digits", "give RECIPE and --cluster C, or --resume, --status or --cancel with a run"),
        ("digits --cluster laptop --from {run}/none", "--from: no such file or folder: "),
        (f"digits {' '.join(_PLACE)} --from {{run}}/config.yaml", "/config.yaml: is a text, for example a page"),
        ("digits --resume {run}", _ALONE),
        ("--resume {run} --hosts a,b", _ALONE),
        ("--resume {run} --from a", _ALONE),
        ("--resume {run} --run-dir a", _ALONE),
        ("--resume {run} --dry-run", _ALONE),
        ("--status {run} --cluster laptop", _ALONE),
        ("--cancel {run} --set run.seed=2", _ALONE),
        ("--status {run}/..", _NO_JOB),
        ("--status {run}/damaged", _NO_JOB),
        *((f"--{option} {{run}}/copied", "was copied or moved, and the job in its job.json is that of {run}; give")
          for option in ("resume", "status", "cancel")),
        ("--resume {run}", "job.sh: the job script is missing; resume with ./run.sh train --resume {run} in a job"),
    ],
)  # fmt: skip
def test_a_wrong_command_is_refused_in_one_line(run: Path, words: str, message: str, said: Said) -> None:
    (run / "job.sh").unlink()
    shutil.copytree(run, run / "copied")
    shutil.copytree(run / "copied", run / "damaged")
    (run / "damaged" / "job.json").write_text('{"job": ', encoding="utf-8")
    told = said(main, "submit", *words.format(run=run).split(), status=2).err
    assert message.format(run=run) in told
    assert told.count("\n") == 1
