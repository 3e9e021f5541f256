"""``./run.sh submit``: wrong commands, the dry run, and a job on a list of hosts."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from configs.load import load_run
from launch.study.__main__ import main as sweep
from launch.submit.__main__ import main
from tests.configs.studies import GRID, SMALL
from tests.launch.stand_in import write_program

pytestmark = pytest.mark.usefixtures("with_mxnet")

_SLURM = ["cluster.scheduler.kind=slurm", "cluster.scheduler.wall_time_s=600"]
_SRUN = [*_SLURM, "cluster.launcher=srun"]
_TRAIN_JOB = ["cluster.scheduler={kind: trainjob, wall_time_s: 600, training_runtime: a}",
              "cluster.container={runtime: docker, image: a}", "cluster.engine.name=mxnet"]  # fmt: skip
_GPUS_OF_GRID_ENGINE = ["cluster.device=gpu", "cluster.scheduler.kind=gridengine", "cluster.scheduler.wall_time_s=600"]


def _submit(folder: Path | None, *sets: str, words: Sequence[str] = ()) -> int:
    """Submit the digits to the laptop with these settings, or print the script if there is no folder for the run."""
    place = ["--dry-run"] if folder is None else ["--run-dir", str(folder)]
    return main(["submit", "digits", "--cluster", "laptop", *(f"--set={each}" for each in sets), *words, *place])


@pytest.mark.parametrize(
    ("sets", "words", "refused"),
    [
        ([], "", "cluster laptop has no scheduler: .* give --hosts A,B, or train here with ./run.sh train"),
        (_SLURM[:1], "", "cluster.scheduler.wall_time_s: got None, .*: add the key"),
        ([*_SLURM, "cluster.trackers=[wandb]"], "", "cluster.trackers: got .'wandb'.*watch RUN --track wandb"),
        ([*_SLURM, "cluster.launcher=horovodrun", "cluster.num_nodes=2"], "",
         "cluster.launcher: got 'horovodrun', allowed: srun or mpirun with scheduler slurm"),
        ([*_SLURM, "cluster.launcher=mpirun"], "", "cluster.communication.backend: got 'gloo'.* set launcher: srun"),
        ([*_SRUN, "cluster.num_nodes=80", "batch.global_size=160"], "",
         "cluster.communication.backend: got 'gloo', allowed: mpi or nccl for more than 128 ranks.*: srun or mpirun"),
        ([*_SRUN, "cluster.container.runtime=docker", "cluster.container.image=a"], "",
         "cluster.container.runtime: got 'docker', allowed: none or .* or enroot with scheduler slurm"),
        ([*_SLURM, "cluster.container.runtime=enroot", "cluster.container.image=a"], "",
         "cluster.launcher: got 'local', allowed: srun with container.runtime: enroot"),
        (["cluster.launcher=horovodrun"], "--hosts a,b",
         "spare nodes: got 1 .of 2 hosts.*scheduler.check_first: true .* or scheduler.max_restarts"),
        (["cluster.launcher=horovodrun", "cluster.scheduler.spare_nodes=1"], "--hosts a",
         "--hosts: got 1 hosts for num_nodes: 1, scheduler.spare_nodes: 1 and scheduler.kind: none"),
        (_SRUN, "--hosts a", "--hosts: got 1 hosts for num_nodes: 1, .* slurm, allowed: .* with scheduler.kind: none"),
        ([*_SLURM, "cluster.scheduler.spare_nodes=1", "cluster.scheduler.max_restarts=1"], "",
         "cluster.scheduler.spare_nodes: got 1, allowed: 0 with launcher: local"),
        (_SRUN, "--repeat 0", "--repeat: got 0, allowed: 1 or more"),
        (_SLURM, "--rehearse", "node.gpu: got None, allowed: an accelerator of train/sim/families.yaml"),
        ([*_SLURM, "cluster.scheduler.account=my project"], "", "cluster.scheduler.account: .*: one name"),
        ([*_SRUN, "cluster.communication.kind=parameter_server"], "",
         "cluster.launcher: got 'srun', allowed: local with communication.kind: parameter_server"),
        ([*_TRAIN_JOB, "cluster.launcher=torchrun"], "", "cluster.launcher: got .*, allowed: mpirun with .*=torch$"),
        ([*_TRAIN_JOB, "cluster.launcher=mpirun"], "", "cluster.communication.backend: got 'gloo', .*backend=mpi$"),
        ([*_SLURM, "cluster.communication.link_bytes_per_s=1e9"], "",
         "cluster.communication.link_bytes_per_s: got 1000000000.0, allowed: null for a job"),
        ([*_GPUS_OF_GRID_ENGINE, "cluster.scheduler.resources=['-pe mpi 2']"], "",
         "cluster.scheduler.resources: got .*gpu=8.* or name a queue of GPU nodes in cluster.scheduler.queue"),
    ],
)  # fmt: skip
def test_a_job_that_cannot_run_is_refused_in_one_line(
    sets: list[str], words: str, refused: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")  # no scheduler is asked
    assert _submit(Path("run"), *sets, words=words.split()) == 2
    captured = capsys.readouterr()
    assert re.match(f"error: {refused}", captured.err), captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_a_dry_run_prints_script_and_command_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _submit(tmp_path / "run", *_SRUN, words=["--repeat", "3", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert "# digits: 2 ranks on 1 node of laptop. Submitted by:" in lines
    assert lines[-1] == f"# sbatch --parsable {tmp_path}/run-1/job.sh"
    assert f"  {tmp_path}/run-3" in lines
    assert not list(tmp_path.iterdir())
    (tmp_path / "run-3" / "summary.json").mkdir(parents=True)
    assert _submit(tmp_path / "run", *_SRUN, words=["--repeat", "3", "--dry-run"]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.startswith(f"error: {tmp_path}/run-3: exists already")) == ("", True)


def _dry_run_on(hosts: str, *settings: str, launcher: str = "horovodrun") -> int:
    return _submit(None, "cluster.num_nodes=2", f"cluster.launcher={launcher}", *settings, words=["--hosts", hosts])


@pytest.mark.parametrize(
    ("hosts", "message"),
    [
        ("node[1-3],node2", "node2 is named twice; each host takes part once"),
        ("alpha,,beta", "got '', allowed: names or addresses separated by commas"),
        ("alpha beta", "got 'alpha beta', allowed: names"),
        ("me@alpha,beta", "got 'me@alpha', allowed: names"),
        ("alpha:2,beta", "got 'alpha:2', allowed: names"),
        ("node[4-1]", "got the range '4-1' in node[4-1], allowed: for example 1-4"),
        ("@/nowhere", "/nowhere: cannot be read: No such file or directory"),
        ("@~no-such-user/hosts", "~no-such-user/hosts: cannot be read: Could not determine home directory."),
        ("@/dev/null", "/dev/null: cannot be read: it is not a file"),
        ("fe80::1,fe80::2", "fe80::1: horovodrun takes no IPv6 address; give the host's name"),
        ("alpha", "got 1 hosts for num_nodes: 2"),
    ],
)
def test_a_list_of_hosts_that_cannot_be_meant_is_explained_in_one_line(
    hosts: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _dry_run_on(hosts) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: --hosts: {message}")
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("hosts", "found"),
    [
        (" alpha , beta ", "alpha beta"),
        ("node[09-10].site", "node09.site node10.site"),
        ("node[1,3]", "node1 node3"),
        ("@{file}", "alpha beta"),
        ("10.0.0.1,fe80::2", "10.0.0.1 fe80::2"),
    ],
)
def test_hosts_may_be_written_as_other_programs_write_them(
    hosts: str, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hosts"
    file.write_text("# two hosts\nalpha # the first\n\nbeta\n", encoding="utf-8")
    assert _dry_run_on(hosts.format(file=file), "cluster.communication.backend=mpi", launcher="mpirun") == 0
    assert re.search(rf"< <\(.* {found}\)$", capsys.readouterr().out, re.MULTILINE)


def test_a_scheduler_that_is_not_here_is_refused_before_a_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _submit(tmp_path / "run", *_SRUN) == 2
    assert capsys.readouterr().err.startswith("error: sbatch is not on this machine; submit from a machine that has it")
    assert not (tmp_path / "run").exists()


def _client(folder: Path, name: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a shell line be the client of a scheduler."""
    write_program(folder / name, line)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("launch.run.pack_data_set", lambda *_: None)


@pytest.mark.parametrize(
    "setting", ["cluster.environment={MY_TOKEN: a}", "cluster.scheduler.setup=['export WANDB_API_KEY=abc']"]
)
def test_a_job_script_and_a_config_with_a_secret_are_readable_by_their_owner_only(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _client(tmp_path, "sbatch", "echo 7", monkeypatch)
    assert _submit(tmp_path / "run", *_SRUN, setting) == 0
    for name in ("config.yaml", "job.sh"):
        assert (tmp_path / "run" / name).stat().st_mode & 0o777 == 0o600, name


def test_a_rehearsed_job_sums_gradients_of_their_real_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _client(tmp_path, "sbatch", "echo 7", monkeypatch)
    words = ["--rehearse", "--set", "cluster.num_nodes=2", "--run-dir", str(tmp_path / "run")]
    assert main(["submit", "imagenet-b256", "--cluster", "dgx-a100", *words]) == 0
    _, cluster = load_run(tmp_path / "run" / "config.yaml")
    assert cluster.rehearsal is not None
    assert (cluster.rehearsal.shrink, cluster.rehearsal.speed, cluster.engine.name) == (1, 1.0, "timed")
    assert (cluster.world_size, cluster.device, cluster.scheduler.check_first) == (16, "cpu", False)


def test_a_cell_of_a_study_is_a_job_of_its_own_and_handed_over_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _client(tmp_path, "sbatch", f'echo "$*" >>{tmp_path}/asked; echo "7;b"', monkeypatch)
    sets = {key: yaml.safe_load(value) for key, _, value in (each.partition("=") for each in _SRUN)}
    study = {**GRID, **SMALL, "recipe": "digits", "cluster": "laptop", "ranks": [2], "times_ranks": {}}
    study |= {"repeats": 1, "set": sets}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    folder = tmp_path / "runs" / "n-c-d-b32-r2-1"
    for told in (f"digits: job 7, 2 ranks on 1 node\n  {folder}\n  watch ", "waits in the scheduler's queue"):
        assert sweep(["sweep", str(tmp_path / "study.yaml"), "--runs", str(tmp_path / "runs")]) == 0
        assert told in capsys.readouterr().out
    assert (tmp_path / "asked").read_text(encoding="utf-8") == f"--parsable {folder}/job.sh\n"
    assert json.loads((folder / "job.json").read_text(encoding="utf-8"))["job"] == "7"


def test_a_job_gets_nothing_of_the_jobs_and_the_launchers_that_its_caller_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _client(tmp_path, "sbatch", f"env >{tmp_path}/given; echo 7", monkeypatch)
    kept = {"SLURM_CONF": "/etc/a", "OMPI_MCA_btl": "tcp", "OMP_DYNAMIC": "false", "LC_ALL": "C"}
    foreign = [
        "SLURM_MEM_PER_CPU", "SLURM_JOB_ID", "SLURM_EXPORT_ENV", "SBATCH_EXPORT", "SBATCH_TIMELIMIT", "PMI_RANK",
        "PMIX_RANK", "RANK", "PMIX_NAMESPACE", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_ess", "OMPI_MCA_orte_hnp_uri",
        "HYDRA_BOOTSTRAP", "HOROVOD_RANK", "WORLD_SIZE", "MASTER_ADDR", "PE_HOSTFILE", "NSLOTS", "JOB_ID",
        "OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY",
        "PBS_NODEFILE", "PBS_JOBID", "LSB_JOBID", "SGE_TASK_ID", "CUDA_VISIBLE_DEVICES",
    ]  # fmt: skip
    for name, value in (kept | dict.fromkeys(foreign, "1")).items():
        monkeypatch.setenv(name, value)
    assert _submit(tmp_path / "run", *_SRUN) == 0
    given = dict(line.split("=", 1) for line in (tmp_path / "given").read_text().splitlines() if "=" in line)
    assert given.items() >= kept.items()
    assert not given.keys() & set(foreign)
    assert "warning: SBATCH_EXPORT, SBATCH_TIMELIMIT: not handed over; a job asks for" in capsys.readouterr().err


def _job_of(folder: Path) -> str:
    """Return the process of a job on hosts, after its end."""
    process: str = json.loads((folder / "job.json").read_text(encoding="utf-8"))["job"]
    with suppress(ChildProcessError):
        os.waitpid(int(process), 0)
    return process


@pytest.mark.usefixtures("typed")
def test_a_job_on_hosts_outlives_its_terminal_reads_nothing_and_adds_to_the_log_of_its_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _client(tmp_path, "bash", 'cat; cut -d" " -f6 /proc/$$/stat; echo "$*" >&2', monkeypatch)
    runs = [tmp_path / f"a run-{number}" for number in (1, 2)]
    words = ["--hosts", "b", "--repeat", "2"]
    assert _submit(tmp_path / "a run", "cluster.launcher=horovodrun", words=words) == 0
    first = _job_of(runs[0])
    assert f"digits: job {first}, 2 ranks on 1 node" in capsys.readouterr().out
    assert main(["submit", "--resume", str(runs[1])]) == 0
    second = _job_of(runs[1])
    assert second == _job_of(runs[0]) != first
    told = capsys.readouterr().out
    assert f"tail -f '{runs[0]}/job.log';" in told
    assert f"  cancel  kill {second}" in told
    lines = (runs[0] / "job.log").read_text(encoding="utf-8").splitlines()
    assert [line.strip() for line in lines] == [first, f"{runs[0]}/job.sh", second, f"{runs[0]}/job.sh"]
    assert not (runs[1] / "job.log").exists()
